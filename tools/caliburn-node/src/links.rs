//! The network of `demo`: a way from each node to each other one, and to each member of etcd, which can be
//! cut.

use caliburn_dist::link::Link;
use caliburn_tools::Failure;
use std::net::SocketAddr;

/// All ways.
pub struct Links {
    /// From node to node; none to itself.
    nodes: Vec<Vec<Option<Link>>>,
    /// From node to member.
    members: Vec<Vec<Link>>,
}

impl Links {
    /// Those among nodes and members at these addresses. Within a runtime.
    pub fn new(nodes: &[SocketAddr], members: &[SocketAddr]) -> Result<Links, Failure> {
        let others = |own: usize| {
            let to = nodes.iter().enumerate();
            let link = |(number, address): (usize, &SocketAddr)| {
                (number != own).then(|| Link::to(*address)).transpose()
            };
            to.map(link).collect::<std::io::Result<Vec<_>>>()
        };
        let to_members =
            || members.iter().map(|address| Link::to(*address)).collect::<std::io::Result<Vec<_>>>();
        let numbers = 0..nodes.len();
        Ok(Links {
            nodes: numbers.clone().map(others).collect::<Result<_, _>>()?,
            members: numbers.map(|_| to_members()).collect::<Result<_, _>>()?,
        })
    }

    /// Where a node finds the others: numbers from 0 on.
    pub fn nodes_of(&self, node: usize) -> impl Iterator<Item = (usize, SocketAddr)> {
        let to = self.nodes[node].iter().enumerate();
        to.filter_map(|(number, link)| Some((number, link.as_ref()?.address())))
    }

    /// Where it finds the members.
    pub fn members_of(&self, node: usize) -> impl Iterator<Item = SocketAddr> {
        self.members[node].iter().map(Link::address)
    }

    /// Cuts a node off from all others, in both directions, or makes that whole.
    pub fn cut_off(&self, node: usize, cut: bool) {
        let to = self.nodes.iter().filter_map(|from| from[node].as_ref());
        self.nodes[node].iter().flatten().chain(to).for_each(|link| link.set_whole(!cut));
    }

    /// Cuts the ways between two nodes.
    pub fn cut_between(&self, one: usize, other: usize, cut: bool) {
        [&self.nodes[one][other], &self.nodes[other][one]].into_iter().flatten().for_each(|link| {
            link.set_whole(!cut);
        });
    }

    /// Cuts a node off from etcd.
    pub fn cut_from_members(&self, node: usize, cut: bool) {
        self.members[node].iter().for_each(|link| link.set_whole(!cut));
    }
}
