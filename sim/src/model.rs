//! What a store must hold: the states that its commits led through, and which of them a crash may leave.

use crate::content::Content;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Ranges with their new values.
pub type Changes = Vec<(usize, Arc<[u8]>)>;

/// The committed state after some commit.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The segment's bytes.
    pub memory: Content,
    /// Undecided transactions.
    pub prepared: BTreeMap<Vec<u8>, Changes>,
}

impl State {
    /// With some bytes changed.
    pub fn with(&self, changes: &Changes) -> State {
        let mut next = self.clone();
        for (offset, bytes) in changes {
            next.memory.write(*offset as u64, bytes);
        }
        next
    }
}

/// What a workload notes while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The store was opened and showed that state: nothing else can be found any more by the death of the process;
    /// a power cut may still bring an earlier one, but no later one.
    Opened(usize),
    /// It is opened again; whether it is still in good order is unknown.
    Reopening,
    /// From here on the state of that number may be found after a crash.
    Begun(usize),
    /// It was acknowledged: nothing earlier may be found after the death of the process...
    Committed(usize),
    /// ... after a power cut.
    Forced(usize),
    /// The store was opened, and what it said made the program leave it alone: what its end does, nobody wanted.
    GivenUp,
    /// The store was closed in good order, with that state.
    Closed(usize),
    /// The segment may be that long.
    GrowthBegun(u64),
    /// The segment is that long.
    Grown(u64),
}

/// Which states may be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Earliest after the death of the process.
    pub process: usize,
    /// Earliest after a power cut.
    pub power: usize,
    /// Earliest even if the log is damaged after the last force: what is later cannot be told from a torn tail.
    pub proven: usize,
    /// Latest.
    pub highest: usize,
    /// Whether the store was closed in good order, and not opened since.
    pub closed: bool,
    /// Exactly this one, before a power cut: a recovery that was cut short had come to it.
    pub exact: Option<usize>,
    /// Shortest and longest that the segment may be.
    pub len: (u64, u64),
}

impl Bounds {
    /// A store that is known to hold state `number`.
    pub fn exactly(number: usize, len: u64) -> Bounds {
        Bounds {
            process: number,
            power: number,
            proven: number,
            highest: number,
            closed: true,
            exact: None,
            len: (len, len),
        }
    }

    /// Takes note.
    pub fn note(&mut self, mark: Mark) {
        match mark {
            Mark::Closed(number) => {
                self.note(Mark::Forced(number));
                self.closed = true;
            }
            Mark::Opened(number) => {
                self.closed = false;
                (self.process, self.highest, self.exact) = (number, number, None);
            }
            Mark::GivenUp => {}
            Mark::Reopening => self.closed = false,
            Mark::Begun(number) => self.highest = self.highest.max(number),
            Mark::Committed(number) => self.process = self.process.max(number),
            Mark::Forced(number) => {
                self.process = self.process.max(number);
                if number > self.power {
                    (self.proven, self.power) = (self.power, number);
                }
            }
            Mark::GrowthBegun(len) => self.len.1 = self.len.1.max(len),
            Mark::Grown(len) => self.len.0 = self.len.0.max(len),
        }
    }
}

/// The states so far, by number.
#[derive(Debug, Clone)]
pub struct History {
    first: usize,
    states: Vec<Arc<State>>,
}

impl History {
    /// Begins with state 0.
    pub fn new(state: State) -> History {
        History { first: 0, states: vec![Arc::new(state)] }
    }

    /// The newest state and its number.
    pub fn newest(&self) -> (usize, &Arc<State>) {
        (self.first + self.states.len() - 1, &self.states[self.states.len() - 1])
    }

    /// Adds a state; returns its number.
    pub fn push(&mut self, state: State) -> usize {
        self.states.push(Arc::new(state));
        self.first + self.states.len() - 1
    }

    /// The state of that number.
    pub fn get(&self, number: usize) -> &Arc<State> {
        &self.states[number - self.first]
    }

    /// The states that may still be found, as if `number` were the newest.
    pub fn until(&self, oldest: usize, number: usize) -> History {
        let states = self.states[oldest - self.first..=number - self.first].to_vec();
        History { first: oldest, states }
    }

    /// The newest state between two that has this memory and these undecided transactions.
    pub fn find<'a>(
        &self,
        oldest: usize,
        newest: usize,
        memory: &[u8],
        prepared: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Option<usize> {
        (oldest..=newest).rev().find(|number| {
            let state = self.get(*number);
            state.prepared.keys().map(|id| &id[..]).eq(prepared.clone())
                && state.memory.differs(memory).is_none()
        })
    }

    /// Equal for equal states between the two numbers.
    pub fn digest(&self, oldest: usize, newest: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        for number in oldest..=newest {
            let state = self.get(number);
            state.memory.hash(&mut hasher);
            state.prepared.hash(&mut hasher);
        }
        hasher.finish()
    }
}
