//! A family at one node: what its calls have done here, until it is known whether they stay.
//!
//! ```text
//!   top                      a transaction of the store, prepared or committed when the family is
//!    |-- 1                   a nested transaction, of which only calls have been here
//!    |    |-- 1.1  returned  a call: it stays if 1 hears of it, and 1 stays
//!    |    '-- 1.2  running
//!    '-- 2   returned
//! ```
//!
//! Whoever calls decides whether a call stays, since it alone knows whether the answer came in time; it tells with
//! its next call, or when the family commits: the news. Nobody sends a message for it.
//!
//! Invariant: what a call has done becomes its parent's only when its caller has told so, and after all below it.
//! Invariant: nothing that was told to have aborted, or is below that, begins or stays.

use crate::commit::word::Outcome;
use crate::id::{News, Path};
use caliburn_os::simulated::{planted, unless};
use std::collections::{BTreeMap, BTreeSet};

/// What a transaction of a family holds at a node: changes, locks. Dropped, it is undone.
pub trait Level: Sized {
    /// Why one can't be made, or become part of another.
    type Error;

    /// Begins a child.
    ///
    /// # Errors
    /// When there is no room for it.
    fn child(&mut self) -> Result<Self, Self::Error>;

    /// A child has committed.
    ///
    /// # Errors
    /// When it is too much; the child is undone then.
    fn adopt(&mut self, child: Self) -> Result<(), Self::Error>;
}

/// Why a call can't begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused<E> {
    /// Its caller has given it up, or something that it is part of; or it came twice. An orphan.
    Orphan,
    /// The family has been asked to commit, or has ended.
    TooLate,
    /// As the level says.
    Level(E),
}

/// Why a family can't end yet, or not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// A call runs.
    Running,
    /// Something that should stay could not.
    Spoiled,
}

/// A family at a node.
#[derive(Debug)]
pub struct Family<L> {
    top: Part<L>,
    aborted: BTreeSet<Path>,
    closed: bool,
    spoiled: bool,
}

#[derive(Debug)]
struct Part<L> {
    /// Dropped before what they are part of.
    children: BTreeMap<u32, Part<L>>,
    /// Away while a call runs with it.
    level: Option<L>,
    running: bool,
    verdict: Option<Outcome>,
}

impl<L: Level> Part<L> {
    fn new(level: L) -> Part<L> {
        Part { level: Some(level), running: false, verdict: None, children: BTreeMap::new() }
    }

    fn runs(&self) -> bool {
        self.running || self.children.values().any(Part::runs)
    }

    /// Gives those whose end is known to their parents, or undoes them, where nothing runs that could be in the
    /// way. Whether all that should stay could.
    fn settle(&mut self) -> bool {
        let mut well = true;
        for number in self.children.keys().copied().collect::<Vec<_>>() {
            let child = self.children.get_mut(&number).expect("it is there");
            well &= child.settle();
            if child.verdict.is_none() || child.runs() {
                continue;
            }
            if child.verdict == Some(Outcome::Committed) && self.level.is_none() {
                continue;
            }
            let child = self.children.remove(&number).expect("it is there");
            let verdict = child.verdict;
            let level = child.without_children();
            if verdict == Some(Outcome::Committed) || planted("aborted-call-stays") {
                let parent = self.level.as_mut().expect("it is not away");
                well &= parent.adopt(level).is_ok();
            }
        }
        well
    }

    /// What is below, nobody has heard of: its caller has not, or it would have told. It is undone.
    fn without_children(mut self) -> L {
        for child in std::mem::take(&mut self.children).into_values() {
            drop(child.without_children());
        }
        self.level.expect("nothing runs")
    }

    fn find(&mut self, path: &[u32]) -> Option<&mut Part<L>> {
        match path.split_first() {
            None => Some(self),
            Some((first, rest)) => self.children.get_mut(first)?.find(rest),
        }
    }

    /// Whether something on the way down a path has aborted.
    fn is_doomed(&self, path: &[u32]) -> bool {
        let below =
            || path.split_first().and_then(|(first, rest)| Some(self.children.get(first)?.is_doomed(rest)));
        self.verdict == Some(Outcome::Aborted) || below().unwrap_or(false)
    }

    /// What a planted bug does.
    fn commit_all(&mut self) {
        self.verdict = self.verdict.or(Some(Outcome::Committed));
        self.children.values_mut().for_each(Part::commit_all);
    }

    /// Drops what it can, children first; what runs stays, doomed.
    fn abort(&mut self) {
        self.verdict = Some(Outcome::Aborted);
        self.children.values_mut().for_each(Part::abort);
    }
}

impl<L: Level> Family<L> {
    /// Its first call comes.
    pub fn new(top: L) -> Family<L> {
        Family { top: Part::new(top), aborted: BTreeSet::new(), closed: false, spoiled: false }
    }

    /// Hears how others of the family have ended.
    pub fn hear(&mut self, news: &News) {
        for (path, outcome) in news {
            if *outcome == Outcome::Aborted && unless("orphans-not-remembered", true) {
                self.aborted.insert(path.clone());
            }
            match self.top.find(&path.0) {
                Some(part) if *outcome == Outcome::Aborted => part.abort(),
                // Nothing that was told to have aborted is told to have committed.
                Some(part) if part.verdict.is_none() => {
                    part.verdict = Some(Outcome::Committed);
                    // What is unknown below it has been given up.
                    let unknown = part.children.values_mut().filter(|child| child.verdict.is_none());
                    unknown.for_each(Part::abort);
                }
                _ => {}
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.spoiled |= !self.top.settle();
    }

    /// A call begins: its level.
    ///
    /// # Errors
    /// When it may not.
    pub fn begin(&mut self, path: &Path) -> Result<L, Refused<L::Error>> {
        if self.closed {
            return Err(Refused::TooLate);
        }
        if self.is_doomed(path) || path.0.is_empty() {
            return Err(Refused::Orphan);
        }
        let (own, above) = path.0.split_last().expect("it is not the top");
        let mut part = &mut self.top;
        for number in above {
            if !part.children.contains_key(number) {
                // One whose call runs here is there: it gives its level back before it calls others.
                let level = part.level.as_mut().ok_or(Refused::Orphan)?.child().map_err(Refused::Level)?;
                part.children.insert(*number, Part::new(level));
            }
            part = part.children.get_mut(number).expect("it is there");
            if part.verdict.is_some() {
                return Err(Refused::Orphan);
            }
        }
        if part.children.contains_key(own) {
            return Err(Refused::Orphan);
        }
        let level = part.level.as_mut().ok_or(Refused::Orphan)?.child().map_err(Refused::Level)?;
        part.children
            .insert(*own, Part { level: None, running: true, verdict: None, children: BTreeMap::new() });
        Ok(level)
    }

    /// A call that runs lends its level back, since it calls others.
    pub fn lend(&mut self, path: &Path, level: L) {
        let part = self.top.find(&path.0).expect("it runs");
        part.level = Some(level);
        self.settle();
    }

    /// Takes it again.
    pub fn take(&mut self, path: &Path) -> L {
        self.settle();
        let part = self.top.find(&path.0).expect("it runs");
        part.level.take().expect("it was lent")
    }

    /// A call returns: what it has done waits for its caller's word, or is undone at once.
    pub fn end(&mut self, path: &Path, level: L, stays: bool) {
        let part = self.top.find(&path.0).expect("it runs");
        part.level = Some(level);
        part.running = false;
        if !stays {
            part.abort();
            self.aborted.insert(path.clone());
        }
        self.settle();
    }

    /// Whether a call that runs, or comes, works for nothing.
    pub fn is_doomed(&self, path: &Path) -> bool {
        self.aborted.iter().any(|aborted| path.is_within(aborted)) || self.top.is_doomed(&path.0)
    }

    /// Whether it has aborted, and only waits for what runs.
    pub fn has_aborted(&self) -> bool {
        self.top.verdict == Some(Outcome::Aborted)
    }

    /// Whether a call runs.
    pub fn runs(&self) -> bool {
        self.top.runs()
    }

    /// The family is to commit: nothing begins any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// What is to be prepared or committed, when all news were heard. What its callers have not told of is undone.
    ///
    /// # Errors
    /// Not yet, or not at all.
    pub fn finish(&mut self) -> Result<&mut L, NotReady> {
        let unknown = self.top.children.values_mut().filter(|child| child.verdict.is_none());
        let unheard = if planted("unheard-calls-stay") { Part::commit_all } else { Part::abort };
        unknown.for_each(unheard);
        self.settle();
        // Undone, though somebody may have been told that his call went well.
        self.spoiled |= self.top.verdict == Some(Outcome::Aborted);
        match (self.runs(), self.spoiled) {
            (true, _) => Err(NotReady::Running),
            (_, true) => Err(NotReady::Spoiled),
            _ => Ok(self.top.level.as_mut().expect("it is lent to nobody")),
        }
    }

    /// The family has aborted: what runs is doomed, and nothing begins any more.
    pub fn abort(&mut self) {
        self.closed = true;
        self.top.abort();
        self.settle();
    }

    /// What its top holds.
    ///
    /// # Panics
    /// While that is prepared by somebody who has taken it.
    pub fn top(&self) -> &L {
        self.top.level.as_ref().expect("it is lent to nobody")
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// As [`Family::top`].
    pub fn top_mut(&mut self) -> &mut L {
        self.top.level.as_mut().expect("it is lent to nobody")
    }

    /// Takes it apart: what its top holds.
    ///
    /// # Panics
    /// While a call runs.
    pub fn into_top(self) -> L {
        self.top.without_children()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Changes of a list that all see, undone when dropped.
    #[derive(Debug)]
    struct Changes {
        all: Rc<RefCell<Vec<u32>>>,
        own: Vec<u32>,
    }

    impl Changes {
        fn push(&mut self, value: u32) {
            self.all.borrow_mut().push(value);
            self.own.push(value);
        }
    }

    impl Level for Changes {
        type Error = ();

        fn child(&mut self) -> Result<Changes, ()> {
            Ok(Changes { all: self.all.clone(), own: Vec::new() })
        }

        fn adopt(&mut self, mut child: Changes) -> Result<(), ()> {
            self.own.append(&mut child.own);
            Ok(())
        }
    }

    impl Drop for Changes {
        fn drop(&mut self) {
            self.all.borrow_mut().retain(|value| !self.own.contains(value));
        }
    }

    fn path(numbers: &[u32]) -> Path {
        Path(numbers.to_vec())
    }

    fn family() -> (Family<Changes>, Rc<RefCell<Vec<u32>>>) {
        let all = Rc::new(RefCell::new(Vec::new()));
        (Family::new(Changes { all: all.clone(), own: Vec::new() }), all)
    }

    /// A call that pushes a value, and returns.
    fn call(family: &mut Family<Changes>, at: &[u32], value: u32) {
        let mut level = family.begin(&path(at)).unwrap();
        level.push(value);
        family.end(&path(at), level, true);
    }

    fn told(family: &mut Family<Changes>, at: &[u32], outcome: Outcome) {
        family.hear(&vec![(path(at), outcome)]);
    }

    #[test]
    fn what_stays_is_what_was_heard_of() {
        let (mut family, all) = family();
        call(&mut family, &[1], 1);
        call(&mut family, &[2, 1], 2);
        call(&mut family, &[2, 2], 3);
        call(&mut family, &[3, 1], 4);
        call(&mut family, &[4], 5);
        told(&mut family, &[1], Outcome::Committed);
        told(&mut family, &[2, 1], Outcome::Committed);
        told(&mut family, &[2, 2], Outcome::Aborted);
        told(&mut family, &[2], Outcome::Committed);
        told(&mut family, &[3, 1], Outcome::Committed);
        told(&mut family, &[3], Outcome::Aborted);
        assert_eq!(*all.borrow(), [1, 2, 5]);
        // Of 4 nobody has heard.
        assert_eq!(family.finish().unwrap().own, [1, 2]);
        assert_eq!(*all.borrow(), [1, 2]);
    }

    #[test]
    fn orphans_do_not_begin() {
        let (mut family, all) = family();
        // Heard of before the call itself comes.
        told(&mut family, &[1, 2], Outcome::Aborted);
        assert_eq!(family.begin(&path(&[1, 2])).unwrap_err(), Refused::Orphan);
        assert_eq!(family.begin(&path(&[1, 2, 7])).unwrap_err(), Refused::Orphan);
        call(&mut family, &[1, 3], 1);
        // It comes twice.
        assert_eq!(family.begin(&path(&[1, 3])).unwrap_err(), Refused::Orphan);
        told(&mut family, &[1, 3], Outcome::Committed);
        told(&mut family, &[1], Outcome::Committed);
        // Below one that has ended.
        family.close();
        assert_eq!(family.begin(&path(&[9])).unwrap_err(), Refused::TooLate);
        assert_eq!(family.finish().unwrap().own, [1]);
        drop(family);
        assert!(all.borrow().is_empty());
    }

    #[test]
    fn what_runs_is_waited_for() {
        let (mut family, all) = family();
        let mut level = family.begin(&path(&[1])).unwrap();
        level.push(1);
        told(&mut family, &[1], Outcome::Aborted);
        assert!(family.is_doomed(&path(&[1])));
        assert_eq!(family.finish().unwrap_err(), NotReady::Running);
        level.push(2);
        family.end(&path(&[1]), level, true);
        assert!(all.borrow().is_empty(), "it was given up while it ran");
        assert!(family.finish().unwrap().own.is_empty());
    }

    #[test]
    fn a_call_that_calls_back() {
        let (mut family, all) = family();
        let mut outer = family.begin(&path(&[1])).unwrap();
        outer.push(1);
        family.lend(&path(&[1]), outer);
        call(&mut family, &[1, 1], 2);
        call(&mut family, &[1, 2], 3);
        told(&mut family, &[1, 1], Outcome::Committed);
        let outer = family.take(&path(&[1]));
        assert_eq!(outer.own, [1, 2]);
        // Of the second no answer came, so it is not heard of.
        family.end(&path(&[1]), outer, true);
        told(&mut family, &[1], Outcome::Committed);
        assert_eq!(family.finish().unwrap().own, [1, 2]);
        assert_eq!(*all.borrow(), [1, 2]);
    }

    #[test]
    fn a_family_that_aborts_dooms_what_runs() {
        let (mut family, all) = family();
        call(&mut family, &[1], 1);
        let mut level = family.begin(&path(&[2])).unwrap();
        level.push(2);
        family.abort();
        assert_eq!(*all.borrow(), [2]);
        assert!(family.runs() && family.is_doomed(&path(&[2])));
        family.end(&path(&[2]), level, true);
        assert!(all.borrow().is_empty() && !family.runs());
    }
}
