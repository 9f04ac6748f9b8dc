//! A node seen from outside its threads: where calls and letters are handed in, and what it sends.

use crate::cluster::Cluster;
use crate::commit::word::{Incarnation, Node, Outcome, Participants};
use crate::host::Letter;
use crate::id::Tid;
use crate::keep::Claim;
use crate::keep::keeper::Keeper;
use crate::node::core::Core;
use crate::proto::caliburn::Letters;
use crate::proto::caliburn::node_client::NodeClient;
use crate::wire;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tonic::Status;

/// Something to be done by a thread of the node.
pub(crate) type Job = Box<dyn for<'c, 't> FnOnce(&'c Core<'t>) + Send>;

/// What its threads take jobs from.
pub(crate) struct Queues {
    pub calls: Mutex<Receiver<Job>>,
    pub decisions: Mutex<Receiver<Job>>,
}

/// A node's outside.
pub(crate) struct Outside {
    pub own: Node,
    pub incarnation: Incarnation,
    level: usize,
    pub cluster: Cluster,
    keeper: Keeper,
    runtime: Handle,
    started: Instant,
    calls: SyncSender<Job>,
    decisions: Sender<Job>,
    outbox: HashMap<Node, UnboundedSender<Letter>>,
    waiting: Mutex<HashMap<Tid, oneshot::Sender<Outcome>>>,
    clients: AtomicU64,
    stopping: AtomicBool,
    failed: OnceLock<String>,
    /// Turns true when it stops.
    pub stopped: watch::Sender<bool>,
}

/// Threads that prepare and decide: as many forces as are under way share one.
pub(crate) const DECIDING: usize = 8;
/// So many letters travel together at most.
const LETTERS: usize = 256;
/// Calls that wait for a thread, for each thread; further ones are refused.
const WAITING_CALLS: usize = 16;

impl Outside {
    pub fn new(
        own: Node,
        incarnation: Incarnation,
        cluster: Cluster,
        keeper: Keeper,
        level: usize,
    ) -> (Arc<Outside>, Queues) {
        let (calls, to_call) = sync_channel(level * WAITING_CALLS);
        let (decisions, to_decide) = channel();
        let mut outbox = HashMap::new();
        for node in cluster.nodes().filter(|node| *node != own) {
            let (sender, letters) = unbounded_channel();
            outbox.insert(node, sender);
            tokio::spawn(deliver(own, node, cluster.clone(), letters));
        }
        let outside = Outside {
            own,
            incarnation,
            level,
            cluster,
            keeper,
            runtime: Handle::current(),
            started: Instant::now(),
            calls,
            decisions,
            outbox,
            waiting: Mutex::new(HashMap::new()),
            clients: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            failed: OnceLock::new(),
            stopped: watch::Sender::new(false),
        };
        (Arc::new(outside), Queues { calls: Mutex::new(to_call), decisions: Mutex::new(to_decide) })
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Something for each thread that waits for jobs; if there is no room for it, none waits.
        (0..self.level).for_each(|_| _ = self.calls.try_send(Box::new(|_| {})));
        (0..DECIDING).for_each(|_| self.decide(|_| {}));
        self.stopped.send_replace(true);
    }

    /// It can't go on: it stops, and says why.
    pub fn fail(&self, why: &str) {
        let _ = self.failed.set(format!("node {} has stopped: {why}", self.own.0));
        tracing::error!("node {} stops: {why}", self.own.0);
        self.stop();
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

    /// Has a call executed, when one of as many threads as the multiprogramming level is free.
    pub fn call(&self, job: Job) -> Result<(), Status> {
        self.goes_on()?;
        self.calls.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Status::resource_exhausted("too many calls wait here; try again later"),
            TrySendError::Disconnected(_) => Status::unavailable("the node stops"),
        })
    }

    /// Has something decided; these never wait for locks of transactions.
    pub fn decide(&self, job: impl for<'c, 't> FnOnce(&'c Core<'t>) + Send + 'static) {
        let _ = self.decisions.send(Box::new(job));
    }

    /// Sends a letter, some time, perhaps.
    pub fn post(&self, letter: Letter) {
        match self.outbox.get(&letter.to) {
            Some(outbox) => _ = outbox.send(letter),
            None => tracing::warn!("a letter to node {}, which this cluster does not have", letter.to.0),
        }
    }

    /// Waits to be told how a transaction ends.
    pub fn wait_for(&self, tid: Tid) -> oneshot::Receiver<Outcome> {
        let (tell, told) = oneshot::channel();
        self.waiting().insert(tid, tell);
        told
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Tid, oneshot::Sender<Outcome>>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn tell(&self, tid: Tid, outcome: Outcome) {
        if let Some(tell) = self.waiting().remove(&tid) {
            let _ = tell.send(outcome);
        }
    }

    pub fn claim(self: &Arc<Self>, claim: Claim) {
        let outside = self.clone();
        self.runtime.spawn(async move {
            match outside.keeper.put(&claim).await {
                Ok(kept) => outside.decide(move |core| core.kept(&claim, kept)),
                // It is put again when it has been waited for long enough.
                Err(error) => tracing::warn!("{error}"),
            }
        });
    }

    pub fn delete(self: &Arc<Self>, tid: Tid, participants: Participants) {
        let outside = self.clone();
        self.runtime.spawn(async move {
            // What is left is swept.
            if let Err(error) = outside.keeper.delete(tid, &participants).await {
                tracing::warn!("{error}");
            }
        });
    }

    /// Now and then looks for slots that nobody else deletes.
    pub async fn sweep(self: Arc<Self>, every: Duration) {
        let mut stopped = self.stopped.subscribe();
        while tokio::time::timeout(every, stopped.wait_for(|stopped| *stopped)).await.is_err() {
            match self.keeper.of(self.own).await {
                Ok(all) => self.decide(move |core| {
                    for (tid, participants) in all {
                        core.with_host(|host, now| host.sweep(tid, participants, now));
                    }
                }),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
}

/// Carries the letters to one node; those that it does not take are lost.
async fn deliver(own: Node, to: Node, cluster: Cluster, mut letters: UnboundedReceiver<Letter>) {
    let Ok(channel) = cluster.channel(to) else { return };
    let mut client = NodeClient::new(channel);
    let mut some = Vec::new();
    while letters.recv_many(&mut some, LETTERS).await > 0 {
        let all = some.drain(..).map(|letter| wire::letter_to(&letter)).collect();
        let all = Letters { cluster: cluster.id().to_owned(), from: own.0, letters: all };
        let mut request = tonic::Request::new(all);
        request.set_timeout(Duration::from_secs(2));
        if let Err(error) = client.deliver(request).await {
            tracing::debug!("node {} does not take letters: {error}", to.0);
        }
    }
}
