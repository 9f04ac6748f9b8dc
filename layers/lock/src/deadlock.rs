//! Deadlocks: transactions that wait for each other in a circle. They are looked for among those that wait, when
//! one begins to, and when those change who have a lock that others wait for.
//!
//! ```text
//!   a waits for b:   b holds the lock, or waits for it in front of a. Until that is over, this must end:
//!                    of another family, all of b's family; of a's own, the ancestor of b that is the sibling of an
//!                    ancestor of a, which takes the lock to the parent of both
//!   a circle:        all that must end waits for something in it, and so on, back to a
//!   the victim:      of each that must end, the lowest transaction above the one that has the lock and the one in
//!                    it that waits: if it aborts, the lock is free, and none of the circle waits in it. None that
//!                    only reads; the youngest, if families are tried again; children before tops; the youngest
//! ```
//!
//! Each wait goes for the end of all that is in its way, so that a circle of any of them does not end by itself.

use crate::error::{Deadlock, Doom, OwnerId, Waited};
use crate::node::{Node, Place, Table};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A wait for a lock.
pub(crate) struct Wait {
    pub node: Arc<Node>,
    table: Arc<dyn Table>,
    place: Place,
    since: Instant,
}

/// A transaction that waits for a lock, and who holds it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldUp {
    /// The transaction.
    pub owner: OwnerId,
    /// The lock, and the mode that it asked for.
    pub wanted: String,
    /// How long it has waited.
    pub waited: Duration,
    /// Who is in its way, each with how.
    pub by: Vec<(OwnerId, String)>,
}

/// Who waits: of all tables that share it.
#[derive(Default)]
pub(crate) struct Waits {
    all: Mutex<Vec<Wait>>,
    /// Deadlocks that were found.
    pub found: std::sync::atomic::AtomicU64,
    /// Nanoseconds that one may hold another up; 0: as long as it takes.
    pub limit: std::sync::atomic::AtomicU64,
    /// Those that were to abort by that.
    pub overlong: std::sync::atomic::AtomicU64,
}

/// A step of a circle: who waits, who is in the way and how, and what of that must end.
struct Step<'w> {
    wait: &'w Wait,
    by: Arc<Node>,
    how: String,
}

impl Waits {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A transaction begins to wait. If that closes a circle, one of the circle is to abort.
    pub fn begin(&self, node: &Arc<Node>, table: Arc<dyn Table>, place: Place) {
        let mut all = self.lock();
        all.push(Wait { node: node.clone(), table, place, since: Instant::now() });
        if planted("deadlocks-not-found") {
            return;
        }
        self.break_circles(&all, all.last().expect("it has just begun"));
    }

    /// Who has a lock for which others wait has changed: any of those may be in a circle.
    #[cold]
    pub fn look_again(&self) {
        let all = self.lock();
        all.iter().for_each(|wait| self.break_circles(&all, wait));
    }

    /// A wait may be in several circles: each victim is out of the next one.
    fn break_circles(&self, all: &[Wait], own: &Wait) {
        while own.node.doomed().is_none() && self.break_circle(all, own) {}
    }

    /// Looks for a circle with a wait in it, and chooses its victim. Whether there was one.
    fn break_circle<'w>(&self, all: &'w [Wait], own: &'w Wait) -> bool {
        let (mut seen, mut steps) = (Vec::new(), Vec::new());
        if !circle(all, own, own, &mut seen, &mut steps) {
            return false;
        }
        let victim = victim(&steps);
        let waits = steps.iter().map(|Step { wait, by, how }| Waited {
            owner: wait.node.id(),
            wanted: wait.table.wanted(wait.place, &wait.node),
            by: by.id(),
            how: how.clone(),
        });
        let deadlock = Arc::new(Deadlock { victim: victim.id(), waits: waits.collect() });
        self.found.fetch_add(1, Relaxed);
        victim.doom(Doom::Deadlock(deadlock));
        self.wake_below(all, victim);
        true
    }

    /// Wakes those that wait in what is to abort.
    pub fn wake_below(&self, all: &[Wait], victim: &Node) {
        for wait in all.iter().filter(|wait| victim.waits_for_the_end_of(&wait.node)) {
            wait.table.wake(wait.place, &wait.node);
        }
    }

    /// It does not wait any more.
    pub fn end(&self, node: &Arc<Node>) {
        self.lock().retain(|wait| !Arc::ptr_eq(&wait.node, node));
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Who waits, and for whom.
    pub fn held_up(&self) -> Vec<HeldUp> {
        let held_up = |Wait { node, table, place, since }: &Wait| HeldUp {
            owner: node.id(),
            wanted: table.wanted(*place, node),
            waited: since.elapsed(),
            by: table.blockers(*place, node).into_iter().map(|(by, how)| (by.id(), how)).collect(),
        };
        self.lock().iter().map(held_up).collect()
    }
}

/// Looks for a circle from a wait back to the first; its steps.
fn circle<'w>(
    all: &'w [Wait],
    first: &Wait,
    wait: &'w Wait,
    seen: &mut Vec<*const Wait>,
    steps: &mut Vec<Step<'w>>,
) -> bool {
    if seen.contains(&std::ptr::from_ref(wait)) {
        return false;
    }
    seen.push(wait);
    for (by, how) in wait.table.blockers(wait.place, &wait.node) {
        // Who is to abort lets go of what it holds.
        if unless("the-doomed-in-the-way", by.doomed().is_some()) {
            continue;
        }
        let end = wait.node.waits_for(&by);
        steps.push(Step { wait, by: by.clone(), how });
        if end.waits_for_the_end_of(&first.node) {
            return true;
        }
        // Who is to abort does not wait much longer.
        let within = all.iter().filter(|wait| end.waits_for_the_end_of(&wait.node));
        for next in within.filter(|wait| wait.node.doomed().is_none()) {
            if circle(all, first, next, seen, steps) {
                return true;
            }
        }
        steps.pop();
    }
    false
}

/// Who is to abort so that a circle is broken.
fn victim<'s>(steps: &'s [Step<'_>]) -> &'s Node {
    let after = steps.iter().skip(1).chain(&steps[..1]);
    let candidates = steps.iter().zip(after).map(|(step, next)| lowest(&step.by, &next.wait.node));
    // Those that only read share their locks: in each circle there is another.
    let spared = |node: &Node| unless("readers-chosen", node.family().is_spared);
    let order = |node: &&Node| {
        let family = node.family();
        // Or its children would be chosen for ever, however old it is.
        let tried = unless("age-of-the-child", family.is_again);
        let age = if tried { family.serial } else { u64::MAX };
        (!spared(node), age, node.depth > 0, node.serial)
    };
    match planted("victim-the-oldest") {
        true => candidates.min_by_key(order),
        false => candidates.max_by_key(order),
    }
    .expect("a circle has a step")
}

/// The lowest transaction above the one that is in the way, and the one that waits in what must end.
fn lowest<'n>(by: &'n Node, mut waits: &Node) -> &'n Node {
    loop {
        if let Some(node) = by.above_both(waits) {
            return node;
        }
        match waits.outer() {
            Some(outer) => waits = outer,
            None => return by,
        }
    }
}
