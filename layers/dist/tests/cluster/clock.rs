//! Clocks of simulated nodes, whose walls differ.

use crate::world::{Server, World};
use caliburn_dist::commit::word::Node;
use caliburn_nest::{AHEAD_NS, Timestamp};

impl Server {
    /// A crash does not forget this timestamp.
    pub fn keep(&mut self, at: Timestamp) {
        if at > self.disk.bound {
            self.disk.bound = Timestamp(at.0 + AHEAD_NS);
        }
    }
}

impl World {
    fn wall(&self, node: Node) -> u64 {
        // Nanoseconds, some day.
        1_000_000_000_000_000 + (self.now + self.servers[&node].skew).as_nanos() as u64
    }

    pub fn hear(&mut self, node: Node, clock: Timestamp) {
        let wall = self.wall(node);
        self.servers[&node].clock.hear(clock, wall).expect("none is far ahead");
    }

    /// What a node's clock shows.
    pub fn shows(&self, node: Node) -> Timestamp {
        self.servers[&node].clock.last()
    }

    /// The timestamp of a transaction that commits now.
    pub fn timestamp(&mut self, node: Node, heard: Timestamp) -> Timestamp {
        self.hear(node, heard);
        let wall = self.wall(node);
        let server = self.servers.get_mut(&node).expect("it is one");
        let at = server.clock.next(wall);
        server.keep(at);
        at
    }
}
