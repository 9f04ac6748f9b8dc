//! Slot maps: values found by keys that the map gives out, which stay valid until the value is removed, and are
//! known to be stale after that. What programs build graphs with: keys are plain values, in a store and out of
//! it.

use crate::value::datum::{Datum, Loader, Piece, absorb_entry, collect};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, No, Recoverable, Taken, Yes, take};
use crate::value::tx::{Tx, making};
use crate::vec::PVec;
use caliburn_os::simulated::planted;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Index;
use std::ptr;

/// The key of a value in a [`PSlotMap`]. It can be stored anywhere, in the map's own values, too.
#[repr(C)]
pub struct SlotKey<T> {
    index: u32,
    /// Odd: of a value that was there. No other value at the index has the same.
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for SlotKey<T> {
    fn clone(&self) -> SlotKey<T> {
        *self
    }
}

impl<T> Copy for SlotKey<T> {}

impl<T> PartialEq for SlotKey<T> {
    fn eq(&self, other: &SlotKey<T>) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

impl<T> Eq for SlotKey<T> {}

impl<T> PartialOrd for SlotKey<T> {
    fn partial_cmp(&self, other: &SlotKey<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for SlotKey<T> {
    fn cmp(&self, other: &SlotKey<T>) -> std::cmp::Ordering {
        (self.index, self.generation).cmp(&(other.index, other.generation))
    }
}

impl<T> std::hash::Hash for SlotKey<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.index, self.generation).hash(state);
    }
}

impl<T> fmt::Debug for SlotKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotKey({}v{})", self.index, self.generation)
    }
}

// SAFETY: two numbers.
unsafe impl<T: Recoverable> Recoverable for SlotKey<T> {
    type Pointers = No;
    type Borrowed = SlotKey<T>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("SlotKey<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { to.write(from.read()) }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let (index, generation) = key_of(&loader.text(from), loader);
        // SAFETY: the caller's word.
        unsafe { to.write(SlotKey { index, generation, of: PhantomData }) }
    }
}

// SAFETY: the value is stored.
unsafe impl<'id, T: Recoverable> Init<'id, SlotKey<T>> for SlotKey<T> {
    unsafe fn init(self, to: *mut SlotKey<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

/// The index and the generation that a key's text says: `3v1`.
fn key_of(text: &str, loader: &Loader<'_, '_>) -> (u32, u32) {
    let found = text.split_once('v').and_then(|(index, generation)| {
        Some((index.parse().ok().filter(|index| *index < NONE)?, generation.parse().ok()?))
    });
    found.unwrap_or_else(|| loader.refuse(format!("{text:?} is no key of a slot")))
}

/// A place for a value. With an even generation there is none, and `next` is the next free place.
#[repr(C)]
struct Slot<T> {
    generation: u32,
    next: u32,
    value: MaybeUninit<T>,
}

/// No place.
const NONE: u32 = u32::MAX;

// SAFETY: numbers, and a value where the generation says so.
unsafe impl<T: Recoverable> Recoverable for Slot<T> {
    type Pointers = T::Pointers;
    type Borrowed = Slot<T>;
    const PADDED: bool = true;

    fn describe(types: &mut Types) -> String {
        types.name_of::<T>()
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe {
            (&raw mut (*to).generation).write((*from).generation);
            (&raw mut (*to).next).write((*from).next);
            if (*from).generation % 2 == 1 {
                T::store((&raw const (*from).value).cast(), (&raw mut (*to).value).cast());
            }
        }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe {
            if (*this).generation % 2 == 1 {
                T::moved((&raw mut (*this).value).cast(), by);
            }
        }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: the caller's word.
        unsafe {
            if (*this).generation % 2 == 1 {
                T::free((&raw mut (*this).value).cast(), tx);
            }
        }
    }
}

// SAFETY: a place without a value.
unsafe impl<'id, T: Recoverable> Init<'id, Slot<T>> for Slot<T> {
    unsafe fn init(self, to: *mut Slot<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { Slot::store(&self, to) }
    }
}

/// A slot map in a store.
#[repr(C)]
pub struct PSlotMap<T> {
    slots: PVec<Slot<T>>,
    len: u64,
    /// The first free place.
    free: u32,
    reserved: u32,
}

impl<T> PSlotMap<T> {
    /// An empty map.
    pub const fn new() -> PSlotMap<T> {
        PSlotMap { slots: PVec::new(), len: 0, free: NONE, reserved: 0 }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn slot(&self, key: SlotKey<T>) -> Option<&Slot<T>> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.generation == key.generation && key.generation % 2 == 1).then_some(slot)
    }

    /// The value of a key, if it was not removed.
    pub fn get(&self, key: SlotKey<T>) -> Option<&T> {
        // SAFETY: an odd generation says that there is a value.
        self.slot(key).map(|slot| unsafe { slot.value.assume_init_ref() })
    }

    /// Whether the key's value is there.
    pub fn contains_key(&self, key: SlotKey<T>) -> bool {
        self.slot(key).is_some()
    }

    /// The values with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (SlotKey<T>, &T)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.generation % 2 == 1).map(|(index, slot)| {
            let key = SlotKey { index: index as u32, generation: slot.generation, of: PhantomData };
            // SAFETY: as in `get`.
            (key, unsafe { slot.value.assume_init_ref() })
        })
    }
}

impl<T> Default for PSlotMap<T> {
    fn default() -> PSlotMap<T> {
        PSlotMap::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PSlotMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T> Index<SlotKey<T>> for PSlotMap<T> {
    type Output = T;

    fn index(&self, key: SlotKey<T>) -> &T {
        self.get(key).expect("the value of that key was removed")
    }
}

// SAFETY: a vector and numbers.
unsafe impl<T: Recoverable> Recoverable for PSlotMap<T> {
    type Pointers = Yes;
    type Borrowed = PSlotMap<T>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PSlotMap<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { PVec::moved(&raw mut (*this).slots, by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: the caller's word. Free places own nothing, also where values own nothing.
        unsafe { PVec::free(&raw mut (*this).slots, tx) }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let entries = loader.entries(from);
        // SAFETY: the caller's word.
        unsafe {
            collect(to, PSlotMap::new(), loader, |mut made| {
                for (key, value) in entries {
                    made.put(key_of(&loader.text(key), loader), value, loader);
                }
            });
        }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_entry(this, (path, piece), loader, |mut map, key, value| {
                map.put(key_of(&loader.text(key), loader), value, loader);
            });
        }
    }
}

// SAFETY: an empty map is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, T: Recoverable> Init<'id, PSlotMap<T>> for PSlotMap<T> {
    unsafe fn init(self, to: *mut PSlotMap<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

impl<'id, T: Recoverable> Mut<'_, 'id, PSlotMap<T>> {
    fn slots(&mut self) -> Mut<'_, 'id, PVec<Slot<T>>> {
        // SAFETY: a field of the map, which the guard has alone.
        unsafe { Mut::new(&raw mut (*self.as_ptr()).slots, self.tx()) }
    }

    /// Puts a value in; its key.
    ///
    /// # Panics
    /// Beyond 4,294,967,294 values.
    pub fn insert<I: Init<'id, T>>(&mut self, value: I) -> SlotKey<T> {
        let (this, tx) = (self.as_ptr(), self.tx());
        if self.free == NONE {
            let index =
                u32::try_from(self.slots.len()).ok().filter(|index| *index < NONE).expect("too many values");
            self.slots().push(Slot { generation: 0, next: NONE, value: MaybeUninit::uninit() });
            // SAFETY: fields of the map, declared.
            unsafe {
                tx.declare(&raw const (*this).free, 1);
                (*this).free = index;
            }
        }
        let index = self.free;
        let slot = self.slots().at(index as usize).as_ptr();
        // SAFETY: a free place, declared, and the map.
        unsafe {
            tx.declare(slot, 1);
            tx.declare(this, 1);
            making(tx, || value.init((&raw mut (*slot).value).cast(), tx));
            (*this).free = (*slot).next;
            (*this).len += 1;
            (*slot).generation += 1;
            SlotKey { index, generation: (*slot).generation, of: PhantomData }
        }
    }

    /// Puts what a slot had where it was, so that keys that were kept lead to the same: a value, or none if the
    /// generation is that of a free place. The places come in order.
    fn put(&mut self, (index, generation): (u32, u32), value: Datum, loader: &Loader<'_, 'id>) {
        let (this, tx) = (self.as_ptr(), self.tx());
        if index as usize != self.slots.len() {
            loader.refuse(format!("slot {index} comes after {} slots", self.slots.len()));
        }
        self.slots().push(Slot { generation: 0, next: NONE, value: MaybeUninit::uninit() });
        let slot = self.slots().at(index as usize).as_ptr();
        // SAFETY: the new place, declared, and the map.
        unsafe {
            tx.declare(slot, 1);
            tx.declare(this, 1);
            if generation % 2 == 1 {
                making(tx, || T::load(value, (&raw mut (*slot).value).cast(), loader));
                (*this).len += 1;
            } else {
                // A place whose generations are used up is left alone.
                let used_up = generation == 0;
                (*slot).next = if used_up { NONE } else { (*this).free };
                (*this).free = if used_up { (*this).free } else { index };
            }
            (*slot).generation = generation;
        }
    }

    /// Takes a value out; its key is stale from now on.
    pub fn remove(&mut self, key: SlotKey<T>) -> Option<Taken<'id, T>> {
        self.slot(key)?;
        let (this, tx) = (self.as_ptr(), self.tx());
        let slot = self.slots().at(key.index as usize).as_ptr();
        // SAFETY: a place with a value, declared, and the map.
        unsafe {
            tx.declare(slot, 1);
            tx.declare(this, 1);
            // The last generation is not given out twice: the place is left alone.
            if key.generation == u32::MAX {
                (*slot).generation = 0;
                (*slot).next = NONE;
            } else {
                (*slot).generation = if planted("slot-key-used-again") { 0 } else { key.generation + 1 };
                (*slot).next = (*this).free;
                (*this).free = key.index;
            }
            (*this).len -= 1;
            Some(take((&raw mut (*slot).value).cast::<T>(), tx))
        }
    }

    /// A guard of the value of a key.
    pub fn get_mut(&mut self, key: SlotKey<T>) -> Option<Mut<'_, 'id, T>> {
        self.slot(key)?;
        let slot = self.slots().at(key.index as usize).as_ptr();
        // SAFETY: a value of the map, which the guard has alone.
        Some(unsafe { Mut::new((&raw mut (*slot).value).cast(), self.tx()) })
    }

    /// Guards of two values at once; none if a key is stale or both are the same.
    pub fn get_two_mut(
        &mut self,
        a: SlotKey<T>,
        b: SlotKey<T>,
    ) -> Option<(Mut<'_, 'id, T>, Mut<'_, 'id, T>)> {
        if a == b || !self.contains_key(a) || !self.contains_key(b) {
            return None;
        }
        let tx = self.tx();
        let [a, b] = [a, b].map(|key| self.slots().at(key.index as usize).as_ptr());
        // SAFETY: two values of the map, which the guard has alone.
        unsafe {
            Some((Mut::new((&raw mut (*a).value).cast(), tx), Mut::new((&raw mut (*b).value).cast(), tx)))
        }
    }

    /// Guards of all values, with their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotKey<T>, Mut<'_, 'id, T>)> {
        let tx = self.tx();
        self.slots().into_iter().enumerate().filter(|(_, slot)| slot.generation % 2 == 1).map(
            move |(index, slot)| {
                let key = SlotKey { index: index as u32, generation: slot.generation, of: PhantomData };
                // SAFETY: a value of the map, which the iterator has alone and gives away once.
                (key, unsafe { Mut::new((&raw mut (*slot.as_ptr()).value).cast(), tx) })
            },
        )
    }

    /// Frees all values. Their keys are stale.
    pub fn clear(&mut self) {
        let keys: Vec<SlotKey<T>> = self.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| drop(self.remove(key)));
    }
}
