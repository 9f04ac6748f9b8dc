//! How a client's node ends what it has begun.

use crate::world::World;
use caliburn_dist::commit::word::{Outcome, Protocol, Vote};
use caliburn_dist::id::{News, Tid};
use caliburn_dist::scope::{Scope, Untold};
use caliburn_nest::Timestamp;

impl World {
    /// Commits what a client has begun: its own node's part first.
    pub fn commit(&mut self, tid: Tid, scope: &Scope, untold: Untold) -> Option<Timestamp> {
        let node = tid.coordinator;
        let report = scope.clone().into_report(untold);
        let server = self.servers.get_mut(&node).expect("it is one");
        let mut own = None;
        if tid.protocol == Protocol::Blocking
            && let Some(stay) = report.used.get(&node).copied()
        {
            if server.host.as_ref().and_then(|host| host.stay(&tid)) == Some(stay)
                && let Some(family) = server.families.get_mut(&tid)
            {
                family.hear(report.untold.get(&node).unwrap_or(&News::new()));
                family.close();
                if let Ok(top) = family.finish() {
                    own = Some(if top.changes().is_empty() { Vote::ReadOnly } else { Vote::Yes });
                }
            }
            match own {
                None => return None,
                Some(Vote::ReadOnly) => self.finish(node, tid, Outcome::Committed),
                Some(_) => {
                    let server = self.servers.get_mut(&node).expect("it is one");
                    server.works.insert(tid);
                }
            }
        }
        let at = self.timestamp(node, report.clock);
        self.with_host(node, |host, now| host.commit(tid, report, own, at, now));
        Some(at)
    }

    pub fn abort(&mut self, tid: Tid, scope: &Scope) {
        let touched = scope.touched().clone();
        self.with_host(tid.coordinator, |host, _| host.abort(tid, &touched));
    }
}
