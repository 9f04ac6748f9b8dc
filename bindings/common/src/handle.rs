//! Handles: what C programs hold in place of stores, segments, regions.
//!
//! A handle is a number in the guise of a pointer: which table, which slot of it, and how often the slot was used.
//! A null pointer, any other number, or a handle that was given back is noticed, and nothing is read through it.
//!
//! ```text
//!   | kind 4 bits | generation 32 bits, odd | slot 28 bits |
//! ```
//!
//! Slots are never given back to the system, so that looking one up takes no lock. Invariant: a slot's
//! generation is odd while it holds a value.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const SLOT_BITS: u32 = 28;
const GENERATION_BITS: u32 = 32;
/// Slots of the first chunk; each further one has twice as many.
const FIRST: u32 = 64;
const CHUNKS: usize = (SLOT_BITS - FIRST.ilog2()) as usize;

/// Values of one kind, and their handles.
pub struct Table<T> {
    kind: u64,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<u32>,
    /// Slots made so far.
    made: u32,
}

struct Slot<T> {
    generation: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: values go in and out under the lock; between, they are only referred to, by threads that may share them.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// An empty table; `kind`, 1 to 15, tells its handles from those of others.
    pub const fn new(kind: u64) -> Table<T> {
        assert!(kind > 0 && kind < 16);
        let free = Mutex::new(Free { slots: Vec::new(), made: 0 });
        Table { kind, chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS], free }
    }

    /// The value of a handle. It stays where it is until it is taken, which no thread may do while another uses
    /// the handle: convention 4 of the header.
    #[inline]
    pub fn get<H>(&self, handle: *const H) -> Option<&T> {
        let (slot, generation) = self.decode(handle.addr() as u64)?;
        // SAFETY: the generation is odd, so there is a value, and the caller keeps it there.
        (slot.generation.load(Ordering::Acquire) == generation)
            .then(|| unsafe { (*slot.value.get()).assume_init_ref() })
    }

    #[inline]
    fn decode(&self, handle: u64) -> Option<(&Slot<T>, u32)> {
        let generation = (handle >> SLOT_BITS) as u32;
        if handle >> (SLOT_BITS + GENERATION_BITS) != self.kind || generation.is_multiple_of(2) {
            return None;
        }
        let (chunk, at) = place((handle & ((1 << SLOT_BITS) - 1)) as u32);
        let chunk = self.chunks.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: a chunk that is there has as many slots as its place says, and stays.
        (!chunk.is_null()).then(|| (unsafe { &*chunk.add(at as usize) }, generation))
    }

    /// Puts a value in; its handle.
    pub fn insert<H>(&self, value: T) -> *mut H {
        let mut free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let number = free.slots.pop().unwrap_or_else(|| {
            free.made += 1;
            free.made - 1
        });
        assert!(number < 1 << SLOT_BITS, "no program has that many handles");
        let (chunk, at) = place(number);
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let slot =
                || Slot { generation: AtomicU32::new(0), value: UnsafeCell::new(MaybeUninit::uninit()) };
            let slots: Box<[Slot<T>]> = (0..FIRST << chunk).map(|_| slot()).collect();
            self.chunks[chunk].store(Box::leak(slots).as_mut_ptr(), Ordering::Release);
        }
        // SAFETY: the chunk is there and has that slot.
        let slot = unsafe { &*self.chunks[chunk].load(Ordering::Acquire).add(at as usize) };
        let generation = slot.generation.load(Ordering::Relaxed) + 1;
        // SAFETY: the slot is free, so nobody refers to its value.
        unsafe { (*slot.value.get()).write(value) };
        slot.generation.store(generation, Ordering::Release);
        let number = u64::from(number) | u64::from(generation) << SLOT_BITS;
        ptr::without_provenance_mut((number | self.kind << (SLOT_BITS + GENERATION_BITS)) as usize)
    }

    /// Takes a value out: its handle is none any more.
    pub fn take<H>(&self, handle: *const H) -> Option<T> {
        let mut free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let number = handle.addr() as u64;
        let (slot, generation) = self.decode(number)?;
        if slot.generation.load(Ordering::Relaxed) != generation {
            return None;
        }
        slot.generation.store(generation.wrapping_add(1), Ordering::Release);
        free.slots.push((number & ((1 << SLOT_BITS) - 1)) as u32);
        // SAFETY: there was a value, and nobody finds it any more.
        Some(unsafe { (*slot.value.get()).assume_init_read() })
    }
}

/// Chunk of a slot, and its place there.
#[inline]
fn place(number: u32) -> (usize, u32) {
    let chunk = (number / FIRST + 1).ilog2();
    (chunk as usize, number - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Handle;

    #[test]
    fn places_follow_each_other() {
        assert_eq!([0, 63, 64, 191, 192].map(place), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
        assert_eq!(place((1 << SLOT_BITS) - FIRST - 1).0, CHUNKS - 1);
    }

    #[test]
    fn a_handle_is_its_values_until_it_is_taken() {
        let (table, other) = (Table::<String>::new(1), Table::<String>::new(2));
        let handles: Vec<*mut Handle> = (0..1000).map(|i| table.insert(i.to_string())).collect();
        for (i, handle) in handles.iter().enumerate() {
            assert_eq!(table.get(*handle), Some(&i.to_string()));
            assert_eq!(other.get(*handle), None);
        }
        assert_eq!(table.take(handles[7]), Some("7".into()));
        assert_eq!(table.get(handles[7]), None);
        assert_eq!(table.take(handles[7]), None);
        // Its slot is used again, under another handle.
        let again: *mut Handle = table.insert("again".into());
        assert_eq!((table.get(handles[7]), table.get(again).map(String::as_str)), (None, Some("again")));
    }

    #[test]
    fn what_is_no_handle_is_noticed() {
        let table = Table::<u8>::new(3);
        let handle: *mut Handle = table.insert(1);
        let number = handle.addr();
        for other in [0, 1, 8, usize::MAX, number ^ 1, number ^ 1 << 20, number ^ 1 << 30, number ^ 1 << 61] {
            assert_eq!(table.get(ptr::without_provenance::<Handle>(other)), None, "{other:#x}");
        }
    }
}
