//! A node's own thread: opens its store, recovers, and works until it stops.

use crate::client::TIME_OUT;
use crate::commit::word::{Incarnation, Outcome, Participants};
use crate::host::{Host, Patience};
use crate::id::Tid;
use crate::keep::Known;
use crate::log_plan::LogPlan;
use crate::node::call::Call;
use crate::node::core::Core;
use crate::node::error::NodeError;
use crate::node::ledger::{self, Ledger};
use crate::node::outside::{DECIDING, Decision, Outside};
use crate::node::pool::Pool;
use crate::node::recovery::Found;
use crate::node::replicated::Copies;
use crate::node::running::{Job, alone};
use caliburn_engine::{Region, Store};
use caliburn_heap::Heap;
use caliburn_nest::Clock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tonic::Status;

/// What the node's threads take their work from.
pub(super) struct Queues {
    pub calls: Mutex<Receiver<Job>>,
    /// One more thread for calls that must not wait.
    pub more: Receiver<()>,
    pub further: Arc<Pool<Job>>,
    pub decisions: Mutex<Receiver<Decision>>,
}

/// What is to be done the first time.
pub(super) struct First(pub Box<Begin>);

/// Who is told where segments are.
pub(super) struct Mapped(pub Box<TellMapped>);

pub(super) type TellMapped = dyn Fn(&str, &Region) + Send;

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mapped").finish_non_exhaustive()
    }
}

pub(super) type Begin = dyn for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<(), Status> + Send;

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

/// When the clock forgets how far it had gone.
#[derive(Debug, Clone, Copy)]
pub(super) enum Forgets {
    Now,
    /// If this order was not obeyed before.
    Order(u64),
}

pub(super) struct Opening {
    pub number: u64,
    pub path: PathBuf,
    pub options: caliburn_engine::Options,
    pub segments: Vec<(String, u64)>,
    pub heaps: Vec<(String, u64)>,
    pub level: usize,
    pub patience: Patience,
    pub first: Option<First>,
    pub quota: Option<u64>,
    pub log: LogPlan,
    pub forgets_clock: Option<Forgets>,
    pub tell_mapped: Option<Mapped>,
    pub copies: Option<Copies>,
}

pub(super) struct Beginning {
    pub outside: Arc<Outside>,
    pub queues: Queues,
    pub slots: BTreeMap<Tid, Participants>,
    pub recovered: oneshot::Sender<Result<(), NodeError>>,
}

/// The last life, and what is known of the keeper.
pub(super) type Life = Result<(Incarnation, Known), NodeError>;

impl Opening {
    /// The node's own thread: owns the store.
    pub fn run(self, ready: oneshot::Sender<Life>, may_begin: oneshot::Receiver<Beginning>) {
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
            let (known, accepted) = ledger.keeper();
            let _ = ready.send(Ok((life, known)));
            let Ok(Beginning { outside, queues, slots, recovered }) = may_begin.blocking_recv() else {
                return Ok(());
            };
            if let Err(error) = ledger.set_life(outside.incarnation, &outside.known()) {
                let _ = recovered.send(Err(error.into()));
                return Ok(());
            }
            let mut host = Host::new(outside.own, outside.incarnation, self.patience);
            host.reliance().accepted_in(accepted);
            match outside.doubt() {
                Some(_) => host.reliance().doubt(),
                None => _ = host.reliance().contact(outside.now(), outside.now()),
            }
            let regions = mapped.iter().map(|(name, region)| (name.clone(), region)).collect();
            let time = outside.time.clone();
            let forgotten = self.forgets_clock.map(|forgets| match forgets {
                Forgets::Now => ledger.forget_clock(None),
                Forgets::Order(order) => ledger.forget_clock(Some(order)),
            });
            match forgotten.transpose() {
                Ok(bound) => bound.flatten().into_iter().for_each(|bound| time.forgets(outside.own, bound)),
                Err(error) => {
                    let _ = recovered.send(Err(error.into()));
                    return Ok(());
                }
            }
            let clock = match Clock::of(&store, &own, ledger::CLOCK, (time.hybrid, time.wall)) {
                Ok(clock) => clock,
                Err(error) => {
                    let _ = recovered.send(Err(NodeError::Clock(error.to_string())));
                    return Ok(());
                }
            };
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
