//! Pages of segments, as runs of neighbours.

use caliburn_log::SegmentId;
use caliburn_log::images::Page;
use std::collections::BTreeMap;
use std::ops::Range;

/// A set of pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The end of each run, by its beginning. No two runs meet or adjoin.
    runs: BTreeMap<(SegmentId, u64), u64>,
    count: u64,
}

/// Pages of a segment that are neighbours.
pub(super) type Run = (SegmentId, Range<u64>);

impl Pages {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Pages::default();
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of them.
    pub fn runs(&self) -> Vec<Run> {
        self.runs.iter().map(|((segment, start), end)| (*segment, *start..*end)).collect()
    }

    /// The segments that they are of.
    pub fn segments(&self) -> Vec<SegmentId> {
        let mut all: Vec<SegmentId> = self.runs.keys().map(|(segment, _)| *segment).collect();
        all.dedup();
        all
    }

    /// Whether one of a range is in the set.
    pub fn meet(&self, segment: SegmentId, range: Range<u64>) -> bool {
        let last = self.runs.range((segment, 0)..(segment, range.end)).next_back();
        last.is_some_and(|(_, end)| *end > range.start)
    }

    /// Those of a range that are not in the set.
    pub fn missing(&self, segment: SegmentId, range: Range<u64>) -> Vec<Page> {
        let (mut missing, mut at) = (Vec::new(), range.start);
        let before = self.runs.range(..(segment, range.start)).next_back();
        let inside = self.runs.range((segment, range.start)..(segment, range.end));
        for ((_, start), end) in before.filter(|((of, _), _)| *of == segment).into_iter().chain(inside) {
            missing.extend((at..*start.max(&at)).map(|number| Page { segment, number }));
            at = at.max(*end);
        }
        missing.extend((at..range.end).map(|number| Page { segment, number }));
        missing
    }

    /// Adds a range.
    pub fn insert(&mut self, segment: SegmentId, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        // Every run that it meets or adjoins becomes part of it.
        while let Some((first, last)) = self.runs.range((segment, 0)..=(segment, end)).next_back()
            && *last >= start
        {
            let (first, last) = (first.1, *last);
            self.runs.remove(&(segment, first));
            self.count -= last - first;
            (start, end) = (start.min(first), end.max(last));
        }
        self.runs.insert((segment, start), end);
        self.count += end - start;
    }

    /// Takes a range out, as far as it is there.
    pub fn remove(&mut self, segment: SegmentId, range: Range<u64>) {
        while let Some((first, last)) = self.runs.range((segment, 0)..(segment, range.end)).next_back()
            && *last > range.start
        {
            let (first, last) = (first.1, *last);
            self.runs.remove(&(segment, first));
            self.count -= last - first;
            for rest in [first..range.start.max(first), range.end.min(last)..last] {
                if !rest.is_empty() {
                    self.count += rest.end - rest.start;
                    self.runs.insert((segment, rest.start), rest.end);
                }
            }
            if first < range.start {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(steps in prop::collection::vec((0u32..2, 0u64..40, 1u64..8, 0..3), 1..60)) {
            let (mut pages, mut model) = (Pages::default(), BTreeSet::new());
            for (segment, start, len, step) in steps {
                let (segment, range) = (SegmentId(segment), start..start + len);
                let all = range.clone().map(|number| Page { segment, number });
                let missing: Vec<Page> = all.clone().filter(|page| !model.contains(page)).collect();
                let meet = missing.len() < (range.end - range.start) as usize;
                prop_assert_eq!(pages.meet(segment, range.clone()), meet);
                prop_assert_eq!(&pages.missing(segment, range.clone()), &missing);
                match step {
                    0 => {}
                    1 => {
                        pages.remove(segment, range);
                        all.for_each(|page| _ = model.remove(&page));
                    }
                    _ => {
                        pages.insert(segment, range);
                        model.extend(all);
                    }
                }
                prop_assert_eq!(pages.count(), model.len() as u64);
                let segments: BTreeSet<SegmentId> = model.iter().map(|page| page.segment).collect();
                prop_assert_eq!(pages.segments(), segments.into_iter().collect::<Vec<_>>());
                prop_assert_eq!(pages.is_empty(), model.is_empty());
                let listed: Vec<Page> = pages.runs().into_iter()
                    .flat_map(|(segment, run)| run.map(move |number| Page { segment, number })).collect();
                prop_assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
