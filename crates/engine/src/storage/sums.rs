//! Checksums of a segment's data, one per 4 KiB, in a file beside it: how `check` tells a damaged
//! segment from a sound one. Written before the log's head passes the records that changed the data, so
//! a unit whose sum is out of date is always one that the live log mentions.

use crate::storage::segment_file::SegmentFile;
use caliburn_log::SegmentId;
use caliburn_log::format::{self, Defect, SUM_UNIT, SUMS_DATA, SUMS_MAGIC, SumsHeader};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::planted;
use std::collections::BTreeMap;
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Sums are written in blocks of this many.
const PER_BLOCK: u64 = 1024;

/// The sums of one segment. Changes gather in memory until [`Sums::write`].
#[derive(Debug)]
pub(crate) struct Sums {
    pub file: SegmentFile,
    changed: BTreeMap<u64, Box<[u32; PER_BLOCK as usize]>>,
    forcing: Forcing,
}

/// Bytes of a sums file for a segment of `len` bytes.
pub(crate) fn file_bytes(len: u64) -> u64 {
    SUMS_DATA + len.div_ceil(SUM_UNIT as u64).next_multiple_of(PER_BLOCK) * 4
}

impl Sums {
    /// Fills the new file of a segment of zeros.
    pub fn create(medium: &dyn Medium, store: Id, id: SegmentId, len: u64) -> Result<(), MediaError> {
        let fail = |action| move |e| MediaError::new(action, medium, 0, e);
        medium.set_len(file_bytes(len)).map_err(fail("allocate the sums"))?;
        let header =
            SumsHeader { id: id.0.into(), unit: (SUM_UNIT as u32).into(), ..SumsHeader::new_zeroed() };
        let mut block = header.as_bytes().to_vec();
        format::seal(&mut block, SUMS_MAGIC, store);
        medium.write_at(&block, 0).map_err(fail("write the sums"))?;
        medium.sync().map_err(fail("force the sums"))
    }

    /// Whether a file holds the sums of a segment.
    pub fn verify(
        medium: &dyn Medium,
        store: &Id,
        id: SegmentId,
        len: u64,
    ) -> Result<(), Result<Defect, MediaError>> {
        let mut block = [0; size_of::<SumsHeader>()];
        let cut = || Ok(Defect::Value("the sums file was cut off".into()));
        match medium.read_at(&mut block, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(cut()),
            other => other.map_err(|e| Err(MediaError::new("read the sums", medium, 0, e)))?,
        }
        format::unseal(&block, SUMS_MAGIC, "sums file", Some(store)).map_err(Ok)?;
        let header = SumsHeader::read_from_bytes(&block).expect("the size is right");
        if header.id != id.0 || header.unit != SUM_UNIT as u32 {
            return Err(Ok(Defect::Value("the sums belong to another segment".into())));
        }
        let held = medium.len().map_err(|e| Err(MediaError::new("measure the sums", medium, 0, e)))?;
        if held < file_bytes(len) { Err(cut()) } else { Ok(()) }
    }

    /// Those of a file that was made or verified.
    pub fn of(file: SegmentFile) -> Sums {
        Sums { file, changed: BTreeMap::new(), forcing: Forcing::default() }
    }

    /// Makes room for a segment of `len` bytes.
    pub fn grow(&self, len: u64) -> Result<(), MediaError> {
        let medium = self.file.reach("open the sums")?;
        let fail = |e| MediaError::new("allocate the sums", &*medium, file_bytes(len), e);
        medium.set_len(file_bytes(len)).map_err(fail)?;
        self.forcing.sync(&*medium, "force the sums", 0)
    }

    /// Notes the content of whole units of data from `offset`.
    pub fn note(&mut self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        assert!(offset.is_multiple_of(SUM_UNIT as u64) && data.len().is_multiple_of(SUM_UNIT));
        for (i, unit) in data.chunks(SUM_UNIT).enumerate() {
            let number = offset / SUM_UNIT as u64 + i as u64;
            let block = number / PER_BLOCK;
            if !self.changed.contains_key(&block) {
                let sums = self.read_block(block)?;
                self.changed.insert(block, sums);
            }
            let sums = self.changed.get_mut(&block).expect("inserted above");
            sums[(number % PER_BLOCK) as usize] = format::unit_sum(unit);
        }
        Ok(())
    }

    fn read_block(&self, block: u64) -> Result<Box<[u32; PER_BLOCK as usize]>, MediaError> {
        let offset = SUMS_DATA + block * PER_BLOCK * 4;
        let mut bytes = vec![0; PER_BLOCK as usize * 4];
        self.read_at(&mut bytes, offset)?;
        let mut sums = Box::new([0; PER_BLOCK as usize]);
        for (sum, word) in sums.iter_mut().zip(bytes.chunks_exact(4)) {
            *sum = u32::from_le_bytes(word.try_into().expect("four bytes"));
        }
        Ok(sums)
    }

    /// The first unit from there on whose sum does not lie in a hole of the file.
    pub fn next_unit(&self, first: u64) -> Result<u64, MediaError> {
        let next = self.file.reach("open the sums")?.next_data(SUMS_DATA + first * 4);
        Ok(next.map_or(u64::MAX, |next| (next - SUMS_DATA) / 4))
    }

    /// The sums of `count` units from unit `first`.
    pub fn read(&self, first: u64, count: u64) -> Result<Vec<u32>, MediaError> {
        let offset = SUMS_DATA + first * 4;
        let mut bytes = vec![0; count as usize * 4];
        self.read_at(&mut bytes, offset)?;
        Ok(bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().expect("four bytes"))).collect())
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
            let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            let offset = SUMS_DATA + block * PER_BLOCK * 4;
            let fail = |e| MediaError::new("write the sums", &*medium, offset, e);
            medium.write_at(&bytes, offset).map_err(fail)?;
        }
        if !planted("sums-not-forced") {
            self.forcing.sync(&*medium, "force the sums", SUMS_DATA)?;
        }
        self.changed.clear();
        Ok(())
    }
}
