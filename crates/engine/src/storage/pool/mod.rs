//! A buffer pool (McNamee, sections 3.3.3 and 6.1.1): what databases do in place of the system's memory management,
//! kept as a yardstick for the shadow policy. Frames are parts of a file without a name; where a region is touched,
//! a frame with that page is mapped.
//!
//! ```text
//!   touched:         a frame is free, or emptied - the page is read into it - mapped, for reading
//!   emptied:         taken out of the region - what was stored to goes to the segment, unforced
//!   stored to:       its image is kept by the policy - opened; it goes to the segment at the latest when the
//!                    transaction commits
//! ```
//!
//! The system knows of none of this, and pages frames out as it does other memory: a page may be read from where the
//! system had put it only to be written to its segment (double paging).
//!
//! Invariant: a page of a region that is not in a frame is in its segment; a frame that can be stored to is dirty.

mod replacement;

use crate::storage::Storage;
use crate::storage::error::OpenError;
use crate::storage::region::RegionState;
use crate::storage::settings::BufferPool;
use caliburn_log::SegmentId;
use caliburn_log::media_error::MediaError;
use caliburn_os::map::{self, Reservation};
use caliburn_os::medium::Media;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicUsize, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use caliburn_os::{guard, mappings, overflow, page_size};
use replacement::Order;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Fewest frames: an instruction may need four pages at once, and others take some meanwhile.
const FRAMES_MIN: u64 = 8;
const PAGE_MAX: usize = 16 << 20;

/// Refuses a pool that cannot be had.
pub(crate) fn check(how: &BufferPool) -> Result<(), OpenError> {
    let BufferPool { bytes, page_bytes, .. } = *how;
    let bad = |name, value, why| Err(OpenError::Option { name, value, why });
    if !page_bytes.is_power_of_two() || !(page_size()..=PAGE_MAX).contains(&page_bytes) {
        let why = format!("must be a power of two, {} to {PAGE_MAX}", page_size());
        return bad("buffer_pool.page_bytes", page_bytes as u64, why);
    }
    let page = page_bytes as u64;
    // A third of the mappings: each frame takes one, and one between it and the next.
    let most = (mappings::allowed() / 3) as u64;
    if !(FRAMES_MIN..=most).contains(&(bytes / page)) {
        let why = format!(
            "must be {} to {}, in pages of {page} bytes: larger pages allow more, and so does vm.max_map_count",
            FRAMES_MIN * page,
            most.saturating_mul(page),
        );
        return bad("buffer_pool.bytes", bytes, why);
    }
    Ok(())
}

/// What a pool has done: [`Store::buffer_pool`](crate::Store::buffer_pool).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Frames.
    pub frames: usize,
    /// Those that have a page.
    pub used: usize,
    /// Pages that were read.
    pub misses: u64,
    /// Pages that have left a frame for another one.
    pub evictions: u64,
    /// Those of them that were written then.
    pub written: u64,
    /// Pages that were hidden, and touched in time.
    pub second_chances: u64,
}

/// The frames of a store, and what is in them.
pub(crate) struct Pool {
    file: OwnedFd,
    /// All frames, one behind the other.
    view: Reservation,
    /// Bytes of a frame.
    page: usize,
    state: Mutex<State>,
}

struct State {
    frames: Vec<Frame>,
    /// Those without a page.
    free: Vec<usize>,
    /// The frame of each page that has one.
    at: HashMap<Place, usize>,
    order: Order,
    /// Frames that can be stored to, or could when they were hidden.
    dirty: BTreeSet<usize>,
    /// Pages that the system shows, since there was no frame to be had.
    private: HashMap<Place, Private>,
    counts: PoolCounts,
}

/// A page of a region: the region's address, and the page's number.
type Place = (usize, usize);

#[derive(Default)]
struct Frame {
    held: Option<Held>,
    hidden: bool,
}

/// The page in a frame.
struct Held {
    region: Arc<RegionState>,
    page: usize,
    /// Bytes of it that the region had when it was read.
    len: usize,
}

/// A page that the system shows.
struct Private {
    region: Arc<RegionState>,
    /// Bytes of it that are shown.
    len: usize,
    /// It is a copy, which can be stored to, and is lost with the transaction.
    lost: bool,
}

/// Frames of all pools of the process: each takes two of its mappings.
static FRAMES: AtomicUsize = AtomicUsize::new(0);

/// How a page was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// It can be read, and could before.
    Before,
    /// It can be read now.
    Now,
    /// It can be stored to, for nothing: see [`Pool::lose`].
    Lost,
}

impl Pool {
    pub fn new(how: &BufferPool, media: &dyn Media, directory: &Path) -> io::Result<Pool> {
        let (page, count) = (how.page_bytes, (how.bytes / how.page_bytes as u64) as usize);
        let len = page * count;
        let (all, most) = (FRAMES.load(Ordering::Relaxed) + count, mappings::allowed() / 3);
        if all > most {
            let text = format!(
                "the pools of this process would have {all} frames, and may have {most}: take larger pages, or raise vm.max_map_count"
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
        let file = media.scratch(directory, len as u64)?;
        let view = Reservation::new(len, None)?;
        // SAFETY: the reservation is new, and nobody else has the file.
        unsafe { view.map_shared(0, len, file.as_fd(), 0, false) }?;
        let state = State {
            frames: (0..count).map(|_| Frame::default()).collect(),
            free: (0..count).rev().collect(),
            at: HashMap::new(),
            order: Order::new(how.replacement),
            dirty: BTreeSet::new(),
            private: HashMap::new(),
            counts: PoolCounts { frames: count, ..PoolCounts::default() },
        };
        FRAMES.fetch_add(count, Ordering::Relaxed);
        Ok(Pool { file, view, page, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page
    }

    pub fn counts(&self) -> PoolCounts {
        let state = self.lock();
        PoolCounts { used: state.frames.len() - state.free.len(), ..state.counts }
    }

    /// Has what lies at an offset of a region be there to be read. Nobody who calls this, or anything here, touches
    /// regions.
    pub fn show(&self, storage: &Storage, region: &Arc<RegionState>, offset: usize) -> io::Result<Shown> {
        let (page, mut state) = (offset / self.page, self.lock());
        let place = (region.base, page);
        if let Some(Private { len, lost, .. }) = state.private.get_mut(&place) {
            let known = if *lost { Shown::Lost } else { Shown::Before };
            if offset - page * self.page < *len {
                return Ok(known);
            }
            // The region has grown since.
            let part = self.part(region, page);
            region.map_private(storage, part.start + *len..part.end, None, *lost)?;
            *len = part.len();
            return Ok(Shown::Now);
        }
        if let Some(frame) = state.at.get(&place).copied() {
            let held = state.frames[frame].held.as_ref().expect("it has the page");
            match (offset - page * self.page < held.len, state.frames[frame].hidden) {
                (false, _) => self.evict(storage, &mut state, frame)?,
                (true, false) => return Ok(Shown::Before),
                (true, true) => {
                    self.protect(&state, frame, state.dirty.contains(&frame))?;
                    state.frames[frame].hidden = false;
                    if !planted("pool-second-chance-not-given") {
                        state.order.young(frame);
                    }
                    state.counts.second_chances += 1;
                    return Ok(Shown::Now);
                }
            }
        }
        if let Err(error) = self.bring(storage, &mut state, region, page) {
            tracing::debug!(%error, segment = region.segment.name, page, "no frame for a page");
            // As the system shows it, who says what is wrong with the file when the program touches it.
            self.map_private(storage, &mut state, region, page, false)?;
        }
        Ok(Shown::Now)
    }

    /// Lets a page be stored to that is there. Its image is kept.
    pub fn open(&self, storage: &Storage, region: &Arc<RegionState>, offset: usize) -> io::Result<()> {
        let (page, mut state) = (offset / self.page, self.lock());
        let place = (region.base, page);
        if state.private.contains_key(&place) {
            self.take_back(&mut state, place)?;
            self.bring(storage, &mut state, region, page)?;
        }
        let frame = *state.at.get(&place).ok_or(io::ErrorKind::NotFound)?;
        self.protect(&state, frame, true)?;
        state.dirty.insert(frame);
        Ok(())
    }

    /// Lets a page be stored to of which no image could be kept: what is stored there never reaches the segment,
    /// and is undone with the transaction.
    pub fn lose(&self, storage: &Storage, region: &Arc<RegionState>, offset: usize) -> io::Result<()> {
        let (page, mut state) = (offset / self.page, self.lock());
        if let Some(frame) = state.at.get(&(region.base, page)).copied() {
            self.evict(storage, &mut state, frame)?;
        }
        self.map_private(storage, &mut state, region, page, true)
    }

    /// Brings what was stored to to the segments, unforced, and has stores be caught again.
    ///
    /// The file that the frames lie in is asked before it counts: the system may have failed to write a frame there,
    /// and have taken its memory all the same.
    pub fn write_back(&self, storage: &Storage) -> Result<(), MediaError> {
        let mut state = self.lock();
        let place = |frame: &usize| {
            let held = state.frames[*frame].held.as_ref().expect("dirty frames have pages");
            (held.region.id, held.region.start + (held.page * self.page) as u64)
        };
        let mut dirty: Vec<usize> = state.dirty.iter().copied().collect();
        // As they lie on the medium.
        dirty.sort_unstable_by_key(place);
        for frame in dirty {
            if !planted("pool-open-after-commit") {
                self.close(&state, frame)?;
            }
            if !planted("pool-not-written-at-commit") {
                self.write(&state, frame)?;
            }
            state.dirty.remove(&frame);
        }
        overflow::intact(self.file.as_fd()).map_err(|error| {
            MediaError::of_name("keep the frames of a buffer pool in", storage.dir.clone(), error)
        })?;
        // What had no frame may have one again.
        let all: Vec<Place> = state.private.keys().copied().collect();
        for place in all {
            // Else it stays as it is, which shows the same.
            let _ = self.take_back(&mut state, place);
        }
        Ok(())
    }

    /// Forgets what was stored to: no frame can be stored to any more.
    pub fn drop_dirty(&self) -> io::Result<()> {
        let mut state = self.lock();
        let dirty: Vec<usize> = state.dirty.iter().copied().collect();
        dirty.into_iter().try_for_each(|frame| self.drop_page(&mut state, frame))
    }

    /// Forgets what was stored to, and what was read again since: `changed` tells of pages of a segment, in units of
    /// so many bytes, whether they were changed; they are as they were.
    pub fn drop_changed(&self, unit: u64, changed: impl Fn(SegmentId, Range<u64>) -> bool) -> io::Result<()> {
        let mut state = self.lock();
        for frame in 0..state.frames.len() {
            let Some(Held { region, page, len }) = &state.frames[frame].held else { continue };
            let start = region.start + (page * self.page) as u64;
            let pages = start / unit..(start + *len as u64).div_ceil(unit);
            if unless("pool-read-again-not-dropped", changed(region.id, pages)) {
                self.drop_page(&mut state, frame)?;
            }
        }
        if planted("pool-lost-not-dropped") {
            return Ok(());
        }
        let all: Vec<Place> = state.private.keys().copied().collect();
        all.into_iter().try_for_each(|place| self.take_back(&mut state, place))
    }

    /// Empties the frames with pages of a region, which has no more to do with the pool. What was stored to them is
    /// lost.
    pub fn forget(&self, region: &RegionState) -> io::Result<()> {
        let mut state = self.lock();
        let of_it =
            |frame: &Frame| frame.held.as_ref().is_some_and(|held| std::ptr::eq(&*held.region, region));
        let all: Vec<usize> = (0..state.frames.len()).filter(|frame| of_it(&state.frames[*frame])).collect();
        state.private.retain(|(base, _), _| *base != region.base);
        all.into_iter().try_for_each(|frame| self.drop_page(&mut state, frame))
    }

    /// Bytes of a page that are in a region now, in the region.
    fn part(&self, region: &RegionState, page: usize) -> Range<usize> {
        let start = page * self.page;
        start..(start + self.page).min(region.len())
    }

    /// Reads a page into a frame, and maps it.
    fn bring(
        &self,
        storage: &Storage,
        state: &mut State,
        region: &Arc<RegionState>,
        page: usize,
    ) -> io::Result<()> {
        let frame = self.free_frame(storage, state)?;
        let part = self.part(region, page);
        let whole = part.len().next_multiple_of(page_size());
        // SAFETY: the frame has no page: nothing but the view shows it, and that is used under the lock alone.
        let target = unsafe { std::slice::from_raw_parts_mut(self.frame(frame), whole) };
        let (read, rest) = target.split_at_mut(part.len());
        let done = region.segment.read(region.start + part.start as u64, read).map_err(io::Error::other);
        if !planted("pool-tail-not-cleared") {
            rest.fill(0);
        }
        // SAFETY: nothing of the region is mapped there, so that nobody can refer to it.
        let done = done.and_then(|()| unsafe {
            let offset = (frame * self.page) as u64;
            region.reservation.map_frame(part.start, whole, self.file.as_fd(), offset)
        });
        if let Err(error) = done {
            // It may be mapped already.
            region.withdraw(part)?;
            state.free.push(frame);
            return Err(error);
        }
        state.frames[frame] =
            Frame { held: Some(Held { region: region.clone(), page, len: part.len() }), hidden: false };
        state.at.insert((region.base, page), frame);
        state.order.young(frame);
        state.counts.misses += 1;
        let State { order, frames, free, .. } = state;
        order.age(frames.len(), free.len(), |frame| {
            let held = frames[frame].held.as_ref().expect("it is in line");
            // SAFETY: the page is mapped, and whoever touches it is served.
            let hidden = unsafe { map::hide(held.at(self.page), held.mapped()) };
            frames[frame].hidden = hidden.is_ok();
            hidden.is_ok()
        });
        Ok(())
    }

    /// A frame without a page.
    fn free_frame(&self, storage: &Storage, state: &mut State) -> io::Result<usize> {
        if state.free.is_empty() {
            let victim = state.order.victim(state.frames.len());
            self.evict(storage, state, victim)?;
            state.counts.evictions += 1;
        }
        Ok(state.free.pop().expect("one was emptied"))
    }

    /// Takes a page out of its frame. What was stored to goes to the segment; if it cannot, the page stays.
    fn evict(&self, storage: &Storage, state: &mut State, frame: usize) -> io::Result<()> {
        if state.dirty.contains(&frame) {
            // From now on nobody stores there.
            let closed = if planted("pool-evicted-while-open") { Ok(()) } else { self.close(state, frame) };
            let written = closed.and_then(|()| match planted("pool-evicted-unwritten") {
                false => self.write(state, frame),
                true => Ok(()),
            });
            written.map_err(|error| io::Error::other(storage.fail(error)))?;
            state.dirty.remove(&frame);
            state.counts.written += 1;
        }
        self.drop_page(state, frame)
    }

    /// Takes a page out of its frame. What was stored to is lost.
    fn drop_page(&self, state: &mut State, frame: usize) -> io::Result<()> {
        let held = self.held(state, frame);
        held.region.withdraw(held.page * self.page..held.page * self.page + held.len)?;
        let held = std::mem::take(&mut state.frames[frame]).held.expect("it had a page");
        state.dirty.remove(&frame);
        state.at.remove(&(held.region.base, held.page));
        state.order.empty(frame);
        state.free.push(frame);
        Ok(())
    }

    /// Shows a page that is in no frame as the system does; or a copy of it that can be stored to.
    fn map_private(
        &self,
        storage: &Storage,
        state: &mut State,
        region: &Arc<RegionState>,
        page: usize,
        write: bool,
    ) -> io::Result<()> {
        let part = self.part(region, page);
        region.map_private(storage, part.clone(), None, write)?;
        let shown = Private { region: region.clone(), len: part.len(), lost: write };
        state.private.insert((region.base, page), shown);
        Ok(())
    }

    /// Takes away what the system shows.
    fn take_back(&self, state: &mut State, place: Place) -> io::Result<()> {
        let Some(Private { region, len, .. }) = state.private.get(&place) else { return Ok(()) };
        region.withdraw(place.1 * self.page..place.1 * self.page + len)?;
        state.private.remove(&place);
        Ok(())
    }

    fn frame(&self, frame: usize) -> *mut u8 {
        self.view.base().as_ptr().wrapping_add(frame * self.page)
    }

    fn held<'s>(&self, state: &'s State, frame: usize) -> &'s Held {
        state.frames[frame].held.as_ref().expect("the frame has a page")
    }

    /// Lets the page in a frame be stored to, or has stores to it be caught.
    fn protect(&self, state: &State, frame: usize, write: bool) -> io::Result<()> {
        let held = self.held(state, frame);
        // SAFETY: the page is mapped, and whoever stores to it without being allowed to is served.
        unsafe { guard::protect(held.at(self.page), held.mapped(), write) }
    }

    /// Has stores be caught. Who stores there meanwhile waits.
    fn close(&self, state: &State, frame: usize) -> Result<(), MediaError> {
        if state.frames[frame].hidden {
            return Ok(());
        }
        let path = || self.held(state, frame).region.segment.file.path().to_owned();
        self.protect(state, frame, false).map_err(|e| MediaError::of_name("protect the memory of", path(), e))
    }

    /// Writes the page in a frame to its segment, unforced. Nobody can store to it.
    fn write(&self, state: &State, frame: usize) -> Result<(), MediaError> {
        let held = self.held(state, frame);
        // SAFETY: the frame is protected wherever it is mapped, and what is behind the view changes under the lock
        // alone.
        let bytes = unsafe { std::slice::from_raw_parts(self.frame(frame), held.len) };
        held.region.segment.write_part(held.region.start + (held.page * self.page) as u64, bytes)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        FRAMES.fetch_sub(self.lock().frames.len(), Ordering::Relaxed);
    }
}

impl Held {
    /// Where the page is mapped; `bytes` of a page.
    fn at(&self, bytes: usize) -> *mut u8 {
        self.region.at(self.page * bytes)
    }

    /// Bytes that are mapped.
    fn mapped(&self) -> usize {
        self.len.next_multiple_of(page_size())
    }
}
