//! The file of undo chunks: memory that survives what the store's transactions are to survive, mapped, in which
//! their runs lie.
//!
//! ```text
//!  | status A | status B | ...64 KiB | chunk 0 | chunk 1 | ... |     chunk: | words | range | range | ... |
//! ```
//!
//! A run that outgrows its first chunk takes further ones, which name it and its transaction: the commit's one
//! store disowns them too. They go back to the pool afterwards.

use crate::storage::Storage;
use crate::write_set::{Chunk, set_word};
use caliburn_log::format::{
    UNDO_COUNT, UNDO_DATA, UNDO_HEAD, UNDO_MAGIC, UNDO_OWNER, UndoStatus, WitnessRecord, boot_field,
};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_log::status_pages;
use caliburn_log::uncommitted::{CHUNK_BYTES, CLEAN, DAMAGED, Found};
use caliburn_os::host::Id;
use caliburn_os::map::Reservation;
use caliburn_os::medium::Medium;
use caliburn_os::persist::{Flush, Memory, Survives};
use caliburn_os::rescue::{Part, Stretch};
use caliburn_os::simulated::{self, planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::witness::{self, Mounts, Others, Witnesses};
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Chunks by which the file grows.
const STEP: usize = 4;
/// Address space for the runs of a store, as much as can be had.
const RESERVED: [usize; 3] = [64 << 30, 1 << 30, 64 << 20];

/// The undo chunks of an open store.
#[derive(Debug)]
pub(crate) struct UndoChunks {
    medium: Arc<dyn Medium>,
    store: Id,
    /// What was noted of the witnesses of memory, and the mounts that it is about.
    now: Witnesses,
    mounts: Mutex<Mounts>,
    /// The chunks that are mapped, unless in persistent memory. Gone before them.
    stretch: Option<Stretch>,
    map: Reservation,
    pool: Mutex<Pool>,
    status: Mutex<UndoStatus>,
    forcing: Forcing,
    memory: Memory,
    /// Of seals: that of the status page which says that the store is in use.
    generation: u64,
    /// The store was in use by a process that died: what a force of its segments once lost would not be noticed.
    pub suspect: bool,
}

#[derive(Debug, Default)]
struct Pool {
    /// Chunks in use since the store was opened; the file may be longer.
    made: usize,
    free: Vec<u32>,
    /// How often a run's numbers of transactions have begun again, of sealed ones.
    rounds: u64,
    /// Of each chunk, which of them was the last when its ranges were erased.
    erased: Vec<u64>,
}

impl UndoChunks {
    /// Takes the file into use: to be called when what was uncommitted is undone. Durably in use when this
    /// returns, so that no later loss of memory passes for an orderly end.
    pub fn open(
        medium: Arc<dyn Medium>,
        store: Id,
        now: (&Witnesses, Mounts),
        memory: Memory,
        found: &Found,
        (place, store_generation): ([u64; 2], u64),
    ) -> Result<UndoChunks, MediaError> {
        // Address space may be limited (`ulimit -v`).
        let mut wishes = RESERVED.iter().map(|wish| Reservation::new(*wish, None));
        let map = wishes.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::OutOfMemory.into()));
        let map = map.map_err(|e| MediaError::new("reserve memory for undo logs", &*medium, 0, e))?;
        let sealed = memory.survives > Survives::Process;
        let (now, mounts) = now;
        let status = UndoStatus {
            boot: boot_field(now),
            witnesses: WitnessRecord::new(now),
            chunk_bytes: (CHUNK_BYTES as u32).into(),
            clean: 0.into(),
            sealed: u32::from(sealed).into(),
            generation: found.status.generation + 1,
            place: place.map(Into::into),
            store_generation: store_generation.into(),
            ..found.status
        };
        let chunks = UndoChunks {
            medium,
            store,
            now: *now,
            mounts: Mutex::new(mounts),
            stretch: None,
            map,
            pool: Mutex::default(),
            status: Mutex::new(found.status),
            forcing: Forcing::default(),
            memory,
            generation: status.generation.get(),
            suspect: found.status.clean.get() == 0 && !found.sealed(),
        };
        // What the chunks held is back where it belongs, durably so if they outlive this boot.
        chunks.count(0)?;
        // The page that counts may not be durable, if a force of it failed (see `Log::open`).
        status_pages::put(&*chunks.medium, found.status.as_bytes(), UNDO_MAGIC, store)?;
        chunks.sync()?;
        chunks.mark(|marked| *marked = status)?;
        Ok(chunks)
    }

    /// Before any are made: what becomes of them when their file has no room (see [`rescue`](caliburn_os::rescue)).
    pub fn rescue(&mut self, storage: &Storage) {
        let base = self.map.base().as_ptr().addr() + UNDO_DATA as usize;
        let of = (self.medium.descriptor(), UNDO_DATA);
        // SAFETY: the reservation and the medium are this one's.
        self.stretch = storage.owner().map(|owner| unsafe { Stretch::new(base, of, Part::Log, owner) });
    }

    /// What the logs are in.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// How stores reach persistent memory, if the logs are in such.
    #[inline(always)]
    pub fn persistent(&self) -> Option<Flush> {
        (self.memory.survives > Survives::Process).then_some(self.memory.flush)
    }

    /// Writes what the status becomes. One at a time: two of one generation would be written over each other.
    fn mark(&self, change: impl FnOnce(&mut UndoStatus)) -> Result<(), MediaError> {
        self.forcing.sound()?;
        let mut current = self.status.lock().expect("no panic under this lock");
        let mut status = *current;
        status.generation += 1;
        change(&mut status);
        status_pages::put(&*self.medium, status.as_bytes(), UNDO_MAGIC, self.store)?;
        *current = status;
        if planted("undo-use-not-forced") {
            return Ok(());
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), MediaError> {
        self.forcing.sync(&*self.medium, "force undo logs", 0)
    }

    /// Says that the store is in order, in this generation of it: nothing is uncommitted, every segment was forced.
    pub fn mark_clean(&self, generation: u64) -> Result<(), MediaError> {
        self.mark(|status| (status.clean, status.store_generation) = (CLEAN.into(), generation.into()))
    }

    /// Says that a segment could not be forced: what it holds is unknown, and stays so.
    pub fn mark_damaged(&self) -> Result<(), MediaError> {
        self.mark(|status| status.clean = DAMAGED.into())
    }

    /// Notes the mount that a new segment is on, if the store had no file there.
    pub fn note_mount(&self, segment: &dyn Medium) -> Result<(), MediaError> {
        segment.watch();
        let mut mounts = self.mounts.lock().expect("no panic under this lock");
        // Where ranges are sealed the memory outlives all mounts, and the generation is that of the seals.
        if !mounts.insert(segment.mount()) || self.persistent().is_some() || planted("new-mount-not-noted") {
            return Ok(());
        }
        let others = self.now.others.map(|others| Others { mounts: witness::digest(&mounts), ..others });
        self.mark(|status| status.witnesses = WitnessRecord::new(&Witnesses { others, ..self.now }))
    }

    fn map_chunks(&self, from: usize, to: usize) -> Result<(), MediaError> {
        if from == to {
            return Ok(());
        }
        let (at, len) = (UNDO_DATA as usize + from * CHUNK_BYTES, (to - from) * CHUNK_BYTES);
        let fail = |e| MediaError::new("map undo logs", &*self.medium, at as u64, e);
        // SAFETY: this part of the reservation was never mapped; the file is as long, and belongs to this
        // store, whose lock this process holds.
        let share =
            || unsafe { self.map.map_shared(at, len, self.medium.descriptor(), at as u64, self.memory.sync) };
        let shared = match &self.stretch {
            Some(stretch) => stretch.share(to * CHUNK_BYTES, share),
            None => share(),
        };
        shared.map_err(fail)?;
        simulated::mapped(self.medium.descriptor(), self.chunk(from as u32), len, at as u64);
        Ok(())
    }

    /// Where a chunk is mapped.
    fn chunk(&self, number: u32) -> *mut u8 {
        let at = UNDO_DATA as usize + number as usize * CHUNK_BYTES;
        assert!(at + CHUNK_BYTES <= self.map.len());
        // SAFETY: the chunk lies within the reservation.
        unsafe { self.map.base().as_ptr().add(at) }
    }

    /// Takes a chunk from the pool, or makes more of them, with their space allocated.
    pub fn take(&self) -> Result<Chunk, MediaError> {
        let mut pool = self.pool.lock().expect("no panic under this lock");
        if pool.free.is_empty() {
            let made = pool.made + STEP;
            let end = UNDO_DATA + (made * CHUNK_BYTES) as u64;
            let fail = |e| MediaError::new("allocate undo logs", &*self.medium, end, e);
            if end > self.map.len() as u64 {
                return Err(fail(io::ErrorKind::StorageFull.into()));
            }
            self.medium.set_len(end).map_err(fail)?;
            for number in pool.made..made {
                self.medium.write_at(&[0; 24], UNDO_DATA + (number * CHUNK_BYTES) as u64).map_err(fail)?;
            }
            // After a growth that failed the file may look longer than it durably is.
            self.medium.write_at(&[0; 8], end - 8).map_err(fail)?;
            self.map_chunks(pool.made, made)?;
            // In persistent memory the chunks outlive a power cut, and must be there before they are counted.
            let persistent = self.persistent().is_some();
            if unless("undo-growth-not-forced", persistent) {
                self.sync()?;
            }
            if !planted("undo-count-forgotten") {
                self.count(made)?;
            }
            if unless("undo-count-not-forced", persistent) {
                self.sync()?;
            }
            let fresh = pool.made as u32..made as u32;
            pool.free.extend(fresh.rev());
            pool.made = made;
        }
        let (rounds, made) = (pool.rounds, pool.made);
        pool.erased.resize(made, rounds);
        let number = pool.free.pop().expect("there are some now");
        if let Some(flush) = self.persistent().filter(|_| pool.erased[number as usize] != rounds) {
            self.erase(flush, self.chunk(number));
            pool.erased[number as usize] = rounds;
        }
        // SAFETY: the chunk is mapped as long as the store is open, and was taken from the pool for one run.
        Ok(unsafe { Chunk::mapped(self.chunk(number), CHUNK_BYTES, number) })
    }

    /// The numbers of a run's transactions begin again, in persistent memory: what ranges its earlier ones have
    /// sealed must not pass for those of later ones with the same number. Further chunks that other runs have now
    /// are erased when they are taken next; those of the pool belong to nobody, durably, from now on.
    #[cold]
    pub fn begin_numbers_again(&self, flush: Flush, first: *mut u8) {
        self.erase(flush, first);
        let mut pool = self.pool.lock().expect("no panic under this lock");
        pool.rounds += 1;
        for number in &pool.free {
            // SAFETY: the head is that of a chunk of the pool.
            unsafe { flush.lines(self.chunk(*number), UNDO_HEAD) };
        }
        flush.fence();
    }

    /// Erases the ranges of a chunk that holds none which count. The next fence makes that last.
    fn erase(&self, flush: Flush, chunk: *mut u8) {
        static ZEROS: [u8; 4096] = [0; 4096];
        for at in (UNDO_HEAD..CHUNK_BYTES).step_by(ZEROS.len()) {
            let len = ZEROS.len().min(CHUNK_BYTES - at);
            // SAFETY: within the chunk, which is the caller's.
            unsafe { flush.copy(ZEROS.as_ptr(), chunk.add(at), len) };
        }
    }

    /// Says how many chunks recovery is to look at, before any of the new ones is used.
    fn count(&self, made: usize) -> Result<(), MediaError> {
        let fail = |e| MediaError::new("write undo logs", &*self.medium, UNDO_COUNT, e);
        self.medium.write_at(&(made as u64).to_ne_bytes(), UNDO_COUNT).map_err(fail)
    }

    /// The store's identity.
    pub fn store(&self) -> Id {
        self.store
    }

    /// Of seals: that of the status page which says that the store is in use.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Puts a further chunk back to the pool. In persistent memory its ranges have lost their seals, durably.
    pub fn give_back(&self, chunk: Chunk) {
        // SAFETY: the chunk is the caller's until it is in the pool.
        unsafe { set_word(chunk.base().add(UNDO_OWNER), 0) };
        self.pool.lock().expect("no panic under this lock").free.push(chunk.number);
    }

    /// Puts back the further chunks of a transaction that has committed, whose number comes again after 2^32
    /// others.
    pub fn give_back_disowned(&self, chunks: Vec<Chunk>) {
        if chunks.is_empty() {
            return;
        }
        for chunk in &chunks {
            // SAFETY: as above.
            unsafe { set_word(chunk.base().add(UNDO_OWNER), 0) };
        }
        let numbers = chunks.into_iter().map(|chunk| chunk.number);
        self.pool.lock().expect("no panic under this lock").free.extend(numbers);
    }
}
