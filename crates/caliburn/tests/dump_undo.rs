//! Dumps of stores with the undo policy, which have no log: of one moment, while transactions change them.

use caliburn::heap::Heap;
use caliburn::{
    BackupError, Class, DumpOptions, Mode, OpenError, Options, Policy, Region, RestoreOptions, Store, Until,
    check,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const LEN: u64 = 1 << 18;
const WORDS: usize = LEN as usize / 8;

fn options() -> Options {
    let mut options = Store::options();
    options.create(true).policy(Policy::Undo).reserve_bytes(1 << 30);
    options
}

fn restore(dump: &[u8], to: &Path) -> Result<(), BackupError> {
    Options::new().restore(&mut &dump[..], &RestoreOptions::new(), to).map(|restored| {
        assert_eq!((restored.lsn, restored.transactions), (0, 0));
        assert_eq!(check(to).unwrap().problems, []);
    })
}

fn words(store: &Store, name: &str) -> Vec<u64> {
    let region = store.segment(name).unwrap().map_all().unwrap();
    (0..WORDS).map(|i| region.load(i * 8)).collect()
}

/// Adds to some words of one segment what it takes from others of the second: small transactions, some of more
/// than a chunk of undo log, some in branches, some undone.
fn transfer(store: &Store, regions: &[Region; 2], thread: u64, number: u64) {
    let draw = |i: u64| (number * 64 + i * 4 + thread).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    let count = if number.is_multiple_of(97) { 3000 } else { 1 + number % 5 };
    // Each thread has words of its own.
    let place = |i: u64| (draw(i) as usize % (WORDS / 4) * 4 + thread as usize) * 8;
    let mut tx = store.begin(Mode::Restore).unwrap();
    for i in 0..count {
        let (from, to, by) = (place(i), place(i + 7000), draw(i + 1) % 1000);
        let less = regions[0].load::<u64>(from).wrapping_sub(by);
        tx.store(&regions[0], from, &less).unwrap();
        if number.is_multiple_of(3) {
            std::thread::yield_now();
        }
        let more = regions[1].load::<u64>(to).wrapping_add(by);
        if number.is_multiple_of(4) {
            let mut branch = tx.branch().unwrap();
            let mut inner = branch.branch().unwrap();
            inner.store(&regions[1], to, &more).unwrap();
            branch.adopt(inner).unwrap();
            tx.adopt(branch).unwrap();
        } else {
            tx.store(&regions[1], to, &more).unwrap();
        }
    }
    match number % 11 {
        0 => tx.abort(),
        _ => tx.commit(Class::Process).unwrap(),
    }
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

#[test]
fn a_dump_of_a_busy_store_is_that_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let regions = ["first", "second"].map(|name| store.create_segment(name, LEN).unwrap().map_all().unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, regions, stop) = (&store, &regions, &stop);
            scope.spawn(move || {
                for number in 1.. {
                    if stop.load(SeqCst) {
                        return;
                    }
                    transfer(store, regions, thread, number);
                }
            });
        }
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut last = Vec::new();
            for round in 0..30 {
                let mut dump = Vec::new();
                let dumped = store.dump(&DumpOptions::new(), &mut dump).unwrap();
                assert!(dumped.held > std::time::Duration::ZERO);
                let to = dir.path().join(format!("r{round}"));
                restore(&dump, &to).unwrap();
                let restored = options().open(&to).unwrap();
                let [first, second] = ["first", "second"].map(|name| words(&restored, name));
                assert_eq!(
                    sum(&first).wrapping_add(sum(&second)),
                    0,
                    "round {round}: a transfer is half done"
                );
                assert_ne!(first, last, "nothing happens meanwhile");
                last = first;
            }
        }));
        stop.store(true, SeqCst);
        tried.unwrap();
    });
}

#[test]
fn what_was_committed_before_is_there_and_what_is_open_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &7u64).unwrap();
    tx.commit(Class::Process).unwrap();
    // One that has changed nothing holds nobody up.
    let idle = store.begin(Mode::Restore).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    let to = dir.path().join("r");
    restore(&dump, &to).unwrap();
    assert_eq!(words(&options().open(&to).unwrap(), "data")[0], 7);
    drop(idle);
    let mut open = store.begin(Mode::Restore).unwrap();
    open.store(&region, 8, &8u64).unwrap();
    let error = store.dump(&DumpOptions::new(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::NotQuiet { .. }), "{error}");
    open.abort();
    store.dump(&DumpOptions::new(), &mut Vec::new()).unwrap();
}

#[test]
fn a_dump_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 0, &[9; LEN as usize]).unwrap();
    tx.commit(Class::Process).unwrap();
    drop(region);
    store.close().unwrap();
    let mut outside = Options::new();
    outside.progress(|_| ControlFlow::Break(()));
    let error = outside.dump(&path, &DumpOptions::new(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::Store(OpenError::Interrupted { .. })), "{error}");
}

#[test]
fn from_outside_only_a_store_is_dumped_that_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let heap = Heap::open(&store, "objects").unwrap();
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(100).unwrap();
    tx.write(place, 0, &[5; 100]).unwrap();
    tx.set_root("it", Some(place)).unwrap();
    tx.commit(Class::Process).unwrap();
    let outside = |target: &mut Vec<u8>| Options::new().dump(at("s"), &DumpOptions::new(), target);
    let error = outside(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::UsedElsewhere { .. }), "{error}");
    drop(heap);
    store.close().unwrap();
    let mut dump = Vec::new();
    let dumped = outside(&mut dump).unwrap();
    assert_eq!((dumped.lsn, dumped.log_bytes, dumped.id.as_str()), (0, 0, ""));
    restore(&dump, &at("r")).unwrap();
    let restored = options().open(at("r")).unwrap();
    assert_eq!(restored.policy(), Policy::Undo);
    let heap = Heap::open(&restored, "objects").unwrap();
    let mut bytes = [0; 100];
    heap.region().read(heap.root("it").unwrap().0 as usize, &mut bytes);
    assert_eq!(bytes, [5; 100]);

    // What cannot be had of a store without a log is refused, and says why.
    let refused = |how: &RestoreOptions, text: &str| {
        let error = Options::new().restore(&mut &dump[..], how, at("never")).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        assert!(check(at("never")).is_err());
    };
    refused(RestoreOptions::new().archive(at("a")), "has no log");
    refused(RestoreOptions::new().until(Until::Lsn(5)), "LSN 5");
    refused(RestoreOptions::new().until(Until::Time(dumped.time - 1)), "later than what is wanted");
    let mut since = DumpOptions::new();
    let error = Options::new().dump(at("s"), since.since(&dumped), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::Base { .. }), "{error}");
}
