//! What a node does with what it finds when it runs again, before anything is called: it locks what is prepared, and
//! asks how that ends.

use crate::commit::word::{Participants, Protocol};
use crate::family::Family;
use crate::id::Tid;
use crate::node::core::{Core, Name};
use crate::node::state::from_global_id;
use crate::node::work::Work;
use caliburn_lock::Standard;
use caliburn_os::simulated::planted;
use std::collections::BTreeMap;
use std::ops::Range;

/// What recovery found.
pub(crate) struct Found {
    pub commits: BTreeMap<Tid, Participants>,
    pub slots: BTreeMap<Tid, Participants>,
}

impl Core<'_> {
    /// Before anything is called: locks what is prepared, and asks how it ends.
    pub fn recover(&self, found: Found) {
        let now = self.outside.now();
        let (mut steps, mut with) = (Vec::new(), BTreeMap::new());
        let judged = self.ledger.judgements();
        let mut state = self.state();
        state.host.client_comes(0);
        for prepared in self.store.prepared() {
            let mut owner = self.detector.owner();
            for (segment, range) in prepared.ranges.iter().filter(|_| !planted("prepared-not-locked")) {
                let locked = self.locks.try_lock(&mut owner, &segment.0, range.clone(), Standard::Exclusive);
                assert!(matches!(locked, Ok(true)), "two that are undecided had one lock");
            }
            for (segment, object) in self.objects_of(&prepared.global_id) {
                let locked = self.locks.try_lock(&mut owner, &segment, object, Standard::Exclusive);
                assert!(matches!(locked, Ok(true)), "two that are undecided had one object");
            }
            if !planted("names-not-kept") {
                // Which names it had is not known.
                let _ = self.names.try_lock(&mut owner, Name::Any, Standard::Shared);
            }
            let Some((tid, at, participants)) = from_global_id(&prepared.global_id) else {
                tracing::warn!("what another program has prepared stays locked until the node runs again");
                std::mem::forget(owner);
                continue;
            };
            let mut family = Family::new(Work::recovered(prepared.global_id, at, owner));
            family.close();
            state.owners.insert(family.top().owner.id().family, tid);
            state.families.insert(tid, family);
            if tid.protocol == Protocol::Slots {
                self.ledger.reserve(tid, participants.len());
            }
            match judged.iter().any(|judgement| judgement.tid == tid) {
                true => _ = with.insert(tid, participants),
                false => steps.extend(state.host.recover_prepared(tid, participants, now)),
            }
        }
        steps.extend(self.recover_judged(&mut state, &judged, with));
        for (tid, participants) in found.commits {
            steps.extend(state.host.recover_commit(tid, participants, now));
        }
        for (tid, participants) in found.slots {
            steps.extend(state.host.sweep(tid, participants, now));
        }
        let doing = state.begin_to_end(steps);
        drop(state);
        self.perform(doing);
    }

    /// Tells others what was committed here without blocking, if nobody has said since the last time that all know.
    pub fn tell_again(&self) {
        let mut state = self.state();
        let remembered = state.host.remembered().clone();
        let still = remembered.iter().filter(|(tid, _)| state.told_before.contains(tid));
        let still: Vec<(Tid, Participants)> = still.map(|(tid, all)| (*tid, all.clone())).collect();
        state.told_before = remembered.into_keys().collect();
        drop(state);
        for (tid, participants) in still {
            let doing = self.host_steps(|host, now| host.recover_commit(tid, participants, now));
            self.perform(doing);
        }
    }

    /// What an undecided transaction has allocated or freed: it had these locks too.
    fn objects_of(&self, id: &[u8]) -> Vec<(u32, Range<u64>)> {
        let mut all = Vec::new();
        for heap in self.heaps.iter().filter(|_| !planted("objects-not-locked")) {
            let its = heap.undecided().into_iter().filter(|undecided| undecided.global_id == id);
            let segment = heap.region().segment_id().0;
            all.extend(its.flat_map(|undecided| undecided.objects).map(|object| (segment, object)));
        }
        all
    }
}
