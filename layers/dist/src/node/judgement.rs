//! What an administrator decides in place of a coordinator that is gone: heuristic decisions, recorded, and compared
//! with how the transaction has ended everywhere else, when that is known.

use crate::commit::word::{Node as NodeId, Outcome};
use crate::host::Step;
use crate::id::Tid;
use crate::node::core::Core;
use crate::node::ledger::Judgement;
use crate::node::running::Node;
use crate::node::state::State;
use caliburn_os::simulated::unless;
use tonic::Status;

/// A transaction that is prepared at a node, and waits to be told how it ends; until then nobody has its locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// Which one. Its coordinator is part of its name.
    pub tid: Tid,
    /// All that have changed something.
    pub participants: Vec<NodeId>,
}

impl<'t> Core<'t> {
    /// After a crash: ends here what was judged, and asks on whether that was right.
    pub(super) fn recover_judged(&self, state: &mut State<'t>, judged: &[Judgement]) -> Vec<Step> {
        let now = self.outside.now();
        // One that was wrong is settled; but for one that a crash came between before it had ended here.
        let ends = |it: &&Judgement| {
            let here = unless("judged-not-ended", state.families.contains_key(&it.tid));
            it.otherwise.is_none() || here
        };
        let ending: Vec<Judgement> = judged.iter().filter(ends).copied().collect();
        ending.into_iter().flat_map(|it| state.host.recover_judged(it.tid, it.outcome, now)).collect()
    }

    fn judge(&self, tid: Tid, outcome: Outcome) -> Result<(), Status> {
        let mut can = false;
        let doing = self.host_steps(|host, _| {
            let steps = host.judge(tid, outcome);
            can = steps.is_some();
            steps.unwrap_or_default()
        });
        if !can {
            let why = "it is not prepared here, has been told how it ends, or commits without blocking";
            return Err(Status::failed_precondition(format!("transaction {tid} can't be judged: {why}")));
        }
        self.perform(doing);
        self.outside.goes_on()?;
        match self.ledger.judgements().iter().any(|judgement| judgement.tid == tid) || self.is_settled(tid) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("the node has no room to remember that")),
        }
    }

    /// Told how it ends since it was judged.
    fn is_settled(&self, tid: Tid) -> bool {
        !self.state().host.takes_part(&tid)
    }
}

impl Node {
    /// Transactions that are prepared here, and wait to be told how they end.
    ///
    /// # Errors
    /// When the node stops.
    pub async fn undecided(&self) -> Result<Vec<Undecided>, Status> {
        self.on_thread(true, |core| {
            let state = core.state();
            let undecided = state.host.undecided();
            let all =
                undecided.map(|(tid, all)| Undecided { tid, participants: all.keys().copied().collect() });
            all.collect()
        })
        .await
    }

    /// Ends a transaction that is undecided here, since its coordinator is gone for ever, or its locks can't be
    /// waited for (a heuristic decision). This may be wrong: then half of it is done. It is remembered, and when the
    /// coordinator is there again after all, compared with what it has decided.
    ///
    /// # Errors
    /// When it is not undecided, or would not wait for a coordinator; when the node can't remember it, or stops.
    pub async fn judge(&self, tid: Tid, outcome: Outcome) -> Result<(), Status> {
        self.on_thread(true, move |core| core.judge(tid, outcome)).await?
    }

    /// What was judged here: until it turns out to have been right, or is [forgotten](Node::forget).
    ///
    /// # Errors
    /// When the node stops.
    pub async fn judgements(&self) -> Result<Vec<Judgement>, Status> {
        self.on_thread(true, |core| core.ledger.judgements()).await
    }

    /// Forgets a judgement that was wrong, when what depended on it is mended.
    ///
    /// # Errors
    /// When there is none of that transaction that was wrong; when the node stops.
    pub async fn forget(&self, tid: Tid) -> Result<(), Status> {
        self.on_thread(true, move |core| match core.ledger.forget_judgement(tid) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::not_found(format!("no judgement of transaction {tid} was wrong"))),
            Err(error) => Err(Status::unavailable(error.to_string())),
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::commit::word::{Incarnation, Participants, Protocol, Stay};
    use crate::node::core::Name;
    use crate::node::ledger::{self, Ledger};
    use crate::node::state::global_id;
    use caliburn_engine::{Mode, Store};
    use caliburn_lock::Standard;
    use caliburn_nest::Timestamp;

    /// A store with a transaction that was prepared when the process died; what else happened before.
    fn prepared(path: &std::path::Path, tid: Tid, happens: impl FnOnce(&Ledger<'_>)) {
        let store = Store::options().create(true).open(path).unwrap();
        let own = store.create_segment(ledger::SEGMENT, ledger::SEGMENT_BYTES).unwrap().map_all().unwrap();
        let data = store.create_segment("data", 4096).unwrap().map_all().unwrap();
        let (ledger, ..) = Ledger::open(&store, &own);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&data, 0, &5u64).unwrap();
        let participants = Participants::from([(NodeId(2), Stay(1))]);
        tx.prepare(&global_id(tid, Timestamp::default(), &participants)).unwrap();
        happens(&ledger);
    }

    fn tid() -> Tid {
        let (coordinator, incarnation) = (NodeId(1), Incarnation(1));
        Tid { coordinator, incarnation, client: 7, serial: 1, protocol: Protocol::Blocking }
    }

    async fn start(path: &std::path::Path) -> Node {
        Node::builder(Cluster::new("test"), 2, path).segment("data", 4096).start().await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_number_is_locked_before_what_was_prepared_is_decided() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        prepared(&path, tid(), |_| {});
        let node = start(&path).await;
        let is_free = async || {
            let tried = |core: &Core<'_>| {
                core.names.try_lock(&mut core.detector.owner(), Name::Any, Standard::IntentExclusive).unwrap()
            };
            node.on_thread(false, move |core| tried(core)).await.unwrap()
        };
        assert!(!is_free().await, "it may be what the prepared one had locked");
        node.judge(tid(), Outcome::Aborted).await.unwrap();
        assert!(is_free().await);
        node.stop().await;
    }

    /// The process has died between the judgement and what it does: with the truth unknown, and known already.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_judgement_is_obeyed_after_a_crash() {
        for (outcome, settled) in [
            (Outcome::Committed, false),
            (Outcome::Committed, true),
            (Outcome::Aborted, false),
            (Outcome::Aborted, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let tid = tid();
            prepared(&path, tid, |ledger| {
                ledger.judge(tid, outcome).unwrap();
                if settled {
                    ledger.settle(tid, false).unwrap();
                }
            });
            let node = start(&path).await;
            let undecided = node.undecided().await.unwrap();
            let judgements = node.judgements().await.unwrap();
            node.stop().await;
            assert_eq!(undecided, []);
            assert_eq!((judgements[0].tid, judgements[0].outcome), (tid, outcome));
            assert_eq!((judgements.len(), judgements[0].otherwise.is_some()), (1, settled));
            let store = Store::open(&path).unwrap();
            assert_eq!(store.prepared().len(), 0, "it holds its locks for ever");
            let data = store.segment("data").unwrap().map_all().unwrap();
            let expected = if outcome == Outcome::Committed { 5u64 } else { 0 };
            assert_eq!(data.load::<u64>(0), expected);
        }
    }
}
