//! A store as a simulated node has it: lists in memory, changed in place under locks, and a log of which a crash
//! keeps a part.

use caliburn_dist::commit::word::{Incarnation, Participants, Record};
use caliburn_dist::family::Level;
use caliburn_dist::host::Role;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::Known;
use caliburn_nest::Timestamp;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub type List = Vec<u64>;

/// What is in memory.
#[derive(Debug, Default)]
pub struct Memory {
    pub lists: Vec<List>,
    locks: Vec<BTreeMap<u64, bool>>,
    levels: u64,
}

/// What a transaction holds.
#[derive(Debug)]
pub struct Work {
    memory: Rc<RefCell<Memory>>,
    /// Its own number, behind those of its ancestors.
    line: Vec<u64>,
    old: BTreeMap<usize, List>,
    /// Recovery found it: what it brings.
    pub brings: BTreeMap<usize, List>,
    keeps: bool,
}

impl Memory {
    pub fn new(lists: Vec<List>) -> Rc<RefCell<Memory>> {
        let locks = lists.iter().map(|_| BTreeMap::new()).collect();
        Rc::new(RefCell::new(Memory { lists, locks, levels: 0 }))
    }

    pub fn locked(&self) -> usize {
        self.locks.iter().filter(|locks| !locks.is_empty()).count()
    }

    fn level(&mut self) -> u64 {
        self.levels += 1;
        self.levels
    }
}

impl Work {
    pub fn top(memory: &Rc<RefCell<Memory>>) -> Work {
        let line = vec![memory.borrow_mut().level()];
        Work { memory: memory.clone(), line, old: BTreeMap::new(), brings: BTreeMap::new(), keeps: false }
    }

    fn own(&self) -> u64 {
        *self.line.last().expect("it has a number")
    }

    /// Whether the lock could be had.
    fn lock(&self, list: usize, exclusive: bool) -> bool {
        let locks = &mut self.memory.borrow_mut().locks[list];
        let against = locks.iter().any(|(by, x)| !self.line.contains(by) && (exclusive || *x));
        if !against {
            *locks.entry(self.own()).or_default() |= exclusive;
        }
        !against
    }

    /// None when another has the lock.
    pub fn append(&mut self, list: usize, token: u64) -> Option<()> {
        self.lock(list, true).then(|| {
            let list_now = &mut self.memory.borrow_mut().lists[list];
            self.old.entry(list).or_insert_with(|| list_now.clone());
            list_now.push(token);
        })
    }

    pub fn read(&self, list: usize) -> Option<List> {
        self.lock(list, false).then(|| self.memory.borrow().lists[list].clone())
    }

    pub fn hold(&mut self, brings: BTreeMap<usize, List>) {
        for list in brings.keys() {
            assert!(self.lock(*list, true), "two that were undecided had one lock");
        }
        self.brings = brings;
    }

    /// New values of what it has changed.
    pub fn changes(&self) -> BTreeMap<usize, List> {
        let memory = self.memory.borrow();
        self.old.keys().map(|list| (*list, memory.lists[*list].clone())).collect()
    }

    /// It has committed.
    pub fn keep(&mut self) {
        self.keeps = true;
        let mut memory = self.memory.borrow_mut();
        for (list, new) in std::mem::take(&mut self.brings) {
            memory.lists[list] = new;
        }
    }
}

impl Level for Work {
    type Error = ();

    fn child(&mut self) -> Result<Work, ()> {
        let own = self.memory.borrow_mut().level();
        let mut child = Work::top(&self.memory);
        child.line = self.line.iter().copied().chain([own]).collect();
        Ok(child)
    }

    fn adopt(&mut self, mut child: Work) -> Result<(), ()> {
        for (list, old) in std::mem::take(&mut child.old) {
            self.old.entry(list).or_insert(old);
        }
        for locks in &mut self.memory.borrow_mut().locks {
            if let Some(exclusive) = locks.remove(&child.own()) {
                *locks.entry(self.own()).or_default() |= exclusive;
            }
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let own = self.own();
        let mut memory = self.memory.borrow_mut();
        for (list, old) in std::mem::take(&mut self.old) {
            if !self.keeps {
                memory.lists[list] = old;
            }
        }
        memory.locks.iter_mut().for_each(|locks| _ = locks.remove(&own));
    }
}

/// What is in the log.
#[derive(Debug, Clone)]
pub enum Entry {
    Prepared(Tid, Participants, BTreeMap<usize, List>),
    Decided(Tid, bool),
    Commit(Tid, Participants, BTreeMap<usize, List>),
    /// Committed without blocking: others may ask.
    Remembered(Tid, Participants),
    /// An operator has decided.
    Judged,
    /// What the node knew of its keeper.
    Known(Known),
    /// An operator has accepted another one.
    Accepted,
    End(Tid),
}

/// Who is to be told that a record is durable.
pub type Waits = (Tid, Role, Record);

/// A log: what is durable, and what is not yet, with who is to be told.
#[derive(Debug, Default)]
pub struct Disk {
    pub durable: Vec<Entry>,
    pub written: Vec<(Entry, Option<Waits>)>,
    /// The clock's: nothing behind it was given out.
    pub bound: Timestamp,
    /// The last life, and what the node knows of its keeper at least.
    pub life: Incarnation,
    pub known: Known,
    /// The last life that had another keeper.
    pub accepted: Incarnation,
}

/// What recovery finds.
pub struct Found {
    pub lists: Vec<List>,
    pub prepared: BTreeMap<Tid, (Participants, BTreeMap<usize, List>)>,
    pub commits: BTreeMap<Tid, Participants>,
    pub keeper: Known,
}

impl Disk {
    pub fn recover(&self, lists: usize) -> Found {
        let (mut prepared, mut commits) = (BTreeMap::new(), BTreeMap::new());
        let mut lists = vec![List::new(); lists];
        let mut bring = |changes: BTreeMap<usize, List>| {
            for (list, new) in changes {
                assert!(new.starts_with(&lists[list]), "a change was lost, or came back");
                lists[list] = new;
            }
        };
        let (mut known, mut keeper) = (BTreeSet::new(), Known::default());
        for entry in self.durable.iter().cloned() {
            match entry {
                Entry::Prepared(tid, participants, changes) => {
                    assert!(known.insert(tid), "{tid} was prepared twice");
                    prepared.insert(tid, (participants, changes));
                }
                Entry::Decided(tid, commits) => {
                    if let Some((_, changes)) = prepared.remove(&tid).filter(|_| commits) {
                        bring(changes);
                    }
                }
                Entry::Commit(tid, participants, changes) => {
                    bring(changes);
                    commits.insert(tid, participants);
                }
                Entry::Remembered(tid, participants) => _ = commits.insert(tid, participants),
                Entry::Judged => {}
                Entry::Known(more) => keeper.learn(&more),
                Entry::Accepted => keeper = Known::default(),
                Entry::End(tid) => _ = commits.remove(&tid),
            }
        }
        keeper.learn(&self.known);
        commits.retain(|_, participants| !participants.is_empty());
        Found { lists, prepared, commits, keeper }
    }
}
