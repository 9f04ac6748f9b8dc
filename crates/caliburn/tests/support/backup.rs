//! A store that is changed as a model is, and stores that are made of it again.
#![allow(dead_code, reason = "each test file uses a part")]

use caliburn::{BackupError, Class, Dumped, Mode, Options, Region, RestoreOptions, Store};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Bytes of the segment that the work is done in, and of its log.
pub const LEN: u64 = 1 << 20;
pub const LOG: u64 = 1 << 20;

pub fn options() -> Options {
    let mut options = Store::options();
    options.create(true).log_bytes(LOG).stage_bytes(1 << 20).reserve_bytes(1 << 30);
    options
}

/// What transaction `number` does: it says that it is the last, and changes some words at places that it draws.
pub fn places(number: u64) -> impl Iterator<Item = (usize, u64)> {
    let draw = move |i: u64| (number * 16 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    (0..8 + number % 9).map(move |i| {
        let place = 1 + draw(i) % (LEN / 8 - 1);
        (place as usize * 8, number * 1000 + i)
    })
}

pub fn transact(store: &Store, region: &Region, number: u64) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    for (at, value) in places(number) {
        tx.store(region, at, &value).unwrap();
    }
    tx.store(region, 0, &number).unwrap();
    // Some are never seen.
    if number.is_multiple_of(5) {
        let mut undone = store.begin(Mode::Restore).unwrap();
        undone.store(region, LEN as usize - 8, &u64::MAX).unwrap();
    }
    let class = if number.is_multiple_of(50) { Class::Power } else { Class::Process };
    tx.commit(class).unwrap();
}

/// What the segment holds after so many transactions: from one that was asked for before to later ones.
pub struct Model {
    done: u64,
    words: Vec<u64>,
}

impl Model {
    pub fn new() -> Model {
        Model { done: 0, words: vec![0; LEN as usize / 8] }
    }

    pub fn after(&mut self, number: u64) -> &[u64] {
        if number < self.done {
            *self = Model::new();
        }
        for number in self.done + 1..=number {
            for (at, value) in places(number) {
                self.words[at / 8] = value;
            }
            self.words[0] = number;
        }
        self.done = number;
        &self.words
    }
}

/// The words of a restored store's segment; it is sound.
pub fn words(path: &Path) -> Vec<u64> {
    let report = caliburn::check(path).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let store = Store::open(path).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    let mut bytes = vec![0; LEN as usize];
    region.read(0, &mut bytes);
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

pub fn assert_is(model: &mut Model, found: &[u64], what: &str) -> u64 {
    let number = found[0];
    let wanted = model.after(number);
    let wrong = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(wrong, None, "{what}: it says that it is after transaction {number}, and this word is not");
    number
}

/// A dump of a store that changes so fast that its small log may be overwritten before it is read.
pub fn dumped(make: impl Fn(&mut Vec<u8>) -> Result<Dumped, BackupError>) -> (Dumped, Vec<u8>) {
    for _ in 0..100 {
        let mut dump = Vec::new();
        match make(&mut dump) {
            Err(BackupError::Overtaken { .. }) => {}
            done => return (done.unwrap(), dump),
        }
    }
    panic!("nobody is as slow as that");
}

pub fn restore(dump: &[u8], how: &RestoreOptions, to: &Path) -> Result<u64, BackupError> {
    let mut options = Options::new();
    options.log_bytes(LOG).stage_bytes(1 << 20);
    options.restore(&mut &dump[..], how, to).map(|restored| restored.lsn)
}

/// A store, and a thread that changes it until it is told to stop.
pub fn beside<T>(path: &Path, act: impl FnOnce(&Store, &AtomicU64) -> T) -> T {
    let store = options().open(path).unwrap();
    let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
    let first = region.load::<u64>(0) + 1;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(first - 1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in first.. {
                if stop.load(SeqCst) {
                    return;
                }
                transact(&store, &region, number);
                done.store(number, SeqCst);
            }
        });
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _stop = Stop(&stop);
        act(&store, &done)
    })
}

pub fn wait_until(done: &AtomicU64, number: u64) {
    while done.load(SeqCst) < number {
        std::thread::yield_now();
    }
}
