//! `recover --salvage`: what can be read of a damaged store, in another one.
//!
//! ```text
//!   1 check           what is damaged, byte for byte
//!   2 read            the store as it is before the damage in its log; or, if it cannot be opened at all, its files
//!   3 tell the log    up to when commits are there, and what stands behind the damage
//!   4 copy            every segment to a new store, which is checked
//! ```
//!
//! The damaged store is only read. Each step says what is lost. The new store has another name until it is complete.

use crate::OneStore;
use crate::restore::checked;
use caliburn::{Class, Filter, Mode, Options, Policy, Problem, Store};
use caliburn_tools::Failure;
use caliburn_tools::text::plain;
use serde_json::json;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a segment's data begin in its file (docs/format.md).
const DATA: u64 = 65536;
const PART: usize = 1 << 20;

/// What a step came to.
struct Step {
    name: &'static str,
    found: String,
    lost: Vec<String>,
}

impl Step {
    fn tell(&self, json: bool) {
        if json {
            println!("{}", json!({"step": self.name, "found": self.found, "lost": self.lost}));
            return;
        }
        println!("{:<8} {}", self.name, plain(&self.found));
        self.lost.iter().for_each(|lost| println!("  LOST   {}", plain(lost)));
    }
}

/// Something that segments are read from.
enum Source {
    Opened(Store),
    Files(Vec<(String, PathBuf, u64)>),
}

/// Makes a new store of what can be read.
pub fn run(arguments: &OneStore, target: &Path) -> Result<ExitCode, Failure> {
    let json = arguments.json;
    if target.exists() {
        return Err(format!("{}: it exists already; name a new directory", target.display()).into());
    }
    let unfinished = unfinished(target)?;
    // 1
    let mut lossless = true;
    let mut tell = |step: Step| {
        lossless &= step.lost.is_empty();
        step.tell(json);
    };
    let at = |p: &Problem| format!("{}, offset {}: {}", p.path.display(), p.offset, p.text);
    tell(match arguments.options().check(&arguments.store) {
        Ok(report) if report.in_use_by.is_some() => return Err(in_use(arguments)),
        Err(caliburn::OpenError::InUse { .. }) => return Err(in_use(arguments)),
        Ok(report) => Step {
            name: "check",
            found: format!("{} segments, {} places damaged", report.segments, report.problems.len()),
            lost: report.problems.iter().map(at).collect(),
        },
        Err(error) => {
            Step { name: "check", found: "it is no store any more".into(), lost: vec![error.to_string()] }
        }
    });
    // 2
    let source = match arguments.options().salvage(true).open(&arguments.store) {
        Ok(store) => {
            let logged = store.policy() == Policy::Redo;
            let what = match logged {
                true => "what was committed behind this",
                false => "it cannot be told whether all of it is whole",
            };
            let mut lost: Vec<String> =
                store.damage().map(|why| format!("{what}: {why}")).into_iter().collect();
            lost.extend(store.prepared().iter().map(|prepared| {
                let id = String::from_utf8_lossy(&prepared.global_id).into_owned();
                format!("prepared transaction {id:?}, undecided: its changes are not in the new store")
            }));
            lost.extend(moved_segments(arguments));
            let found = match (store.damage(), logged) {
                (Some(_), false) => {
                    "the segments as they are, and in them, as far as it can be read, what open transactions had replaced"
                }
                _ => "the store as it is before the damage",
            };
            let found = found.to_owned();
            tell(Step { name: "read", found, lost });
            Source::Opened(store)
        }
        Err(caliburn::OpenError::InUse { .. }) => return Err(in_use(arguments)),
        // Nothing of it is damaged: it was not said what it may name.
        Err(error) if is_unlisted(&error) => return Err(error.into()),
        Err(error) => {
            let files = segment_files(&arguments.store)?;
            if files.is_empty() {
                return Err(
                    format!("{}: there is no segment in it: {error}", arguments.store.display()).into()
                );
            }
            let found = format!("{} segment files, as they are", files.len());
            let lost =
                format!("what is in the log and not in them, since the store cannot be opened: {error}");
            tell(Step { name: "read", found, lost: vec![lost] });
            Source::Files(files)
        }
    };
    // 3
    tell(log(arguments));
    // 4
    tell(copy(&source, &unfinished)?);
    drop(source);
    checked(&unfinished, None)?;
    finish(&unfinished, target).map_err(|e| format!("rename {}: {e}", unfinished.display()))?;
    if !json {
        println!(
            "{}: a sound store of what was read; `caliburn export` writes its typed objects down",
            target.display()
        );
    }
    Ok(if lossless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a new store is called until it is complete.
fn unfinished(target: &Path) -> Result<PathBuf, Failure> {
    let mut name =
        target.file_name().ok_or_else(|| format!("{}: it has no name", target.display()))?.to_owned();
    name.push(".unfinished");
    let path = target.with_file_name(name);
    match path.exists() {
        true => {
            Err(format!("{}: a salvage that did not end left it; remove it first", path.display()).into())
        }
        false => Ok(path),
    }
}

/// Gives it its name, durably.
fn finish(unfinished: &Path, target: &Path) -> io::Result<()> {
    std::fs::rename(unfinished, target)?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn in_use(arguments: &OneStore) -> Failure {
    format!("store {} is in use: what is damaged in it is found by `caliburn check`, and mended by its program (`Store::mend`)", arguments.store.display()).into()
}

/// Whether a file was not opened because it lies outside of the directory and was not listed.
fn is_unlisted(error: &caliburn::OpenError) -> bool {
    match error {
        caliburn::OpenError::Io { source, .. }
        | caliburn::OpenError::Segment(caliburn::SegmentError::Io { source, .. }) => {
            source.kind() == io::ErrorKind::PermissionDenied && source.to_string().contains("outside")
        }
        _ => false,
    }
}

/// Segments that a loader has mapped at an address of their own: the copy has none.
fn moved_segments(arguments: &OneStore) -> Vec<String> {
    let info = match arguments.options().info(&arguments.store) {
        Ok(info) => info,
        Err(error) => return vec![format!("the addresses of segments, if they had any: {error}")],
    };
    let loaded = info.segments.iter().filter(|segment| segment.address != 0);
    let told = |segment: &caliburn::SegmentInfo| {
        format!(
            "the address of segment {:?}, {:#x}: pointers that programs keep in it hold there only",
            segment.name, segment.address
        )
    };
    loaded.map(told).collect()
}

/// The files that are segments by their names, with their lengths.
fn segment_files(store: &Path) -> Result<Vec<(String, PathBuf, u64)>, Failure> {
    let names = std::fs::read_dir(store).map_err(|e| format!("{}: {e}", store.display()))?;
    let mut found = Vec::new();
    for entry in names {
        let path = entry.map_err(|e| format!("{}: {e}", store.display()))?.path();
        if path.extension().is_some_and(|end| end == "segment")
            && let (Some(name), Ok(data)) = (path.file_stem(), path.metadata())
            && data.len() > DATA
        {
            found.push((name.to_string_lossy().into_owned(), path.clone(), data.len() - DATA));
        }
    }
    found.sort();
    Ok(found)
}

/// The policy, by a file that stores of one policy alone have.
fn policy_of(files: &[(String, PathBuf, u64)]) -> Option<Policy> {
    let dir = files.first()?.1.parent()?;
    let has = |(name, _): &(&str, Policy)| dir.join(name).exists();
    let all = [("log", Policy::Redo), ("undo", Policy::Undo), ("shadow", Policy::Shadow)];
    all.into_iter().find(has).map(|(_, policy)| policy)
}

/// Step 3.
fn log(arguments: &OneStore) -> Step {
    let read = || {
        let history = arguments.options().history(&arguments.store)?;
        let live = history.live(&Filter::default(), false).unwrap_or_default();
        let all = history.all(&Filter::default()).unwrap_or_default();
        Ok::<_, caliburn::OpenError>((live, all))
    };
    let (live, all) = match read() {
        Ok(read) => read,
        Err(error) => {
            return Step { name: "log", found: "it tells nothing".into(), lost: vec![error.to_string()] };
        }
    };
    let end = live.last().map(|event| event.lsn + event.log_bytes);
    let found = match (live.first(), live.last()) {
        (Some(first), Some(last)) => format!(
            "{} records from LSN {}, {}, to LSN {}, {}",
            live.len(),
            first.lsn,
            crate::dump::at(first.time),
            last.lsn,
            crate::dump::at(last.time)
        ),
        _ => "no record that the segments lack can be read".to_owned(),
    };
    // What is older was truncated.
    let behind: Vec<_> = all.iter().filter(|event| end.is_some_and(|end| event.lsn >= end)).collect();
    let lost = behind.first().zip(behind.last()).map(|(first, last)| {
        format!(
            "{} records that stand behind the damage, from {} to {}: `caliburn log --all` shows them",
            behind.len(),
            crate::dump::at(first.time),
            crate::dump::at(last.time)
        )
    });
    Step { name: "log", found, lost: lost.into_iter().collect() }
}

/// Step 4.
fn copy(source: &Source, target: &Path) -> Result<Step, Failure> {
    let (policy, unknown) = match source {
        Source::Opened(store) => (store.policy(), None),
        Source::Files(files) => match policy_of(files) {
            Some(policy) => (policy, None),
            None => (Policy::Redo, Some("the policy, if it was not redo: the new store has redo")),
        },
    };
    let new = Options::new().create_new(true).policy(policy).open(target)?;
    let (mut bytes, mut lost, mut segments) = (0, Vec::from_iter(unknown.map(str::to_owned)), 0);
    let mut one = |name: &str, len: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>| {
        segments += 1;
        copy_segment(&new, name, len, read, &mut bytes, &mut lost)
    };
    match source {
        Source::Opened(store) => {
            for segment in store.segments() {
                let region = segment.map_all()?;
                one(segment.name(), segment.len(), &mut |at, part| {
                    region.read(at as usize, part);
                    Ok(())
                })?;
            }
        }
        Source::Files(files) => {
            for (name, path, len) in files {
                let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
                one(name, *len, &mut |at, part| file.read_exact_at(part, DATA + at))?;
            }
        }
    }
    new.close()?;
    let found = format!("{segments} segments, {bytes} bytes other than zeros, to {}", target.display());
    Ok(Step { name: "copy", found, lost })
}

fn copy_segment(
    new: &Store,
    name: &str,
    len: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    bytes: &mut u64,
    lost: &mut Vec<String>,
) -> Result<(), Failure> {
    let region = new.create_segment(name, len)?.map_all()?;
    let mut part = vec![0; PART];
    for at in (0..len).step_by(PART) {
        let part = &mut part[..(len - at).min(PART as u64) as usize];
        if let Err(error) = read(at, part) {
            lost.push(format!("segment {name:?}, {} bytes at {at}: {error}", part.len()));
            continue;
        }
        if part.iter().any(|byte| *byte != 0) {
            let mut tx = new.begin(Mode::NoRestore)?;
            tx.write(&region, at as usize, part)?;
            tx.commit(Class::Process)?;
            *bytes += part.len() as u64;
        }
    }
    Ok(())
}
