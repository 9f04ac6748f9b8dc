//! Checksums of a segment's data, one per 4 KiB, in a file beside it: how `check` tells a damaged segment from a
//! sound one. And up to where in the log its changes went when it was written: how a dump tells what is not in an
//! earlier one; files of the first version do not have that. Written before the log's head passes the records that
//! changed the data, so a unit whose sum is out of date is always one that the live log mentions.

use crate::storage::segment_file::SegmentFile;
use caliburn_log::SegmentId;
use caliburn_log::format::{
    self, BLOCK, Defect, Lsn, STAMPED_SUMS, SUM_UNIT, SUMS_DATA, SUMS_MAGIC, StampedSum, SumsHeader, VERSION,
};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{instead, planted, unless};
use std::collections::BTreeMap;
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The sums of one segment. Changes gather in memory until [`Sums::write`].
#[derive(Debug)]
pub(crate) struct Sums {
    pub file: SegmentFile,
    stamped: bool,
    changed: BTreeMap<u64, Box<[u8; BLOCK]>>,
    forcing: Forcing,
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

impl Sums {
    /// Fills the new file of a segment of zeros.
    pub fn create(medium: &dyn Medium, store: Id, id: SegmentId, len: u64) -> Result<(), MediaError> {
        let fail = |action| move |e| MediaError::new(action, medium, 0, e);
        medium.set_len(file_bytes(len, true)).map_err(fail("allocate the sums"))?;
        let header =
            SumsHeader { id: id.0.into(), unit: (SUM_UNIT as u32).into(), ..SumsHeader::new_zeroed() };
        let mut block = header.as_bytes().to_vec();
        format::seal_as(&mut block, SUMS_MAGIC, STAMPED_SUMS, store);
        medium.write_at(&block, 0).map_err(fail("write the sums"))?;
        medium.sync().map_err(fail("force the sums"))
    }

    /// Whether a file holds the sums of a segment; whether they are stamped.
    pub fn verify(
        medium: &dyn Medium,
        store: &Id,
        id: SegmentId,
        len: u64,
    ) -> Result<bool, Result<Defect, MediaError>> {
        let mut block = [0; size_of::<SumsHeader>()];
        let cut = || Ok(Defect::Value("the sums file was cut off".into()));
        match medium.read_at(&mut block, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(cut()),
            other => other.map_err(|e| Err(MediaError::new("read the sums", medium, 0, e)))?,
        }
        let versions = [VERSION, STAMPED_SUMS];
        let preamble =
            format::unseal_any(&block, SUMS_MAGIC, &versions, "sums file", Some(store)).map_err(Ok)?;
        let stamped = preamble.version == STAMPED_SUMS;
        let header = SumsHeader::read_from_bytes(&block).expect("the size is right");
        if header.id != id.0 || header.unit != SUM_UNIT as u32 {
            return Err(Ok(Defect::Value("the sums belong to another segment".into())));
        }
        let held = medium.len().map_err(|e| Err(MediaError::new("measure the sums", medium, 0, e)))?;
        if held < file_bytes(len, stamped) { Err(cut()) } else { Ok(stamped) }
    }

    /// Those of a file that was made or verified.
    pub fn of(file: SegmentFile, stamped: bool) -> Sums {
        Sums { file, stamped, changed: BTreeMap::new(), forcing: Forcing::default() }
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
            let at = self.place(offset / SUM_UNIT as u64 + i as u64);
            let (block, at) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            if !self.changed.contains_key(&block) {
                let mut bytes = Box::new([0; BLOCK]);
                self.read_at(&mut *bytes, block * BLOCK as u64)?;
                self.changed.insert(block, bytes);
            }
            let bytes = self.changed.get_mut(&block).expect("inserted above");
            let sum = format::unit_sum(unit);
            if self.stamped {
                // What was there may have later changes.
                let there = stamped(&bytes[at..]);
                let before = if there.is_sound() { before.max(Lsn(there.before.get())) } else { before };
                let entry = StampedSum::new(sum, before);
                bytes[at..][..size_of::<StampedSum>()].copy_from_slice(entry.as_bytes());
            } else {
                bytes[at..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
        Ok(())
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

    /// Writes what changed and forces it.
    pub fn write(&mut self) -> Result<(), MediaError> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let medium = self.file.reach("open the sums")?;
        for (block, sums) in &self.changed {
            let offset = block * BLOCK as u64;
            let fail = |e| MediaError::new("write the sums", &*medium, offset, e);
            medium.write_at(&sums[..], offset).map_err(fail)?;
        }
        if !planted("sums-not-forced") {
            self.forcing.sync(&*medium, "force the sums", SUMS_DATA)?;
        }
        self.changed.clear();
        Ok(())
    }
}

/// The entry that bytes begin with.
fn stamped(bytes: &[u8]) -> StampedSum {
    StampedSum::read_from_prefix(bytes).expect("a block holds whole entries").0
}
