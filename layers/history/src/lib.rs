//! Histories of transactions that append to lists and read them, and whether some order of the transactions, one
//! after the other, explains them (Adya's anomalies, 1999; the lists tell the order of the writes, as in Elle,
//! Kingsbury and Alvaro, 2020). For tests, also of whole clusters.
//!
//! ```
//! use caliburn_history::{Anomaly, History, Op::{Append, Read}, check};
//!
//! // Each has read one list before the other one has appended to it.
//! let skewed = vec![vec![Read(0, vec![]), Append(1, 2)], vec![Read(1, vec![]), Append(0, 1)]];
//! let history = History { committed: skewed, ..History::default() };
//! assert!(matches!(check(&history, &[vec![1], vec![2]]), Err(Anomaly::Circle("G2", _))));
//! ```
#![forbid(unsafe_code)]

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{HashMap, HashSet};

/// What a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Appended a number that nobody else appends.
    Append(usize, u64),
    /// Read a whole list.
    Read(usize, Vec<u64>),
}

/// Transactions that committed, and what was appended by those that did not.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// What each has done, in its order.
    pub committed: Vec<Vec<Op>>,
    /// When each began and was known to have committed, by one clock, if the order must be that of what followed
    /// each other (strict serializability); empty if any order will do.
    pub times: Vec<(u64, Option<u64>)>,
    /// Numbers that must be in no list.
    pub aborted: HashSet<u64>,
}

/// What is wrong with a history.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Anomaly {
    /// A read saw what was never committed (G1a).
    #[error("{0} was never committed, and was read (G1a)")]
    AbortedRead(u64),
    /// A read saw a part of what a transaction appended (G1b).
    #[error("{0} was read, and not what its transaction has appended behind it (G1b)")]
    IntermediateRead(u64),
    /// A list does not begin with what was read of it, or lacks an append (G0, or a lost update).
    #[error("list {0} lacks what was appended, or was read (a lost update, or G0)")]
    Lists(usize),
    /// These depend on each other in a circle, by writes alone (G0), writes and reads (G1c), anti-dependencies too
    /// (G2), or since one had ended before another one began (real time).
    #[error("transactions {1:?} depend on each other in a circle ({0})")]
    Circle(&'static str, Vec<usize>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Write,
    Read,
    Anti,
    Time,
}

/// Checks a history against the lists as they are in the end.
///
/// # Errors
/// The first anomaly that is found.
pub fn check(history: &History, lists: &[Vec<u64>]) -> Result<(), Anomaly> {
    let mut writer = HashMap::new();
    let there: Vec<HashSet<u64>> = lists.iter().map(|list| list.iter().copied().collect()).collect();
    for (tx, ops) in history.committed.iter().enumerate() {
        for op in ops {
            if let Op::Append(list, number) = op {
                writer.insert(*number, tx);
                if !there[*list].contains(number) {
                    return Err(Anomaly::Lists(*list));
                }
            }
        }
    }
    if let Some(number) = lists.iter().flatten().find(|number| !writer.contains_key(*number)) {
        return Err(Anomaly::AbortedRead(*number));
    }
    // The last number that each transaction appended to each list.
    let of_lists =
        lists.iter().enumerate().flat_map(|(at, list)| list.iter().map(move |number| (at, *number)));
    let last: HashMap<_, _> = of_lists.map(|(list, number)| ((writer[&number], list), number)).collect();
    let mut graph = DiGraph::<(), Edge>::new();
    let nodes: Vec<NodeIndex> = history.committed.iter().map(|_| graph.add_node(())).collect();
    let mut edge = |from: usize, to: usize, kind: Edge| {
        if from != to {
            graph.add_edge(nodes[from], nodes[to], kind);
        }
    };
    for list in lists {
        list.windows(2).for_each(|pair| edge(writer[&pair[0]], writer[&pair[1]], Edge::Write));
    }
    for (tx, ops) in history.committed.iter().enumerate() {
        for (list, read) in ops.iter().filter_map(|op| match op {
            Op::Read(list, read) => Some((*list, read)),
            Op::Append(..) => None,
        }) {
            if let Some(number) = read.iter().find(|number| history.aborted.contains(*number)) {
                return Err(Anomaly::AbortedRead(*number));
            }
            if !lists[list].starts_with(read) {
                return Err(Anomaly::Lists(list));
            }
            if let Some(number) = read.last() {
                let by = writer[number];
                if by != tx && last[&(by, list)] != *number {
                    return Err(Anomaly::IntermediateRead(*number));
                }
                edge(by, tx, Edge::Read);
            }
            if let Some(next) = lists[list].get(read.len()) {
                edge(tx, writer[next], Edge::Anti);
            }
        }
    }
    add_times(&mut graph, &nodes, &history.times);
    let kinds = [(Edge::Write, "G0"), (Edge::Read, "G1c"), (Edge::Anti, "G2"), (Edge::Time, "real time")];
    for (most, name) in kinds {
        // Not by recursion: paths through time are as long as a history.
        let part = graph.filter_map(|_, ()| Some(()), |_, kind| (*kind <= most).then_some(*kind));
        if let Some(circle) = kosaraju_scc(&part).into_iter().find(|of| of.len() > 1) {
            let of = circle.into_iter().map(NodeIndex::index).filter(|at| *at < history.committed.len());
            return Err(Anomaly::Circle(name, of.collect()));
        }
    }
    Ok(())
}

/// Whoever had ended before another one began comes first. By a chain of moments, one for each end, since not all
/// pairs can be named: an end leads to its moment, and the last moment before a begin to that.
fn add_times(graph: &mut DiGraph<(), Edge>, nodes: &[NodeIndex], times: &[(u64, Option<u64>)]) {
    let mut ends: Vec<(u64, NodeIndex)> =
        times.iter().zip(nodes).filter_map(|((_, end), node)| Some(((*end)?, *node))).collect();
    ends.sort_unstable();
    let mut moments: Vec<(u64, NodeIndex)> = Vec::new();
    for (end, node) in ends {
        let moment = graph.add_node(());
        graph.add_edge(node, moment, Edge::Time);
        if let Some((_, before)) = moments.last() {
            graph.add_edge(*before, moment, Edge::Time);
        }
        moments.push((end, moment));
    }
    for ((begin, _), node) in times.iter().zip(nodes) {
        let before = moments.partition_point(|(end, _)| end < begin);
        if let Some((_, moment)) = before.checked_sub(1).map(|at| moments[at]) {
            graph.add_edge(moment, *node, Edge::Time);
        }
    }
}
