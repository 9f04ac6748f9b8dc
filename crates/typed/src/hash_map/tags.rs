//! The tags of a group of slots: seven bits of each entry's hash, or that there is none. Compared sixteen at a
//! time.

/// Slots of a group.
pub(crate) const GROUP: usize = 16;
/// The slot is empty: a search ends.
pub(super) const EMPTY: u8 = 0xFF;
/// An entry was taken out of the slot: a search goes on.
pub(super) const LEFT: u8 = 0x80;

/// A bit for each slot of a group, the first the lowest.
pub(super) type Slots = u16;

/// The tags of a group.
#[derive(Clone, Copy)]
pub(super) struct Tags(
    #[cfg(target_arch = "x86_64")] std::arch::x86_64::__m128i,
    #[cfg(not(target_arch = "x86_64"))] [u8; GROUP],
);

#[cfg(target_arch = "x86_64")]
impl Tags {
    /// The tags at `at`.
    ///
    /// # Safety
    /// They are there, and at a multiple of sixteen.
    #[inline(always)]
    pub unsafe fn at(at: *const u8) -> Tags {
        // SAFETY: the caller's word; every processor of this kind has SSE2.
        Tags(unsafe { std::arch::x86_64::_mm_load_si128(at.cast()) })
    }

    /// The slots with that tag.
    #[inline(always)]
    pub fn with(self, tag: u8) -> Slots {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};
        // SAFETY: every processor of this kind has SSE2.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_set1_epi8(tag.cast_signed()))) as Slots }
    }

    /// The slots without an entry.
    #[inline(always)]
    pub fn open(self) -> Slots {
        // SAFETY: as above. Only those have the highest bit.
        unsafe { std::arch::x86_64::_mm_movemask_epi8(self.0) as Slots }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Tags {
    /// The tags at `at`.
    ///
    /// # Safety
    /// They are there, and at a multiple of sixteen.
    #[inline(always)]
    pub unsafe fn at(at: *const u8) -> Tags {
        // SAFETY: the caller's word.
        Tags(unsafe { at.cast::<[u8; GROUP]>().read() })
    }

    #[inline(always)]
    fn slots(self, is: impl Fn(u8) -> bool) -> Slots {
        self.0.iter().enumerate().fold(0, |slots, (i, tag)| slots | Slots::from(is(*tag)) << i)
    }

    /// The slots with that tag.
    #[inline(always)]
    pub fn with(self, tag: u8) -> Slots {
        self.slots(|found| found == tag)
    }

    /// The slots without an entry.
    #[inline(always)]
    pub fn open(self) -> Slots {
        self.slots(|found| found >= LEFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Aligned([u8; GROUP]);

    #[test]
    fn tags_are_found_in_their_places() {
        let mut tags = Aligned([EMPTY; GROUP]);
        for i in 0..GROUP {
            tags.0[i] = (i % 5) as u8;
        }
        (tags.0[3], tags.0[15]) = (LEFT, EMPTY);
        // SAFETY: sixteen bytes, aligned.
        let group = unsafe { Tags::at(tags.0.as_ptr()) };
        assert_eq!(group.with(0), 0b0000_0100_0010_0001);
        assert_eq!(group.with(EMPTY), 1 << 15);
        assert_eq!(group.open(), 1 << 15 | 1 << 3);
    }
}
