//! A table of a map: some hundred entries in one object, found by groups of sixteen tags.
//!
//! ```text
//!   | depth, groups | entries, free | tags: a byte each, sixteen to a group | slots: key, value |
//! ```
//!
//! A tag is seven bits of the hash, or says that its slot is empty (the search ends) or was left (it goes on).
//! A search begins at the group that the hash names, and goes through the others in turn. At most seven eighths
//! of the slots are ever taken, so that it ends.

use super::tags::{EMPTY, GROUP, LEFT, Tags};
use crate::value::recoverable::{Recoverable, relocate};
use crate::value::tx::Tx;
use caliburn_os::simulated::even_if;
use std::marker::PhantomData;
use std::ptr;

/// A key and its value.
#[repr(C)]
pub struct Slot<K, V> {
    pub key: K,
    pub value: V,
}

/// What a table begins with.
#[repr(C)]
pub struct Header {
    /// How many bits of their hashes all of its entries share.
    pub depth: u32,
    pub groups: u32,
    pub entries: u32,
    /// Slots that may be taken before the table is full: not those that were left.
    pub free: u32,
}

/// What leads to a table: the distance to it, as in a [`Link`](crate::link::Link), and in the lowest byte the
/// logarithm of its groups, so that a search need not read the table's beginning.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Door(i64);

impl Door {
    /// Lets the door at `this` lead to a table.
    ///
    /// # Safety
    /// The door's bytes can be written, and are declared if they are in a store.
    pub unsafe fn set<K, V>(this: *mut Door, table: Table<K, V>) {
        let distance = table.header.addr().wrapping_sub(this.addr()) as i64;
        // SAFETY: the caller's word.
        unsafe { this.write(Door(distance << 8 | i64::from(table.groups.trailing_zeros()))) }
    }

    /// The table that it leads to.
    ///
    /// # Safety
    /// `this` leads to a table of such keys and values.
    #[inline(always)]
    pub unsafe fn table<K, V>(this: *const Door) -> Table<K, V> {
        // SAFETY: the caller's word.
        let Door(word) = unsafe { this.read() };
        // The mapping's address was exposed when the heap was opened.
        let header = ptr::with_exposed_provenance_mut(this.addr().wrapping_add_signed((word >> 8) as isize));
        Table { header, groups: 1 << (word & 0x3F), holds: PhantomData }
    }
}

/// A table that is there.
pub struct Table<K, V> {
    header: *mut Header,
    /// A power of two.
    groups: usize,
    holds: PhantomData<*mut Slot<K, V>>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Table<K, V> {}

/// Most slots that are taken of so many groups.
const fn most(groups: usize) -> usize {
    groups * GROUP / 8 * 7
}

/// Bytes in front of the slots.
const fn slots_at<K, V>(groups: usize) -> usize {
    (size_of::<Header>() + groups * GROUP).next_multiple_of(align_of::<Slot<K, V>>())
}

impl<K, V> Table<K, V> {
    /// Bytes of a table of so many groups.
    pub const fn bytes(groups: usize) -> usize {
        slots_at::<K, V>(groups) + groups * GROUP * size_of::<Slot<K, V>>()
    }

    /// Most groups of a table that is split rather than made larger.
    pub const fn groups_max() -> usize {
        let mut groups = 1;
        // As much as the heap's largest object of many to a span has room for, by doubling.
        while Table::<K, V>::bytes(groups * 2) <= 20 << 10 {
            groups *= 2;
        }
        groups
    }

    /// The table whose header is at `header`.
    ///
    /// # Safety
    /// One is there.
    pub unsafe fn at(header: *mut Header) -> Table<K, V> {
        // SAFETY: the caller's word.
        Table { header, groups: unsafe { (*header).groups as usize }, holds: PhantomData }
    }

    pub fn as_ptr(&self) -> *mut Header {
        self.header
    }

    pub fn groups(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    pub fn header(&self) -> &Header {
        // SAFETY: see `at`.
        unsafe { &*self.header }
    }

    #[inline(always)]
    fn tags(&self) -> *mut u8 {
        // SAFETY: they follow the header.
        unsafe { self.header.add(1).cast() }
    }

    #[inline(always)]
    fn group(&self, group: usize) -> Tags {
        // SAFETY: within the tags, which are aligned as the header is.
        unsafe { Tags::at(self.tags().add(group * GROUP)) }
    }

    pub fn slots(&self) -> usize {
        self.groups * GROUP
    }

    #[inline(always)]
    pub fn slot(&self, index: usize) -> *mut Slot<K, V> {
        // SAFETY: within the slots, which follow the tags.
        unsafe { self.header.byte_add(slots_at::<K, V>(self.groups)).cast::<Slot<K, V>>().add(index) }
    }

    /// The group that a search begins at.
    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        (hash >> 7) as usize & (self.groups - 1)
    }

    /// The one after another.
    #[inline(always)]
    fn after(&self, group: usize) -> usize {
        (group + 1) & (self.groups - 1)
    }

    /// The slot of an entry with that hash, of which `is` holds.
    #[inline(always)]
    pub fn find(&self, hash: u64, mut is: impl FnMut(&K) -> bool) -> Option<usize> {
        let tag = (hash & 0x7F) as u8;
        let mut group = self.first(hash);
        for _ in 0..self.groups {
            let tags = self.group(group);
            let mut same = tags.with(tag);
            while same != 0 {
                let index = group * GROUP + same.trailing_zeros() as usize;
                // SAFETY: a slot with a tag of a hash holds an entry.
                if is(unsafe { &(*self.slot(index)).key }) {
                    return Some(index);
                }
                same &= same - 1;
            }
            if tags.with(EMPTY) != 0 {
                return None;
            }
            group = self.after(group);
        }
        None
    }

    /// The next slot from `index` on that holds an entry.
    #[inline]
    pub fn next_taken(&self, mut index: usize) -> Option<usize> {
        while index < self.slots() {
            let rest = !self.group(index / GROUP).open() >> (index % GROUP);
            if rest != 0 {
                return Some(index + rest.trailing_zeros() as usize);
            }
            index = (index / GROUP + 1) * GROUP;
        }
        None
    }
}

impl<K: Recoverable, V: Recoverable> Table<K, V> {
    /// A new table with nothing in it, of so many groups, a power of two.
    pub fn make(tx: Tx<'_>, groups: usize, depth: u32) -> Table<K, V> {
        let header = tx.allocate_bytes(Self::bytes(groups), align_of::<Slot<K, V>>()).cast::<Header>();
        // SAFETY: memory for the table; header and tags are declared, slots when they are stored to.
        unsafe {
            tx.declare(header.cast::<u8>(), size_of::<Header>() + groups * GROUP);
            header.write(Header { depth, groups: groups as u32, entries: 0, free: most(groups) as u32 });
            header.add(1).cast::<u8>().write_bytes(EMPTY, groups * GROUP);
            Table::at(header)
        }
    }

    /// The slot that the next entry with that hash is put in. There is one.
    #[inline]
    pub fn next_open(&self, hash: u64) -> usize {
        let mut group = self.first(hash);
        loop {
            let open = self.group(group).open();
            if open != 0 {
                return group * GROUP + open.trailing_zeros() as usize;
            }
            group = self.after(group);
        }
    }

    /// Says that the entry at [`next_open`](Table::next_open) is there.
    #[inline]
    pub fn claim(&self, tx: Tx<'_>, hash: u64) -> usize {
        let index = self.next_open(hash);
        // SAFETY: within the tags and the header, declared.
        unsafe {
            let tag = self.tags().add(index);
            tx.declare(tag, 1);
            let counts = &raw mut (*self.header).entries;
            tx.declare(counts, 2);
            *counts += 1;
            (*self.header).free -= u32::from(tag.read() == EMPTY);
            tag.write((hash & 0x7F) as u8);
        }
        index
    }

    /// Lets a slot go whose entry was taken out.
    #[inline]
    pub fn release(&self, tx: Tx<'_>, index: usize) {
        // If a search ends in this group anyway, it may end here.
        let ends = even_if("hash-search-ends-early", self.group(index / GROUP).with(EMPTY) != 0);
        // SAFETY: within the tags and the header, declared.
        unsafe {
            let tag = self.tags().add(index);
            tx.declare(tag, 1);
            let counts = &raw mut (*self.header).entries;
            tx.declare(counts, 2);
            *counts -= 1;
            (*self.header).free += u32::from(ends);
            tag.write(if ends { EMPTY } else { LEFT });
        }
    }

    /// Moves entries with these hashes to another table, which has room, and in which nothing is declared but
    /// what it began with.
    pub fn move_to(&self, tx: Tx<'_>, other: Table<K, V>, entries: impl Iterator<Item = (usize, u64)>) {
        for (from, hash) in entries {
            let to = other.claim(tx, hash);
            tx.declare(other.slot(to), 1);
            // SAFETY: an entry moves into a slot that was claimed for it.
            unsafe {
                let (from, to) = (self.slot(from), other.slot(to));
                relocate(&raw const (*from).key, &raw mut (*to).key, 1);
                relocate(&raw const (*from).value, &raw mut (*to).value, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_lead_to_tables_of_every_size_anywhere() {
        let mut door = Door(0);
        for at in [64, 1 << 46, (1 << 47) - 64] {
            for groups in (0..32).map(|power| 1usize << power) {
                let header = ptr::without_provenance_mut::<Header>(at);
                // SAFETY: a door of this test's own, to a table that nobody looks into.
                let found = unsafe {
                    Door::set(&raw mut door, Table::<u64, u64> { header, groups, holds: PhantomData });
                    Door::table::<u64, u64>(&raw const door)
                };
                assert_eq!((found.header.addr(), found.groups), (at, groups));
            }
        }
        // No hash has the tag of a slot without an entry.
        assert!(
            [u64::MAX, 0x80, 0].iter().all(|hash| (hash & 0x7F) as u8 <= 0x7F && LEFT > 0x7F && EMPTY > LEFT)
        );
    }

    #[test]
    fn tables_fill_their_objects() {
        assert_eq!(Table::<u64, u64>::groups_max(), 64);
        assert!(Table::<u64, [u8; 9000]>::groups_max() == 1);
        for groups in 1..20 {
            assert!(most(groups) < groups * GROUP && most(groups) >= groups * 7 / 8);
        }
    }
}
