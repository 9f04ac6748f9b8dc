//! A replica of a log in memory, which can be away, and lose its answers.
#![allow(dead_code, reason = "each test needs a part of it")]

use caliburn::{Replica, ReplicaError, ReplicaPart};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Kept {
    pub store: Option<[u8; 16]>,
    /// By where they begin.
    pub parts: BTreeMap<u64, ReplicaPart>,
    pub reached: u64,
    /// It does not answer.
    pub away: bool,
    /// Another one has taken over.
    pub taken: bool,
    /// How often it was asked to keep a part.
    pub asked: u64,
    /// Answers to the next ones are lost: of such as keep it, and of such as do not.
    pub lost: Vec<bool>,
}

/// A machine elsewhere.
#[derive(Default)]
pub struct Elsewhere {
    kept: Mutex<Kept>,
    asked: Condvar,
    /// Whether whoever sends is dead: what he sends does not come here.
    pub dead: Mutex<Option<Box<dyn Fn() -> bool + Send>>>,
}

impl std::fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Elsewhere")
    }
}

impl Kept {
    /// It does not answer from now on. How often it was asked before.
    pub fn leave(&mut self) -> u64 {
        self.away = true;
        self.asked
    }
}

impl Elsewhere {
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    /// Waits until it was asked so often.
    pub fn wait_asked(&self, times: u64) {
        let limit = Duration::from_secs(20);
        let (kept, timed_out) =
            self.asked.wait_timeout_while(self.kept(), limit, |kept| kept.asked < times).unwrap();
        assert!(!timed_out.timed_out(), "it was asked {} times, and not {times}", kept.asked);
    }

    /// Writes what it has to files, as an archive.
    pub fn archive(&self, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for part in self.kept().parts.values() {
            std::fs::write(to.join(&part.name), &part.bytes).unwrap();
        }
    }
}

impl Replica for Elsewhere {
    fn begin(&self, store: [u8; 16], end: u64) -> Result<u64, ReplicaError> {
        let mut kept = self.kept();
        match kept.store {
            _ if kept.away => return Err(ReplicaError::Unavailable("it is away".into())),
            None => (kept.store, kept.reached) = (Some(store), end),
            Some(known) if known != store => {
                return Err(ReplicaError::Refused("it has another store's log".into()));
            }
            Some(_) => {}
        }
        Ok(kept.reached)
    }

    fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError> {
        if self.dead.lock().unwrap().as_ref().is_some_and(|dead| dead()) {
            return Ok(part.to);
        }
        let mut kept = self.kept();
        kept.asked += 1;
        self.asked.notify_all();
        if kept.taken {
            return Err(ReplicaError::Refused("another machine has taken over".into()));
        }
        let lost = kept.lost.pop();
        if kept.away || lost == Some(false) {
            return Err(ReplicaError::Unavailable("it is away".into()));
        }
        if kept.parts.contains_key(&part.from) {
            // Its answer was lost.
            return Ok(kept.reached);
        }
        assert!(part.from == kept.reached && part.from < part.to, "{}..{}", part.from, part.to);
        kept.reached = part.to;
        kept.parts.insert(part.from, part.clone());
        match lost {
            Some(_) => Err(ReplicaError::Unavailable("its answer was lost".into())),
            None => Ok(part.to),
        }
    }
}
