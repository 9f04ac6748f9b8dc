//! What an administrator decides in place of a coordinator that is gone: heuristic decisions, recorded, and compared
//! with how the transaction has ended everywhere else, when that is known.

use crate::commit::word::{Node as NodeId, Outcome, Participants};
use crate::host::Step;
use crate::id::Tid;
use crate::node::core::Core;
use crate::node::ledger::Judgement;
use crate::node::running::Node;
use crate::node::state::State;
use caliburn_os::simulated::unless;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Status;

/// Why a node stops whose operator has accepted its etcd, and how long it waits before.
const ACCEPTED: &str = "an operator has accepted its etcd: it relies on that when it runs again";
const ANSWERED: Duration = Duration::from_millis(100);

/// A transaction that is prepared at a node, and waits to be told how it ends; until then nobody has its locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// Which one. Its coordinator is part of its name.
    pub tid: Tid,
    /// All that take part.
    pub participants: Vec<NodeId>,
    /// It commits without blocking, and the node can't rely on what etcd says of it: others must say how it ends,
    /// or an administrator.
    pub asks: bool,
}

impl<'t> Core<'t> {
    /// After a crash: ends here what was judged, and asks on whether that was right. `prepared`: with whom, of what
    /// had not ended here.
    pub(super) fn recover_judged(
        &self,
        state: &mut State<'t>,
        judged: &[Judgement],
        mut prepared: BTreeMap<Tid, Participants>,
    ) -> Vec<Step> {
        let now = self.outside.now();
        // One that was wrong is settled; but for one that a crash came between before it had ended here.
        let ends = |it: &&Judgement| {
            let here = unless("judged-not-ended", state.families.contains_key(&it.tid));
            it.otherwise.is_none() || here
        };
        let ending: Vec<Judgement> = judged.iter().filter(ends).copied().collect();
        let mut recover =
            |it: Judgement| state.host.recover_judged(it.tid, it.outcome, prepared.remove(&it.tid), now);
        ending.into_iter().flat_map(&mut recover).collect()
    }

    fn judge(&self, tid: Tid, outcome: Outcome) -> Result<(), Status> {
        let mut can = false;
        let doing = self.host_steps(|host, _| {
            let steps = host.judge(tid, outcome);
            can = steps.is_some();
            steps.unwrap_or_default()
        });
        if !can {
            let why = "it is not prepared here, has been told how it ends, or can learn it from its slots";
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
            let all = undecided.map(|(tid, all, asks)| Undecided {
                tid,
                participants: all.keys().copied().collect(),
                asks,
            });
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

    /// Why the node does not rely on its etcd, and decides nothing that depends on it, if that is so.
    pub fn doubt(&self) -> Option<String> {
        self.0.outside.doubt()
    }

    /// Has the node rely on the etcd that there is, in place of the one that was lost or has an earlier state. It
    /// stops then, and does so when it runs again.
    ///
    /// # Errors
    /// When it relies on its etcd; when something is undecided here that the former one knew of: that must be judged
    /// first; when the node is still telling others how transactions have ended.
    pub async fn accept(&self) -> Result<(), Status> {
        let why = "the node relies on its etcd: there is nothing to accept";
        let _ = self.doubt().ok_or_else(|| Status::failed_precondition(why))?;
        let waits = self.undecided().await?.into_iter().filter(|undecided| undecided.asks).count();
        if unless("accepted-undecided", waits > 0) {
            return Err(Status::failed_precondition(format!(
                "{waits} transactions are undecided here, and the etcd that was lost knew how they end: judge each first (caliburn-node undecided, judge)"
            )));
        }
        let telling = self.on_thread(true, |core| core.state().host.telling()).await?;
        if telling > 0 {
            return Err(Status::failed_precondition(format!(
                "the node is telling participants how {telling} transactions have ended, and would not go on with that: accept when they have heard it, or start the node again first if they never will"
            )));
        }
        let accepted = self.on_thread(true, |core| core.ledger.accept(core.outside.incarnation)).await?;
        accepted.map_err(|error| Status::unavailable(error.to_string()))?;
        self.0.outside.notices.once(format!("node {} stops: {ACCEPTED}", self.0.outside.own.0));
        // Who asked is answered first.
        let outside = self.0.outside.clone();
        outside.clone().runtime().spawn(async move {
            tokio::time::sleep(ANSWERED).await;
            outside.fail(ACCEPTED);
        });
        Ok(())
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
    use crate::commit::word::{Incarnation, Message, Participants, Protocol, Stay};
    use crate::letter::{Brief, Letter, Word};
    use crate::node::core::Name;
    use crate::node::ledger::{self, Ledger};
    use crate::node::state::global_id;
    use caliburn_engine::{Mode, Store};
    use caliburn_lock::Standard;
    use caliburn_nest::Timestamp;
    use std::time::Instant;

    /// A store with a transaction that was prepared when the process died; what else happened before.
    fn prepared(path: &std::path::Path, tid: Tid, happens: impl FnOnce(&Ledger<'_>)) {
        let store = Store::options().create(true).open(path).unwrap();
        let own = store.create_segment(ledger::SEGMENT, ledger::SEGMENT_BYTES).unwrap().map_all().unwrap();
        let data = store.create_segment("data", 4096).unwrap().map_all().unwrap();
        let (ledger, ..) = Ledger::open(&store, &own);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&data, 0, &5u64).unwrap();
        let participants = Participants::from([(NodeId(2), Stay(1)), (NodeId(3), Stay(1))]);
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
    /// Without blocking others ask it how the transaction has ended.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_judged_commit_is_not_denied_after_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let tid = Tid { protocol: Protocol::Slots, ..tid() };
        prepared(&path, tid, |ledger| ledger.judge(tid, Outcome::Committed).unwrap());
        let node = start(&path).await;
        let word = |message| Word::Commit(message, Brief::default());
        let asks = Letter { from: NodeId(3), to: NodeId(2), tid, word: word(Message::Inquiry) };
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let asks = asks.clone();
            let asked = move |core: &Core<'_>| core.state().host.receive(asks, core.outside.now());
            let said = node.on_thread(false, asked).await.unwrap();
            if said.is_empty() {
                // It is not durable yet.
                assert!(Instant::now() < until);
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let word = word(Message::Outcome(Outcome::Committed));
            assert_eq!(said, [Step::Send(Letter { from: NodeId(2), to: NodeId(3), tid, word })]);
            break;
        }
        node.stop().await;
    }
}
