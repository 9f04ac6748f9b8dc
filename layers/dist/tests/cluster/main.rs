//! Whole clusters, simulated: nodes that run what real ones run (hosts, families, scopes, the protocols), on stores,
//! a network and a keeper of slots that a seed decides about. They crash, are cut off, lose, double and delay
//! letters; in the end everything must have ended in one way, and some order of the transactions must explain it.
//!
//! One seed again, and all that happens: `CALIBURN_SEED=17 CALIBURN_TRACE=1 cargo test -p caliburn-dist --test
//! cluster`.

mod client;
mod clock;
mod ending;
mod event;
mod keeping;
mod lives;
#[path = "../../../lock/tests/support/mod.rs"]
mod random;
mod store;
mod world;

use caliburn_dist::commit::word::{Node, Outcome};
use caliburn_dist::id::Tid;
use caliburn_history::{History, Op, check};
use caliburn_nest::Timestamp;
use client::Client;
use event::{Event, Seen};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use world::{LISTS, NODES, World};

/// How many, unless told: as many as a build can run in some seconds.
const SEEDS: u64 = if cfg!(caliburn_sim) { 15_000 } else { 1_500 };
/// Transactions of each client, and clients of each node.
const TRANSACTIONS: u32 = 8;
const CLIENTS: u64 = 3;

fn run(seed: u64, forgets: bool) -> World {
    let mut world = World::new(seed);
    for number in 0..NODES * CLIENTS {
        let home = Node(1 + number % NODES);
        world.clients.push(Client::new(home, TRANSACTIONS));
    }
    (1..=NODES).for_each(|node| Client::home_is_back(&mut world, Node(node)));
    let ms = Duration::from_millis;
    // What goes wrong, in the first seconds.
    for _ in 0..world.random.below(6) {
        let time = ms(world.random.below(4_000));
        let node = Node(1 + world.random.below(NODES));
        world.after(time, Event::Crash(node));
    }
    for _ in 0..world.random.below(3) {
        let (time, long) = (ms(world.random.below(3_000)), ms(world.random.below(6_000)));
        let (a, b) = (Node(1 + world.random.below(NODES)), Node(1 + world.random.below(NODES)));
        world.after(time, Event::Cut(a.min(b), a.max(b), true));
        world.after(time + long, Event::Cut(a.min(b), a.max(b), false));
    }
    for _ in 0..world.random.below(3) {
        let (time, long) = (ms(world.random.below(3_000)), ms(world.random.below(8_000)));
        let node = Node(1 + world.random.below(NODES));
        world.after(time, Event::Pause(node, long));
    }
    match world.random.below(4) {
        0 => {
            let (time, long) = (ms(world.random.below(3_000)), ms(world.random.below(4_000)));
            world.after(time, Event::KeeperDown(true));
            world.after(time + long, Event::KeeperDown(false));
        }
        // It forgets: all, or the last changes; and all nodes are killed meanwhile, or none.
        1 if forgets => {
            let (time, long) = (ms(100 + world.random.below(4_000)), ms(3_600 + world.random.below(4_000)));
            let backup = (world.random.below(3) != 0).then(|| world.random.below(20) as usize);
            world.after(time, Event::KeeperDown(true));
            world.after(time + long, Event::Restored(backup));
            if world.random.below(2) == 0 {
                for node in 1..=NODES {
                    let time = time + ms(world.random.below(300));
                    world.after(time, Event::Crash(Node(node)));
                }
            }
        }
        _ => {}
    }
    let limit = Duration::from_secs(600);
    let mut operator = Duration::from_secs(60);
    while world.now < limit && !world.clients.iter().all(Client::is_idle) {
        assert!(world.step(), "seed {seed}: nothing happens any more, and a client waits");
        // Programs go on when an operator has judged.
        if world.forgot > 0 && world.now > operator {
            operator = world.now + Duration::from_secs(30);
            world.operate();
        }
    }
    world.calm = true;
    // All must have ended soon, with nobody crashing any more: locks, families, slots.
    loop {
        let end = world.now + Duration::from_secs(60);
        while world.now < end && world.step() {}
        if world.forgot == 0 || !world.operate() {
            return world;
        }
    }
}

fn verify(seed: u64, world: &World) {
    for (node, server) in &world.servers {
        let host = server.host.as_ref().unwrap_or_else(|| panic!("seed {seed}: {node:?} is not back"));
        assert_eq!(host.busy(), (0, 0), "seed {seed}: {node:?} is in the middle of something");
        assert!(server.families.is_empty(), "seed {seed}: {node:?} has families {:?}", server.families);
        assert_eq!(server.memory.borrow().locked(), 0, "seed {seed}: {node:?} has locks");
    }
    assert_eq!(world.keeper.len(), 0, "seed {seed}: slots are left: {:?}", world.keeper);
    let lists: Vec<Vec<u64>> =
        world.servers.values().flat_map(|server| server.memory.borrow().lists.clone()).collect();
    assert_eq!(lists.len(), NODES as usize * LISTS);
    // What is in memory is durable by now.
    for server in world.servers.values() {
        assert_eq!(server.disk.recover(LISTS).lists, server.memory.borrow().lists, "seed {seed}");
    }
    let there: HashSet<u64> = lists.iter().flatten().copied().collect();
    let mut history = History::default();
    for client in &world.clients {
        history.aborted.extend(&client.undone);
        for done in &client.done {
            let tokens = done.seen.iter().filter_map(|seen| match seen {
                Seen::Append(_, token) => Some(*token),
                Seen::Read(..) => None,
            });
            let (kept, lost): (Vec<u64>, Vec<u64>) = tokens.partition(|token| there.contains(token));
            let commits = match done.outcome {
                Some(outcome) => outcome == Outcome::Committed,
                // Nobody was told: whatever became of it, became of all of it.
                None => lost.is_empty(),
            };
            let tid = done.tid;
            match commits {
                true => assert!(lost.is_empty(), "seed {seed}: {tid} has committed, and {lost:?} is lost"),
                false => {
                    assert!(kept.is_empty(), "seed {seed}: {tid} has not committed, and {kept:?} is there")
                }
            }
            // What only read, and was not told, proves nothing.
            if commits && (done.outcome.is_some() || !kept.is_empty()) {
                let op = |seen: &Seen| match seen {
                    Seen::Append(list, token) => Op::Append(*list, *token),
                    Seen::Read(list, read) => Op::Read(*list, read.clone()),
                };
                history.committed.push(done.seen.iter().map(op).collect());
            }
        }
    }
    let undone = history.aborted.iter().find(|token| there.contains(token));
    assert_eq!(undone, None, "seed {seed}: what was undone is there");
    check(&history, &lists).unwrap_or_else(|anomaly| panic!("seed {seed}: {anomaly:?}"));
    timestamps(seed, world, &lists);
}

/// Those of transactions that depend on each other are in their order.
fn timestamps(seed: u64, world: &World, lists: &[Vec<u64>]) {
    let done =
        || world.clients.iter().flat_map(|client| &client.done).filter_map(|done| Some((done.at?, done)));
    for client in &world.clients {
        let own: Vec<Timestamp> = client.done.iter().filter_map(|done| done.at).collect();
        assert!(own.is_sorted(), "seed {seed}: a program's timestamps go back: {own:?}");
    }
    let mut writers = HashMap::new();
    for (at, done) in done() {
        for seen in &done.seen {
            if let Seen::Append(_, token) = seen {
                writers.insert(*token, (at, done.tid));
            }
        }
    }
    let of = |token: Option<&u64>| token.and_then(|token| writers.get(token));
    let ordered = |before: Option<&(Timestamp, Tid)>, after: Option<&(Timestamp, Tid)>| {
        if let (Some(before), Some(after)) = (before, after) {
            assert!(
                before.1 == after.1 || before.0 < after.0,
                "seed {seed}: {before:?} is not before {after:?}"
            );
        }
    };
    for list in lists {
        list.windows(2).for_each(|pair| ordered(of(pair.first()), of(pair.last())));
    }
    for (at, done) in done().filter(|(_, done)| done.outcome == Some(Outcome::Committed)) {
        for seen in &done.seen {
            if let Seen::Read(list, read) = seen {
                let own = (at, done.tid);
                ordered(of(read.last()), Some(&own));
                ordered(Some(&own), of(lists[*list].get(read.len())));
            }
        }
    }
}

#[test]
fn all_clusters_end_in_one_way() {
    all(false);
}

/// The keeper of slots is restored from a backup, or begins with nothing. What the nodes can't decide then they
/// say, and an operator judges as the programs were told; nothing is half-done, and nothing that was told is
/// otherwise.
#[test]
fn a_keeper_that_forgets_halves_nothing() {
    all(true);
}

fn all(forgets: bool) {
    let from = std::env::var("CALIBURN_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = if forgets { SEEDS / 5 } else { SEEDS };
    let count = std::env::var("CALIBURN_SEEDS").ok().map_or(seeds, |seeds| seeds.parse().expect("a number"));
    let seeds = from.map_or(0..count, |seed| seed..seed + 1);
    let (mut forgot, mut judged) = (0, 0);
    let (mut committed, mut aborted, mut unknown, mut faults, mut letters) = (0, 0, 0, 0, 0);
    for seed in seeds {
        let world = run(seed, forgets);
        verify(seed, &world);
        forgot += world.forgot;
        judged += world.judged;
        for done in world.clients.iter().flat_map(|client| &client.done) {
            match done.outcome {
                Some(Outcome::Committed) => committed += 1,
                Some(Outcome::Aborted) => aborted += 1,
                None => unknown += 1,
            }
        }
        faults += world.faults;
        letters += world.letters;
    }
    println!(
        "{committed} committed, {aborted} aborted, {unknown} unknown; {faults} crashes, {letters} letters"
    );
    if forgets {
        println!("forgotten {forgot} times, {judged} transactions judged by an operator");
        assert!(from.is_some() || forgot > 0);
    }
    assert!(from.is_some() || committed > aborted / 3, "most is lost: it shows nothing");
}
