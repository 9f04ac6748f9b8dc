//! The ring of a log: a position in the log has its place in it, again and again.

use crate::format::{LOG_DATA, Lsn};
use crate::media_error::MediaError;
use caliburn_os::medium::Medium;

/// How much is read at a time.
pub(crate) const STEP: u64 = 1 << 20;

/// Reads part of the ring, in two parts where it wraps.
pub(crate) fn read_ring(
    medium: &dyn Medium,
    capacity: u64,
    lsn: Lsn,
    target: &mut [u8],
) -> Result<(), MediaError> {
    let at = lsn.0 % capacity;
    let (first, second) = {
        let middle = target.len().min((capacity - at) as usize);
        target.split_at_mut(middle)
    };
    for (part, at) in [(first, at), (second, 0)] {
        let offset = LOG_DATA + at;
        medium.read_at(part, offset).map_err(|e| MediaError::new("read the log", medium, offset, e))?;
    }
    Ok(())
}

/// Writes bytes at a position of a ring, in two parts where it wraps.
pub(crate) fn write_ring(
    medium: &dyn Medium,
    capacity: u64,
    lsn: Lsn,
    bytes: &[u8],
) -> Result<(), MediaError> {
    let at = lsn.0 % capacity;
    let (first, second) = bytes.split_at(bytes.len().min((capacity - at) as usize));
    for (part, at) in [(first, at), (second, 0)] {
        if !part.is_empty() {
            let offset = LOG_DATA + at;
            let fail = |e| MediaError::new("write the log", medium, offset, e);
            medium.write_at(part, offset).map_err(fail)?;
        }
    }
    Ok(())
}
