//! What was noted at an opening of the witnesses of memory ([`caliburn_os::witness`]), besides the boot's identity.

use caliburn_os::host::{Clock, Id};
use caliburn_os::witness::{Others, Witnesses};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset in an undo log's status page.
pub const UNDO_WITNESSES: usize = 128;
/// Offsets in the first block of a stage: two copies, in two sectors.
pub const STAGE_WITNESSES: [usize; 2] = [64, 2112];

/// What is set in [`WitnessRecord::told`]: it was written.
const WRITTEN: u32 = 1;
/// The clock is known.
const CLOCK: u32 = 2;
/// The mounts are known.
const MOUNTS: u32 = 4;

/// The record. Zeros: an earlier version wrote none.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WitnessRecord {
    /// Of the boot's identity, which stands elsewhere, and of what follows. An earlier version that opens the store
    /// in another boot leaves this record as it is; then it does not count.
    pub crc: U32,
    /// Which of the following is known.
    pub told: U32,
    /// When the system was started, nanoseconds since 1970.
    pub began: I64,
    /// How long it had been running, nanoseconds.
    pub running: U64,
    /// Digest of the mounts.
    pub mounts: U64,
    /// Zero.
    pub reserved: [u8; 32],
}

impl WitnessRecord {
    /// Of these witnesses.
    pub fn new(witnesses: &Witnesses) -> WitnessRecord {
        let Others { clock, mounts } = witnesses.others.unwrap_or_default();
        let mut told = WRITTEN;
        told |= if clock.is_some() { CLOCK } else { 0 };
        told |= if mounts.is_some() { MOUNTS } else { 0 };
        let clock = clock.unwrap_or(Clock { began: 0, running: 0 });
        let mut record = WitnessRecord {
            told: told.into(),
            began: clock.began.into(),
            running: clock.running.into(),
            mounts: mounts.unwrap_or(0).into(),
            ..WitnessRecord::new_zeroed()
        };
        record.crc = record.sum(&boot_field(witnesses)).into();
        record
    }

    /// What was noted in the boot of that identity; nothing if this is no such record.
    pub fn others(&self, boot: &Id) -> Option<Others> {
        let told = self.told.get();
        if told & WRITTEN == 0 || self.crc.get() != self.sum(boot) {
            return None;
        }
        let clock = Clock { began: self.began.get(), running: self.running.get() };
        Some(Others {
            clock: (told & CLOCK != 0).then_some(clock),
            mounts: (told & MOUNTS != 0).then_some(self.mounts.get()),
        })
    }

    fn sum(&self, boot: &Id) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(boot), &self.as_bytes()[4..])
    }
}

/// The identity of a boot as it is stored: zeros for none.
pub fn boot_field(witnesses: &Witnesses) -> Id {
    witnesses.boot.unwrap_or_default()
}

/// What was noted, by the identity that is stored and the first record that goes with it.
pub fn noted<'r>(boot: &Id, records: impl IntoIterator<Item = &'r WitnessRecord>) -> Witnesses {
    let others = records.into_iter().find_map(|record| record.others(boot));
    Witnesses { boot: Some(*boot).filter(|boot| *boot != [0; 16]), others }
}

const _: () = assert!(size_of::<WitnessRecord>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_at_the_corners_of_every_field() {
        let clocks = [(0, 0), (i64::MIN, u64::MAX), (i64::MAX, 0), (-1, 1), (0, u64::MAX)];
        let clocks = clocks.map(|(began, running)| Some(Clock { began, running }));
        for clock in clocks.into_iter().chain([None]) {
            for mounts in [None, Some(0), Some(1), Some(u64::MAX)] {
                for boot in [None, Some([1; 16]), Some([0xFF; 16])] {
                    let witnesses = Witnesses { boot, others: Some(Others { clock, mounts }) };
                    let record = WitnessRecord::new(&witnesses);
                    assert_eq!(noted(&boot_field(&witnesses), [&record]), witnesses);
                    assert_ne!(record.as_bytes(), [0; 64]);
                    let mut flipped = record;
                    flipped.running = (record.running.get() ^ 1 << 63).into();
                    assert_eq!(flipped.others(&boot_field(&witnesses)), None);
                    assert_eq!(record.others(&[3; 16]), None, "it goes with its boot");
                    assert_eq!(noted(&boot_field(&witnesses), [&flipped, &record]), witnesses);
                }
            }
        }
        assert_eq!(noted(&[1; 16], [&WitnessRecord::new_zeroed()]).others, None);
    }
}
