//! Open transactions that have outgrown memory, and the pages that each of them holds.

use super::pages::PageId;
use caliburn_log::SegmentId;
use caliburn_log::pagemap::PageMap;
use caliburn_os::simulated::unless;
use std::collections::BTreeMap;

/// Who holds which pages: transactions by the numbers of their write sets.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<usize, Held>);

#[derive(Debug, Default)]
struct Held {
    of: PageMap<bool>,
    pages: Vec<PageId>,
}

impl Holders {
    /// A transaction outgrows memory.
    pub fn begin(&mut self, set: usize) {
        self.0.insert(set, Held::default());
    }

    /// It declares a range on a page.
    pub fn hold(&mut self, set: usize, segment: SegmentId, number: u64) {
        let held = self.0.get_mut(&set).expect("it has outgrown memory");
        let known = held.of.entry(segment, number);
        if !std::mem::replace(known, true) {
            held.pages.push(PageId { segment, number });
        }
    }

    /// It has ended. Returns the pages that nobody holds any more.
    pub fn end(&mut self, set: usize) -> Vec<PageId> {
        let mut pages = self.0.remove(&set).expect("it has outgrown memory").pages;
        let is_held = |page: &PageId| self.0.values().any(|held| held.of.get(page.segment, page.number));
        pages.retain(|page| !unless("page-of-another-let-go", is_held(page)));
        pages
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
