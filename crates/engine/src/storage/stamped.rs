//! A segment's file says in which generation of the store it was last written, and what stands where a segment's
//! files are to be made.

use crate::storage::catalog::Entry;
use crate::storage::error::SegmentError;
use crate::storage::generations::{self, Generations};
use crate::storage::opener::{Opener, io_error};
use crate::storage::segment_file::SegmentFile;
use caliburn_log::SegmentId;
use caliburn_log::format::{
    self, BLOCK, Defect, Newer, SEGMENT_DATA, SEGMENT_MAGIC, SEGMENT_STAMP, STAMP_STEP, STAMPS,
    SegmentHeader, Stamp,
};
use caliburn_log::media_error::MediaError;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{even_if, instead, planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The two stamps of a file, of a segment or its sums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamps {
    /// What the file says; 0: nothing.
    pub there: u64,
    /// Where that does not stand.
    other: usize,
    /// What stands there is torn: `there` was durable when that was written.
    torn: bool,
    /// So new it is on its medium at least.
    pub durable: u64,
}

impl Stamps {
    /// As [`Stamp::newer`] has them; `durable` is what is known of the medium.
    pub fn found(said: Newer, durable: u64) -> Stamps {
        Stamps { there: said.generation, other: said.other, torn: said.torn, durable }
    }

    /// Of a new file that was forced, and says it at the first place.
    pub fn made(generation: u64) -> Stamps {
        Stamps { there: generation, other: 1, torn: false, durable: generation }
    }

    /// Whether the file must say it, and durably: the page cache may show what a force that failed has dropped.
    pub fn lack(&self, generation: u64) -> bool {
        generation > instead("stamp-believed-unforced", self.durable, self.there)
    }

    /// Has the file say it; the first place is at `first`. What is torn, or else what may not be durable, is written
    /// over: the other one must be whole whatever becomes of this.
    pub fn put(
        &mut self,
        medium: &dyn Medium,
        first: u64,
        (store, id): (Id, SegmentId),
        generation: u64,
    ) -> io::Result<()> {
        let unforced = even_if("torn-stamp-left", !self.torn) && self.there > self.durable;
        let unforced = unless("durable-stamp-written-over", unforced);
        let at = if unforced { 1 - self.other } else { self.other };
        medium.write_at(&Stamp::encode(store, id, generation), first + (at * STAMP_STEP) as u64)?;
        (self.there, self.other, self.torn) = (generation, 1 - at, false);
        Ok(())
    }
}

/// Of which generation a segment's file is.
#[derive(Debug)]
pub(super) struct Stamped {
    generations: Arc<Generations>,
    id: SegmentId,
    /// What the file says.
    there: AtomicU64,
    stamps: Mutex<Stamps>,
    /// What its slot says.
    confirmed: AtomicU64,
    /// Something was written to it since the store was opened.
    used: AtomicBool,
}

impl Stamped {
    pub fn new(generations: &Arc<Generations>, id: SegmentId, stamps: Stamps) -> Stamped {
        let confirmed = AtomicU64::new(generations.least(generations::slot_of(id)).0);
        let (there, stamps) = (AtomicU64::new(stamps.there), Mutex::new(stamps));
        let (generations, used) = (generations.clone(), AtomicBool::new(false));
        Stamped { generations, id, there, stamps, confirmed, used }
    }

    pub fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }

    /// Before something is written to the file in this generation, it says so. Whether it did not before.
    pub fn begin_use(&self, file: &SegmentFile) -> io::Result<bool> {
        let present = self.generations.present();
        self.used.store(true, Ordering::Release);
        if self.there() >= present || planted("segment-not-stamped") {
            return Ok(false);
        }
        self.put(&*file.hold()?, present)?;
        Ok(true)
    }

    /// Whether the file was written to since the store was opened: not if it was made and nothing else.
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire) && self.there() == self.generations.present()
    }

    fn lock(&self) -> MutexGuard<'_, Stamps> {
        self.stamps.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has the file say that generation, unless it does so durably.
    pub fn put(&self, medium: &dyn Medium, generation: u64) -> io::Result<()> {
        let mut stamps = self.lock();
        let generation = generation.max(stamps.there);
        if stamps.lack(generation) {
            stamps.put(medium, SEGMENT_STAMP, (self.generations.store(), self.id), generation)?;
            self.there.store(generation, Ordering::Release);
        }
        Ok(())
    }

    /// Has the file say that it is of the generation that begins next: recovery has written to it.
    pub fn begin_next(&self, medium: &dyn Medium) -> io::Result<()> {
        if planted("recovered-unstamped") {
            return Ok(());
        }
        self.put(medium, self.generations.present() + 1)
    }

    /// Whether its slot says less than the file.
    pub fn is_ahead(&self) -> bool {
        self.there() > self.confirmed.load(Ordering::Acquire)
    }

    /// Has the slot say that the file is of that generation. `lasting`: the file was forced.
    pub fn confirm(&self, generation: u64, lasting: bool) -> Result<(), MediaError> {
        if lasting {
            let mut stamps = self.lock();
            stamps.durable = stamps.durable.max(generation);
        }
        if generation > self.confirmed.load(Ordering::Acquire) {
            self.generations.confirm(generations::slot_of(self.id), generation, lasting)?;
            self.confirmed.store(generation, Ordering::Release);
        }
        Ok(())
    }
}

/// Bytes that tell what a file is: the header, and the stamp.
const HEADER: usize = SEGMENT_STAMP as usize + STAMPS;

/// The first block of a segment's file.
pub(super) fn header_of(store: &Id, id: SegmentId) -> Vec<u8> {
    let header = SegmentHeader { id: id.0.into(), data: SEGMENT_DATA.into(), ..SegmentHeader::new_zeroed() };
    let mut block = vec![0; BLOCK];
    block[..size_of::<SegmentHeader>()].copy_from_slice(header.as_bytes());
    format::seal(&mut block, SEGMENT_MAGIC, *store);
    block
}

/// Whether a file begins with the header of the segment that the catalog names; the generation that it says.
pub(super) fn check_header(
    medium: &dyn Medium,
    held: u64,
    store: &Id,
    entry: &Entry,
) -> Result<Newer, Result<(u64, Defect), MediaError>> {
    let mut block = vec![0; HEADER];
    if held < HEADER as u64 {
        return Err(Ok((held, Defect::Value("the file ends within its header: it was cut off".into()))));
    }
    let read = medium.read_at(&mut block, 0);
    read.map_err(|e| Err(MediaError::new("read segment header", medium, 0, e)))?;
    let sealed = format::unseal(&block[..BLOCK], SEGMENT_MAGIC, "segment", Some(store));
    sealed.map_err(|defect| Ok((0, defect)))?;
    let (header, _) = SegmentHeader::read_from_prefix(&block).expect("a block holds a header");
    if header.id != entry.id.0 || header.data != entry.data {
        let text = format!("it is segment {} and the catalog says {}", header.id, entry.id.0);
        return Err(Ok((0, Defect::Value(text))));
    }
    let stamps = block.last_chunk().expect("it ends with stamps");
    Stamp::newer(stamps, store, entry.id).map_err(|defect| Ok((SEGMENT_STAMP, defect)))
}

/// Removes what an attempt to make a segment has left, and notes that files of that name may be there from now on.
/// Any other file stays, and is in the way.
pub(crate) fn make_way(opener: Opener<'_>, name: &str, files: &[&PathBuf]) -> Result<(), SegmentError> {
    let media = &**opener.media;
    let left =
        even_if("unknown-files-removed", opener.generations.is_some_and(|noted| noted.is_making(name)));
    if let (false, Some(path)) = (left, files.iter().find(|path| media.exists(path))) {
        let text = "there is a file of that name, which the catalog does not know, and which may be needed: move it away";
        return Err(io_error("create segment", path)(io::Error::new(io::ErrorKind::AlreadyExists, text)));
    }
    if let Some(noted) = opener.generations {
        noted.begin_making(name)?;
    }
    files.iter().for_each(|path| drop(media.remove(path)));
    Ok(())
}

/// A file or device that holds something of Caliburn's is not taken for a new segment or log.
pub(crate) fn refuse_foreign(medium: &dyn Medium) -> Result<(), SegmentError> {
    let mut magic = [0; 8];
    if medium.len().is_ok_and(|len| len >= 8) {
        medium.read_at(&mut magic, 0).map_err(|e| MediaError::new("read", medium, 0, e))?;
    }
    if magic.starts_with(b"CALI-") {
        let text = "it already holds part of a store; clear its first 4096 bytes to use it again".to_owned();
        return Err(SegmentError::Bad {
            path: medium.path().to_owned(),
            offset: 0,
            defect: Defect::Value(text),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;

    #[test]
    fn a_stamp_goes_over_a_torn_one_or_else_over_what_may_not_be_durable() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Files.create(&dir.path().join("a")).unwrap();
        let (store, id) = ([7; 16], SegmentId(3));
        let [older, newest, next] = [4, 5, 6].map(|generation| Stamp::encode(store, id, generation));
        for (torn, durable, written) in [(false, 5, 1), (false, 4, 0), (true, 5, 1), (true, 4, 1)] {
            let mut there = [0; STAMPS];
            there[..newest.len()].copy_from_slice(&newest);
            there[STAMP_STEP..].copy_from_slice(&older);
            there[STAMP_STEP] ^= u8::from(torn);
            medium.write_at(&there, SEGMENT_STAMP).unwrap();
            let mut stamps = Stamps::found(Stamp::newer(&there, &store, id).unwrap(), durable);
            stamps.put(&*medium, SEGMENT_STAMP, (store, id), 6).unwrap();
            there[written * STAMP_STEP..][..next.len()].copy_from_slice(&next);
            let mut found = [0; STAMPS];
            medium.read_at(&mut found, SEGMENT_STAMP).unwrap();
            assert!(found == there, "torn: {torn}, durable: {durable}");
        }
    }

    #[test]
    fn headers_come_back_at_every_corner_and_are_of_one_segment() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Files.create(&dir.path().join("a")).unwrap();
        let numbers = [0, 1, u32::MAX - 1, u32::MAX];
        for (store, id) in [[0; 16], [0xFF; 16]].into_iter().flat_map(|store| numbers.map(|id| (store, id))) {
            medium.set_len(HEADER as u64).unwrap();
            medium.write_at(&header_of(&store, SegmentId(id)), 0).unwrap();
            let check = |store: &Id, id, data, held| {
                let (id, name, path) = (SegmentId(id), "a".to_owned(), "a".into());
                let entry = Entry { id, name, path, len: 1, address: 0, data };
                check_header(&*medium, held, store, &entry).is_ok()
            };
            let held = HEADER as u64;
            for other in numbers {
                assert_eq!(check(&store, other, SEGMENT_DATA, held), id == other);
            }
            assert!(!check(&[7; 16], id, SEGMENT_DATA, held) && !check(&store, id, SEGMENT_DATA, held - 1));
            assert!(![0, u64::MAX].iter().any(|data| check(&store, id, *data, held)));
        }
    }
}
