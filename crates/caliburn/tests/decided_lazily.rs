//! Decisions about prepared transactions that nobody has waited to be durable: a crash finds them decided, or
//! undecided as before, and never forgotten.

mod support;

use caliburn::{Class, Mode, Options, Policy, Region, Store, Tuning};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::cuts::{RecordedMedia, Recorder};
use support::{copy_store, options, put, region};

fn open(path: &Path, options: &Options) -> (Store, Region) {
    let store = options.open(path).unwrap();
    let memory = region(&store);
    (store, memory)
}

fn flushed_every(flush_interval: Duration) -> Tuning {
    Tuning { flush_interval, ..Tuning::default() }
}

/// Prepares a transaction of some size that says that it is number `i`.
fn prepare(store: &Store, memory: &Region, i: u64) -> [u8; 8] {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(memory, i as usize * 4096, &(i + 1)).unwrap();
    tx.write(memory, i as usize * 4096 + 8, &[7; 1_000]).unwrap();
    let id = i.to_be_bytes();
    tx.prepare(&id).unwrap();
    id
}

#[test]
fn they_survive_the_process() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
        let mut options = options();
        options.policy(policy).tuning(flushed_every(Duration::MAX));
        let (store, memory) = open(&live, &options);
        let [one, two] = [0, 1].map(|i| prepare(&store, &memory, i));
        let committed = store.commit_prepared_ticket(&one).unwrap();
        let aborted = store.abort_prepared_ticket(&two).unwrap();
        assert_eq!([0, 4096].map(|at| memory.load::<u64>(at)), [1, 0]);
        assert!(store.prepared().is_empty() && store.prepared_or_deciding().is_empty());
        assert!(store.commit_prepared_ticket(&one).is_err(), "it is decided");
        // With the undo policy all that this process decides is as durable as it gets.
        assert_eq!(committed.is_durable(), policy == Policy::Undo);
        copy_store(&live, &copy);
        // Its identifier can be had again, and the memory declared.
        prepare(&store, &memory, 0);
        store.abort_prepared(&one).unwrap();
        _ = store.flush();
        assert!(committed.is_durable() && aborted.is_durable());
        let (store, memory) = open(&copy, &options);
        assert_eq!(store.prepared(), []);
        assert_eq!([0, 4096].map(|at| memory.load::<u64>(at)), [1, 0]);
    }
}

#[test]
fn one_force_makes_many_durable_and_the_flusher_does_it_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.tuning(flushed_every(Duration::MAX));
    let (store, memory) = open(&dir.path().join("s"), &options);
    let ids: Vec<_> = (0..20).map(|i| prepare(&store, &memory, i)).collect();
    let before = store.statistics().forces;
    let tickets: Vec<_> = ids.iter().map(|id| store.commit_prepared_ticket(id).unwrap()).collect();
    assert_eq!(store.statistics().forces, before);
    put(&store, &memory, 1 << 19, 1, Class::Power);
    assert!(tickets.iter().all(|ticket| ticket.is_durable()));
    assert_eq!(store.statistics().forces, before + 1);
    drop(memory);
    store.close().unwrap();
    options.tuning(flushed_every(Duration::from_millis(1)));
    let (store, memory) = open(&dir.path().join("s"), &options);
    prepare(&store, &memory, 3);
    let ticket = store.commit_prepared_ticket(&3u64.to_be_bytes()).unwrap();
    assert!(ticket.wait_timeout(Duration::from_secs(60)).unwrap());
}

#[test]
fn what_is_decided_takes_nothing_from_what_may_be_undecided() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.log_bytes(128 << 10).tuning(flushed_every(Duration::MAX));
    let (store, memory) = open(&dir.path().join("s"), &options);
    // Two of them would be more than a quarter of the log.
    for number in 0..6u8 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 0, &[number; 20_000]).unwrap();
        tx.prepare(&[number]).unwrap();
        _ = store.commit_prepared_ticket(&[number]).unwrap();
    }
    assert_eq!(memory.load::<u8>(0), 5);
}

#[test]
fn what_is_decided_is_not_prepared_again_when_the_log_goes_on() {
    let mut decided = 0;
    for (operation, seed) in (0..16).flat_map(|operation| (0..4).map(move |seed| (operation, seed))) {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let mut options = options();
        // Nobody forces anything but who makes room, when there is none.
        let tuning = Tuning { truncate_percent: 90, ..flushed_every(Duration::MAX) };
        options.log_bytes(128 << 10).background(false).tuning(tuning);
        drop(open(&path, &options));
        let recorder = Recorder::new(&path, u64::MAX, seed);
        let media = options.clone().media(Arc::new(RecordedMedia(recorder.clone()))).clone();
        let (store, memory) = open(&path, &media);
        let id = prepare(&store, &memory, 0);
        _ = store.commit_prepared_ticket(&id).unwrap();
        recorder.cut_at(1 + operation);
        for i in 0.. {
            if recorder.picture.lock().unwrap().is_some() {
                break;
            }
            put(&store, &memory, (1 << 19) + i % 4_000 * 8, i as u64, Class::Process);
        }
        let picture = recorder.picture();
        drop((memory, store));
        picture.restore(&cut);
        let (store, memory) = open(&cut, &options);
        let value: u64 = memory.load(0);
        assert!(store.prepared().is_empty() || value == 0, "operation {operation}, seed {seed}: it is both");
        decided += value;
    }
    assert!(decided > 10, "{decided}");
}

#[test]
fn the_log_keeps_what_was_prepared_until_its_decision_is_durable() {
    for (operation, seed) in (0..4).flat_map(|operation| (0..30).map(move |seed| (operation, seed))) {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let mut options = options();
        let tuning = Tuning { truncate_percent: 1, ..flushed_every(Duration::MAX) };
        options.log_bytes(128 << 10).background(false).tuning(tuning);
        drop(open(&path, &options));
        let recorder = Recorder::new(&path, u64::MAX, seed);
        let media = options.clone().media(Arc::new(RecordedMedia(recorder.clone()))).clone();
        let (store, memory) = open(&path, &media);
        // Keeps the only page that was changed from being written.
        let mut open_one = store.begin(Mode::Restore).unwrap();
        open_one.store(&memory, 4_000, &1u8).unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 0, &[9; 3_000]).unwrap();
        tx.prepare(b"g").unwrap();
        let ticket = store.commit_prepared_ticket(b"g").unwrap();
        assert!(!ticket.is_durable());
        recorder.cut_at(1 + operation);
        store.tend_truncation().unwrap();
        let picture = recorder.picture();
        drop(open_one);
        picture.restore(&cut);
        let (store, memory) = open(&cut, &options);
        let found = !store.prepared().is_empty();
        assert_eq!(memory.load::<u8>(0), if found { 0 } else { 9 }, "operation {operation}, seed {seed}");
    }
}

#[test]
fn a_power_cut_leaves_them_decided_or_undecided() {
    let (mut decided, mut undecided) = (0, 0);
    for operation in 0..240 {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let mut options = options();
        options.log_bytes(128 << 10).tuning(flushed_every(Duration::from_millis(1 + operation % 3)));
        drop(open(&path, &options));
        let recorder = Recorder::new(&path, operation + 20, operation);
        let media = options.clone().media(Arc::new(RecordedMedia(recorder.clone()))).clone();
        let (store, memory) = open(&path, &media);
        let mut tickets = Vec::new();
        let is_over = || recorder.picture.lock().unwrap().is_some();
        let mut durable = 0;
        for i in 0..60u64 {
            let id = prepare(&store, &memory, i);
            if is_over() {
                break;
            }
            recorder.acknowledged.store(i + 1, std::sync::atomic::Ordering::SeqCst);
            tickets.push(store.commit_prepared_ticket(&id).unwrap());
            match (i + operation) % 5 {
                0 => store.truncate().unwrap(),
                1 => put(&store, &memory, 1 << 19, i, Class::Power),
                2 => put(&store, &memory, 1 << 19, i, Class::Process),
                _ => {}
            }
            let now = tickets.iter().take_while(|ticket| ticket.is_durable()).count();
            if !is_over() {
                durable = now as u64;
            }
        }
        let picture = recorder.picture();
        drop((memory, store));
        picture.restore(&cut);
        let (store, memory) = open(&cut, &options);
        let found: Vec<Vec<u8>> = store.prepared().into_iter().map(|prepared| prepared.global_id).collect();
        for i in 0..picture.acknowledged {
            let is_undecided = found.contains(&i.to_be_bytes().to_vec());
            let value: u64 = memory.load(i as usize * 4096);
            assert!(is_undecided || value == i + 1, "operation {operation}: {i} is lost");
            assert!(!is_undecided || i >= durable, "operation {operation}: {i} was decided, durably");
            undecided += u64::from(is_undecided);
            decided += u64::from(!is_undecided);
        }
        for id in found {
            store.commit_prepared(&id).unwrap();
        }
        let lost = (0..picture.acknowledged).find(|i| memory.load::<u64>(*i as usize * 4096) != i + 1);
        assert_eq!(lost, None, "operation {operation}");
    }
    assert!(decided > 500 && undecided > 20, "{decided} decided, {undecided} not");
}
