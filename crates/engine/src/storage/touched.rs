//! The order in which a program touches its regions. It is seen from time to time, by what the process has mapped
//! of them, and written down for the next opening, which reads ahead in that order ([`Prefetch::Recorded`]). Nothing
//! depends on it.

use super::Storage;
use super::directory::ORDER;
use super::region::RegionState;
use super::settings::Prefetch;
use caliburn_log::SegmentId;
use caliburn_log::format::ORDER_UNIT;
use caliburn_log::order::{self, Order};
use caliburn_os::host::Id;
use caliburn_os::medium::Media;
use caliburn_os::private;
use caliburn_os::simulated::planted;
use caliburn_os::sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks, as long as something is touched for the first time.
const SHORTEST: Duration = Duration::from_millis(10);
/// When nothing is.
const LONGEST: Duration = Duration::from_secs(1);
/// A look takes this part of the time, at most.
const SHARE: u32 = 50;
/// How often it is written down while the store is open, for those that are never closed.
const SAVED_EVERY: Duration = Duration::from_secs(60);

/// What was touched before, and is now.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    before: BTreeMap<SegmentId, Vec<Range<u64>>>,
    now: Option<Mutex<Order>>,
}

impl Touched {
    /// Reads what was written down, where it is wanted.
    pub fn open(media: &dyn Media, dir: &Path, store: &Id, (prefetch, write): (Prefetch, bool)) -> Touched {
        if prefetch != Prefetch::Recorded {
            return Touched::default();
        }
        let path = dir.join(ORDER);
        let read = || media.read(&path).map_err(|error| error.to_string());
        let before = match media.exists(&path) {
            true => {
                read().and_then(|bytes| order::decode(&bytes, store).map_err(|defect| defect.to_string()))
            }
            false => Ok(Vec::new()),
        };
        let ranges = before.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), error, "no order of reading ahead is known: it is recorded anew");
            Vec::new()
        });
        let mut before: BTreeMap<_, Vec<_>> = BTreeMap::new();
        ranges.into_iter().for_each(|(segment, range)| before.entry(segment).or_default().push(range));
        Touched { before, now: write.then(Mutex::default) }
    }

    /// Whether it is to be seen what is touched.
    pub fn is_wanted(&self) -> bool {
        self.now.is_some()
    }

    /// What was touched before of part of a segment, in order.
    pub fn before(&self, segment: SegmentId, part: Range<u64>) -> Vec<Range<u64>> {
        let within = |range: &Range<u64>| range.start.max(part.start)..range.end.min(part.end);
        let of = self.before.get(&segment).into_iter().flatten();
        let mut before: Vec<_> = of.map(within).filter(|range| range.start < range.end).collect();
        if planted("order-not-followed") {
            before.sort_by_key(|range| range.start);
        }
        before
    }
}

/// Where a region is.
struct Mapped {
    place: (SegmentId, u64),
    base: usize,
    len: usize,
}

impl Mapped {
    fn of(region: &RegionState) -> Mapped {
        Mapped { place: (region.id, region.start), base: region.base, len: region.len() }
    }

    /// Bytes of its segment that were touched, and are mapped still.
    fn touched(&self, page: usize) -> Vec<Range<u64>> {
        let (start, mut runs) = (std::ptr::without_provenance(self.base), Vec::new());
        // Where the kernel does not tell, nothing is known.
        let _ = private::present_pages(start, self.len.div_ceil(page), |run| {
            let at = |number: usize| self.place.1 + (number * page) as u64;
            runs.push(at(run.start)..at(run.end));
        });
        runs
    }
}

/// Units that have some of these bytes of a segment.
fn units(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / ORDER_UNIT..bytes.end.div_ceil(ORDER_UNIT)
}

impl Storage {
    /// The life of the thread that looks.
    pub fn watch_touches(&self) {
        let (mut pause, mut saved, mut grown) = (SHORTEST, Instant::now(), false);
        loop {
            let begun = Instant::now();
            let found = self.note_all();
            let took = begun.elapsed();
            grown |= found;
            if grown && saved.elapsed() > SAVED_EVERY {
                self.save_order();
                (saved, grown) = (Instant::now(), false);
            }
            let calm = if found { SHORTEST } else { (pause * 2).min(LONGEST) };
            pause = calm.max(took * SHARE);
            let due = Instant::now() + pause;
            loop {
                let seen = self.ahead.count();
                if self.is_over() {
                    return;
                }
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.ahead.wait(seen, left);
            }
        }
    }

    fn note_all(&self) -> bool {
        // Not the regions themselves: an address is free as soon as a region is unmapped.
        let regions: Vec<Mapped> = {
            let regions = self.regions.read().expect("no panic under this lock");
            regions.values().filter(|region| !region.unread).map(|region| Mapped::of(region)).collect()
        };
        regions.iter().fold(false, |found, mapped| self.note(mapped) | found)
    }

    /// Notes what was touched of a region that is about to be unmapped, or mapped anew.
    pub fn note_touched(&self, region: &RegionState) {
        if self.touched.is_wanted() && !region.unread && !self.is_closed() {
            self.put(&Mapped::of(region).touched(self.page_size), region.id);
        }
    }

    /// Notes that bytes of a segment were touched, whose pages are about to be given back.
    pub fn note_bytes(&self, segment: SegmentId, bytes: Range<u64>) {
        self.put(&[bytes], segment);
    }

    /// Notes what was touched by now of what is mapped, or was a moment ago. Whether there was something new.
    fn note(&self, mapped: &Mapped) -> bool {
        let touched = mapped.touched(self.page_size);
        let is_there = {
            let regions = self.regions.read().expect("no panic under this lock");
            regions.get(&mapped.place).is_some_and(|region| region.base == mapped.base)
        };
        is_there && self.put(&touched, mapped.place.0)
    }

    fn put(&self, touched: &[Range<u64>], id: SegmentId) -> bool {
        let Some(now) = &self.touched.now else { return false };
        let mut order = now.lock().expect("no panic under this lock");
        touched.iter().flat_map(units).fold(false, |found, unit| order.touch(id, unit) | found)
    }

    /// Writes down what was touched, if anything was.
    pub fn save_order(&self) {
        let Some(now) = &self.touched.now else { return };
        let content = {
            let order = now.lock().expect("no panic under this lock");
            if order.is_empty() {
                return;
            }
            order.encode(self.id)
        };
        let path = self.dir.join(ORDER);
        if let Err(error) = self.media.replace(&path, &content) {
            tracing::warn!(path = %path.display(), %error, "the order of reading ahead was not written down");
        }
    }

    /// The same, of all that is mapped still, when the store is closed.
    pub fn save_last_order(&self) {
        if self.touched.is_wanted() {
            self.note_all();
            self.save_order();
        }
    }
}
