//! A queue of jobs, each handed over exactly once: what a job has done is recorded in the transaction that
//! takes it off the list of those at work. A worker that dies leaves its job to the next.
//!
//! `cargo run --release -p caliburn --example jobs -- STORE`

use caliburn::prelude::*;

/// A job.
#[derive(Recoverable)]
#[repr(C)]
pub struct Job {
    /// Its number.
    pub number: u64,
    what: PString,
}

/// The queue.
#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Queue {
    next: u64,
    waiting: PVecDeque<Job>,
    working: PBTreeMap<u64, Job>,
    /// What each job has returned.
    pub results: PBTreeMap<u64, PString>,
}

/// Puts a job in; its number.
pub fn submit(queue: &Objects<Queue>, what: &str) -> Result<u64, caliburn::Error> {
    queue.update(|mut queue| {
        let mut queue = queue.fields();
        let number = *queue.next;
        *queue.next += 1;
        queue.waiting.push_back(JobInit { number, what });
        number
    })
}

/// Takes a job to work at: its number, and what it is.
pub fn take(queue: &Objects<Queue>) -> Result<Option<(u64, String)>, caliburn::Error> {
    queue.update(|mut queue| {
        let mut queue = queue.fields();
        let job = queue.waiting.pop_front()?;
        let taken = (job.number, job.what.to_string());
        queue.working.insert(taken.0, job);
        Some(taken)
    })
}

/// Says what a job has returned. False if somebody was faster.
pub fn finish(queue: &Objects<Queue>, number: u64, result: &str) -> Result<bool, caliburn::Error> {
    queue.update(|mut queue| {
        let mut queue = queue.fields();
        let mine = queue.working.remove(&number).is_some();
        if mine {
            queue.results.insert(number, result);
        }
        mine
    })
}

/// Puts the jobs of workers that are gone back in front.
pub fn take_back(queue: &Objects<Queue>) -> Result<(), caliburn::Error> {
    queue.update(|mut queue| {
        let mut queue = queue.fields();
        while let Some((_, job)) = queue.working.pop_last() {
            queue.waiting.push_front(job);
        }
    })
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args_os().nth(1).ok_or("usage: jobs STORE")?;
    let queue = Objects::<Queue>::create(store)?;
    take_back(&queue)?;
    submit(&queue, "count to three")?;
    while let Some((number, what)) = take(&queue)? {
        finish(&queue, number, &format!("done: {what}"))?;
    }
    queue.read().results.iter().for_each(|(number, result)| println!("{number} {result}"));
    Ok(())
}
