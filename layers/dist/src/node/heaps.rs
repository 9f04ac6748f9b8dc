//! What a transaction has allocated and freed in its server's heaps, made part of it when it ends: by a list in each
//! heap, which is settled when the transaction is decided. See [`caliburn_heap::Allocations`].

use crate::commit::word::Outcome;
use caliburn_engine::Transaction;
use caliburn_heap::{Allocations, Heap, HeapError, Intended};

/// Makes it part of a transaction.
///
/// # Errors
/// When a heap can't: all is undone.
pub(super) fn intend<'t>(
    transaction: Transaction<'t>,
    all: Vec<Allocations<'t>>,
    id: &[u8],
) -> Result<(Transaction<'t>, Vec<Intended<'t>>), HeapError> {
    let (mut transaction, mut intended) = (transaction, Vec::new());
    // What follows is dropped after the transaction if one of them fails.
    for of in all.into_iter().filter(|of| !of.is_empty()) {
        match of.intend(transaction, id) {
            Ok((same, list)) => {
                transaction = same;
                intended.push(list);
            }
            Err(error) => {
                settle(intended, Outcome::Aborted);
                return Err(error);
            }
        }
    }
    Ok((transaction, intended))
}

/// The transaction is decided.
pub(super) fn settle(intended: Vec<Intended<'_>>, outcome: Outcome) {
    intended.into_iter().for_each(|list| list.settle(outcome == Outcome::Committed));
}

/// What a prepared transaction has intended, looked up while it is not decided.
pub(super) fn intended<'t>(heaps: impl Iterator<Item = &'t Heap>, id: &[u8]) -> Vec<Intended<'t>> {
    heaps.filter_map(|heap| heap.intended(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::commit::word::{Incarnation, Node as NodeId, Participants, Protocol, Stay};
    use crate::id::Tid;
    use crate::node::Node;
    use crate::node::core::Core;
    use crate::node::state::global_id;
    use caliburn_engine::{Class, Store};
    use caliburn_lock::Standard;
    use caliburn_nest::Timestamp;

    /// A process that died when it had prepared a transaction: what that has freed, and allocated, is locked until
    /// it is decided, though it has stored to neither.
    #[tokio::test(flavor = "multi_thread")]
    async fn objects_of_what_is_undecided_are_locked_after_a_crash() {
        for outcome in [Outcome::Committed, Outcome::Aborted] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let (coordinator, incarnation) = (NodeId(1), Incarnation(1));
            let tid = Tid { coordinator, incarnation, client: 7, serial: 1, protocol: Protocol::Blocking };
            let objects = {
                let store = Store::options().create(true).open(&path).unwrap();
                let heap = Heap::open(&store, "h").unwrap();
                let mut tx = heap.begin().unwrap();
                let (old, kept) = (tx.allocate(100).unwrap(), tx.allocate(100).unwrap());
                tx.commit(Class::Process).unwrap();
                let mut tx = heap.begin().unwrap();
                tx.free(old).unwrap();
                let new = tx.allocate(5_000).unwrap();
                let participants = Participants::from([(NodeId(2), Stay(1))]);
                tx.prepare(&global_id(tid, Timestamp::default(), &participants)).unwrap();
                [old, new, kept]
            };
            let node =
                Node::builder(Cluster::new("test"), 2, &path).heap("h", 1 << 20).start().await.unwrap();
            let are_free = async || {
                let tried = move |core: &Core<'_>| {
                    let segment = core.heaps[0].region().segment_id().0;
                    objects.map(|place| {
                        let (mut owner, end) = (core.detector.owner(), place.0 + 100);
                        core.locks
                            .try_lock(&mut owner, &segment, place.0 + 99..end, Standard::Shared)
                            .unwrap()
                    })
                };
                node.on_thread(false, tried).await.unwrap()
            };
            assert_eq!(are_free().await, [false, false, true], "old, new, kept");
            node.judge(tid, outcome).await.unwrap();
            assert_eq!(are_free().await, [true; 3]);
            node.stop().await;
            let store = Store::open(&path).unwrap();
            let heap = Heap::open(&store, "h").unwrap();
            heap.check().unwrap();
            let there: Vec<_> = heap.objects().map(|(place, _)| place).collect();
            let committed = outcome == Outcome::Committed;
            let is_there = objects.map(|place| there.contains(&place));
            assert_eq!((is_there, there.len()), ([!committed, committed, true], 2));
        }
    }
}
