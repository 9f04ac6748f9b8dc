//! Backing storage of recoverable data: what the engine keeps of an open segment.

use crate::storage::Storage;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::error::SegmentError;
use crate::storage::generations;
use crate::storage::opener::{Opener, io_error, sums_path};
use crate::storage::segment_file::SegmentFile;
pub(crate) use crate::storage::stamped::refuse_foreign;
use crate::storage::stamped::{Stamped, Stamps, check_header, header_of, make_way};
use crate::storage::sums::{Sum, Sums};
use caliburn_log::SegmentId;
use caliburn_log::format::{BLOCK, Defect, Lsn, Newer, SEGMENT_DATA, SEGMENT_STAMP, Stamp};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Granularity of a segment's length, so that a store moves between machines of all page sizes.
pub(crate) const LEN_UNIT: u64 = 64 * 1024;
/// Granularity of an external one's.
const SECTOR: u64 = 512;
/// Longest segment: the address space is the limit long before the format is.
const LEN_MAX: u64 = i64::MAX as u64 - SEGMENT_DATA - LEN_UNIT;

/// What the engine keeps of an open segment.
#[derive(Debug)]
pub(crate) struct SegmentState {
    pub id: SegmentId,
    pub name: String,
    pub file: SegmentFile,
    pub len: AtomicU64,
    /// Where its data begin in the medium; 0 if there is nothing else, not even sums: it is external.
    pub data: u64,
    /// `None` where stores to mapped memory reach the segment unseen: no checksum can follow them.
    pub sums: Option<Mutex<Sums>>,
    /// Of a file outside of the directory; given up with it.
    pub claim: Mutex<Option<Lock>>,
    forcing: Forcing,
    /// Where the store has generations, and a file says of which this one is.
    stamped: Option<Stamped>,
}

/// Refuses a medium that survives too little for the store.
pub(crate) type Admit<'a> = &'a dyn Fn(&dyn Medium) -> Result<(), SegmentError>;

pub(crate) fn check_name(name: &str) -> Result<(), SegmentError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let fine = (1..=255).contains(&name.len()) && name.chars().all(good) && !name.starts_with('.');
    if fine { Ok(()) } else { Err(SegmentError::Name { name: name.to_owned() }) }
}

pub(crate) fn round_len(name: &str, len: u64) -> Result<u64, SegmentError> {
    let bad = |why| Err(SegmentError::Length { name: name.to_owned(), len, why });
    match len {
        0 => bad("a segment has at least one byte"),
        len if len > LEN_MAX => bad("larger than any file or address space can be"),
        len => Ok(len.next_multiple_of(LEN_UNIT)),
    }
}

/// Whether a segment can be so long.
pub(crate) fn is_len(len: u64, external: bool) -> bool {
    let unit = if external { SECTOR } else { LEN_UNIT };
    (1..=LEN_MAX.next_multiple_of(LEN_UNIT)).contains(&len) && (len.is_multiple_of(unit) || len == LEN_MAX)
}

/// Whole sectors of a file that is an external segment.
fn external_len(medium: &dyn Medium, name: &str) -> Result<u64, SegmentError> {
    let held = medium.len().map_err(|e| MediaError::new("measure segment", medium, 0, e))?;
    match held / SECTOR * SECTOR {
        0 => {
            let why = "a segment's file has at least one sector of 512 bytes";
            Err(SegmentError::Length { name: name.to_owned(), len: held, why })
        }
        len => Ok(len.min(LEN_MAX)),
    }
}

pub(crate) fn default_path(name: &str) -> PathBuf {
    PathBuf::from(format!("{name}.segment"))
}

/// Locks a file outside of the store's directory: what is in it is locked with it.
fn claim(medium: &dyn Medium, entry: &Entry, write: bool) -> Result<Option<Lock>, SegmentError> {
    match entry.path.is_absolute() {
        true => medium.claim(!write).map_err(io_error("lock", &entry.path)),
        false => Ok(None),
    }
}

impl SegmentState {
    /// Makes the segment's medium durable, and its sums if it has them; the catalog entry comes after. A medium
    /// that `admit` refuses is left as it is. So is a file of the directory that has the segment's name already,
    /// unless an attempt to make it has left it: nobody knows what it is for.
    pub fn create(
        opener: Opener<'_>,
        store: &Id,
        entry: &Entry,
        sums: bool,
        admit: Admit<'_>,
    ) -> Result<SegmentState, SegmentError> {
        let (media, dir) = (&**opener.media, opener.dir);
        let path = Catalog::resolve(dir, &entry.path);
        let sums_path = sums_path(dir, &entry.name);
        let own = [&sums_path, &path];
        let own = &own[..if entry.path.is_absolute() { 1 } else { 2 }];
        make_way(opener, &entry.name, own)?;
        let made = Self::create_files((opener, store), entry, (&path, sums.then_some(&sums_path)), admit);
        if made.is_err() {
            own.iter().for_each(|path| drop(media.remove(path)));
        }
        made
    }

    fn create_files(
        (opener, store): (Opener<'_>, &Id),
        entry: &Entry,
        (path, sums_path): (&Path, Option<&PathBuf>),
        admit: Admit<'_>,
    ) -> Result<SegmentState, SegmentError> {
        let (media, dir) = (&**opener.media, opener.dir);
        let (medium, made) = match media.create(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (media.open(path, true), false),
            other => (other, true),
        };
        let medium = medium.map_err(io_error("create segment", path))?;
        let fail = |action, offset| {
            let medium = medium.clone();
            move |e| MediaError::new(action, &*medium, offset, e)
        };
        refuse_foreign(&*medium)?;
        admit(&*medium)?;
        let claim = claim(&*medium, entry, true)?;
        medium
            .set_len(SEGMENT_DATA + entry.len)
            .map_err(fail("allocate segment", SEGMENT_DATA + entry.len))?;
        let mut block = header_of(store, entry.id);
        let generation = opener.generations.map_or(0, |generations| generations.present());
        if generation > 0 {
            block.extend_from_slice(&Stamp::encode(*store, entry.id, generation));
        }
        zero_device(&*medium, entry).map_err(fail("clear segment", SEGMENT_DATA))?;
        medium.write_at(&block, 0).map_err(fail("write segment header", 0))?;
        medium.sync().map_err(fail("force segment", 0))?;
        let sums = match sums_path {
            Some(path) => {
                let medium = media.create(path).map_err(io_error("create sums", path))?;
                let made = Sums::create(&*medium, *store, (entry.id, entry.len), generation)?;
                Some(Sums::of(opener.file(&medium), made))
            }
            None => None,
        };
        if let (true, Some(above)) = (made && entry.path.is_absolute(), path.parent()) {
            media.sync_directory(above).map_err(io_error("force directory", above))?;
        }
        if !planted("name-not-forced") {
            media.sync_directory(dir).map_err(io_error("force directory", dir))?;
        }
        let made = SegmentState::of(entry, opener.file(&medium), claim, sums);
        let made = made.stamped(opener, Stamps::made(generation));
        made.confirm(true)?;
        Ok(made)
    }

    /// Takes over a file or device as it is; the catalog entry, whose length is set, comes after. Its name and
    /// length are durable when this returns.
    pub fn adopt(
        storage: &Storage,
        entry: &mut Entry,
        admit: Admit<'_>,
    ) -> Result<SegmentState, SegmentError> {
        let (media, path) = (&*storage.media, &*entry.path);
        let medium = media.open(path, true).map_err(io_error("open segment", path))?;
        refuse_foreign(&*medium)?;
        admit(&*medium)?;
        let claim = claim(&*medium, entry, true)?;
        entry.len = external_len(&*medium, &entry.name)?;
        if !planted("adopted-length-not-forced") {
            medium.sync().map_err(|e| MediaError::new("force segment", &*medium, 0, e))?;
        }
        if let Some(above) = path.parent().filter(|_| unless("adopted-name-not-forced", true)) {
            media.sync_directory(above).map_err(io_error("force directory", above))?;
        }
        Ok(SegmentState::of(entry, storage.opener().file(&medium), claim, None))
    }

    /// Makes the file of an external segment, of zeros.
    pub fn make_external(opener: Opener<'_>, entry: &Entry) -> Result<SegmentState, SegmentError> {
        let path = &entry.path;
        let medium = opener.media.create(path).map_err(io_error("create segment", path))?;
        let claim = claim(&*medium, entry, true)?;
        medium.set_len(entry.len).map_err(|e| MediaError::new("allocate segment", &*medium, entry.len, e))?;
        if let Some(above) = path.parent() {
            opener.media.sync_directory(above).map_err(io_error("force directory", above))?;
        }
        Ok(SegmentState::of(entry, opener.file(&medium), claim, None))
    }

    /// Has the file have room for all of it: where its memory is the file, a store into a hole would end the process
    /// on a full disk (SIGBUS).
    pub fn fill_holes(&self) -> Result<(), SegmentError> {
        let fail =
            |source| SegmentError::Io { action: "allocate", path: self.file.path().to_owned(), source };
        self.file.medium().and_then(|medium| medium.fill_holes()).map_err(fail)
    }

    /// The length that an external segment's file has now.
    pub fn external_len(&self) -> Result<u64, SegmentError> {
        external_len(&*self.file.reach("open segment")?, &self.name)
    }

    /// Takes up a segment of the catalog.
    pub fn open(
        opener: Opener<'_>,
        catalog: &Catalog,
        entry: &Entry,
        sums: bool,
    ) -> Result<SegmentState, SegmentError> {
        let Opener { media, dir, write, claim: claims, .. } = opener;
        let path = Catalog::resolve(dir, &entry.path);
        let bad = |offset, defect| SegmentError::Bad { path: path.clone(), offset, defect };
        // Of others the header tells what they are.
        if entry.is_external() && media.holds(&entry.path) {
            let text = "a file in the store's directory, which is said to be elsewhere".into();
            return Err(bad(0, Defect::Value(text)));
        }
        let medium = media.open(&path, write).map_err(io_error("open segment", &path))?;
        let claim = if claims { claim(&*medium, entry, write)? } else { None };
        let held = medium.len().map_err(|e| MediaError::new("measure segment", &*medium, 0, e))?;
        let said = match entry.is_external() {
            true => Newer::default(),
            false => check_header(&*medium, held, &catalog.store, entry).map_err(|error| match error {
                Ok((offset, defect)) => bad(offset, defect),
                Err(media) => media.into(),
            })?,
        };
        if let Some(generations) = opener.generations.filter(|_| !entry.is_external()) {
            let slot = generations::slot_of(entry.id);
            generations
                .check_slot(slot, said.generation, &path)
                .map_err(|defect| bad(SEGMENT_STAMP, defect))?;
        }
        let wanted = entry.data + entry.len;
        if held < wanted {
            let text = format!("the file is {held} bytes long and must be {wanted}: it was cut off");
            return Err(bad(held, Defect::Value(text)));
        }
        let sums = match sums && !entry.is_external() {
            true => Some(opener.open_sums(&catalog.store, entry)?),
            false => None,
        };
        // The segment is forced first.
        let forced = sums.as_ref().map_or(0, Sums::generation);
        if forced > said.generation && opener.generations.is_some() {
            return Err(bad(SEGMENT_STAMP, Defect::Older { found: said.generation, wanted: forced }));
        }
        let durable = opener.lasting(entry.id).max(instead("sums-not-heeded", forced, 0));
        let segment = SegmentState::of(entry, opener.file(&medium), claim, sums);
        Ok(segment.stamped(opener, Stamps::found(said, durable)))
    }

    fn of(entry: &Entry, file: SegmentFile, claim: Option<Lock>, sums: Option<Sums>) -> SegmentState {
        SegmentState {
            id: entry.id,
            name: entry.name.clone(),
            file,
            len: AtomicU64::new(entry.len),
            data: entry.data,
            claim: Mutex::new(claim),
            sums: sums.map(Mutex::new),
            forcing: Forcing::default(),
            stamped: None,
        }
    }

    /// The same, of a file that says a generation, where the store has them.
    fn stamped(mut self, opener: Opener<'_>, stamps: Stamps) -> SegmentState {
        let generations = opener.generations.filter(|_| opener.write && self.data > 0);
        self.stamped = generations.map(|generations| Stamped::new(generations, self.id, stamps));
        self
    }

    /// Before something is written to it in this generation, its file says so. Whether it did not before.
    pub fn begin_use(&self) -> io::Result<bool> {
        self.stamped.as_ref().map_or(Ok(false), |stamped| stamped.begin_use(&self.file))
    }

    /// When recovery has written to it, and before what it wrote that from is given up: a copy of before is older
    /// from now on. `lasting`: all of it is forced.
    pub fn end_recovery(&self, lasting: bool) -> Result<(), MediaError> {
        if let Some(stamped) = &self.stamped {
            let medium = self.file.reach("open segment")?;
            let fail = |e| MediaError::new("write segment", &*medium, SEGMENT_STAMP, e);
            stamped.begin_next(&*medium).map_err(fail)?;
        }
        if lasting { self.sync() } else { self.confirm(false) }
    }

    /// At an opening: if its slot says less than its file, after a crash or with an older file of slots, the slot
    /// gets what the file says, which is forced first.
    pub fn confirm_found(&self) -> Result<(), MediaError> {
        let ahead = self.stamped.as_ref().is_some_and(Stamped::is_ahead);
        if unless("found-unconfirmed", ahead) { self.sync() } else { Ok(()) }
    }

    /// When the store is closed: if something was written to it since it was opened, its file says, durably, that of
    /// the close. So it differs from copies that were made meanwhile.
    pub fn end_use(&self, closing: u64) -> Result<(), MediaError> {
        let used = self.stamped.as_ref().is_some_and(Stamped::is_used);
        if unless("undo-closed-unforced", used) { self.sync_as(closing) } else { Ok(()) }
    }

    /// What its file says.
    fn generation(&self) -> u64 {
        self.stamped.as_ref().map_or(0, Stamped::there)
    }

    /// Has its slot say what its file says. `lasting`: the file was forced.
    pub fn confirm(&self, lasting: bool) -> Result<(), MediaError> {
        self.confirm_as(self.generation(), lasting)
    }

    fn confirm_as(&self, generation: u64, lasting: bool) -> Result<(), MediaError> {
        self.stamped.as_ref().map_or(Ok(()), |stamped| stamped.confirm(generation, lasting))
    }

    /// Whether its files stay open.
    pub fn is_held(&self) -> bool {
        let sums = |sums: &Mutex<Sums>| sums.lock().expect("no panic under this lock").file.held().is_some();
        self.file.held().is_some() && self.sums.as_ref().is_none_or(sums)
    }

    /// Opens its files until they are put to [rest](SegmentState::rest): before it is mapped, and before a log
    /// that names it is relied on, so that bringing it up to date never meets a shortage of descriptors.
    pub fn hold(&self) -> io::Result<()> {
        self.file.hold()?;
        if let Some(sums) = &self.sums {
            sums.lock().expect("no panic under this lock").file.hold()?;
        }
        Ok(())
    }

    /// Closes its files: nothing of it is mapped, and all that was written to it is forced. A claim stays.
    pub fn rest(&self) {
        self.file.rest();
        if let Some(sums) = &self.sums {
            sums.lock().expect("no panic under this lock").file.rest();
        }
    }

    /// Whether it has checksums.
    pub fn has_sums(&self) -> bool {
        self.sums.is_some()
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// How much of `len` bytes at an offset the segment has: an external one may end within a page.
    fn within(&self, offset: u64, len: usize) -> usize {
        len.min(self.len().saturating_sub(offset) as usize)
    }

    /// Writes whole units of data at an offset of the segment, and notes their sums: they have no changes of the
    /// log from `before` on.
    pub fn write(&self, offset: u64, data: &[u8], before: Lsn) -> Result<(), MediaError> {
        self.put(offset, &data[..self.within(offset, data.len())])?;
        if planted("sum-forgotten") {
            return Ok(());
        }
        self.with_sums(|sums| sums.note(offset, data, before))
    }

    fn put(&self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        let at = self.data + offset;
        let fail = |e| MediaError::of_name("open segment", self.file.path().to_owned(), e);
        self.begin_use().map_err(fail)?;
        let medium = self.file.hold().map_err(fail)?;
        medium.write_at(data, at).map_err(|e| MediaError::new("write segment", &*medium, at, e))
    }

    /// Writes a unit that its sum says was lost. The caller forces it.
    pub fn put_back(&self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.put(offset, data)
    }

    /// Writes again what is there, all of it. The caller has the file open, and forces it.
    pub fn rewrite(&self) -> Result<(), MediaError> {
        let medium = self.file.reach("open segment")?;
        let mut data = vec![0; LEN_UNIT as usize];
        let mut at = self.data;
        // To a hole nothing was ever written.
        let written = |at| instead("holes-written-again", medium.next_data(at), Some(at));
        while let Some(next) = written(at).filter(|next| *next < self.data + self.len()) {
            at = next - (next - self.data) % LEN_UNIT;
            let fail = |e| MediaError::new("write again segment", &*medium, at, e);
            medium.read_at(&mut data, at).and_then(|()| medium.write_at(&data, at)).map_err(fail)?;
            at += LEN_UNIT;
        }
        Ok(())
    }

    /// Writes any bytes. Their sums, if it has any, are the caller's to bring.
    pub fn write_part(&self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.put(offset, data)
    }

    /// What its sums file says of `count` units from unit `first`; none if it has no sums.
    pub fn sums_of(&self, first: u64, count: u64) -> Result<Vec<Sum>, MediaError> {
        let mut found = Vec::new();
        self.with_sums(|sums| {
            found = sums.read(first, count)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Notes the sum of a unit, for [`SegmentState::write_sums`]: at once, if many wait.
    pub fn note_sum(&self, unit: u64, sum: u32) -> Result<(), MediaError> {
        self.with_sums(|sums| sums.note_sum(unit, sum, Lsn(0)))
    }

    /// Writes the sums that were noted, and forces them; the segment may be of a newer generation than they say.
    pub fn write_sums(&self) -> Result<(), MediaError> {
        self.with_sums(|sums| sums.write(0))
    }

    /// Reads data; zeros beyond the segment's end.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), MediaError> {
        let at = self.data + offset;
        let (data, beyond) = data.split_at_mut(self.within(offset, data.len()));
        beyond.fill(0);
        let medium = self.file.reach("open segment")?;
        medium.read_at(data, at).map_err(|e| MediaError::new("read segment", &*medium, at, e))
    }

    /// Whether a force has failed: what was written may not be on the medium, though the system shows it.
    pub fn has_lost(&self) -> bool {
        self.forcing.sound().is_err()
    }

    /// Forces data and sums.
    pub fn sync(&self) -> Result<(), MediaError> {
        self.sync_as(self.generation())
    }

    /// The same; they say that they are of that generation.
    fn sync_as(&self, generation: u64) -> Result<(), MediaError> {
        if planted("segment-not-forced") {
            return self.with_sums(|sums| sums.write(generation));
        }
        let medium = self.file.reach("open segment")?;
        if let Some(stamped) = &self.stamped {
            let fail = |e| MediaError::new("write segment", &*medium, SEGMENT_STAMP, e);
            stamped.put(&*medium, generation).map_err(fail)?;
        }
        self.forcing.sync(&*medium, "force segment", self.data)?;
        self.with_sums(|sums| sums.write(generation))?;
        self.confirm_as(generation, true)
    }

    pub(super) fn with_sums(
        &self,
        act: impl FnOnce(&mut Sums) -> Result<(), MediaError>,
    ) -> Result<(), MediaError> {
        self.sums.as_ref().map_or(Ok(()), |sums| act(&mut sums.lock().expect("no panic under this lock")))
    }

    /// Makes the medium longer and durably so; the catalog says so afterwards.
    pub fn extend(&self, len: u64) -> Result<(), MediaError> {
        let (end, medium) = (self.data + len, self.file.reach("open segment")?);
        let fail = |action| {
            let medium = &*medium;
            move |e| MediaError::new(action, medium, end, e)
        };
        medium.set_len(end).map_err(fail("allocate segment"))?;
        // After a growth that failed the file may look longer than it durably is.
        medium.write_at(&[0; BLOCK], end - BLOCK as u64).map_err(fail("write segment"))?;
        if !planted("growth-not-forced") {
            self.forcing.sync(&*medium, "force segment", end)?;
        }
        self.with_sums(|sums| sums.grow(len))
    }
}

/// A digest of which page caches the segments lie in, if that can be told of all of them, each is open and forced
/// through here alone, and no force of any has failed. Only to be compared with one by the same program.
pub(crate) fn cache_identity(segments: &[Arc<SegmentState>]) -> Option<u64> {
    let mut caches: Vec<(u32, [u64; 3], u64)> = Vec::with_capacity(segments.len());
    for segment in segments {
        if segment.data == 0 || unless("checkpoint-after-a-failed-force", segment.has_lost()) {
            return None;
        }
        // An older copy may lie where the segment lay.
        caches.push((segment.id.0, segment.file.held()?.cache()?, segment.generation()));
    }
    caches.sort_unstable();
    let mut hasher = DefaultHasher::new();
    caches.hash(&mut hasher);
    Some(hasher.finish())
}

/// A new file is all zeros; a device, or a file that was there, is made so.
fn zero_device(medium: &dyn Medium, entry: &Entry) -> io::Result<()> {
    if !entry.path.is_absolute() {
        return Ok(());
    }
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < entry.len {
        let len = (entry.len - at).min(zeros.len() as u64);
        medium.write_at(&zeros[..len as usize], SEGMENT_DATA + at)?;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::segment_file::Descriptors;
    use crate::storage::sums::Verified;
    use caliburn_log::format::SUM_UNIT;
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn holes_take_no_time_and_no_room() {
        const LEN: u64 = 256 << 20;
        const AT: u64 = LEN / 2 + 5 * SUM_UNIT as u64;
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, len: u64| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(len).unwrap();
            path
        };
        let (path, sums) = (
            made("a.segment", SEGMENT_DATA + LEN),
            made("a.sums", crate::storage::sums::file_bytes(LEN, true)),
        );
        let data = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        data.write_all_at(b"said to be zeros", SEGMENT_DATA + AT).unwrap();
        let media: Arc<dyn Media> = Arc::new(Files);
        let opener = Opener {
            media: &media,
            descriptors: &Descriptors::of(&Files),
            dir: dir.path(),
            write: true,
            claim: true,
            generations: None,
        };
        let file = |path: &Path| opener.file(&Files.open(path, true).unwrap());
        let (id, name, path) = (SegmentId(1), "a".to_owned(), path.clone());
        let entry = Entry { id, name, path, len: LEN, address: 0, data: SEGMENT_DATA };
        let said = Verified { store: [0; 16], id, stamped: true, stamps: Stamps::default() };
        let segment = SegmentState::of(&entry, file(&entry.path), None, Some(Sums::of(file(&sums), said)));
        let damaged = segment.damaged_units(|_| false, &|_| Ok(())).unwrap();
        assert_eq!(damaged, [AT / SUM_UNIT as u64]);
        segment.rewrite().unwrap();
        let allocated = data.metadata().unwrap().blocks() * 512;
        assert!(allocated <= 4 * LEN_UNIT, "{allocated} bytes");
        let mut found = vec![0; 16];
        segment.read(AT, &mut found).unwrap();
        assert_eq!(found, b"said to be zeros");
    }
}
