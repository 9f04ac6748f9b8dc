//! Pages of a region that can be stored to, as runs of neighbours, and how many of them one fault is to open.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most pages that one fault opens, as long as there are mappings enough: what one force of the policy brings.
const RUN_MAX: usize = 120;

/// Pages so close to one that is open are worth saving with others: decision 036.
const NEAR: usize = 8;

/// A set of pages.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// The end of each run by its beginning. No two adjoin.
    runs: BTreeMap<usize, usize>,
}

impl Opened {
    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    pub fn contains(&self, page: usize) -> bool {
        self.end_of(page).is_some()
    }

    /// The end of the run that a page is in.
    pub fn end_of(&self, page: usize) -> Option<usize> {
        self.runs.range(..=page).next_back().map(|(_, end)| *end).filter(|end| *end > page)
    }

    /// Whether a page close to this one is there.
    fn is_near(&self, page: usize) -> bool {
        let before = self.runs.range(..=page).next_back().is_some_and(|(_, end)| end + NEAR > page);
        before || self.runs.range(page..).next().is_some_and(|(start, _)| page + NEAR >= *start)
    }

    /// How many pages a fault is to open if the last one opened `last`. Faults that are close together are served
    /// together: the more, the more of them there are.
    pub fn next_run(&self, page: usize, last: usize) -> usize {
        if self.is_near(page) { (2 * last).min(RUN_MAX) } else { (last / 2).max(1) }
    }

    /// The end of the last run before a page.
    pub fn before(&self, page: usize) -> usize {
        self.runs.range(..=page).next_back().map_or(0, |(_, end)| *end)
    }

    /// The first page of the set behind one that is not in it; `pages` if there is none.
    pub fn next(&self, page: usize, pages: usize) -> usize {
        self.runs.range(page..).next().map_or(pages, |(start, _)| *start)
    }

    /// Those of a range that are not in the set.
    pub fn gaps(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        while at < range.end {
            if let Some(end) = self.end_of(at) {
                at = end;
                continue;
            }
            let next = self.next(at, range.end).min(range.end);
            gaps.push(at..next);
            at = next;
        }
        gaps
    }

    /// What a fault is to open, of a region of so many pages: a run of pages that are not open, or the stretch of
    /// `grain` pages that the page lies in.
    pub fn around(&self, page: usize, run: usize, grain: usize, pages: usize) -> Range<usize> {
        let end = (page + run).min(self.next(page, pages));
        let stretch = page / grain * grain..((page / grain + 1) * grain).min(pages);
        stretch.start.min(page)..stretch.end.max(end)
    }

    /// Adds a run that is not in the set, joined with those that it adjoins.
    pub fn insert(&mut self, pages: Range<usize>) {
        let Range { mut start, mut end } = pages;
        if let Some((before, _)) = self.runs.range(..start).next_back().filter(|(_, at)| **at == start) {
            start = *before;
        }
        if let Some(behind) = self.runs.remove(&end) {
            end = behind;
        }
        self.runs.insert(start, end);
    }

    /// Takes all out.
    pub fn take(&mut self) -> BTreeMap<usize, usize> {
        std::mem::take(&mut self.runs)
    }
}
