//! A segment read from its beginning to its end, for those who verify or copy it.

use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::sums::Sum;
use caliburn_log::format::{self, Lsn, SUM_UNIT};
use caliburn_log::media_error::MediaError;
use caliburn_os::observed::Tell;

impl SegmentState {
    /// The units whose content does not match their sums, but for those that are `excused`. `tell` is told how
    /// many bytes were looked at, and may end it.
    pub fn damaged_units(
        &self,
        mut excused: impl FnMut(u64) -> bool,
        tell: Tell<'_>,
    ) -> Result<Vec<u64>, MediaError> {
        let mut damaged = Vec::new();
        if self.sums.is_none() {
            return Ok(damaged);
        }
        self.each_stretch(None, |at, _, unlike| {
            let fail = |e| MediaError::of_name("verify segment", self.file.path().to_owned(), e);
            tell(at).map_err(fail)?;
            damaged.extend(unlike.iter().filter(|unit| !excused(**unit)));
            Ok::<(), MediaError>(())
        })?;
        Ok(damaged)
    }

    /// Reports the units of it that do not match their sums, in their order: all others do.
    pub fn report_damaged(&self, damaged: &[u64], report: &mut Report) {
        for run in damaged.chunk_by(|a, b| a + 1 == *b) {
            let offset = self.data + run[0] * SUM_UNIT as u64;
            let text = format!(
                "{} bytes of segment {:?} from its byte {} do not match their checksums: the file was damaged or changed by another program",
                run.len() * SUM_UNIT,
                self.name,
                run[0] * SUM_UNIT as u64
            );
            report.problem(self.file.path(), offset, text);
        }
        report.data_bytes += self.len();
    }

    /// The first unit that was written when the log was longer than `tail`, and where the log ended then. There is
    /// none beside the log that the segment belongs to: what reaches a segment is in the forced log.
    pub fn ahead_of(&self, tail: Lsn) -> Result<Option<(u64, Lsn)>, MediaError> {
        const BATCH: u64 = 4096;
        let (units, mut first, mut ahead) = (self.len().div_ceil(SUM_UNIT as u64), 0, None);
        self.with_sums(|sums| {
            while first < units && ahead.is_none() {
                first = sums.next_unit(first)?.clamp(first, units);
                let entries = sums.read(first, BATCH.min(units - first))?;
                let late = |(i, sum): (usize, &Sum)| {
                    sum.before.filter(|before| *before > tail).map(|lsn| (first + i as u64, lsn))
                };
                ahead = entries.iter().enumerate().find_map(late);
                first += entries.len() as u64;
            }
            Ok(())
        })?;
        Ok(ahead)
    }

    /// The sum of a unit, if it does not match it.
    pub fn unlike(&self, unit: u64) -> Result<Option<Sum>, MediaError> {
        let (mut data, mut unlike) = (vec![0; SUM_UNIT], None);
        self.read(unit * SUM_UNIT as u64, &mut data)?;
        self.with_sums(|sums| {
            unlike = sums.read(unit, 1)?.pop().filter(|sum| !sum.is_of(&data, crc(&data, *sum)));
            Ok(())
        })?;
        Ok(unlike)
    }

    /// Calls `each` with what the segment holds, a stretch of units after the other, leaving out holes: where it
    /// begins, its bytes, and the numbers of those units that their sums do not match. With `since`, units that
    /// were last written when the log had not come so far are left out, as far as that is known.
    pub fn each_stretch<E: From<MediaError>>(
        &self,
        since: Option<Lsn>,
        mut each: impl FnMut(u64, &[u8], &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        const BATCH: u64 = 256;
        const UNIT: u64 = SUM_UNIT as u64;
        let medium = self.file.reach("open segment")?;
        let (len, mut first) = (self.len(), 0);
        let (mut data, mut unlike) = (vec![0; BATCH as usize * SUM_UNIT], Vec::new());
        loop {
            // Where both are holes, there are zeros, and said to be. A file that nothing is said of may have been
            // made sparse since.
            let whole = since.is_some() && !self.has_sums();
            let next = if whole {
                Some(self.data + first * UNIT)
            } else {
                medium.next_data(self.data + first * UNIT)
            };
            let mut next = next.map_or(u64::MAX, |next| (next - self.data) / UNIT);
            self.with_sums(|sums| {
                next = next.min(sums.next_unit(first)?);
                Ok(())
            })?;
            first = next.max(first);
            let Some(rest) =
                first.checked_mul(UNIT).and_then(|at| len.checked_sub(at)).filter(|rest| *rest > 0)
            else {
                return Ok(());
            };
            let rest = rest.min(BATCH * UNIT) as usize;
            let count = rest.div_ceil(SUM_UNIT) as u64;
            let changed = |sum: &Sum| match (since, sum.before) {
                (Some(since), Some(before)) => before > since,
                _ => true,
            };
            let mut known = Vec::new();
            self.with_sums(|sums| {
                known = sums.read(first, count)?.iter().map(changed).collect();
                Ok(())
            })?;
            known.resize(count as usize, true);
            let mut from = 0;
            for run in known.chunk_by(|a, b| a == b) {
                let (start, end) = (from * SUM_UNIT, ((from + run.len()) * SUM_UNIT).min(rest));
                let unit = first + from as u64;
                from += run.len();
                if !run[0] {
                    continue;
                }
                let data = &mut data[..end - start];
                self.read(unit * UNIT, data)?;
                unlike.clear();
                self.with_sums(|sums| {
                    // After the data, in which there may be changes that the sums lack.
                    let units = data.chunks(SUM_UNIT).zip(sums.read(unit, run.len() as u64)?).enumerate();
                    let differ = units.filter(|(_, (unit, sum))| !sum.is_of(unit, crc(unit, *sum)));
                    unlike.extend(differ.map(|(i, _)| unit + i as u64));
                    Ok(())
                })?;
                each(unit * UNIT, data, &unlike)?;
            }
            first += count;
        }
    }
}

/// The checksum of a unit, if it is one that was written.
fn crc(unit: &[u8], sum: Sum) -> u32 {
    if sum.sum == 0 { 0 } else { format::unit_sum(unit) }
}
