//! The file `restoring`: whose files are in a directory in which a store is being restored, so that another attempt
//! removes these and nothing else.
//!
//! ```text
//!   restoring: identity          the directory is empty
//!   restoring: names             before the files are made that have them
//!   segments, log, catalog       complete; nobody has opened it for writing
//!   the store is checked         if that is asked for
//!   no more restoring            a store like any other
//! ```
//!
//! Killed anywhere before the last step, the same command begins from the first. The catalog goes before any other
//! file, and only if it has the identity that the attempt has drawn. Whoever opens the store for writing removes
//! `restoring` durably before anything else, so that no store that was used is taken for an attempt.

use super::catalog::Catalog;
use super::directory::{CATALOG, LOCK, LOG, SHADOW, STAGE, UNDO};
use super::error::OpenError;
use super::generations::GENERATIONS;
use caliburn_log::format;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Replaced};
use caliburn_os::simulated::{planted, unless};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// While a store is being restored.
const RESTORING: &str = "restoring";
/// What it is written to first.
const STAGED: &str = "restoring.new";
/// What it begins with.
const TEXT: &[u8] = b"A Caliburn store is being restored in this directory.\n";
/// Before the identity; no path begins so.
const IDENTITY: &[u8] = b"id:";

/// What an attempt to restore a store makes.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    /// The identity of the store. None in a file of an earlier version.
    store: Option<Id>,
    /// Names of the segments in the directory.
    pub segments: Vec<String>,
    /// Files outside of it.
    pub outside: Vec<PathBuf>,
}

impl Attempt {
    fn encode(&self) -> Vec<u8> {
        let mut text = TEXT.to_vec();
        let mut put = |parts: &[&[u8]]| {
            parts.iter().for_each(|part| text.extend_from_slice(part));
            text.push(0);
        };
        self.store.iter().for_each(|store| put(&[IDENTITY, format::hex(store).as_bytes()]));
        self.segments.iter().for_each(|name| put(&[name.as_bytes()]));
        self.outside.iter().for_each(|path| put(&[path.as_os_str().as_bytes()]));
        text
    }

    fn decode(text: &[u8]) -> Option<Attempt> {
        let mut attempt = Attempt::default();
        for part in text.strip_prefix(TEXT)?.split(|byte| *byte == 0).filter(|part| !part.is_empty()) {
            let path = Path::new(OsStr::from_bytes(part));
            match (part.strip_prefix(IDENTITY), path.is_absolute()) {
                (Some(hex), _) => attempt.store = Some(format::unhex(std::str::from_utf8(hex).ok()?)?),
                (None, true) => attempt.outside.push(path.to_owned()),
                (None, false) => attempt.segments.push(String::from_utf8(part.to_vec()).ok()?),
            }
        }
        Some(attempt)
    }

    /// Whether it has made a file of that name in the directory.
    fn made(&self, name: &OsStr) -> bool {
        let fixed = [LOG, STAGE, UNDO, SHADOW, GENERATIONS, "catalog.new", STAGED];
        let ours = if planted("leftovers-of-redo-alone") { &fixed[..2] } else { &fixed };
        if ours.iter().any(|ours| name == *ours) {
            return true;
        }
        let segment = |end: &[u8]| name.as_bytes().strip_suffix(end);
        let stem = segment(b".segment").or_else(|| segment(b".sums"));
        // An earlier version did not say which.
        stem.is_some_and(|stem| {
            self.store.is_none() || self.segments.iter().any(|name| name.as_bytes() == stem)
        })
    }

    /// Says durably what is about to be made.
    pub fn note(&self, media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(RESTORING);
        match media.replace(&path, &self.encode()).map_err(OpenError::io("write", &path))? {
            Replaced::Durably => Ok(()),
            Replaced::Perhaps(error) => Err(OpenError::io("force the name of", &path)(error)),
        }
    }

    /// Takes an empty directory, or one in which restoring a store did not come to its end: what there was of it
    /// goes.
    pub fn begin(media: &dyn Media, dir: &Path, store: Id) -> Result<Attempt, OpenError> {
        let before = Attempt::left(media, dir)?;
        let attempt = Attempt { store: Some(store), ..Attempt::default() };
        before.iter().try_for_each(|before| before.remove(media, dir))?;
        attempt.note(media, dir)?;
        Ok(attempt)
    }

    /// The attempt that was made in a directory, which has nothing else. None in an empty one.
    fn left(media: &dyn Media, dir: &Path) -> Result<Option<Attempt>, OpenError> {
        let refused = || OpenError::Exists { path: dir.to_owned() };
        let read = |name| {
            let path = dir.join(name);
            media.exists(&path).then(|| media.read(&path).map_err(OpenError::io("read", &path))).transpose()
        };
        let names: Vec<OsString> = media.list(dir).map_err(OpenError::io("list directory", dir))?;
        let mut others = names.iter().filter(|name| *name != LOCK && *name != RESTORING);
        let Some(text) = read(RESTORING)? else {
            // Killed as it began: perhaps the first of it, perhaps nothing of it, is there.
            let staged = read(STAGED)?.unwrap_or_default();
            let ours = staged.iter().zip(TEXT).all(|(byte, ours)| *byte == 0 || byte == ours);
            let begun = unless("beginning-taken-for-foreign", ours);
            return match others.all(|name| name == STAGED && begun) {
                true => Ok(Some(Attempt::default()).filter(|_| !names.is_empty())),
                false => Err(refused()),
            };
        };
        let attempt = Attempt::decode(&text).ok_or_else(refused)?;
        let complete = media.exists(&dir.join(CATALOG));
        if complete && !attempt.has_catalog(media, dir)
            || !others.all(|name| name == CATALOG || attempt.made(name))
        {
            return Err(refused());
        }
        Ok(Some(attempt))
    }

    /// Whether the catalog is that of the store that it was making.
    fn has_catalog(&self, media: &dyn Media, dir: &Path) -> bool {
        let store = media.read(&dir.join(CATALOG)).ok().and_then(|bytes| Catalog::decode(&bytes).ok());
        store.is_some_and(|catalog| Some(catalog.store) == self.store)
    }

    /// Removes what it has made, but for the file that says so.
    fn remove(&self, media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
        let remove = |path: &Path| media.remove(path).map_err(OpenError::io("remove", path));
        let force = |path: &Path| media.sync_directory(path).map_err(OpenError::io("force directory", path));
        // A directory that came from elsewhere names any file: the caller's options must list those outside. All are
        // looked at before anything is removed.
        for outside in &self.outside {
            if planted("attempt-believed") {
                media.list_outside(outside);
            }
            if media.exists(outside) {
                media.open(outside, false).map_err(OpenError::io("remove", outside))?;
            }
        }
        let catalog = dir.join(CATALOG);
        if media.exists(&catalog) {
            remove(&catalog)?;
            force(dir)?;
        }
        for outside in &self.outside {
            if media.exists(outside) {
                remove(outside)?;
                outside.parent().map_or(Ok(()), force)?;
            }
        }
        let names = media.list(dir).map_err(OpenError::io("list directory", dir))?;
        names.iter().filter(|name| self.made(name)).try_for_each(|name| remove(&dir.join(name)))?;
        // They are gone before the next attempt's list is there, which does not have them.
        force(dir)
    }
}

/// The store is complete: it is not to be taken for an unfinished one. Opening for writing does it again, and is
/// refused where that fails.
pub(crate) fn end(media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(RESTORING);
    // A user's file of that name stays.
    let ours = media.exists(&path) && media.read(&path).is_ok_and(|text| text.starts_with(TEXT));
    if ours && media.exists(&dir.join(CATALOG)) && !planted("restored-for-ever") {
        media.remove(&path).map_err(OpenError::io("remove", &path))?;
        media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read() {
        let attempt = Attempt {
            store: Some([0xA5; 16]),
            segments: vec!["data".into(), "id".into()],
            outside: vec!["/some where".into()],
        };
        let read = Attempt::decode(&attempt.encode()).unwrap();
        assert_eq!(
            (read.store, &read.segments, &read.outside),
            (attempt.store, &attempt.segments, &attempt.outside)
        );
        let earlier = Attempt::decode(&[TEXT, b"/a\0"].concat()).unwrap();
        assert_eq!((earlier.store, earlier.outside), (None, vec![PathBuf::from("/a")]));
        assert!(Attempt::decode(b"something else").is_none());
        assert!(read.made(OsStr::new("data.sums")) && !read.made(OsStr::new("other.segment")));
    }
}
