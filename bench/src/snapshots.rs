//! `snapshots`: what a snapshot costs. Transactions that change a word at random in 64 MiB: without one, at the
//! first touch of each page after one was taken, with one that has all pages; and taking it. Floor: the first store
//! to each page of a private mapping of a file, which is what the kernel does for a page that is kept.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::{Failure, options};
use caliburn::{Class, Objects, PVec, Policy, Writer};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

const WORDS: usize = 8 << 20;
const PAGE_WORDS: usize = 512;
const PAGES: usize = WORDS / PAGE_WORDS;
/// Odd, so that every page is met once.
const STRIDE: usize = 7919;

/// Times a call for each page, in scattered order.
fn by_pages(mut call: impl FnMut(usize)) -> Sample {
    let start = Instant::now();
    (0..PAGES).for_each(|i| call(i.wrapping_mul(STRIDE) % PAGES));
    Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / PAGES as f64, latencies: Vec::new() }
}

fn change(writer: &mut Writer<'_, PVec<u64>>, at: usize) {
    writer.update(|mut words| *words.at(at) += 1).expect("there is room");
}

/// The first store to each page of a private mapping.
fn floor(path: &Path) -> Result<Sample, Failure> {
    let (file, len) = (File::open(path)?, PAGES * 4096);
    // SAFETY: a new mapping of a file that nobody shortens, used here alone.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let base = mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)?;
        let sample = by_pages(|page| base.cast::<u8>().add(page * 4096).write_volatile(1));
        munmap(base, len)?;
        Ok(sample)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (name, policy) in [("redo", Policy::Redo), ("undo", Policy::Undo)] {
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        let store = options(arguments.log_mb.max(256), arguments.stage_mb)
            .policy(policy)
            .open(dir.path().join("snapshots"))?;
        let words = Objects::<PVec<u64>>::open(&store, "words")?;
        words.transact_in(Class::Process, |mut words| {
            words.resize_with(WORDS, || 0);
            Ok::<(), caliburn::Error>(())
        })?;
        let plain = dir.path().join("floor");
        std::fs::write(&plain, vec![1u8; PAGES * 4096])?;
        let line =
            |system, policy, what| Line::new(system, policy, "process", 1, json!({"what": what, "mb": 64}));
        let mut lines = [
            line("floor", "none", "first touch"),
            line("caliburn", name, "first touch"),
            line("caliburn", name, "take"),
            line("caliburn", name, "change"),
            line("caliburn", name, "change beside a snapshot"),
        ];
        let mut changed = 0;
        let mut random = Random(7);
        report::interleave(arguments.rounds, &mut lines, || {
            store.truncate().expect("the store is sound");
            let bare = floor(&plain).expect("a file can be mapped");
            let (mut writer, mut alone_or_beside) = (words.write(), 0);
            writer.set_class(Class::Process);
            let mut one = |writer: &mut Writer<'_, PVec<u64>>| {
                alone_or_beside += 1;
                change(writer, random.below(WORDS));
            };
            // With the redo policy each page is private before it counts.
            let _ = by_pages(|page| change(&mut writer, page * PAGE_WORDS));
            let alone = report::measure(arguments.seconds, 64, || one(&mut writer));
            let start = Instant::now();
            let snapshot = writer.snapshot().expect("a mapping can be had");
            let take = Sample { ns_per_tx: start.elapsed().as_nanos() as f64, latencies: Vec::new() };
            let sum: u64 = snapshot.iter().sum();
            let touch = by_pages(|page| change(&mut writer, page * PAGE_WORDS + 1));
            let beside = report::measure(arguments.seconds, 64, || one(&mut writer));
            assert_eq!(snapshot.iter().sum::<u64>(), sum, "the snapshot has changed");
            changed += 2 * PAGES + alone_or_beside;
            drop((writer, snapshot));
            crate::target::drain(&store);
            vec![bare, touch, take, alone, beside]
        });
        report::print("snapshots", arguments.json, &lines, 0);
        let sum: u64 = words.read().iter().sum();
        assert_eq!(sum, changed as u64, "changes were lost");
    }
    Ok(())
}
