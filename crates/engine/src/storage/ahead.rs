//! Reading ahead (McNamee, section 7.3.2): while a program computes, a thread has the system read what it is about
//! to touch. It reads files, part by part, and throws away what it gets: what counts is that they are in the
//! system's memory then (decision 039). Mapped memory is not touched, and nothing depends on any of it.

use super::Storage;
use super::pressure::Pressure;
use super::region::RegionState;
use super::segment::SegmentState;
use caliburn_log::SegmentId;
use caliburn_os::event::Event;
use caliburn_os::lineage::generation;
use caliburn_os::simulated::planted;
use caliburn_os::sync::Mutex;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most bytes that are read at once. Between two such parts it is seen whether to go on.
const PART: u64 = 1 << 20;
/// The fewest, where little may be read in a second.
const PART_MIN: u64 = 64 << 10;

/// What was read again in so long a time tells of want of memory: parts are read at least that often, but for the
/// slowest.
const WINDOW: Duration = Duration::from_secs(1);

/// What became of reading ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prefetched {
    /// Bytes that were read. Those in holes of a file are not.
    pub bytes: u64,
    /// Why it ended.
    pub end: PrefetchEnd,
}

/// Why reading ahead ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefetchEnd {
    /// All is in memory.
    Complete,
    /// There are no threads in the background: the system was told, and reads of it what it likes.
    Hinted,
    /// There is not so much memory, or others want it.
    Short,
    /// The region was unmapped, or the store closed, or it has failed. In a forked child: nobody reads.
    Unmapped,
    /// A file could not be read, or there was no thread. The program finds out when it touches the memory.
    Failed,
}

/// Reading ahead that was asked for, and goes on in the background: see
/// [`Region::prefetch`](crate::Region::prefetch). Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct Prefetching(Arc<Course>);

#[derive(Debug)]
struct Course {
    /// The process whose thread it is.
    generation: u32,
    bytes: AtomicU64,
    outcome: OnceLock<Prefetched>,
    event: Event,
}

impl Prefetching {
    fn begin() -> Prefetching {
        let (bytes, outcome, event) = Default::default();
        Prefetching(Arc::new(Course { generation: generation(), bytes, outcome, event }))
    }

    /// Bytes that were read so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// What became of it, if it has ended.
    pub fn ended(&self) -> Option<Prefetched> {
        if generation() != self.0.generation {
            self.end(PrefetchEnd::Unmapped);
        }
        self.0.outcome.get().copied()
    }

    /// Waits until it has ended.
    pub fn wait(&self) -> Prefetched {
        loop {
            let seen = self.0.event.count();
            match self.ended() {
                Some(outcome) => return outcome,
                None => self.0.event.wait(seen, None),
            }
        }
    }

    fn end(&self, end: PrefetchEnd) {
        let _ = self.0.outcome.set(Prefetched { bytes: self.bytes(), end });
        self.0.event.signal();
    }
}

/// What is to be read of a region.
struct Wish {
    segment: Arc<SegmentState>,
    /// Not kept: an address is free as soon as a region is unmapped.
    region: Weak<RegionState>,
    /// Its segment and first byte.
    place: (SegmentId, u64),
    /// Bytes of the segment, in order.
    parts: Vec<Range<u64>>,
    told: Prefetching,
}

/// What is to be read ahead, and the thread that does.
#[derive(Default)]
pub(crate) struct Ahead {
    wishes: Mutex<Wishes>,
    /// Something was asked for, a region unmapped, a rate changed, or the store closed.
    changed: Event,
    /// Pages that were read and had been in memory before.
    again: AtomicU64,
}

#[derive(Default)]
struct Wishes {
    queue: VecDeque<Wish>,
    thread: Option<JoinHandle<()>>,
    /// There is a thread, which will look at the queue before it ends.
    served: bool,
}

impl Ahead {
    /// For [`Ahead::wait`].
    pub fn count(&self) -> u32 {
        self.changed.count()
    }

    /// Sleeps so long, or until something has changed since it was counted.
    pub fn wait(&self, seen: u32, limit: Duration) {
        self.changed.wait(seen, Some(limit));
    }

    /// Has the thread look again whether to go on: a region was unmapped, or the rate changed.
    pub fn look_again(&self) {
        self.changed.signal();
    }
}

impl Storage {
    /// Has parts of a region's segment read, one wish after the other.
    pub fn read_ahead(self: &Arc<Self>, region: &Arc<RegionState>, parts: Vec<Range<u64>>) -> Prefetching {
        let told = Prefetching::begin();
        if self.is_inherited() {
            // The thread is the parent's.
            told.end(PrefetchEnd::Unmapped);
            return told;
        }
        let (segment, place) = (region.segment.clone(), (region.id, region.start));
        let wish = Wish { segment, region: Arc::downgrade(region), place, parts, told: told.clone() };
        if !self.background {
            wish.hint();
            return told;
        }
        let mut wishes = self.ahead.wishes.lock().expect("no panic under this lock");
        if self.is_over() {
            told.end(PrefetchEnd::Unmapped);
            return told;
        }
        wishes.queue.push_back(wish);
        self.ahead.changed.signal();
        if !wishes.served {
            let serving = self.clone();
            let thread = std::thread::Builder::new().name("caliburn-ahead".into());
            match thread.spawn(move || serving.serve_wishes()) {
                Ok(thread) => (wishes.thread, wishes.served) = (Some(thread), true),
                Err(error) => {
                    tracing::warn!(%error, "no thread to read ahead");
                    wishes.queue.clear();
                }
            }
        }
        told
    }

    /// The life of the thread: it ends when there is nothing to do, and another one begins when there is.
    fn serve_wishes(&self) {
        let _abandon = Abandon(&self.ahead);
        let mut buffer = vec![0; PART as usize];
        let mut pressure = Pressure::over(WINDOW);
        // What was read counts as memory that can be had, but what is read later is not to push it out.
        let mut room = self.limits.available();
        loop {
            let next = {
                let mut wishes = self.ahead.wishes.lock().expect("no panic under this lock");
                let next = wishes.queue.pop_front();
                wishes.served = next.is_some();
                next
            };
            let Some(wish) = next else { return };
            let end = self.fulfil(&wish, &mut buffer, &mut pressure, &mut room);
            tracing::debug!(segment = wish.segment.name, bytes = wish.told.bytes(), ?end, "read ahead");
            wish.told.end(end);
        }
    }

    fn fulfil(&self, wish: &Wish, buffer: &mut [u8], pressure: &mut Pressure, room: &mut u64) -> PrefetchEnd {
        for part in &wish.parts {
            let mut at = part.start;
            while let Some(data) = wish.next_data(at, part.end) {
                let begun = Instant::now();
                if !self.wants(wish) {
                    return PrefetchEnd::Unmapped;
                }
                let len = self.part().min(part.end - data);
                let short = self.is_short(pressure) && !planted("read-ahead-of-all");
                if short || len > *room {
                    return PrefetchEnd::Short;
                }
                self.ahead.again.fetch_add(wish.pushed_out(data, len), Ordering::Relaxed);
                if let Err(error) = wish.read(data, &mut buffer[..len as usize]) {
                    tracing::warn!(%error, "reading ahead ended");
                    return PrefetchEnd::Failed;
                }
                wish.told.0.bytes.fetch_add(len, Ordering::Relaxed);
                *room -= len;
                at = data + len;
                self.pace(wish, begun, len);
            }
        }
        PrefetchEnd::Complete
    }

    /// Whether others are short of memory, whatever is read ahead again.
    pub fn is_short(&self, pressure: &mut Pressure) -> bool {
        pressure.is_short(&self.limits, self.ahead.again.load(Ordering::Relaxed))
    }

    /// Whether the region is mapped still, and the store open.
    fn wants(&self, wish: &Wish) -> bool {
        let regions = self.regions.read().expect("no panic under this lock");
        let same = |region: &Arc<RegionState>| std::ptr::eq(Arc::as_ptr(region), wish.region.as_ptr());
        !self.is_over() && regions.get(&wish.place).is_some_and(same)
    }

    /// How many bytes to read at once: so that there are several parts a second.
    fn part(&self) -> u64 {
        let slow = self.tuning().prefetch_rate.unwrap_or(u64::MAX) / 4;
        slow.clamp(PART_MIN, PART)
    }

    /// Waits until so many bytes may have been read since then.
    fn pace(&self, wish: &Wish, begun: Instant, len: u64) {
        loop {
            let seen = self.ahead.count();
            let Some(rate) = self.tuning().prefetch_rate else { return };
            let due = begun + Duration::from_secs_f64(len as f64 / rate as f64);
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.wants(wish) {
                return;
            }
            self.ahead.wait(seen, left);
        }
    }

    /// Ends the thread. The store is closed.
    pub fn end_reading_ahead(&self) {
        self.ahead.changed.signal();
        let thread = self.ahead.wishes.lock().expect("no panic under this lock").thread.take();
        if let Some(thread) = thread {
            // A panic there was printed, and nothing depends on it.
            let _ = thread.join();
        }
    }
}

/// Should the thread end in a panic, nobody waits for it.
struct Abandon<'a>(&'a Ahead);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(mut wishes) = self.0.wishes.lock()
        {
            wishes.served = false;
            wishes.queue.clear();
        }
    }
}

impl Drop for Wish {
    /// Whatever became of it, who waits is told.
    fn drop(&mut self) {
        self.told.end(PrefetchEnd::Failed);
    }
}

impl Wish {
    /// The first byte from an offset of the segment on, before an end, that is worth reading.
    fn next_data(&self, at: u64, end: u64) -> Option<u64> {
        if at >= end {
            return None;
        }
        let Ok(medium) = self.segment.file.medium() else { return Some(at) };
        // What is in memory already, whatever is read.
        if medium.volatile() {
            return None;
        }
        let data = medium.next_data(self.segment.data + at)?.saturating_sub(self.segment.data).max(at);
        (data < end).then_some(data)
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        // The last sector of a file that was adopted may be cut off.
        let len = (self.segment.len() - at).min(buffer.len() as u64);
        self.segment.file.medium()?.read_no_further(&mut buffer[..len as usize], self.segment.data + at)
    }

    /// Pages of it that were in memory before.
    fn pushed_out(&self, at: u64, len: u64) -> u64 {
        self.segment.file.medium().map_or(0, |medium| medium.pushed_out(self.segment.data + at, len))
    }

    /// Passes it on to the system.
    fn hint(&self) {
        if let Ok(medium) = self.segment.file.medium() {
            for part in &self.parts {
                // Of more at once it would leave the rest out.
                for at in (part.start..part.end).step_by(PART as usize) {
                    medium.will_need(self.segment.data + at, PART.min(part.end - at));
                }
            }
        }
        self.told.end(PrefetchEnd::Hinted);
    }
}
