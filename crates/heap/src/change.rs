//! What a transaction did with an object.

use crate::class;

/// In a word: the span, 12 bits of object, and whether it was freed. Sorted, an object's taking comes before its
/// freeing; it cannot be taken again in the same transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change(pub u64);

impl Change {
    pub fn new(span: u32, object: u32, freed: bool) -> Change {
        Change(u64::from(span) << 13 | u64::from(object) << 1 | u64::from(freed))
    }

    pub fn span(self) -> u32 {
        (self.0 >> 13) as u32
    }

    pub fn object(self) -> u32 {
        (self.0 >> 1) as u32 & 0xFFF
    }

    pub fn freed(self) -> bool {
        self.0 & 1 == 1
    }

    /// The object among all of the heap.
    pub fn whose(self) -> u64 {
        self.0 >> 1
    }
}

const _: () = assert!(class::objects(0) <= 1 << 12);

/// Changes by object, in the order of their making; they are sorted.
pub fn of_objects(changes: &[Change]) -> impl Iterator<Item = &[Change]> {
    changes.chunk_by(|a, b| a.whose() == b.whose())
}

/// Whether an object was taken and given up again: nobody else ever saw it.
pub fn passing(of_object: &[Change]) -> bool {
    !of_object[0].freed() && of_object[of_object.len() - 1].freed()
}
