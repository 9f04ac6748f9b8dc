//! A crashed store with bytes changed anywhere: it is refused, or opens; nothing panics.
//!
//! The input is a list of changes, eight bytes each: which file, where, what. Bytes left over choose the store:
//! its policy, and for undo its memory.
#![no_main]

use caliburn::{Class, Mode};
use caliburn_sim::disk::{Act, Disk};
use caliburn_sim::life::{Flavour, STORE, options};
use caliburn_sim::media::Machine;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What a killed process leaves: records in the log, and in the stage.
fn crashed(flavour: Flavour) -> Disk {
    let machine: Arc<Machine<()>> = Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
    machine.run(|| {
        let store = options(&machine, 50, flavour).open(STORE).expect("sound");
        let region = store.create_segment("data", 65536).expect("sound").map_all().expect("sound");
        for number in 0..12u64 {
            let mut tx = store.begin(Mode::Restore).expect("sound");
            tx.store(&region, number as usize * 100, &number).expect("sound");
            let power = flavour == Flavour::Redo && number < 8;
            tx.commit(if power { Class::Power } else { Class::Process }).expect("sound");
        }
        let mut tx = store.begin(Mode::Restore).expect("sound");
        tx.store(&region, 5000, &1u64).expect("sound");
        if flavour != Flavour::Redo {
            return machine.disk();
        }
        tx.prepare(b"undecided").expect("sound");
        let disk = machine.disk();
        store.abort_prepared(b"undecided").expect("sound");
        disk
    })
}

fuzz_target!(|input: &[u8]| {
    static CRASHED: [OnceLock<Disk>; 3] = [const { OnceLock::new() }; 3];
    let flavour = match input.len() % 8 {
        0..4 => Flavour::Redo,
        4 | 5 => Flavour::Undo,
        _ => Flavour::Persistent,
    };
    let mut disk = CRASHED[flavour as usize].get_or_init(|| crashed(flavour)).clone();
    for change in input.chunks_exact(8) {
        let names: &[&str] = match flavour {
            Flavour::Redo => &["log", "stage", "catalog", "data.segment", "data.sums"],
            _ => &["undo", "catalog", "data.segment"],
        };
        let name = names[usize::from(change[0]) % names.len()];
        let id = disk.lookup(&Path::new(STORE).join(name)).expect("there");
        let offset = u64::from(u32::from_le_bytes([change[1], change[2], change[3], 0]));
        let len = disk.content(id).len();
        let offset = if name == "log" || name == "undo" { 65536 + offset % 4096 } else { offset % len };
        let bytes = &change[4..4 + 1 + usize::from(change[0] / 64)];
        disk.apply(&Act::Write(id, offset.min(len - 4), bytes.into()));
    }
    let machine: Arc<Machine<()>> = Machine::new(disk, [1; 16], 1 << 41, flavour.hardware(), None);
    machine.run(|| {
        let options = options(&machine, 50, flavour);
        let _ = options.check(STORE);
        let Ok(store) = options.open(STORE) else { return };
        for prepared in store.prepared() {
            let _ = store.commit_prepared(&prepared.global_id);
        }
        for segment in store.segments() {
            if segment.len() <= 1 << 20
                && let Ok(region) = segment.map_all()
                && let Ok(mut tx) = store.begin(Mode::Restore)
            {
                let _ = tx.store(&region, 8, &1u64);
                let _ = tx.commit(Class::Power);
            }
        }
        let _ = store.close();
    });
});
