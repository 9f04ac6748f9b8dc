//! What a transaction has used, as whoever runs it knows: the nodes that take part, and the news for each.
//!
//! Camelot's `SERVER_CALL` brings back which servers a call has used; whoever began the transaction knows them all
//! when it commits.

use crate::commit::word::{Node, Outcome, Participants, Stay};
use crate::id::{News, Path};
use caliburn_nest::Timestamp;
use caliburn_os::simulated::planted;
use std::collections::{BTreeMap, BTreeSet};

/// News that nodes have not heard, of one family in one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Untold(BTreeMap<Node, News>);

impl Untold {
    /// What a node must hear with the next call.
    pub fn of(&self, node: Node) -> News {
        self.0.get(&node).cloned().unwrap_or_default()
    }

    /// It has heard those.
    pub fn heard(&mut self, node: Node, news: &News) {
        if let Some(all) = self.0.get_mut(&node) {
            all.retain(|one| !news.contains(one));
            if all.is_empty() {
                self.0.remove(&node);
            }
        }
    }

    fn append_all(&mut self, all: BTreeMap<Node, News>) {
        for (node, news) in all {
            let own = self.0.entry(node).or_default();
            for one in news {
                if !own.contains(&one) {
                    own.push(one);
                }
            }
        }
    }

    /// What all have not heard.
    pub fn all(&self) -> &BTreeMap<Node, News> {
        &self.0
    }

    /// What was told of others.
    pub fn from_all(all: BTreeMap<Node, News>) -> Untold {
        Untold(all)
    }

    /// All that is untold.
    pub fn into_all(self) -> BTreeMap<Node, News> {
        self.0
    }

    fn tell(&mut self, nodes: &BTreeSet<Node>, path: &Path, outcome: Outcome) {
        for node in nodes {
            self.0.entry(*node).or_default().push((path.clone(), outcome));
        }
    }
}

/// What comes back with an answer: what the call has used, itself included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Where something of it is.
    pub used: Participants,
    /// Where it has called, also in vain.
    pub touched: BTreeSet<Node>,
    /// What those have not heard.
    pub untold: BTreeMap<Node, News>,
    /// The last timestamp that any of them had heard of.
    pub clock: Timestamp,
}

/// A transaction, nested or not, as whoever runs it sees it.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    path: Path,
    children: u32,
    used: Participants,
    touched: BTreeSet<Node>,
    lost: Option<Node>,
    clock: Timestamp,
}

impl Scope {
    /// One of which nothing was done yet.
    pub fn new(path: Path) -> Scope {
        Scope { path, ..Scope::default() }
    }

    /// Its place in the family.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last timestamp of those that it has heard of: its commit is behind it.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// It has heard of another one.
    pub fn hear(&mut self, clock: Timestamp) {
        if planted("answers-clock-forgotten") {
            return;
        }
        self.clock = self.clock.max(clock);
    }

    /// The place of a nested transaction that begins now, or of a call that is made.
    pub fn next_child(&mut self) -> Path {
        self.children += 1;
        self.path.child(self.children)
    }

    /// A node that has crashed, or aborted there, since this transaction has used it: what was done is lost, and it
    /// can only abort.
    pub fn lost(&self) -> Option<Node> {
        self.lost
    }

    /// The nodes where something of it is.
    pub fn used(&self) -> &Participants {
        &self.used
    }

    /// The nodes that it has called, and of which nothing stays.
    pub fn others(&self) -> BTreeSet<Node> {
        self.touched.iter().filter(|node| !self.used.contains_key(node)).copied().collect()
    }

    /// All that it has called.
    pub fn touched(&self) -> &BTreeSet<Node> {
        &self.touched
    }

    /// A call has returned well.
    pub fn answered(&mut self, untold: &mut Untold, call: &Path, report: Report) {
        untold.append_all(report.untold);
        untold.tell(&report.touched, call, Outcome::Committed);
        self.use_all(&report.used);
        self.touched.extend(report.touched);
        self.hear(report.clock);
    }

    /// A call has failed, or was given up. It may run there, or come there yet. `report` is what is known of it.
    pub fn failed(&mut self, untold: &mut Untold, call: &Path, to: Node, report: Option<Report>) {
        let Report { mut touched, clock, .. } = report.unwrap_or_default();
        touched.insert(to);
        self.hear(clock);
        if !planted("failed-call-not-told") {
            untold.tell(&touched, call, Outcome::Aborted);
        } else {
            untold.tell(&touched, call, Outcome::Committed);
        }
        self.touched.extend(touched);
    }

    /// A nested transaction has committed to this one.
    pub fn committed(&mut self, untold: &mut Untold, child: &Scope) {
        untold.tell(&child.touched, &child.path, Outcome::Committed);
        self.use_all(&child.used);
        self.touched.extend(&child.touched);
        self.hear(child.clock);
    }

    /// A nested transaction has aborted.
    pub fn aborted(&mut self, untold: &mut Untold, child: &Scope) {
        untold.tell(&child.touched, &child.path, Outcome::Aborted);
        self.touched.extend(&child.touched);
        self.hear(child.clock);
    }

    /// All that whoever ends it must know.
    pub fn into_report(self, untold: Untold) -> Report {
        let Scope { used, touched, clock, .. } = self;
        Report { used, touched, untold: untold.into_all(), clock }
    }

    fn use_all(&mut self, used: &Participants) {
        for (node, stay) in used {
            self.use_one(*node, *stay);
        }
    }

    fn use_one(&mut self, node: Node, stay: Stay) {
        let before = *self.used.entry(node).or_insert(stay);
        if before != stay {
            self.lost = Some(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: u64, stay: u64) -> Report {
        let node = Node(node);
        let used = [(node, Stay(stay))].into();
        Report { used, touched: [node].into(), ..Report::default() }
    }

    #[test]
    fn what_aborts_uses_nothing_and_is_told() {
        let (mut top, mut untold) = (Scope::new(Path::default()), Untold::default());
        let call = top.next_child();
        top.answered(&mut untold, &call, report(1, 1));
        let mut child = Scope::new(top.next_child());
        let inner = child.next_child();
        child.answered(&mut untold, &inner, report(2, 1));
        top.aborted(&mut untold, &child);
        assert_eq!(top.used(), &Participants::from([(Node(1), Stay(1))]));
        assert_eq!(top.others(), BTreeSet::from([Node(2)]));
        let (committed, aborted) = (Outcome::Committed, Outcome::Aborted);
        assert_eq!(untold.of(Node(1)), vec![(call, committed)]);
        assert_eq!(untold.of(Node(2)), vec![(inner, committed), (child.path().clone(), aborted)]);
        let news = untold.of(Node(2));
        untold.heard(Node(2), &news);
        assert!(untold.of(Node(2)).is_empty());
    }

    #[test]
    fn another_stay_at_a_node_is_noticed() {
        let (mut top, mut untold) = (Scope::new(Path::default()), Untold::default());
        for stay in [1, 2] {
            let call = top.next_child();
            top.answered(&mut untold, &call, report(1, stay));
        }
        assert_eq!(top.lost(), Some(Node(1)));
    }
}
