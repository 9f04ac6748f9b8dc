//! Threads for calls that must not wait for a thread: as many as there are such calls at one time.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// So long a thread waits for another call before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// Jobs, and threads that wait for them.
pub(crate) struct Pool<J> {
    state: Mutex<State<J>>,
    came: Condvar,
    /// Asks for one more thread.
    more: Sender<()>,
}

struct State<J> {
    jobs: VecDeque<J>,
    idle: usize,
    stops: bool,
}

impl<J> Pool<J> {
    /// Whoever has the other end of `more` runs [`Pool::work`] in a new thread for each that is asked for.
    pub fn new(more: Sender<()>) -> Pool<J> {
        let state = State { jobs: VecDeque::new(), idle: 0, stops: false };
        Pool { state: Mutex::new(state), came: Condvar::new(), more }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has a job run. It comes back if nobody runs any more.
    pub fn push(&self, job: J) -> Result<(), J> {
        let mut state = self.lock();
        if state.stops {
            return Err(job);
        }
        state.jobs.push_back(job);
        match state.jobs.len() > state.idle {
            true => _ = self.more.send(()),
            false => self.came.notify_one(),
        }
        Ok(())
    }

    /// A thread: runs jobs until there are none for a while.
    pub fn work(&self, run: impl Fn(J)) {
        let mut state = self.lock();
        while !state.stops {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                run(job);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (mut woken, waited) =
                self.came.wait_timeout(state, IDLE).unwrap_or_else(|poisoned| poisoned.into_inner());
            woken.idle -= 1;
            if waited.timed_out() && woken.jobs.is_empty() {
                return;
            }
            state = woken;
        }
    }

    /// Ends all threads when their jobs have ended; those that wait are dropped.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stops = true;
        state.jobs.clear();
        self.came.notify_all();
        // Whoever makes threads looks whether it goes on.
        let _ = self.more.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};

    /// Twice, so that threads that are idle are used again.
    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        type Job = Box<dyn FnOnce() + Send>;
        let (more, asked) = channel();
        let pool: Pool<Job> = Pool::new(more);
        std::thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                while asked.recv().is_ok() && !pool.lock().stops {
                    scope.spawn(|| pool.work(|job| job()));
                }
            });
            for _ in 0..2 {
                let all = Arc::new(Barrier::new(21));
                for _ in 0..20 {
                    let all = all.clone();
                    assert!(pool.push(Box::new(move || _ = all.wait())).is_ok());
                }
                all.wait();
            }
            pool.stop();
            assert!(pool.push(Box::new(|| {})).is_err());
        });
    }
}
