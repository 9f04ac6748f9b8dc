//! What keeps the log until it is archived, or its replica has it: a small file for either in the store's directory,
//! which says how far it is.
//!
//! Invariant: nothing behind the position in the file is overwritten. Truncation knows how far the head may go, then
//! looks at the file, and lets the log go up to the earlier of both; the archiver moves the position only when the
//! archive has what stands before it, durably. An archive begins with a file that keeps all, and then with the end
//! of the log as it is by then: who had looked before that file was there lets nothing go that is later.

use crate::policy::query::Archived;
use caliburn_log::format::{self, HOLD_MAGIC, Hold, LSN_MAX, Lsn};
use caliburn_log::media_error::MediaError;
use caliburn_os::clock::wall_ns;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Replaced};
use std::io;
use std::path::Path;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Its name, for the archive.
pub(in crate::policy::redo) const ARCHIVED: &str = "archived";
/// For the replica.
pub(in crate::policy::redo) const REPLICATED: &str = "replicated";

/// Says of an archive that it has not begun: all is kept, until it is known where it begins.
pub(super) const NOT_BEGUN: u64 = 0;

/// How far a log is archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy::redo) struct Held {
    /// What stands before is in the archive.
    pub lsn: Lsn,
    /// When archiving began, nanoseconds since 1970, or [`NOT_BEGUN`].
    pub since: u64,
    /// When it came to where it is.
    pub moved: u64,
}

impl Held {
    /// Whether it is known where the archive begins.
    pub fn has_begun(&self) -> bool {
        self.since != NOT_BEGUN
    }

    /// From where on the log is kept, of which what stands before `there` is gone. If what is to be archived next
    /// is among that, the archive has a hole, whatever is kept: then nothing is, so that nobody waits for it for
    /// ever.
    pub fn keeps(&self, there: Lsn) -> Lsn {
        match self.has_begun() {
            false => Lsn(0),
            true if self.lsn < there => {
                tracing::warn!(archived = %self.lsn, "what is to be archived next is gone: stop the archive, and begin another one");
                Lsn(u64::MAX)
            }
            true => self.lsn,
        }
    }
}

impl From<Held> for Archived {
    fn from(held: Held) -> Archived {
        Archived { lsn: held.lsn.0, since: held.since, moved: held.moved }
    }
}

/// How far the log of a store is in its archive, or replica, if it is to be.
pub(in crate::policy::redo) fn read(
    media: &dyn Media,
    dir: &Path,
    store: &Id,
    name: &str,
) -> Result<Option<Held>, MediaError> {
    let path = dir.join(name);
    if !media.exists(&path) {
        return Ok(None);
    }
    let fail = |e| MediaError::of_name("read", path.clone(), e);
    let bytes = match media.read(&path) {
        // It was taken away meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(fail)?,
    };
    let bad = |defect: String| {
        let text = format!(
            "{defect}; how far the log is {name} is not known. Move the file away, and begin another archive, or replica, with another dump"
        );
        fail(io::Error::new(io::ErrorKind::InvalidData, text))
    };
    format::unseal(&bytes, HOLD_MAGIC, "mark of an archive", Some(store)).map_err(|d| bad(d.to_string()))?;
    let hold = Hold::read_from_bytes(&bytes).map_err(|_| bad("it has another size".into()))?;
    if hold.lsn.get() > LSN_MAX {
        return Err(bad("it names an impossible position".into()));
    }
    Ok(Some(Held { lsn: Lsn(hold.lsn.get()), since: hold.since.get(), moved: hold.moved.get() }))
}

/// Says durably that what stands before `lsn` is there.
pub(in crate::policy::redo) fn write(
    media: &dyn Media,
    dir: &Path,
    store: Id,
    lsn: Lsn,
    since: u64,
    name: &str,
) -> Result<(), MediaError> {
    let (path, moved) = (dir.join(name), wall_ns());
    let hold = Hold { lsn: lsn.0.into(), since: since.into(), moved: moved.into(), ..Hold::new_zeroed() };
    let mut bytes = hold.as_bytes().to_vec();
    format::seal(&mut bytes, HOLD_MAGIC, store);
    let fail = |e| MediaError::of_name("write", path.clone(), e);
    match media.replace(&path, &bytes).map_err(fail)? {
        Replaced::Durably => Ok(()),
        Replaced::Perhaps(error) => Err(fail(error)),
    }
}

/// The log is not kept any longer.
pub(super) fn remove(media: &dyn Media, dir: &Path) -> Result<(), MediaError> {
    let path = dir.join(ARCHIVED);
    let fail = |e| MediaError::of_name("remove", path.clone(), e);
    if media.exists(&path) {
        media.remove(&path).map_err(fail)?;
        media.sync_directory(dir).map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use caliburn_os::files::Files;

    const STORE: Id = [7; 16];

    #[test]
    fn what_is_held_comes_back_at_every_corner() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&Files, dir.path(), &STORE, ARCHIVED).unwrap(), None);
        for (lsn, since) in
            [0, 1, LSN_MAX].into_iter().flat_map(|lsn| [0, 1, u64::MAX].map(|since| (lsn, since)))
        {
            write(&Files, dir.path(), STORE, Lsn(lsn), since, ARCHIVED).unwrap();
            let held = read(&Files, dir.path(), &STORE, ARCHIVED).unwrap().unwrap();
            assert_eq!((held.lsn, held.since), (Lsn(lsn), since));
            // Of one that has not begun all is kept; of another one what stands behind, or nothing if that is gone.
            let begun = since != NOT_BEGUN;
            let kept = if begun { Lsn(lsn) } else { Lsn(0) };
            assert_eq!((held.has_begun(), held.keeps(Lsn(lsn))), (begun, kept));
            let gone = if begun { Lsn(u64::MAX) } else { Lsn(0) };
            assert_eq!(held.keeps(Lsn(lsn + 1)), gone);
            assert!(read(&Files, dir.path(), &[8; 16], ARCHIVED).is_err(), "another store's");
        }
        // No time of a machine means that it has not begun.
        assert_ne!(wall_ns(), NOT_BEGUN);
        write(&Files, dir.path(), STORE, Lsn(LSN_MAX + 1), 1, ARCHIVED).unwrap();
        assert!(read(&Files, dir.path(), &STORE, ARCHIVED).is_err());
        remove(&Files, dir.path()).unwrap();
        assert_eq!(read(&Files, dir.path(), &STORE, ARCHIVED).unwrap(), None);
    }
}
