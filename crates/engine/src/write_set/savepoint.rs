//! Savepoints: positions in a run that a transaction can be rolled back to. What nested transactions stand on.

use super::ranges::Covered;
use super::run::Saved;
use super::set::{NONE, Position, WriteSet};
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::atomic::Ordering;

/// What a transaction has noted of its run.
#[derive(Debug, Default)]
pub(super) struct Marks {
    savepoints: Vec<Mark>,
    /// What is covered in front of all savepoints.
    covered: Option<Box<Looked>>,
    /// Savepoints made by all transactions of the slot: so that none is taken for another.
    serial: u64,
    pub granting: Granting,
    /// Bytes of the run when it was last compacted.
    pub compacted: usize,
    /// The same, when what it amounts to was last counted.
    pub counted: usize,
}

/// A savepoint of an open transaction.
#[derive(Debug)]
struct Mark {
    serial: u64,
    position: Position,
    left: usize,
    granting: Granting,
    /// What is covered behind it, and in front of the next one.
    covered: Option<Box<Looked>>,
}

/// The bytes that ranges cover from a savepoint on, up to a position: no savepoint is between the two.
#[derive(Debug)]
pub(super) struct Looked {
    covered: Covered,
    until: Position,
}

/// How much may be declared, and what was: a bound for what is in front of a savepoint stays one when the run is
/// rolled back to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Granting {
    /// Whether the policy granted room in this transaction, and how much last.
    pub asked: bool,
    pub granted: usize,
    /// What was declared until then, at most: bytes of a record, and of memory.
    pub account: (u64, u64),
}

impl Marks {
    pub fn clear(&mut self) {
        self.savepoints.clear();
        self.covered = None;
        (self.granting, self.compacted, self.counted) = (Granting::default(), 0, 0);
    }

    fn find(&self, serial: u64) -> Option<usize> {
        self.savepoints.binary_search_by_key(&serial, |mark| mark.serial).ok()
    }

    /// What is covered behind the newest savepoint.
    pub fn looked(&mut self) -> &mut Option<Box<Looked>> {
        self.savepoints.last_mut().map_or(&mut self.covered, |mark| &mut mark.covered)
    }
}

impl WriteSet<'_> {
    /// Marks the end of the run. Returns what the program knows the savepoint by.
    pub fn savepoint(&self) -> u64 {
        let (position, left) = (self.position(), self.left());
        // What is declared again behind it needs another old value, which is not that in front of it.
        self.tail().plain = false;
        if !planted("savepoint-keeps-the-last") {
            self.tail().last = NONE;
        }
        let marks = &mut self.scratch().marks;
        marks.serial += 1;
        let (serial, granting) = (marks.serial, marks.granting);
        marks.savepoints.push(Mark { serial, position, left, granting, covered: None });
        serial
    }

    /// Where a savepoint is, if the transaction still has it.
    pub fn find_savepoint(&self, serial: u64) -> Option<Position> {
        let marks = &self.scratch().marks;
        marks.find(serial).map(|at| marks.savepoints[at].position)
    }

    /// Forgets a savepoint, which there is, and those that came after it; what was declared since stays. If it is
    /// covered in front of the savepoint, so that its old bytes are of no use any more, the run is to be shortened
    /// by `shorten`.
    pub fn release_savepoint(&self, serial: u64, shorten: impl FnOnce(Position)) {
        let marks = &mut self.scratch().marks;
        let at = marks.find(serial).expect("it was found before");
        marks.savepoints.truncate(at + 1);
        let Mark { position, left, granting, .. } = marks.savepoints.pop().expect("it is there");
        // Small runs stay as they are, but in simulations.
        let is_small = !self.slot.extended.load(Ordering::Relaxed) && !cfg!(caliburn_sim);
        if !is_small && !self.has_branches() && self.is_covered(position) {
            shorten(position);
            self.scratch().marks.granting = granting;
            self.set_room(position, left);
        }
    }

    /// Whether what was declared from a position on is covered by what was declared in front of it, behind the
    /// newest savepoint. Each range is looked at once, or goes.
    fn is_covered(&self, position: Position) -> bool {
        let from = instead("covered-by-the-grandparent", self.pinned(), Position::default());
        let known = self.scratch().marks.looked().take();
        let mut looked =
            known.unwrap_or_else(|| Box::new(Looked { covered: Covered::default(), until: from }));
        let ranges: Vec<Saved> = self.ranges_from(looked.until).collect();
        let newer = self.ranges_from(position).count();
        let (older, newer) = ranges.split_at(ranges.len() - newer);
        let add = |covered: &mut Covered, range: &Saved| {
            covered.add(range.segment, range.offset, range.offset + range.len as u64, |_, _| {});
        };
        older.iter().for_each(|range| add(&mut looked.covered, range));
        let is_covered = newer.iter().all(|range| looked.covered.has(range));
        looked.until = position;
        if !is_covered {
            newer.iter().for_each(|range| add(&mut looked.covered, range));
            looked.until = self.position();
        }
        *self.scratch().marks.looked() = Some(looked);
        is_covered
    }

    /// The run was shortened to a savepoint, which stays: forgets those that came after it.
    pub fn rolled_back(&self, serial: u64) {
        let marks = &mut self.scratch().marks;
        let at = marks.find(serial).expect("it was found before");
        marks.savepoints.truncate(at + 1);
        let mark = &mut marks.savepoints[at];
        mark.covered = None;
        marks.granting = mark.granting;
        let (position, left) = (mark.position, mark.left);
        self.set_room(position, left);
    }

    /// The room that there was at a savepoint; none if the policy has come to see each range since.
    fn set_room(&self, position: Position, left: usize) {
        let sees_each = unless("room-of-a-known-run", self.is_known());
        self.tail().room = if sees_each { 0 } else { position.bytes + left };
    }

    /// The newest savepoint: what is in front of it must stay as it is.
    pub(super) fn pinned(&self) -> Position {
        self.scratch().marks.savepoints.last().map_or(Position::default(), |mark| mark.position)
    }
}
