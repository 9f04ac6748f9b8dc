//! Transactions, which live in memory of the C program's own: beginning one allocates nothing.

use crate::error::{Done, Fault, call};
use crate::store::{Open, caliburn_store, class_of, open};
use caliburn::heap::{Heap, HeapTransaction};
use caliburn::{Branch, Extent, Inherited, Mode, Savepoint, Ticket, Transaction};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A transaction. Its memory is the caller's, initialised with CALIBURN_TX_INITIALIZER or zeros, and stays
/// where it is until the transaction ends; then another can be begun in it.
#[repr(C)]
pub struct caliburn_tx {
    /// Caliburn's own.
    pub opaque: [u64; 32],
}

/// Old values are kept, so that the transaction can be aborted.
pub const CALIBURN_RESTORE: c_int = 0;
/// No old values are kept with the redo policy: aborting leaves the memory as it is.
pub const CALIBURN_NO_RESTORE: c_int = 1;

/// A commit that may not be durable yet.
pub struct caliburn_ticket;

static TICKETS: Table<(Ticket, &'static Open)> = Table::new(6);

/// A heap of an open store, and what of it is out.
pub struct HeapInUse {
    pub heap: Heap,
    pub store: &'static Open,
    /// Open transactions, which refer to the heap.
    pub transactions: AtomicUsize,
}

/// A transaction, and the store.
type OfStore = (Transaction<'static>, &'static Open);
/// A transaction of a heap, and the heap.
pub type OfHeap = (HeapTransaction<'static>, &'static HeapInUse);

/// A branch, and the store.
type OfBranch = (Branch<'static>, &'static Open);

/// What is in the memory of a [`caliburn_tx`]. Apart, so that a plain transaction moves no more bytes than it has.
union Body {
    plain: ManuallyDrop<OfStore>,
    heap: ManuallyDrop<OfHeap>,
    branch: ManuallyDrop<OfBranch>,
}

/// The same memory, as this side sees it.
#[repr(C)]
struct TransactionMemory {
    /// Where it is, and what is in it: what is copied elsewhere is none.
    mark: u64,
    body: Body,
}

/// Which of the two is there.
const PLAIN: u64 = 0xCA1B_0000_7A45_5A03;
const HEAP: u64 = 0xCA1B_0000_7A45_5A05;
const BRANCH: u64 = 0xCA1B_0000_7A45_5A07;

const _: () = {
    assert!(size_of::<TransactionMemory>() <= size_of::<caliburn_tx>());
    assert!(align_of::<TransactionMemory>() <= align_of::<caliburn_tx>());
};

/// An open transaction, to be used.
pub enum OpenTransaction<'a> {
    Plain(&'a mut Transaction<'static>),
    Heap(&'a mut HeapTransaction<'static>),
}

#[cold]
fn none() -> Fault {
    Fault::invalid("no transaction is open there: never begun, ended already, or copied from elsewhere")
}

/// The memory of a transaction, whether one is open in it or not.
#[inline]
fn memory<'a>(tx: *mut caliburn_tx) -> Done<&'a mut TransactionMemory> {
    if tx.is_null() || !tx.is_aligned() {
        return Err(none());
    }
    // SAFETY: the memory is the caller's for a caliburn_tx (convention 2), which a place fits; used by one
    // thread at a time (convention 5). Its bytes may be anything: the body is not looked at before the mark
    // says what it is.
    Ok(unsafe { &mut *tx.cast::<TransactionMemory>() })
}

impl TransactionMemory {
    /// The mark of a transaction of that kind here.
    #[inline]
    fn mark_of(&self, kind: u64) -> u64 {
        ptr::from_ref(self).addr() as u64 ^ kind
    }

    #[inline]
    fn is(&self, kind: u64) -> bool {
        self.mark == self.mark_of(kind)
    }

    /// Whether a transaction of any kind is open here.
    #[inline]
    fn is_open(&self) -> bool {
        self.is(PLAIN) || self.is(HEAP) || self.is(BRANCH)
    }

    /// Takes a branch out.
    fn take_branch(&mut self) -> Option<OfBranch> {
        if !self.is(BRANCH) {
            return None;
        }
        self.mark = 0;
        // SAFETY: the mark said that it is there, and says so no more.
        Some(unsafe { ManuallyDrop::take(&mut self.body.branch) })
    }

    #[cold]
    fn busy() -> Fault {
        Fault::invalid("a transaction is open there already: commit or abort it first")
    }

    /// Takes a plain transaction out; none if it is of a heap.
    #[inline]
    fn take_plain(&mut self) -> Option<OfStore> {
        if !self.is(PLAIN) {
            return None;
        }
        self.mark = 0;
        // SAFETY: the mark said that it is there, and says so no more.
        Some(unsafe { ManuallyDrop::take(&mut self.body.plain) })
    }

    /// Takes one of a heap out and ends it; the heap can be closed afterwards.
    fn end_of_heap<T>(
        &mut self,
        end: impl FnOnce(HeapTransaction<'static>, &'static HeapInUse) -> Done<T>,
    ) -> Done<T> {
        if !self.is(HEAP) {
            return Err(none());
        }
        self.mark = 0;
        // SAFETY: as above.
        let (tx, heap) = unsafe { ManuallyDrop::take(&mut self.body.heap) };
        // Also if the verifier panics.
        let _ended = Ended(heap);
        end(tx, heap)
    }
}

/// Counts a heap's transaction as ended.
struct Ended(&'static HeapInUse);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.transactions.fetch_sub(1, Ordering::Release);
    }
}

/// The open transaction.
#[inline]
pub fn open_transaction<'a>(tx: *mut caliburn_tx) -> Done<OpenTransaction<'a>> {
    let place = memory(tx)?;
    let (open, inherited) = if place.is(PLAIN) {
        // SAFETY: the mark says that it is there.
        let tx = unsafe { &mut (&mut place.body.plain).0 };
        let inherited = tx.is_inherited();
        (OpenTransaction::Plain(tx), inherited)
    } else if place.is(HEAP) {
        // SAFETY: as above.
        let (tx, heap) = unsafe { &mut *place.body.heap };
        (OpenTransaction::Heap(tx), heap.store.store.is_inherited())
    } else if place.is(BRANCH) {
        // SAFETY: as above.
        let tx: &mut Transaction<'static> = unsafe { &mut (&mut place.body.branch).0 };
        let inherited = tx.is_inherited();
        (OpenTransaction::Plain(tx), inherited)
    } else {
        return Err(none());
    };
    // The parent's transaction stays open.
    if inherited { Err(Inherited.into()) } else { Ok(open) }
}

/// Begins a transaction of a heap in the caller's memory.
pub fn begin_of_heap(tx: *mut caliburn_tx, begin: impl FnOnce() -> Done<OfHeap>) -> Done {
    let place = memory(tx)?;
    if place.is_open() {
        return Err(TransactionMemory::busy());
    }
    place.body.heap = ManuallyDrop::new(begin()?);
    place.mark = place.mark_of(HEAP);
    Ok(())
}

/// Refuses to end a transaction that has open branches, and a branch in a way that branches do not end in.
fn check_end(tx: *mut caliburn_tx, aborts: bool) -> Done {
    if !aborts && memory(tx)?.is(BRANCH) {
        return Err(Fault::invalid("it is a branch: caliburn_adopt() or caliburn_abort() ends it"));
    }
    match open_transaction(tx)? {
        OpenTransaction::Plain(tx) if tx.has_branches() => {
            Err(Fault::invalid("the transaction has open branches: adopt or abort them first"))
        }
        _ => Ok(()),
    }
}

/// The open transaction, to be ended in a way that those of heaps do not have; one with old values, if it takes
/// these.
fn take_plain(tx: *mut caliburn_tx, restores: bool) -> Done<OfStore> {
    check_end(tx, false)?;
    match open_transaction(tx)? {
        OpenTransaction::Heap(_) => {
            return Err(Fault::invalid(
                "a transaction of a heap ends by caliburn_commit() or caliburn_abort()",
            ));
        }
        OpenTransaction::Plain(tx) if restores && tx.mode() == Mode::NoRestore => {
            return Err(Fault::invalid(
                "it was begun with CALIBURN_NO_RESTORE and has no old values: commit it",
            ));
        }
        OpenTransaction::Plain(_) => {}
    }
    memory(tx)?.take_plain().ok_or_else(none)
}

/// Declares bytes at an address.
///
/// # Safety
/// As for [`Transaction::set_range_at`].
#[inline]
unsafe fn declare(tx: *mut caliburn_tx, address: *const u8, len: usize) -> Done {
    // SAFETY: passed on from the caller.
    unsafe {
        match open_transaction(tx)? {
            OpenTransaction::Plain(tx) => tx.set_range_at(address, len)?,
            OpenTransaction::Heap(tx) => tx.by_address().set_range_at(address, len)?,
        }
    }
    Ok(())
}

/// The transaction changes few pages.
pub const CALIBURN_FEW: c_int = 0;
/// It changes more pages than memory should hold until it commits.
pub const CALIBURN_MANY: c_int = 1;

/// Says beforehand how much an open transaction will change: CALIBURN_FEW or CALIBURN_MANY. It decides when what
/// pages held is written, with CALIBURN_SHADOW and CALIBURN_FAULTS, unless that is CALIBURN_EAGER; else it changes
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_will_change(tx: *mut caliburn_tx, extent: c_int) -> c_int {
    call(|| {
        let extent = match extent {
            CALIBURN_FEW => Extent::Few,
            CALIBURN_MANY => Extent::Many,
            _ => return Err(Fault::invalid("an extent is CALIBURN_FEW or CALIBURN_MANY")),
        };
        match open_transaction(tx)? {
            OpenTransaction::Plain(tx) => tx.will_change(extent),
            OpenTransaction::Heap(tx) => tx.by_address().will_change(extent),
        }
        Ok(())
    })
}

/// Begins a transaction: mode CALIBURN_RESTORE or CALIBURN_NO_RESTORE. Waits while private pages exceed the
/// memory budget; with CALIBURN_SHADOW or CALIBURN_FAULTS while another one is open, CALIBURN_BUSY if the calling
/// thread has begun that.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_begin(store: *mut caliburn_store, mode: c_int, tx: *mut caliburn_tx) -> c_int {
    call(|| {
        let place = memory(tx)?;
        if place.is_open() {
            return Err(TransactionMemory::busy());
        }
        let mode = match mode {
            CALIBURN_RESTORE => Mode::Restore,
            CALIBURN_NO_RESTORE => Mode::NoRestore,
            _ => return Err(Fault::invalid("a mode is CALIBURN_RESTORE or CALIBURN_NO_RESTORE")),
        };
        let open = open(store)?;
        place.body.plain = ManuallyDrop::new((open.store.begin(mode)?, open));
        place.mark = place.mark_of(PLAIN);
        Ok(())
    })
}

/// Declares that len bytes at an address, within one region of the store, are about to be changed. To be called
/// before they are. After an error nothing is declared, and the transaction goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_set_range(
    tx: *mut caliburn_tx,
    address: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        if len == 0 {
            return open_transaction(tx).map(drop);
        }
        // SAFETY: no region is unmapped while a transaction has ranges in it: caliburn_unmap() refuses.
        unsafe { declare(tx, address.cast(), len) }
    })
}

/// Declares len bytes at an address and copies bytes there. The source may overlap them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_write(
    tx: *mut caliburn_tx,
    address: *mut c_void,
    source: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        open_transaction(tx)?;
        let source = text::bytes("source", source.cast(), len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: as for caliburn_set_range(); the range was found within a region, which is mapped for writing.
        unsafe {
            declare(tx, address.cast(), len)?;
            ptr::copy(source.as_ptr(), address.cast(), len);
        }
        Ok(())
    })
}

/// Commits in a failure class: when this returns, the changes survive what CALIBURN_PROCESS, _OS or _POWER
/// names. The transaction has ended whatever the code is, but after CALIBURN_INVALID: for the class, for open
/// branches, for a branch.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_commit(tx: *mut caliburn_tx, class: c_int) -> c_int {
    call(|| {
        let class = class_of(class)?;
        check_end(tx, false)?;
        let place = memory(tx)?;
        match place.take_plain() {
            Some((tx, _)) => Ok(tx.commit(class)?),
            None => place.end_of_heap(|tx, _| Ok(tx.commit(class)?)),
        }
    })
}

/// Aborts: old values come back, with CALIBURN_RESTORE. With CALIBURN_NO_RESTORE the memory stays as it is,
/// which only a store opened with CALIBURN_DECLARED_ONLY allows: in another CALIBURN_INVALID says so and the
/// transaction goes on.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_abort(tx: *mut caliburn_tx) -> c_int {
    call(|| {
        if matches!(open_transaction(tx)?, OpenTransaction::Plain(tx) if !tx.can_abort()) {
            return Err(Fault::invalid(
                "it was begun with CALIBURN_NO_RESTORE and has no old values: commit it",
            ));
        }
        check_end(tx, true)?;
        let place = memory(tx)?;
        if let Some((branch, _)) = place.take_branch() {
            drop(branch);
            return Ok(());
        }
        match place.take_plain() {
            Some((tx, _)) => {
                tx.abort();
                Ok(())
            }
            None => place.end_of_heap(|tx, _| {
                tx.abort();
                Ok(())
            }),
        }
    })
}

/// A place in a transaction that it can be rolled back to. Caliburn's own.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct caliburn_savepoint_t {
    /// Caliburn's own.
    pub opaque: [u64; 2],
}

/// The open transaction, if it is not of a heap.
fn not_of_heap<'a>(tx: *mut caliburn_tx) -> Done<&'a mut Transaction<'static>> {
    match open_transaction(tx)? {
        OpenTransaction::Plain(tx) => Ok(tx),
        OpenTransaction::Heap(_) => {
            Err(Fault::invalid("a transaction of a heap has no savepoints and no branches"))
        }
    }
}

/// Marks a place that the transaction can be rolled back to: any number of them, at any depth. For transactions
/// with CALIBURN_RESTORE, not of heaps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_savepoint(
    tx: *mut caliburn_tx,
    savepoint: *mut caliburn_savepoint_t,
) -> c_int {
    call(|| {
        text::check("savepoint", savepoint)?;
        let opaque = not_of_heap(tx)?.savepoint()?.to_words();
        Ok(text::put("savepoint", savepoint, caliburn_savepoint_t { opaque })?)
    })
}

/// Undoes what was changed since a savepoint of the transaction, which stays; those that came after it are gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_rollback_to(
    tx: *mut caliburn_tx,
    savepoint: *const caliburn_savepoint_t,
) -> c_int {
    call(|| Ok(not_of_heap(tx)?.rollback_to(&found(savepoint)?)?))
}

/// Forgets a savepoint of the transaction, and those that came after it; what was changed since stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_release(
    tx: *mut caliburn_tx,
    savepoint: *const caliburn_savepoint_t,
) -> c_int {
    call(|| Ok(not_of_heap(tx)?.release(&found(savepoint)?)?))
}

fn found(savepoint: *const caliburn_savepoint_t) -> Done<Savepoint> {
    text::check("savepoint", savepoint.cast_mut())?;
    // SAFETY: the caller's (convention 2), and checked.
    Ok(Savepoint::from_words(unsafe { (*savepoint).opaque }))
}

/// Begins a branch in the caller's memory: a part of the transaction in which another thread can declare and
/// store. caliburn_adopt() makes what it has changed the transaction's, caliburn_abort() undoes it. For
/// transactions with CALIBURN_RESTORE, not of heaps. While it is open, the two must not declare the same bytes,
/// but that the branch may change what was declared before it began.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_branch(tx: *mut caliburn_tx, branch: *mut caliburn_tx) -> c_int {
    call(|| {
        let place = memory(branch)?;
        if place.is_open() {
            return Err(TransactionMemory::busy());
        }
        let made = not_of_heap(tx)?.branch()?;
        let of = memory(tx)?;
        // SAFETY: the mark says which of the two is there.
        let open = unsafe { if of.is(BRANCH) { of.body.branch.1 } else { of.body.plain.1 } };
        place.body.branch = ManuallyDrop::new((made, open));
        place.mark = place.mark_of(BRANCH);
        Ok(())
    })
}

/// Makes what a branch of the transaction has declared and changed the transaction's own, and ends the branch.
/// After an error the branch has ended and is undone, but after CALIBURN_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_adopt(tx: *mut caliburn_tx, branch: *mut caliburn_tx) -> c_int {
    call(|| {
        if ptr::eq(tx, branch) {
            return Err(Fault::invalid("a transaction is no branch of itself"));
        }
        let place = memory(branch)?;
        // SAFETY: the mark says that it is there.
        let is_of =
            |of: &Transaction<'_>| place.is(BRANCH) && unsafe { &place.body.branch.0 }.is_branch_of(of);
        let of = not_of_heap(tx)?;
        if !is_of(of) {
            return Err(Fault::invalid("that is no branch of the transaction"));
        }
        check_end(branch, true)?;
        let (branch, _) = place.take_branch().ok_or_else(none)?;
        Ok(of.adopt(branch)?)
    })
}

/// Prepares: the transaction is durable and undecided from now on, whatever happens, until
/// caliburn_commit_prepared() or caliburn_abort_prepared() with the same identifier of 1 to 1024 bytes. For
/// transactions with CALIBURN_RESTORE; one of a heap is decided by caliburn_heap_commit_prepared() or
/// caliburn_heap_abort_prepared().
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_prepare(tx: *mut caliburn_tx, global_id: *const c_void, len: usize) -> c_int {
    call(|| {
        let global_id = text::bytes("global_id", global_id.cast(), len)?;
        let place = memory(tx)?;
        if place.is(HEAP) {
            return place.end_of_heap(|tx, _| Ok(tx.prepare(global_id)?));
        }
        Ok(take_plain(tx, true)?.0.prepare(global_id)?)
    })
}

/// Commits lazily, and gives a ticket that tells when the commit is durable.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_commit_async(tx: *mut caliburn_tx, ticket: *mut *mut caliburn_ticket) -> c_int {
    call(|| {
        text::check("ticket", ticket)?;
        let place = memory(tx)?;
        let (taken, open) = match place.is(HEAP) {
            true => place.end_of_heap(|tx, heap| Ok((tx.commit_async()?, heap.store)))?,
            false => {
                let (taken, open) = take_plain(tx, false)?;
                (taken.commit_async()?, open)
            }
        };
        open.dependents.fetch_add(1, Ordering::AcqRel);
        Ok(text::put("ticket", ticket, TICKETS.insert((taken, open)))?)
    })
}

/// Whether a ticket's commit is durable: 1 or 0; -1 if there is no such ticket.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_ticket_is_durable(ticket: *const caliburn_ticket) -> c_int {
    TICKETS.get(ticket).map_or(-1, |(ticket, _)| c_int::from(ticket.is_durable()))
}

/// Waits until a ticket's commit is durable, and gives the ticket back.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_ticket_wait(ticket: *mut caliburn_ticket) -> c_int {
    call(|| {
        let (ticket, open) = TICKETS.take(ticket).ok_or_else(|| Fault::invalid("no such ticket"))?;
        let done = ticket.wait();
        open.dependents.fetch_sub(1, Ordering::AcqRel);
        Ok(done?)
    })
}

/// Gives a ticket back without waiting. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_ticket_free(ticket: *mut caliburn_ticket) {
    if let Some((_, open)) = TICKETS.take(ticket) {
        open.dependents.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Called with a value that a transaction replaced: segment number, offset, and the bytes.
pub type caliburn_old_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, segment: u32, offset: u64, bytes: *const c_void, len: usize),
>;

/// Commits, and passes the values that the transaction replaced to a function, each byte once. For transactions
/// with CALIBURN_RESTORE, not of heaps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_commit_returning_old(
    tx: *mut caliburn_tx,
    class: c_int,
    visit: caliburn_old_fn,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let class = class_of(class)?;
        let visit = visit.ok_or_else(|| Fault::invalid("visit is a null pointer"))?;
        for old in take_plain(tx, true)?.0.commit_returning_old(class)? {
            // SAFETY: the function is the caller's word (convention 2).
            unsafe { visit(context, old.segment.0, old.offset, old.bytes.as_ptr().cast(), old.bytes.len()) };
        }
        Ok(())
    })
}
