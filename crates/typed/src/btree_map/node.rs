//! Nodes of a tree: up to eleven entries in order, and in an inner node a child in front of each and behind the
//! last.
//!
//! Every step declares all that it changes before it changes anything, and leaves a tree: whoever catches a
//! transaction that found no room in between sees one.

use crate::link::Link;
use crate::value::recoverable::{Recoverable, relocate, turn};
use crate::value::tx::Tx;
use caliburn_os::simulated::{planted, unless};
use std::mem::{MaybeUninit, offset_of};

/// Most entries of a node, and fewest but for the root.
pub(crate) const MOST: usize = 11;
pub(super) const FEWEST: usize = MOST / 2;

#[repr(C)]
pub struct Leaf<K, V> {
    len: u64,
    keys: [MaybeUninit<K>; MOST],
    values: [MaybeUninit<V>; MOST],
}

#[repr(C)]
pub struct Inner<K, V> {
    leaf: Leaf<K, V>,
    children: [Link<Leaf<K, V>>; MOST + 1],
}

/// A node that is there, and how far above the leaves it is.
pub struct Node<K, V> {
    at: *mut Leaf<K, V>,
    pub height: u32,
}

impl<K, V> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Node<K, V> {}

impl<K, V> PartialEq for Node<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<K, V> Node<K, V> {
    /// The node at `at`, which is one of that height.
    pub fn new(at: *mut Leaf<K, V>, height: u32) -> Node<K, V> {
        Node { at, height }
    }

    #[inline(always)]
    pub fn as_ptr(self) -> *mut Leaf<K, V> {
        self.at
    }

    #[inline(always)]
    pub fn len(self) -> usize {
        // SAFETY: a node is there.
        unsafe { (*self.at).len as usize }
    }

    #[inline(always)]
    pub fn key(self, index: usize) -> *mut K {
        // SAFETY: within the node.
        unsafe { (&raw mut (*self.at).keys).cast::<K>().add(index) }
    }

    #[inline(always)]
    pub fn value(self, index: usize) -> *mut V {
        // SAFETY: within the node.
        unsafe { (&raw mut (*self.at).values).cast::<V>().add(index) }
    }

    #[inline(always)]
    fn link(self, index: usize) -> *mut Link<Leaf<K, V>> {
        debug_assert!(self.height > 0 && index <= MOST);
        // SAFETY: an inner node.
        unsafe { self.at.byte_add(offset_of!(Inner<K, V>, children)).cast::<Link<Leaf<K, V>>>().add(index) }
    }

    /// A child of an inner node.
    #[inline(always)]
    pub fn child(self, index: usize) -> Node<K, V> {
        // SAFETY: it has so many.
        Node { at: unsafe { (*self.link(index)).get() }, height: self.height - 1 }
    }

    /// The first place whose key is not before the one that is looked for, and whether it is that key.
    #[inline(always)]
    pub fn search(self, mut compare: impl FnMut(&K) -> std::cmp::Ordering) -> (usize, bool) {
        for index in 0..self.len() {
            // SAFETY: there are so many keys.
            match compare(unsafe { &*self.key(index) }) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return (index, true),
                std::cmp::Ordering::Greater => return (index, false),
            }
        }
        (self.len(), false)
    }
}

impl<K: Recoverable, V: Recoverable> Node<K, V> {
    /// A new node without entries.
    pub fn make(tx: Tx<'_>, height: u32) -> Node<K, V> {
        let at = match height {
            0 => tx.allocate::<Leaf<K, V>>(1),
            _ => tx.allocate::<Inner<K, V>>(1).cast(),
        };
        let node = Node { at, height };
        node.set_len(tx, 0);
        node
    }

    /// Declares the counter, and sets it.
    pub fn set_len(self, tx: Tx<'_>, len: usize) {
        self.declare_len(tx);
        self.put_len(len);
    }

    fn declare_len(self, tx: Tx<'_>) {
        // SAFETY: a field of the node.
        tx.declare(unsafe { &raw const (*self.at).len }, 1);
    }

    fn put_len(self, len: usize) {
        // SAFETY: a field of the node, declared by the caller.
        unsafe { (&raw mut (*self.at).len).write(len as u64) }
    }

    fn declare_entries(self, tx: Tx<'_>, from: usize, to: usize) {
        tx.declare(self.key(from), to - from);
        tx.declare(self.value(from), to - from);
    }

    fn declare_links(self, tx: Tx<'_>, from: usize, to: usize) {
        if self.height > 0 {
            tx.declare(self.link(from), to - from);
        }
    }

    /// Moves entries within a node or to another; their new place is declared.
    fn move_entries(self, from: usize, count: usize, other: Node<K, V>, to: usize) {
        // SAFETY: entries of this node that leave their place.
        unsafe {
            relocate(self.key(from), other.key(to), count);
            relocate(self.value(from), other.value(to), count);
        }
    }

    /// Moves links likewise, where there are some.
    fn move_links(self, from: usize, count: usize, other: Node<K, V>, to: usize) {
        if self.height == 0 || count == 0 {
            return;
        }
        let (from, to) = (self.link(from), other.link(to));
        // SAFETY: links of this node that leave their place.
        unsafe {
            std::ptr::copy(from, to, count);
            let by = to.addr().wrapping_sub(from.addr()).cast_signed();
            (0..count).for_each(|i| Link::moved(to.add(i), by));
        }
    }

    /// Lets a link of a new root lead to a child.
    pub fn adopt(self, tx: Tx<'_>, index: usize, child: Node<K, V>) {
        self.declare_links(tx, index, index + 1);
        // SAFETY: within the links, declared.
        unsafe { Link::set(self.link(index), child.at) }
    }

    /// Puts an entry that `fill` makes at `index` of a leaf that is not full.
    pub fn put(self, tx: Tx<'_>, index: usize, fill: impl FnOnce(*mut K, *mut V)) {
        let len = self.len();
        self.declare_entries(tx, index, len + 1);
        self.declare_len(tx);
        // Where nobody looks yet: it may find no room for what it owns.
        fill(self.key(len), self.value(len));
        // SAFETY: the last entry goes in front of those from `index` on.
        unsafe {
            turn(self.key(index), len - index);
            turn(self.value(index), len - index);
        }
        self.put_len(len + 1);
    }

    /// Closes the gap of an entry that was taken out of a leaf. All is declared, see [`Node::declare_gap`].
    pub fn close(self, index: usize) {
        let len = self.len();
        self.move_entries(index + 1, len - index - 1, self, index);
        self.put_len(len - 1);
    }

    /// Declares what [`Node::close`] changes.
    pub fn declare_gap(self, tx: Tx<'_>, index: usize) {
        self.declare_entries(tx, index, self.len().max(index + 1) - 1);
        self.declare_len(tx);
    }

    /// Moves the last entry of a leaf to a place whose entry was taken out. All is declared.
    pub fn move_last(self, other: Node<K, V>, index: usize) {
        let last = self.len() - 1;
        self.move_entries(last, 1, other, index);
        self.put_len(last);
    }

    /// Declares one entry.
    pub fn declare_entry(self, tx: Tx<'_>, index: usize) {
        self.declare_entries(tx, index, index + 1);
    }

    /// Splits a full child: its upper half goes to a new node behind it, and the entry in the middle comes up.
    /// This node is not full.
    pub fn split_child(self, tx: Tx<'_>, index: usize) {
        let (len, child) = (self.len(), self.child(index));
        let right = Node::make(tx, child.height);
        let upper = MOST - FEWEST - 1;
        right.declare_entries(tx, 0, upper);
        right.declare_links(tx, 0, upper + 1);
        right.declare_len(tx);
        child.declare_len(tx);
        self.declare_entries(tx, index, len + 1);
        self.declare_links(tx, index + 1, len + 2);
        self.declare_len(tx);
        child.move_entries(FEWEST + 1, upper, right, 0);
        child.move_links(FEWEST + 1, upper + 1, right, 0);
        right.put_len(upper);
        child.put_len(FEWEST);
        self.move_entries(index, len - index, self, index + 1);
        self.move_links(index + 1, len - index, self, index + 2);
        child.move_entries(FEWEST, 1, self, index);
        // SAFETY: within the links, declared.
        unsafe { Link::set(self.link(index + 1), right.at) };
        self.put_len(len + 1);
    }

    /// Moves the first entries of a full leaf to the one before it, as many as that has room for; how many. Entries
    /// that come in order fill their leaves so, which are half full when each is split in two.
    pub fn share_left(self, tx: Tx<'_>, index: usize) -> usize {
        let (left, right) = (self.child(index - 1), self.child(index));
        let (l, r) = (left.len(), right.len());
        let count = MOST - l;
        debug_assert!(left.height == 0 && r - count >= FEWEST);
        left.declare_len(tx);
        left.declare_entries(tx, l, MOST);
        self.declare_entry(tx, index - 1);
        right.declare_len(tx);
        right.declare_entries(tx, 0, r - count);
        if unless("btree-separator-left-behind", true) {
            self.move_entries(index - 1, 1, left, l);
        }
        right.move_entries(0, count - 1, left, l + 1);
        right.move_entries(count - 1, 1, self, index - 1);
        right.move_entries(count, r - count, right, 0);
        left.put_len(MOST);
        right.put_len(r - count);
        count
    }

    /// Gives a child that has too few entries one of a neighbour's, or joins them.
    pub fn fill_child(self, tx: Tx<'_>, index: usize) {
        if index > 0 && self.child(index - 1).len() > FEWEST {
            self.turn_right(tx, index - 1);
        } else if index < self.len() && self.child(index + 1).len() > FEWEST {
            self.turn_left(tx, index);
        } else if index > 0 {
            self.join(tx, index - 1);
        } else {
            self.join(tx, index);
        }
    }

    /// The last entry of the child at `index` comes up, and the one here goes to the front of the next child.
    fn turn_right(self, tx: Tx<'_>, index: usize) {
        let (left, right) = (self.child(index), self.child(index + 1));
        let (l, r) = (left.len(), right.len());
        self.declare_entry(tx, index);
        left.declare_len(tx);
        right.declare_len(tx);
        right.declare_entries(tx, 0, r + 1);
        right.declare_links(tx, 0, r + 2);
        right.move_entries(0, r, right, 1);
        right.move_links(0, r + 1, right, 1);
        self.move_entries(index, 1, right, 0);
        left.move_links(l, 1, right, 0);
        left.move_entries(l - 1, 1, self, index);
        left.put_len(l - 1);
        right.put_len(r + 1);
    }

    /// The first entry of the child behind `index` comes up, and the one here goes to the end of the child at
    /// `index`.
    fn turn_left(self, tx: Tx<'_>, index: usize) {
        let (left, right) = (self.child(index), self.child(index + 1));
        let (l, r) = (left.len(), right.len());
        self.declare_entry(tx, index);
        left.declare_len(tx);
        left.declare_entries(tx, l, l + 1);
        left.declare_links(tx, l + 1, l + 2);
        right.declare_len(tx);
        right.declare_entries(tx, 0, r - 1);
        right.declare_links(tx, 0, r);
        self.move_entries(index, 1, left, l);
        if !planted("btree-child-left-behind") {
            right.move_links(0, 1, left, l + 1);
        }
        right.move_entries(0, 1, self, index);
        right.move_entries(1, r - 1, right, 0);
        right.move_links(1, r, right, 0);
        left.put_len(l + 1);
        right.put_len(r - 1);
    }

    /// Joins the children at `index` and behind, with the entry between them.
    fn join(self, tx: Tx<'_>, index: usize) {
        let (left, right) = (self.child(index), self.child(index + 1));
        let (len, l, r) = (self.len(), left.len(), right.len());
        left.declare_len(tx);
        left.declare_entries(tx, l, l + 1 + r);
        left.declare_links(tx, l + 1, l + 2 + r);
        self.declare_len(tx);
        self.declare_entries(tx, index, len - 1);
        self.declare_links(tx, index + 1, len);
        tx.free(right.at);
        self.move_entries(index, 1, left, l);
        right.move_entries(0, r, left, l + 1);
        right.move_links(0, r + 1, left, l + 1);
        left.put_len(l + 1 + r);
        self.move_entries(index + 1, len - index - 1, self, index);
        self.move_links(index + 2, len - index - 1, self, index + 1);
        self.put_len(len - 1);
    }
}
