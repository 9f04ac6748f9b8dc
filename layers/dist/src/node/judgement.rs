//! What an administrator decides in place of a coordinator that is gone: heuristic decisions, recorded, and compared
//! with how the transaction has ended everywhere else, when that is known.

use crate::commit::word::{Node as NodeId, Outcome};
use crate::host::Step;
use crate::id::Tid;
use crate::node::core::Core;
use crate::node::ledger::Judgement;
use crate::node::running::Node;
use crate::node::state::State;
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
        let ends = |it: &&Judgement| it.otherwise.is_none() || state.families.contains_key(&it.tid);
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
