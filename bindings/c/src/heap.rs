//! Heaps: objects that are allocated and freed in transactions.

use crate::error::{CALIBURN_BUSY, CALIBURN_NOT_FOUND, Done, Fault, call};
use crate::store::{caliburn_store, open};
use crate::transaction::{HeapInUse, OpenTransaction, begin_of_heap, caliburn_tx, open_transaction};
use caliburn::Inherited;
use caliburn::heap::{Heap, HeapTransaction, Place};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A heap of an open store.
pub struct caliburn_heap;

/// No place: what removes a root.
pub const CALIBURN_NOWHERE: u64 = u64::MAX;

static HEAPS: Table<Box<HeapInUse>> = Table::new(5);

#[inline]
fn entry(handle: *const caliburn_heap) -> Done<&'static HeapInUse> {
    HEAPS.get(handle).map(|entry| &**entry).ok_or_else(none)
}

#[cold]
fn none() -> Fault {
    Fault::invalid("no such heap: never opened, or closed already")
}

#[inline]
fn heap_work<'a>(tx: *mut caliburn_tx) -> Done<&'a mut HeapTransaction<'static>> {
    match open_transaction(tx)? {
        OpenTransaction::Heap(tx) => Ok(tx),
        OpenTransaction::Plain(_) => {
            Err(Fault::invalid("not a transaction of a heap: begin it with caliburn_heap_begin()"))
        }
    }
}

/// Opens the heap of that name, which is made if there is none: segments NAME and NAME.heap. A heap is opened
/// once.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_open(
    store: *mut caliburn_store,
    name: *const c_char,
    heap: *mut *mut caliburn_heap,
) -> c_int {
    call(|| {
        text::check("heap", heap)?;
        let store = open(store)?;
        let opened = Heap::open(&store.store, text::name("name", name)?)?;
        store.dependents.fetch_add(1, Ordering::AcqRel);
        let entry = HeapInUse { heap: opened, store, transactions: AtomicUsize::new(0) };
        Ok(text::put("heap", heap, HEAPS.insert(Box::new(entry)))?)
    })
}

/// Closes a heap, which stays in the store. CALIBURN_BUSY while transactions of it are open, or were prepared by
/// this process and are undecided.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_close(heap: *mut caliburn_heap) -> c_int {
    call(|| {
        let entry = entry(heap)?;
        if entry.store.store.is_inherited() {
            return Err(Inherited.into());
        }
        let open = entry.transactions.load(Ordering::Acquire);
        let undecided = entry.heap.region().query().uncommitted.len();
        if open > 0 || undecided > 0 {
            let open = open.max(undecided);
            let text = format!("the heap has {open} open or undecided transaction(s): end them first");
            return Err(Fault::new(CALIBURN_BUSY, text));
        }
        let entry = HEAPS.take(heap).ok_or_else(none)?;
        let HeapInUse { heap, store, .. } = *entry;
        drop(heap);
        store.dependents.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Begins a transaction that can allocate and free; all else that transactions can do, it can.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_begin(heap: *mut caliburn_heap, tx: *mut caliburn_tx) -> c_int {
    call(|| {
        begin_of_heap(tx, || {
            let entry = entry(heap)?;
            let begun = entry.heap.begin()?;
            entry.transactions.fetch_add(1, Ordering::AcqRel);
            Ok((begun, entry))
        })
    })
}

/// Allocates len bytes, aligned to 16. What they hold is unknown, and they are not declared: declare what is
/// stored.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_alloc(tx: *mut caliburn_tx, len: u64, place: *mut u64) -> c_int {
    caliburn_heap_alloc_aligned(tx, len, 16, place)
}

/// Allocates len bytes at a multiple of align, a power of two up to 4096.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_alloc_aligned(
    tx: *mut caliburn_tx,
    len: u64,
    align: u64,
    place: *mut u64,
) -> c_int {
    call(|| {
        text::check("place", place)?;
        Ok(text::put("place", place, heap_work(tx)?.allocate_aligned(len as usize, align as usize)?.0)?)
    })
}

/// Frees an object; its memory is used again after the transaction has committed. CALIBURN_NOT_ALLOCATED if no
/// object begins there.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_free(tx: *mut caliburn_tx, place: u64) -> c_int {
    call(|| Ok(heap_work(tx)?.free(Place(place))?))
}

/// Makes an object len bytes long, if need be in another place, with as much of its content as fits.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_realloc(tx: *mut caliburn_tx, place: u64, len: u64, to: *mut u64) -> c_int {
    call(|| {
        text::check("to", to)?;
        Ok(text::put("to", to, heap_work(tx)?.reallocate(Place(place), len as usize)?.0)?)
    })
}

/// Names an object, or with CALIBURN_NOWHERE takes the name away: when the transaction commits.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_set_root(tx: *mut caliburn_tx, name: *const c_char, place: u64) -> c_int {
    call(|| {
        let place = (place != CALIBURN_NOWHERE).then_some(Place(place));
        Ok(heap_work(tx)?.set_root(text::name("name", name)?, place)?)
    })
}

/// The object of that name: CALIBURN_NOT_FOUND if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_root(
    heap: *const caliburn_heap,
    name: *const c_char,
    place: *mut u64,
) -> c_int {
    call(|| {
        text::check("place", place)?;
        let name = text::name("name", name)?;
        let found = entry(heap)?.heap.root(name);
        let none = || Fault::new(CALIBURN_NOT_FOUND, format!("the heap has no root named {name:?}"));
        Ok(text::put("place", place, found.ok_or_else(none)?.0)?)
    })
}

/// Where an object is in memory, until the heap is closed; null for a place that the heap does not have.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_at(heap: *const caliburn_heap, place: u64) -> *mut c_void {
    let Ok(entry) = entry(heap) else { return ptr::null_mut() };
    let region = entry.heap.region();
    match usize::try_from(place) {
        Ok(place) if place < region.len() => region.as_ptr().wrapping_add(place).cast(),
        _ => ptr::null_mut(),
    }
}

/// The place of an address within the heap; CALIBURN_NOWHERE for any other.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_place(heap: *const caliburn_heap, address: *const c_void) -> u64 {
    let Ok(entry) = entry(heap) else { return CALIBURN_NOWHERE };
    let region = entry.heap.region();
    let place = address.addr().wrapping_sub(region.as_ptr().addr());
    if place < region.len() { place as u64 } else { CALIBURN_NOWHERE }
}

/// Bytes that the object at a place may use; 0 if none begins there.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_usable_len(heap: *const caliburn_heap, place: u64) -> u64 {
    entry(heap).map_or(0, |entry| entry.heap.usable_len(Place(place)).map_or(0, |len| len as u64))
}

/// Commits an undecided transaction of the heap, with what it has allocated and freed. Decided by
/// caliburn_commit_prepared() instead, what it freed stays taken until the heap is opened again.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_commit_prepared(
    heap: *mut caliburn_heap,
    global_id: *const c_void,
    len: usize,
) -> c_int {
    call(|| Ok(entry(heap)?.heap.commit_prepared(text::bytes("global_id", global_id.cast(), len)?)?))
}

/// Aborts an undecided transaction of the heap: what it has allocated is free again.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_abort_prepared(
    heap: *mut caliburn_heap,
    global_id: *const c_void,
    len: usize,
) -> c_int {
    call(|| Ok(entry(heap)?.heap.abort_prepared(text::bytes("global_id", global_id.cast(), len)?)?))
}

/// Verifies the heap's own data: CALIBURN_DAMAGED if it was overwritten.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_check(heap: *const caliburn_heap) -> c_int {
    call(|| Ok(entry(heap)?.heap.check()?))
}

/// The state of a heap.
#[repr(C)]
pub struct caliburn_heap_statistics {
    /// Objects that are smaller than a span of 64 KiB.
    pub objects: u64,
    /// Objects that have spans of their own.
    pub large_objects: u64,
    /// Bytes of those.
    pub large_bytes: u64,
    /// Bytes of spans that hold no object.
    pub free_bytes: u64,
    /// Bytes of the heap.
    pub bytes: u64,
    /// Share of the used spans that holds no object, 0 to 1.
    pub fragmentation: f64,
}

/// The state of a heap.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_heap_statistics_get(
    heap: *const caliburn_heap,
    statistics: *mut caliburn_heap_statistics,
) -> c_int {
    call(|| {
        let found = entry(heap)?.heap.statistics();
        let told = caliburn_heap_statistics {
            objects: found.classes.iter().map(|class| class.objects).sum(),
            large_objects: found.large_objects,
            large_bytes: found.large_bytes,
            free_bytes: found.free_bytes,
            bytes: found.bytes,
            fragmentation: found.fragmentation(),
        };
        Ok(text::put("statistics", statistics, told)?)
    })
}
