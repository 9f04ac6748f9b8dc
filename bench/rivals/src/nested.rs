//! `nest`: a child of a transaction that changes eight bytes, committed to it or undone, beside what rivals have
//! of the kind: what `src/c/nested.h` says. A top-level transaction with 64 of them and one more, less one with
//! one; for each.

use crate::Arguments;
use caliburn::{Class, Store};
use caliburn_bench::report::{self, Line, Random, Sample};
use caliburn_bench::target::{Failure, options};
use caliburn_lock::{Detector, Locks, Standard};
use caliburn_nest::{Error, Follow, Tx, transact_following};
use serde_json::json;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

const KEYS: usize = 100_000;
const COUNT: usize = 64;

#[repr(C)]
struct Nested {
    name: *const c_char,
    open: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    begin: unsafe extern "C" fn(*mut c_void) -> c_int,
    part: unsafe extern "C" fn(*mut c_void) -> c_int,
    put: unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int,
    end: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    commit: unsafe extern "C" fn(*mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: the table is constant.
unsafe impl Sync for Nested {}

unsafe extern "C" {
    static nested: [Nested; 3];
}

/// One that has such transactions.
trait Nests {
    /// A transaction with so many children, each of which stays or is undone.
    fn run(&mut self, children: usize, stays: bool) -> Result<(), Failure>;
}

struct Rival {
    rival: &'static Nested,
    opened: *mut c_void,
    random: Random,
}

impl Rival {
    fn open(rival: &'static Nested, dir: &Path) -> Result<Rival, Failure> {
        std::fs::create_dir_all(dir)?;
        let path = CString::new(dir.as_os_str().as_encoded_bytes())?;
        // SAFETY: as the header says.
        let opened = unsafe { (rival.open)(path.as_ptr()) };
        if opened.is_null() {
            return Err(format!("no database can be opened in {}", dir.display()).into());
        }
        let mut rival = Rival { rival, opened, random: Random(0x9E37_79B9_7F4A_7C15) };
        // The records are there.
        rival.all(0..KEYS as u64)?;
        Ok(rival)
    }

    fn all(&mut self, keys: impl Iterator<Item = u64>) -> Result<(), Failure> {
        let Rival { rival, opened, .. } = *self;
        // SAFETY: it is open, and this thread alone uses it.
        let ok = unsafe {
            let mut ok = (rival.begin)(opened) == 1;
            for key in keys {
                ok = ok && (rival.put)(opened, key, 0) == 1;
            }
            ok && (rival.commit)(opened) == 1
        };
        if ok { Ok(()) } else { Err("a rival has failed".into()) }
    }
}

impl Nests for Rival {
    fn run(&mut self, children: usize, stays: bool) -> Result<(), Failure> {
        let Rival { rival, opened, .. } = *self;
        // SAFETY: as above.
        let ok = unsafe {
            let mut ok = (rival.begin)(opened) == 1;
            for _ in 0..children {
                let key = self.random.below(KEYS) as u64;
                ok = ok && (rival.part)(opened) == 1 && (rival.put)(opened, key, 7) == 1;
                ok = ok && (rival.end)(opened, c_int::from(stays)) == 1;
            }
            ok && (rival.commit)(opened) == 1
        };
        if ok { Ok(()) } else { Err("a rival has failed".into()) }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // SAFETY: it is used no more.
        unsafe { (self.rival.close)(self.opened) };
    }
}

/// Ours, with a lock for each record or without.
struct Own {
    store: Store,
    region: caliburn::Region,
    locks: Option<(Detector, Locks<u64>)>,
    random: Random,
}

impl Own {
    fn open(dir: &Path, locked: bool) -> Result<Own, Failure> {
        let store = options(256, 64).create(true).open(dir)?;
        let region = store.create_segment("records", KEYS as u64 * 8)?.map_all()?;
        let locks = locked.then(|| {
            let detector = Detector::new();
            let locks = detector.locks();
            (detector, locks)
        });
        Ok(Own { store, region, locks, random: Random(0x9E37_79B9_7F4A_7C15) })
    }
}

fn family<'t, C: Follow<'t>>(
    (store, region, random): (&'t Store, &'t caliburn::Region, &mut Random),
    (children, stays): (usize, bool),
    companion: C,
    lock: impl Fn(&mut Tx<'t, C>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    transact_following(store, companion, Class::Process, |tx| {
        for _ in 0..children {
            let key = random.below(KEYS);
            let done = tx.nest(|child| {
                lock(child, key as u64)?;
                child.store(region, key * 8, &7u64)?;
                if stays { Ok(()) } else { Err(child.abort("")) }
            });
            if stays {
                done?;
            }
        }
        Ok(())
    })
}

impl Nests for Own {
    fn run(&mut self, children: usize, stays: bool) -> Result<(), Failure> {
        let Own { store, region, locks, random } = self;
        match locks {
            None => family((store, region, random), (children, stays), (), |_, _| Ok(()))?,
            Some((detector, locks)) => {
                family((store, region, random), (children, stays), detector.owner(), |child, key| {
                    Ok(locks.lock(child.companion(), key, Standard::Exclusive)?)
                })?
            }
        }
        Ok(())
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut all: Vec<(&'static str, Box<dyn Nests>)> = Vec::new();
    for (name, locked) in [("caliburn", false), ("caliburn with locks", true)] {
        all.push((name, Box::new(Own::open(&dir.path().join(name), locked)?)));
    }
    // SAFETY: the C file defines it, and nothing changes it.
    for rival in unsafe { &nested } {
        // SAFETY: a string literal.
        let name = unsafe { CStr::from_ptr(rival.name) }.to_str()?;
        if arguments.names().contains(&name) {
            let opened = Rival::open(rival, &dir.path().join(name)).map_err(|e| format!("{name}: {e}"))?;
            all.push((name, Box::new(opened)));
        }
    }
    for (what, stays) in [("a child of eight bytes", true), ("the same, undone", false)] {
        let line =
            |(name, _): &(&'static str, _)| Line::new(name, "its own", "process", 1, json!({"what": what}));
        let mut lines: Vec<Line> = all.iter().map(line).collect();
        report::interleave(arguments.rounds, &mut lines, || {
            all.iter_mut()
                .map(|(name, nests)| {
                    let mut time = |children| {
                        let transaction =
                            || nests.run(children, stays).unwrap_or_else(|e| panic!("{name}: {e}"));
                        report::measure(arguments.seconds / 2.0, 4, transaction).ns_per_tx
                    };
                    let ns_per_tx = (time(COUNT + 1) - time(1)) / COUNT as f64;
                    Sample { ns_per_tx, latencies: Vec::new() }
                })
                .collect()
        });
        report::print("nest", arguments.json, &lines, 0);
    }
    Ok(())
}
