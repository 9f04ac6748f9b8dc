//! Losing everything that was not forced (see `support/cuts.rs`). Each picture is recovered and compared with a
//! model, and recovery itself is cut again and again.

mod support;

use caliburn::{Class, Mode, Options, Region, Store};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::clean;
use support::cuts::{Random, RecordedMedia, Recorder};

const CELLS: usize = 4096;

/// Options with a log so small that truncation is always at work.
fn options(recorder: Option<&Arc<Recorder>>) -> Options {
    let mut options = support::options();
    options.log_bytes(64 << 10).stage_bytes(128 << 10);
    if let Some(recorder) = recorder {
        options.media(Arc::new(RecordedMedia(recorder.clone())));
    }
    options
}

fn region(store: &Store) -> Region {
    store.segment_or_create("data", (CELLS * 64) as u64).unwrap().map_all().unwrap()
}

/// The state after each commit: cell 0 holds the commit's number, others what commits wrote there.
struct Model {
    states: Vec<Vec<u64>>,
}

/// Runs commits until the picture is taken; returns the model.
fn workload(store: &Store, memory: &Region, recorder: &Recorder, random: &mut Random, most: u64) -> Model {
    let mut now: Vec<u64> = (0..CELLS).map(|i| memory.load(i * 64)).collect();
    let first = now[0];
    let mut model = Model { states: vec![now.clone()] };
    for number in first + 1..first + 1 + most {
        if recorder.picture.lock().unwrap().is_some() {
            break;
        }
        let mut tx = store.begin(if random.below(4) == 0 { Mode::NoRestore } else { Mode::Restore }).unwrap();
        let mut next = now.clone();
        let cells = [0].into_iter().chain((0..random.below(30)).map(|_| random.below(CELLS as u64) as usize));
        let cells: Vec<usize> = cells.collect();
        for cell in &cells {
            tx.store(memory, cell * 64, &number).unwrap();
            next[*cell] = number;
        }
        let kind = random.below(10);
        let class = match kind {
            0..=5 => Class::Process,
            _ => Class::Power,
        };
        tx.commit(class).unwrap();
        now = next;
        model.states.push(now.clone());
        if class == Class::Power {
            recorder.acknowledged.store(number, Ordering::SeqCst);
        }
        match kind {
            // An aborted transaction leaves no trace.
            0 => {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(memory, random.below(CELLS as u64) as usize * 64, &u64::MAX).unwrap();
                tx.abort();
            }
            1 if random.below(5) == 0 => {
                store.flush().unwrap();
                recorder.acknowledged.store(number, Ordering::SeqCst);
            }
            // Growth is durable when it returns: no cut may leave a catalog ahead of its file.
            3 if random.below(6) == 0 => {
                let segment = store.segment("data").unwrap();
                segment.grow(segment.len() + 65536).unwrap();
                memory.grow(segment.len() as usize).unwrap();
            }
            2 if random.below(8) == 0 => {
                store.truncate().unwrap();
                recorder.acknowledged.store(number, Ordering::SeqCst);
            }
            _ => {}
        }
    }
    model
}

/// The recovered state must be that after some commit, none acknowledged missing.
fn verify(dir: &Path, model: &Model, acknowledged: u64, what: &str) -> u64 {
    clean(dir);
    let store = options(None).open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let memory = region(&store);
    let number: u64 = memory.load(0);
    assert!(
        number >= acknowledged,
        "{what}: commit {acknowledged} was acknowledged, {number} is the newest there"
    );
    let expected = &model.states[(number - model.states[0][0]) as usize];
    for (i, value) in expected.iter().enumerate() {
        assert_eq!(memory.load::<u64>(i * 64), *value, "{what}: cell {i} is not that of commit {number}");
    }
    drop(memory);
    store.close().unwrap();
    clean(dir);
    number
}

#[test]
fn what_was_forced_survives_and_nothing_is_half_done() {
    let rounds = std::env::var("CALIBURN_CUTS").map_or(120, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let store = options(None).open(&path).unwrap();
        drop(region(&store));
        store.close().unwrap();

        let mut random = Random(seed);
        let recorder = Recorder::new(&path, 1 + random.below(400), seed);
        let store = options(Some(&recorder)).open(&path).unwrap();
        let memory = region(&store);
        let model = workload(&store, &memory, &recorder, &mut random, 300);
        let picture = recorder.picture();
        drop((memory, store));

        // Cut recovery, and what follows it, at every so many operations; each time from the same picture.
        let mut expected = None;
        for again in 0..6 {
            picture.restore(&cut);
            if again > 0 {
                let recorder = Recorder::new(&cut, 1 + random.below(12), seed + again);
                match options(Some(&recorder)).open(&cut) {
                    Ok(store) => {
                        let memory = region(&store);
                        assert!(memory.load::<u64>(0) >= picture.acknowledged);
                        store.truncate().unwrap();
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                recorder.picture().restore(&cut);
            }
            let number = verify(&cut, &model, picture.acknowledged, &format!("seed {seed}, cut {again}"));
            assert_eq!(
                *expected.get_or_insert(number),
                number,
                "seed {seed}: recovery cut short came to another state"
            );
        }
    }
}
