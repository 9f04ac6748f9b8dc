//! Pages that were stored to, as the kernel notes them: for ways of tracking that look for changes.

use crate::storage::region::RegionState;
use caliburn_os::page_size;
use caliburn_os::simulated::instead;
use caliburn_os::written::Written;
use std::io::ErrorKind;
use std::ops::Range;

/// Tells which pages of regions were stored to.
pub(super) struct Noted(Option<Written>);

/// What of a region is looked at.
pub(super) struct Seen {
    /// Its bytes.
    pub len: usize,
    /// The kernel notes which of its pages are stored to.
    watched: bool,
}

/// What is known of the pages that were stored to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Which they are.
    All,
    /// Nothing: any may have been.
    Unknown,
    /// Nothing: other memory was mapped over some of the region.
    Replaced,
}

impl Noted {
    /// Warns where the kernel notes nothing.
    pub fn new() -> Noted {
        let said = |error: &_| {
            tracing::warn!(%error, "all memory is compared at each commit: the kernel does not say what was stored to");
        };
        Noted(Written::new().inspect_err(said).ok())
    }

    /// A region of which nothing is mapped yet.
    pub fn begin(&self) -> Seen {
        Seen { len: 0, watched: self.0.is_some() }
    }

    /// Part of a region, to its end, was just mapped: none of its pages counts as stored to.
    pub fn watch(&self, seen: &mut Seen, region: &RegionState, part: Range<usize>) {
        seen.len = part.end;
        let Some(written) = self.0.as_ref().filter(|_| seen.watched) else { return };
        let len = part.len().next_multiple_of(page_size());
        // SAFETY: the part was just mapped; a program that has userfaultfd act on it does so to its own harm.
        if let Err(error) = unsafe { written.watch(region.at(part.start), len) } {
            let segment = &region.segment.name;
            tracing::warn!(%error, segment, "a region is compared whole at each commit: the kernel cannot watch it");
            seen.watched = false;
        }
    }

    /// Calls `found` with runs of pages that were stored to since this was done last.
    pub fn take(&self, seen: &Seen, region: &RegionState, mut found: impl FnMut(Range<usize>)) -> Taken {
        let Some(written) = self.0.as_ref().filter(|_| seen.watched) else { return Taken::Unknown };
        let taken = written.take(region.at(0), seen.len.next_multiple_of(page_size()), |run| {
            let missed = (run.end - 1).max(run.start + 1);
            found(run.start..instead("last-page-of-a-run-missed", run.end, missed));
        });
        let Err(error) = taken else { return Taken::All };
        if error.kind() == ErrorKind::PermissionDenied {
            return Taken::Replaced;
        }
        let segment = &region.segment.name;
        tracing::warn!(%error, segment, "a region is compared whole: what was stored to is not known");
        Taken::Unknown
    }

    /// A region is no more, but its memory stays.
    pub fn leave(&self, seen: &Seen, region: &RegionState) {
        let Some(written) = self.0.as_ref().filter(|_| seen.watched) else { return };
        // SAFETY: it is watched since it was mapped, and is so still.
        if let Err(error) = unsafe { written.leave(region.at(0), seen.len.next_multiple_of(page_size())) } {
            tracing::warn!(%error, segment = &region.segment.name, "a region that was left stays watched");
        }
    }
}

impl Seen {
    pub fn pages(&self) -> Range<usize> {
        0..self.len.div_ceil(page_size())
    }

    /// The bytes of pages.
    pub fn bytes(&self, pages: &Range<usize>) -> Range<usize> {
        pages.start * page_size()..(pages.end * page_size()).min(self.len)
    }
}
