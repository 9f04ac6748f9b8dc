//! Savepoints: positions in a run that a transaction can be rolled back to. What nested transactions stand on.

use super::set::{NONE, Position, WriteSet};
use caliburn_os::simulated::planted;

/// What a transaction has noted of its run.
#[derive(Debug, Default)]
pub(super) struct Marks {
    savepoints: Vec<Mark>,
    /// Savepoints made by all transactions of the slot: so that none is taken for another.
    serial: u64,
    pub granting: Granting,
    /// Bytes of the run when it was last compacted.
    pub compacted: usize,
}

/// A savepoint of an open transaction.
#[derive(Debug, Clone, Copy)]
struct Mark {
    serial: u64,
    position: Position,
    left: usize,
    granting: Granting,
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
        (self.granting, self.compacted) = (Granting::default(), 0);
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
        marks.savepoints.push(Mark { serial, position, left, granting });
        serial
    }

    /// Where a savepoint is, if the transaction still has it.
    pub fn find_savepoint(&self, serial: u64) -> Option<Position> {
        let savepoints = &self.scratch().marks.savepoints;
        savepoints.binary_search_by_key(&serial, |mark| mark.serial).ok().map(|i| savepoints[i].position)
    }

    /// Forgets a savepoint and those that came after it; what was declared since stays. False if there is none.
    pub fn release_savepoint(&self, serial: u64) -> bool {
        let savepoints = &mut self.scratch().marks.savepoints;
        let Ok(at) = savepoints.binary_search_by_key(&serial, |mark| mark.serial) else { return false };
        savepoints.truncate(at);
        true
    }

    /// The run was shortened to a savepoint, which stays: forgets those that came after it.
    pub fn rolled_back(&self, serial: u64) {
        let marks = &mut self.scratch().marks;
        let at =
            marks.savepoints.binary_search_by_key(&serial, |mark| mark.serial).expect("it was found before");
        marks.savepoints.truncate(at + 1);
        let mark = marks.savepoints[at];
        marks.granting = mark.granting;
        self.tail().room = mark.position.bytes + mark.left;
    }

    /// The newest savepoint: what is in front of it must stay as it is.
    pub(super) fn pinned(&self) -> Position {
        self.scratch().marks.savepoints.last().map_or(Position::default(), |mark| mark.position)
    }
}
