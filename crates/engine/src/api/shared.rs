//! What the handles of an open store share: storage and write sets, and the policy and the ways of tracking
//! that work on them. What concerns one of these alone is asked of it; what concerns several is put together
//! here and in [`ending`](super::ending).

use crate::api::options::Options;
use crate::policy::Recovery;
use crate::policy::kind::{Opened, Policy};
use crate::storage::class::Class;
use crate::storage::error::{CommitError, OpenError, RangeError, SegmentError};
use crate::storage::region::RegionState;
use crate::storage::report::OpenReport;
use crate::storage::segment::SegmentState;
use crate::storage::tuning::Tuning;
use crate::storage::{Storage, gate};
use crate::tracking::{Tracked, Tracking};
use crate::write_set::{Sets, Terms, WriteSet};
use caliburn_os::event::Event;
use caliburn_os::lineage::Child;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::span;
use caliburn_os::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// An open store, shared by its handles, regions and background threads.
pub(crate) struct Shared {
    me: Weak<Shared>,
    pub storage: Arc<Storage>,
    pub sets: Arc<Sets>,
    pub policy: Box<dyn Recovery>,
    pub tracked: Tracked,
    /// What the policy asks of write sets.
    pub terms: Terms,
    /// The policy's name.
    pub kind: Policy,
    /// Signalled when the store is closed, for who tells others of it.
    pub told: Event,
    /// Why only a part of it is shown.
    pub damage: Option<OpenError>,
    /// Transactions that are open when a child is forked know it there.
    _child: Child,
    pub report: OpenReport,
}

impl Shared {
    pub fn new(options: &Options, kind: Policy, opened: Opened) -> Arc<Shared> {
        let Opened { storage, sets, policy, damage, report } = opened;
        let wanted = options.wanted();
        let tracked = Tracked::begin(&wanted, &storage, &sets);
        let mut terms = policy.terms();
        terms.alone |= options.wanted().tracking != Tracking::Declared;
        if storage.images {
            // Images are the old values.
            (terms.keeps_old, terms.restores) = ([false; 2], true);
        }
        if tracked.catches() && !terms.restores {
            // Whole pages are kept: what was stored to one and not undone would become part of the next commit.
            terms.keeps_old = [true; 2];
        }
        if terms.alone {
            storage.gate.fetch_or(gate::ALONE, Ordering::SeqCst);
        }
        let children = sets.clone();
        let child = Child::will(move || children.slots.refuse());
        let shared = Arc::new_cyclic(|me| {
            let me = me.clone();
            Shared {
                me,
                storage,
                sets,
                policy,
                tracked,
                terms,
                kind,
                told: Event::default(),
                damage,
                report,
                _child: child,
            }
        });
        shared.policy.tuned();
        shared
    }

    /// The life of the thread that serves who stores where stores are caught.
    pub fn catch(&self) {
        self.tracked.all(|way| {
            way.catch(&|set, region, offset, len| {
                let declared = || self.policy.save(set, region, offset, len);
                let caught = || self.policy.caught(region, offset..offset + len);
                self.saving(set, || caught().unwrap_or_else(declared))
            });
        });
    }

    /// Saves what bytes hold that a transaction is about to change. What it changes first waits while others want
    /// that nothing is changed.
    pub fn save(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        self.saving(set, || self.policy.save(set, region, offset, len))
    }

    fn saving(
        &self,
        set: &WriteSet<'_>,
        save: impl FnOnce() -> Result<(), RangeError>,
    ) -> Result<(), RangeError> {
        let first = set.is_untouched();
        save()?;
        if unless("caught-stores-do-not-stand-by", first) {
            self.sets.reserve.stand_by(set);
        }
        Ok(())
    }

    /// The transaction that was open is so no more: where one at a time is, the next one may begin.
    pub fn give_turn(&self) {
        if self.terms.alone {
            self.sets.turn.give();
        }
    }

    /// For handles that outlive the call: whoever has a reference keeps it alive meanwhile.
    pub fn handle(&self) -> Arc<Shared> {
        self.me.upgrade().expect("a reference is alive")
    }

    pub fn set_tuning(&self, tuning: Tuning) {
        self.storage.set_tuning(tuning);
        self.policy.tuned();
        self.storage.ahead.look_again();
        // Those who wait for an interval or a limit that was changed.
        self.policy.wake();
    }

    /// Refuses what would change a store that is only read.
    pub fn takes_changes(&self) -> Result<(), CommitError> {
        self.storage.own()?;
        match self.storage.gate.load(Ordering::SeqCst) & gate::READ_ONLY {
            0 => Ok(()),
            _ => Err(CommitError::ReadOnly),
        }
    }

    /// The most that a commit can survive.
    pub fn reach(&self) -> Class {
        if self.storage.replicated { Class::Quorum } else { self.storage.reach }
    }

    /// Whether a commit can survive what it is to survive.
    #[inline]
    pub fn reaches(&self, wanted: Class) -> Result<(), CommitError> {
        let reach = self.reach();
        if wanted > reach { Err(CommitError::Class { wanted, reach }) } else { Ok(()) }
    }

    pub fn grow_segment(&self, state: &SegmentState, len: u64) -> Result<(), SegmentError> {
        self.storage.writable()?;
        if len <= state.len() {
            return Ok(());
        }
        self.policy.growing(&mut || self.storage.grow_file(state, len))
    }

    /// Declares bytes, which are there.
    #[inline(always)]
    pub fn declare(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        if len == 0 || set.declare_again(region, offset, len) {
            return Ok(());
        }
        let done = set.declare(region, offset, len);
        if planted("undo-committed-early") && self.terms.clears > 0 {
            set.clear();
        }
        // Not before: the truncator reserves pages, then looks at what is declared.
        if done && self.sets.reserve.watch().load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.declare_cold(&set.passed(), region, offset, len)
    }

    /// Declares a range where more is to be done than to save it.
    #[cold]
    #[inline(never)]
    pub fn declare_cold(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        self.storage.own()?;
        // Its old value is copied below, and in persistent memory never in the cache.
        span::soon(region.at(offset));
        let reserve = &self.sets.reserve;
        if set.has_declared(region, offset, len) {
            reserve.step_aside(set, region, offset, len, self.storage.page_size);
            if set.has_first_range(len) {
                reserve.stand_by(set);
            }
            return Ok(());
        }
        self.tracked.each(|way| way.declaring(set, region, offset, len))?;
        self.tracked.declare(set, region, (offset, len), &|set, region, offset, len| {
            self.save(set, region, offset, len)
        })
    }
}
