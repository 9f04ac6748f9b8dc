//! Tickets: commits that were made and are not waited for yet.

use crate::api::shared::Shared;
use crate::storage::class::Class;
use crate::storage::error::Failure;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A commit on its way to the disk: wait for it with [`Ticket::wait`], or await it with any executor. It needs
/// nothing of the store's handles. Dropped, the commit goes on.
#[derive(Clone)]
#[must_use = "the commit is durable when the ticket says so"]
pub struct Ticket {
    pub(crate) store: Arc<Shared>,
    /// None if there was nothing to commit, or it is durable already.
    pub(crate) stamp: Option<u64>,
    pub(crate) class: Class,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("durable", &self.is_durable()).finish()
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Ticket {
    /// Whether the commit survives now what its class names: a power cut, if nothing else was said.
    ///
    /// # Panics
    /// In a process that was forked from the one that has opened the store.
    pub fn is_durable(&self) -> bool {
        self.store.storage.must_be_own();
        self.stamp.is_none_or(|stamp| self.store.policy.is_durable(stamp, self.class))
    }

    /// Waits until it does.
    ///
    /// # Errors
    /// When the store fails before that.
    pub fn wait(self) -> Result<(), Failure> {
        self.refuse_inherited()?;
        self.stamp.map_or(Ok(()), |stamp| self.store.policy.wait_durable(stamp, self.class))
    }

    /// Waits until it does, or the time is over: whether it does. In a store without background threads
    /// ([`Options::background`](crate::Options::background)) somebody else must bring it about.
    ///
    /// # Errors
    /// When the store fails before that.
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool, Failure> {
        let end = Instant::now().checked_add(limit);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Poll::Ready(done) = self.look(&waker) {
                return done.map(|()| true);
            }
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(false),
                Some(rest) => std::thread::park_timeout(rest),
                None => std::thread::park(),
            }
        }
    }

    /// Those who would bring it about are in the process that has opened the store.
    fn refuse_inherited(&self) -> Result<(), Failure> {
        if self.store.storage.is_inherited() { self.store.storage.failure() } else { Ok(()) }
    }

    fn look(&self, waker: &Waker) -> Poll<Result<(), Failure>> {
        if let Err(failure) = self.refuse_inherited() {
            return Poll::Ready(Err(failure));
        }
        match self.stamp {
            Some(stamp) => self.store.policy.poll_durable(stamp, self.class, waker),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Future for Ticket {
    type Output = Result<(), Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.look(context.waker())
    }
}
