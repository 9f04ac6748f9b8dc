//! The log on other machines (Camelot, section 4.4): what is forced here is sent there, in order.
//!
//! ```text
//!   1 end := what is forced               what is not may be taken back here, and written otherwise
//!   2 a part: whole records from where the replica's end
//!   3 append it                           it survives this machine now
//!   4 wake who waits for it               class `Quorum`
//! ```
//!
//! Whoever waits sends, if nobody does, for all who came before; a thread sends what nobody waits for. Invariants:
//! the replica has a part of what is forced, and the log keeps what a file says that the replica has not. Openings
//! go by that file, also those that know of no replica, so nothing behind its position is let go; it is moved when
//! truncation wants the room.

use super::Redo;
use super::backup::hold;
use super::group::Wakers;
use crate::storage::directory::CATALOG;
use crate::storage::error::{Failure, OpenError};
use crate::storage::replica::{Replica, ReplicaError, ReplicaPart};
use caliburn_log::archive::{self, Part};
use caliburn_log::format::Lsn;
use caliburn_log::log::Log;
use caliburn_log::media_error::MediaError;
use caliburn_log::scan;
use caliburn_os::clock::wall_ns;
use caliburn_os::event::Event;
use caliburn_os::host::Id;
use caliburn_os::medium::Media;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Duration;

/// A part is no longer than this and a record.
const PART_BYTES: u64 = 512 << 10;
/// So long it waits before it asks a replica again that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// What is sent, and who waits for it.
pub(super) struct Replication {
    replica: Arc<dyn Replica>,
    sending: Mutex<Sending>,
    noted: Mutex<Noted>,
    /// All before this LSN is there.
    reached: AtomicU64,
    /// Every commit stamped before it is there.
    stamped: AtomicU64,
    /// Horizons of forces, with the ends of the log that they forced: the replica does not have these yet.
    forces: Mutex<VecDeque<(u64, Lsn)>>,
    /// Signalled when something was forced.
    forced: Event,
    /// Signalled when a part is there, and when somebody else may send.
    moved: Event,
    pub wakers: Wakers,
    pub parts: AtomicU64,
    pub bytes: AtomicU64,
}

/// What is the sender's.
#[derive(Default)]
struct Sending {
    /// It did not answer when it was asked last.
    away: bool,
}

/// What the file says.
struct Noted {
    lsn: Lsn,
    since: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replication {
    /// Goes on with the replica of a store's log, which was just opened, or begins one.
    pub fn begin(
        replica: &Arc<dyn Replica>,
        (media, dir, store): (&dyn Media, &Path, Id),
        log: &Log,
    ) -> Result<Replication, OpenError> {
        let refused = |why: String| OpenError::Replica { path: dir.to_owned(), why };
        let end = log.forced();
        let reached = Lsn(replica.begin(store, end.0).map_err(|error| refused(error.to_string()))?);
        if reached > end {
            return Err(refused(format!(
                "the log ends at LSN {end}, and its replica has it up to {reached}: it is not the store any more that was replicated. Restore it of a dump and the replica"
            )));
        }
        if reached < log.kept() {
            return Err(refused(format!(
                "its replica has the log up to LSN {reached}, and what stands before {} is gone: it was used without. Begin another replica, with another dump",
                log.kept()
            )));
        }
        let since = wall_ns();
        hold::write(media, dir, store, reached, since, hold::REPLICATED)?;
        Ok(Replication {
            replica: replica.clone(),
            sending: Mutex::default(),
            noted: Mutex::new(Noted { lsn: reached, since }),
            reached: AtomicU64::new(reached.0),
            stamped: AtomicU64::new(0),
            forces: Mutex::default(),
            forced: Event::default(),
            moved: Event::default(),
            wakers: Wakers::default(),
            parts: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Sends all that is forced, before the store is opened: recovery needs the room.
    pub fn catch_up(&self, log: &Log, of: (&dyn Media, &Path, Id)) -> Result<(), OpenError> {
        let refused = |why: String| OpenError::Replica {
            path: of.1.to_owned(),
            why: format!("what its replica has not got fills the log, and {why}"),
        };
        let mut noted = lock(&self.noted);
        while self.reached() < log.forced() {
            let from = self.reached();
            let Some(part) = part(log, of, (from, log.forced()))? else { continue };
            let at = self.replica.append(&part).map_err(|error| refused(error.to_string()))?;
            if !(part.from + 1..=part.to).contains(&at) {
                return Err(refused(format!(
                    "it goes on at LSN {at}, behind a part from {from} to {}",
                    part.to
                )));
            }
            self.reach(Lsn(at));
        }
        let (media, dir, store) = of;
        hold::write(media, dir, store, self.reached(), noted.since, hold::REPLICATED)?;
        noted.lsn = self.reached();
        Ok(())
    }

    /// All before it is there.
    pub fn reached(&self) -> Lsn {
        Lsn(self.reached.load(Ordering::Acquire))
    }

    /// Whether a commit with this stamp is there.
    pub fn has(&self, stamp: u64) -> bool {
        self.stamped.load(Ordering::Acquire) > stamp
    }

    /// The log was forced up to an end, and so every commit stamped before a horizon.
    pub fn note_force(&self, horizon: u64, end: Lsn) {
        let mut forces = lock(&self.forces);
        // Nothing was appended that it has not got.
        let there = end <= self.reached();
        match forces.back_mut() {
            _ if there => drop(self.stamped.fetch_max(horizon, Ordering::AcqRel)),
            Some(last) if last.1 == end => last.0 = last.0.max(horizon),
            _ => forces.push_back((horizon, end)),
        }
        drop(forces);
        self.forced.signal();
        if there {
            self.wake(horizon);
        }
    }

    /// A part is there.
    fn reach(&self, to: Lsn) {
        let mut forces = lock(&self.forces);
        self.reached.store(to.0, Ordering::Release);
        while let Some((horizon, _)) = forces.pop_front_if(|(_, end)| *end <= to) {
            self.stamped.fetch_max(horizon, Ordering::AcqRel);
        }
        drop(forces);
        self.wake(self.stamped.load(Ordering::Acquire));
    }

    /// Wakes those whose commit was stamped before the horizon.
    fn wake(&self, horizon: u64) {
        self.moved.signal();
        self.wakers.wake(horizon);
    }

    /// After a failure, or at closing.
    pub fn wake_all(&self) {
        self.forced.signal();
        self.wake(u64::MAX);
    }
}

/// Signals that somebody else may send, also if its holder panics: the others must not sleep for its sake.
struct CallsToSend<'r>(&'r Replication);

impl Drop for CallsToSend<'_> {
    fn drop(&mut self) {
        if !planted("nobody-called-to-send") {
            self.0.moved.signal();
        }
    }
}

impl Redo {
    /// Waits until the replica has all of the log up to an end, which is forced.
    pub(super) fn wait_replica_end(&self, end: Lsn) -> Result<(), Failure> {
        match &self.replication {
            Some(replication) => self.wait_replica(replication, &|| replication.reached() >= end),
            None => Ok(()),
        }
    }

    /// Waits until the replica has a commit, which is forced.
    pub(super) fn wait_replica_stamp(&self, stamp: u64) -> Result<(), Failure> {
        match &self.replication {
            Some(replication) => self.wait_replica(replication, &|| replication.has(stamp)),
            None => Ok(()),
        }
    }

    /// Sends until it is there, or lets another one send. Only a failure, or that the store was closed, ends it.
    fn wait_replica(&self, replication: &Replication, there: &dyn Fn() -> bool) -> Result<(), Failure> {
        loop {
            let seen = replication.moved.count();
            if planted("replica-not-waited-for") || there() {
                return Ok(());
            }
            self.not_over()?;
            let sending = match replication.sending.try_lock() {
                Ok(sending) => Some(sending),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let Some(sending) = sending else {
                let _waiting = self.storage.meter.durable.begin("the log's replica");
                replication.moved.wait(seen, None);
                continue;
            };
            let done = {
                // Who waits, and did not get the lock, may have to send what was forced meanwhile: told when it is
                // free.
                let _calls = CallsToSend(replication);
                let mut sending = sending;
                self.send(replication, &mut sending, there)
            };
            self.pause(replication, done?);
        }
    }

    /// That it may still come there: nobody sends for a store that is closed, since others may use its log.
    pub(super) fn not_over(&self) -> Result<(), Failure> {
        self.storage.failure()?;
        if !self.storage.is_done() {
            return Ok(());
        }
        let text = "the store was closed before the log's replica could be reached";
        let error = MediaError::new("replicate", &*self.log.medium(), 0, io::Error::other(text));
        Err(Failure { cause: Arc::new(error) })
    }

    /// Before it is tried again.
    fn pause(&self, replication: &Replication, sent: Sent) {
        if sent == Sent::NotNow && !self.storage.is_done() {
            let seen = replication.forced.count();
            replication.forced.wait(seen, Some(PAUSE));
        }
    }

    /// Sends what there is, in a store without the thread that does: the log is full.
    pub(super) fn send_for_room(&self) -> Result<(), Failure> {
        let Some(replication) = &self.replication else { return Ok(()) };
        let _calls = CallsToSend(replication);
        self.send(replication, &mut lock(&replication.sending), &|| false).map(drop)
    }

    /// The life of the thread that sends.
    pub(super) fn run_replication(&self) {
        let Some(replication) = &self.replication else { return };
        loop {
            let seen = replication.forced.count();
            // What there is when the store is closed is sent, if the replica answers.
            let over = self.storage.is_over();
            let done = {
                let _calls = CallsToSend(replication);
                self.send(replication, &mut lock(&replication.sending), &|| false)
            };
            match done {
                _ if over => return replication.wake_all(),
                Ok(Sent::All) | Err(_) => replication.forced.wait(seen, None),
                Ok(sent) => self.pause(replication, sent),
            }
        }
    }

    /// Sends what is forced, in parts, until there is no more, or enough.
    fn send(
        &self,
        replication: &Replication,
        sending: &mut Sending,
        enough: &dyn Fn() -> bool,
    ) -> Result<Sent, Failure> {
        while !enough() {
            self.storage.failure()?;
            // 1
            let (from, end) = (replication.reached(), self.log.forced());
            let end = instead("unforced-replicated", end, self.log.tail());
            if from >= end {
                return Ok(Sent::All);
            }
            // 2
            let of = (&*self.storage.media, &*self.storage.dir, self.storage.id);
            let part = part(&self.log, of, (from, end)).map_err(|e| self.fail(e))?;
            let Some(part) = part else { continue };
            let to = Lsn(part.to);
            debug_assert!(to <= self.log.forced(), "the replica has a part of what is forced");
            if planted("replica-reached-early") {
                replication.reach(to);
            }
            // 3
            let to = match replication.replica.append(&part) {
                Ok(at) if (from.0 + 1..=to.0).contains(&at) => Lsn(at),
                Ok(at) => {
                    let why = format!("it goes on at LSN {at}, behind a part from {from} to {to}");
                    return Err(self.refused(from, why));
                }
                Err(ReplicaError::Unavailable(why)) if unless("unavailable-replica-believed", true) => {
                    if !std::mem::replace(&mut sending.away, true) {
                        tracing::warn!(why, "the log's replica can't be reached: it is tried again");
                    }
                    return Ok(Sent::NotNow);
                }
                Err(ReplicaError::Unavailable(_)) => to,
                Err(error @ ReplicaError::Refused(_)) => return Err(self.refused(from, error.to_string())),
            };
            if std::mem::replace(&mut sending.away, false) {
                tracing::info!("the log's replica can be reached again");
            }
            replication.parts.fetch_add(1, Ordering::Relaxed);
            replication.bytes.fetch_add(to.0 - from.0, Ordering::Relaxed);
            // 4
            replication.reach(to);
            if self.log.kept() < self.log.head() && self.note_is_due(lock(&replication.noted).lsn, to) {
                // Room was held for it.
                self.wake_truncation();
            }
        }
        Ok(Sent::All)
    }

    /// The replica does not go on with what this store writes: it fails.
    fn refused(&self, from: Lsn, why: String) -> Failure {
        let error = io::Error::new(io::ErrorKind::PermissionDenied, why);
        self.fail(MediaError::new("replicate", &*self.log.medium(), from.0, error))
    }

    /// Whether the file is so far behind that it should be moved.
    fn note_is_due(&self, noted: Lsn, reached: Lsn) -> bool {
        let behind = reached.0 - noted.0;
        behind > self.log.capacity() / 16 || behind > 0 && self.is_starved()
    }

    /// From where on the log is kept for its replica, which truncation asks.
    pub(super) fn kept_for_replica(&self, replication: &Replication) -> Result<Lsn, MediaError> {
        let mut noted = lock(&replication.noted);
        let reached = replication.reached();
        if self.note_is_due(noted.lsn, reached) {
            self.note_replica(&mut noted, reached)?;
        }
        Ok(instead("noted-not-respected", noted.lsn, reached))
    }

    /// Says durably how far the replica is.
    fn note_replica(&self, noted: &mut Noted, to: Lsn) -> Result<(), MediaError> {
        let storage = &self.storage;
        hold::write(&*storage.media, &storage.dir, storage.id, to, noted.since, hold::REPLICATED)?;
        noted.lsn = to;
        Ok(())
    }

    /// The store is being closed, and nobody sends any more.
    pub(super) fn leave_replica(&self) -> Result<(), Failure> {
        let Some(replication) = &self.replication else { return Ok(()) };
        let mut noted = lock(&replication.noted);
        let reached = replication.reached();
        if reached > noted.lsn {
            self.note_replica(&mut noted, reached).map_err(|e| self.fail(e))?;
        }
        Ok(())
    }
}

/// Whole records of a store's log, from one position on. None: the log was moved while it was read.
fn part(
    log: &Log,
    (media, dir, store): (&dyn Media, &Path, Id),
    (from, end): (Lsn, Lsn),
) -> Result<Option<ReplicaPart>, MediaError> {
    let (capacity, medium) = (log.capacity(), log.medium());
    let mut part = Part::new(from);
    let read = scan::follow(&*medium, capacity, from..end, |record| {
        part.push(record);
        part.len() < PART_BYTES
    });
    if !Arc::ptr_eq(&medium, &log.medium()) || capacity != log.capacity() {
        return Ok(None);
    }
    let position = read?;
    if part.len() < PART_BYTES && position < end {
        let text = format!("no valid record stands at LSN {position}, which was forced");
        let error = io::Error::new(io::ErrorKind::InvalidData, text);
        return Err(MediaError::new("read the log", &*medium, position.0, error));
    }
    // Whatever a record names is in the catalog by now.
    let path = dir.join(CATALOG);
    let catalog = media.read(&path).map_err(|e| MediaError::of_name("read", path, e))?;
    let (name, bytes) = (archive::name(from, part.to()), part.encode(store, &catalog));
    Ok(Some(ReplicaPart { from: from.0, to: part.to().0, name, bytes }))
}

/// How sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The replica has all that is forced.
    All,
    /// It does not answer.
    NotNow,
}
