//! Directories of dumps: whole ones, and those that are laid over others.

use caliburn::{Dumped, Until};
use caliburn_tools::Failure;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Ends the name of a dump in a directory of dumps.
pub const SUFFIX: &str = "dump";

/// A directory for what is restored only to be looked at; gone when this is dropped.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new(above: &Path) -> Scratch {
        Scratch { path: above.join(format!(".verifying-{}", std::process::id())) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A dump in a file.
pub type Found = (PathBuf, Dumped);

/// The dumps at a path, by when they were made. What is none, whatever its name is, is told, and passed over.
pub fn all(path: &Path) -> Result<Vec<Found>, Failure> {
    let paths = match path.is_dir() {
        false => vec![path.to_owned()],
        true => {
            let names = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let paths = names.map(|name| Ok(name?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
            let ours = |path: &PathBuf| {
                path.extension().is_some_and(|end| end == SUFFIX)
                    && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
            };
            paths.into_iter().filter(ours).collect()
        }
    };
    let mut found = Vec::new();
    let one = !path.is_dir();
    for path in paths {
        match Dumped::of(&path) {
            Ok(dumped) => found.push((path, dumped)),
            Err(error) if one => return Err(format!("{}: {error}", path.display()).into()),
            Err(error) => eprintln!("{}: {error}; it is passed over", path.display()),
        }
    }
    // Positions in the log are of one store: that of one which was restored begins anew.
    found.sort_by_key(|(_, dumped)| (dumped.time, dumped.lsn));
    Ok(found)
}

/// A dump after those that it is laid over, the whole one first; or the identity of the one that is missing.
fn chain<'a>(last: &'a Found, all: &'a [Found]) -> Result<Vec<&'a Found>, String> {
    let mut chain = vec![last];
    while let Some(base) = &chain[0].1.base {
        let found =
            all.iter().find(|(_, dumped)| dumped.id == *base && !chain.iter().any(|d| d.1.id == *base));
        chain.insert(0, found.ok_or_else(|| base.clone())?);
    }
    Ok(chain)
}

/// The newest dump that is not later than what is wanted, after those that it is laid over.
pub fn chosen(path: &Path, until: Until) -> Result<Vec<Found>, Failure> {
    let early = |dumped: &Dumped| match until {
        Until::Lsn(wanted) => dumped.lsn <= wanted,
        Until::Time(wanted) => (if dumped.last == 0 { dumped.time } else { dumped.last }) <= wanted,
        _ => true,
    };
    // Those that a single dump is laid over are beside it.
    let beside = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let all = match path.is_dir() {
        true => all(path)?,
        false => {
            let dumped = Dumped::of(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let others = if dumped.base.is_none() { Vec::new() } else { all(beside)? };
            let one = (path.to_owned(), dumped);
            let missing = |base| missing(&one, base);
            let chain = chain(&one, &others).map_err(missing)?;
            return Ok(chain.into_iter().cloned().collect());
        }
    };
    if let Some((_, last)) = all.last()
        && all.iter().any(|(_, dumped)| dumped.store != last.store)
    {
        eprintln!(
            "{}: it has dumps of several stores; the last one is of store {}",
            path.display(),
            last.store
        );
    }
    for found in all.iter().rev().filter(|(_, dumped)| early(dumped)) {
        match chain(found, &all) {
            Ok(chain) => return Ok(chain.into_iter().cloned().collect()),
            Err(base) => eprintln!("{}; an earlier one is taken", missing(found, base)),
        }
    }
    Err(match all.first() {
        Some((_, first)) if !early(first) => format!(
            "{}: the first dump is of LSN {}, {}: later than what is wanted",
            path.display(),
            first.lsn,
            crate::dump::at(first.time)
        ),
        Some(_) => format!("{}: no dump is whole, nor has all that it is laid over", path.display()),
        None => format!("{}: there is no dump in it", path.display()),
    }
    .into())
}

/// The first dump, which is whole.
pub fn first(path: &Path) -> Result<Vec<Found>, Failure> {
    if !path.is_dir() {
        return chosen(path, Until::Latest);
    }
    let first = all(path)?.into_iter().find(|(_, dumped)| dumped.base.is_none());
    Ok(vec![first.ok_or_else(|| format!("{}: there is no whole dump in it", path.display()))?])
}

fn missing((path, _): &Found, base: String) -> String {
    format!("{}: dump {base}, over which it is laid, is missing", path.display())
}

/// The dumps of a chain, one behind the other.
pub fn open(chain: &[Found]) -> Result<Box<dyn Read>, Failure> {
    let mut all: Box<dyn Read> = Box::new(std::io::empty());
    for (path, _) in chain {
        let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        all = Box::new(all.chain(BufReader::with_capacity(1 << 20, file)));
    }
    Ok(all)
}
