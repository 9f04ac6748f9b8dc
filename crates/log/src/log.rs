//! The log on its medium: a ring of records behind twin status pages (RVM, section 5.1).
//!
//! ```text
//! | status A | status B | ...64 KiB | ring: capacity bytes, record at LOG_DATA + lsn % capacity |
//!
//!   head <= forced <= appended <= head + capacity
//!   [head, forced)     survives a power cut
//!   [forced, appended) survives the process, not a power cut
//! ```
//!
//! One thread at a time appends (the holder of the engine's flush lock); one at a time moves the head
//! (the holder of its truncation lock). The three positions are atomics that anybody may read.

use crate::format::{
    ALIGN, BLOCK, Defect, LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_DATA, LOG_MAGIC, LSN_MAX, Lsn, Preamble,
    STATUS_AT, Said, Status,
};
use crate::media_error::{Forcing, MediaError};
use crate::ring::{STEP, read_ring, write_ring};
use crate::scan::{self, Scanned};
use crate::status_pages;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{instead, planted};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, RwLock};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Both status pages are unusable; what the better one says.
    #[error("log {}, offset 0: {defect}", path.display())]
    Status {
        /// The log.
        path: PathBuf,
        /// What is wrong.
        defect: Defect,
    },
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    /// Changed, with the capacity, by [`Log::move_to`] alone.
    medium: RwLock<Arc<dyn Medium>>,
    store: Id,
    capacity: AtomicU64,
    incarnation: u32,
    head: AtomicU64,
    /// What stands before is overwritten: never beyond the head, nor beyond what an archive lacks.
    kept: AtomicU64,
    forced: AtomicU64,
    appended: AtomicU64,
    status: Mutex<Status>,
    forcing: Forcing,
}

/// Writes a new, empty log: the ring filled with zeros, so that later forces change no metadata of the
/// file system, then both status pages, which name the store's generation (0: it has none).
pub fn create(medium: &dyn Medium, store: Id, capacity: u64, generation: u64) -> Result<(), MediaError> {
    let bounds = LOG_BYTES_MIN..=LOG_BYTES_MAX;
    assert!(bounds.contains(&capacity) && capacity.is_multiple_of(BLOCK as u64), "checked by the caller");
    let fail = |action, offset, error| MediaError::new(action, medium, offset, error);
    medium.set_len(LOG_DATA + capacity).map_err(|e| fail("allocate the log", LOG_DATA + capacity, e))?;
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < LOG_DATA + capacity {
        let len = (LOG_DATA + capacity - at).min(zeros.len() as u64);
        medium.write_at(&zeros[..len as usize], at).map_err(|e| fail("write the log", at, e))?;
        at += len;
    }
    let (clean, store_generation) = (1.into(), generation.into());
    let mut status = Status { capacity: capacity.into(), clean, store_generation, ..Status::new_zeroed() };
    for generation in 0..2u64 {
        status.generation = generation.into();
        status_pages::put(medium, status.as_bytes(), LOG_MAGIC, store)?;
    }
    medium.sync().map_err(|e| fail("force the log", 0, e))
}

/// Whether a medium had, or has, a log of that store: damaged perhaps.
pub fn was_of(medium: &dyn Medium, store: &Id) -> bool {
    STATUS_AT.iter().any(|at| {
        let mut page = [0; size_of::<Preamble>()];
        let read = medium.read_at(&mut page, *at);
        let Ok((preamble, _)) = Preamble::read_from_prefix(&page) else { return false };
        read.is_ok() && preamble.magic == LOG_MAGIC && preamble.store == *store
    })
}

/// Which generation of its store a log is of, by the status that was read of it.
pub fn said(medium: &dyn Medium, status: &Status) -> Said {
    let twin_lost = status_pages::is_one_torn(medium, LOG_MAGIC, "log", &status.preamble.store);
    Said { generation: status.store_generation.get(), twin_lost }
}

/// Makes the status that was read durable: it may be in the page cache alone.
pub fn force_status(medium: &dyn Medium, status: &Status) -> Result<(), MediaError> {
    status_pages::put(medium, status.as_bytes(), LOG_MAGIC, status.preamble.store)?;
    medium.sync().map_err(|e| MediaError::new("force the log's status", medium, 0, e))
}

/// Reads the status that counts. `store` is compared if known.
pub fn read_status(medium: &dyn Medium, store: Option<&Id>) -> Result<Status, LogError> {
    let bad = |defect| LogError::Status { path: medium.path().to_owned(), defect };
    let page = status_pages::read(medium, LOG_MAGIC, "log", store)?.map_err(bad)?;
    let (status, _) = Status::read_from_prefix(&page).expect("a page holds a status");
    let (capacity, head, forced) = (status.capacity.get(), status.head.get(), status.forced.get());
    let sound = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity)
        && capacity.is_multiple_of(BLOCK as u64)
        && [head, forced, status.opened.get()]
            .iter()
            .all(|at| *at <= LSN_MAX && at.is_multiple_of(ALIGN as u64))
        && (head..=head + capacity).contains(&forced)
        && status.opened.get() <= head + capacity;
    if !sound {
        return Err(bad(Defect::Value("its status page holds impossible values".into())));
    }
    let needed = LOG_DATA + capacity;
    let held = medium.len().map_err(|e| MediaError::new("measure the log", medium, 0, e))?;
    if held < needed {
        let text = format!("it is {held} bytes long and must be {needed}: the file was cut off");
        return Err(bad(Defect::Value(text)));
    }
    Ok(status)
}

impl Log {
    /// Takes the log up for appending at the end that a scan has found, in a new incarnation that is made
    /// durable before this returns; `place` is what the medium says of itself, and `generation` the store's.
    ///
    /// Everything that is not known to be forced is written again first. After a force that failed, or a write
    /// back that did without anybody hearing of it, the system goes on showing what the medium lacks, and a
    /// later force says nothing of it.
    pub fn open(
        medium: Arc<dyn Medium>,
        store: Id,
        status: Status,
        scanned: &Scanned,
        (place, generation): ([u64; 2], u64),
    ) -> Result<Log, MediaError> {
        let (forced, tail) = (scanned.forced.min(scanned.tail), scanned.tail);
        let incarnation = status.incarnation.get().checked_add(u32::from(!planted("incarnation-kept")));
        let incarnation = incarnation.ok_or_else(|| {
            // It can still be read.
            let text = "it was opened 2^32 - 1 times, as often as a log can be: dump the store, and restore the dump";
            MediaError::new("open the log", &*medium, 0, io::Error::other(text))
        })?;
        let log = Log {
            medium: RwLock::new(medium),
            store,
            capacity: AtomicU64::new(status.capacity.get()),
            incarnation,
            head: AtomicU64::new(status.head.get()),
            kept: AtomicU64::new(status.head.get()),
            forced: AtomicU64::new(forced.0),
            appended: AtomicU64::new(tail.0),
            forcing: Forcing::default(),
            status: Mutex::new(Status {
                incarnation: incarnation.into(),
                clean: instead("clean-kept", 0.into(), status.clean),
                opened: tail.0.into(),
                place: place.map(Into::into),
                store_generation: generation.into(),
                ..status
            }),
        };
        if !planted("unforced-not-rewritten") {
            log.write_again(forced, tail)?;
        }
        if !planted("status-not-rewritten") {
            // The next status page goes over the twin, which may be the only one on the medium.
            log.put_status(&status)?;
        }
        if !planted("opened-before-forced") {
            // Once the status says that this opening began at `tail`, an older record may lie before it that one
            // of those here has overwritten: were these lost then, that one would come up again.
            log.sync("force the log", LOG_DATA)?;
            // What was written again was read again, perhaps from a medium that never had it.
            if !planted("rewritten-unverified") {
                scan::verify(&*log.medium(), log.capacity(), forced..tail)?;
            }
            log.forced.store(tail.0, Ordering::Release);
        }
        log.write_status(|_| {})?;
        Ok(log)
    }

    /// The medium, for reading back.
    pub fn medium(&self) -> Arc<dyn Medium> {
        self.medium.read().expect("no panic under this lock").clone()
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// This opening's number.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Oldest record still needed.
    pub fn head(&self) -> Lsn {
        Lsn(self.head.load(Ordering::Acquire))
    }

    /// End of what survives a power cut.
    pub fn forced(&self) -> Lsn {
        Lsn(self.forced.load(Ordering::Acquire))
    }

    /// End of the log; the next record goes here.
    pub fn tail(&self) -> Lsn {
        Lsn(self.appended.load(Ordering::Acquire))
    }

    /// Bytes that can be appended before the head must move, or what is kept.
    pub fn free(&self) -> u64 {
        // The older position first: it never overtakes an end that is read later.
        let kept = self.kept().0;
        self.capacity() - (self.tail().0 - kept)
    }

    /// Oldest record that is not overwritten: the head, or one before it.
    pub fn kept(&self) -> Lsn {
        Lsn(self.kept.load(Ordering::Acquire))
    }

    /// Keeps what stands from a position on, though it is before the head: for a log that was just opened, of
    /// which nothing behind that position was overwritten.
    pub fn keep_from(&self, held: Lsn) {
        let there = self.tail().0.saturating_sub(self.capacity());
        self.kept.store(held.min(self.head()).0.max(there), Ordering::Release);
    }

    /// Lets go what stands before the head, but for what stands from `held` on.
    pub fn let_go(&self, held: Lsn) {
        self.kept.fetch_max(held.min(self.head()).0, Ordering::AcqRel);
    }

    /// Bytes between head and tail.
    pub fn used(&self) -> u64 {
        // The head first: it never overtakes an end that is read later.
        let head = self.head().0;
        self.tail().0 - head
    }

    /// Writes bytes at a position in the ring, in two parts where it wraps. Publishes nothing.
    pub fn write(&self, lsn: Lsn, bytes: &[u8]) -> Result<(), MediaError> {
        let capacity = self.capacity();
        assert!(
            lsn.0 + bytes.len() as u64 <= self.kept().0 + capacity,
            "what is kept of the log would be overwritten"
        );
        write_ring(&*self.medium(), capacity, lsn, bytes)
    }

    /// Writes what is there once more.
    fn write_again(&self, from: Lsn, to: Lsn) -> Result<(), MediaError> {
        let mut bytes = vec![0; STEP.min(to.0 - from.0) as usize];
        for at in (from.0..to.0).step_by(STEP as usize) {
            let part = &mut bytes[..STEP.min(to.0 - at) as usize];
            read_ring(&*self.medium(), self.capacity(), Lsn(at), part)?;
            self.write(Lsn(at), part)?;
        }
        Ok(())
    }

    /// Writes whole records behind the end of the log; [`Log::publish`] makes the returned end count.
    pub fn append(&self, records: &[u8]) -> Result<Lsn, MediaError> {
        let at = self.tail();
        self.write(at, records)?;
        Ok(Lsn(at.0 + records.len() as u64))
    }

    /// Makes `end` the end of the log after its records were written.
    pub fn publish(&self, end: Lsn) {
        self.appended.store(end.0, Ordering::Release);
    }

    /// Forces everything appended before this call.
    pub fn force(&self) -> Result<(), MediaError> {
        let appended = self.tail();
        if self.forced() < appended {
            if !planted("log-not-forced") {
                self.sync("force the log", LOG_DATA)?;
            }
            self.forced.fetch_max(appended.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Moves the head: everything before `head` is in its segment, forced. The space can be [let go](Log::let_go)
    /// when this returns, because the status page that says so is durable.
    pub fn advance_head(&self, head: Lsn) -> Result<(), MediaError> {
        assert!(head >= self.head() && head <= self.forced(), "the head moves forward within the forced log");
        if planted("space-reused-early") {
            self.head.store(head.0, Ordering::Release);
            return Ok(());
        }
        self.write_status(|status| status.head = head.0.into())?;
        self.head.store(head.0, Ordering::Release);
        Ok(())
    }

    /// Copies what is kept, all of which is forced, to an empty log on another medium, of another size, durably; its
    /// status says that it is at `place`.
    /// Nothing is appended meanwhile, and the head stays, up to [`Log::move_to`].
    pub fn copy_to(&self, target: &dyn Medium, capacity: u64, place: [u64; 2]) -> Result<(), MediaError> {
        let (kept, tail) = (self.kept(), self.tail());
        assert_eq!(self.forced(), tail, "what is not forced could be lost and copied");
        assert!(tail.0 - kept.0 <= capacity, "checked by the caller");
        let source = self.medium();
        let mut bytes = vec![0; STEP.min(tail.0 - kept.0) as usize];
        for at in (kept.0..tail.0).step_by(STEP as usize) {
            let part = &mut bytes[..STEP.min(tail.0 - at) as usize];
            read_ring(&*source, self.capacity(), Lsn(at), part)?;
            if !planted("log-moved-without-records") {
                write_ring(target, capacity, Lsn(at), part)?;
            }
        }
        let mut status = self.moved_status(place, capacity);
        for _ in 0..2 {
            status.generation += 1;
            status_pages::put(target, status.as_bytes(), LOG_MAGIC, self.store)?;
        }
        if !planted("moved-log-not-forced") {
            target.sync().map_err(|e| MediaError::new("force the log", target, 0, e))?;
        }
        // What is read again and is not what was written is not to be relied on.
        scan::verify(target, capacity, self.head()..tail)
    }

    /// What the status says of a log on another medium.
    fn moved_status(&self, place: [u64; 2], capacity: u64) -> Status {
        Status {
            capacity: capacity.into(),
            forced: self.forced().0.into(),
            place: place.map(Into::into),
            ..*self.status.lock().expect("no thread panics while it holds the status")
        }
    }

    /// Goes on at a medium to which the log was [copied](Log::copy_to), and which is durably named.
    pub fn move_to(&self, target: Arc<dyn Medium>, capacity: u64) {
        let mut status = self.moved_status(target.place().unwrap_or_default(), capacity);
        status.generation += 2;
        *self.status.lock().expect("no thread panics while it holds the status") = status;
        *self.medium.write().expect("no panic under this lock") = target;
        self.capacity.store(capacity, Ordering::Release);
    }

    /// Says in the status where the log is now.
    pub fn write_place(&self) -> Result<(), MediaError> {
        self.write_status(|_| {})
    }

    /// Says in the status that the log is empty and the store in order, in this generation.
    pub fn mark_clean(&self, generation: u64) -> Result<(), MediaError> {
        assert_eq!(self.head(), self.tail(), "a log that is not empty is not clean");
        self.write_status(|status| (status.clean, status.store_generation) = (1.into(), generation.into()))
    }

    /// Writes the next status page over the older twin and forces it.
    fn write_status(&self, change: impl FnOnce(&mut Status)) -> Result<(), MediaError> {
        let mut status = self.status.lock().expect("no thread panics while it holds the status");
        if !planted("status-after-a-failed-one") {
            // The page before this one may not be durable, and this one goes over the one before that.
            self.forcing.sound()?;
        }
        let mut next = *status;
        change(&mut next);
        next.generation += 1;
        next.forced = self.forced().0.into();
        let at = self.put_status(&next)?;
        *status = next;
        if planted("status-not-forced") {
            return Ok(());
        }
        self.sync("force the log's status", at)
    }

    fn put_status(&self, status: &Status) -> Result<u64, MediaError> {
        status_pages::put(&*self.medium(), status.as_bytes(), LOG_MAGIC, self.store)
    }

    fn sync(&self, action: &'static str, offset: u64) -> Result<(), MediaError> {
        self.forcing.sync(&*self.medium(), action, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{self, STATUS_AT};
    use crate::record::{self, Kind, RecordPosition};
    use crate::scan::scan;
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    /// A medium with a cache. A force that fails drops what was written, and the medium then pretends that
    /// nothing was amiss, as kernels do. A status page must be written only while its twin is the newest and
    /// durable: what is being written when the power fails may be lost.
    #[derive(Debug)]
    struct Forgetful {
        inner: Arc<dyn Medium>,
        durable: Arc<dyn Medium>,
        unforced: Mutex<Vec<(u64, Vec<u8>)>>,
        fails: AtomicBool,
        /// What was read before is read from the medium the next time.
        evicted: AtomicBool,
    }

    impl Forgetful {
        fn new(dir: &tempfile::TempDir) -> Forgetful {
            let file = |name: &str| Files.create(&dir.path().join(name)).unwrap();
            let (inner, durable) = (file("cached"), file("durable"));
            let (fails, evicted) = Default::default();
            Forgetful { inner, durable, unforced: Mutex::default(), fails, evicted }
        }

        fn check_twin(&self, offset: u64) {
            let Some(twin) = STATUS_AT.iter().find(|at| STATUS_AT.contains(&offset) && **at != offset) else {
                return;
            };
            let generation = |medium: &dyn Medium, at| {
                let mut page = vec![0; BLOCK];
                medium.read_at(&mut page, at).ok()?;
                format::unseal(&page, LOG_MAGIC, "log", None).ok()?;
                Some(Status::read_from_prefix(&page).unwrap().0.generation.get())
            };
            let seen = generation(&*self.inner, offset).max(generation(&*self.inner, *twin));
            let made = STATUS_AT.iter().any(|at| generation(&*self.durable, *at).is_some());
            if made && generation(&*self.inner, offset) < seen {
                assert_eq!(generation(&*self.durable, *twin), seen, "the only durable status is overwritten");
            }
        }
    }

    // SAFETY: everything mapped is passed on from a file's medium.
    unsafe impl Medium for Forgetful {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            let evicted = self.evicted.load(std::sync::atomic::Ordering::SeqCst);
            let medium = if evicted { &self.durable } else { &self.inner };
            medium.read_at(buffer, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.check_twin(offset);
            self.unforced.lock().unwrap().push((offset, bytes.to_vec()));
            self.inner.write_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            let unforced = std::mem::take(&mut *self.unforced.lock().unwrap());
            if self.fails.swap(false, std::sync::atomic::Ordering::SeqCst) {
                return Err(io::Error::other("lost"));
            }
            unforced.iter().try_for_each(|(offset, bytes)| self.durable.write_at(bytes, *offset))
        }
        fn len(&self) -> io::Result<u64> {
            self.inner.len()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.durable.set_len(len)?;
            self.inner.set_len(len)
        }
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.inner.descriptor()
        }
        fn path(&self) -> &Path {
            self.inner.path()
        }
    }

    /// After a failed force the kernel has dropped what it could not write: that a later one succeeds says
    /// nothing of those bytes.
    #[test]
    fn a_force_after_a_failed_one_fails_too() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Forgetful::new(&dir);
        medium.fails.store(true, std::sync::atomic::Ordering::SeqCst);
        let forcing = Forcing::default();
        for _ in 0..3 {
            let error = forcing.sync(&medium, "force", 0).unwrap_err().to_string();
            assert!(error.contains("lost"), "{error}");
        }
    }

    /// Another thread may not have heard of the failure yet.
    #[test]
    fn no_status_page_is_written_after_one_whose_force_failed() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Arc::new(Forgetful::new(&dir));
        create(&*medium, [7; 16], LOG_BYTES_MIN, 1).unwrap();
        let status = read_status(&*medium, None).unwrap();
        let scanned = scan(&*medium, &status, None, |_| {}).unwrap();
        let log = Log::open(medium.clone(), [7; 16], status, &scanned, ([0; 2], 1)).unwrap();
        medium.fails.store(true, std::sync::atomic::Ordering::SeqCst);
        for _ in 0..3 {
            log.advance_head(Lsn(0)).unwrap_err();
        }
    }

    fn empty_record(log: &Log) -> Vec<u8> {
        let (lsn, forced, incarnation) = (log.tail(), log.forced(), log.incarnation());
        let place = RecordPosition { lsn, forced, incarnation, time: 0 };
        let mut bytes = Vec::new();
        record::encode(&mut bytes, Kind::Commit, place, &[], &[]);
        bytes
    }

    /// What a scan saw in the page cache may be gone from there when the opening writes it again.
    #[test]
    fn opening_refuses_what_was_there_when_it_was_scanned_and_is_not_when_it_is_written_again() {
        let (store, dir) = ([7; 16], tempfile::tempdir().unwrap());
        let medium = Arc::new(Forgetful::new(&dir));
        create(&*medium, store, LOG_BYTES_MIN, 1).unwrap();
        let scanned = || {
            let status = read_status(&*medium, Some(&store)).unwrap();
            (status, scan(&*medium, &status, None, |_| {}).unwrap())
        };
        let (status, first) = scanned();
        let log = Log::open(medium.clone(), store, status, &first, ([0; 2], 1)).unwrap();
        log.publish(log.append(&empty_record(&log)).unwrap());
        medium.fails.store(true, std::sync::atomic::Ordering::SeqCst);
        log.force().unwrap_err();
        let (status, second) = scanned();
        assert!(second.tail > first.tail);
        medium.evicted.store(true, std::sync::atomic::Ordering::SeqCst);
        let error = Log::open(medium.clone(), store, status, &second, ([0; 2], 1)).map(drop).unwrap_err();
        assert!(error.to_string().contains("read the log back"), "{error}");
        let durable = read_status(&*medium.durable, Some(&store)).unwrap();
        assert_eq!(durable.incarnation, status.incarnation, "a new incarnation stands on what is not there");
    }

    /// Whatever of a log's forces fails, reopening it in the same boot makes durable what it shows.
    #[test]
    fn opening_after_a_failed_force_relies_on_nothing_that_was_not_forced() {
        let store = [7; 16];
        for failing in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let medium = Arc::new(Forgetful::new(&dir));
            create(&*medium, store, LOG_BYTES_MIN, 1).unwrap();
            let open = || {
                let status = read_status(&*medium, Some(&store)).unwrap();
                let scanned = scan(&*medium, &status, None, |_| {}).unwrap();
                assert!(scanned.damage.is_none(), "{scanned:?}");
                Log::open(medium.clone(), store, status, &scanned, ([0; 2], 1))
            };
            let mut forces = 0;
            let mut live = || -> Result<(), MediaError> {
                let mut fail_at = |at: u32| {
                    medium.fails.store(at == failing, std::sync::atomic::Ordering::SeqCst);
                    forces += 1;
                };
                let log = open()?;
                log.publish(log.append(&empty_record(&log))?);
                fail_at(0);
                log.force()?;
                log.publish(log.append(&empty_record(&log))?);
                fail_at(1);
                log.force()?;
                fail_at(2);
                log.advance_head(log.forced())?;
                log.publish(log.append(&empty_record(&log))?);
                fail_at(3);
                log.force()
            };
            live().unwrap_err();
            assert_eq!(forces, failing + 1);
            let log = open().unwrap();
            let durable = read_status(&*medium.durable, Some(&store)).unwrap();
            assert_eq!(durable.opened.get(), log.tail().0);
            let scanned = scan(&*medium.durable, &durable, None, |_| {}).unwrap();
            assert_eq!((scanned.tail, scanned.damage.is_none()), (log.tail(), true));
        }
    }
}
