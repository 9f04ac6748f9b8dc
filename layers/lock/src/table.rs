//! Locks by name: a table of those that are held or waited for. Others take no room.

use crate::deadlock::Waits;
use crate::error::{LockError, OwnerId};
use crate::limit::InTheWay;
use crate::mode::{Mode, Standard, check};
use crate::node::{Node, Place, Table};
use crate::owner::Owner;
use crate::queue::{Queue, Waiter};
use caliburn_os::event::Event;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{AtomicBool, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Few where the scheduler is the test's, so that names meet in them.
const SHARDS: usize = if cfg!(caliburn_sim) { 16 } else { 256 };

/// What can name a lock.
pub trait Name: Hash + Eq + Debug + Send + Sync + 'static {}

impl<K: Hash + Eq + Debug + Send + Sync + 'static> Name for K {}

/// Locks that are named by values of a type, such as numbers of accounts, places of objects in a heap, or texts.
///
/// A lock is held until the top of the family ends. Handles of it are cheap to clone.
pub struct Locks<K: Name, M: Mode = Standard>(Arc<Shared<K, M>>);

impl<K: Name, M: Mode> Clone for Locks<K, M> {
    fn clone(&self) -> Locks<K, M> {
        Locks(self.0.clone())
    }
}

struct Shared<K: Name, M: Mode> {
    waits: Arc<Waits>,
    hasher: DefaultHashBuilder,
    shards: Box<[Aligned<K, M>]>,
}

/// A part of the locks, on lines of the cache of its own.
#[repr(align(128))]
struct Aligned<K, M>(Mutex<Shard<K, M>>);

struct Shard<K, M> {
    /// That of the only lock, most of the time: it is beside the mutex.
    first: Slot<K, M>,
    more: Option<Box<More<K, M>>>,
}

/// Slots of further locks. Their numbers are one more than their places.
struct More<K, M> {
    /// Slots by names.
    names: HashTable<u32>,
    slots: Vec<Slot<K, M>>,
    free: Vec<u32>,
}

struct Slot<K, M> {
    /// None of one that is free.
    name: Option<(K, u64)>,
    queue: Queue<M>,
}

/// How long a lock is waited for.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Option<(Instant, Duration)>),
}

impl<K: Name, M: Mode> Locks<K, M> {
    /// # Panics
    /// If the table of modes is wrong: [`check`].
    pub(crate) fn new(waits: Arc<Waits>) -> Locks<K, M> {
        if let Err(error) = check::<M>() {
            panic!("{error}");
        }
        let shard = || Aligned(Mutex::new(Shard { first: Slot::unused(), more: None }));
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Locks(Arc::new(Shared { waits, hasher: DefaultHashBuilder::default(), shards }))
    }

    /// Locks a name in a mode, and waits until that can be. With what the owner holds already: asking again, or
    /// for more, is an upgrade.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] when the owner, or one that it is part of, is chosen to abort;
    /// [`LockError::Overlong`] when it has been in another's way for longer than the limit.
    #[inline]
    pub fn lock(&self, owner: &mut Owner, name: K, mode: M) -> Result<(), LockError> {
        self.acquire(owner, name, mode, Patience::Until(None)).map(drop)
    }

    /// The same, without waiting: whether it was had.
    ///
    /// # Errors
    /// As [`Locks::lock`].
    #[inline]
    pub fn try_lock(&self, owner: &mut Owner, name: K, mode: M) -> Result<bool, LockError> {
        self.acquire(owner, name, mode, Patience::None)
    }

    /// The same, waiting no longer than a time.
    ///
    /// # Errors
    /// [`LockError::Timeout`], with who was in the way; as [`Locks::lock`].
    pub fn lock_timeout(&self, owner: &mut Owner, name: K, mode: M, time: Duration) -> Result<(), LockError> {
        let until = Instant::now().checked_add(time).map(|until| (until, time));
        self.acquire(owner, name, mode, Patience::Until(until)).map(drop)
    }

    /// Who holds a lock, in which modes, at this moment.
    pub fn status(&self, name: &K) -> Vec<(OwnerId, M)> {
        let (hash, shard) = self.0.shard_of(name);
        let shard = self.0.lock(shard);
        let found = shard.find(hash, name).map(|slot| &shard.at(slot).queue.holds);
        found.into_iter().flatten().map(|hold| (hold.node.id(), hold.mode)).collect()
    }

    /// The mode in which an owner itself holds a lock.
    pub fn held(&self, owner: &Owner, name: &K) -> Option<M> {
        let id = owner.id();
        self.status(name).into_iter().find(|(of, _)| *of == id).map(|(_, mode)| mode)
    }

    /// Gives a lock up before its family ends (`Camlib_Unlock`).
    ///
    /// # Warning
    /// Others see what the transaction has changed, and it may yet abort; or change what it has read. Neither
    /// serializability nor atomicity hold then.
    ///
    /// # Errors
    /// [`LockError::NotHeld`]: the owner itself does not hold it.
    pub fn unlock(&self, owner: &mut Owner, name: &K) -> Result<(), LockError> {
        let (hash, number) = self.0.shard_of(name);
        let place = {
            let mut shard = self.0.lock(number);
            let slot = shard.find(hash, name);
            slot.filter(|slot| shard.at_mut(*slot).queue.hold_of(&owner.node).is_some())
                .map(|slot| Place { shard: number as u32, slot })
        };
        let Some(place) = place else {
            return Err(LockError::NotHeld { lock: format!("{name:?}"), owner: owner.id() });
        };
        owner.forget(&*self.0, place);
        self.0.release(place, &owner.node);
        Ok(())
    }

    /// How many locks are held or waited for.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.0.lock(shard).len()).sum()
    }

    #[inline]
    fn acquire(&self, owner: &mut Owner, name: K, mode: M, patience: Patience) -> Result<bool, LockError> {
        let node = &owner.node;
        if let Some(doom) = node.doomed() {
            return Err(doom.clone().into());
        }
        let (hash, number) = self.0.shard_of(&name);
        let mut shard = self.0.lock(number);
        let slot = shard.slot(hash, name);
        let queue = &mut shard.at_mut(slot).queue;
        let held = queue.hold_of(node).map(|hold| hold.mode);
        let wanted = held.map_or(mode, |held| held.and(mode));
        if held == Some(wanted) {
            return Ok(true);
        }
        let place = Place { shard: number as u32, slot };
        if queue.admits(queue.waiters.len(), node, wanted) {
            // In front of those that wait for its end anyway: there may be others of whom that is not so.
            let passes = !queue.waiters.is_empty();
            if queue.hold(node, wanted) {
                drop(shard);
                owner.held.push(&self.0, place);
            } else {
                drop(shard);
            }
            if passes {
                self.0.waits.look_again();
            }
            return Ok(true);
        }
        let until = match patience {
            Patience::None => return Ok(false),
            Patience::Until(until) => until,
        };
        let waiter = Arc::new(Waiter {
            node: node.clone(),
            mode: wanted,
            granted: AtomicBool::new(false),
            event: Event::default(),
        });
        queue.waiters.push_back(waiter.clone());
        drop(shard);
        let done = self.wait(owner, place, &waiter, until);
        // It may have been given the lock though it is told to abort: its end gives that up.
        if waiter.granted.load(Ordering::Acquire) && !owner.has(&*self.0, place) {
            owner.held.push(&self.0, place);
        }
        done.map(|()| true)
    }

    /// Waits for a lock, in whose line it is.
    #[cold]
    fn wait(
        &self,
        owner: &mut Owner,
        place: Place,
        waiter: &Arc<Waiter<M>>,
        until: Option<(Instant, Duration)>,
    ) -> Result<(), LockError> {
        let shared = &self.0;
        let mut in_the_way = InTheWay::of(&shared.waits, &**shared, place, &owner.node);
        shared.waits.begin(&owner.node, shared.clone(), place);
        let error = loop {
            let seen = waiter.event.count();
            if waiter.granted.load(Ordering::Acquire) {
                break None;
            }
            if let Some(doom) = owner.node.doomed() {
                break Some(LockError::from(doom.clone()));
            }
            let left = until.map(|(until, _)| until.saturating_duration_since(Instant::now()));
            if let (Some(Duration::ZERO), Some((_, time))) = (left, until) {
                break Some(shared.timeout(place, &owner.node, time));
            }
            if let Some(in_the_way) = &mut in_the_way {
                in_the_way.look(&shared.waits, &**shared, place, &owner.node);
            }
            let left = left.into_iter().chain(in_the_way.as_ref().map(InTheWay::left)).min();
            waiter.event.wait(seen, left);
        };
        shared.waits.end(&owner.node);
        let Some(error) = error else { return Ok(()) };
        let mut shard = shared.lock(place.shard as usize);
        let (granted, given) = match planted("waiter-not-withdrawn") {
            true => (false, false),
            false => shard.at_mut(place.slot).queue.withdraw(waiter),
        };
        shard.tidy(place.slot);
        drop(shard);
        if given {
            shared.waits.look_again();
        }
        match error {
            // It was given the lock meanwhile.
            LockError::Timeout { .. } if granted => Ok(()),
            error => Err(error),
        }
    }
}

impl<K: Name, M: Mode> Shared<K, M> {
    #[inline]
    fn shard_of(&self, name: &K) -> (u64, usize) {
        let hash = self.hasher.hash_one(name);
        // Other bits than those that the shard's own table goes by.
        (hash, (hash >> 32) as usize % SHARDS)
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard<K, M>> {
        self.shards[shard].0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn timeout(&self, place: Place, node: &Node, waited: Duration) -> LockError {
        let by = self.blockers(place, node).into_iter();
        let by: Vec<String> = by.map(|(node, how)| format!("{how} by {}", node.id())).collect();
        LockError::Timeout { wanted: self.wanted(place, node), waited, by: by.join(", ") }
    }
}

impl<K: Name, M: Mode> Slot<K, M> {
    fn unused() -> Slot<K, M> {
        Slot { name: None, queue: Queue::default() }
    }

    #[inline]
    fn is(&self, hash: u64, name: &K) -> bool {
        self.name.as_ref().is_some_and(|(of, its)| *its == hash && of == name)
    }
}

impl<K: Name, M: Mode> Shard<K, M> {
    #[inline]
    fn at(&self, slot: u32) -> &Slot<K, M> {
        match slot.checked_sub(1) {
            None => &self.first,
            Some(place) => &self.more.as_ref().expect("its slots stay").slots[place as usize],
        }
    }

    #[inline]
    fn at_mut(&mut self, slot: u32) -> &mut Slot<K, M> {
        match slot.checked_sub(1) {
            None => &mut self.first,
            Some(place) => &mut self.more.as_mut().expect("its slots stay").slots[place as usize],
        }
    }

    fn len(&self) -> usize {
        usize::from(self.first.name.is_some()) + self.more.as_ref().map_or(0, |more| more.names.len())
    }

    #[inline]
    fn find(&self, hash: u64, name: &K) -> Option<u32> {
        if self.first.is(hash, name) {
            return Some(0);
        }
        self.more.as_ref()?.find(hash, name).map(|place| place + 1)
    }

    /// Where a lock is, made if need be.
    #[inline]
    fn slot(&mut self, hash: u64, name: K) -> u32 {
        if let Some(slot) = self.find(hash, &name) {
            return slot;
        }
        if self.first.name.is_none() {
            self.first.name = Some((name, hash));
            return 0;
        }
        self.more.get_or_insert_with(|| Box::new(More::new())).add(hash, name) + 1
    }

    /// Forgets a lock that nobody holds or waits for.
    #[inline]
    fn tidy(&mut self, slot: u32) {
        let of = self.at_mut(slot);
        if !of.queue.is_unused() {
            return;
        }
        let Some((_, hash)) = of.name.take() else { return };
        if let (Some(place), Some(more)) = (slot.checked_sub(1), &mut self.more) {
            more.give_back(hash, place);
        }
    }

    fn waiter(&self, slot: u32, node: &Node) -> Option<(usize, &Arc<Waiter<M>>)> {
        let waiters = &self.at(slot).queue.waiters;
        waiters.iter().enumerate().find(|(_, waiter)| std::ptr::eq(&*waiter.node, node))
    }
}

impl<K: Name, M: Mode> More<K, M> {
    fn new() -> More<K, M> {
        More { names: HashTable::new(), slots: Vec::new(), free: Vec::new() }
    }

    fn find(&self, hash: u64, name: &K) -> Option<u32> {
        self.names.find(hash, |place| self.slots[*place as usize].is(hash, name)).copied()
    }

    /// Adds a lock that is not there.
    fn add(&mut self, hash: u64, name: K) -> u32 {
        let More { names, slots, free } = self;
        let place = free.pop().unwrap_or(slots.len() as u32);
        match slots.get_mut(place as usize) {
            Some(of) => of.name = Some((name, hash)),
            None => slots.push(Slot { name: Some((name, hash)), ..Slot::unused() }),
        }
        let hash_of = |place: &u32| slots[*place as usize].name.as_ref().map_or(0, |(_, hash)| *hash);
        names.insert_unique(hash, place, hash_of);
        place
    }

    fn give_back(&mut self, hash: u64, place: u32) {
        if let Ok(entry) = self.names.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        self.free.push(place);
    }
}

impl<K: Name, M: Mode> Table for Shared<K, M> {
    fn inherit(&self, place: Place, child: &Arc<Node>, parent: &Arc<Node>) -> bool {
        let mut shard = self.lock(place.shard as usize);
        let (new, given) = shard.at_mut(place.slot).queue.inherit(child, parent);
        drop(shard);
        if given {
            self.waits.look_again();
        }
        new
    }

    fn release(&self, place: Place, node: &Node) {
        let mut shard = self.lock(place.shard as usize);
        let given = shard.at_mut(place.slot).queue.release(node);
        shard.tidy(place.slot);
        drop(shard);
        if given {
            self.waits.look_again();
        }
    }

    fn blockers(&self, place: Place, waiting: &Node) -> Vec<(Arc<Node>, String)> {
        let shard = self.lock(place.shard as usize);
        // It may have been given the lock since.
        let Some((at, waiter)) = shard.waiter(place.slot, waiting) else { return Vec::new() };
        let queue = &shard.at(place.slot).queue;
        let held = queue.against(waiting, waiter.mode);
        let held = held.map(|hold| (hold.node.clone(), format!("held {:?}", hold.mode)));
        let ahead = queue.ahead(at, waiting, waiter.mode);
        let ahead = ahead.map(|other| (other.node.clone(), format!("waited for {:?} before it", other.mode)));
        held.chain(ahead).collect()
    }

    fn wanted(&self, place: Place, waiting: &Node) -> String {
        let shard = self.lock(place.shard as usize);
        let name = shard.at(place.slot).name.as_ref();
        match (name, shard.waiter(place.slot, waiting)) {
            (Some((name, _)), Some((_, waiter))) => format!("{name:?} {:?}", waiter.mode),
            _ => "a lock that it was given meanwhile".to_owned(),
        }
    }

    fn wake(&self, place: Place, waiting: &Node) {
        if let Some((_, waiter)) = self.lock(place.shard as usize).waiter(place.slot, waiting) {
            waiter.event.signal();
        }
    }
}
