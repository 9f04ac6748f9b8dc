//! Searches through a ring for records, wherever they stand: behind the tail of a log for proof that the tail is
//! none, and for what is left of its past.
//!
//! Anything may stand there, also what somebody put there to be searched for long: as many places that look like
//! records as there are words, each as long as the rest. Their checksums would take time in proportion to the
//! square of the ring; so once as much as the ring was summed in vain, sums from the ring's beginning to each of
//! its blocks are made, from which the sum between any two places follows.

use crate::format::{ALIGN, LOG_DATA, Lsn, RecordHeader, Status, Trailer};
use crate::media_error::MediaError;
use crate::record::{Decoded, FRAME, Record, decode, plausible_len, said_forced};
use crate::ring::{STEP, read_ring};
use caliburn_os::medium::Medium;
use caliburn_os::simulated::unless;
use std::ops::Range;
use zerocopy::FromBytes;

/// Most blocks that have a sum.
const BLOCKS: u64 = 1 << 20;

/// How far a valid record that stands in `range`, and is not of an earlier opening than `incarnation`, says that the
/// log was forced, if that is beyond the range's beginning: then what is missing there was lost, not torn.
pub(crate) fn forced_behind(
    medium: &dyn Medium,
    capacity: u64,
    range: Range<Lsn>,
    incarnation: u32,
) -> Result<Option<Lsn>, MediaError> {
    let (tail, end) = (range.start, range.end.0);
    let mut found = None;
    Search::new(medium, capacity, tail.0..end).each_place(|search, place, head| {
        let Some(len) = plausible_len(head, Lsn(place), incarnation, end - place) else { return Ok(0) };
        let Some(forced) = search.trailer(place, len, head)?.map(|trailer| said_forced(Lsn(place), &trailer))
        else {
            return Ok(0);
        };
        let valid = forced > tail && search.is_valid(place, len, head)?;
        if unless("damage-taken-for-the-tail", valid) {
            found = Some(forced);
            return Ok(u64::MAX);
        }
        Ok(0)
    })?;
    Ok(found)
}

/// Calls `each` with every valid record that stands in a ring, truncated ones too.
pub fn scan_ring(
    medium: &dyn Medium,
    status: &Status,
    mut each: impl FnMut(&Record<'_>),
) -> Result<(), MediaError> {
    let capacity = status.capacity.get();
    // A record that wraps goes on in the second lap.
    Search::new(medium, capacity, 0..2 * capacity).each_place(|search, place, head| {
        let (header, _) = RecordHeader::ref_from_prefix(head).expect("a place has room for a record");
        let lsn = Lsn(header.lsn.get());
        let here = place < capacity && lsn.0 % capacity == place;
        let Some(len) = plausible_len(head, lsn, 0, capacity).filter(|_| here) else {
            return Ok(if place < capacity { 0 } else { u64::MAX });
        };
        if search.trailer(place, len, head)?.is_none() || !search.is_valid(place, len, head)? {
            return Ok(0);
        }
        let mut record = vec![0; len as usize];
        search.read(place, &mut record)?;
        match decode(&record, lsn, 0, capacity) {
            Decoded::Valid(record) => {
                each(&record);
                Ok(len)
            }
            _ => Ok(0),
        }
    })
}

/// A part of a ring that is searched.
struct Search<'m> {
    medium: &'m dyn Medium,
    capacity: u64,
    /// Positions in the log, or places in the ring and, beyond it, in the ring again.
    range: Range<u64>,
    /// Bytes summed so far.
    summed: u64,
    sums: Option<Sums>,
}

/// Sums of what lies between the beginning and each block.
struct Sums {
    block: u64,
    before: Vec<u32>,
}

impl<'m> Search<'m> {
    fn new(medium: &'m dyn Medium, capacity: u64, range: Range<u64>) -> Search<'m> {
        Search { medium, capacity, range, summed: 0, sums: None }
    }

    /// Calls `look` with every place where a record may begin, and the bytes there; it says how far to go on, 0 for
    /// to the next one.
    fn each_place(
        mut self,
        mut look: impl FnMut(&mut Self, u64, &[u8]) -> Result<u64, MediaError>,
    ) -> Result<(), MediaError> {
        let mut window = vec![0; STEP.min(self.capacity) as usize];
        let (mut at, end) = (self.range.start, self.range.end);
        while at < end {
            at = self.beyond_hole(at);
            let len = (window.len() as u64).min(end.saturating_sub(at)) as usize;
            if len < FRAME {
                return Ok(());
            }
            self.read(at, &mut window[..len])?;
            // What begins in the window and goes on behind it is seen from the next one.
            let mut next = at;
            while next <= at + (len - FRAME) as u64 {
                let passed = look(&mut self, next, &window[(next - at) as usize..len])?;
                next = next.saturating_add(passed.max(ALIGN as u64));
            }
            at = next;
        }
        Ok(())
    }

    fn read(&self, place: u64, target: &mut [u8]) -> Result<(), MediaError> {
        read_ring(self.medium, self.capacity, Lsn(place), target)
    }

    /// The next place that is not in a hole of the file.
    fn beyond_hole(&self, place: u64) -> u64 {
        let inside = place % self.capacity;
        let next = self.medium.next_data(LOG_DATA + inside).map_or(self.capacity, |next| next - LOG_DATA);
        place.saturating_add(next.min(self.capacity) / ALIGN as u64 * ALIGN as u64 - inside)
    }

    /// The trailer of what looks like a record of `len` bytes, if it is one of that length.
    fn trailer(&self, place: u64, len: u64, head: &[u8]) -> Result<Option<Trailer>, MediaError> {
        let (header, _) = RecordHeader::ref_from_prefix(head).expect("a plausible record has a header");
        let mut bytes = [0; size_of::<Trailer>()];
        self.read(place + len - bytes.len() as u64, &mut bytes)?;
        let trailer = Trailer::read_from_bytes(&bytes).expect("the size is right");
        Ok((trailer.units == header.units).then_some(trailer))
    }

    /// Whether the checksum in its header is that of what looks like a record of `len` bytes.
    fn is_valid(&mut self, place: u64, len: u64, head: &[u8]) -> Result<bool, MediaError> {
        let (header, _) = RecordHeader::ref_from_prefix(head).expect("a plausible record has a header");
        Ok(self.sum(place + 4..place + len)? == header.crc.get())
    }

    /// The checksum of what lies between two places.
    fn sum(&mut self, range: Range<u64>) -> Result<u32, MediaError> {
        let len = range.end - range.start;
        self.summed += len;
        if self.summed <= 2 * self.capacity {
            return self.sum_from(0, range);
        }
        if self.sums.is_none() {
            self.sums = Some(self.make_sums()?);
        }
        let (low, high) = (self.sum_until(range.start)?, self.sum_until(range.end)?);
        Ok(high ^ crc32c::crc32c_combine(low, 0, len as usize))
    }

    /// The checksum of what lies between the beginning and a place, from the sums.
    fn sum_until(&self, place: u64) -> Result<u32, MediaError> {
        let sums = self.sums.as_ref().expect("they were made before");
        let block = (place - self.range.start) / sums.block;
        self.sum_from(sums.before[block as usize], self.range.start + block * sums.block..place)
    }

    fn sum_from(&self, mut sum: u32, range: Range<u64>) -> Result<u32, MediaError> {
        let mut bytes = vec![0; STEP.min(range.end - range.start) as usize];
        for at in range.clone().step_by(STEP as usize) {
            let part = &mut bytes[..STEP.min(range.end - at) as usize];
            self.read(at, part)?;
            sum = crc32c::crc32c_append(sum, part);
        }
        Ok(sum)
    }

    fn make_sums(&self) -> Result<Sums, MediaError> {
        let Range { start, end } = self.range;
        let block = (end - start).div_ceil(BLOCKS).next_multiple_of(512).max(512);
        let mut before = vec![0];
        for at in (start..end).step_by(block as usize) {
            let last = *before.last().expect("it is never empty");
            before.push(self.sum_from(last, at..end.min(at + block))?);
        }
        Ok(Sums { block, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::LOG_BYTES_MIN;
    use crate::log::{create, read_status};
    use crate::record::{Kind, RecordPosition, encode, push_range};
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn log(capacity: u64) -> (tempfile::TempDir, Arc<dyn Medium>) {
        let dir = tempfile::tempdir().unwrap();
        let medium = Files.create(&dir.path().join("log")).unwrap();
        create(&*medium, [7; 16], capacity, 1).unwrap();
        (dir, medium)
    }

    fn record(lsn: u64, forced: u64, len: usize) -> Vec<u8> {
        let (mut body, mut out) = (Vec::new(), Vec::new());
        push_range(&mut body, crate::SegmentId(1), 0, &vec![3; len]);
        let place = RecordPosition { lsn: Lsn(lsn), forced: Lsn(forced), incarnation: 1, time: 0 };
        encode(&mut out, Kind::Commit, place, &[], &body);
        out
    }

    /// Half of the places look like records of half the ring, which would be read as many times.
    #[test]
    fn a_ring_full_of_what_looks_like_records_is_searched_in_linear_time() {
        const RING: u64 = 4 << 20;
        let (_dir, medium) = log(RING);
        let medium = Counting { medium, read: AtomicU64::new(0) };
        let mut ring = vec![0; RING as usize];
        // Each begins a record of half the ring, whose trailer is what another has in place of a time.
        let units = (RING / 2 / 8) as u32;
        for place in (0..RING as usize).step_by(32) {
            let head = [0, 1, units, 1, place as u32, 0, units, 0].map(u32::to_le_bytes).concat();
            ring[place..place + 32].copy_from_slice(&head);
        }
        medium.write_at(&ring, LOG_DATA).unwrap();
        let found = forced_behind(&medium, RING, Lsn(0)..Lsn(RING), 1).unwrap();
        assert_eq!(found, None);
        let read = medium.read.load(Ordering::Relaxed);
        assert!(read < 16 * RING, "{read} bytes");
        // With the sums, too, a record is found that is one.
        let good = record(RING - 4096, RING - 8192, 1000);
        medium.write_at(&good, LOG_DATA + RING - 4096).unwrap();
        let found = forced_behind(&medium, RING, Lsn(0)..Lsn(RING), 1).unwrap();
        assert_eq!(found, Some(Lsn(RING - 8192)));
    }

    /// Counts the bytes that are read.
    #[derive(Debug)]
    struct Counting {
        medium: Arc<dyn Medium>,
        read: AtomicU64,
    }

    // SAFETY: everything is passed on.
    unsafe impl Medium for Counting {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            self.medium.read_at(buffer, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.medium.write_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.medium.sync()
        }
        fn len(&self) -> io::Result<u64> {
            self.medium.len()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.medium.set_len(len)
        }
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.medium.descriptor()
        }
        fn path(&self) -> &Path {
            self.medium.path()
        }
    }

    #[test]
    fn sums_of_blocks_give_the_sum_of_any_stretch() {
        let (_dir, medium) = log(LOG_BYTES_MIN);
        let ring: Vec<u8> = (0..LOG_BYTES_MIN).map(|i| (i * i % 253) as u8).collect();
        medium.write_at(&ring, LOG_DATA).unwrap();
        let mut search = Search::new(&*medium, LOG_BYTES_MIN, 1000..2 * LOG_BYTES_MIN);
        let twice = [&ring[..], &ring[..]].concat();
        for (from, to) in [(1004, 1004), (1004, 1512), (1512, 70_000), (65_000, 131_072), (1008, 131_072)] {
            let direct = crc32c::crc32c(&twice[from as usize..to as usize]);
            search.summed = 0;
            assert_eq!(search.sum(from..to).unwrap(), direct);
            search.summed = u64::MAX / 2;
            assert_eq!(search.sum(from..to).unwrap(), direct, "{from}..{to}");
        }
    }

    #[test]
    fn what_is_left_of_the_past_is_found_where_it_wraps_too() {
        let (_dir, medium) = log(LOG_BYTES_MIN);
        let status = read_status(&*medium, None).unwrap();
        let mut expected = Vec::new();
        for (lsn, len) in [
            (3 * LOG_BYTES_MIN - 64, 500),
            (2 * LOG_BYTES_MIN + 1000, 80),
            (2 * LOG_BYTES_MIN + 9000, 30_000),
        ] {
            let bytes = record(lsn, lsn, len);
            let at = (lsn % LOG_BYTES_MIN) as usize;
            let (first, second) = bytes.split_at(bytes.len().min(LOG_BYTES_MIN as usize - at));
            medium.write_at(first, LOG_DATA + at as u64).unwrap();
            medium.write_at(second, LOG_DATA).unwrap();
            expected.push((Lsn(lsn), bytes.len() as u64));
        }
        let mut found = Vec::new();
        scan_ring(&*medium, &status, |record| found.push((record.lsn, record.len()))).unwrap();
        found.sort_unstable_by_key(|(lsn, _)| std::cmp::Reverse(*lsn));
        assert_eq!(found, [expected[0], expected[2], expected[1]]);
    }
}
