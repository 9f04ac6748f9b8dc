//! Hash maps: extendible hashing (Fagin et al., 1979). A directory of 2^depth links, indexed by the highest
//! bits of the hash, leads to [tables](table) of some hundred entries. A full table is split in two, and the
//! directory doubled when one table would need more bits than it has: so no insertion moves more than one
//! table's entries, however large the map.

mod iter;
mod recoverable;
mod table;
mod tags;

pub use iter::{Iter, IterMut};
pub(crate) use tags::GROUP;

use crate::entry::{AsKey, Entry, Places};
use crate::hash::StoreHasher;
use crate::link::Link;
use crate::value::guard::Mut;
use crate::value::recoverable::{Init, Recoverable, Taken, take};
use crate::value::tx::making;
use caliburn_os::simulated::planted;
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::Index;
use table::{Door, Slot, Table};

/// Most bits of the directory. Tables that would need more grow instead.
const DEPTH_MAX: u32 = 24;

/// A hash map in a store: what `HashMap` is elsewhere. Keys are looked up by what they lend: `get("name")`
/// where they are [`PString`](crate::PString)s.
#[repr(C)]
pub struct PHashMap<K, V> {
    directory: Link<Door>,
    len: u64,
    /// Those of the heap, from the first insertion on.
    hash_keys: [u64; 2],
    depth: u32,
    reserved: u32,
    holds: PhantomData<(K, V)>,
}

impl<K, V> PHashMap<K, V> {
    /// An empty map.
    pub const fn new() -> PHashMap<K, V> {
        let (directory, hash_keys) = (Link::NONE, [0; 2]);
        PHashMap { directory, len: 0, hash_keys, depth: 0, reserved: 0, holds: PhantomData }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place in the directory of a hash.
    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        // Two steps: none of 64 bits are left where the directory has one place.
        (hash >> 1 >> (63 - self.depth)) as usize
    }

    /// The table at a place of the directory, which is there.
    #[inline(always)]
    fn table(&self, place: usize) -> Table<K, V> {
        // SAFETY: the directory has 2^depth doors to tables.
        unsafe { Door::table(self.directory.get().add(place)) }
    }

    #[inline(always)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        StoreHasher::of(self.hash_keys, key)
    }

    #[inline(always)]
    fn find<Q>(&self, key: &Q) -> Option<*mut Slot<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.directory.is_none() {
            return None;
        }
        let hash = self.hash(key);
        let table = self.table(self.place(hash));
        table.find(hash, |found| found.borrow() == key).map(|index| table.slot(index))
    }

    /// The value of a key.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // SAFETY: an entry of the map, which nobody changes while it is borrowed.
        self.find(key).map(|slot| unsafe { &(*slot).value })
    }

    /// A key and its value.
    pub fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // SAFETY: as in `get`.
        self.find(key).map(|slot| unsafe { (&(*slot).key, &(*slot).value) })
    }

    /// Whether there is an entry with that key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find(key).is_some()
    }

    /// The entries, in no particular order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter::new(self)
    }

    /// The keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K, V> Default for PHashMap<K, V> {
    fn default() -> PHashMap<K, V> {
        PHashMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for PHashMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Eq + Hash, V: PartialEq> PartialEq for PHashMap<K, V> {
    fn eq(&self, other: &PHashMap<K, V>) -> bool {
        self.len == other.len && self.iter().all(|(key, value)| other.get(key).is_some_and(|v| *v == *value))
    }
}

impl<K: Eq + Hash, V: Eq> Eq for PHashMap<K, V> {}

impl<K, Q, V> Index<&Q> for PHashMap<K, V>
where
    K: Borrow<Q>,
    Q: Hash + Eq + ?Sized,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry has that key")
    }
}

impl<'m, K, V> IntoIterator for &'m PHashMap<K, V> {
    type Item = (&'m K, &'m V);
    type IntoIter = Iter<'m, K, V>;

    fn into_iter(self) -> Iter<'m, K, V> {
        self.iter()
    }
}

/// What `HashMap` does, with std's names. A key that is put in is of any kind that a key can be made of and
/// looked up by.
impl<'a, 'id, K, V> Mut<'a, 'id, PHashMap<K, V>>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    fn set_len(&mut self, len: u64) {
        // SAFETY: the field of the guard's map, declared.
        unsafe {
            let field = &raw mut (*self.as_ptr()).len;
            self.tx().declare(field, 1);
            field.write(len);
        }
    }

    /// Puts an entry in. The value that the key had is the transaction's.
    pub fn insert<I, J>(&mut self, key: I, value: J) -> Option<Taken<'id, V>>
    where
        I: AsKey<'id, K>,
        J: Init<'id, V>,
    {
        match self.reborrow().into_entry(key) {
            Entry::Occupied(mut entry) => Some(entry.insert(value)),
            Entry::Vacant(entry) => {
                entry.insert(value);
                None
            }
        }
    }

    /// The place of a key, with its value or without.
    pub fn entry<I: AsKey<'id, K>>(&mut self, key: I) -> Entry<'_, 'id, PHashMap<K, V>, I> {
        self.reborrow().into_entry(key)
    }

    /// The same, for as long as the guard would have lived.
    pub fn into_entry<I: AsKey<'id, K>>(mut self, key: I) -> Entry<'a, 'id, PHashMap<K, V>, I> {
        if self.directory.is_none() {
            self.begin(1, 0);
        }
        let hash = self.hash::<K::Borrowed>(key.borrow());
        let table = self.table(self.place(hash));
        let found = table
            .find(hash, |found| Borrow::<K::Borrowed>::borrow(found) == Borrow::<K::Borrowed>::borrow(&key));
        match found {
            Some(index) => Entry::occupied(self, (table, index)),
            None => Entry::vacant(self, key, hash),
        }
    }

    /// A guard of the value of a key.
    #[inline]
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<Mut<'_, 'id, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.reborrow().into_get(key)
    }

    /// The same, for as long as the guard would have lived.
    #[inline]
    pub fn into_get<Q>(self, key: &Q) -> Option<Mut<'a, 'id, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // SAFETY: an entry of the map, which the guard has alone.
        self.find(key).map(|slot| unsafe { Mut::new(&raw mut (*slot).value, self.tx()) })
    }

    /// Takes an entry out: its value is the transaction's, its key is freed.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<Taken<'id, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Takes an entry out.
    pub fn remove_entry<Q>(&mut self, key: &Q) -> Option<(Taken<'id, K>, Taken<'id, V>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.directory.is_none() {
            return None;
        }
        let hash = self.hash(key);
        let table = self.table(self.place(hash));
        let index = table.find(hash, |found| Borrow::<Q>::borrow(found) == key)?;
        Some(self.take_slot(table, index))
    }

    /// Takes out what is in a slot.
    fn take_slot(&mut self, table: Table<K, V>, index: usize) -> (Taken<'id, K>, Taken<'id, V>) {
        let tx = self.tx();
        self.set_len(self.len - 1);
        table.release(tx, index);
        let slot = table.slot(index);
        // SAFETY: the entry is no longer the map's.
        unsafe { (take(&raw mut (*slot).key, tx), take(&raw mut (*slot).value, tx)) }
    }

    /// Frees all entries, and the memory.
    pub fn clear(&mut self) {
        self.set(PHashMap::new());
    }

    /// Keeps the entries for which `keep` holds, and frees the others. If it panics, all are there.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, Mut<'_, 'id, V>) -> bool) {
        let tx = self.tx();
        let mut entries = IterMut::new(self.reborrow());
        let mut refused = Vec::new();
        while let Some((table, index)) = entries.next_slot() {
            let slot = table.slot(index);
            // SAFETY: an entry of the map, which the guard has alone.
            let kept = unsafe { keep(&(*slot).key, Mut::new(&raw mut (*slot).value, tx)) };
            if !kept {
                refused.push((table, index));
            }
        }
        for (table, index) in refused {
            drop(self.take_slot(table, index));
        }
    }

    /// Takes all entries out.
    pub fn drain(&mut self) -> impl Iterator<Item = (Taken<'id, K>, Taken<'id, V>)> + use<'id, K, V> {
        let mut slots = Vec::with_capacity(self.len());
        let mut entries = IterMut::new(self.reborrow());
        while let Some(slot) = entries.next_slot() {
            slots.push(slot);
        }
        let taken: Vec<_> = slots.into_iter().map(|(table, index)| self.take_slot(table, index)).collect();
        taken.into_iter()
    }

    /// The entries, with guards of their values.
    pub fn iter_mut(&mut self) -> IterMut<'_, 'id, K, V> {
        IterMut::new(self.reborrow())
    }

    /// Guards of the values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = Mut<'_, 'id, V>> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Makes room for so many entries at once, in a map that has none. One that has some grows table by table.
    pub fn reserve(&mut self, additional: usize) {
        if !self.directory.is_none() {
            return;
        }
        let groups = additional.div_ceil(GROUP * 3 / 4).max(1);
        let largest = Table::<K, V>::groups_max();
        let depth = groups.div_ceil(largest).next_power_of_two().ilog2().min(DEPTH_MAX);
        self.begin(groups.next_power_of_two().min(largest), depth);
    }

    /// Makes tables of so many groups, for a directory of `depth` bits.
    #[cold]
    fn begin(&mut self, groups: usize, depth: u32) {
        let (this, tx) = (self.as_ptr(), self.tx());
        let directory = tx.allocate::<Door>(1 << depth);
        tx.declare(directory, 1 << depth);
        for place in 0..1 << depth {
            let table = Table::<K, V>::make(tx, groups, depth);
            // SAFETY: within the directory, declared.
            unsafe { Door::set(directory.add(place), table) };
        }
        tx.declare(this, 1);
        // SAFETY: the guard's map, declared.
        unsafe {
            Link::set(&raw mut (*this).directory, directory);
            (*this).depth = depth;
            (*this).hash_keys = tx.hash_keys();
        }
    }

    /// Makes room in the table that a hash belongs to.
    #[cold]
    fn make_room(&mut self, hash: u64) {
        let place = self.place(hash);
        let table = self.table(place);
        let header = table.header();
        let (groups, depth, largest) = (table.groups(), header.depth, Table::<K, V>::groups_max());
        // First what may panic: keys are hashed by the program's code.
        let mut entries = Vec::with_capacity(header.entries as usize);
        let mut from = 0;
        while let Some(index) = table.next_taken(from) {
            // SAFETY: the slot holds an entry.
            let key = unsafe { &(*table.slot(index)).key };
            entries.push((index, self.hash::<K::Borrowed>(key.borrow())));
            from = index + 1;
        }
        if entries.len() * 2 <= table.slots() {
            // Many were left: the same size will do.
            return self.replace(place, table, &[(groups, depth)], &entries);
        }
        let ones = entries.iter().filter(|(_, hash)| hash >> (63 - depth) & 1 == 1).count();
        let even = ones.min(entries.len() - ones) > entries.len() / 8;
        if groups < largest || depth >= DEPTH_MAX || !even {
            let more = if groups < largest { (groups * 2).min(largest) } else { groups * 2 };
            return self.replace(place, table, &[(more, depth)], &entries);
        }
        if depth == self.depth {
            self.double();
        }
        self.replace(self.place(hash), table, &[(groups, depth + 1), (groups, depth + 1)], &entries);
    }

    /// Puts tables of so many groups and such a depth in place of one: another, or one for each value of the
    /// next bit.
    fn replace(&mut self, place: usize, old: Table<K, V>, new: &[(usize, u32)], entries: &[(usize, u64)]) {
        let (tx, depth) = (self.tx(), old.header().depth);
        let made: Vec<Table<K, V>> =
            new.iter().map(|(groups, depth)| Table::make(tx, *groups, *depth)).collect();
        for (bit, table) in made.iter().enumerate() {
            let of = if planted("hash-split-by-next-bit") { depth + 1 } else { depth };
            let of_it =
                |(_, hash): &&(usize, u64)| made.len() == 1 || (hash >> (63 - of) & 1) as usize == bit;
            old.move_to(tx, *table, entries.iter().filter(of_it).copied());
        }
        let places = 1 << (self.depth - depth);
        let first = place / places * places;
        // SAFETY: the places of the directory that lead to the table.
        unsafe {
            let directory = self.directory.get().add(first);
            tx.declare(directory, places);
            tx.free(old.as_ptr());
            let places = if planted("hash-directory-half-set") { places.div_ceil(2) } else { places };
            for i in 0..places {
                Door::set(directory.add(i), made[i * made.len() / places]);
            }
        }
    }

    /// Doubles the directory.
    fn double(&mut self) {
        let (this, tx, depth) = (self.as_ptr(), self.tx(), self.depth);
        let old = self.directory.get();
        let new = tx.allocate::<Door>(2 << depth);
        tx.declare(new, 2 << depth);
        tx.declare(this, 1);
        // SAFETY: each link is set twice in the new directory, declared; the old one is given up.
        unsafe {
            for place in 0..2 << depth {
                Door::set(new.add(place), Door::table::<K, V>(old.add(place / 2)));
            }
            tx.free(old);
            Link::set(&raw mut (*this).directory, new);
            (*this).depth = depth + 1;
        }
    }
}

// SAFETY: a place is a slot of a table that holds an entry, or the hash of a key that has none.
unsafe impl<K, V> Places for PHashMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    type Key = K;
    type Value = V;
    type Occupied = (Table<K, V>, usize);
    type Vacant = u64;

    fn entry((table, index): &(Table<K, V>, usize)) -> (*const K, *mut V) {
        let slot = table.slot(*index);
        // SAFETY: a slot of a table.
        unsafe { (&raw const (*slot).key, &raw mut (*slot).value) }
    }

    fn put<'id, I: Init<'id, K>, J: Init<'id, V>>(
        mut map: Mut<'_, 'id, Self>,
        hash: u64,
        key: I,
        value: J,
    ) -> *mut V {
        let mut table = map.table(map.place(hash));
        while table.header().free == 0 {
            map.make_room(hash);
            table = map.table(map.place(hash));
        }
        let (tx, len) = (map.tx(), map.len);
        map.set_len(len + 1);
        // Where the entry will be: before its tag says that it is there.
        let slot = table.slot(table.next_open(hash));
        // SAFETY: a slot that holds no entry, declared, is filled.
        unsafe {
            tx.declare(slot, 1);
            making(tx, || {
                key.init(&raw mut (*slot).key, tx);
                value.init(&raw mut (*slot).value, tx);
            });
            table.claim(tx, hash);
            &raw mut (*slot).value
        }
    }

    fn take_out<'id>(
        mut map: Mut<'_, 'id, Self>,
        (table, index): (Table<K, V>, usize),
    ) -> (Taken<'id, K>, Taken<'id, V>) {
        map.take_slot(table, index)
    }
}

impl<'id, K, V, I, J> Extend<(I, J)> for Mut<'_, 'id, PHashMap<K, V>>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
    I: AsKey<'id, K>,
    J: Init<'id, V>,
{
    fn extend<L: IntoIterator<Item = (I, J)>>(&mut self, entries: L) {
        entries.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}
