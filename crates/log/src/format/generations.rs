//! Generations: how the files of a store that belong together tell an older copy of one of them.
//!
//! ```text
//!  generations: | page A | page B | slots: one for the stage, one for each segment |
//! ```
//!
//! The store's generation grows by one at each opening for writing and at each orderly close. The catalog counts
//! its own changes. A segment's file, its sums and the stage carry the generation in which they were last written.

use super::{Preamble, SegmentId};
use caliburn_os::host::Id;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of a page of the file of generations.
pub const GENERATIONS_MAGIC: [u8; 8] = *b"CALI-GEN";
/// Magic of a [`Stamp`].
pub const STAMP_MAGIC: [u8; 8] = *b"CALI-STA";
/// Version of a catalog that counts its changes; the other one is [`VERSION`](super::VERSION), of a store that has
/// no generations.
pub const COUNTED_CATALOG: u32 = 2;
/// The first generation of a store, and the first count of a catalog. Zero: there are none.
pub const FIRST_GENERATION: u64 = 1;
/// Offset of the first slot of the file of generations.
pub const GENERATION_SLOTS: u64 = 8192;
/// Offset of the two stamps in a segment's file, each in a sector that nothing else is in.
pub const SEGMENT_STAMP: u64 = 4096;
/// The same in a sums file.
pub const SUMS_STAMP: u64 = 512;
/// From one stamp to the other.
pub const STAMP_STEP: usize = 512;
/// Bytes from the first stamp to the end of the second.
pub const STAMPS: usize = STAMP_STEP + size_of::<Stamp>();
/// Most bytes of a segment's name.
pub const NAME_MAX: usize = 255;

/// Page of the file of generations; two of them, written in turn. The one with the greater count counts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GenerationsPage {
    /// Common beginning.
    pub preamble: Preamble,
    /// Counts the writes of these pages.
    pub count: U64,
    /// The store's generation: that of its log, undo logs or before-images, or the one before.
    pub generation: U64,
    /// How often the catalog was changed: what the catalog itself says, or one less.
    pub catalog: U64,
    /// Bytes of `making`.
    pub making_len: U32,
    /// Zero.
    pub reserved: [u8; 4],
    /// Name of a segment of which there may be files that the catalog does not name.
    pub making: [u8; NAME_MAX + 1],
}

/// What is said of the generation of one file: no older one is it. All zeros: nothing.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GenerationSlot {
    /// The generation.
    pub generation: U64,
    /// CRC-32C of the generation, of the slot's number, u64 each, and of `kind`.
    pub check: U32,
    /// [`LASTING`] or [`WITHIN_BOOT`].
    pub kind: U32,
}

/// The file is that new on its medium.
pub const LASTING: u32 = 1;
/// It is so as this boot shows it, and on its medium after an orderly close.
pub const WITHIN_BOOT: u32 = 2;

impl GenerationSlot {
    /// Says it of the file that has this slot.
    pub fn new(number: u64, generation: u64, kind: u32) -> GenerationSlot {
        let check = Self::computed(number, generation, kind);
        GenerationSlot { generation: generation.into(), check: check.into(), kind: kind.into() }
    }

    fn computed(number: u64, generation: u64, kind: u32) -> u32 {
        let words = [generation.to_le_bytes(), number.to_le_bytes()].concat();
        crc32c::crc32c_append(crc32c::crc32c(&words), &kind.to_le_bytes())
    }

    /// The generation, and of what kind it is; zeros: it says nothing. None if it is damaged.
    pub fn read(&self, number: u64) -> Option<(u64, u32)> {
        let (generation, kind) = (self.generation.get(), self.kind.get());
        let unused = self.as_bytes() == GenerationSlot::new_zeroed().as_bytes();
        let sound =
            self.check == Self::computed(number, generation, kind) && [LASTING, WITHIN_BOOT].contains(&kind);
        (unused || sound).then_some((generation, kind))
    }

    /// The number of a segment's slot. The stage has the one before all of them.
    pub fn of_segment(id: SegmentId) -> u64 {
        u64::from(id.0) + 1
    }
}

/// In which generation a segment's file, or its sums, were last written. There are two of them, written in turn: one
/// that could not be written whole leaves the other.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Stamp {
    /// Common beginning.
    pub preamble: Preamble,
    /// The generation.
    pub generation: U64,
    /// Number of the segment.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
}

impl Stamp {
    /// As it is written.
    pub fn encode(store: Id, id: SegmentId, generation: u64) -> [u8; size_of::<Stamp>()] {
        let stamp = Stamp { generation: generation.into(), id: id.0.into(), ..Stamp::new_zeroed() };
        let mut bytes = [0; size_of::<Stamp>()];
        bytes.copy_from_slice(stamp.as_bytes());
        super::seal(&mut bytes, STAMP_MAGIC, store);
        bytes
    }

    /// What two stamps say.
    ///
    /// # Errors
    /// What is wrong with one, if the other says nothing.
    pub fn newer(bytes: &[u8; STAMPS], store: &Id, id: SegmentId) -> Result<Newer, super::Defect> {
        let both = [0, STAMP_STEP].map(|at| {
            let stamp = bytes[at..at + size_of::<Stamp>()].try_into().expect("the size is right");
            Stamp::decode(stamp, store, id)
        });
        match both {
            [Ok(first), Ok(generation)] if generation > first => {
                Ok(Newer { generation, other: 0, torn: false })
            }
            [Ok(generation), other] if generation > 0 => {
                Ok(Newer { generation, other: 1, torn: other.is_err() })
            }
            [other, Ok(generation)] if generation > 0 => {
                Ok(Newer { generation, other: 0, torn: other.is_err() })
            }
            [Ok(_), Ok(_)] => Ok(Newer::default()),
            [Err(defect), _] | [_, Err(defect)] => Err(defect),
        }
    }

    fn decode(bytes: &[u8; size_of::<Stamp>()], store: &Id, id: SegmentId) -> Result<u64, super::Defect> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        super::unseal(bytes, STAMP_MAGIC, "stamp of a generation", Some(store))?;
        let stamp = Stamp::read_from_bytes(bytes).expect("the size is right");
        match stamp.id.get() == id.0 && stamp.generation.get() >= FIRST_GENERATION {
            true => Ok(stamp.generation.get()),
            false => Err(super::Defect::Value("its stamp is that of another segment".into())),
        }
    }
}

/// What two [stamps](Stamp) say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Newer {
    /// The greater generation; 0 if nothing was ever written there.
    pub generation: u64,
    /// The place of the other one.
    pub other: usize,
    /// That one is torn.
    pub torn: bool,
}

/// The store's generation, as a file says it that tells whether the store was closed.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    /// What the status page says that counts.
    pub generation: u64,
    /// Its twin was damaged: it may have said the next one.
    pub twin_lost: bool,
}

const _: () = {
    assert!(size_of::<GenerationsPage>() == 320 && size_of::<GenerationsPage>() <= 512);
    assert!(size_of::<GenerationSlot>() == 16 && GENERATION_SLOTS.is_multiple_of(16));
    assert!(size_of::<Stamp>() == 48 && SEGMENT_STAMP.is_multiple_of(512) && SUMS_STAMP.is_multiple_of(512));
    assert!(SUMS_STAMP as usize + STAMPS <= super::BLOCK);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_what_was_written_or_refused() {
        let (store, id) = ([7; 16], SegmentId(3));
        for generation in [1, 2, 1 << 32, u64::MAX] {
            let stamp = Stamp::encode(store, id, generation);
            assert_eq!(Stamp::decode(&stamp, &store, id).unwrap(), generation);
            assert!(Stamp::decode(&stamp, &[8; 16], id).is_err());
            assert!(Stamp::decode(&stamp, &store, SegmentId(4)).is_err());
            for bit in 0..stamp.len() * 8 {
                let mut bad = stamp;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Stamp::decode(&bad, &store, id).is_err(), "bit {bit}");
            }
        }
        assert_eq!(Stamp::decode(&[0; 48], &store, id).unwrap(), 0);
    }

    #[test]
    fn of_two_stamps_the_newer_counts_and_one_that_is_torn_does_not() {
        let (store, id) = ([7; 16], SegmentId(3));
        let said = |first: &[u8], second: &[u8]| {
            let mut bytes = [0; STAMPS];
            bytes[..first.len()].copy_from_slice(first);
            bytes[STAMP_STEP..][..second.len()].copy_from_slice(second);
            let said = Stamp::newer(&bytes, &store, id).ok()?;
            Some((said.generation, said.other, said.torn))
        };
        let (older, newer) = (Stamp::encode(store, id, 5), Stamp::encode(store, id, 9));
        assert_eq!(said(&[], &[]), Some((0, 0, false)));
        assert_eq!(said(&older, &[]), Some((5, 1, false)));
        assert_eq!(said(&older, &newer), Some((9, 0, false)));
        assert_eq!(said(&newer, &older), Some((9, 1, false)));
        // Without the zeros at its end it is whole.
        for torn in 1..41 {
            assert_eq!(said(&older, &newer[..torn]), Some((5, 1, true)));
            assert_eq!(said(&newer[..torn], &older), Some((5, 0, true)));
            assert_eq!((said(&newer[..torn], &[]), said(&[], &newer[..torn])), (None, None));
        }
    }

    #[test]
    fn a_slot_says_what_was_written_of_its_own_number_alone() {
        for generation in [1, 2, u64::MAX] {
            for number in [0, 1, u64::from(u32::MAX) + 1] {
                let slot = GenerationSlot::new(number, generation, LASTING);
                assert_eq!(slot.read(number), Some((generation, LASTING)));
                assert_eq!(slot.read(number ^ 1), None);
            }
        }
        assert_eq!(GenerationSlot::new_zeroed().read(5), Some((0, 0)));
    }
}
