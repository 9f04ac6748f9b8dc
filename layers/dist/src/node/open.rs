//! A node that is to run: opens its store, recovers, and gives it threads.

use crate::cluster::Cluster;
use crate::commit::word::{Incarnation, Node as NodeId};
use crate::host::Patience;
use crate::id::Tid;
use crate::keep::keeper::Keeper;
use crate::keep::{Known, Met, Newcomer};
use crate::log_plan::LogPlan;
use crate::node::call::Call;
use crate::node::door::Connections;
use crate::node::error::NodeError;
use crate::node::notices::Notices;
use crate::node::opening::{Beginning, First, Forgets, Mapped, Opening, Queues};
use crate::node::outside::{Hooks, Outside};
use crate::node::pool::Pool;
use crate::node::replicated::{Copies, Replicated};
use crate::node::running::{Inner, Node};
use crate::node::time::Time;
use crate::rights::Rights;
use caliburn_engine::{Region, Store};
use caliburn_nest::Timestamp;
use caliburn_os::clock::wall_ns;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::Status;

/// Calls that wait for a thread, for each thread; further ones are refused.
const WAITING_CALLS: usize = 16;

/// Bytes of log that etcd keeps of a node, unless it is told otherwise.
const DUMP_EVERY: u64 = 64 << 20;
/// Another one is tried so long after one that failed.
const DUMP_AGAIN: Duration = Duration::from_secs(60);
/// So often it is looked whether a dump is due.
const DUMP_LOOK: Duration = Duration::from_secs(1);
/// So often slots are looked for that nobody deletes.
const SWEEP: Duration = Duration::from_secs(60);

/// A node that is to run.
#[derive(Debug)]
pub struct Builder {
    number: u64,
    cluster: Cluster,
    path: PathBuf,
    options: caliburn_engine::Options,
    segments: Vec<(String, u64)>,
    heaps: Vec<(String, u64)>,
    level: usize,
    patience: Patience,
    keeper: Option<Keeper>,
    first: Option<First>,
    replicated: Option<Replicated>,
    rights: Option<Rights>,
    quota: Option<u64>,
    log: LogPlan,
    hooks: Hooks,
    connections: Option<Connections>,
    notices: Notices,
    mapped: Option<Mapped>,
    wall: fn() -> u64,
    forgets_clock: Option<Forgets>,
    timestamps: bool,
}

impl Node {
    /// A node of a cluster, with its number there and the directory of its store.
    pub fn builder(cluster: Cluster, number: u64, path: impl Into<PathBuf>) -> Builder {
        Builder {
            number,
            cluster,
            path: path.into(),
            options: Store::options(),
            segments: Vec::new(),
            heaps: Vec::new(),
            level: 16,
            patience: Patience::default(),
            keeper: None,
            first: None,
            replicated: None,
            rights: None,
            quota: None,
            log: LogPlan::default(),
            hooks: Hooks::default(),
            connections: None,
            notices: Notices::default(),
            mapped: None,
            wall: wall_ns,
            forgets_clock: None,
            timestamps: true,
        }
    }
}

impl Builder {
    /// Its store, with options; made if there is none.
    pub fn options(mut self, options: caliburn_engine::Options) -> Builder {
        self.options = options;
        self
    }

    /// A segment of its servers, made with zeros if there is none.
    pub fn segment(mut self, name: impl Into<String>, bytes: u64) -> Builder {
        self.segments.push((name.into(), bytes));
        self
    }

    /// A heap of its servers, made if there is none, which may grow to so many bytes.
    pub fn heap(mut self, name: impl Into<String>, bytes: u64) -> Builder {
        self.heaps.push((name.into(), bytes));
        self
    }

    /// What is to be done the first time that the node runs, in a transaction (`array_init`): before any call, and
    /// again if it did not commit.
    pub fn first(
        mut self,
        first: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<(), Status> + Send + 'static,
    ) -> Builder {
        self.first = Some(First(Box::new(first)));
        self
    }

    /// Asked before this node votes for a transaction (PrepareProc): an error, which says why, aborts it.
    pub fn on_prepare(mut self, hook: impl Fn(Tid) -> Result<(), String> + Send + Sync + 'static) -> Builder {
        self.hooks.prepare = Some(Box::new(hook));
        self
    }

    /// Called when a transaction has committed here (CommitProc), with its timestamp: those of two that have touched
    /// the same are in the order in which they did. Of one that a crash came between not at all, or twice.
    pub fn on_commit(mut self, hook: impl Fn(Tid, Timestamp) + Send + Sync + 'static) -> Builder {
        self.hooks.commit = Some(Box::new(hook));
        self
    }

    /// Called when a transaction was undone here (AbortProc). Of one that a crash came between not at all, or twice.
    pub fn on_abort(mut self, hook: impl Fn(Tid) + Send + Sync + 'static) -> Builder {
        self.hooks.abort = Some(Box::new(hook));
        self
    }

    /// Begins with the machine's clock, and forgets how far its own had gone: timestamps may come again. For a
    /// machine whose clock was far ahead and is right again, since others refuse the node until theirs have caught
    /// up.
    pub fn forget_clock(mut self, yes: bool) -> Builder {
        self.forgets_clock = yes.then_some(Forgets::Now);
        self
    }

    /// The same, once for each number: a node that has obeyed this one before goes on. 0 is none.
    pub fn forget_clock_once(mut self, order: u64) -> Builder {
        self.forgets_clock = (order != 0).then_some(Forgets::Order(order)).or(self.forgets_clock);
        self
    }

    /// Whether transactions have timestamps. All nodes of a cluster have them, as they do unless told otherwise,
    /// or none has. Without, no clock is shown, heard or kept: a node whose clock is wrong is not refused,
    /// nothing is forced for it, `transact_at` is refused, and hooks are told 0.
    pub fn timestamps(mut self, yes: bool) -> Builder {
        self.timestamps = yes;
        self
    }

    /// Another wall's clock, in nanoseconds since 1970: for tests.
    #[doc(hidden)]
    pub fn wall(mut self, wall: fn() -> u64) -> Builder {
        self.wall = wall;
        self
    }

    /// Called with what an operator should know, when it happens: connections that are refused, a clock that is far
    /// ahead, etcd that is open to users, or has forgotten something. For people. It must not take long.
    pub fn on_notice(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Builder {
        self.notices = Notices::new(Some(Box::new(hook)));
        self
    }

    /// How many connections it has at one time, where it serves.
    pub fn connections(mut self, connections: Connections) -> Builder {
        self.connections = Some(connections);
        self
    }

    /// Called with each segment when it is mapped, before anything else is: for programs that keep its address.
    pub fn on_mapped(mut self, hook: impl Fn(&str, &Region) + Send + 'static) -> Builder {
        self.mapped = Some(Mapped(Box::new(hook)));
        self
    }

    /// How many calls are executed at one time; further ones wait, then are refused. 16 unless told.
    pub fn level(mut self, level: usize) -> Builder {
        self.level = level.max(1);
        self
    }

    /// Where its log is, how long, and of how many copies, whatever the [options](Builder::options) say.
    pub fn log(mut self, plan: LogPlan) -> Builder {
        self.log = plan;
        self
    }

    /// Bytes that its segments and its log may have together; it does not start with more.
    pub fn quota(mut self, bytes: u64) -> Builder {
        self.quota = Some(bytes);
        self
    }

    /// What users may call of its data servers. Without, any user with a certificate of the cluster may call all of
    /// them; an operator's judgements then need a certificate of a node.
    pub fn rights(mut self, rights: Rights) -> Builder {
        self.rights = Some(rights);
        self
    }

    /// How long it waits for others.
    pub fn patience(mut self, patience: Patience) -> Builder {
        self.patience = patience;
        self
    }

    /// Who keeps the slots of transactions that commit without blocking, and the epochs of nodes: the same for all
    /// of a cluster. A node without one refuses such transactions, and goes by the life that its store remembers.
    pub fn keeper(mut self, keeper: Keeper) -> Builder {
        self.keeper = Some(keeper);
        self
    }

    /// Keeps the log of its store in its keeper's etcd as well, as long as it is needed there, and dumps of the
    /// store in a directory that other machines can read. What it has said survives the loss of its machine then:
    /// on another one it is [taken over](Builder::take_over). Each force waits for a majority of etcd's members.
    pub fn replicated(mut self, dumps: impl Into<PathBuf>) -> Builder {
        let replicated = Replicated { dumps: dumps.into(), take_over: false, every: DUMP_EVERY };
        self.replicated = Some(replicated);
        self
    }

    /// Makes the node again, of its newest dump and its log, if its store is not here, or is not the one that ran
    /// last: the machine that ran it is gone, or else its next force fails. A store that is here is put aside.
    ///
    /// # Panics
    /// Before [`Builder::replicated`].
    pub fn take_over(mut self, yes: bool) -> Builder {
        self.replicated.as_mut().expect("the node is replicated").take_over = yes;
        self
    }

    /// A dump is made, and the log before it let go, when etcd holds so many bytes of it. Default 64 MiB.
    ///
    /// # Panics
    /// Before [`Builder::replicated`].
    pub fn dump_every(mut self, bytes: u64) -> Builder {
        self.replicated.as_mut().expect("the node is replicated").every = bytes;
        self
    }

    /// Opens the store, recovers, and runs, with threads of its own.
    ///
    /// # Errors
    /// [`NodeError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self) -> Result<Node, NodeError> {
        let (ready, is_ready) = oneshot::channel();
        let (begin, may_begin) = oneshot::channel();
        let Builder { number, cluster, path, mut options, segments, heaps, level, patience, .. } = self;
        let (keeper, first, hooks, rights, quota, log) =
            (self.keeper, self.first, self.hooks, self.rights, self.quota, self.log);
        let (connections, notices) = (self.connections, Arc::new(self.notices));
        log.set(&mut options);
        let time = Time { hybrid: Arc::default(), wall: self.wall, is_used: self.timestamps, notices };
        let (forgets_clock, tell_mapped) = (self.forgets_clock, self.mapped);
        let replicated = match (&self.replicated, &keeper) {
            (None, _) => None,
            (Some(how), Some(Keeper::Etcd(etcd))) => {
                let (copies, life) = Copies::begin((etcd, NodeId(number)), how, (&path, &options)).await?;
                options.replica(copies.log.clone());
                Some((copies, life))
            }
            (Some(_), _) => {
                return Err(NodeError::Log("a log is replicated in etcd: name one as the keeper".into()));
            }
        };
        let (copies, begun_life) = replicated.unzip();
        let opening = Opening {
            number,
            path,
            options,
            segments,
            heaps,
            level,
            patience,
            first,
            quota,
            log,
            forgets_clock,
            tell_mapped,
            copies: copies.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("caliburn-node-{number}"));
        let thread = thread.spawn(move || opening.run(ready, may_begin)).expect("a thread can be had");
        let begun = async {
            // The life that the store remembers.
            let (life, known) =
                is_ready.await.map_err(|_| NodeError::Stopped("the node could not open"))??;
            let own = NodeId(number);
            let met = meet(own, keeper.as_ref(), (life, begun_life), &known).await?;
            let slots = match (&keeper, met.doubt) {
                (Some(keeper), None) => keeper.of(own).await?,
                _ => BTreeMap::new(),
            };
            let (outside, decisions) = Outside::new(own, met, cluster, keeper, hooks, time);
            outside.has_met(known.identity);
            let (calls, to_call) = sync_channel(level * WAITING_CALLS);
            let (ask, more) = channel();
            let further = Arc::new(Pool::new(ask));
            let queues = Queues {
                calls: Mutex::new(to_call),
                more,
                further: further.clone(),
                decisions: Mutex::new(decisions),
            };
            let (recovered, is_recovered) = oneshot::channel();
            let begun = begin.send(Beginning { outside: outside.clone(), queues, slots, recovered });
            begun.map_err(|_| NodeError::Stopped("the node could not begin"))?;
            is_recovered.await.map_err(|_| NodeError::Stopped("the node could not recover"))??;
            Ok((outside, calls, further))
        };
        match begun.await {
            Ok((outside, calls, further)) => {
                tokio::spawn(outside.clone().sweep(SWEEP));
                tokio::spawn(outside.clone().look_after_keeper());
                tokio::spawn(outside.clone().chase(patience.chase));
                tokio::spawn(outside.time.clone().watch(outside.own));
                let inner = Inner {
                    outside,
                    calls,
                    further,
                    level,
                    thread: Mutex::new(Some(thread)),
                    copies,
                    rights,
                    connections,
                };
                let node = Node(Arc::new(inner));
                if node.0.copies.is_some() {
                    tokio::spawn(keep_dumping(Arc::downgrade(&node.0)));
                }
                Ok(node)
            }
            Err(error) => {
                // It has closed the store when this returns.
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
                Err(error)
            }
        }
    }
}

/// Makes a dump when it is time for one, as long as the node runs.
async fn keep_dumping(node: Weak<Inner>) {
    loop {
        tokio::time::sleep(DUMP_LOOK).await;
        let Some(node) = node.upgrade().map(Node) else { return };
        if node.0.outside.is_stopping() {
            return;
        }
        let due = node.0.copies.as_ref().is_some_and(Copies::is_due);
        if due && let Err(error) = node.dump().await {
            tracing::warn!("node {}: no dump was made: {error}", node.number());
            drop(node);
            tokio::time::sleep(DUMP_AGAIN).await;
        }
    }
}

/// Begins a life, with a keeper that has what the node knows of it. One that has not is not relied on.
async fn meet(
    own: NodeId,
    keeper: Option<&Keeper>,
    (life, begun): (Incarnation, Option<Incarnation>),
    known: &Known,
) -> Result<Met, NodeError> {
    let Some(keeper) = keeper else {
        return Ok(Met { life: Incarnation(life.0 + 1), known: *known, doubt: None });
    };
    if begun.is_some_and(|begun| begun <= life) {
        keeper.begin_life(own, life).await?;
        return Err(NodeError::Stopped(
            "etcd had lost the node's epoch: it has lost its data, or has an earlier state of it: start it again",
        ));
    }
    Ok(keeper.meet(&Newcomer { node: own, behind: life, begun, known: *known }).await?)
}
