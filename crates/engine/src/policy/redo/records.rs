//! Records of the log: appended while nobody commits, and found with ranges that lie in no segment.

use crate::storage::extents::Extents;
use caliburn_log::SegmentId;
use caliburn_log::format::{LOG_DATA, Lsn};
use caliburn_log::log::Log;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, Kind, Record, RecordPosition};
use caliburn_os::clock::wall_ns;

/// Appends a record of the present time; where it is.
pub(super) fn append(log: &Log, kind: Kind, prefix: &[u8], body: &[u8]) -> Result<Lsn, MediaError> {
    let place = RecordPosition {
        lsn: log.tail(),
        forced: log.forced(),
        incarnation: log.incarnation(),
        time: wall_ns(),
    };
    let mut bytes = Vec::new();
    record::encode(&mut bytes, kind, place, prefix, body);
    log.publish(log.append(&bytes)?);
    Ok(place.lsn)
}

/// Position and description of a record with a range that lies in no segment.
pub(super) fn stray_range(record: &Record<'_>, extents: &Extents) -> Option<(Lsn, SegmentId, String)> {
    let range = record.ranges().find(|range| !extents.hold(range))?;
    let (lsn, offset, segment) = (record.lsn, range.offset, range.segment.0);
    Some((
        lsn,
        range.segment,
        format!(
            "the record at LSN {lsn} has a range at {offset} of segment {segment}, which has no such bytes"
        ),
    ))
}

/// Where a byte of the ring stands on the medium.
pub(super) fn log_offset(lsn: Lsn, capacity: u64) -> u64 {
    LOG_DATA + lsn.0 % capacity
}
