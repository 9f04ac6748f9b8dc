//! The dumps of a store that others can be laid over: a small file in its directory, to which each dump adds
//! itself.
//!
//! A unit that was not written since the base ended is not in a dump that is laid over it. So the base must be of
//! this store's own past: of a store that was brought back from a copy, the dumps that were made since the copy
//! are not, though their places in the log may be. It has no marks of them.

use caliburn_log::dump::Base;
use caliburn_log::format::{self, DumpMark, Lsn, MARKS, MARKS_MAGIC, Marks};
use caliburn_log::media_error::MediaError;
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::{Media, Replaced};
use caliburn_os::simulated::even_if;
use std::io;
use std::path::Path;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Its name.
const FILE: &str = "dumped";
/// Locked by who changes it.
const LOCK: &str = "dumping";

/// The newest first. What is damaged, or not there, has none.
fn read(media: &dyn Media, dir: &Path, store: &Id) -> Vec<DumpMark> {
    let path = dir.join(FILE);
    let bytes = if media.exists(&path) { media.read(&path).unwrap_or_default() } else { Vec::new() };
    let sound = format::unseal(&bytes, MARKS_MAGIC, "list of dumps", Some(store)).is_ok();
    let marks = Marks::read_from_bytes(&bytes).ok().filter(|_| sound);
    marks.map_or(Vec::new(), |marks| marks.dumps.into_iter().filter(|mark| mark.id != [0; 16]).collect())
}

/// Whether a dump can be laid over that one.
pub(super) fn has(media: &dyn Media, dir: &Path, store: &Id, base: Base) -> bool {
    let is_marked = read(media, dir, store).iter().any(|mark| (mark.id, Lsn(mark.lsn.get())) == base);
    even_if("any-base-taken", is_marked)
}

/// Forgets dumps that end behind the end of the log: they are not of this past, though its log will come there.
pub(in crate::policy::redo) fn forget_beyond(
    media: &dyn Media,
    dir: &Path,
    store: &Id,
    end: Lsn,
) -> Result<(), MediaError> {
    let mut dumps = read(media, dir, store);
    let count = dumps.len();
    dumps.retain(|mark| even_if("later-marks-kept", mark.lsn.get() <= end.0));
    if dumps.len() == count { Ok(()) } else { write(media, dir, *store, dumps) }
}

/// Keeps other dumps away that are just adding themselves.
fn locked(media: &dyn Media, dir: &Path) -> io::Result<Option<Lock>> {
    let path = dir.join(LOCK);
    for _ in 0..100 {
        match super::lock(media, &path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                caliburn_os::sync::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
    super::lock(media, &path)
}

/// Adds a dump.
pub(super) fn add(media: &dyn Media, dir: &Path, store: Id, (id, lsn): Base) -> Result<(), MediaError> {
    let path = dir.join(FILE);
    let fail = |e| MediaError::of_name("write", path.clone(), e);
    let _lock = locked(media, dir).map_err(fail)?;
    let mut dumps = read(media, dir, &store);
    dumps.insert(0, DumpMark { id, lsn: lsn.0.into() });
    write(media, dir, store, dumps)
}

fn write(media: &dyn Media, dir: &Path, store: Id, mut dumps: Vec<DumpMark>) -> Result<(), MediaError> {
    let path = dir.join(FILE);
    let fail = |e| MediaError::of_name("write", path.clone(), e);
    dumps.resize(MARKS, DumpMark::new_zeroed());
    let dumps = dumps.try_into().expect("the length is right");
    let mut bytes = Marks { dumps, ..Marks::new_zeroed() }.as_bytes().to_vec();
    format::seal(&mut bytes, MARKS_MAGIC, store);
    match media.replace(&path, &bytes).map_err(fail)? {
        Replaced::Durably => Ok(()),
        Replaced::Perhaps(error) => Err(fail(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use caliburn_os::files::Files;

    const STORE: Id = [7; 16];

    #[test]
    fn dumps_come_back_at_every_corner_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut ids = [[0; 16], [0; 16], [0xFF; 16], [0x80; 16]];
        (ids[0][0], ids[1][15]) = (1, 1);
        let corners = ids.into_iter().flat_map(|id| [0, 1, u64::MAX].map(|lsn| (id, Lsn(lsn))));
        let corners: Vec<Base> = corners.collect();
        for base in &corners {
            add(&Files, dir.path(), STORE, *base).unwrap();
        }
        assert!(corners.iter().all(|base| has(&Files, dir.path(), &STORE, *base)));
        assert!(!has(&Files, dir.path(), &[8; 16], corners[0]), "another store's");
        // Nothing is a dump that there is no mark of.
        assert!(!has(&Files, dir.path(), &STORE, ([0; 16], Lsn(0))));
        forget_beyond(&Files, dir.path(), &STORE, Lsn(1)).unwrap();
        for base in &corners {
            assert_eq!(has(&Files, dir.path(), &STORE, *base), base.1 <= Lsn(1));
        }
        let numbered = |number: u8| DumpMark { id: [number; 16], lsn: u64::from(number).into() };
        write(&Files, dir.path(), STORE, (1..=MARKS as u8).map(numbered).collect()).unwrap();
        add(&Files, dir.path(), STORE, corners[0]).unwrap();
        let left: Vec<Id> = read(&Files, dir.path(), &STORE).iter().map(|mark| mark.id).collect();
        let expected = (1..MARKS as u8).map(|number| numbered(number).id);
        assert_eq!(left, [corners[0].0].into_iter().chain(expected).collect::<Vec<_>>());
    }
}
