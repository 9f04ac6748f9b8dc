//! The keeper of slots in the world: it is away, it is restored from a backup, or begins with nothing; and the
//! operator who judges what the nodes can't decide then.

use crate::event::Event;
use crate::store::Entry;
use crate::world::World;
use caliburn_dist::commit::word::*;
use caliburn_dist::host::Role;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::{Claim, Kept, Known, Looked, memory::Memory as Keeper};
use caliburn_dist::reliance::LOOK;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Changes of which there are backups.
const BACKUPS: usize = 60;
/// A claim is tried for so long, and after so long again.
const TRIED: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(50);

impl World {
    pub fn back_up(&mut self) {
        self.backups.push_front(self.keeper.clone());
        self.backups.truncate(BACKUPS);
    }

    /// A claim comes to the keeper; if that is away it is tried again, as etcd's client does.
    pub fn put(&mut self, claim: Claim, known: Known, (asked, until): (Duration, Duration)) {
        if self.now > until.min(asked + TRIED) {
            return;
        }
        if self.keeper_down {
            return self.after(AGAIN, Event::Claim(claim, known, (asked, until)));
        }
        let (kept, known) = self.keeper.put(&claim, &known);
        self.back_up();
        let time = self.travel();
        if self.arrives(claim.by, claim.by) {
            self.after(time, Event::Kept(claim, kept, known, asked));
        }
    }

    pub fn kept(&mut self, claim: Claim, kept: Kept, known: Known, asked: Duration) {
        let (node, now) = (claim.by, self.now);
        let server = self.servers.get_mut(&node).expect("it is one");
        if server.life != claim.life || server.host.is_none() {
            return;
        }
        match kept {
            Kept::Slot(slot) => {
                server.known.learn(&known);
                if (claim.role, slot) == (Role::Coordinator, Slot::Closed) {
                    server.disk.known.learn(&known);
                }
                let which = (claim.tid, claim.role, claim.of);
                self.with_host(node, |host, _| host.found(which, slot, (asked, now), now));
            }
            Kept::Fenced => {}
            Kept::Forgot(doubt) => self.looked(node, claim.life, Looked::Forgot(doubt), asked),
        }
    }

    pub fn look(&mut self, node: Node, life: Incarnation) {
        let server = &self.servers[&node];
        if server.life != life || server.host.is_none() {
            return;
        }
        if !self.keeper_down {
            let looked = self.keeper.look(node, life, &server.known);
            let (time, asked) = (self.travel(), self.now);
            if self.arrives(node, node) {
                self.after(time, Event::Looked(node, life, looked, asked));
            }
        }
        self.after(LOOK, Event::Look(node, life));
    }

    pub fn looked(&mut self, node: Node, life: Incarnation, looked: Looked, asked: Duration) {
        let now = self.now;
        let server = self.servers.get_mut(&node).expect("it is one");
        let Some(host) = server.host.as_mut().filter(|_| server.life == life) else { return };
        match looked {
            Looked::Well(known) => {
                server.known.learn(&known);
                self.with_host(node, |host, _| host.contact(asked, now));
            }
            Looked::Forgot(_) => host.reliance().doubt(),
            Looked::Fenced => {}
        }
    }

    /// It comes back.
    pub fn keeper_restored(&mut self, backup: Option<usize>) {
        let backup = backup.map(|changes| self.backups.get(changes).cloned());
        if let Some(state) = backup.unwrap_or_else(|| Some(Keeper::default())) {
            self.keeper = state;
            self.backups.clear();
            self.forgot += 1;
        }
        self.keeper_down = false;
        self.starts += 1;
        // Those that could not run without it.
        for node in std::mem::take(&mut self.waiting) {
            self.after(Duration::ZERO, Event::Restart(node));
        }
    }

    /// What a node does before it decides for good: it remembers what it relies on.
    pub fn decides(&mut self, node: Node, tid: Tid, commits: bool) {
        if tid.protocol != Protocol::Slots {
            return;
        }
        let server = self.servers.get_mut(&node).expect("it is one");
        server.disk.written.push((Entry::Known(server.known), None));
        let entries = server.disk.durable.iter().chain(server.disk.written.iter().map(|(entry, _)| entry));
        let all = entries.clone().find_map(|entry| match entry {
            Entry::Prepared(of, all, _) if *of == tid => Some(all.clone()),
            _ => None,
        });
        if let Some(all) = all.filter(|_| commits) {
            server.disk.written.push((Entry::Remembered(tid, all), None));
        }
    }

    /// An operator looks at all nodes, judges what they can't decide as the program was told, and has them rely on
    /// the keeper that there is. Whether there was something to do.
    pub fn operate(&mut self) -> bool {
        let nodes: Vec<Node> = self.servers.keys().copied().collect();
        let mut waits: BTreeMap<Tid, BTreeSet<Node>> = BTreeMap::new();
        for node in &nodes {
            let Some(host) = &self.servers[node].host else { continue };
            let its = host.undecided().filter(|(_, _, asks)| *asks).map(|(tid, ..)| tid);
            its.for_each(|tid| _ = waits.entry(tid).or_default().insert(*node));
        }
        let judged = waits.len();
        for (tid, at) in waits {
            let told = self.clients.iter().flat_map(|client| &client.done).find(|done| done.tid == tid);
            // Where the program was not told, one of the nodes may know; else nobody has decided.
            let remembers = |entry: &Entry| matches!(entry, Entry::Remembered(of, _) if *of == tid);
            let knows = self.servers.values().any(|server| {
                let written = server.disk.written.iter().map(|(entry, _)| entry);
                server.disk.durable.iter().chain(written).any(remembers)
            });
            let unknown = if knows { Outcome::Committed } else { Outcome::Aborted };
            let outcome = told.and_then(|done| done.outcome).unwrap_or(unknown);
            for node in at {
                self.with_host(node, |host, _| host.judge(tid, outcome).unwrap_or_default());
            }
        }
        self.judged += judged as u64;
        let doubts =
            |world: &World, node: &Node| world.servers[node].host.as_ref().is_some_and(|host| host.doubts());
        let doubting: Vec<Node> = nodes.into_iter().filter(|node| doubts(self, node)).collect();
        for node in &doubting {
            let server = self.servers.get_mut(node).expect("it is one");
            let is_free = server.host.as_ref().is_some_and(|host| host.undecided().all(|(.., asks)| !asks));
            if !is_free {
                continue;
            }
            self.sync_all(*node);
            let server = self.servers.get_mut(node).expect("it is one");
            server.disk.durable.push(Entry::Accepted);
            (server.disk.known, server.disk.accepted) = (Known::default(), server.life);
            self.crash(*node);
        }
        judged > 0 || !doubting.is_empty()
    }
}
