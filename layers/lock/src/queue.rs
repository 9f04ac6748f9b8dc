//! One lock: who holds it, and who waits for it, in their order.
//!
//! ```text
//!   asked for:   may it hold it?      holders in modes that do not go with it are its ancestors
//!                must it line up?     somebody waits already in such a mode, unless that one waits for the end of
//!                                     something that it is part of: it would wait for itself
//!   given up, inherited, withdrawn:   those that wait are looked at again, the first in line first
//! ```

use crate::mode::Mode;
use crate::node::Node;
use caliburn_os::event::Event;
use caliburn_os::simulated::{even_if, planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A transaction that holds the lock.
pub(crate) struct Hold<M> {
    pub node: Arc<Node>,
    pub mode: M,
}

/// A transaction that waits for it.
pub(crate) struct Waiter<M> {
    pub node: Arc<Node>,
    /// What it is to hold, with what it holds already.
    pub mode: M,
    pub granted: AtomicBool,
    /// Something has happened to it.
    pub event: Event,
}

/// What is known of a lock.
pub(crate) struct Queue<M> {
    pub holds: SmallVec<[Hold<M>; 1]>,
    pub waiters: VecDeque<Arc<Waiter<M>>>,
}

impl<M> Default for Queue<M> {
    fn default() -> Queue<M> {
        Queue { holds: SmallVec::new(), waiters: VecDeque::new() }
    }
}

impl<M: Mode> Queue<M> {
    pub fn is_unused(&self) -> bool {
        self.holds.is_empty() && self.waiters.is_empty()
    }

    pub fn hold_of(&mut self, node: &Node) -> Option<&mut Hold<M>> {
        self.holds.iter_mut().find(|hold| std::ptr::eq(&*hold.node, node))
    }

    /// Those that keep a transaction from holding it in a mode: Moss's rule.
    pub fn against<'q>(&'q self, node: &'q Node, mode: M) -> impl Iterator<Item = &'q Hold<M>> {
        self.holds.iter().filter(move |hold| {
            !hold.mode.goes_with(mode) && !even_if("siblings-share-locks", hold.node.is_above(node))
        })
    }

    /// Those among the first so many waiters behind whom it must line up.
    pub fn ahead<'q>(
        &'q self,
        first: usize,
        node: &'q Node,
        mode: M,
    ) -> impl Iterator<Item = &'q Arc<Waiter<M>>> {
        let ahead = self.waiters.iter().take(first).filter(move |waiter| !waiter.mode.goes_with(mode));
        ahead.filter(move |waiter| unless("writers-overtaken", !self.waits_anyway(waiter, node)))
    }

    /// Whether one that waits does so for the end of something that a transaction is part of.
    fn waits_anyway(&self, waiter: &Waiter<M>, node: &Node) -> bool {
        let mut against = self.against(&waiter.node, waiter.mode);
        against.any(|hold| waiter.node.waits_for(&hold.node).waits_for_the_end_of(node))
    }

    /// Whether a transaction may hold it in a mode now, with so many that wait in front of it.
    pub fn admits(&self, first: usize, node: &Node, mode: M) -> bool {
        self.against(node, mode).next().is_none()
            && (first == 0 || self.ahead(first, node, mode).next().is_none())
    }

    /// A transaction holds it in a mode, besides what it held before. Whether it held nothing.
    pub fn hold(&mut self, node: &Arc<Node>, mode: M) -> bool {
        match self.hold_of(node) {
            Some(hold) => {
                hold.mode = hold.mode.and(mode);
                false
            }
            None => {
                self.holds.push(Hold { node: node.clone(), mode });
                true
            }
        }
    }

    /// Gives the lock to those that may have it now. Whether others are left: whom they wait for may be others
    /// than before, since somebody was given the lock, or since one that they could pass does not wait for them
    /// any more.
    fn serve(&mut self) -> bool {
        if planted("waiters-not-served") {
            return false;
        }
        let mut at = 0;
        while at < self.waiters.len() {
            let waiter = self.waiters[at].clone();
            if self.admits(at, &waiter.node, waiter.mode) {
                self.waiters.remove(at);
                self.hold(&waiter.node, waiter.mode);
                waiter.granted.store(true, Ordering::Release);
                waiter.event.signal();
            } else {
                at += 1;
            }
        }
        !self.waiters.is_empty()
    }

    /// What the child holds is its parent's. Whether the parent did not hold it before; and as for `serve`.
    pub fn inherit(&mut self, child: &Node, parent: &Arc<Node>) -> (bool, bool) {
        let at = self.holds.iter().position(|hold| std::ptr::eq(&*hold.node, child));
        let Some(at) = at else { return (false, false) };
        let mode = self.holds[at].mode;
        let new = match self.hold_of(parent) {
            Some(hold) => {
                hold.mode = hold.mode.and(mode);
                self.holds.swap_remove(at);
                false
            }
            None => {
                self.holds[at].node = parent.clone();
                true
            }
        };
        (new, self.serve())
    }

    /// What it holds is nobody's. As for `serve`.
    pub fn release(&mut self, node: &Node) -> bool {
        match &self.holds[..] {
            [one] if std::ptr::eq(&*one.node, node) => drop(self.holds.pop()),
            _ => self.holds.retain(|hold| !std::ptr::eq(&*hold.node, node)),
        }
        !self.waiters.is_empty() && self.serve()
    }

    /// It does not wait any more. Whether it had been given the lock; and as for `serve`.
    pub fn withdraw(&mut self, waiter: &Arc<Waiter<M>>) -> (bool, bool) {
        if waiter.granted.load(Ordering::Acquire) {
            return (true, false);
        }
        self.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        (false, self.serve())
    }
}
