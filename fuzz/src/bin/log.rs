//! Arbitrary bytes as the ring of a log: reading it ends, with records or without, and never panics.
#![no_main]

use caliburn_log::format::{Lsn, STATUS_AT, Status};
use caliburn_log::log;
use caliburn_log::scan::{scan, verify};
use caliburn_log::search::scan_ring;
use caliburn_os::medium::Media;
use caliburn_sim::disk::Disk;
use caliburn_sim::media::{Hardware, Machine, MachineMedia};
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::Arc;

fuzz_target!(|input: &[u8]| {
    let machine: Arc<Machine<()>> = Machine::new(Disk::default(), [1; 16], 1, Hardware::default(), None);
    let medium = MachineMedia(machine).create(Path::new("/m/log")).expect("a sound machine");
    log::create(&*medium, [7; 16], 65536, 1).expect("a sound machine");
    let (head, ring) = input.split_at(input.len().min(8));
    let mut word = [0; 8];
    word[..head.len()].copy_from_slice(head);
    let known = u64::from_le_bytes(word) % 70_000;
    medium.write_at(&ring[..ring.len().min(65536)], 65536).expect("a sound machine");
    assert!(STATUS_AT[0] < 65536);
    let status: Status = log::read_status(&*medium, None).expect("just written");
    for known in [None, Some(Lsn(0)..Lsn(known)), Some(Lsn(known / 2)..Lsn(known))] {
        let (mut scanned_records, mut in_ring) = (0, 0);
        if let Ok(scanned) = scan(&*medium, &status, known, |record| {
            record.ranges().for_each(|range| assert!(range.bytes.len() < 65536));
            scanned_records += 1;
        }) {
            verify(&*medium, 65536, scanned.from..scanned.tail).expect("it was valid a moment ago");
            scan_ring(&*medium, &status, |_| in_ring += 1).expect("a sound machine");
            assert!(in_ring >= scanned_records);
        }
    }
});
