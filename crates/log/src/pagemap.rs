//! A sparse array indexed by segment and page number: two levels, the lower ones made on first use.

use crate::format::SegmentId;

const LEAF: usize = 1024;

/// `T` for every page of every segment, default until written.
#[derive(Debug)]
pub struct PageMap<T> {
    segments: Vec<Vec<Option<Box<[T; LEAF]>>>>,
}

impl<T> Default for PageMap<T> {
    fn default() -> PageMap<T> {
        PageMap { segments: Vec::new() }
    }
}

impl<T: Copy + Default> PageMap<T> {
    /// The entry of a page, for reading.
    #[inline]
    pub fn get(&self, segment: SegmentId, page: u64) -> T {
        let leaf = self.segments.get(segment.0 as usize).and_then(|s| s.get(page as usize / LEAF)?.as_ref());
        leaf.map_or_else(T::default, |leaf| leaf[page as usize % LEAF])
    }

    /// The entry of a page, made if need be.
    #[inline]
    pub fn entry(&mut self, segment: SegmentId, page: u64) -> &mut T {
        let (s, l) = (segment.0 as usize, page as usize / LEAF);
        if self.segments.get(s).and_then(|segment| segment.get(l)).is_none_or(Option::is_none) {
            self.make(s, l);
        }
        let leaf = self.segments[s][l].as_mut().expect("made above");
        &mut leaf[page as usize % LEAF]
    }

    #[cold]
    fn make(&mut self, segment: usize, leaf: usize) {
        if self.segments.len() <= segment {
            self.segments.resize_with(segment + 1, Vec::new);
        }
        let leaves = &mut self.segments[segment];
        if leaves.len() <= leaf {
            leaves.resize_with(leaf + 1, || None);
        }
        leaves[leaf] = Some(Box::new([T::default(); LEAF]));
    }
}
