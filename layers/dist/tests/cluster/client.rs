//! Programs that begin transactions: each at a node of its own, one transaction after the other.

use crate::event::{Answer, Call, Caller, Event, Op, Seen};
use crate::world::{LISTS, NODES, World};
use caliburn_dist::commit::word::{Node, Outcome, Protocol};
use caliburn_dist::id::{News, Path, Tid};
use caliburn_dist::scope::{Scope, Untold};
use caliburn_nest::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// What a transaction is to do.
#[derive(Debug)]
enum Plan {
    Begin,
    Call(Op),
    End(Outcome),
}

#[derive(Debug)]
struct Level {
    scope: Scope,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Run {
    tid: Tid,
    levels: Vec<Level>,
    untold: Untold,
    plan: VecDeque<Plan>,
    waits_for: Option<(Path, Node)>,
    expires: Duration,
    committing: bool,
    at: Option<Timestamp>,
}

/// What became of a transaction, as its program knows: nothing if its node crashed.
#[derive(Debug)]
pub struct Done {
    pub tid: Tid,
    pub outcome: Option<Outcome>,
    /// When, if it has committed.
    pub at: Option<Timestamp>,
    /// What it has done and not undone.
    pub seen: Vec<Seen>,
}

#[derive(Debug)]
pub struct Client {
    pub home: Node,
    /// Its number at its node; another one after each crash.
    number: u64,
    serial: u64,
    run: Option<Run>,
    /// The last timestamp that it has heard of.
    clock: Timestamp,
    pub left: u32,
    pub done: Vec<Done>,
    /// Tokens of calls that were given up, or whose transaction was: nobody may see them.
    pub undone: Vec<u64>,
}

impl Client {
    pub fn new(home: Node, left: u32) -> Client {
        let (done, undone) = (Vec::new(), Vec::new());
        Client { home, number: 0, serial: 0, run: None, clock: Timestamp::default(), left, done, undone }
    }

    pub fn is_idle(&self) -> bool {
        self.run.is_none() && self.left == 0
    }

    fn begin(world: &mut World, client: usize) {
        let (home, number) = (world.clients[client].home, world.clients[client].number);
        let incarnation = world.servers[&home].life;
        let mut plan = VecDeque::new();
        for _ in 0..1 + world.random.below(3) {
            let nested = world.random.below(2) == 0;
            if nested {
                plan.push_back(Plan::Begin);
            }
            for _ in 0..1 + world.random.below(2) {
                plan.push_back(Plan::Call(Self::op(world, client, 0)));
            }
            if nested {
                let aborts = world.random.below(5) == 0;
                plan.push_back(Plan::End(if aborts { Outcome::Aborted } else { Outcome::Committed }));
            }
        }
        let aborts = world.random.below(10) == 0;
        plan.push_back(Plan::End(if aborts { Outcome::Aborted } else { Outcome::Committed }));
        let protocol = if world.random.below(2) == 0 { Protocol::Blocking } else { Protocol::Slots };
        // Longer than anything here takes: orphans must be found otherwise.
        let expires = world.now + Duration::from_secs(3_600);
        let it = &mut world.clients[client];
        it.left -= 1;
        it.serial += 1;
        let tid = Tid { coordinator: home, incarnation, client: number, serial: it.serial, protocol };
        let mut scope = Scope::new(Path::default());
        scope.hear(it.clock);
        let levels = vec![Level { scope, seen: Vec::new() }];
        let untold = Untold::default();
        it.run =
            Some(Run { tid, levels, untold, plan, waits_for: None, expires, committing: false, at: None });
    }

    fn op(world: &mut World, client: usize, depth: u32) -> Op {
        let at = Node(1 + world.random.below(NODES));
        let list = world.random.below(LISTS as u64) as usize;
        let token = (world.random.below(3) != 0).then(|| (client as u64) << 40 | world.random.below(1 << 40));
        let calls = depth < 2 && world.random.below(3) == 0;
        let then = calls.then(|| Box::new(Self::op(world, client, depth + 1)));
        Op { at, list, token, then }
    }

    /// Goes on until it waits.
    pub fn step(world: &mut World, client: usize) {
        if world.servers[&world.clients[client].home].host.is_none() {
            return;
        }
        if world.clients[client].run.is_none() {
            if world.clients[client].left == 0 {
                return;
            }
            Self::begin(world, client);
        }
        loop {
            let run = world.clients[client].run.as_mut().expect("it has begun");
            if run.waits_for.is_some() || run.committing {
                return;
            }
            match run.plan.pop_front().expect("it ends") {
                Plan::Begin => {
                    let path = run.levels.last_mut().expect("there is the top").scope.next_child();
                    run.levels.push(Level { scope: Scope::new(path), seen: Vec::new() });
                }
                Plan::Call(op) => {
                    let path = run.levels.last_mut().expect("there is the top").scope.next_child();
                    run.waits_for = Some((path.clone(), op.at));
                    let (tid, news, expires) = (run.tid, run.untold.of(op.at), run.expires);
                    let clock = run.levels[0].scope.clock();
                    let (to, caller) = (op.at, Caller::Client(client, tid));
                    let caller_too = caller.clone();
                    let call = Call { tid, path: path.clone(), news, op, expires, clock, caller: caller_too };
                    world.send(tid.coordinator, to, Event::Call(call));
                    world.after(Duration::from_secs(2), Event::GiveUp { caller, call: path, to });
                }
                Plan::End(outcome) if run.levels.len() > 1 => {
                    let child = run.levels.pop().expect("it is there");
                    let parent = run.levels.last_mut().expect("there is the top");
                    let lost = child.scope.lost().is_some();
                    if outcome == Outcome::Committed && !lost {
                        parent.scope.committed(&mut run.untold, &child.scope);
                        parent.seen.extend(child.seen);
                    } else {
                        parent.scope.aborted(&mut run.untold, &child.scope);
                        Self::undone(world, client, &child.seen);
                    }
                }
                Plan::End(outcome) => {
                    let (tid, scope) = (run.tid, run.levels[0].scope.clone());
                    let untold = std::mem::take(&mut run.untold);
                    run.committing = true;
                    let commits = outcome == Outcome::Committed && scope.lost().is_none();
                    let at = if commits { world.commit(tid, &scope, untold) } else { None };
                    match (at, world.clients[client].run.as_mut()) {
                        (Some(at), Some(run)) => run.at = Some(at),
                        // It was told at once.
                        (Some(_), None) => {}
                        (None, _) => {
                            world.abort(tid, &scope);
                            Self::end(world, client, Some(Outcome::Aborted));
                        }
                    }
                    return;
                }
            }
        }
    }

    fn undone(world: &mut World, client: usize, seen: &[Seen]) {
        let tokens = seen.iter().filter_map(|seen| match seen {
            Seen::Append(_, token) => Some(*token),
            Seen::Read(..) => None,
        });
        world.clients[client].undone.extend(tokens);
    }

    fn end(world: &mut World, client: usize, outcome: Option<Outcome>) {
        let Some(mut run) = world.clients[client].run.take() else { return };
        let seen = run.levels.swap_remove(0).seen;
        if outcome == Some(Outcome::Aborted) {
            Self::undone(world, client, &seen);
        }
        world.clients[client].done.push(Done { tid: run.tid, outcome, at: run.at, seen });
        let time = Duration::from_micros(world.random.below(3_000));
        world.after(time, Event::Client(client));
    }

    pub fn answered(
        world: &mut World,
        (client, tid): (usize, Tid),
        path: &Path,
        news: &News,
        from: Node,
        answer: Answer,
    ) {
        let Some(run) = world.clients[client].run.as_mut() else { return };
        if run.tid != tid || run.waits_for.as_ref() != Some(&(path.clone(), from)) {
            return;
        }
        run.waits_for = None;
        let level = run.levels.last_mut().expect("there is the top");
        match answer {
            Ok((report, seen)) => {
                run.untold.heard(from, news);
                level.scope.answered(&mut run.untold, path, report);
                level.seen.extend(seen);
            }
            Err(report) => {
                level.scope.failed(&mut run.untold, path, from, report);
                // The innermost transaction aborts; the top goes on, or aborts too.
                let aborts = run.levels.len() > 1 || path.0[0].is_multiple_of(2);
                while aborts && let Some(next) = run.plan.pop_front() {
                    if let Plan::End(_) = next {
                        run.plan.push_front(Plan::End(Outcome::Aborted));
                        break;
                    }
                }
            }
        }
        Self::step(world, client);
    }

    pub fn told(world: &mut World, node: Node, tid: Tid, outcome: Outcome, at: Timestamp) {
        let is_its =
            |client: &Client| client.run.as_ref().is_some_and(|run| run.tid == tid && run.committing);
        if tid.coordinator == node
            && let Some(client) = world.clients.iter().position(is_its)
        {
            if let Some(run) = world.clients[client].run.as_mut().filter(|_| outcome == Outcome::Committed) {
                run.at = Some(at);
                let clock = &mut world.clients[client].clock;
                *clock = (*clock).max(at);
            }
            Self::end(world, client, Some(outcome));
        }
    }

    /// Nobody knows what became of what it was about to commit.
    pub fn home_crashed(world: &mut World, node: Node) {
        for client in 0..world.clients.len() {
            if world.clients[client].home == node {
                let committing = world.clients[client].run.as_ref().is_some_and(|run| run.committing);
                Self::end(world, client, if committing { None } else { Some(Outcome::Aborted) });
            }
        }
    }

    pub fn home_is_back(world: &mut World, node: Node) {
        for client in 0..world.clients.len() {
            if world.clients[client].home == node {
                world.clients[client].number += 1;
                world.clients[client].serial = 0;
                let number = client as u64 * 1_000 + world.clients[client].number;
                world.clients[client].number = number;
                world.with_host(node, |host, _| {
                    host.client_comes(number);
                    Vec::new()
                });
                world.after(Duration::ZERO, Event::Client(client));
            }
        }
    }
}
