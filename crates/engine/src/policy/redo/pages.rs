//! Which pages hold committed changes that their segment lacks, and in which order they must be written
//! to move the log's head (RVM, Figure 7): the page vector and the page queue.
//!
//! Fed by the flusher as records enter the log, drained by truncation; the hot path never comes here.

use super::holders::Holders;
use caliburn_log::pagemap::PageMap;
use caliburn_log::{Lsn, SegmentId};
use caliburn_os::simulated::instead;
use std::collections::{BTreeSet, VecDeque};

/// Committed changes are in the log and in memory, not in the segment; the page stands in the queue.
const DIRTY: u8 = 1;
/// The process has a private copy of the page.
const PRIVATE: u8 = 2;
/// The page stands in one of the lists of pages that may be given back.
const LISTED: u8 = 4;
/// The page lies in a file: see [`overflow`](super::overflow).
const MOVED: u8 = 8;
/// An open transaction that has outgrown memory has declared a range on it.
const HELD: u8 = 16;
/// One had, and none has any more: it may come back, whoever is open.
const RELEASED: u8 = 32;

/// A page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageId {
    pub segment: SegmentId,
    pub number: u64,
}

/// A page modification descriptor: the page and the first record that the log must keep for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    pub page: PageId,
    pub lsn: Lsn,
}

/// The page vector and its queues.
#[derive(Debug, Default)]
pub(super) struct Pages {
    shift: u32,
    vector: PageMap<u8>,
    queue: VecDeque<Descriptor>,
    /// Private pages without unwritten changes, in the order in which they became so.
    clean: VecDeque<PageId>,
    /// The same for pages that were moved, which an open transaction may want where they are.
    moved: VecDeque<PageId>,
    /// The same for those that none may.
    released: VecDeque<PageId>,
    private: u64,
    moved_count: u64,
    holders: Holders,
    dirty: u64,
    marked: Lsn,
}

impl Pages {
    /// The log up to `marked` needs no marks: it was empty, or its epoch is still to be truncated.
    pub fn new(page_size: usize, marked: Lsn) -> Pages {
        Pages { shift: page_size.trailing_zeros(), marked, ..Pages::default() }
    }

    /// Every record before `end` was marked.
    pub fn marked_to(&mut self, end: Lsn) {
        self.marked = end;
    }

    fn span(&self, offset: u64, len: u64) -> std::ops::RangeInclusive<u64> {
        let len = instead("range-marked-in-one-page", len, 1);
        offset >> self.shift..=(offset + len.max(1) - 1) >> self.shift
    }

    /// A record at `lsn` changed these bytes.
    #[inline]
    pub fn mark(&mut self, segment: SegmentId, offset: u64, len: u64, lsn: Lsn) {
        for number in self.span(offset, len) {
            let state = self.vector.entry(segment, number);
            if *state & DIRTY == 0 {
                if *state & (PRIVATE | MOVED) == 0 {
                    *state |= PRIVATE;
                    self.private += 1;
                }
                self.dirty += 1;
                *state |= DIRTY;
                self.queue.push_back(Descriptor { page: PageId { segment, number }, lsn });
            }
        }
    }

    /// These bytes were touched in memory without a record that says so.
    pub fn note_private(&mut self, segment: SegmentId, offset: u64, len: u64) {
        for number in self.span(offset, len) {
            let state = self.vector.entry(segment, number);
            if *state & (PRIVATE | MOVED) == 0 {
                *state |= PRIVATE;
                self.private += 1;
            }
            self.cleaned(PageId { segment, number });
        }
    }

    /// Takes descriptors from the front of the queue, at most `most`, of records before `goal`, that
    /// `wanted` accepts. The taken pages are clean from now on: a later record queues them again.
    pub fn take(
        &mut self,
        most: usize,
        goal: Lsn,
        mut wanted: impl FnMut(PageId) -> bool,
    ) -> Vec<Descriptor> {
        let mut taken = Vec::new();
        let mut passed = Vec::new();
        while taken.len() < most {
            let Some(descriptor) = self.queue.pop_front_if(|d| d.lsn < goal) else { break };
            if wanted(descriptor.page) { taken.push(descriptor) } else { passed.push(descriptor) }
        }
        for descriptor in passed.into_iter().rev() {
            self.queue.push_front(descriptor);
        }
        for descriptor in &taken {
            *self.vector.entry(descriptor.page.segment, descriptor.page.number) &= !DIRTY;
            self.dirty -= 1;
        }
        taken
    }

    /// Puts back descriptors that could not be written; they are older than any in the queue, or as old.
    pub fn put_back(&mut self, descriptors: &[Descriptor]) {
        let mut again = BTreeSet::new();
        for descriptor in descriptors {
            let PageId { segment, number } = descriptor.page;
            let state = self.vector.entry(segment, number);
            if *state & DIRTY != 0 {
                again.insert(descriptor.page);
            } else {
                *state |= DIRTY;
                self.dirty += 1;
            }
        }
        // Queued again meanwhile by a later record: the earlier descriptor takes its place.
        self.queue.retain(|d| again.is_empty() || !again.contains(&d.page));
        self.queue.extend(descriptors);
        self.queue.make_contiguous().sort_by_key(|d| d.lsn);
    }

    /// The page was written to its segment and is still private, or moved.
    pub fn cleaned(&mut self, page: PageId) {
        let state = self.vector.entry(page.segment, page.number);
        if *state & (DIRTY | LISTED) == 0 && *state & (PRIVATE | MOVED) != 0 {
            *state |= LISTED;
            self.list(page);
        }
    }

    /// Puts a page into the list that it belongs to.
    fn list(&mut self, page: PageId) {
        let list = match self.vector.get(page.segment, page.number) & (MOVED | RELEASED) {
            MOVED => &mut self.moved,
            0 | RELEASED => &mut self.clean,
            _ => &mut self.released,
        };
        list.push_back(page);
    }

    /// Takes clean private pages, the longest clean first.
    pub fn take_clean(&mut self, most: usize) -> Vec<PageId> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(page) = self.clean.pop_front() else { break };
            let state = self.vector.entry(page.segment, page.number);
            if *state & MOVED != 0 {
                // It was private when it was put into this list.
                self.list(page);
                continue;
            }
            *state &= !LISTED;
            if *state & (DIRTY | HELD) == 0 && *state & (PRIVATE | MOVED) != 0 {
                taken.push(page);
            }
        }
        taken
    }

    /// Takes clean pages that were moved, unless a transaction is open that may want them there.
    pub fn take_moved(&mut self, most: usize) -> Vec<PageId> {
        if self.holders.is_empty() {
            self.released.append(&mut self.moved);
        }
        let most = most.min(self.released.len());
        let mut taken: Vec<PageId> = self.released.drain(..most).collect();
        taken.retain(|page| {
            let state = self.vector.entry(page.segment, page.number);
            *state &= !LISTED;
            *state & (DIRTY | HELD) == 0 && *state & (PRIVATE | MOVED) != 0
        });
        taken
    }

    /// The pages lie in a file from now on.
    pub fn moved(&mut self, pages: &[PageId]) {
        for page in pages {
            let state = self.vector.entry(page.segment, page.number);
            self.private -= u64::from(*state & PRIVATE != 0);
            self.moved_count += u64::from(*state & MOVED == 0);
            *state = *state & !PRIVATE | MOVED;
            self.cleaned(*page);
        }
    }

    /// Whether the page lies in a file.
    pub fn is_moved(&self, page: PageId) -> bool {
        self.vector.get(page.segment, page.number) & MOVED != 0
    }

    /// Whether the page lies in a file, or a transaction that has outgrown memory holds it.
    pub fn is_settled(&self, page: PageId) -> bool {
        self.vector.get(page.segment, page.number) & (MOVED | HELD) != 0
    }

    /// A transaction outgrows memory: what it declares is held until it has ended.
    pub fn begin_holding(&mut self, set: usize) {
        self.holders.begin(set);
    }

    /// A transaction that has outgrown memory declares a range.
    pub fn hold(&mut self, set: usize, segment: SegmentId, offset: u64, len: u64) {
        for number in self.span(offset, len) {
            let state = self.vector.entry(segment, number);
            *state = *state & !RELEASED | HELD;
            self.holders.hold(set, segment, number);
        }
    }

    /// Whether such a transaction has declared a range on a page.
    pub fn is_held(&self, page: PageId) -> bool {
        self.vector.get(page.segment, page.number) & HELD != 0
    }

    /// One of them has ended.
    pub fn end_holding(&mut self, set: usize) {
        for page in self.holders.end(set) {
            let state = self.vector.entry(page.segment, page.number);
            *state = *state & !HELD | RELEASED;
            self.cleaned(page);
        }
        // What was listed while it was held, or when it was private.
        let listed = std::mem::take(&mut self.moved).into_iter().chain(std::mem::take(&mut self.clean));
        listed.for_each(|page| self.list(page));
    }

    /// How many pages lie in files.
    pub fn moved_pages(&self) -> u64 {
        self.moved_count
    }

    /// Whether pages that lie in files may come back.
    pub fn may_return(&self) -> bool {
        self.moved_count > 0 && (self.holders.is_empty() || !self.released.is_empty())
    }

    /// Whether the log has records of it that its segment lacks.
    pub fn is_dirty(&self, page: PageId) -> bool {
        self.vector.get(page.segment, page.number) & DIRTY != 0
    }

    /// The private copy is gone, or what lay in a file.
    pub fn dropped(&mut self, page: PageId) {
        let state = self.vector.entry(page.segment, page.number);
        self.private -= u64::from(*state & PRIVATE != 0);
        self.moved_count -= u64::from(*state & MOVED != 0);
        *state &= !(PRIVATE | MOVED | RELEASED);
    }

    /// Those private copies are gone, with the region that held them.
    pub fn dropped_all(&mut self, segment: SegmentId, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| {
            if self.vector.get(segment, number) & (PRIVATE | MOVED) != 0 {
                self.dropped(PageId { segment, number });
            }
        });
    }

    /// Empties the queue, for an epoch that will bring every record marked so far to its segment. The
    /// pages are clean from now on: a record marked later queues its page again, also while the epoch
    /// is still being applied.
    pub fn take_all(&mut self) -> Vec<PageId> {
        let taken: Vec<PageId> = self.queue.drain(..).map(|d| d.page).collect();
        for page in &taken {
            *self.vector.entry(page.segment, page.number) &= !DIRTY;
        }
        self.dirty = 0;
        taken
    }

    /// First record that the queue needs; with an empty queue the first that may still be marked.
    pub fn oldest(&self) -> Lsn {
        let first = instead("one-record-too-far", 0, 1);
        self.queue.get(first).map_or(self.marked, |d| d.lsn)
    }

    /// Pages with private copies.
    pub fn private(&self) -> u64 {
        self.private
    }

    /// Pages with committed changes not in their segment.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Dirty pages of part of a segment.
    pub fn dirty_in(&self, segment: SegmentId, numbers: std::ops::Range<u64>) -> u64 {
        self.queue.iter().filter(|d| d.page.segment == segment && numbers.contains(&d.page.number)).count()
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SegmentId = SegmentId(2);

    #[test]
    fn a_page_is_queued_once_by_its_first_record() {
        let mut pages = Pages::new(4096, Lsn(0));
        pages.mark(S, 0, 10, Lsn(100));
        pages.mark(S, 4090, 10, Lsn(200));
        pages.mark(S, 8192, 1, Lsn(300));
        assert_eq!((pages.dirty(), pages.private(), pages.oldest()), (3, 3, Lsn(100)));
        let taken = pages.take(9, Lsn(300), |_| true);
        assert_eq!(taken.iter().map(|d| (d.page.number, d.lsn.0)).collect::<Vec<_>>(), [(0, 100), (1, 200)]);
        assert_eq!((pages.dirty(), pages.oldest()), (1, Lsn(300)));
    }

    #[test]
    fn a_blocked_page_keeps_its_place_even_if_changed_meanwhile() {
        let mut pages = Pages::new(4096, Lsn(0));
        pages.mark(S, 0, 1, Lsn(100));
        pages.mark(S, 4096, 1, Lsn(200));
        let taken = pages.take(1, Lsn(1000), |_| true);
        pages.mark(S, 0, 1, Lsn(300));
        pages.put_back(&taken);
        let again = pages.take(9, Lsn(1000), |_| true);
        assert_eq!(again.iter().map(|d| (d.page.number, d.lsn.0)).collect::<Vec<_>>(), [(0, 100), (1, 200)]);
        assert_eq!((pages.dirty(), pages.oldest()), (0, Lsn(0)));
    }

    #[test]
    fn a_clean_page_is_listed_once_and_not_while_dirty() {
        let mut pages = Pages::new(4096, Lsn(0));
        pages.mark(S, 0, 1, Lsn(1));
        let page = pages.take(1, Lsn(9), |_| true)[0].page;
        pages.cleaned(page);
        pages.cleaned(page);
        assert_eq!(pages.take_clean(9), [page]);
        pages.cleaned(page);
        pages.mark(S, 0, 1, Lsn(2));
        assert_eq!(pages.take_clean(9), []);
        let taken = pages.take_all();
        assert_eq!(taken, [page]);
        pages.mark(S, 0, 1, Lsn(3));
        assert_eq!(pages.oldest(), Lsn(3), "a record marked during the epoch was forgotten");
        pages.take_all();
        pages.cleaned(page);
        assert_eq!(pages.take_clean(9), [page]);
        pages.dropped(page);
        assert_eq!(pages.private(), 0);
    }
}
