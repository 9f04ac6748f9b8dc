//! Damaged pages of a store in use: found by their checksums, made again from dumps, archive and log.
//!
//! ```text
//!   1 units that do not match their sums          beside truncation, which is changing some of them
//!   2 of these, those that do not match them either while nothing is written to segments
//!   3 what they were, and whether that is known up to where they were last changed
//!   4 written, if they are still as in 2, and if what they were matches their sums
//! ```
//!
//! Nothing of what the program has in memory is damaged then: what truncation has written from there matches its
//! sum. A page that was damaged before it was changed is another matter: its checksum is that of the damage.

use super::past::{self, Followed, Wanted};
use crate::policy::backup::restore::{RestoreOptions, Until};
use crate::policy::backup::{BackupError, Mended};
use crate::policy::redo::Redo;
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use crate::storage::sums::Sum;
use caliburn_log::format::{self, Lsn, SUM_UNIT};
use caliburn_log::media_error::MediaError;
use caliburn_os::simulated::even_if;
use std::io::Read;
use std::sync::Arc;

const UNIT: u64 = SUM_UNIT as u64;

/// A unit of a segment that does not match its sum.
struct Damaged {
    segment: Arc<SegmentState>,
    unit: u64,
    sum: Sum,
}

impl Redo {
    pub(in crate::policy::redo) fn mend_units(
        &self,
        settings: &Settings,
        source: &mut dyn Read,
        how: &RestoreOptions,
    ) -> Result<Vec<Mended>, BackupError> {
        let failed = |failure| BackupError::Failed { path: self.storage.dir.clone(), failure };
        // All that recovery has left is in the segments.
        self.truncate_all().map_err(failed)?;
        let damaged = self.find_damaged()?;
        if damaged.is_empty() {
            return Ok(Vec::new());
        }
        let followed =
            |d: &Damaged| Followed::new(Wanted::Known(d.segment.id), d.unit * UNIT..(d.unit + 1) * UNIT);
        let mut wanted: Vec<Followed> = damaged.iter().map(followed).collect();
        let mut how = how.clone();
        how.until(Until::Latest).left(&self.storage.dir);
        let (reached, _) = past::follow(settings, source, &how, &mut wanted, &mut |_| {})?;
        damaged.iter().zip(&wanted).map(|(damaged, was)| self.mend(damaged, was, reached)).collect()
    }

    pub(in crate::policy::redo) fn list_damaged(&self) -> Result<Vec<(String, u64)>, BackupError> {
        let place = |damaged: &Damaged| (damaged.segment.name.clone(), damaged.unit * UNIT);
        Ok(self.find_damaged()?.iter().map(place).collect())
    }

    /// Steps 1 and 2.
    fn find_damaged(&self) -> Result<Vec<Damaged>, BackupError> {
        let segments = self.storage.segments.read().expect("no panic under this lock").clone();
        let mut found = Vec::new();
        for segment in segments {
            for unit in segment.damaged_units(|_| false, &|_| Ok(()))? {
                if let Some(sum) = self.unlike(&segment, unit)? {
                    found.push(Damaged { segment: segment.clone(), unit, sum });
                }
            }
        }
        Ok(found)
    }

    /// The sum that a unit does not match, while nothing is written to segments.
    fn unlike(&self, segment: &SegmentState, unit: u64) -> Result<Option<Sum>, BackupError> {
        let mut unforced = self.lock_truncation();
        let failed = |failure| BackupError::Failed { path: self.storage.dir.clone(), failure };
        self.force_segments(&mut unforced).map_err(failed)?;
        Ok(segment.unlike(unit)?)
    }

    /// Step 4.
    fn mend(&self, damaged: &Damaged, was: &Followed, reached: Lsn) -> Result<Mended, BackupError> {
        let Damaged { segment, unit, sum } = damaged;
        let mut mended =
            Mended { segment: segment.name.clone(), offset: unit * UNIT, len: SUM_UNIT, why_not: None };
        // It has no changes of the log from there on: what was reached is what it was, whatever came later.
        let whole = sum.before.is_none_or(|before| before <= reached);
        let equal = if sum.sum == 0 {
            was.bytes.iter().all(|byte| *byte == 0)
        } else {
            format::unit_sum(&was.bytes) == sum.sum
        };
        if !even_if("mended-unverified", whole && equal) {
            mended.why_not = Some(match whole {
                false => format!("it was changed after LSN {reached}, which dump, archive and log reach"),
                true => "what dump, archive and log have for it does not match its checksum: it is being changed just now, or the checksum is what is damaged".to_owned(),
            });
            return Ok(mended);
        }
        let failed = |failure| BackupError::Failed { path: self.storage.dir.clone(), failure };
        let mut unforced = self.lock_truncation();
        self.force_segments(&mut unforced).map_err(failed)?;
        // Truncation may have written it meanwhile.
        if segment.unlike(*unit)? == Some(*sum) {
            let put = |error: MediaError| failed(self.fail(error));
            segment.put_back(unit * UNIT, &was.bytes).map_err(put)?;
            unforced.segments.entry(segment.id.0).or_insert_with(|| segment.clone());
            self.force_segments(&mut unforced).map_err(failed)?;
        }
        Ok(mended)
    }
}
