//! A node that is to run: opens its store, recovers, and gives it threads.

use crate::client::TIME_OUT;
use crate::cluster::Cluster;
use crate::commit::word::{Incarnation, Node as NodeId, Outcome, Participants};
use crate::host::{Host, Patience};
use crate::id::Tid;
use crate::keep::keeper::Keeper;
use crate::log_plan::LogPlan;
use crate::node::call::Call;
use crate::node::core::Core;
use crate::node::error::NodeError;
use crate::node::ledger::{self, Ledger};
use crate::node::outside::{DECIDING, Decision, Hooks, Outside};
use crate::node::pool::Pool;
use crate::node::recovery::Found;
use crate::node::replicated::{Copies, Replicated};
use crate::node::running::{Inner, Job, Node, alone};
use crate::rights::Rights;
use caliburn_engine::{Region, Store};
use caliburn_heap::Heap;
use caliburn_nest::{Clock, Timestamp};
use caliburn_os::clock::wall_ns;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::Status;

/// Calls that wait for a thread, for each thread; further ones are refused.
const WAITING_CALLS: usize = 16;

/// What is to be done the first time.
struct First(Box<Begin>);

/// Who is told where segments are.
struct Mapped(Box<TellMapped>);

type TellMapped = dyn Fn(&str, &Region) + Send;

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mapped").finish_non_exhaustive()
    }
}

type Begin = dyn for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<(), Status> + Send;

impl std::fmt::Debug for First {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("First").finish_non_exhaustive()
    }
}

/// The servers' first transaction, if it was not yet.
fn begin(core: &Core<'_>, first: First) -> Result<(), NodeError> {
    if core.ledger.has_begun() {
        return Ok(());
    }
    let expires = core.outside.now() + TIME_OUT;
    let (done, mut told) = alone(core, expires, |call| {
        first.0(call)?;
        call.is_first()
    });
    match (done, told.try_recv()) {
        (Ok(()), Ok((Outcome::Committed, _))) => Ok(()),
        (Err(status), _) => Err(NodeError::First(status.message().to_owned())),
        (Ok(()), _) => Err(NodeError::First("it did not commit".into())),
    }
}

/// Bytes of log that etcd keeps of a node, unless it is told otherwise.
const DUMP_EVERY: u64 = 64 << 20;
/// Another one is tried so long after one that failed.
const DUMP_AGAIN: Duration = Duration::from_secs(60);
/// So often it is looked whether a dump is due.
const DUMP_LOOK: Duration = Duration::from_secs(1);
/// So often slots are looked for that nobody deletes.
const SWEEP: Duration = Duration::from_secs(60);

/// What the node's threads take their work from.
struct Queues {
    calls: Mutex<Receiver<Job>>,
    /// One more thread for calls that must not wait.
    more: Receiver<()>,
    further: Arc<Pool<Job>>,
    decisions: Mutex<Receiver<Decision>>,
}

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
    mapped: Option<Mapped>,
    wall: fn() -> u64,
    forgets_clock: bool,
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
            mapped: None,
            wall: wall_ns,
            forgets_clock: false,
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
        self.forgets_clock = yes;
        self
    }

    /// Another wall's clock, in nanoseconds since 1970: for tests.
    #[doc(hidden)]
    pub fn wall(mut self, wall: fn() -> u64) -> Builder {
        self.wall = wall;
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

    /// What users may call of its data servers. Without, whoever has a certificate of the cluster's may call all.
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
        log.set(&mut options);
        let (wall, forgets_clock, tell_mapped) = (self.wall, self.forgets_clock, self.mapped);
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
            let life = is_ready.await.map_err(|_| NodeError::Stopped("the node could not open"))??;
            let own = NodeId(number);
            let (incarnation, slots) = match (&keeper, begun_life) {
                (Some(keeper), Some(begun)) if begun > life => (begun, keeper.of(own).await?),
                (Some(keeper), Some(_)) => {
                    keeper.begin_life(own, life).await?;
                    return Err(NodeError::Stopped("etcd had lost the node's epoch: start it again"));
                }
                (Some(keeper), None) => (keeper.begin_life(own, life).await?, keeper.of(own).await?),
                (None, _) => (Incarnation(life.0 + 1), BTreeMap::new()),
            };
            let (outside, decisions) = Outside::new(own, incarnation, cluster, keeper, hooks, wall);
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
                tokio::spawn(outside.clone().chase(patience.chase));
                let inner = Inner {
                    outside,
                    calls,
                    further,
                    level,
                    thread: Mutex::new(Some(thread)),
                    copies,
                    rights,
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

struct Opening {
    number: u64,
    path: PathBuf,
    options: caliburn_engine::Options,
    segments: Vec<(String, u64)>,
    heaps: Vec<(String, u64)>,
    level: usize,
    patience: Patience,
    first: Option<First>,
    quota: Option<u64>,
    log: LogPlan,
    forgets_clock: bool,
    tell_mapped: Option<Mapped>,
    copies: Option<Copies>,
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

struct Beginning {
    outside: Arc<Outside>,
    queues: Queues,
    slots: BTreeMap<Tid, Participants>,
    recovered: oneshot::Sender<Result<(), NodeError>>,
}

type Life = Result<Incarnation, NodeError>;

impl Opening {
    /// The node's own thread: owns the store.
    fn run(self, ready: oneshot::Sender<Life>, may_begin: oneshot::Receiver<Beginning>) {
        let mut ready = Some(ready);
        if let Err(error) = self.open(&mut ready, may_begin)
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(Err(error));
        }
    }

    fn open(
        mut self,
        ready: &mut Option<oneshot::Sender<Life>>,
        may_begin: oneshot::Receiver<Beginning>,
    ) -> Result<(), NodeError> {
        let store = self.options.clone().create(true).open(&self.path);
        let store = store.map_err(|error| NodeError::Open(self.path.clone(), error))?;
        self.log.tune(&store).map_err(|error| NodeError::Open(self.path.clone(), error))?;
        self.is_within(&store)?;
        let map = |name: &str, bytes: u64| {
            let segment = store.segment_or_create(name, bytes);
            let segment = segment.map_err(|error| NodeError::Segment(name.to_owned(), Box::new(error)))?;
            segment.map_all().map_err(|error| NodeError::Segment(name.to_owned(), Box::new(error)))
        };
        let own = map(ledger::SEGMENT, ledger::SEGMENT_BYTES)?;
        let mapped = self.segments.iter().map(|(name, bytes)| Ok((name.clone(), map(name, *bytes)?)));
        let mapped = mapped.collect::<Result<Vec<_>, NodeError>>()?;
        let heap = |(name, bytes): &(String, u64)| {
            let heap = Heap::open(&store, name);
            let heap = heap.map_err(|error| NodeError::Heap(name.to_owned(), Box::new(error)))?;
            heap.set_limit(*bytes);
            Ok(heap)
        };
        let heaps = self.heaps.iter().map(heap).collect::<Result<Vec<_>, NodeError>>()?;
        if let Some(Mapped(tell)) = &self.tell_mapped {
            mapped.iter().for_each(|(name, region)| tell(name, region));
        }
        self.copies.as_ref().map_or(Ok(()), |copies| copies.settle(&store))?;
        {
            let (ledger, life, commits) = Ledger::open(&store, &own);
            let ready = ready.take().expect("it was not sent");
            let _ = ready.send(Ok(life));
            let Ok(Beginning { outside, queues, slots, recovered }) = may_begin.blocking_recv() else {
                return Ok(());
            };
            if let Err(error) = ledger.set_life(outside.incarnation) {
                let _ = recovered.send(Err(error.into()));
                return Ok(());
            }
            let host = Host::new(outside.own, outside.incarnation, self.patience);
            let regions = mapped.iter().map(|(name, region)| (name.clone(), region)).collect();
            if self.forgets_clock
                && let Err(error) = ledger.forget_clock()
            {
                let _ = recovered.send(Err(error.into()));
                return Ok(());
            }
            let time = outside.time.clone();
            let clock = match Clock::of(&store, &own, ledger::CLOCK, (time.hybrid, time.wall)) {
                Ok(clock) => clock,
                Err(error) => {
                    let _ = recovered.send(Err(NodeError::Clock(error.to_string())));
                    return Ok(());
                }
            };
            outside.time.look(outside.own);
            let core = Core::new(&store, (regions, &heaps), ledger, clock, outside, host);
            core.recover(Found { commits, slots });
            let begun = self.first.take().map_or(Ok(()), |first| begin(&core, first));
            let goes_on = begun.is_ok();
            let _ = recovered.send(begun);
            if goes_on {
                self.work(&core, queues);
            }
        }
        drop((own, mapped, heaps));
        if let Err(error) = store.close() {
            tracing::warn!("node {}: its store was not closed in good order: {error}", self.number);
        }
        Ok(())
    }

    /// Before anything is made that would be too much.
    fn is_within(&self, store: &Store) -> Result<(), NodeError> {
        let Some(quota) = self.quota else { return Ok(()) };
        let heaps = self.heaps.iter().map(|(_, limit)| Heap::bytes_with(*limit));
        let all = self.segments.iter().map(|(_, bytes)| *bytes).chain(heaps);
        let segments = all.fold(ledger::SEGMENT_BYTES, u64::saturating_add);
        let needed = segments.saturating_add(store.query().log_bytes);
        if needed <= quota { Ok(()) } else { Err(NodeError::Quota { node: self.number, quota, needed }) }
    }

    /// Until it stops.
    fn work(&self, core: &Core<'_>, queues: Queues) {
        let Queues { calls, more, further, decisions } = queues;
        let (calls, further, decisions) = (&calls, &further, &decisions);
        fn take<T>(queue: &Mutex<Receiver<T>>) -> Option<T> {
            queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv().ok()
        }
        std::thread::scope(|scope| {
            for _ in 0..self.level {
                scope.spawn(|| {
                    while let Some(job) = take(calls).filter(|_| !core.outside.is_stopping()) {
                        core.or_fail(|| job(core));
                    }
                });
            }
            scope.spawn(move || {
                while more.recv().is_ok() && !core.outside.is_stopping() {
                    let work = move || further.work(|job| core.or_fail(|| job(core)));
                    if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, work) {
                        // What waits is done by those that there are.
                        tracing::warn!("no thread for a call: {error}");
                    }
                }
            });
            for _ in 0..DECIDING {
                scope.spawn(|| {
                    while let Some(decision) = take(decisions).filter(|_| !core.outside.is_stopping()) {
                        core.or_fail(|| core.decide(decision));
                    }
                });
            }
            core.or_fail(|| core.keep_time());
        });
    }
}
