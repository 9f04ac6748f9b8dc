//! How a transaction ends at the node where it was begun: what has been done there votes first, since it commits in
//! the force that decides.

use crate::commit::word::{Outcome, Protocol, Stay, Vote};
use crate::family::Family;
use crate::host::Step;
use crate::id::{Path, Tid};
use crate::node::core::{Core, Hook};
use crate::node::state::Ending;
use crate::scope::Report;
use caliburn_nest::Timestamp;
use caliburn_os::simulated::unless;

/// Who tells the program how its transaction ends.
enum Told {
    ByHost,
    Aborted,
    /// It has ended before.
    Nothing,
}

impl Core<'_> {
    /// A call has ended; perhaps its family was waited for.
    pub fn call_ended(&self, tid: Tid, path: &Path) {
        let mut state = self.state();
        state.running.remove(&(tid, path.clone()));
        let over = state.families.get(&tid).is_some_and(|family| !family.runs())
            && !state.host.takes_part(&tid)
            && !state.works.contains(&tid);
        // Of an orphan nobody tells.
        let family = if over { state.families.remove(&tid) } else { None };
        if let Some(family) = &family {
            state.owners.remove(&family.top().owner.id().family);
        }
        let runs = state.families.get(&tid).is_some_and(Family::runs);
        let ending = if runs { None } else { state.ending.remove(&tid) };
        drop(state);
        if let Some(family) = family {
            self.end_family(tid, Outcome::Aborted, family, Hook::Now);
        }
        if let Some(Ending { stay, report }) = ending {
            self.end_now(tid, Some(Some(stay)), report);
        }
        let doing = self.vote(tid);
        self.perform(doing);
    }

    /// Ends a transaction that was begun here, as its program wants: [`Outside::tell`] says how it did.
    pub fn end(&self, tid: Tid, commits: bool, report: Report) {
        let own = self.outside.own;
        let own_stay = report.used.get(&own).copied().filter(|_| tid.protocol == Protocol::Blocking);
        if let Some(stay) = own_stay.filter(|_| commits) {
            let mut state = self.state();
            let is_it = state.host.is_open(&tid) && state.host.stay(&tid) == Some(stay);
            if let Some(family) = state.families.get_mut(&tid).filter(|_| is_it) {
                report.untold.get(&own).into_iter().for_each(|news| family.hear(news));
                family.close();
                // What nobody has heard of runs for nothing.
                _ = family.finish();
                if family.runs() {
                    // What was given up and runs is waited for, as at other nodes.
                    state.cancel(tid);
                    state.ending.insert(tid, Ending { stay, report });
                    return;
                }
            }
        }
        self.end_now(tid, commits.then_some(own_stay), report);
    }

    /// The same, when nothing runs here. `commits`: if it does, with its stay here, blocking. All that it locks is
    /// locked, and whoever gets that next will have heard of its timestamp: so it is behind what it depends on, and
    /// before what depends on it.
    fn end_now(&self, tid: Tid, commits: Option<Option<Stay>>, report: Report) {
        let at = match commits {
            None => Some(Timestamp::default()),
            Some(_) => self.timestamp(report.clock),
        };
        let commits = commits.filter(|_| at.is_some());
        let at = at.unwrap_or_default();
        let allowed = commits.flatten().is_none() || self.outside.hooks.allow(tid);
        let mut told = Told::ByHost;
        let doing = self.state_steps(|state, now| {
            if state.host.coordinates(&tid) {
                return Vec::new();
            }
            if !state.host.is_open(&tid) {
                told = Told::Nothing;
                return Vec::new();
            }
            if tid.client == 0 {
                state.own.remove(&tid.serial);
            }
            let vote = commits.flatten().map(|stay| state.own_vote(tid, stay).filter(|_| allowed));
            let Some(vote) = commits.and(Some(vote.flatten())).filter(|got| vote.is_none() || got.is_some())
            else {
                told = Told::Aborted;
                return state.host.abort(tid, &report.touched);
            };
            let mut steps = state.host.commit(tid, report, vote, at, now);
            if let Some(family) = vote.and_then(|_| state.families.get_mut(&tid)) {
                family.top_mut().at = at;
            }
            match vote {
                Some(Vote::Yes) => _ = state.works.insert(tid),
                // What has only been read here is out.
                Some(_) => steps.insert(0, Step::Finish(tid, Outcome::Committed)),
                None => {}
            }
            steps
        });
        self.perform(doing);
        match told {
            Told::ByHost => {}
            Told::Aborted => self.outside.tell(tid, Outcome::Aborted, at),
            Told::Nothing => self.outside.nobody_tells(tid),
        }
    }

    /// The timestamp of a transaction that commits now; none if there can't be one.
    fn timestamp(&self, heard: Timestamp) -> Option<Timestamp> {
        if unless("clock-kept-in-vain", !self.outside.time.is_used) {
            return Some(Timestamp::default());
        }
        let at = self.clock.observe(heard).and_then(|()| self.clock.now());
        let got = at.as_ref().ok().copied();
        self.unless_failed(at.map(drop)).and(got)
    }
}
