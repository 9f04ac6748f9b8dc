//! The world: nodes, what they send each other, and what goes wrong, all in an order that a seed decides.

use crate::client::Client;
use crate::event::{Answer, Call, Caller, Event, Seen};
use crate::random::Random;
use crate::store::{Disk, Entry, List, Memory, Work};
use caliburn_dist::commit::word::*;
use caliburn_dist::family::{Family, NotReady};
use caliburn_dist::host::{Host, Role, Step};
use caliburn_dist::id::{News, Path, Tid};
use caliburn_dist::keep::{Claim, Known, memory::Memory as Keeper};
use caliburn_dist::letter::Brief;
use caliburn_dist::scope::{Report, Scope, Untold};
use caliburn_nest::Hybrid;
use caliburn_os::simulated::planted;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

pub const NODES: u64 = 3;
/// Lists of each node.
pub const LISTS: usize = 3;

/// A call that runs here and waits for another's answer.
pub struct Outer {
    call: Call,
    stay: Stay,
    scope: Scope,
    untold: Untold,
    seen: Vec<Seen>,
    waits_for: Path,
}

pub struct Server {
    pub host: Option<Host>,
    pub life: Incarnation,
    pub disk: Disk,
    pub memory: Rc<RefCell<Memory>>,
    pub families: BTreeMap<Tid, Family<Work>>,
    pub outer: BTreeMap<(Tid, Path), Outer>,
    /// Votes and own commits that wait for calls to end.
    pub votes: BTreeSet<Tid>,
    /// Of what is committed here, what has been done here itself.
    pub works: BTreeSet<Tid>,
    /// Claims that wait for what was prepared to be durable.
    pub claims: BTreeMap<Tid, Claim>,
    /// What it knows of its keeper.
    pub known: Known,
    pub clock: Hybrid,
    /// So far is its wall's clock ahead of the one that is furthest behind.
    pub skew: Duration,
}

pub struct World {
    pub random: Random,
    pub now: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    pub servers: BTreeMap<Node, Server>,
    pub keeper: Keeper,
    pub keeper_down: bool,
    /// How often it was started, and what it was after each of its last changes.
    pub starts: u64,
    /// How often it has forgotten something, and what an operator had to judge.
    pub forgot: u64,
    pub judged: u64,
    /// Nodes that run again when it does.
    pub waiting: BTreeSet<Node>,
    pub backups: VecDeque<Keeper>,
    pub clients: Vec<Client>,
    cut: BTreeSet<(Node, Node)>,
    /// Stopped, until then.
    paused: BTreeMap<Node, Duration>,
    /// From here on nothing goes wrong any more.
    pub calm: bool,
    pub faults: u64,
    pub letters: u64,
    trace: bool,
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut world = World {
            random: Random(seed),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            serial: 0,
            servers: BTreeMap::new(),
            keeper: Keeper::default(),
            keeper_down: false,
            starts: 0,
            forgot: 0,
            judged: 0,
            waiting: BTreeSet::new(),
            backups: VecDeque::new(),
            clients: Vec::new(),
            cut: BTreeSet::new(),
            paused: BTreeMap::new(),
            calm: false,
            faults: 0,
            letters: 0,
            trace: std::env::var_os("CALIBURN_TRACE").is_some(),
        };
        for node in (1..=NODES).map(Node) {
            let server = Server {
                host: None,
                life: Incarnation(0),
                disk: Disk::default(),
                memory: Memory::new(Vec::new()),
                families: BTreeMap::new(),
                outer: BTreeMap::new(),
                votes: BTreeSet::new(),
                works: BTreeSet::new(),
                claims: BTreeMap::new(),
                known: Known::default(),
                clock: Hybrid::default(),
                skew: ms(world.random.below(20_000)),
            };
            world.servers.insert(node, server);
            world.restart(node);
        }
        world
    }

    pub fn after(&mut self, time: Duration, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + time, self.serial), event);
    }

    /// Mostly a millisecond or so; sometimes much longer.
    pub fn travel(&mut self) -> Duration {
        match self.random.below(if self.calm { 1 } else { 30 }) {
            1 => ms(self.random.below(6_000)),
            _ => Duration::from_micros(200 + self.random.below(1_500)),
        }
    }

    pub fn arrives(&mut self, from: Node, to: Node) -> bool {
        let lost = !self.calm && self.random.below(40) == 0;
        !lost && (from == to || !self.cut.contains(&(from.min(to), from.max(to))))
    }

    /// Sends something on its way, which loses and doubles.
    pub fn send(&mut self, from: Node, to: Node, event: Event) {
        let letter = matches!(event, Event::Letter(_));
        self.letters += u64::from(letter && from != to);
        if !self.arrives(from, to) {
            return;
        }
        if letter && !self.calm && self.random.below(30) == 0 {
            let time = self.travel();
            self.after(time, event.clone());
        }
        let time = self.travel();
        self.after(time, event);
    }

    /// One thing happens. Whether there was one.
    pub fn step(&mut self) -> bool {
        let due = self.servers.iter().filter_map(|(node, server)| {
            let goes_on = self.paused.get(node).copied().unwrap_or_default();
            server.host.as_ref().and_then(Host::next_due).map(|due| (due.max(goes_on), *node))
        });
        let due = due.min();
        let next = self.queue.first_key_value().map(|((time, _), _)| *time);
        match (due, next) {
            (Some((due, node)), next) if next.is_none_or(|next| due < next) => {
                self.now = self.now.max(due);
                let now = self.now;
                let host = self.servers.get_mut(&node).expect("it is one").host.as_mut();
                let steps = host.map(|host| host.tick(now)).unwrap_or_default();
                self.perform(node, steps);
            }
            (_, Some(time)) => {
                self.now = self.now.max(time);
                let (_, event) = self.queue.pop_first().expect("there is one");
                self.happen(event);
            }
            _ => return false,
        }
        true
    }

    /// The node at which it happens.
    fn place(&self, event: &Event) -> Option<Node> {
        match event {
            Event::Letter(letter) => Some(letter.to),
            Event::Call(call) => Some(call.op.at),
            Event::Answer { caller, .. } | Event::GiveUp { caller, .. } => match caller {
                Caller::Client(client, _) => Some(self.clients[*client].home),
                Caller::Call(node, ..) => Some(*node),
            },
            Event::Sync(node, _) | Event::Sweep(node, _) => Some(*node),
            Event::Look(node, _) | Event::Looked(node, ..) => Some(*node),
            Event::Kept(claim, ..) => Some(claim.by),
            Event::Client(client) => Some(self.clients[*client].home),
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(until) = self.place(&event).and_then(|node| self.paused.get(&node)).copied()
            && until > self.now
        {
            return self.after(until - self.now, event);
        }
        if self.trace {
            println!("{:?} {event:?}", self.now);
        }
        match event {
            Event::Letter(letter) => {
                let to = letter.to;
                self.with_host(to, |host, now| host.receive(letter, now));
            }
            Event::Call(call) => self.called(call),
            Event::Answer { caller, call, news, from, answer } => {
                self.answered(caller, call, &news, from, answer);
            }
            Event::GiveUp { caller, call, to } => self.answered(caller, call, &News::new(), to, Err(None)),
            Event::Sync(node, life) => self.sync(node, life),
            Event::Claim(claim, known, asked) => self.put(claim, known, asked),
            Event::Kept(claim, kept, known, asked) => self.kept(claim, kept, known, asked),
            Event::Look(node, life) => self.look(node, life),
            Event::Looked(node, life, looked, asked) => self.looked(node, life, looked, asked),
            Event::Restored(backup) => self.keeper_restored(backup),
            Event::Delete(tid, participants) if !self.keeper_down => {
                self.keeper.delete(tid, &participants);
                self.back_up();
            }
            Event::Delete(..) => {}
            Event::Client(client) => Client::step(self, client),
            Event::Crash(node) => self.crash(node),
            Event::Restart(node) => self.restart(node),
            Event::Sweep(node, life) => self.sweep(node, life),
            Event::Cut(a, b, true) => _ = self.cut.insert((a, b)),
            Event::Cut(a, b, false) => _ = self.cut.remove(&(a, b)),
            Event::Pause(node, time) => {
                self.faults += 1;
                self.paused.insert(node, self.now + time);
            }
            Event::KeeperDown(down) => {
                self.keeper_down = down;
                let waiting = std::mem::take(&mut self.waiting);
                waiting.into_iter().for_each(|node| self.after(Duration::ZERO, Event::Restart(node)));
            }
        }
    }

    pub fn with_host(&mut self, node: Node, act: impl FnOnce(&mut Host, Duration) -> Vec<Step>) {
        let now = self.now;
        let server = self.servers.get_mut(&node).expect("it is one");
        let steps = server.host.as_mut().map(|host| act(host, now)).unwrap_or_default();
        self.perform(node, steps);
    }

    pub fn perform(&mut self, node: Node, steps: Vec<Step>) {
        for step in steps {
            if self.trace {
                println!("{:?}   {node:?}: {step:?}", self.now);
            }
            match step {
                Step::Wrong(..) => unreachable!("there is no administrator"),
                Step::Send(letter) => self.send(node, letter.to, Event::Letter(letter)),
                Step::Vote(tid, Brief { news, at }) => {
                    self.hear(node, at);
                    let server = self.servers.get_mut(&node).expect("it is one");
                    if !planted("heard-not-kept") {
                        server.keep(at);
                    }
                    if let Some(family) = server.families.get_mut(&tid) {
                        family.hear(&news);
                        family.close();
                    }
                    server.votes.insert(tid);
                    self.vote(node, tid);
                }
                Step::Force(tid, role, record) => self.write(node, tid, role, record, true),
                Step::Write(tid, role, record) => self.write(node, tid, role, record, false),
                Step::Put(tid, role, participants, of, slot) => {
                    let life = self.servers[&node].life;
                    let claim = Claim { tid, by: node, life, role, participants, of, slot };
                    self.claim(claim);
                }
                Step::Finish(tid, outcome) => self.finish(node, tid, outcome),
                Step::Tell(tid, outcome, at) => {
                    Client::told(self, node, tid, outcome, at);
                }
                Step::Delete(tid, participants) => {
                    let time = self.travel();
                    self.after(time, Event::Delete(tid, participants));
                }
            }
        }
    }

    /// Votes, if nothing runs any more.
    fn vote(&mut self, node: Node, tid: Tid) {
        let server = self.servers.get_mut(&node).expect("it is one");
        if !server.votes.contains(&tid) {
            return;
        }
        let vote = match server.families.get_mut(&tid).map(Family::finish) {
            Some(Err(NotReady::Running)) => return,
            None | Some(Err(NotReady::Spoiled)) => Vote::No,
            Some(Ok(top)) if top.changes().is_empty() => Vote::ReadOnly,
            Some(Ok(_)) => Vote::Yes,
        };
        server.votes.remove(&tid);
        self.with_host(node, |host, now| host.voted(tid, vote, now));
    }

    fn changes(&mut self, node: Node, tid: &Tid) -> BTreeMap<usize, List> {
        let family = self.servers.get_mut(&node).and_then(|server| server.families.get_mut(tid));
        let top = family.map(|family| family.finish().expect("it has voted"));
        top.map(|top| top.changes()).unwrap_or_default()
    }

    fn write(&mut self, node: Node, tid: Tid, role: Role, record: Record, force: bool) {
        match &record {
            Record::Committed | Record::Judged(Outcome::Committed) if !force => self.decides(node, tid, true),
            Record::Aborted | Record::Judged(_) if !force => self.decides(node, tid, false),
            _ => {}
        }
        let entry = match &record {
            Record::Prepared(all) => Entry::Prepared(tid, all.clone(), self.changes(node, &tid)),
            Record::Commit(told) => {
                let works = self.servers[&node].works.contains(&tid);
                let changes = if works { self.changes(node, &tid) } else { BTreeMap::new() };
                Entry::Commit(tid, told.clone(), changes)
            }
            Record::Committed => Entry::Decided(tid, true),
            Record::Aborted => Entry::Decided(tid, false),
            Record::End => Entry::End(tid),
            Record::Judged(_) if force => Entry::Judged,
            Record::Judged(outcome) => Entry::Decided(tid, *outcome == Outcome::Committed),
            Record::Settled(_) => unreachable!("nobody compares what was judged"),
        };
        let server = self.servers.get_mut(&node).expect("it is one");
        let whose = Some((tid, role, record.clone()));
        server.disk.written.push((entry, whose));
        let life = server.life;
        let time = if force { 500 } else { 5_000 };
        let time = Duration::from_micros(self.random.below(time));
        self.after(time, Event::Sync(node, life));
    }

    pub fn sync(&mut self, node: Node, life: Incarnation) {
        let server = self.servers.get_mut(&node).expect("it is one");
        if server.life != life {
            return;
        }
        for (entry, whose) in std::mem::take(&mut server.disk.written) {
            let server = self.servers.get_mut(&node).expect("it is one");
            server.disk.durable.push(entry.clone());
            let Some((tid, role, record)) = whose else {
                // Prepared, to be told to whoever keeps the slots.
                if let Entry::Prepared(tid, ..) = entry
                    && let Some(claim) = self.servers.get_mut(&node).and_then(|s| s.claims.remove(&tid))
                {
                    self.ask_keeper(claim);
                }
                continue;
            };
            self.with_host(node, |host, _| host.durable(tid, role, &record));
        }
    }

    /// All that was written is durable.
    pub fn sync_all(&mut self, node: Node) {
        while !self.servers[&node].disk.written.is_empty() {
            let life = self.servers[&node].life;
            self.sync(node, life);
        }
    }

    /// Puts a claim; what was changed is durable before its own says yes.
    fn claim(&mut self, claim: Claim) {
        let (node, tid) = (claim.by, claim.tid);
        if claim.of == node && claim.slot == Slot::Yes {
            let changes = self.changes(node, &tid);
            let server = self.servers.get_mut(&node).expect("it is one");
            let is_it = |entry: &Entry| matches!(entry, Entry::Prepared(of, ..) if *of == tid);
            let is_written = server.disk.written.iter().any(|(entry, _)| is_it(entry));
            let is_durable = server.disk.durable.iter().any(is_it);
            if !is_durable {
                if !is_written {
                    let entry = Entry::Prepared(tid, claim.participants.clone(), changes);
                    server.disk.written.push((entry, None));
                    let life = server.life;
                    let time = Duration::from_micros(self.random.below(500));
                    self.after(time, Event::Sync(node, life));
                }
                self.servers.get_mut(&node).expect("it is one").claims.insert(tid, claim);
                return;
            }
        }
        self.ask_keeper(claim);
    }

    fn ask_keeper(&mut self, claim: Claim) {
        let (node, known) = (claim.by, self.servers[&claim.by].known);
        let host = self.servers[&node].host.as_ref().filter(|host| !host.doubts());
        if let Some(until) = host.and_then(|host| host.deadline(claim.tid, claim.role, claim.slot)) {
            self.send(node, node, Event::Claim(claim, known, (self.now, until)));
        }
    }

    pub fn finish(&mut self, node: Node, tid: Tid, outcome: Outcome) {
        let server = self.servers.get_mut(&node).expect("it is one");
        server.votes.remove(&tid);
        server.works.remove(&tid);
        server.claims.remove(&tid);
        let Some(mut family) = server.families.remove(&tid) else { return };
        match outcome {
            Outcome::Committed => {
                family.finish().expect("it was ready").keep();
                drop(family.into_top());
            }
            Outcome::Aborted => {
                family.abort();
                // What runs goes on, for nothing.
                if family.runs() {
                    server.families.insert(tid, family);
                }
            }
        }
    }

    fn called(&mut self, call: Call) {
        let (node, tid, now) = (call.op.at, call.tid, self.now);
        self.hear(node, call.clock);
        let server = self.servers.get_mut(&node).expect("it is one");
        let Some(host) = &mut server.host else { return };
        let refuse = |world: &mut World, call: Call| {
            world.answer(&call, Err(None));
        };
        if now >= call.expires || (host.incarnation() != tid.incarnation && tid.coordinator == node) {
            return refuse(self, call);
        }
        let memory = server.memory.clone();
        let shows = server.clock.last();
        let Some(stay) = host.called(tid, call.expires, now) else { return refuse(self, call) };
        let family = server.families.entry(tid).or_insert_with(|| Family::new(Work::top(&memory)));
        family.hear(&call.news);
        let Ok(mut work) = family.begin(&call.path) else { return refuse(self, call) };
        let global = (node.0 as usize - 1) * LISTS + call.op.list;
        let seen = match call.op.token {
            Some(token) => work.append(call.op.list, token).map(|()| Seen::Append(global, token)),
            None => work.read(call.op.list).map(|list| Seen::Read(global, list)),
        };
        let Some(seen) = seen else {
            family.end(&call.path, work, false);
            self.vote(node, tid);
            return refuse(self, call);
        };
        let life = server.life;
        if let Some(then) = call.op.then.clone() {
            family.lend(&call.path, work);
            let (mut scope, untold) = (Scope::new(call.path.clone()), Untold::default());
            scope.hear(shows.max(call.clock));
            let path = scope.next_child();
            let caller = Caller::Call(node, life, tid, call.path.clone());
            let to = then.at;
            let news = untold.of(to);
            let inner = Call {
                tid,
                path: path.clone(),
                news,
                op: *then,
                expires: call.expires,
                clock: scope.clock(),
                caller: caller.clone(),
            };
            let waits_for = path.clone();
            let outer = Outer { call, stay, scope, untold, seen: vec![seen], waits_for };
            let key = (tid, outer.call.path.clone());
            server.outer.insert(key, outer);
            self.send(node, to, Event::Call(inner));
            self.after(ms(1_500), Event::GiveUp { caller, call: path, to });
            return;
        }
        family.end(&call.path, work, true);
        self.vote(node, tid);
        let used = [(node, stay)].into();
        let report = Report { used, touched: [node].into(), clock: self.shows(node), ..Report::default() };
        self.answer(&call, Ok((report, vec![seen])));
    }

    fn answer(&mut self, call: &Call, answer: Answer) {
        let to = match &call.caller {
            Caller::Client(client, _) => self.clients[*client].home,
            Caller::Call(node, ..) => *node,
        };
        let (caller, news, from) = (call.caller.clone(), call.news.clone(), call.op.at);
        self.send(from, to, Event::Answer { caller, call: call.path.clone(), news, from, answer });
    }

    fn answered(&mut self, caller: Caller, path: Path, news: &News, from: Node, answer: Answer) {
        let (node, life, tid, outer_path) = match caller {
            Caller::Client(client, tid) => {
                return Client::answered(self, (client, tid), &path, news, from, answer);
            }
            Caller::Call(node, life, tid, outer_path) => (node, life, tid, outer_path),
        };
        let server = self.servers.get_mut(&node).expect("it is one");
        let key = (tid, outer_path);
        if server.life != life || server.outer.get(&key).is_none_or(|outer| outer.waits_for != path) {
            return;
        }
        let Outer { call, stay, mut scope, mut untold, mut seen, .. } =
            server.outer.remove(&key).expect("it was there");
        let well = match answer {
            Ok((report, more)) => {
                untold.heard(from, news);
                scope.answered(&mut untold, &path, report);
                seen.extend(more);
                true
            }
            Err(report) => {
                scope.failed(&mut untold, &path, from, report);
                false
            }
        };
        let family = server.families.get_mut(&tid).expect("a call of it runs");
        family.hear(&untold.of(node));
        let own = untold.of(node);
        untold.heard(node, &own);
        let work = family.take(&call.path);
        // What failed within it fails it.
        let well = well && scope.lost().is_none() && !family.is_doomed(&call.path);
        family.end(&call.path, work, well);
        // An orphan's family is over when its last call is.
        let over = !family.runs() && !server.host.as_ref().is_some_and(|host| host.takes_part(&tid));
        if over && !server.votes.contains(&tid) {
            server.families.remove(&tid);
        }
        self.vote(node, tid);
        let mut report = scope.into_report(untold);
        report.touched.insert(node);
        report.clock = report.clock.max(self.shows(node));
        match well {
            true => {
                report.used.insert(node, stay);
                self.answer(&call, Ok((report, seen)));
            }
            false => self.answer(&call, Err(Some(report))),
        }
    }
}
