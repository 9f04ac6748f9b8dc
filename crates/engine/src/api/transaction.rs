//! Transactions: begin, set_range, stores, commit or abort (RVM, Figure 4b).
//!
//! ```text
//!            set_range, write                     prepare
//!   begin --> UNCOMMITTED -------------------------------> PREPARED --> commit_prepared, abort_prepared
//!                |    \
//!          abort |     \ commit:  1 the ways of tracking look   2 the policy commits
//!         or drop|      \         3 the write set is emptied      4 `Os`, `Power`: wait for the force
//!                v       v
//!             old values  COMMITTED
//! ```
//!
//! A transaction is spent by `commit` and `abort`: using it afterwards does not compile.

use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::api::ticket::Ticket;
use crate::storage::class::Class;
use crate::storage::error::{BranchError, CommitError, RangeError, SavepointError};
use crate::storage::region::RegionState;
use crate::storage::settings::Extent;
use crate::write_set::{Position, WriteSet};
use caliburn_log::SegmentId;
use caliburn_os::simulated::{self, planted};
use caliburn_os::span;
use std::ops::Range;
use std::ptr;
use zerocopy::{Immutable, IntoBytes};

/// Whether a transaction can be aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Old values are kept, so that `abort` can restore them.
    Restore = 1,
    /// No old values are kept: faster, and the program promises to commit.
    NoRestore = 0,
}

/// The identity of a transaction within one opening of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

/// Old bytes that a commit replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldValue {
    /// The segment.
    pub segment: SegmentId,
    /// Offset in the segment.
    pub offset: u64,
    /// The bytes that were there before the transaction.
    pub bytes: Vec<u8>,
}

/// A place in a transaction that it can be rolled back to: [`Transaction::savepoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Savepoint {
    transaction: TransactionId,
    serial: u64,
}

impl Savepoint {
    /// As words, for [`Savepoint::from_words`]: for programs in other languages.
    pub fn to_words(self) -> [u64; 2] {
        [self.transaction.0, self.serial]
    }

    /// The savepoint that has these words. What is none of the transaction's is refused when it is used.
    pub fn from_words(words: [u64; 2]) -> Savepoint {
        Savepoint { transaction: TransactionId(words[0]), serial: words[1] }
    }
}

/// A group of changes that happens wholly or not at all. Dropped without commit, it is aborted.
pub struct Transaction<'t> {
    store: &'t Shared,
    set: WriteSet<'t>,
    mode: Mode,
}

// SAFETY: a transaction is a run in a slot and borrowed store state, none of it tied to the thread that began it.
unsafe impl Send for Transaction<'_> {}
// SAFETY: what needs no exclusive access only reads.
unsafe impl Sync for Transaction<'_> {}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl<'t> Transaction<'t> {
    #[inline(always)]
    pub(crate) fn new(store: &'t Shared, mode: Mode) -> Transaction<'t> {
        let keeps_old = store.terms.keeps_old[mode as usize];
        Transaction { store, set: store.sets.slots.begin(keeps_old), mode }
    }

    /// Its write set, to be ended by the caller.
    #[inline(always)]
    fn into_set(self) -> WriteSet<'t> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped and not used again, so that there is one set still.
        unsafe { ptr::read(&this.set) }
    }

    pub(crate) fn write_set(&self) -> &WriteSet<'t> {
        &self.set
    }

    pub(crate) fn restores(&self) -> bool {
        self.mode == Mode::Restore
    }

    /// Its identity, as [`Query`](crate::Query) reports it.
    pub fn id(&self) -> TransactionId {
        TransactionId(self.set.id())
    }

    /// Says beforehand how much the transaction will change (Camelot, section 4.3). Where stores are caught with the
    /// shadow policy, and before-images are not eager in any case, they are so for one that changes many pages from
    /// here on; for one that changes few they are lazy until the budget is full, short as memory may be
    /// ([`BeforeImages`](crate::BeforeImages)). Else it changes nothing.
    pub fn will_change(&mut self, extent: Extent) {
        if self.store.storage.is_inherited() {
            return;
        }
        self.store.policy.will_change(extent);
    }

    /// Declares that bytes `range` of `region` are about to be changed. Their old values are saved, in
    /// `Restore` mode; declaring bytes twice is harmless and costs no log space. With the undo policy it may cost
    /// room in the undo log until the transaction ends.
    ///
    /// # Errors
    /// When the range leaves the region, or the transaction becomes too large for the log or the memory
    /// budget. Nothing is declared then, and the transaction goes on.
    ///
    /// # Panics
    /// If the region belongs to another store.
    #[inline(always)]
    pub fn set_range(&mut self, region: &'t Region, range: Range<usize>) -> Result<(), RangeError> {
        assert!(
            ptr::eq(&*region.store, self.store),
            "the region belongs to another store than the transaction"
        );
        let state = &*region.state;
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > state.len() {
            return Err(state.out_of_bounds(range.start, len));
        }
        self.declare(state, range.start, len)
    }

    /// Declares bytes by their addresses, and does nothing else with the transaction: for layers that keep what it
    /// must stay in step with.
    #[inline(always)]
    pub fn by_address(&mut self) -> ByAddress<'_, 't> {
        ByAddress(self)
    }

    /// Declares `len` bytes at an address, for programs that work with pointers.
    ///
    /// # Errors
    /// As [`Transaction::set_range`]; [`RangeError::NotMapped`] when no region is there.
    ///
    /// # Safety
    /// The region at the address must not be unmapped or dropped before this transaction ends.
    #[inline]
    pub unsafe fn set_range_at(&mut self, address: *const u8, len: usize) -> Result<(), RangeError> {
        let address = address.addr();
        // SAFETY: the caller's word.
        let region = unsafe { self.store.storage.table.at(address) };
        let region = region.ok_or(RangeError::NotMapped { address, len })?;
        let offset = address - region.base;
        if region.len().checked_sub(offset).is_none_or(|rest| len > rest) {
            return Err(region.out_of_bounds(offset, len));
        }
        self.declare(region, offset, len)
    }

    /// Declares and stores `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`Transaction::set_range`].
    #[inline]
    pub fn write(&mut self, region: &'t Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let end =
            offset.checked_add(bytes.len()).ok_or_else(|| region.state.out_of_bounds(offset, bytes.len()))?;
        self.set_range(region, offset..end)?;
        let _permit = self.store.storage.permit();
        // SAFETY: `set_range` found the range within the mapped region, which outlives 't.
        unsafe {
            let target = region.as_ptr().add(offset);
            span::copy(bytes.as_ptr(), target, bytes.len());
            simulated::stored(target, bytes.len());
        }
        Ok(())
    }

    /// Declares and stores a value at `offset`.
    ///
    /// # Errors
    /// As [`Transaction::set_range`].
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(
        &mut self,
        region: &'t Region,
        offset: usize,
        value: &T,
    ) -> Result<(), RangeError> {
        self.write(region, offset, value.as_bytes())
    }

    /// Declares `len` bytes at `offset` of the region, which are there.
    #[inline(always)]
    fn declare(&mut self, region: &RegionState, offset: usize, len: usize) -> Result<(), RangeError> {
        self.store.declare(&self.set, region, offset, len)
    }

    /// Whether its store is that of the process from which this one was forked.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.store.storage.own().is_err()
    }

    /// Whether it is one of that store.
    pub(crate) fn is_of(&self, store: &Shared) -> bool {
        ptr::eq(self.store, store)
    }

    /// Commits in a failure class. When this returns, the changes survive what the class names.
    ///
    /// # Panics
    /// With [`Options::verify`](crate::Options::verify), when recoverable memory was changed without being
    /// declared; when branches of it are open.
    ///
    /// # Errors
    /// When the store has failed. If it had failed before, the old values are restored; if the force
    /// failed, the changes stay visible and reopening tells whether they are durable.
    /// [`CommitError::Class`] when the store's memory cannot survive that: the transaction is aborted.
    #[inline(always)]
    pub fn commit(self, class: Class) -> Result<(), CommitError> {
        let store = self.store;
        let done = self.set.is_plain()
            && if (class as u8) < store.terms.clears {
                self.set.clear();
                true
            } else {
                class == Class::Process && store.policy.commit_short(&self.set.passed())
            };
        if !done {
            return self.commit_slowly(class);
        }
        self.into_set().release();
        Ok(())
    }

    #[inline(never)]
    fn commit_slowly(self, class: Class) -> Result<(), CommitError> {
        let store = self.store;
        store.storage.own()?;
        if class > Class::Process {
            store.storage.meter.lasting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        match self.make_lasting(class)? {
            Some(stamp) if class > Class::Process => Ok(store.policy.wait_durable(stamp, class)?),
            _ => Ok(()),
        }
    }

    /// Ends the transaction committed. What there is to wait for, if anything.
    fn make_lasting(self, class: Class) -> Result<Option<u64>, CommitError> {
        let store = self.store;
        self.set.check_branches();
        if !store.terms.forces || class == Class::Quorum {
            store.reaches(class)?;
        }
        if !planted("verified-too-late") {
            store.committing(&self.set)?;
        }
        let stamp = store.policy.commit(&self.set)?;
        store.end(self.into_set());
        store.storage.kept()?;
        Ok(stamp)
    }

    /// Commits like [`Transaction::commit`] with `Class::Process`, and asks for the force without waiting
    /// for it: the ticket tells when the commit survives a power cut. One thread can have thousands in
    /// flight.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_async(self) -> Result<Ticket, CommitError> {
        self.commit_ticket(Class::Power)
    }

    /// Commits in class `Process`, visibly at once; in `class` when the ticket was waited for, which is at once
    /// where that takes no force.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_ticket(self, class: Class) -> Result<Ticket, CommitError> {
        let store = self.store;
        store.storage.own()?;
        store.reaches(class)?;
        let stamp = self.make_lasting(class)?.filter(|_| class > Class::Process);
        if stamp.is_some() {
            store.policy.want_force();
        }
        Ok(Ticket { store: store.handle(), stamp, class })
    }

    /// Commits and hands back the old values that were replaced (RVM, section 8): what a layer needs to
    /// compensate for this transaction later.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    ///
    /// # Panics
    /// When it keeps no old values in memory: in `NoRestore` mode, with the shadow policy, and with
    /// [`Tracking::Scan`](crate::Tracking::Scan).
    pub fn commit_returning_old(self, class: Class) -> Result<Vec<OldValue>, CommitError> {
        self.store.storage.own()?;
        let keeps = self.restores() && self.set.keeps_old();
        assert!(keeps, "the transaction keeps no old values in memory that could be returned");
        let oldest = self.set.oldest().into_iter();
        let old = oldest.map(|((segment, offset), bytes)| OldValue { segment, offset, bytes }).collect();
        self.commit(class)?;
        Ok(old)
    }

    /// Undoes everything: the old values are back when this returns. In `NoRestore` mode of a store that lets only
    /// declared bytes reach its segments ([`Options::declared_only`](crate::Options::declared_only)) the memory
    /// stays as it is, and what it holds never becomes durable.
    ///
    /// # Panics
    /// In `NoRestore` mode of another store with the redo policy, which promised never to abort; when branches
    /// of it are open.
    pub fn abort(self) {
        assert!(self.can_abort(), "a no-restore transaction cannot be aborted: it kept no old values");
        drop(self);
    }

    /// The mode given to [`Store::begin`](crate::Store::begin).
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether [`Transaction::abort`] can be called.
    pub fn can_abort(&self) -> bool {
        self.set.keeps_old() || self.store.terms.declared_only || self.store.terms.restores
    }

    /// Makes the transaction durable but undecided, under an identifier that the program's coordinator
    /// knows: it is listed by [`Store::prepared`](crate::Store::prepared), across crashes too, until
    /// `commit_prepared` or `abort_prepared`. Its ranges stay declared meanwhile. With the undo policy that costs
    /// a copy of the new values, and no force: it is as durable as the store's memory
    /// ([`Store::reach`](crate::Store::reach)).
    ///
    /// # Errors
    /// When the identifier is too long or in use (the transaction is aborted), or the store has failed.
    ///
    /// # Panics
    /// In `NoRestore` mode: an undecided transaction may have to be undone.
    pub fn prepare(self, global_id: &[u8]) -> Result<(), CommitError> {
        assert!(self.restores(), "a no-restore transaction cannot be prepared: it kept no old values");
        self.store.storage.own()?;
        self.set.check_branches();
        let store = self.store;
        let undecided = store.policy.undecided();
        if store.terms.alone {
            return Err(CommitError::NeverUndecided);
        }
        store.committing(&self.set)?;
        undecided.check(global_id)?;
        let (set, mut this) = (self.set.passed(), Some(self));
        undecided.prepare(&set, global_id, &mut || this.take().expect("called once").into_set().suspend())
    }

    /// Marks a place that the transaction can be rolled back to. Any number of them, at any depth.
    ///
    /// # Errors
    /// In `NoRestore` mode with the redo policy, which keeps no old values.
    pub fn savepoint(&mut self) -> Result<Savepoint, SavepointError> {
        self.store.storage.own()?;
        if !self.set.keeps_old() || self.store.terms.alone {
            return Err(SavepointError::NoOldValues);
        }
        Ok(Savepoint { transaction: self.id(), serial: self.set.savepoint() })
    }

    /// Undoes what was changed since a savepoint, which stays; those that came after it are gone. Nothing of
    /// what is undone reaches the log.
    ///
    /// # Errors
    /// When the savepoint is of another transaction, or gone; while branches are open.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), SavepointError> {
        self.store.storage.own()?;
        let position = self.own(savepoint)?;
        if self.has_branches() {
            return Err(SavepointError::Branches);
        }
        self.store.roll_back(&self.set, savepoint.serial, position);
        Ok(())
    }

    /// Forgets a savepoint, and those that came after it: what was changed since is the transaction's as the
    /// rest is.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to`].
    pub fn release(&mut self, savepoint: &Savepoint) -> Result<(), SavepointError> {
        self.store.storage.own()?;
        self.own(savepoint)?;
        self.store.release(&self.set, savepoint.serial);
        Ok(())
    }

    /// Where a savepoint of this transaction is.
    fn own(&self, savepoint: &Savepoint) -> Result<Position, SavepointError> {
        let own = savepoint.transaction == self.id();
        own.then(|| self.set.find_savepoint(savepoint.serial)).flatten().ok_or(SavepointError::Gone)
    }

    /// Begins a branch: a part of this transaction with a run of its own, in which another thread can declare and
    /// store meanwhile. [`Transaction::adopt`] takes over what it has declared; dropped, it is undone. It is
    /// part of no commit before it was adopted.
    ///
    /// While a branch is open, bytes that it declares must not be declared in other branches, and this transaction
    /// declares none that the branch may: what was changed before the branch began, either may change.
    ///
    /// # Errors
    /// When old values are not kept, or the undo log could not be made longer.
    pub fn branch(&mut self) -> Result<Branch<'t>, BranchError> {
        self.store.storage.own()?;
        if !self.set.keeps_old() || self.store.terms.alone {
            return Err(BranchError::NoOldValues);
        }
        let tx = Transaction::new(self.store, Mode::Restore);
        self.store.begin_branch(&self.set, &tx.set)?;
        Ok(Branch(tx))
    }

    /// Whether branches of it are open, so that it cannot end.
    pub fn has_branches(&self) -> bool {
        self.set.has_branches()
    }

    /// Whether it is a branch of the other.
    pub fn is_branch_of(&self, other: &Transaction<'_>) -> bool {
        self.set.is_branch_of(&other.set)
    }

    /// Takes over what a branch of this transaction has declared and changed, as if that had been done here, now.
    ///
    /// # Errors
    /// When it would make the transaction too large: see [`Transaction::set_range`]. The branch is undone then.
    ///
    /// # Panics
    /// If it is a branch of another transaction, or has open branches itself.
    pub fn adopt(&mut self, branch: Branch<'t>) -> Result<(), RangeError> {
        self.store.storage.own()?;
        let branch = branch.0;
        branch.set.check_branches();
        self.store.adopt(&self.set, &branch.set)?;
        branch.set.counters().branches.add(1);
        self.store.end(branch.into_set());
        Ok(())
    }
}

/// A part of a transaction with a run of its own: [`Transaction::branch`]. It can declare, store, and have
/// savepoints and branches as its transaction can. Dropped, it is undone.
#[derive(Debug)]
pub struct Branch<'t>(Transaction<'t>);

impl<'t> std::ops::Deref for Branch<'t> {
    type Target = Transaction<'t>;

    fn deref(&self) -> &Transaction<'t> {
        &self.0
    }
}

impl std::ops::DerefMut for Branch<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// See [`Transaction::by_address`].
pub struct ByAddress<'a, 't>(&'a mut Transaction<'t>);

impl ByAddress<'_, '_> {
    /// As [`Transaction::will_change`].
    pub fn will_change(&mut self, extent: Extent) {
        self.0.will_change(extent);
    }

    /// Declares `len` bytes at an address.
    ///
    /// # Errors
    /// As [`Transaction::set_range_at`].
    ///
    /// # Safety
    /// As for [`Transaction::set_range_at`].
    #[inline(always)]
    pub unsafe fn set_range_at(&mut self, address: *const u8, len: usize) -> Result<(), RangeError> {
        // SAFETY: the caller's word.
        unsafe { self.0.set_range_at(address, len) }
    }
}

impl Drop for Transaction<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: what is dropped is not used again.
        self.store.undo_all(unsafe { ptr::read(&self.set) });
    }
}
