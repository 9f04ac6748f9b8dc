//! Which media have the log, when there are two, or were: a small file in the store's directory that says so in
//! place of the catalog. It changes when a medium has failed, which can be at any moment.

use crate::storage::directory::{LOG, OTHER_LOG};
use crate::storage::error::OpenError;
use caliburn_log::format::{self, COPIES_MAGIC, CopiesHeader, CopyEntry, Defect};
use caliburn_log::media_error::MediaError;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium, Replaced};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Its name.
pub(crate) const COPIES: &str = "log.copies";

/// One of the media.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogCopy {
    /// Relative to the store unless absolute.
    pub path: PathBuf,
    /// See [`Medium::place`]: a copy of the store has other files. Zeros: not known.
    pub place: [u64; 2],
    /// It is not one of them any more, since it has failed. What it holds may be written over.
    pub lost: bool,
}

impl LogCopy {
    pub fn of(path: &Path, medium: &dyn Medium) -> LogCopy {
        LogCopy { place: medium.place().unwrap_or_default(), ..LogCopy::named(path) }
    }

    pub fn named(path: &Path) -> LogCopy {
        LogCopy { path: path.to_owned(), place: [0; 2], lost: false }
    }

    pub fn lost(self) -> LogCopy {
        LogCopy { lost: true, ..self }
    }
}

fn encode(store: Id, copies: &[LogCopy]) -> Vec<u8> {
    let header = CopiesHeader { count: (copies.len() as u32).into(), ..CopiesHeader::new_zeroed() };
    let mut out = header.as_bytes().to_vec();
    for copy in copies {
        let path = copy.path.as_os_str().as_bytes();
        let entry = CopyEntry {
            place: copy.place.map(Into::into),
            path: (path.len() as u32).into(),
            lost: u32::from(copy.lost).into(),
        };
        out.extend_from_slice(entry.as_bytes());
        out.extend_from_slice(path);
    }
    format::seal(&mut out, COPIES_MAGIC, store);
    out
}

fn decode(bytes: &[u8], store: &Id) -> Result<Vec<LogCopy>, Defect> {
    format::unseal(bytes, COPIES_MAGIC, "list of the log's copies", Some(store))?;
    let short = || Defect::Value(format!("the file ends after {} bytes: it was cut off", bytes.len()));
    let (header, mut rest) = CopiesHeader::read_from_prefix(bytes).map_err(|_| short())?;
    if !(1..=2).contains(&header.count.get()) {
        return Err(Defect::Value(format!("it names {} copies", header.count)));
    }
    let mut copies = Vec::new();
    for _ in 0..header.count.get() {
        let (entry, behind) = CopyEntry::read_from_prefix(rest).map_err(|_| short())?;
        let (path, behind) = behind.split_at_checked(entry.path.get() as usize).ok_or_else(short)?;
        let path = PathBuf::from(OsStr::from_bytes(path));
        if !path.is_absolute() && ![LOG, OTHER_LOG].map(Path::new).contains(&&*path) {
            let text = format!(
                "a copy of the log is said to be {path:?}, neither in the store nor an absolute path"
            );
            return Err(Defect::Value(text));
        }
        let lost = entry.lost.get() != 0;
        copies.push(LogCopy { path, place: entry.place.map(|number| number.get()), lost });
        rest = behind;
    }
    if copies.iter().all(|copy| copy.lost) {
        return Err(Defect::Value("all copies that it names are lost".into()));
    }
    Ok(copies)
}

/// The media, the one that is read first, and one that was lost; none if the catalog says where the log is.
pub(crate) fn read(media: &dyn Media, dir: &Path, store: &Id) -> Result<Vec<LogCopy>, OpenError> {
    let path = dir.join(COPIES);
    if !media.exists(&path) {
        return Ok(Vec::new());
    }
    let bytes = match media.read(&path) {
        // It was taken away meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(OpenError::io("read", &path))?,
    };
    decode(&bytes, store).map_err(|defect| OpenError::Catalog { path, offset: 0, defect })
}

/// Says durably which they are from now on.
pub(crate) fn write(media: &dyn Media, dir: &Path, store: Id, copies: &[LogCopy]) -> Result<(), MediaError> {
    let path = dir.join(COPIES);
    let fail = |e| MediaError::of_name("write", path.clone(), e);
    match media.replace(&path, &encode(store, copies)).map_err(fail)? {
        Replaced::Durably => Ok(()),
        Replaced::Perhaps(error) => Err(fail(error)),
    }
}

/// The catalog says it again.
pub(crate) fn remove(media: &dyn Media, dir: &Path) -> Result<(), MediaError> {
    let path = dir.join(COPIES);
    let removed = media.remove(&path).and_then(|()| media.sync_directory(dir));
    removed.map_err(|e| MediaError::of_name("remove", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let copy = |path: &str, place| LogCopy { path: path.into(), place, lost: false };
        let both = [copy("log", [1, 2]), copy("/elsewhere/log", [3, u64::MAX])];
        let one_lost = [both[1].clone(), both[0].clone().lost()];
        for copies in [&both[..], &both[1..], &one_lost[..]] {
            let bytes = encode([7; 16], copies);
            assert_eq!(decode(&bytes, &[7; 16]).unwrap(), copies);
            assert!(decode(&bytes, &[8; 16]).is_err(), "another store's");
            for len in 0..bytes.len() {
                assert!(decode(&bytes[..len], &[7; 16]).is_err());
            }
        }
        assert!(decode(&encode([7; 16], &[]), &[7; 16]).is_err());
        assert!(decode(&encode([7; 16], &one_lost[1..]), &[7; 16]).is_err());
        assert!(decode(&encode([7; 16], &[copy("../log", [0; 2])]), &[7; 16]).is_err());
        // Its checksum is right, and it says more than it has.
        let mut bytes = encode([7; 16], &both);
        let at = size_of::<CopiesHeader>() + 16;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        format::seal(&mut bytes, COPIES_MAGIC, [7; 16]);
        assert!(decode(&bytes, &[7; 16]).unwrap_err().to_string().contains("cut off"));
    }
}
