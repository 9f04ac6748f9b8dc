//! A hash map as a value in a store: moved, freed, made of others.

use super::PHashMap;
use super::table::{Door, Table};
use crate::entry::AsKey;
use crate::link::Link;
use crate::value::datum::{Datum, LoadedKey, Loader, Loading, Piece, absorb_entry, collect, is_entry};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Answer, Init, Recoverable, Yes};
use crate::value::tx::Tx;
use std::borrow::Borrow;
use std::hash::Hash;
use std::ptr;

// SAFETY: a link, told when it is moved, and numbers.
unsafe impl<K, V> Recoverable for PHashMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    type Pointers = Yes;
    type Borrowed = PHashMap<K, V>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PHashMap<{}, {}>", types.name_of::<K>(), types.name_of::<V>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { Link::moved(&raw mut (*this).directory, by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what the entries of a table own.
        unsafe fn entries<K: Recoverable, V: Recoverable>(at: *mut u8, tx: Tx<'_>, _count: usize) {
            // SAFETY: a table is there, see below.
            unsafe {
                let table = Table::<K, V>::at(at.cast());
                let mut from = 0;
                while let Some(index) = table.next_taken(from) {
                    K::free(&raw mut (*table.slot(index)).key, tx);
                    V::free(&raw mut (*table.slot(index)).value, tx);
                    from = index + 1;
                }
            }
        }
        /// Frees the tables of a directory.
        unsafe fn tables<K: Recoverable, V: Recoverable>(at: *mut u8, tx: Tx<'_>, depth: usize) {
            let directory = at.cast::<Door>();
            let mut place = 0;
            while place < 1 << depth {
                // SAFETY: a link to a table, which others follow for the same one.
                unsafe {
                    let header = Door::table::<K, V>(directory.add(place)).as_ptr();
                    place += 1 << (depth as u32 - (*header).depth);
                    let owns = <K::Pointers as Answer>::YES || <V::Pointers as Answer>::YES;
                    match owns {
                        true => tx.free_counted(header.cast(), 0, entries::<K, V>),
                        false => tx.free(header),
                    }
                }
            }
        }
        // SAFETY: the map owns its directory and tables.
        unsafe {
            if !(*this).directory.is_none() {
                let depth = (*this).depth as usize;
                tx.free_counted((*this).directory.get().cast(), depth, tables::<K, V>);
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let entries = loader.entries(from).into_iter().filter(|(_, value)| is_entry(value));
        // SAFETY: the caller's word.
        unsafe {
            collect(to, PHashMap::new(), loader, |mut made| {
                entries.for_each(|(key, value)| {
                    let old = made.insert(LoadedKey::new(key, loader), Loading(value, loader));
                    loader.once(old.is_none());
                });
            });
        }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_entry(this, (path, piece), loader, |mut map, key, value| {
                if !is_entry(&value) {
                    return;
                }
                let old = map.insert(LoadedKey::new(key, loader), Loading(value, loader));
                loader.once(old.is_none());
            });
        }
    }
}

// SAFETY: an empty map is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, K, V> Init<'id, PHashMap<K, V>> for PHashMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    unsafe fn init(self, to: *mut PHashMap<K, V>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

// SAFETY: a map is made, of entries that are made.
unsafe impl<'id, K, V, I, J, S> Init<'id, PHashMap<K, V>> for std::collections::HashMap<I, J, S>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
    I: AsKey<'id, K>,
    J: Init<'id, V>,
{
    unsafe fn init(self, to: *mut PHashMap<K, V>, tx: Tx<'id>) {
        // SAFETY: memory for a map, declared if need be; it is one from here on.
        let mut made = unsafe {
            to.write(PHashMap::new());
            Mut::<PHashMap<K, V>>::new(to, tx)
        };
        made.reserve(self.len());
        made.extend(self);
    }
}
