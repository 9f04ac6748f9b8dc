//! A directory in recoverable memory, with key-range locks: who looks at a range of keys sees no phantoms, entries
//! that come or go in it before he has ended. Many change it at once.
//!
//! ```text
//!    10      20          35             a lock of a key is of the gap in front of it as well: End of the last gap
//!   ---]-------]-----------]-----       look at 12 ..= 30: Shared 20, 35       insert 25: Exclusive 35, 25
//!    10      20          35   End       get 20: Shared 20; get 25: Shared 35   remove 20: Exclusive 20, 35
//! ```
//!
//! Which key comes next may change while a lock of it is waited for: then the next one is locked as well.

use caliburn_engine::{Class, Region, Store, Transaction};
use caliburn_lock::{Commute, Detector, Intentions, Latches, Locks, Owner, Standard};
use caliburn_nest::{Error, transact_following};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Key(u64),
    End,
}

/// What a key has from then on.
type Change = (u64, Option<u64>);

/// In a region: places for entries, each with whether it is one, its key and its value.
pub struct Directory<'t> {
    region: &'t Region,
    locks: Locks<Name>,
    latches: Latches,
    state: Mutex<State>,
}

struct State {
    /// As it is committed: where each key is, and its value.
    entries: BTreeMap<u64, (usize, u64)>,
    free: Vec<usize>,
    /// Insertions that are outstanding: there is a place for each.
    outstanding: usize,
}

/// What follows a transaction.
pub type Changes<'c, 't> = (Intentions<'c, 't, Directory<'t>>, Owner);

const ENTRY: usize = 24;

impl<'t> Directory<'t> {
    /// The directory that the region holds.
    pub fn new(detector: &Detector, region: &'t Region) -> Directory<'t> {
        let mut state = State { entries: BTreeMap::new(), free: Vec::new(), outstanding: 0 };
        for place in (0..region.len() / ENTRY).rev() {
            let [there, key, value]: [u64; 3] = region.load(place * ENTRY);
            match there {
                0 => state.free.push(place),
                _ => _ = state.entries.insert(key, (place, value)),
            }
        }
        Directory { region, locks: detector.locks(), latches: Latches::new(1), state: Mutex::new(state) }
    }

    /// What follows a top-level transaction.
    pub fn companion<'c>(&'c self, detector: &Detector) -> Changes<'c, 't> {
        (Intentions::new(self), detector.owner())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Locks the gap in which a key is that is not there, or behind it.
    fn lock_next(&self, owner: &mut Owner, key: u64, mode: Standard) -> Result<(), Error> {
        let next = || {
            let after = key
                .checked_add(1)
                .and_then(|after| self.state().entries.range(after..).next().map(|(key, _)| Name::Key(*key)));
            after.unwrap_or(Name::End)
        };
        let mut name = next();
        loop {
            self.locks.lock(owner, name, mode)?;
            let now = next();
            if now == name {
                return Ok(());
            }
            name = now;
        }
    }

    /// Entries of a range of keys, as the family sees them. Nobody else's come or go before it has ended.
    pub fn range(
        &self,
        (changes, owner): &mut Changes<'_, 't>,
        keys: RangeInclusive<u64>,
    ) -> Result<BTreeMap<u64, u64>, Error> {
        // Gap by gap: behind each lock that is held nothing changes.
        let mut from = *keys.start();
        loop {
            let next = self.state().entries.range(from..).next().map(|(key, _)| *key);
            match next.filter(|next| keys.contains(next)) {
                Some(key) => {
                    self.locks.lock(owner, Name::Key(key), Standard::Shared)?;
                    // What came in front of it meanwhile is looked at as well.
                    let state = self.state();
                    if state.entries.range(from..).next().map(|(key, _)| *key) == Some(key) {
                        let Some(behind) = key.checked_add(1) else { break };
                        from = behind;
                    }
                }
                None => {
                    let name = next.map_or(Name::End, Name::Key);
                    self.locks.lock(owner, name, Standard::Shared)?;
                    if self.state().entries.range(from..).next().map(|(key, _)| *key) == next {
                        break;
                    }
                }
            }
        }
        let state = self.state();
        let mut found: BTreeMap<u64, u64> =
            state.entries.range(keys.clone()).map(|(key, (_, value))| (*key, *value)).collect();
        drop(state);
        changes.each(|(key, value)| match value {
            Some(value) if keys.contains(key) => _ = found.insert(*key, *value),
            _ => _ = found.remove(key),
        });
        Ok(found)
    }

    /// The value of a key.
    pub fn get(&self, by: &mut Changes<'_, 't>, key: u64) -> Result<Option<u64>, Error> {
        Ok(self.range(by, key..=key)?.remove(&key))
    }

    /// Gives a key a value, or none any more, when the family commits.
    pub fn set(&self, by: &mut Changes<'_, 't>, key: u64, value: Option<u64>) -> Result<(), Error> {
        self.locks.lock(&mut by.1, Name::Key(key), Standard::Exclusive)?;
        let there = self.state().entries.contains_key(&key);
        if !there || value.is_none() {
            self.lock_next(&mut by.1, key, Standard::Exclusive)?;
        }
        let mut state = self.state();
        if value.is_some() && state.outstanding == state.free.len() {
            return Err(Error::Aborted("the directory is full".into()));
        }
        state.outstanding += usize::from(value.is_some());
        drop(state);
        by.0.put_off((key, value));
        Ok(())
    }
}

impl<'t> Commute<'t> for Directory<'t> {
    type Change = Change;

    fn latches(&self) -> &Latches {
        &self.latches
    }

    fn apply(&self, _: usize, changes: &[Change], tx: &mut Transaction<'t>) -> Result<(), Error> {
        let state = self.state();
        let mut free = state.free.iter().rev();
        for (key, value) in last(changes) {
            let place = state.entries.get(&key).map(|(place, _)| *place);
            let at = |place: usize| place * ENTRY;
            match (place, value) {
                (Some(place), Some(value)) => tx.store(self.region, at(place) + 16, &value)?,
                (Some(place), None) => tx.store(self.region, at(place), &0u64)?,
                (None, Some(value)) => {
                    let place = *free.next().expect("there is a place for each insertion");
                    tx.store(self.region, at(place), &[1, key, value])?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn settle(&self, _: usize, changes: &[Change], commits: bool) {
        let mut state = self.state();
        state.outstanding -= changes.iter().filter(|(_, value)| value.is_some()).count();
        let mut given = Vec::new();
        for (key, value) in last(changes).into_iter().filter(|_| commits) {
            match (state.entries.get(&key).copied(), value) {
                (Some((place, _)), Some(value)) => _ = state.entries.insert(key, (place, value)),
                (Some((place, _)), None) => {
                    state.entries.remove(&key);
                    given.push(place);
                }
                (None, Some(value)) => {
                    let place = state.free.pop().expect("there is a place for each insertion");
                    state.entries.insert(key, (place, value));
                }
                (None, None) => {}
            }
        }
        state.free.append(&mut given);
    }
}

/// What changes come to, by keys.
fn last(changes: &[Change]) -> BTreeMap<u64, Option<u64>> {
    changes.iter().copied().collect()
}

/// Whether it committed: victims of deadlocks are not run again here.
fn transact<'t>(
    store: &'t Store,
    detector: &Detector,
    directory: &Directory<'t>,
    act: impl FnOnce(&mut Changes<'_, 't>) -> Result<bool, Error>,
) -> bool {
    let companion = directory.companion(detector);
    let done = transact_following(store, companion, Class::Process, |tx| act(tx.companion()));
    done.unwrap_or_else(|error| match error {
        Error::Followed(_) => false,
        other => panic!("{other}"),
    })
}

/// Three threads move entries about, each by a removal and an insertion, and two look at ranges twice. How many
/// looks there were, and how many moves.
pub fn run(path: &Path) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    const ENTRIES: u64 = 40;
    let store = Store::options().create(true).open(path)?;
    let region = store.segment_or_create("directory", 65_536)?.map_all()?;
    let detector = Detector::new();
    let directory = Directory::new(&detector, &region);
    let (store, detector, directory) = (&store, &detector, &directory);
    transact(store, detector, directory, |by| {
        (0..ENTRIES).try_for_each(|at| directory.set(by, at * 10, Some(at))).map(|()| true)
    });
    let (looks, moves) = (Mutex::new(0u64), Mutex::new(0u64));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let moves = &moves;
            scope.spawn(move || {
                for round in 0..400u64 {
                    let from = (round * 37 + thread * 131) % (ENTRIES * 10);
                    let moved = transact(store, detector, directory, |by| {
                        let there = directory.range(by, from..=from + 60)?;
                        let Some((key, value)) = there.into_iter().nth((round % 3) as usize) else {
                            return Ok(false);
                        };
                        // To where nothing is, some way off.
                        let to = (key + 17 + round % 50) % (ENTRIES * 10);
                        if directory.get(by, to)?.is_some() {
                            return Ok(false);
                        }
                        directory.set(by, key, None)?;
                        directory.set(by, to, Some(value))?;
                        Ok(true)
                    });
                    *moves.lock().expect("nobody panics") += u64::from(moved);
                }
            });
        }
        for thread in 0..2u64 {
            let looks = &looks;
            scope.spawn(move || {
                for round in 0..300u64 {
                    let (from, len) =
                        ((round * 53 + thread * 7) % 300, if round % 4 == 0 { 400 } else { 90 });
                    let looked = transact(store, detector, directory, |by| {
                        let first = directory.range(by, from..=from + len)?;
                        std::thread::yield_now();
                        let second = directory.range(by, from..=from + len)?;
                        assert_eq!(first, second, "a phantom");
                        let all = directory.range(by, 0..=u64::MAX)?;
                        let mut values: Vec<u64> = all.into_values().collect();
                        values.sort_unstable();
                        assert!(values.into_iter().eq(0..ENTRIES), "each entry is in one place");
                        Ok(true)
                    });
                    *looks.lock().expect("nobody panics") += u64::from(looked);
                }
            });
        }
    });
    // What was committed is what is in the store.
    let committed = |directory: &Directory<'_>| {
        let state = directory.state();
        state.entries.iter().map(|(key, (_, value))| (*key, *value)).collect::<Vec<_>>()
    };
    assert_eq!(committed(&Directory::new(detector, &region)), committed(directory));
    Ok((looks.into_inner()?, moves.into_inner()?))
}

#[allow(dead_code, reason = "its test runs it in a directory of its own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (looks, moves) = run(&dir.path().join("store"))?;
    println!("{looks} looks met no phantom among {moves} moves");
    Ok(())
}
