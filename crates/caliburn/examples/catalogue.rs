//! A catalogue of files: names, sizes, times and content hashes of a directory tree, which is what RVM was made
//! for (Coda's servers keep their meta-data so). One transaction for each directory: killed at any moment, it
//! goes on where it was.
//!
//! `cargo run --release -p caliburn --example catalogue -- STORE DIR`

use caliburn::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What is known of a file.
#[derive(Recoverable, Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct File {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Of its content (FNV-1a).
    pub hash: u64,
}

/// Directories by their paths, each with its files by their names.
#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Catalogue {
    directories: PBTreeMap<PString, PBTreeMap<PString, File>>,
    /// Files that were read, ever: those that did not change are not read again.
    pub read: u64,
}

fn look(path: &Path, known: Option<&File>) -> io::Result<(File, bool)> {
    let about = fs::metadata(path)?;
    let since = about.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
    match known {
        Some(known) if (known.size, known.modified) == (about.len(), since) => Ok((*known, false)),
        _ => {
            let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
            let hash = fs::read(path)?.iter().fold(0xCBF2_9CE4_8422_2325, step);
            Ok((File { size: about.len(), modified: since, hash }, true))
        }
    }
}

/// Brings the catalogue up to date with the tree below a directory.
pub fn scan(catalogue: &Objects<Catalogue>, top: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (mut left, mut seen) = (vec![top.to_owned()], Vec::new());
    while let Some(directory) = left.pop() {
        let path = directory.to_string_lossy().into_owned();
        let mut files = BTreeMap::new();
        let mut read = 0;
        for entry in fs::read_dir(&directory)? {
            let (entry, name) =
                entry.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))?;
            let kind = fs::symlink_metadata(&entry)?;
            if kind.is_dir() {
                left.push(entry);
            } else if kind.is_file() {
                let view = catalogue.read();
                let known = view.directories.get(path.as_str()).and_then(|files| files.get(name.as_str()));
                let (file, was_read) = look(&entry, known)?;
                read += u64::from(was_read);
                files.insert(name, file);
            }
        }
        catalogue.update(|mut catalogue| {
            let mut catalogue = catalogue.fields();
            let mut known = catalogue.directories.entry(path.as_str()).or_default();
            known.retain(|name, _| files.contains_key(name.as_str()));
            known.extend(files);
            *catalogue.read += read;
        })?;
        seen.push(path);
    }
    // Directories that are gone.
    let below = |path: &PString| Path::new(path.as_str()).starts_with(top);
    Ok(catalogue.update(|mut catalogue| {
        catalogue
            .fields()
            .directories
            .retain(|path, _| !below(path) || seen.iter().any(|seen| *path == *seen));
    })?)
}

/// All files, by their paths.
pub fn files(catalogue: &Objects<Catalogue>) -> BTreeMap<PathBuf, File> {
    let view = catalogue.read();
    let of = |(directory, files): (&PString, &PBTreeMap<PString, File>)| {
        let join =
            |(name, file): (&PString, &File)| (Path::new(directory.as_str()).join(name.as_str()), *file);
        files.iter().map(join).collect::<Vec<_>>()
    };
    view.directories.iter().flat_map(of).collect()
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (store, top) = arguments.next().zip(arguments.next()).ok_or("usage: catalogue STORE DIR")?;
    let catalogue = Objects::<Catalogue>::create(store)?;
    let before = catalogue.read().read;
    scan(&catalogue, Path::new(&top))?;
    let read = catalogue.read().read - before;
    let files = files(&catalogue);
    println!(
        "{} files, {} bytes; {read} read",
        files.len(),
        files.values().map(|file| file.size).sum::<u64>()
    );
    Ok(())
}
