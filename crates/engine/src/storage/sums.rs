//! Checksums of a segment's data, one per 4 KiB, in a file beside it: how `check` tells a damaged segment from a
//! sound one. And up to where in the log its changes went when it was written: how a dump tells what is not in an
//! earlier one; files of the first version do not have that. Written before the log's head passes the records that
//! changed the data, so a unit whose sum is out of date is always one that the live log mentions.

use crate::storage::segment_file::SegmentFile;
use crate::storage::stamped::Stamps;
use caliburn_log::SegmentId;
use caliburn_log::format::{
    self, BLOCK, Defect, Lsn, STAMPED_SUMS, STAMPS, SUM_UNIT, SUMS_DATA, SUMS_MAGIC, SUMS_STAMP, Stamp,
    StampedSum, SumsHeader, VERSION,
};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{instead, planted, unless};
use std::collections::BTreeMap;
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of entries that wait to be written, at most.
const WAITING: usize = 4 << 20;

/// The sums of one segment. Changes gather in memory until [`Sums::write`].
#[derive(Debug)]
pub(crate) struct Sums {
    pub file: SegmentFile,
    stamped: bool,
    store: Id,
    id: SegmentId,
    /// Of which generation the file is.
    stamps: Stamps,
    changed: BTreeMap<u64, Box<[u8; BLOCK]>>,
    forcing: Forcing,
}

/// What a file of sums says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verified {
    pub store: Id,
    pub id: SegmentId,
    /// Its entries have LSNs.
    pub stamped: bool,
    /// Of which generation it is.
    pub stamps: Stamps,
}

/// Bytes of an entry.
fn entry_bytes(stamped: bool) -> u64 {
    if stamped { size_of::<StampedSum>() as u64 } else { 4 }
}

/// Bytes of a sums file for a segment of `len` bytes.
pub(crate) fn file_bytes(len: u64, stamped: bool) -> u64 {
    SUMS_DATA + (len.div_ceil(SUM_UNIT as u64) * entry_bytes(stamped)).next_multiple_of(BLOCK as u64)
}

/// What a sums file says of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum {
    /// [`format::unit_sum`], or 0.
    pub sum: u32,
    /// No change of the log from there on is in it, if that is known.
    pub before: Option<Lsn>,
    /// It is what was written: else nothing is known of the unit.
    pub sound: bool,
}

impl Sum {
    /// Whether it is that of a unit with this checksum.
    pub fn is_of(self, unit: &[u8], crc: u32) -> bool {
        let Sum { sum, sound, .. } = self;
        sound && if sum == 0 { unit.iter().all(|byte| *byte == 0) } else { crc.max(1) == sum }
    }
}

impl Sums {
    /// Fills the new file of a segment of zeros, in a generation of the store (0: it has none).
    pub fn create(
        medium: &dyn Medium,
        store: Id,
        (id, len): (SegmentId, u64),
        generation: u64,
    ) -> Result<Verified, MediaError> {
        let fail = |action| move |e| MediaError::new(action, medium, 0, e);
        medium.set_len(file_bytes(len, true)).map_err(fail("allocate the sums"))?;
        let header =
            SumsHeader { id: id.0.into(), unit: (SUM_UNIT as u32).into(), ..SumsHeader::new_zeroed() };
        let mut block = header.as_bytes().to_vec();
        format::seal_as(&mut block, SUMS_MAGIC, STAMPED_SUMS, store);
        medium.write_at(&block, 0).map_err(fail("write the sums"))?;
        if generation > 0 {
            let stamp = Stamp::encode(store, id, generation);
            medium.write_at(&stamp, SUMS_STAMP).map_err(fail("write the sums"))?;
        }
        medium.sync().map_err(fail("force the sums"))?;
        Ok(Verified { store, id, stamped: true, stamps: Stamps::made(generation) })
    }

    /// Whether a file holds the sums of a segment; what it says of itself. How much of that is durable is not looked
    /// at.
    pub fn verify(
        medium: &dyn Medium,
        store: &Id,
        id: SegmentId,
        len: u64,
    ) -> Result<Verified, Result<Defect, MediaError>> {
        const HEADER: usize = size_of::<SumsHeader>();
        let mut block = [0; SUMS_STAMP as usize + STAMPS];
        let cut = || Ok(Defect::Value("the sums file was cut off".into()));
        match medium.read_at(&mut block, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(cut()),
            other => other.map_err(|e| Err(MediaError::new("read the sums", medium, 0, e)))?,
        }
        let versions = [VERSION, STAMPED_SUMS];
        let preamble = format::unseal_any(&block[..HEADER], SUMS_MAGIC, &versions, "sums file", Some(store))
            .map_err(Ok)?;
        let stamped = preamble.version == STAMPED_SUMS;
        let (header, _) = SumsHeader::read_from_prefix(&block).expect("the size is right");
        if header.id != id.0 || header.unit != SUM_UNIT as u32 {
            return Err(Ok(Defect::Value("the sums belong to another segment".into())));
        }
        let held = medium.len().map_err(|e| Err(MediaError::new("measure the sums", medium, 0, e)))?;
        if held < file_bytes(len, stamped) {
            return Err(cut());
        }
        let stamps = block.last_chunk().expect("it ends with stamps");
        let said = Stamp::newer(stamps, store, id).map_err(Ok)?;
        Ok(Verified { store: *store, id, stamped, stamps: Stamps::found(said, 0) })
    }

    /// Those of a file that was made or verified.
    pub fn of(file: SegmentFile, said: Verified) -> Sums {
        let Verified { store, id, stamped, stamps } = said;
        let (changed, forcing) = Default::default();
        Sums { file, stamped, store, id, stamps, changed, forcing }
    }

    /// Of which generation the file is; 0 if it does not say.
    pub fn generation(&self) -> u64 {
        self.stamps.there
    }

    /// Where the entry of a unit stands in the file.
    fn place(&self, unit: u64) -> u64 {
        SUMS_DATA + unit * entry_bytes(self.stamped)
    }

    /// Makes room for a segment of `len` bytes.
    pub fn grow(&self, len: u64) -> Result<(), MediaError> {
        let medium = self.file.reach("open the sums")?;
        let bytes = file_bytes(len, self.stamped);
        medium.set_len(bytes).map_err(|e| MediaError::new("allocate the sums", &*medium, bytes, e))?;
        self.forcing.sync(&*medium, "force the sums", 0)
    }

    /// Notes the content of whole units of data from `offset`, which have no changes of the log from `before` on.
    pub fn note(&mut self, offset: u64, data: &[u8], before: Lsn) -> Result<(), MediaError> {
        assert!(offset.is_multiple_of(SUM_UNIT as u64) && data.len().is_multiple_of(SUM_UNIT));
        let before = instead("units-stamped-too-early", before, Lsn(0));
        for (i, unit) in data.chunks(SUM_UNIT).enumerate() {
            self.note_sum(offset / SUM_UNIT as u64 + i as u64, format::unit_sum(unit), before)?;
        }
        Ok(())
    }

    /// The same of a unit that has this sum. Its data may be written later: a unit whose sum is ahead of its data is
    /// one that the log mentions.
    pub fn note_sum(&mut self, unit: u64, sum: u32, before: Lsn) -> Result<(), MediaError> {
        let at = self.place(unit);
        let (block, at) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
        if !self.changed.contains_key(&block) {
            let mut bytes = Box::new([0; BLOCK]);
            self.read_at(&mut *bytes, block * BLOCK as u64)?;
            self.changed.insert(block, bytes);
        }
        let bytes = self.changed.get_mut(&block).expect("inserted above");
        if self.stamped {
            // What was there may have later changes.
            let there = stamped(&bytes[at..]);
            let before = if there.is_sound() { before.max(Lsn(there.before.get())) } else { before };
            let entry = StampedSum::new(sum, before);
            bytes[at..][..size_of::<StampedSum>()].copy_from_slice(entry.as_bytes());
        } else {
            bytes[at..][..4].copy_from_slice(&sum.to_le_bytes());
        }
        if self.changed.len() * BLOCK > WAITING { self.write(0) } else { Ok(()) }
    }

    /// The first unit from there on whose entry does not lie in a hole of the file.
    pub fn next_unit(&self, first: u64) -> Result<u64, MediaError> {
        let next = self.file.reach("open the sums")?.next_data(self.place(first));
        Ok(next.map_or(u64::MAX, |next| (next - SUMS_DATA) / entry_bytes(self.stamped)))
    }

    /// The entries of `count` units from unit `first`.
    pub fn read(&self, first: u64, count: u64) -> Result<Vec<Sum>, MediaError> {
        let bytes_each = entry_bytes(self.stamped) as usize;
        let mut bytes = vec![0; count as usize * bytes_each];
        self.read_at(&mut bytes, self.place(first))?;
        let entry = |bytes: &[u8]| match self.stamped {
            true => {
                let entry = stamped(bytes);
                let bad = unless("damaged-entries-believed", !entry.is_sound());
                let before = (!bad).then_some(Lsn(entry.before.get()));
                Sum { sum: entry.sum.get(), before, sound: !bad }
            }
            false => {
                let sum = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                Sum { sum, before: None, sound: true }
            }
        };
        Ok(bytes.chunks_exact(bytes_each).map(entry).collect())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), MediaError> {
        let medium = self.file.reach("open the sums")?;
        medium.read_at(bytes, offset).map_err(|e| MediaError::new("read the sums", &*medium, offset, e))
    }

    /// Writes what changed and forces it, with the generation of the segment that was forced (0: it has none).
    pub fn write(&mut self, generation: u64) -> Result<(), MediaError> {
        let lacking = unless("sums-not-stamped", self.stamps.lack(generation));
        if self.changed.is_empty() && !lacking {
            return Ok(());
        }
        let medium = self.file.reach("open the sums")?;
        if lacking {
            let put = self.stamps.put(&*medium, SUMS_STAMP, (self.store, self.id), generation);
            put.map_err(|e| MediaError::new("write the sums", &*medium, SUMS_STAMP, e))?;
        }
        for (block, sums) in &self.changed {
            let offset = block * BLOCK as u64;
            let fail = |e| MediaError::new("write the sums", &*medium, offset, e);
            medium.write_at(&sums[..], offset).map_err(fail)?;
        }
        if !planted("sums-not-forced") {
            self.forcing.sync(&*medium, "force the sums", SUMS_DATA)?;
        }
        self.stamps.durable = self.stamps.there;
        self.changed.clear();
        Ok(())
    }
}

/// The entry that bytes begin with.
fn stamped(bytes: &[u8]) -> StampedSum {
    StampedSum::read_from_prefix(bytes).expect("a block holds whole entries").0
}
