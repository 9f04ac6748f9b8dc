//! What a node has around it: the cluster, the keeper, programs that wait to be told, and where letters come in.

use crate::cluster::{ALIVE, Cluster};
use crate::commit::word::{Incarnation, Node, Outcome, Participants, Protocol, Record};
use crate::host::{Role, Step};
use crate::id::{News, Tid};
use crate::keep::keeper::Keeper;
use crate::keep::known::{Doubt, Identity, Known, Looked};
use crate::keep::names::{Entry, register};
use crate::keep::{Claim, Kept, Met};
use crate::letter::{Letter, Word};
use crate::node::notices::Notices;
use crate::node::time::{Ended, Time};
use crate::proto::caliburn::Letters;
use crate::proto::caliburn::node_client::NodeClient;
use crate::reliance;
use crate::scope::Report;
use crate::wire;
use caliburn_engine::Ticket;
use caliburn_nest::Timestamp;
use caliburn_os::simulated::{planted, unless};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

type Ask = dyn Fn(Tid) -> Result<(), String> + Send + Sync;

/// What a program wants asked before its server votes, and told when a transaction has ended there.
#[derive(Default)]
pub(crate) struct Hooks {
    pub prepare: Option<Box<Ask>>,
    pub commit: Option<Box<dyn Fn(Tid, Timestamp) + Send + Sync>>,
    pub abort: Option<Box<dyn Fn(Tid) + Send + Sync>>,
}

impl Hooks {
    /// Whether a transaction may commit, as far as the program knows.
    pub fn allow(&self, tid: Tid) -> bool {
        let Some(prepare) = &self.prepare else { return true };
        let said = catch_unwind(AssertUnwindSafe(|| prepare(tid)));
        let Err(why) = said.unwrap_or_else(|_| Err("its procedure has panicked".into())) else { return true };
        tracing::info!("transaction {tid} is refused by its server: {why}");
        false
    }

    pub fn ended(&self, tid: Tid, outcome: Outcome, at: Timestamp) {
        let call = || match (outcome, &self.commit, &self.abort) {
            (Outcome::Committed, Some(hook), _) => hook(tid, at),
            (Outcome::Aborted, _, Some(hook)) => hook(tid),
            _ => {}
        };
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("what is called when a transaction has ended has panicked, of {tid}");
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// When the keeper was asked, and when its answer came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub asked: Duration,
    pub answered: Duration,
}

/// Something to be decided, by a thread that may wait for a disk but waits for no lock of a transaction.
#[derive(Debug)]
pub(crate) enum Decision {
    /// A letter came.
    Letter(Letter),
    /// The host wants this done.
    Steps(Vec<Step>),
    /// A record is durable that nobody has waited for.
    Durable(Tid, Role, Record),
    /// The keeper has answered.
    Kept(Claim, Kept, Times),
    /// The keeper was looked at.
    Looked(Looked, Times),
    /// The keeper has slots of transactions that were begun here.
    Sweep(BTreeMap<Tid, Participants>),
    /// A program ends a transaction: whether it commits, what it has used, and below what number all have ended.
    End(Tid, bool, Report, u64),
    /// A node must hear how calls of a family have ended, while others run; and says when it has, since nobody else
    /// brings those news.
    Hear(Tid, News, oneshot::Sender<()>),
    /// A transaction has ended here: a program wants to know.
    Ended(Tid, Outcome, Timestamp),
    /// A program comes; it is told when it can begin.
    Comes(u64, oneshot::Sender<()>),
    /// It goes.
    Goes(u64),
    /// Time to look for deadlocks between nodes.
    Chase,
    /// The node stops.
    Stop,
}

/// A node's outside.
pub(crate) struct Outside {
    pub own: Node,
    pub incarnation: Incarnation,
    pub cluster: Cluster,
    pub hooks: Hooks,
    pub time: Time,
    pub notices: Arc<Notices>,
    keeper: Option<Keeper>,
    known: Mutex<Known>,
    doubt: OnceLock<Doubt>,
    runtime: Handle,
    started: Instant,
    decisions: Sender<Decision>,
    outbox: Mutex<HashMap<Node, mpsc::Sender<Letter>>>,
    waiting: Mutex<Waiting>,
    clients: AtomicU64,
    stopping: AtomicBool,
    failed: OnceLock<String>,
    /// Turns true when it stops.
    pub stopped: watch::Sender<bool>,
}

/// Who waits to be told how transactions end.
type Waiting = HashMap<Tid, Vec<oneshot::Sender<Ended>>>;

/// Threads that prepare and decide: as many forces as are under way share one.
pub(crate) const DECIDING: usize = 8;
/// So many letters travel together at most.
const LETTERS: usize = 256;
/// So many wait for one node at most: some megabytes.
const OUTBOX: usize = 1 << 14;

impl Outside {
    pub fn new(
        own: Node,
        met: Met,
        cluster: Cluster,
        keeper: Option<Keeper>,
        hooks: Hooks,
        time: Time,
    ) -> (Arc<Outside>, Receiver<Decision>) {
        let (decisions, to_decide) = channel();
        let doubt = OnceLock::new();
        met.doubt.into_iter().for_each(|why| _ = doubt.set(why));
        let outside = Outside {
            own,
            incarnation: met.life,
            cluster,
            hooks,
            notices: time.notices.clone(),
            time,
            keeper,
            known: Mutex::new(met.known),
            doubt,
            runtime: Handle::current(),
            started: Instant::now(),
            decisions,
            outbox: Mutex::new(HashMap::new()),
            waiting: Mutex::new(HashMap::new()),
            clients: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            failed: OnceLock::new(),
            stopped: watch::Sender::new(false),
        };
        (Arc::new(outside), to_decide)
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// A number that nobody guesses: whoever knows the identity of a transaction can call in it, and tell how its
    /// calls have ended.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn next_client(&self) -> std::io::Result<u64> {
        if planted("clients-are-guessed") {
            return Ok(self.clients.fetch_add(1, Ordering::Relaxed));
        }
        let [a, b, c, d, e, f, g, h, ..] = caliburn_os::host::random_id()?;
        Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]).max(1))
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        (0..DECIDING).for_each(|_| self.decide(Decision::Stop));
        self.waiting().clear();
        self.stopped.send_replace(true);
    }

    /// It can't go on: it stops, and says why.
    pub fn fail(&self, why: &str) {
        let _ = self.failed.set(format!("node {} has stopped: {why}", self.own.0));
        tracing::error!("node {} stops: {why}", self.own.0);
        self.stop();
    }

    /// What is known of the keeper now.
    pub fn known(&self) -> Known {
        *self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn learn(&self, more: &Known) {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).learn(more);
    }

    /// Why the keeper is not relied on, if it is not.
    pub fn doubt(&self) -> Option<String> {
        self.doubt.get().map(|why| {
            format!(
                "node {} decides nothing any more of transactions that commit without blocking: {why}. An operator must judge: `caliburn-node undecided` lists what waits, `judge` ends each, `accept` has the node rely on this etcd",
                self.own.0
            )
        })
    }

    /// The keeper has forgotten something. Programs that wait are told that nobody knows how it ends.
    pub fn doubts(&self, why: Doubt) {
        if self.doubt.set(why).is_ok() {
            self.tell_doubt();
            self.waiting().retain(|tid, _| tid.protocol != Protocol::Slots);
        }
    }

    /// Tells operators how the node has met its keeper. `knew`: the identity that it knew before.
    pub fn has_met(&self, knew: Option<Identity>) {
        self.tell_doubt();
        if let (None, Some(identity)) = (knew, self.known().identity) {
            let identity = u128::from_be_bytes(identity);
            self.notices.once(format!(
                "node {} has learned the identity of its cluster: {identity:032x}",
                self.own.0
            ));
        }
    }

    fn tell_doubt(&self) {
        if let Some(doubt) = self.doubt().filter(|_| unless("doubt-not-told", true)) {
            self.notices.set("doubt", doubt);
        }
    }

    /// Whether transactions that commit without blocking can be had here.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when there is no keeper, or it has forgotten something.
    pub fn can(&self, protocol: Protocol) -> Result<(), Status> {
        match (protocol, &self.keeper) {
            (Protocol::Slots, Some(_)) if self.doubt.get().is_some() => {
                Err(Status::failed_precondition(self.doubt().unwrap_or_default()))
            }
            (Protocol::Slots, None) => Err(Status::failed_precondition(format!(
                "node {} has nobody who keeps slots, so transactions that commit without blocking can't use it",
                self.own.0
            ))),
            _ => Ok(()),
        }
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// # Errors
    /// When it has failed or stops.
    pub fn goes_on(&self) -> Result<(), Status> {
        match (self.failed.get(), self.is_stopping()) {
            (Some(why), _) => Err(Status::unavailable(why.clone())),
            (None, true) => Err(Status::unavailable(format!("node {} stops", self.own.0))),
            (None, false) => Ok(()),
        }
    }

    /// Has something decided.
    pub fn decide(&self, decision: Decision) {
        let _ = self.decisions.send(decision);
    }

    /// The same, when something is durable: the next force does it.
    pub fn decide_when_durable(self: &Arc<Self>, ticket: Ticket, decision: Decision) {
        let outside = self.clone();
        self.runtime.spawn(async move {
            let mut stopped = outside.stopped.subscribe();
            tokio::select! {
                forced = ticket => match forced {
                    Ok(()) => outside.decide(decision),
                    Err(failure) => outside.fail(&format!("its store has failed: {failure}")),
                },
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
    }

    /// Sends a word of a transaction to all other nodes.
    pub fn post_to_all(&self, tid: Tid, word: &Word) {
        for to in self.cluster.nodes().into_iter().filter(|node| *node != self.own) {
            self.post(Letter { from: self.own, to, tid, word: word.clone() });
        }
    }

    fn outbox(&self) -> std::sync::MutexGuard<'_, HashMap<Node, mpsc::Sender<Letter>>> {
        self.outbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends a letter, some time, perhaps.
    pub fn post(&self, letter: Letter) {
        // What it would say it may not have done.
        if self.failure().is_some() {
            return;
        }
        // Whoever names a node that there is not costs nothing.
        if !self.cluster.is_at(letter.to, None) {
            self.outbox().remove(&letter.to);
            return;
        }
        let mut outbox = self.outbox();
        let to = outbox.entry(letter.to).or_insert_with(|| {
            let (sender, letters) = mpsc::channel(OUTBOX);
            let (cluster, time) = (self.cluster.clone(), self.time.clone());
            self.runtime.spawn(deliver(self.own, letter.to, cluster, time, letters));
            sender
        });
        // Full if the other one does not take them: what is lost is said again.
        let _ = to.try_send(letter);
    }

    /// Waits to be told how a transaction ends.
    pub fn wait_for(&self, tid: Tid) -> oneshot::Receiver<Ended> {
        let (tell, told) = oneshot::channel();
        self.waiting().entry(tid).or_default().push(tell);
        // Else it would wait for ever.
        if self.is_stopping() {
            self.nobody_tells(tid);
        }
        told
    }

    /// It is not known here how a transaction has ended, or will.
    pub fn nobody_tells(&self, tid: Tid) {
        self.waiting().remove(&tid);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn tell(&self, tid: Tid, outcome: Outcome, at: Timestamp) {
        for tell in self.waiting().remove(&tid).unwrap_or_default() {
            let _ = tell.send((outcome, at));
        }
    }

    /// Puts a value into a slot, if that can be done until then: after that the keeper may be another one.
    pub fn claim(self: &Arc<Self>, claim: Claim, until: Duration) {
        let outside = self.clone();
        self.runtime.spawn(async move {
            let Some(keeper) = outside.keeper.as_ref().filter(|_| outside.doubt.get().is_none()) else {
                return;
            };
            let (asked, known) = (outside.now(), outside.known());
            // What has not been sent by then is not sent; an attempt without time would be.
            let Some(patience) = until.checked_sub(asked).filter(|patience| !patience.is_zero()) else {
                return;
            };
            match tokio::time::timeout(patience, keeper.put(&claim, &known)).await {
                Ok(Ok((kept, known))) => {
                    outside.learn(&known);
                    let times = Times { asked, answered: outside.now() };
                    outside.decide(Decision::Kept(claim, kept, times));
                }
                // It is put again when it has been waited for long enough.
                Ok(Err(error)) => tracing::warn!("{error}"),
                Err(_) => {}
            }
        });
    }

    /// Now and then looks whether the keeper has what the node knows.
    pub async fn look_after_keeper(self: Arc<Self>) {
        let Some(keeper) = &self.keeper else { return };
        let mut stopped = self.stopped.subscribe();
        while tokio::time::timeout(reliance::LOOK, stopped.wait_for(|stopped| *stopped)).await.is_err() {
            if self.doubt.get().is_some() {
                return;
            }
            let (asked, known) = (self.now(), self.known());
            let looking = keeper.look(self.own, self.incarnation, &known);
            if let Ok(Ok(looked)) = tokio::time::timeout(reliance::QUIET, looking).await {
                if let Looked::Well(known) = &looked {
                    self.learn(known);
                }
                self.decide(Decision::Looked(looked, Times { asked, answered: self.now() }));
            }
        }
    }

    pub fn delete(self: &Arc<Self>, tid: Tid, participants: Participants) {
        let outside = self.clone();
        self.runtime.spawn(async move {
            // What is left is swept.
            let Some(keeper) = outside.keeper.as_ref().filter(|_| outside.doubt.get().is_none()) else {
                return;
            };
            if let Err(error) = keeper.delete(tid, &participants).await {
                tracing::warn!("{error}");
            }
        });
    }

    /// Keeps the node registered in etcd, with where it is.
    pub fn announce(&self, address: String, servers: Vec<String>) {
        let Some(Keeper::Etcd(etcd)) = &self.keeper else { return };
        let entry = Entry { node: self.own, life: self.incarnation, address, servers };
        let cluster = self.cluster.id().to_owned();
        self.runtime.spawn(register(etcd.clone(), cluster, entry, self.stopped.subscribe()));
    }

    /// Now and then has deadlocks between nodes looked for.
    pub async fn chase(self: Arc<Self>, every: Duration) {
        let mut stopped = self.stopped.subscribe();
        while tokio::time::timeout(every, stopped.wait_for(|stopped| *stopped)).await.is_err() {
            self.decide(Decision::Chase);
        }
    }

    /// Now and then looks for slots that nobody else deletes.
    pub async fn sweep(self: Arc<Self>, every: Duration) {
        let Some(keeper) = &self.keeper else { return };
        let mut stopped = self.stopped.subscribe();
        while tokio::time::timeout(every, stopped.wait_for(|stopped| *stopped)).await.is_err() {
            if self.doubt.get().is_some() {
                return;
            }
            match keeper.of(self.own).await {
                Ok(all) => self.decide(Decision::Sweep(all)),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
}

/// A stream of letters to a node.
struct Line {
    address: String,
    letters: mpsc::Sender<Letters>,
}

/// Letters on their way at one time, at most.
const UNDER_WAY: usize = 4;

impl Line {
    fn open(to: Node, cluster: &Cluster) -> Option<Line> {
        let (address, channel) = (cluster.address(to)?, cluster.channel(to).ok()?);
        let (letters, stream) = mpsc::channel(UNDER_WAY);
        tokio::spawn(async move {
            if let Err(error) = NodeClient::new(channel).deliver(ReceiverStream::new(stream)).await {
                tracing::warn!("node {} does not take letters: {error}", to.0);
            }
        });
        Some(Line { address, letters })
    }

    /// Whether it is open, and leads to where the node is now.
    fn leads(&self, to: Node, cluster: &Cluster) -> bool {
        !self.letters.is_closed() && cluster.is_at(to, Some(&self.address))
    }
}

/// Carries the letters to one node; those that it does not take are lost.
async fn deliver(own: Node, to: Node, cluster: Cluster, time: Time, mut letters: mpsc::Receiver<Letter>) {
    let (mut some, mut line) = (Vec::new(), None::<Line>);
    while letters.recv_many(&mut some, LETTERS).await > 0 {
        for all in wire::batches(some.drain(..)) {
            let (clock, cluster_id) = (time.shows().0, cluster.id().to_owned());
            let needs = wire::NEEDS;
            let all = Letters { cluster: cluster_id, from: own.0, to: to.0, letters: all, clock, needs };
            line = line.filter(|line| line.leads(to, &cluster)).or_else(|| Line::open(to, &cluster));
            if let Some(open) = &line
                && tokio::time::timeout(ALIVE, open.letters.send(all)).await.is_err()
            {
                // It takes none: perhaps it is somewhere else by now.
                line = None;
            }
        }
    }
}
