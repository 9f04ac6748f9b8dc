//! A limit for those who hold others up (Camelot, section 4.3: long transactions): off unless set.
//!
//! ```text
//!   a waits:   after half the limit     who ran and was in its way then and at the beginning is warned about
//!              after the limit          who still is so is to abort, with all below it, and a goes on waiting
//!                                       for its end; its parent goes on
//! ```
//!
//! Who waits itself is not in the way by its own doing: whoever holds it up is looked at by its own wait.

use crate::deadlock::{Wait, Waits};
use crate::error::{Doom, Overlong};
use crate::node::{Node, Place, Table};
use caliburn_os::simulated::{instead, planted};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What one that waits has seen in its way.
pub(crate) struct InTheWay {
    limit: Duration,
    since: Instant,
    nodes: Vec<Arc<Node>>,
    warned: bool,
}

impl InTheWay {
    /// Who is in the way of one that begins to wait, if there is a limit.
    pub fn of(waits: &Waits, table: &dyn Table, place: Place, waiting: &Node) -> Option<InTheWay> {
        let limit = Duration::from_nanos(Some(waits.limit.load(Relaxed)).filter(|limit| *limit > 0)?);
        let all = waits.lock();
        let nodes = table.blockers(place, waiting).into_iter().map(|(node, _)| node);
        let nodes = nodes.filter(|node| runs(&all, node)).collect();
        Some(InTheWay { limit, since: Instant::now(), nodes, warned: false })
    }

    /// Until it is to be looked again.
    pub fn left(&self) -> Duration {
        let next = if self.warned { self.limit } else { self.limit / 2 };
        next.saturating_sub(self.since.elapsed())
    }

    /// Looks who was in the way all the time.
    pub fn look(&mut self, waits: &Waits, table: &dyn Table, place: Place, waiting: &Node) {
        if self.left() > Duration::ZERO {
            return;
        }
        let is_over = self.warned && self.since.elapsed() >= self.limit;
        let all = waits.lock();
        let now = table.blockers(place, waiting);
        for (by, how) in &now {
            let always = self.nodes.iter().any(|node| Arc::ptr_eq(node, by));
            if !always || !runs(&all, by) || by.doomed().is_some() {
                continue;
            }
            let wanted = table.wanted(place, waiting);
            let (owner, waiter, limit) = (by.id(), waiting.id(), self.limit);
            let spared = by.family().is_spared;
            if !is_over || spared || planted("overlong-not-told") {
                tracing::warn!(%owner, %waiter, wanted, how, waited = ?self.since.elapsed(), "a transaction holds another up");
                continue;
            }
            let overlong = Overlong { owner, limit, waiter, wanted, how: how.clone() };
            tracing::warn!(%owner, %waiter, wanted = overlong.wanted, ?limit, "a transaction is to abort: it held another up");
            // Its parent goes on: when the holder has aborted, the lock is free.
            let victim = instead("overlong-dooms-the-family", &**by, waiting.waits_for(by));
            victim.doom(Doom::Overlong(Arc::new(overlong)));
            waits.overlong.fetch_add(1, Relaxed);
            waits.wake_below(&all, victim);
        }
        if is_over {
            let nodes = now.into_iter().map(|(node, _)| node).filter(|node| runs(&all, node)).collect();
            *self = InTheWay { since: Instant::now(), nodes, warned: false, ..*self };
        } else {
            self.warned = true;
        }
    }
}

/// Whether none of a family waits.
fn runs(all: &[Wait], node: &Node) -> bool {
    !all.iter().any(|wait| std::ptr::eq(wait.node.family(), node.family()))
}
