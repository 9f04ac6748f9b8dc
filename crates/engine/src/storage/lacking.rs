//! What segments lack of the committed state, laid over what is mapped of them.
//!
//! Where memory is stored to, what is laid over it is the process's own, and the policy sees to it that it is no
//! more than the memory budget. A store that is only read lays over it whatever the log holds, which may be more
//! than there is memory: beyond a part of the budget, those pages lie in a file without a name, to which the system
//! writes them.
//!
//! Invariant: that file is forced before the program sees a page of it, and nobody stores there later. So a page
//! that the system takes away comes back, or the access ends the process as that to any file does which cannot be
//! read.

use crate::storage::Storage;
use caliburn_log::SegmentId;
use caliburn_log::record::Range;
use caliburn_os::map::Reservation;
use caliburn_os::overflow::OverflowFile;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::Ordering;
use caliburn_os::{page_size, span};
use std::io;
use std::ops;
use std::sync::Arc;

/// What segments lack.
pub(crate) trait Lacking: Send + Sync {
    fn is_empty(&self) -> bool;
    /// Calls `each` with what a segment lacks, in the order in which it goes there.
    fn each_of(&self, segment: SegmentId, each: &mut dyn FnMut(Range<'_>)) -> io::Result<()>;
}

/// Memory in which a part of a segment is mapped privately, and which nobody else knows yet.
pub(crate) struct Laid<'r> {
    pub segment: SegmentId,
    /// The byte of the segment that the reservation begins with.
    pub start: u64,
    pub memory: &'r Reservation,
    pub part: ops::Range<usize>,
}

/// Mappings that a region may become, of the 65,530 that a process may have.
const RUNS_MAX: usize = 4096;
/// Units of a region that are told apart.
const UNITS_MAX: usize = 1 << 22;

/// Which stretches of a part something is laid over.
struct Stretches {
    unit: usize,
    touched: Vec<bool>,
}

impl Stretches {
    fn of(len: usize) -> Stretches {
        let mut unit = page_size();
        while len.div_ceil(unit) > UNITS_MAX {
            unit *= 2;
        }
        Stretches { unit, touched: vec![false; len.div_ceil(unit)] }
    }

    fn touch(&mut self, at: usize, len: usize) {
        self.touched[at / self.unit..(at + len).div_ceil(self.unit)].fill(true);
    }

    fn bytes(&self) -> u64 {
        (self.touched.iter().filter(|touched| **touched).count() * self.unit) as u64
    }

    /// Those that lie beside each other as one, made wider until they are few.
    fn runs(mut self) -> Vec<ops::Range<usize>> {
        loop {
            let (mut at, mut runs) = (0, Vec::new());
            for run in self.touched.chunk_by(|a, b| a == b) {
                if run[0] {
                    runs.push(at * self.unit..(at + run.len()) * self.unit);
                }
                at += run.len();
            }
            if runs.len() <= RUNS_MAX {
                return runs;
            }
            self.touched = self.touched.chunks(2).map(|pair| pair.contains(&true)).collect();
            self.unit *= 2;
        }
    }
}

impl Laid<'_> {
    /// Calls `each` with what is laid over the part, and where in it.
    fn each(&self, lacking: &dyn Lacking, mut each: impl FnMut(usize, &[u8])) -> io::Result<()> {
        let (low, high) = (self.start + self.part.start as u64, self.start + self.part.end as u64);
        lacking.each_of(self.segment, &mut |range| {
            let first = range.offset.max(low);
            let end = range.offset.saturating_add(range.bytes.len() as u64).min(high);
            if first < end {
                let bytes = &range.bytes[(first - range.offset) as usize..(end - range.offset) as usize];
                each((first - low) as usize, bytes);
            }
        })
    }

    /// Lays it over memory that the process may store to.
    pub fn lay_over(&self, lacking: &dyn Lacking) -> io::Result<()> {
        self.each(lacking, |at, bytes| self.copy(at, bytes))
    }

    fn copy(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.part.len(), "bytes of the part");
        // SAFETY: the bytes lie in the part, which is mapped, can be stored to, and is known to nobody else.
        unsafe {
            let target = self.memory.base().as_ptr().add(self.part.start + at);
            span::copy(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Lays it over memory that is only read from then on, within the memory budget.
    pub fn lay_over_to_read(&self, lacking: &dyn Lacking, storage: &Storage) -> io::Result<()> {
        let mut stretches = Stretches::of(self.part.len());
        self.each(lacking, |at, bytes| stretches.touch(at, bytes.len()))?;
        let bytes = stretches.bytes();
        // Where crashes are simulated, none is private.
        let room = if cfg!(caliburn_sim) { 0 } else { storage.memory_budget() / 4 };
        let before = storage.laid_over.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= room || planted("laid-over-in-memory") {
            return self.lay_over(lacking);
        }
        let file = OverflowFile::new(Arc::new(storage.media.scratch(&storage.dir, 0)?));
        let step =
            (storage.memory_budget() / 8).clamp(1 << 20, 64 << 20) as usize / page_size() * page_size();
        let whole = self.part.len().next_multiple_of(page_size());
        for run in stretches.runs() {
            let end = run.end.min(whole);
            for at in (run.start..end).step_by(step) {
                let len = step.min(end - at);
                // SAFETY: whole pages of the part, which are mapped and known to nobody else.
                unsafe { file.take(self.memory, self.part.start + at, len) }?;
                file.write_behind()?;
            }
        }
        let (mut unwritten, mut done) = (0, Ok(()));
        self.each(lacking, |at, bytes| {
            self.copy(at, bytes);
            unwritten += bytes.len().max(page_size());
            if unwritten > step && done.is_ok() {
                (unwritten, done) = (0, file.write_behind());
            }
        })?;
        done?;
        file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_become_wider_until_they_are_few() {
        let page = page_size();
        let mut few = Stretches::of(page * 10);
        few.touch(page - 1, 2);
        few.touch(page * 4, 1);
        few.touch(page * 9 + 5, page - 5);
        assert_eq!(few.bytes(), 4 * page as u64);
        assert_eq!(few.runs(), [0..2 * page, 4 * page..5 * page, 9 * page..10 * page]);
        let count = RUNS_MAX * 6;
        let mut many = Stretches::of(page * count);
        (0..count).step_by(3).for_each(|at| many.touch(at * page, 1));
        let runs = many.runs();
        assert!(runs.len() <= RUNS_MAX);
        assert!((0..count).step_by(3).all(|at| runs.iter().any(|run| run.contains(&(at * page)))));
    }
}
