//! Who holds locks: the transactions of families, as far as locks know them.

use crate::error::{Doom, OwnerId};
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// A transaction.
pub(crate) struct Node {
    /// Later ones are younger.
    pub serial: u64,
    /// Of a top: whether its family only reads, and others are to abort in its stead.
    pub is_spared: bool,
    /// Of a top: whether it was tried before.
    pub is_again: bool,
    pub depth: u32,
    /// Who takes over its locks when it commits; none of a top.
    pub parent: Option<Arc<Node>>,
    /// The top of its family, if that is another.
    top: Option<Arc<Node>>,
    /// Of a top: the transaction within which it was begun, and which waits for it.
    outer: Option<Arc<Node>>,
    /// Of a top: whether any of the family ever was to abort.
    doomed: AtomicBool,
    /// Why it, with all below it, must abort.
    doom: OnceLock<Doom>,
    /// What its children had when they committed.
    pub inherited: Mutex<Holding>,
}

/// Locks that are held, by their tables.
#[derive(Default)]
pub(crate) struct Holding(SmallVec<[OfTable; 1]>);

/// Those of one table.
struct OfTable {
    table: Arc<dyn Table>,
    places: SmallVec<[Place; 4]>,
}

impl Holding {
    #[inline]
    pub fn push<T: Table + 'static>(&mut self, table: &Arc<T>, place: Place) {
        match self.0.iter_mut().find(|of| is_same(&of.table, &**table)) {
            Some(of) => of.places.push(place),
            None => self.0.push(OfTable { table: table.clone(), places: SmallVec::from_slice(&[place]) }),
        }
    }

    /// Takes one out. Whether it was there.
    pub fn remove(&mut self, table: &impl Table, place: Place) -> bool {
        let of = self.0.iter_mut().find(|of| is_same(&of.table, table));
        of.is_some_and(|of| {
            let at = of.places.iter().position(|other| *other == place);
            at.map(|at| of.places.swap_remove(at)).is_some()
        })
    }

    pub fn has(&self, table: &impl Table, place: Place) -> bool {
        self.0.iter().any(|of| is_same(&of.table, table) && of.places.contains(&place))
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|of| of.places.len()).sum()
    }

    /// Gives all up.
    #[inline]
    pub fn release(&mut self, node: &Node) {
        for OfTable { table, places } in self.0.drain(..) {
            places.into_iter().for_each(|place| table.release(place, node));
        }
    }

    /// Leaves all to the parent. Where a lock is new to it, it is in `to`.
    pub fn inherit(&mut self, child: &Arc<Node>, parent: &Arc<Node>, to: &Mutex<Holding>) {
        for OfTable { table, mut places } in self.0.drain(..) {
            places.retain(|place| table.inherit(*place, child, parent));
            let mut to = to.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match to.0.iter_mut().find(|of| Arc::ptr_eq(&of.table, &table)) {
                Some(of) => of.places.extend(places),
                None => to.0.push(OfTable { table, places }),
            }
        }
    }
}

#[inline]
fn is_same(table: &Arc<dyn Table>, other: &impl Table) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(table), other)
}

/// Where a lock is in its table, while somebody holds it or waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub shard: u32,
    pub slot: u32,
}

/// A table of locks, whatever their names and modes are.
pub(crate) trait Table: Send + Sync {
    /// What the child holds there is its parent's. Whether the parent did not hold the lock before.
    fn inherit(&self, place: Place, child: &Arc<Node>, parent: &Arc<Node>) -> bool;
    /// What it holds there is nobody's.
    fn release(&self, place: Place, node: &Node);
    /// Whom the one that waits there waits for, each with how.
    fn blockers(&self, place: Place, waiting: &Node) -> Vec<(Arc<Node>, String)>;
    /// The lock, and what the one that waits wants of it.
    fn wanted(&self, place: Place, waiting: &Node) -> String;
    /// Wakes the one that waits there.
    fn wake(&self, place: Place, waiting: &Node);
}

impl Node {
    pub fn top(outer: Option<Arc<Node>>) -> Arc<Node> {
        Arc::new(Node::new(0, None, None, outer))
    }

    /// A top that is not to be the victim of a deadlock.
    pub fn reader() -> Arc<Node> {
        Arc::new(Node { is_spared: true, ..Node::new(0, None, None, None) })
    }

    /// A top in the place of this one.
    pub fn again(&self) -> Arc<Node> {
        let Node { serial, is_spared, .. } = *self;
        Arc::new(Node { serial, is_spared, is_again: true, ..Node::new(0, None, None, self.outer.clone()) })
    }

    pub fn child(self: &Arc<Node>) -> Arc<Node> {
        let top = self.top.as_ref().unwrap_or(self);
        Arc::new(Node::new(self.depth + 1, Some(self.clone()), Some(top.clone()), None))
    }

    fn new(depth: u32, parent: Option<Arc<Node>>, top: Option<Arc<Node>>, outer: Option<Arc<Node>>) -> Node {
        static SERIALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Node {
            serial: SERIALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            is_spared: false,
            is_again: false,
            depth,
            parent,
            top,
            outer,
            doomed: AtomicBool::new(false),
            doom: OnceLock::new(),
            inherited: Mutex::new(Holding::default()),
        }
    }

    pub fn id(&self) -> OwnerId {
        OwnerId { family: self.family().serial, serial: self.serial }
    }

    /// The top of its family.
    #[inline]
    pub fn family(&self) -> &Node {
        self.top.as_deref().unwrap_or(self)
    }

    /// The transaction within which its family was begun.
    pub fn outer(&self) -> Option<&Node> {
        self.family().outer.as_deref()
    }

    /// It must abort, with all below it.
    pub fn doom(&self, doom: Doom) {
        _ = self.doom.set(doom);
        self.family().doomed.store(true, Ordering::Release);
    }

    /// Itself and its ancestors, from below.
    pub fn line(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(self), |node| node.parent.as_deref())
    }

    /// Whether it is the other, or an ancestor of it.
    #[inline]
    pub fn is_above(&self, other: &Node) -> bool {
        std::ptr::eq(self, other)
            || self.depth < other.depth
                && std::ptr::eq(self.family(), other.family())
                && other
                    .line()
                    .find(|node| node.depth == self.depth)
                    .is_some_and(|node| std::ptr::eq(self, node))
    }

    /// Whether it cannot end before the other has.
    pub fn waits_for_the_end_of(&self, other: &Node) -> bool {
        self.is_above(other) || other.outer().is_some_and(|outer| self.waits_for_the_end_of(outer))
    }

    /// What must end before it is not held up any more by another that is not above it.
    pub fn waits_for<'n>(&self, by: &'n Node) -> &'n Node {
        let of_one = std::ptr::eq(self.family(), by.family());
        let below = by.line().take_while(|node| !of_one || !node.is_above(self));
        below.last().unwrap_or(by)
    }

    /// The lowest that is above both, of one family.
    pub fn above_both<'n>(&'n self, other: &Node) -> Option<&'n Node> {
        self.line().find(|node| node.is_above(other))
    }

    /// Why it must abort, if it must.
    #[inline]
    pub fn doomed(&self) -> Option<&Doom> {
        if self.family().doomed.load(Ordering::Acquire)
            && let Some(doom) = self.line().find_map(|node| node.doom.get())
        {
            return Some(doom);
        }
        // The one within which its family was begun waits for it.
        self.outer().and_then(Node::doomed)
    }
}
