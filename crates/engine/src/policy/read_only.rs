//! A store that was opened for reading: whatever its policy, committed changes that the segments lack are laid
//! over what is mapped, and nothing is written.

use super::kind::{Opened, Opening};
use super::query::Prepared;
use super::{Claimed, Recovery, Undecided};
use crate::storage::Storage;
use crate::storage::class::Class;
use crate::storage::error::{CommitError, Failure, OpenError, RangeError};
use crate::storage::lacking::Lacking;
use crate::storage::region::RegionState;
use crate::storage::report::OpenReport;
use crate::storage::segment::SegmentState;
use crate::write_set::{Layout, Position, Sets, Terms, WriteSet};
use caliburn_os::medium::Medium;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What is to be seen of a store without changing it.
pub(crate) struct ReadOnly {
    storage: Arc<Storage>,
    /// What the segments lack.
    lacking: Option<Box<dyn Lacking>>,
    undecided: Vec<Prepared>,
}

/// Opens a store whose policy has read what the segments lack.
pub(crate) fn open(
    opening: Opening<'_>,
    reach: Class,
    lacking: Option<Box<dyn Lacking>>,
    undecided: Vec<Prepared>,
    damage: Option<OpenError>,
) -> Opened {
    let storage = Arc::new(Storage::new(opening.found, opening.settings, reach));
    let sets = Arc::new(Sets::new(Layout { trailer: 0 }, opening.tracked));
    let policy = Box::new(ReadOnly { storage: storage.clone(), lacking, undecided });
    Opened { storage, sets, policy, damage, report: OpenReport::default() }
}

/// Why its other methods are never called.
const NO_CHANGES: &str = "a read-only store begins no transaction";

impl Recovery for ReadOnly {
    fn map(&self, region: &RegionState, part: Range<usize>) -> io::Result<()> {
        region.map_private(&self.storage, part, self.lacking.as_deref(), false)
    }

    fn put_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure> {
        unused.iter().for_each(|segment| segment.rest());
        Ok(())
    }

    fn survives(&self, _: &dyn Medium) -> Class {
        self.storage.reach
    }

    fn terms(&self) -> Terms {
        Terms {
            clears: 0,
            keeps_old: [false; 2],
            forces: false,
            private: true,
            declared_only: false,
            restores: false,
            alone: false,
            adopts: true,
        }
    }

    fn save(&self, _: &WriteSet<'_>, _: &RegionState, _: usize, _: usize) -> Result<(), RangeError> {
        unreachable!("{NO_CHANGES}")
    }

    fn restore(&self, _: &WriteSet<'_>, _: Position) {
        unreachable!("{NO_CHANGES}")
    }

    fn roll_back(&self, _: &WriteSet<'_>, _: Position) {
        unreachable!("{NO_CHANGES}")
    }

    fn adopt(&self, _: &WriteSet<'_>, _: &WriteSet<'_>) -> Result<(), RangeError> {
        unreachable!("{NO_CHANGES}")
    }

    fn clear(&self, _: &WriteSet<'_>) {
        unreachable!("{NO_CHANGES}")
    }

    fn commit(&self, _: &WriteSet<'_>) -> Result<Option<u64>, CommitError> {
        unreachable!("{NO_CHANGES}")
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn undecided(&self) -> &dyn Undecided {
        self
    }

    fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Undecided for ReadOnly {
    fn list(&self) -> Vec<Prepared> {
        self.undecided.clone()
    }

    fn list_all(&self) -> Vec<Prepared> {
        self.list()
    }

    fn check(&self, _: &[u8]) -> Result<(), CommitError> {
        Err(CommitError::ReadOnly)
    }

    fn prepare(&self, _: &WriteSet<'_>, _: &[u8], _: &mut dyn FnMut() -> usize) -> Result<(), CommitError> {
        Err(CommitError::ReadOnly)
    }

    fn claim(&self, _: &[u8]) -> Result<Claimed, CommitError> {
        Err(CommitError::ReadOnly)
    }

    fn unclaim(&self, _: &[u8]) {}

    fn decide(&self, _: &[u8], _: Option<&Claimed>) -> Result<(), Failure> {
        unreachable!("nobody has claimed it")
    }

    fn leave(&self) -> Result<Vec<usize>, Failure> {
        Ok(Vec::new())
    }
}
