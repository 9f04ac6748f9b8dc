//! The archive: the log in files, one behind the other, and how they are made while the store is used.
//!
//! ```text
//!   1 end := the log's end, forced      what is not forced may be taken back, and written otherwise
//!   2 a part: whole records from the hold on, up to the end or the size of a part
//!   3 hand it over                      a file in a directory, durably; or a command that says that it has it
//!   4 move the hold behind it           from now on the space before it may be used again
//! ```
//!
//! A crash after step 3 hands the same records over once more, perhaps in a longer part: parts may overlap.

use super::BackupError;
use super::hold;
use super::live::{Live, Staged};
use crate::storage::catalog::Catalog;
use crate::storage::settings::Settings;
use caliburn_log::archive::{self, Part};
use caliburn_log::format::{self, ArchiveHeader, Defect, Lsn};
use caliburn_log::media_error::MediaError;
use caliburn_log::record::Record;
use caliburn_os::clock::wall_ns;
use caliburn_os::descriptors::{self, above};
use caliburn_os::files::Files;
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::{Media, Replaced};
use caliburn_os::simulated::{even_if, planted};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// In the store's directory: locked by who archives.
const LOCK: &str = "archiving";

/// Where an archive is, and how it is made: [`Archiver`].
#[derive(Debug, Clone)]
pub struct ArchiveOptions {
    target: Target,
    part_bytes: u64,
    age: Duration,
}

#[derive(Debug, Clone)]
enum Target {
    Directory(PathBuf),
    Command { command: String, limit: Duration },
}

impl ArchiveOptions {
    /// Parts become files of a directory, which is made if it is missing.
    pub fn directory(path: impl AsRef<Path>) -> ArchiveOptions {
        ArchiveOptions::to(Target::Directory(path.as_ref().to_owned()))
    }

    /// Parts are handed over to a command, which a shell runs: in it `%p` is the path of the part, and `%f` the
    /// name that it is to have. Exit code 0 says that it is stored durably; after anything else, or when it has
    /// taken longer than `limit` and was killed, it is tried again. It may be given the same name twice.
    pub fn command(command: impl Into<String>, limit: Duration) -> ArchiveOptions {
        ArchiveOptions::to(Target::Command { command: command.into(), limit })
    }

    fn to(target: Target) -> ArchiveOptions {
        ArchiveOptions { target, part_bytes: 16 << 20, age: Duration::from_secs(10) }
    }

    /// A part is made when so many bytes of log have come. Default 16 MiB; never more than a quarter of the log.
    pub fn part_bytes(&mut self, bytes: u64) -> &mut ArchiveOptions {
        self.part_bytes = bytes.max(1);
        self
    }

    /// A part is made when the oldest commit that is not archived is so old. Default 10 s: a machine that is lost
    /// loses what was committed in that time.
    pub fn age(&mut self, age: Duration) -> &mut ArchiveOptions {
        self.age = age;
        self
    }
}

/// A part of the log that was archived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchivePart {
    /// LSN of the first record.
    pub from: u64,
    /// LSN behind the last one.
    pub to: u64,
    /// Time of the first record, nanoseconds since 1970.
    pub first: u64,
    /// Time of the last one.
    pub last: u64,
    /// Its file's name.
    pub name: String,
}

/// Archives the log of a store, in the process that has it open or in another one. One at a time.
#[derive(Debug)]
pub struct Archiver {
    /// There is no other one.
    _lock: Option<Lock>,
    settings: Settings,
    dir: PathBuf,
    options: ArchiveOptions,
    /// Since when there is something that is not archived.
    waiting: Option<Instant>,
}

impl Archiver {
    /// Goes on with the archive of a store, or begins one: from now on the log is kept until it is archived, also
    /// when the store is closed and opened without an archiver. An archive begins where the log ends by then: with
    /// it a dump can be brought further that is made afterwards.
    pub(crate) fn begin(
        settings: &Settings,
        dir: &Path,
        options: &ArchiveOptions,
    ) -> Result<Archiver, BackupError> {
        let live = Live::open(settings, dir, Staged::Later)?;
        let lock = lock(&*live.media, dir)?;
        if let Target::Directory(path) = &options.target {
            make_directory(&*settings.media, path)?;
            refuse_foreign(&*settings.media, path, &live)?;
        }
        let held = hold::read(&*live.media, dir, &live.store, hold::ARCHIVED)?;
        if !held.is_some_and(|held| held.has_begun()) {
            let begin = |lsn, since| hold::write(&*live.media, dir, live.store, lsn, since, hold::ARCHIVED);
            begin(Lsn(0), hold::NOT_BEGUN)?;
            begin(live.end()?, wall_ns())?;
        }
        let (settings, dir, options) = (settings.clone(), dir.to_owned(), options.clone());
        Ok(Archiver { _lock: lock, settings, dir, options, waiting: None })
    }

    /// Archives what is due: at most one part. Call it again at once after one, else some time later.
    ///
    /// # Errors
    /// When the store or the archive cannot be read or written. Nothing is lost: the log is kept, and the next
    /// call tries again.
    pub fn step(&mut self) -> Result<Option<ArchivePart>, BackupError> {
        self.archive(None)
    }

    /// Archives all that is in the log by now: the parts. What was committed in class `Process` is there after the
    /// flush interval, or [`Store::flush`](crate::Store::flush).
    ///
    /// # Errors
    /// As [`Archiver::step`].
    pub fn flush(&mut self) -> Result<Vec<ArchivePart>, BackupError> {
        let end = Live::open(&self.settings, &self.dir, Staged::Later)?.end()?;
        let mut parts = Vec::new();
        while let Some(part) = self.archive(Some(end))? {
            parts.push(part);
        }
        Ok(parts)
    }

    /// Archives a part, if one is due, or there is something before `wanted`.
    fn archive(&mut self, wanted: Option<Lsn>) -> Result<Option<ArchivePart>, BackupError> {
        let live = Live::open(&self.settings, &self.dir, Staged::Later)?;
        let held = hold::read(&*live.media, &self.dir, &live.store, hold::ARCHIVED)?;
        let Some(held) = held else {
            let text = "nobody keeps the log for it any more: begin another archive with another dump";
            let error = io::Error::new(io::ErrorKind::NotFound, text);
            return Err(BackupError::io("go on with the archive of", &self.dir)(error));
        };
        let from = held.lsn;
        let end = live.end()?;
        if end < from {
            return Err(BackupError::TakenBack { path: self.dir.clone(), lsn: end.0, archived: from.0 });
        }
        if end == from || wanted.is_some_and(|wanted| wanted <= from) {
            self.waiting = None;
            return Ok(None);
        }
        let most = self.options.part_bytes.min(live.capacity / 4);
        let since = self.waiting.get_or_insert_with(Instant::now);
        if wanted.is_none() && end.0 - from.0 < most && since.elapsed() < self.options.age {
            return Ok(None);
        }
        // 1
        let end = live.forced_end()?;
        // 2
        let part = part(&live, from, end, most)?;
        let to = part.to();
        let name = archive::name(from, to);
        let move_hold = || {
            Ok::<(), BackupError>(hold::write(
                &*live.media,
                &self.dir,
                live.store,
                to,
                held.since,
                hold::ARCHIVED,
            )?)
        };
        if planted("hold-before-handover") {
            move_hold()?;
        }
        // 3
        // Whatever a record names is in the catalog by now.
        let bytes = part.encode(live.store, &live.catalog()?.1);
        match &self.options.target {
            Target::Directory(path) => put(&*self.settings.media, &path.join(&name), &bytes)?,
            Target::Command { command, limit } => {
                let id = format::hex(&live.media.random_id().map_err(BackupError::io("name", &name))?);
                hand_over(command, *limit, (&name, &id), &bytes)?;
            }
        }
        // 4
        move_hold()?;
        self.waiting = None;
        let (first, last) = part.times();
        Ok(Some(ArchivePart { from: from.0, to: to.0, first, last, name }))
    }

    /// Ends the archive: the log is not kept for it any longer. What was archived stays; to begin again takes
    /// another dump.
    ///
    /// # Errors
    /// When the file that keeps the log could not be removed.
    pub fn stop(self) -> Result<(), BackupError> {
        let live = Live::open(&self.settings, &self.dir, Staged::Later)?;
        Ok(hold::remove(&*live.media, &self.dir)?)
    }
}

/// Keeps other archivers of a store away.
fn lock(media: &dyn Media, dir: &Path) -> Result<Option<Lock>, BackupError> {
    super::lock(media, &dir.join(LOCK)).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => BackupError::BeingArchived { path: dir.to_owned() },
        _ => BackupError::io("lock", dir.join(LOCK))(error),
    })
}

/// Whole records from one position on: some more bytes than asked for, or up to the end.
fn part(live: &Live, from: Lsn, end: Lsn, most: u64) -> Result<Part, BackupError> {
    let mut part = Part::new(from);
    live.records(from, end, |record| {
        part.push(record);
        Ok(part.len() < most)
    })?;
    Ok(part)
}

/// Makes a directory, and those above it, durably.
fn make_directory(media: &dyn Media, path: &Path) -> Result<(), BackupError> {
    let made: Vec<&Path> = path.ancestors().take_while(|above| !media.exists(above)).collect();
    media.create_directory(path).map_err(BackupError::io("make", path))?;
    for above in made.iter().filter_map(|path| path.parent()) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        media.sync_directory(above).map_err(BackupError::io("force directory", above))?;
    }
    Ok(())
}

/// Stores a part in a file, durably.
fn put(media: &dyn Media, path: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    match media.replace(path, bytes).map_err(BackupError::io("write", path))? {
        Replaced::Durably => Ok(()),
        Replaced::Perhaps(error) => Err(BackupError::io("force the name of", path)(error)),
    }
}

/// Has a command store a part.
fn hand_over(
    command: &str,
    limit: Duration,
    (name, id): (&str, &str),
    bytes: &[u8],
) -> Result<(), BackupError> {
    let failed = |why: String| BackupError::Command { name: name.to_owned(), why };
    let fail = |error: io::Error| failed(format!("could not be run: {error}"));
    // Of a name that nobody else has, for nobody else to read.
    let path = std::env::temp_dir().join(format!("caliburn-{id}-{name}"));
    let file = above(|| File::options().write(true).create_new(true).mode(0o600).open(&path));
    let mut file = file.map_err(fail)?;
    let _removed = Removed(&path);
    file.write_all(bytes).map_err(fail)?;
    drop(file);
    let text = command.replace("%p", &quoted(&path.to_string_lossy())).replace("%f", &quoted(name));
    descriptors::occupy();
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(text)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(fail)?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(fail)? {
            Some(status) => break status,
            None if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            None => {
                // All that it has started, too.
                caliburn_os::host::kill_group(child.id());
                let _ = child.wait();
                return Err(failed(format!("took longer than {} s and was killed", limit.as_secs_f64())));
            }
        }
    };
    if even_if("archive-command-believed", status.success()) {
        Ok(())
    } else {
        Err(failed(format!("failed: {status}")))
    }
}

/// As one word of a shell's.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// The parts in a directory, by the positions that their names tell.
pub(super) fn parts(media: &dyn Media, path: &Path) -> Result<Vec<(Lsn, Lsn, PathBuf)>, BackupError> {
    let names = media.list(path).map_err(BackupError::io("list", path))?;
    let positions = |name: &str| {
        let (from, to) = name.strip_suffix(archive::SUFFIX)?.strip_suffix('.')?.split_once('-')?;
        Some((Lsn(from.parse().ok()?), Lsn(to.parse().ok()?)))
    };
    let mut found: Vec<(Lsn, Lsn, PathBuf)> = names
        .iter()
        .filter_map(|name| positions(name.to_str()?).map(|(from, to)| (from, to, path.join(name))))
        .collect();
    // Of those that begin at one position the longest first.
    found.sort_by_key(|(from, to, _)| (*from, std::cmp::Reverse(*to)));
    Ok(found)
}

/// A part of an archive, read and verified.
pub(in crate::policy::redo) struct Read<'a> {
    path: &'a Path,
    store: Id,
    from: Lsn,
    /// It has all segments that the records name.
    pub catalog: Catalog,
    records: &'a [u8],
    /// Bytes in front of the records.
    before: usize,
}

impl Read<'_> {
    /// Refuses it if it is another store's.
    pub fn refuse_another(&self, store: Id) -> Result<(), BackupError> {
        refuse_another(self.path, self.store, store)
    }

    /// Calls `each` with its records, until it has had enough.
    pub fn records(
        &self,
        each: impl FnMut(&Record<'_>) -> Result<bool, BackupError>,
    ) -> Result<(), BackupError> {
        match archive::read(self.records, self.from, each)? {
            Ok(_) => Ok(()),
            Err(at) => {
                let defect = Defect::Value("no valid record stands here".into());
                let offset = (self.before + at) as u64;
                Err(BackupError::Archive { path: self.path.to_owned(), offset, defect })
            }
        }
    }
}

/// Reads a part.
pub(super) fn read_part(
    media: &dyn Media,
    (named, path): (Range<Lsn>, &Path),
    act: &mut dyn FnMut(&Read<'_>) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let bytes = load(media, path)?;
    let bad = |(offset, defect)| BackupError::Archive { path: path.to_owned(), offset, defect };
    let archive::Parts { header, catalog, records } = archive::split(&bytes).map_err(bad)?;
    let (store, from) = (header.preamble.store, Lsn(header.from.get()));
    if named != (from..Lsn(header.to.get())) {
        let text = format!("it has the log from LSN {from} to {}, and its name says otherwise", header.to);
        return Err(bad((0, Defect::Value(text))));
    }
    let catalog = Catalog::decode(catalog).map_err(bad)?;
    act(&Read { path, store, from, catalog, records, before: bytes.len() - records.len() })
}

/// Reads all parts of an archive, in their order.
pub(in crate::policy::redo) fn each_part(
    media: &dyn Media,
    path: &Path,
    act: &mut dyn FnMut(&Read<'_>) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    parts(media, path)?.iter().try_for_each(|(from, to, path)| read_part(media, (*from..*to, path), act))
}

/// What an archive has, by the headers of its parts: in their order, which may overlap. Where one begins behind
/// the end of those before it, something is missing.
///
/// # Errors
/// When the directory or a part cannot be read.
pub fn archive_parts(path: impl AsRef<Path>) -> Result<Vec<ArchivePart>, BackupError> {
    let described = |(_, _, path): &(Lsn, Lsn, PathBuf)| {
        let header = header(&Files, path)?;
        Ok(ArchivePart {
            from: header.from.get(),
            to: header.to.get(),
            first: header.first.get(),
            last: header.last.get(),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        })
    };
    parts(&Files, path.as_ref())?.iter().map(described).collect()
}

/// The bytes of a part.
fn load(media: &dyn Media, path: &Path) -> Result<Vec<u8>, BackupError> {
    let medium = media.open(path, false).map_err(BackupError::io("open", path))?;
    let len = medium.len().map_err(|e| MediaError::new("measure", &*medium, 0, e))?;
    let mut bytes = Vec::new();
    let no_memory = |_| MediaError::new("get memory for", &*medium, 0, io::ErrorKind::OutOfMemory.into());
    bytes.try_reserve_exact(len as usize).map_err(no_memory)?;
    bytes.resize(len as usize, 0);
    medium.read_at(&mut bytes, 0).map_err(|e| MediaError::new("read", &*medium, 0, e))?;
    Ok(bytes)
}

/// The header of a part.
fn header(media: &dyn Media, path: &Path) -> Result<ArchiveHeader, BackupError> {
    let medium = media.open(path, false).map_err(BackupError::io("open", path))?;
    let mut bytes = [0; archive::HEADER];
    let cut = |defect| BackupError::Archive { path: path.to_owned(), offset: 0, defect };
    match medium.read_at(&mut bytes, 0) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(cut(Defect::Value("it was cut off".into())));
        }
        other => other.map_err(|e| MediaError::new("read", &*medium, 0, e))?,
    }
    archive::header(&bytes).map_err(cut)
}

/// Refuses a directory in which another store's log is archived.
fn refuse_foreign(media: &dyn Media, path: &Path, live: &Live) -> Result<(), BackupError> {
    let Some((_, _, path)) = parts(media, path)?.pop() else { return Ok(()) };
    refuse_another(&path, header(media, &path)?.preamble.store, live.store)
}

/// Refuses a part of another store's log.
fn refuse_another(path: &Path, found: Id, expected: Id) -> Result<(), BackupError> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (format::hex(&found), format::hex(&expected));
    Err(BackupError::Foreign { path: path.to_owned(), found, expected })
}
