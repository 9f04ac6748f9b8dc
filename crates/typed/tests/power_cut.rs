//! Power cuts while typed objects change: what is left is the state after some number of whole transactions,
//! none of those missing that were forced, also when recovery is cut again.

#[path = "../../caliburn/tests/support/cuts.rs"]
mod cuts;
#[path = "support/workload.rs"]
mod workload;

use caliburn::typed::Error;
use caliburn::{Class, Objects, Options, Store};
use cuts::{Random, RecordedMedia, Recorder};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use workload::{Expected, Root, of_root, step, steps};

/// Options with a log so small that truncation is always at work.
fn options(recorder: Option<&Arc<Recorder>>) -> Options {
    let mut options = Store::options();
    options.create(true).log_bytes(256 << 10).stage_bytes(256 << 10).reserve_bytes(1 << 28);
    if let Some(recorder) = recorder {
        options.media(Arc::new(RecordedMedia(recorder.clone())));
    }
    options
}

fn open(path: &Path, recorder: Option<&Arc<Recorder>>) -> Objects<Root> {
    Objects::open(&options(recorder).open(path).unwrap(), "objects").unwrap()
}

/// Runs transactions until the picture is taken.
fn work(objects: &Objects<Root>, recorder: &Recorder, random: &mut Random) {
    let first = objects.read().done;
    for number in first..first + 400 {
        if recorder.picture.lock().unwrap().is_some() {
            break;
        }
        let class = if random.below(3) == 0 { Class::Power } else { Class::Process };
        let done = objects.transact_in::<_, Error>(class, |mut root| {
            steps(number).for_each(|s| step(&mut root, s));
            *root.fields().done = number + 1;
            Ok(())
        });
        done.unwrap();
        if class == Class::Power {
            recorder.acknowledged.store(number + 1, Ordering::SeqCst);
        }
        if random.below(40) == 0 {
            objects.store().truncate().unwrap();
            recorder.acknowledged.store(number + 1, Ordering::SeqCst);
        }
    }
}

#[test]
fn what_was_forced_is_there_and_no_transaction_is_half_done() {
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        open(&path, None).close().unwrap();
        let mut random = Random(seed);
        let recorder = Recorder::new(&path, 1 + random.below(600), seed);
        let objects = open(&path, Some(&recorder));
        work(&objects, &recorder, &mut random);
        let picture = recorder.picture();
        drop(objects);
        for again in 0..4 {
            picture.restore(&cut);
            if again > 0 {
                // Recovery, and what follows it, is cut as well.
                let recorder = Recorder::new(&cut, 1 + random.below(12), seed + again);
                let objects = open(&cut, Some(&recorder));
                assert!(objects.read().done >= picture.acknowledged);
                objects.store().truncate().unwrap();
                drop(objects);
                recorder.picture().restore(&cut);
            }
            let objects = open(&cut, None);
            let view = objects.read();
            assert!(view.done >= picture.acknowledged, "{} of {}", view.done, picture.acknowledged);
            assert!(of_root(&view) == *Expected::default().advance(view.done), "seed {seed}, cut {again}");
            drop(view);
            // Whole, too: it can be emptied.
            objects.update(|mut root| root.set(Root::default())).unwrap();
            let statistics = objects.statistics();
            let left = statistics.classes.iter().map(|class| class.objects).sum::<u64>();
            assert_eq!(left + statistics.large_objects, 2);
        }
    }
}
