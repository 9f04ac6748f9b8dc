//! Single courses of events in which the keeper of slots is restored from a backup. A node that has closed a slot
//! which the backup lacks has ended the transaction; the others must end it in the same way, or wait. The simulated
//! clusters meet these courses too rarely.
//!
//! Node 1 coordinates; nodes 2 and 3 take part. All is durable at once, and what a node sends arrives, unless the
//! course says otherwise.

use caliburn_dist::commit::word::*;
use caliburn_dist::host::{Host, Patience, Step};
use caliburn_dist::id::Tid;
use caliburn_dist::keep::{Claim, Kept, Known, Looked, Newcomer, memory::Memory};
use caliburn_dist::letter::Letter;
use caliburn_dist::scope::Report;
use caliburn_nest::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const COORDINATOR: Node = Node(1);
const FIRST: Node = Node(2);
const SECOND: Node = Node(3);
const CLIENT: u64 = 7;
/// Between two looks at the keeper.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Course {
    hosts: BTreeMap<Node, Host>,
    known: BTreeMap<Node, Known>,
    /// What is prepared, and not decided.
    prepared: BTreeMap<Node, Participants>,
    keeper: Memory,
    /// Nodes that nobody reaches, and that reach nobody, the keeper included.
    cut: BTreeSet<Node>,
    /// Nodes that hear, and reach nobody.
    mute: BTreeSet<Node>,
    /// Nodes at which letters arrive later.
    slow: BTreeSet<Node>,
    late: Vec<Letter>,
    /// The keeper does not answer.
    down: bool,
    /// Nodes whose puts are on their way, and those puts: each with the time until which the node tries it.
    held: BTreeSet<Node>,
    under_way: Vec<(Claim, Duration)>,
    /// A node whose threads are busy, and what it is to put when they are not.
    busy: Option<Node>,
    /// A node whose disk is slow, and the answers that it looks at when something is durable.
    forces: Option<Node>,
    answers: Vec<(Claim, Slot, Duration)>,
    waiting: Vec<Claim>,
    /// Nodes that wait longer than others before they ask.
    patience: BTreeMap<Node, Duration>,
    letters: VecDeque<Letter>,
    now: Duration,
    /// What the program was told, and how the transaction has ended at each node.
    told: BTreeSet<Outcome>,
    ends: BTreeMap<Node, Outcome>,
}

fn tid() -> Tid {
    let (coordinator, incarnation) = (COORDINATOR, Incarnation(1));
    Tid { coordinator, incarnation, client: CLIENT, serial: 1, protocol: Protocol::Slots }
}

impl Course {
    /// The transaction was called at both participants.
    fn new() -> Course {
        let mut course = Course::default();
        [COORDINATOR, FIRST, SECOND].into_iter().for_each(|node| course.start(node));
        course.host(COORDINATOR).client_comes(CLIENT);
        course
    }

    fn speaks(&self, node: Node) -> bool {
        !self.cut.contains(&node) && !self.mute.contains(&node)
    }

    fn host(&mut self, node: Node) -> &mut Host {
        self.hosts.get_mut(&node).expect("it is one")
    }

    /// A node begins a life; what it is in the middle of is what it had prepared.
    fn start(&mut self, node: Node) {
        let (now, known) = (self.now, self.known.get(&node).copied().unwrap_or_default());
        let behind = self.hosts.get(&node).map_or(Incarnation(0), Host::incarnation);
        let met = self.keeper.meet(&Newcomer::new(node, behind, known), [1; 16]);
        let mut patience = Patience::default();
        patience.answer = self.patience.get(&node).copied().unwrap_or(patience.answer);
        let mut host = Host::new(node, met.life, patience);
        match met.doubt {
            Some(_) => host.reliance().doubt(),
            None => _ = host.reliance().contact(now, now),
        }
        self.known.insert(node, met.known);
        self.hosts.insert(node, host);
        if let Some(all) = self.prepared.get(&node).cloned() {
            let steps = self.host(node).recover_prepared(tid(), all, now);
            self.perform(node, steps);
        }
    }

    /// The program calls both participants, and commits.
    fn commit(&mut self) {
        self.commit_at(&[FIRST, SECOND]);
    }

    fn commit_at(&mut self, nodes: &[Node]) {
        let (now, expires) = (self.now, Duration::from_secs(60));
        let mut call = |node: &Node| (*node, self.host(*node).called(tid(), expires, now).unwrap());
        let used = nodes.iter().map(&mut call).collect();
        let report = Report { used, touched: nodes.iter().copied().collect(), ..Report::default() };
        let steps = self.host(COORDINATOR).commit(tid(), report, None, Timestamp::default(), now);
        self.perform(COORDINATOR, steps);
        self.deliver();
    }

    /// So much time passes: nodes look after the keeper, and learn what the time is.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += LOOK;
            let now = self.now;
            for node in [COORDINATOR, FIRST, SECOND] {
                if self.reaches_keeper(node) {
                    let (life, known) = (self.host(node).incarnation(), self.known[&node]);
                    match self.keeper.look(node, life, &known) {
                        Looked::Well(known) => self.learn(node, &known),
                        Looked::Forgot(_) => self.host(node).reliance().doubt(),
                        Looked::Fenced => panic!("nobody else is {node:?}"),
                    }
                }
                let steps = self.host(node).tick(now);
                self.perform(node, steps);
            }
            self.deliver();
        }
    }

    fn learn(&mut self, node: Node, known: &Known) {
        self.known.get_mut(&node).expect("it is one").learn(known);
        let now = self.now;
        let steps = self.host(node).contact(now, now);
        self.perform(node, steps);
    }

    fn reaches_keeper(&self, node: Node) -> bool {
        self.speaks(node) && !self.down
    }

    /// The keeper is lost; what there is after so long is a backup.
    fn restore(&mut self, backup: Memory, after: Duration) {
        self.down = true;
        self.pass(after);
        (self.keeper, self.down) = (backup, false);
    }

    /// Letters and puts that were late arrive, if they are still tried; and what waited for a thread has one.
    fn catch_up(&mut self) {
        (self.slow, self.held) = Default::default();
        self.letters.extend(std::mem::take(&mut self.late));
        self.deliver();
        let now = self.now;
        for (claim, until) in std::mem::take(&mut self.under_way) {
            if now <= until {
                self.arrive(&claim);
            }
        }
        self.busy = None;
        for claim in std::mem::take(&mut self.waiting) {
            self.put(&claim);
        }
    }

    fn deliver(&mut self) {
        while let Some(letter) = self.letters.pop_front() {
            if !self.speaks(letter.from) || self.cut.contains(&letter.to) {
                continue;
            }
            if self.slow.contains(&letter.to) {
                self.late.push(letter);
                continue;
            }
            let (to, now) = (letter.to, self.now);
            let steps = self.host(to).receive(letter, now);
            self.perform(to, steps);
        }
    }

    fn perform(&mut self, node: Node, steps: Vec<Step>) {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            let now = self.now;
            let more = match step {
                Step::Send(letter) => {
                    self.letters.push_back(letter);
                    Vec::new()
                }
                Step::Vote(tid, _) => self.host(node).voted(tid, Vote::Yes, now),
                Step::Force(tid, role, record) | Step::Write(tid, role, record) => {
                    self.host(node).durable(tid, role, &record)
                }
                Step::Put(tid, role, participants, of, slot) => {
                    if of == node && slot == Slot::Yes {
                        self.prepared.insert(node, participants.clone());
                    }
                    let life = self.host(node).incarnation();
                    let claim = Claim { tid, by: node, life, role, participants, of, slot };
                    self.put(&claim);
                    Vec::new()
                }
                Step::Finish(_, outcome) => {
                    self.prepared.remove(&node);
                    let before = self.ends.insert(node, outcome);
                    assert!(
                        before.is_none_or(|before| before == outcome),
                        "it ends in both ways at {node:?}"
                    );
                    Vec::new()
                }
                Step::Tell(_, outcome, _) => {
                    self.told.insert(outcome);
                    Vec::new()
                }
                Step::Delete(tid, participants) => {
                    self.keeper.delete(tid, &participants);
                    Vec::new()
                }
                Step::Wrong(..) => unreachable!("nobody judges"),
            };
            steps.extend(more);
        }
    }

    fn put(&mut self, claim: &Claim) {
        let node = claim.by;
        if self.busy == Some(node) {
            return self.waiting.push(claim.clone());
        }
        let Some(until) = self.host(node).deadline(claim.tid, claim.role, claim.slot) else { return };
        match self.held.contains(&node) && claim.slot != Slot::Empty {
            true => self.under_way.push((claim.clone(), until)),
            false => self.arrive(claim),
        }
    }

    fn found(&mut self, claim: &Claim, slot: Slot, then: Duration) {
        let (now, which) = (self.now, (claim.tid, claim.role, claim.of));
        let steps = self.host(claim.by).found(which, slot, (then, then), now);
        self.perform(claim.by, steps);
    }

    fn arrive(&mut self, claim: &Claim) {
        let node = claim.by;
        if !self.reaches_keeper(node) {
            return;
        }
        match self.keeper.put(claim, &self.known[&node]) {
            (Kept::Slot(slot), known) if self.forces == Some(node) => {
                self.known.get_mut(&node).expect("it is one").learn(&known);
                self.answers.push((claim.clone(), slot, self.now));
            }
            (Kept::Slot(slot), known) => {
                self.known.get_mut(&node).expect("it is one").learn(&known);
                self.found(claim, slot, self.now);
            }
            (Kept::Forgot(_), _) => self.host(node).reliance().doubt(),
            (Kept::Fenced, _) => panic!("nobody else is {node:?}"),
        }
        self.deliver();
    }
}

/// A participant closes the slot of another one, which has not voted, and aborts. The backup lacks that: a node
/// that votes then must have asked all others.
#[test]
fn nobody_votes_again_for_what_a_participant_has_aborted() {
    let mut course = Course::with_one_vote();
    let backup = course.keeper.clone();
    course.cut = [COORDINATOR].into();
    course.pass(Duration::from_secs(3));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.keeper = backup;
    (course.cut, course.mute) = ([FIRST].into(), BTreeSet::new());
    [COORDINATOR, SECOND].into_iter().for_each(|node| course.start(node));
    course.pass(Duration::from_secs(10));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut.clear();
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Aborted, &[FIRST, SECOND]);
}

/// The coordinator has closed a slot, and told its program that the transaction has aborted; both participants are
/// prepared, and the backup lacks what was closed. They wait for a coordinator that they can't ask.
#[test]
fn nobody_votes_again_before_the_coordinator_was_asked() {
    let mut course = Course::closed_by_the_coordinator();
    course.cut = [COORDINATOR].into();
    course.pass(Duration::from_secs(30));
    course.wait_for_an_operator();
}

/// The same; the coordinator runs again, and sees that the keeper lacks what it has put there. It does not know
/// whether it has told somebody of an abort: it vouches for nothing.
#[test]
fn a_coordinator_in_doubt_vouches_for_nothing() {
    let mut course = Course::closed_by_the_coordinator();
    course.start(COORDINATOR);
    assert!(course.host(COORDINATOR).doubts());
    course.pass(Duration::from_secs(30));
    course.wait_for_an_operator();
}

/// The same; an operator has accepted the backup at the coordinator, which is in doubt no more. Of what was begun
/// before it vouches for nothing either.
#[test]
fn a_coordinator_vouches_for_nothing_that_a_lost_keeper_knew() {
    let mut course = Course::closed_by_the_coordinator();
    course.start(COORDINATOR);
    let accepted = course.host(COORDINATOR).incarnation();
    course.known.remove(&COORDINATOR);
    course.start(COORDINATOR);
    course.host(COORDINATOR).reliance().accepted_in(accepted);
    assert!(!course.host(COORDINATOR).doubts());
    course.pass(Duration::from_secs(30));
    course.wait_for_an_operator();
}

/// All have crashed, nobody has closed anything, and one slot is missing: it is written again.
#[test]
fn a_missing_slot_is_written_again_when_all_were_asked() {
    let mut course = Course::with_one_vote();
    course.mute.clear();
    [COORDINATOR, FIRST, SECOND].into_iter().for_each(|node| course.start(node));
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Committed, &[FIRST, SECOND]);
}

/// The first vote of a participant is on its way while another one closes its slot, in a keeper that is lost then.
/// The vote does not land in the backup.
#[test]
fn a_vote_that_is_late_does_not_land_in_a_copy() {
    let mut course = Course::new();
    course.held = [SECOND].into();
    course.commit();
    let backup = course.keeper.clone();
    course.cut = [COORDINATOR].into();
    course.mute = [SECOND].into();
    course.pass(Duration::from_secs(1));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut.insert(FIRST);
    course.mute.clear();
    course.restore(backup, Duration::from_millis(2_500));
    course.catch_up();
    course.pass(Duration::from_secs(10));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut.clear();
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Aborted, &[FIRST, SECOND]);
}

/// The same; the coordinator has closed the slot, and told its program.
#[test]
fn a_vote_that_is_late_does_not_undo_what_a_program_was_told() {
    let mut course = Course::new();
    course.held = [SECOND].into();
    course.commit();
    let backup = course.keeper.clone();
    course.cut = [FIRST, SECOND].into();
    course.pass(Duration::from_secs(1));
    assert_eq!(course.told, [Outcome::Aborted].into());
    course.cut = [COORDINATOR].into();
    course.restore(backup, Duration::from_millis(2_500));
    course.catch_up();
    course.pass(Duration::from_secs(30));
    course.wait_for_an_operator();
}

/// A participant is asked for its vote when its slot was closed in a keeper that is lost. It does not vote in the
/// backup, which lacks that.
#[test]
fn a_question_that_is_late_is_not_answered_in_a_copy() {
    let mut course = Course::new();
    course.slow = [SECOND].into();
    course.commit();
    let backup = course.keeper.clone();
    course.cut = [COORDINATOR].into();
    course.pass(LOOK);
    course.cut.insert(SECOND);
    course.pass(LOOK);
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut = [COORDINATOR, FIRST].into();
    course.restore(backup, Duration::from_secs(2));
    course.pass(LOOK);
    course.cut.remove(&COORDINATOR);
    course.late.retain(|letter| letter.from == COORDINATOR);
    course.catch_up();
    course.cut.insert(COORDINATOR);
    course.pass(Duration::from_secs(2));
    assert!(!course.ends.contains_key(&SECOND), "{:?}", course.ends);
    course.cut.clear();
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Aborted, &[FIRST, SECOND]);
}

/// A coordinator was sure when it wanted to close a slot, and does it later: the vote was there meanwhile, and has
/// decided; the backup lacks it.
#[test]
fn a_slot_is_not_closed_because_of_what_was_so_before() {
    let mut course = Course::new();
    course.patience = [FIRST, SECOND].map(|node| (node, Duration::from_secs(2))).into();
    [FIRST, SECOND].into_iter().for_each(|node| course.start(node));
    (course.held, course.busy) = ([SECOND].into(), Some(COORDINATOR));
    course.commit();
    let backup = course.keeper.clone();
    course.pass(Duration::from_secs(1));
    assert_eq!(course.waiting.len(), 2, "it closes the slots");
    let claims = std::mem::take(&mut course.under_way);
    course.arrive(&claims[0].0);
    course.held.clear();
    course.cut = [COORDINATOR].into();
    course.pass(Duration::from_secs(1));
    course.has_ended(Outcome::Committed, &[FIRST, SECOND]);
    course.cut = [FIRST, SECOND].into();
    course.restore(backup, Duration::from_secs(2));
    course.pass(LOOK);
    course.catch_up();
    course.pass(LOOK);
    assert!(!course.told.contains(&Outcome::Aborted));
    course.cut.clear();
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Committed, &[FIRST, SECOND]);
}

/// A participant asks, and waits long until it asks again. What another one has said was true before the keeper was
/// lost: that one has closed a slot since.
#[test]
fn words_of_before_an_absence_do_not_count() {
    let mut course = Course::with_one_vote();
    course.patience = [(SECOND, Duration::from_secs(8))].into();
    (course.slow, course.mute) = ([COORDINATOR].into(), BTreeSet::new());
    course.start(SECOND);
    course.deliver();
    let backup = course.keeper.clone();
    course.mute = [COORDINATOR].into();
    course.pass(LOOK);
    course.cut = [SECOND].into();
    course.pass(LOOK);
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut = [FIRST].into();
    course.restore(backup, Duration::from_millis(2_500));
    course.mute.clear();
    course.pass(LOOK);
    course.catch_up();
    course.pass(Duration::from_secs(10));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut.clear();
    course.pass(Duration::from_secs(30));
    course.has_ended(Outcome::Aborted, &[FIRST, SECOND]);
}

/// A participant has closed a slot, and the coordinator has seen that, and told its program. Both forget it in a
/// power cut, and the backup lacks it; others have written much there since. The coordinator notices.
#[test]
fn a_coordinator_remembers_what_another_node_has_closed() {
    let mut course = Course::with_one_vote();
    let mut backup = course.keeper.clone();
    let prepared = course.prepared.clone();
    course.cut = [COORDINATOR].into();
    course.pass(Duration::from_secs(1));
    course.has_ended(Outcome::Aborted, &[FIRST]);
    course.cut = [FIRST, SECOND].into();
    course.pass(Duration::from_secs(2));
    assert_eq!(course.told, [Outcome::Aborted].into());
    // It was not durable.
    (course.prepared, course.ends) = (prepared, BTreeMap::new());
    for _ in 0..100 {
        backup.begin_life(Node(9), Incarnation(0));
    }
    course.keeper = backup;
    (course.cut, course.mute) = Default::default();
    [COORDINATOR, FIRST, SECOND].into_iter().for_each(|node| course.start(node));
    course.pass(Duration::from_secs(30));
    course.wait_for_an_operator();
}

/// A coordinator has closed a slot, and makes durable what it knows of the keeper before it tells that. This takes
/// so long that the keeper is replaced, and that the coordinator says meanwhile that it has told nobody.
#[test]
fn what_was_closed_before_a_long_force_does_not_count() {
    let mut course = Course::with_one_vote();
    let backup = course.keeper.clone();
    course.forces = Some(COORDINATOR);
    course.cut = [FIRST, SECOND].into();
    course.pass(Duration::from_secs(1));
    let answers = std::mem::take(&mut course.answers);
    assert_eq!(answers.iter().map(|(_, slot, _)| *slot).collect::<Vec<_>>(), [Slot::Yes, Slot::Closed]);
    course.forces = None;
    course.restore(backup, Duration::from_secs(3));
    (course.cut, course.mute) = Default::default();
    [FIRST, SECOND].into_iter().for_each(|node| course.start(node));
    course.deliver();
    course.pass(Duration::from_secs(2));
    course.has_ended(Outcome::Committed, &[FIRST, SECOND]);
    for (claim, slot, then) in answers {
        course.found(&claim, slot, then);
    }
    course.pass(Duration::from_secs(30));
    assert_eq!(course.told, [Outcome::Committed].into());
    course.has_ended(Outcome::Committed, &[FIRST, SECOND]);
}

/// The coordinator takes part. A participant that runs again tells all that it has committed; that the coordinator
/// knows it does not mean that all do.
#[test]
fn one_that_knows_is_not_all() {
    let mut course = Course::new();
    let all = [COORDINATOR, FIRST, SECOND];
    course.held = [SECOND].into();
    course.commit_at(&all);
    let backup = course.keeper.clone();
    course.slow = [SECOND].into();
    let (vote, _) = course.under_way.pop().expect("it votes");
    course.arrive(&vote);
    course.has_ended(Outcome::Committed, &[COORDINATOR, FIRST]);
    // The last one does not hear it.
    course.late.clear();
    (course.slow, course.held) = Default::default();
    course.cut = [SECOND].into();
    // It tells again later than the last one asks.
    course.patience = [(FIRST, Duration::from_secs(8))].into();
    course.start(FIRST);
    let steps = course.host(FIRST).recover_commit(tid(), vote.participants, Duration::ZERO);
    course.perform(FIRST, steps);
    course.deliver();
    (course.keeper, course.cut) = (backup, [COORDINATOR].into());
    course.slow = [SECOND].into();
    course.start(SECOND);
    course.pass(Duration::from_secs(5));
    // Letters may overtake each other.
    course.late.reverse();
    course.catch_up();
    course.has_ended(Outcome::Committed, &all);
}

/// What a coordinator has not told all participants yet, it would not tell if an operator had it accept its keeper.
#[test]
fn a_coordinator_knows_what_it_has_not_told() {
    let mut course = Course::with_one_vote();
    course.pass(Duration::from_secs(3));
    assert_eq!((course.host(COORDINATOR).telling(), course.told.len()), (1, 1));
    course.mute.clear();
    course.pass(Duration::from_secs(30));
    assert_eq!(course.host(COORDINATOR).telling(), 0);
}

impl Course {
    /// Both participants are prepared; what the second one says, and puts, does not arrive.
    fn with_one_vote() -> Course {
        let mut course = Course::new();
        course.mute = [SECOND].into();
        course.commit();
        assert_eq!((course.prepared.len(), course.keeper.len()), (2, 1));
        course
    }

    /// The coordinator closes the second slot and aborts; nobody but its program hears of it, and the backup is
    /// from before.
    fn closed_by_the_coordinator() -> Course {
        let mut course = Course::with_one_vote();
        let backup = course.keeper.clone();
        course.cut = [FIRST, SECOND].into();
        course.pass(Duration::from_secs(3));
        assert_eq!(course.told, [Outcome::Aborted].into());
        course.keeper = backup;
        (course.cut, course.mute) = Default::default();
        course
    }

    /// In one way for all that know.
    fn has_ended(&self, outcome: Outcome, at: &[Node]) {
        assert!(self.told.iter().all(|told| *told == outcome), "the program was told {:?}", self.told);
        assert_eq!(self.ends, at.iter().map(|node| (*node, outcome)).collect());
    }

    fn wait_for_an_operator(&self) {
        self.has_ended(Outcome::Aborted, &[]);
        let waits: Vec<bool> = self.hosts.values().flat_map(Host::undecided).map(|(.., asks)| asks).collect();
        assert_eq!(waits, [true, true]);
    }
}
