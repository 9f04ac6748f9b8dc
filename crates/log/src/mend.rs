//! What one copy of a log lacks, from the other one: records, whose checksums tell whether they are there.

use crate::format::{LOG_DATA, Lsn, Status};
use crate::media_error::MediaError;
use crate::ring::{STEP, read_ring, write_ring};
use crate::window::Window;
use caliburn_os::medium::{Medium, Pair};
use caliburn_os::simulated::unless;
use std::io;

/// What is read of a copy at once where it may lack something.
const LITTLE: u64 = 512;

/// What two copies of a log lack of each other, from the head on, they get, not forced: how many records each. Where
/// both have one, of different openings, the later one was written over the other. What cannot be read is lacked.
/// An error: which copy can't be written, and why.
pub fn mend(copies: [&dyn Medium; 2], status: &Status) -> Result<[u64; 2], (usize, MediaError)> {
    let (head, capacity) = (Lsn(status.head.get()), status.capacity.get());
    let mut windows = copies.map(|medium| Window::new(medium, capacity, head, capacity));
    // How much is read of each at a time: little where it lags, or cannot be read.
    let mut steps = [STEP; 2];
    let (mut incarnation, mut mended) = (0, [0; 2]);
    loop {
        let at = windows[0].position();
        let room = (head.0 + capacity - at.0).min(capacity);
        if at.0 >= status.opened.get() {
            incarnation = incarnation.max(status.incarnation.get());
        }
        let mut next = |number: usize| {
            let (window, step) = (&mut windows[number], &mut steps[number]);
            let mut found = window.next(incarnation, capacity, *step, &mut |_| {});
            if found.is_err() {
                // Perhaps of something behind the record.
                window.back_to(at);
                found = window.next(incarnation, capacity, 0, &mut |_| {});
            }
            *step = if matches!(found, Ok(Some(_))) { STEP.min(*step * 2) } else { LITTLE };
            found.ok().flatten().map(|(incarnation, _)| incarnation)
        };
        let found = [next(0), next(1)];
        let Some(latest) = found.into_iter().flatten().max() else { return Ok(mended) };
        let lacks = |number: &usize| match found[*number] {
            Some(earlier) => unless("earlier-opening-counts", earlier != latest),
            None => true,
        };
        for lacks in (0..2).filter(lacks) {
            let target = copies[lacks];
            let fail = |error| (lacks, error);
            // It is there: it was read just now.
            let record = record_at(copies[1 - lacks], capacity, at, room, latest).unwrap_or_default();
            write_ring(target, capacity, at, &record).map_err(fail)?;
            windows[lacks].back_to(at);
            let written =
                windows[lacks].next(latest, capacity, record.len() as u64, &mut |_| {}).map_err(fail)?;
            if written.is_none() || windows[0].position() != windows[1].position() {
                let text = "a record that was written is not what is read";
                let error = io::Error::new(io::ErrorKind::InvalidData, text);
                return Err(fail(MediaError::new("mend the log", target, LOG_DATA + at.0 % capacity, error)));
            }
            mended[lacks] += 1;
        }
        incarnation = latest;
    }
}

/// Of two copies that are in use: gives one the record that it lacks and the other has. Whether there was one.
pub(crate) fn mend_one(pair: &dyn Pair, capacity: u64, at: Lsn, most: u64) -> bool {
    let Some([first, second]) = pair.in_use().filter(|_| unless("lie-not-mended", true)) else {
        return false;
    };
    let of = |medium| record_at(medium, capacity, at, most, 0);
    let (number, done) = match (of(first), of(second)) {
        (None, Some(record)) => (0, write_ring(first, capacity, at, &record)),
        (Some(record), None) => (1, write_ring(second, capacity, at, &record)),
        _ => return false,
    };
    let target = [first, second][number];
    match done.map_err(|error| io::Error::other(error.to_string())).and_then(|()| target.sync()) {
        Ok(()) => {
            pair.mended(number);
            true
        }
        // The other one has it.
        Err(error) => pair.lose(number, error).is_ok(),
    }
}

/// The bytes of the valid record at a position, if there is one that ends before `most`.
fn record_at(medium: &dyn Medium, capacity: u64, at: Lsn, most: u64, incarnation: u32) -> Option<Vec<u8>> {
    let mut len = 0;
    let mut window = Window::new(medium, capacity, at, most);
    let found = window.next(incarnation, most, 0, &mut |record| len = record.len()).ok()?;
    found?;
    let mut bytes = vec![0; len as usize];
    read_ring(medium, capacity, at, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::LOG_BYTES_MIN;
    use crate::log::{create, read_status};
    use crate::record::{Kind, RecordPosition, encode, push_range};
    use crate::scan::follow;
    use caliburn_os::duplex::{Duplex, Event};
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    const CAPACITY: u64 = LOG_BYTES_MIN;

    fn copies() -> (tempfile::TempDir, [Arc<dyn Medium>; 2]) {
        let dir = tempfile::tempdir().unwrap();
        let copies = ["a", "b"].map(|name| Files.create(&dir.path().join(name)).unwrap());
        copies.iter().for_each(|copy| create(&**copy, [7; 16], CAPACITY, 1).unwrap());
        (dir, copies)
    }

    fn record(lsn: u64, incarnation: u32, len: usize) -> Vec<u8> {
        let (mut body, mut out) = (Vec::new(), Vec::new());
        push_range(&mut body, crate::SegmentId(1), 0, &vec![incarnation as u8; len]);
        let place = RecordPosition { lsn: Lsn(lsn), forced: Lsn(0), incarnation, time: 0 };
        encode(&mut out, Kind::Commit, place, &[], &body);
        out
    }

    fn put(copy: &Arc<dyn Medium>, at: u64, record: &[u8]) {
        write_ring(&**copy, CAPACITY, Lsn(at), record).unwrap();
    }

    fn spoil(copy: &Arc<dyn Medium>, at: u64) {
        copy.write_at(&[9], LOG_DATA + at).unwrap();
    }

    /// The incarnations of the records that a copy has.
    fn has(copy: &dyn Medium) -> Vec<u32> {
        let mut found = Vec::new();
        follow(copy, CAPACITY, Lsn(0)..Lsn(CAPACITY), |record| {
            found.push(record.incarnation);
            true
        })
        .unwrap();
        found
    }

    #[test]
    fn each_gets_what_it_lacks_and_what_is_later() {
        let (_dir, copies) = copies();
        let [a, b] = &copies;
        let status = read_status(&**a, None).unwrap();
        let (one, len) = (record(0, 1, 100), record(0, 1, 100).len() as u64);
        let mut at = 0;
        for (in_a, in_b) in [(true, true), (true, false), (false, true)] {
            let one = record(at, 1, 100);
            [(a, in_a), (b, in_b)].iter().filter(|(_, is)| *is).for_each(|(copy, _)| put(copy, at, &one));
            at += len;
        }
        // What a killed process had not finished was written over, in one of them; the records after that are
        // others.
        put(a, at, &record(at, 1, 100));
        put(a, at + len, &record(at + len, 1, 100));
        let mut later = at;
        for size in [300, 20] {
            let record = record(later, 2, size);
            put(b, later, &record);
            later += record.len() as u64;
        }
        assert_eq!(one.len() as u64, len);
        let mended = mend([&**a, &**b], &status).unwrap();
        assert_eq!((mended, has(&**a), has(&**b)), ([3, 1], vec![1, 1, 1, 2, 2], vec![1, 1, 1, 2, 2]));
        assert_eq!(mend([&**a, &**b], &status).unwrap(), [0, 0]);
    }

    #[test]
    fn what_is_read_while_it_is_used_is_mended() {
        let (_dir, copies) = copies();
        let len = record(0, 1, 100).len() as u64;
        for at in (0..9 * len).step_by(len as usize) {
            copies.iter().for_each(|copy| put(copy, at, &record(at, 1, 100)));
        }
        [1, 2, 5].iter().for_each(|number| spoil(&copies[0], number * len + 40));
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = told.clone();
        let tell = Box::new(move |event| {
            if let Event::Mended(number) = event {
                teller.lock().unwrap().push(number);
            }
            Ok(())
        });
        let [a, b] = copies.clone();
        let duplex = Duplex::new([a, b], tell);
        assert_eq!(has(&duplex).len(), 9);
        assert_eq!((has(&*copies[0]).len(), &told.lock().unwrap()[..]), (9, &[0, 0, 0][..]));
        // What both lack is the end, and is tried once.
        copies.iter().for_each(|copy| spoil(copy, 4 * len + 40));
        assert_eq!(has(&duplex).len(), 4);
    }

    /// A medium whose writes fail from one on.
    #[derive(Debug)]
    struct Fails(Arc<dyn Medium>, AtomicU64);

    // SAFETY: everything mapped is passed on from a file's medium.
    unsafe impl Medium for Fails {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            self.0.read_at(buffer, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            let left = self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            left.map_err(|_| io::Error::from_raw_os_error(5))?;
            self.0.write_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.descriptor()
        }
        fn path(&self) -> &std::path::Path {
            self.0.path()
        }
    }

    #[test]
    fn it_is_said_which_cannot_be_written() {
        let (_dir, [a, b]) = copies();
        let status = read_status(&*a, None).unwrap();
        let len = record(0, 1, 100).len() as u64;
        (0..4).for_each(|number| put(&b, number * len, &record(number * len, 1, 100)));
        let fails = Fails(a, AtomicU64::new(2));
        let (number, error) = mend([&fails, &*b], &status).unwrap_err();
        assert_eq!((number, has(&fails).len()), (0, 2));
        assert!(error.to_string().contains("write the log"), "{error}");
    }
}
