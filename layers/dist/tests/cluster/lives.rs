//! Nodes crash, and run again with what their disks have.

use crate::client::Client;
use crate::event::Event;
use crate::store::{Entry, Memory, Work};
use crate::world::{LISTS, World, ms};
use caliburn_dist::commit::word::*;
use caliburn_dist::family::Family;
use caliburn_dist::host::{Host, Patience};
use caliburn_dist::keep::Newcomer;
use caliburn_nest::Hybrid;
use std::collections::BTreeMap;

impl World {
    /// Now and then it looks for slots that nobody else deletes.
    pub fn sweep(&mut self, node: Node, life: Incarnation) {
        if self.servers[&node].life != life {
            return;
        }
        let is_well = !self.keeper_down && !self.servers[&node].host.as_ref().is_some_and(Host::doubts);
        let all = if is_well { self.keeper.of(node) } else { BTreeMap::new() };
        for (tid, participants) in all {
            self.with_host(node, |host, now| host.sweep(tid, participants, now));
        }
        self.with_host(node, |host, now| {
            let all: Vec<_> = host.remembered().clone().into_iter().collect();
            all.into_iter().flat_map(|(tid, all)| host.recover_commit(tid, all, now)).collect()
        });
        self.after(ms(20_000), Event::Sweep(node, life));
    }

    pub fn crash(&mut self, node: Node) {
        let server = self.servers.get_mut(&node).expect("it is one");
        if server.host.take().is_none() {
            return;
        }
        self.faults += 1;
        let kept = self.random.below(server.disk.written.len() as u64 + 1) as usize;
        let written: Vec<Entry> = server.disk.written.drain(..).map(|(entry, _)| entry).collect();
        server.disk.durable.extend(written.into_iter().take(kept));
        server.outer.clear();
        server.votes.clear();
        server.works.clear();
        server.claims.clear();
        server.families.clear();
        server.life.0 += 1;
        Client::home_crashed(self, node);
        let time = ms(self.random.below(8_000));
        self.after(time, Event::Restart(node));
    }

    pub fn restart(&mut self, node: Node) {
        let now = self.now;
        if self.keeper_down {
            self.waiting.insert(node);
            return;
        }
        let new = [1 + self.starts as u8; 16];
        let server = self.servers.get_mut(&node).expect("it is one");
        if server.host.is_some() {
            return;
        }
        let found = server.disk.recover(LISTS);
        let newcomer = Newcomer::new(node, server.disk.life, found.keeper);
        let met = self.keeper.meet(&newcomer, new);
        let life = met.life;
        (server.life, server.known) = (life, met.known);
        (server.disk.life, server.disk.known) = (life, met.known);
        let patience =
            Patience { answer: ms(300), probe: ms(500), silence: ms(2_000), ..Patience::default() };
        let mut host = Host::new(node, life, patience);
        host.reliance().accepted_in(server.disk.accepted);
        match met.doubt {
            Some(_) => host.reliance().doubt(),
            None => _ = host.reliance().contact(now, now),
        }
        server.memory = Memory::new(found.lists);
        server.clock = Hybrid::default();
        server.clock.remember(server.disk.bound);
        let mut steps = Vec::new();
        for (tid, (participants, brings)) in found.prepared {
            let mut work = Work::top(&server.memory);
            work.hold(brings);
            let mut family = Family::new(work);
            family.close();
            server.families.insert(tid, family);
            steps.extend(host.recover_prepared(tid, participants, now));
        }
        for (tid, participants) in found.commits {
            steps.extend(host.recover_commit(tid, participants, now));
        }
        server.host = Some(host);
        self.perform(node, steps);
        self.sweep(node, life);
        self.look(node, life);
        Client::home_is_back(self, node);
    }
}
