//! One file of a store is an older copy: of each file, from each earlier moment, for each policy. The store is
//! refused, and the message names the file; or what it holds is right all the same.
//!
//! A store lives through moments: made, closed, opened and changed, killed in use. At each, all of its files are
//! kept. Then every file of the last moment is replaced by its copy of every earlier one.

mod support;

use caliburn::{Class, Mode, OpenError, Options, Policy, Region, Store};
use caliburn_log::SegmentId;
use caliburn_log::format::{GenerationSlot, WITHIN_BOOT};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use support::copy_store;
use zerocopy::IntoBytes;

const LEN: u64 = 1 << 16;
const POLICIES: [(&str, Policy); 3] =
    [("redo", Policy::Redo), ("undo", Policy::Undo), ("shadow", Policy::Shadow)];

fn options(policy: Policy) -> Options {
    let mut options = support::options();
    options.policy(policy).log_bytes(64 << 10).stage_bytes(128 << 10).copied(false);
    options
}

fn put(store: &Store, region: &Region, at: usize, value: u64) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, at, &value).unwrap();
    tx.commit(store.reach().min(Class::Power)).unwrap();
}

/// What a store holds: of each segment its length, and some words.
type Content = BTreeMap<String, (u64, Vec<u64>)>;

fn content(store: &Store) -> Content {
    let words = |region: &Region| (0..region.len() / 4096).map(|page| region.load(page * 4096)).collect();
    let of = |segment: caliburn::Segment| {
        let region = segment.map_all().unwrap();
        (segment.name().to_owned(), (segment.len(), words(&region)))
    };
    store.segments().into_iter().map(of).collect()
}

/// One opening of the store, which changes it: `a` always, and each time another of the others.
fn change(store: &Store, turn: u64) {
    let a = store.segment_or_create("a", LEN).unwrap();
    let a = a.map_all().unwrap();
    put(store, &a, 0, turn);
    match turn {
        1 => drop(store.create_segment("b", LEN).unwrap()),
        2 => put(store, &store.segment("b").unwrap().map_all().unwrap(), 4096, turn),
        3 => {
            let grown = store.segment("b").unwrap();
            grown.grow(2 * LEN).unwrap();
            put(store, &grown.map_all().unwrap(), LEN as usize, turn);
        }
        4 => put(store, &store.create_segment("c", LEN).unwrap().map_all().unwrap(), 8192, turn),
        _ => put(store, &store.segment("c").unwrap().map_all().unwrap(), 4096 * 2, turn),
    }
    put(store, &a, 8192, turn);
    if store.policy() == Policy::Redo && turn.is_multiple_of(2) {
        store.truncate().unwrap();
    }
    put(store, &a, 12288, turn);
}

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

fn files(path: &Path) -> Files {
    let entry = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let names = fs::read_dir(path).unwrap().map(entry);
    names
        .filter(|name| name != "lock")
        .map(|name| (name.clone(), fs::read(path.join(&name)).unwrap()))
        .collect()
}

/// Makes a file that is there what it was: it is the same inode, as for a tool that writes it again.
fn put_file(path: &Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

fn put_files(path: &Path, all: &Files) {
    let here = files(path);
    here.keys()
        .filter(|name| !all.contains_key(*name))
        .for_each(|name| fs::remove_file(path.join(name)).unwrap());
    all.iter().filter(|(name, bytes)| here.get(*name) != Some(bytes)).for_each(|(name, bytes)| {
        put_file(&path.join(name), bytes);
    });
}

/// Runs `killed` in another process, which does not outlive the last turn.
fn killed(path: &Path, policy: &str, turn: u64) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life", "--nocapture"])
        .env("CALIBURN_LIFE", format!("{policy} {turn}"))
        .env("CALIBURN_LIFE_STORE", path)
        .output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(libc::SIGKILL), "{status:?}");
}

/// The other process.
#[test]
fn life() {
    let Ok(text) = std::env::var("CALIBURN_LIFE") else { return };
    let (policy, turn) = text.split_once(' ').unwrap();
    let policy = POLICIES.iter().find(|(name, _)| *name == policy).unwrap().1;
    let path = std::env::var_os("CALIBURN_LIFE_STORE").unwrap();
    let store = options(policy).open(path).unwrap();
    change(&store, turn.parse().unwrap());
    // SAFETY: it ends this process and does nothing else.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

struct Moment {
    name: String,
    files: Files,
}

/// The moments of a store's life; the last one is `killed` or closed.
fn moments(path: &Path, (name, policy): (&str, Policy), last_killed: bool) -> (Vec<Moment>, Content) {
    let mut moments = Vec::new();
    let mut note = |name: String| moments.push(Moment { name, files: files(path) });
    let store = options(policy).open(path).unwrap();
    note("made".into());
    store.close().unwrap();
    note("closed 0".into());
    for turn in 1..=4u64 {
        let store = options(policy).open(path).unwrap();
        note(format!("opened {turn}"));
        change(&store, turn);
        note(format!("in use {turn}"));
        store.close().unwrap();
        note(format!("closed {turn}"));
    }
    match last_killed {
        true => killed(path, name, 5),
        false => {
            let store = options(policy).open(path).unwrap();
            change(&store, 5);
            if policy == Policy::Redo {
                store.truncate().unwrap();
            }
            note("in use 5".into());
            // What was forced in this use is older than what the close leaves.
            put(&store, &store.segment("a").unwrap().map_all().unwrap(), 16384, 6);
            store.close().unwrap();
        }
    }
    note("last".into());
    // What is there is told by a copy, so that nothing of the store is changed.
    let copy = path.with_extension("copy");
    copy_store(path, &copy);
    let store = options(policy).copied(true).memory_kept(true).open(&copy).unwrap();
    let there = content(&store);
    store.close().unwrap();
    fs::remove_dir_all(&copy).unwrap();
    (moments, there)
}

/// Names that say so in the text of what is refused.
fn names(error: &str, file: &str) -> bool {
    let told = ["older cop", "older than the log", "cut off"].iter().any(|text| error.contains(text));
    told && error.contains(&format!("/{file}"))
}

fn every_older_file(policy: (&str, Policy), last_killed: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (moments, expected) = moments(&path, policy, last_killed);
    let (last, earlier) = moments.split_last().unwrap();
    let mut wrong = Vec::new();
    let (mut tried, mut refused) = (0, 0);
    for moment in earlier {
        for (file, bytes) in &moment.files {
            if last.files.get(file).is_none_or(|now| now == bytes) {
                continue;
            }
            tried += 1;
            put_files(&path, &last.files);
            put_file(&path.join(file), bytes);
            let what = format!("{} killed {last_killed}: {file} of {:?}", policy.0, moment.name);
            let report = caliburn::check(&path).map(|report| {
                report
                    .problems
                    .into_iter()
                    .map(|problem| problem.path.display().to_string() + &problem.text)
                    .collect()
            });
            let said: Vec<String> = report.unwrap_or_else(|error| vec![error.to_string()]);
            let salvaged = options(policy.1).create(false).read_only(true).salvage(true).open(&path);
            let damage = salvaged.map(|store| store.damage().map(ToString::to_string));
            match options(policy.1).open(&path) {
                Err(error) if names(&error.to_string(), file) => {
                    refused += 1;
                    if !said.iter().any(|text| names(text, file)) {
                        wrong.push(format!("{what}: check says {said:?}, and opening {error}"));
                    }
                    if matches!(damage, Ok(None)) {
                        wrong.push(format!("{what}: salvage says nothing"));
                    }
                }
                Err(error) => wrong.push(format!("{what}: does not name it: {error}")),
                Ok(store) => {
                    let there = content(&store);
                    let closed = store.close();
                    if there != expected || closed.is_err() {
                        wrong.push(format!("{what}: {there:?}, {closed:?}"));
                    }
                }
            }
        }
    }
    println!("{policy:?}, killed {last_killed}: {tried} tried, {refused} refused");
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused * 2 > tried, "{refused} of {tried} were refused");
    // And what was there all the time is the store.
    put_files(&path, &last.files);
    assert_eq!(content(&options(policy.1).open(&path).unwrap()), expected);
}

#[test]
fn an_older_copy_of_one_file_is_refused_by_name_after_an_orderly_close() {
    POLICIES.into_iter().for_each(|policy| every_older_file(policy, false));
}

#[test]
fn an_older_copy_of_one_file_is_refused_by_name_after_a_kill() {
    POLICIES.into_iter().for_each(|policy| every_older_file(policy, true));
}

/// A file that the catalog does not know is never removed.
#[test]
fn an_unknown_file_is_in_the_way_and_stays() {
    for (_, policy) in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options(policy).open(&path).unwrap();
        let names = if policy == Policy::Redo { &["x.segment", "x.sums"][..] } else { &["x.segment"] };
        for name in names {
            fs::write(path.join(name), b"needed").unwrap();
            let error = store.create_segment("x", LEN).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("the catalog does not know"), "{error}");
            assert_eq!(fs::read(path.join(name)).unwrap(), b"needed");
            fs::remove_file(path.join(name)).unwrap();
        }
        assert!(store.create_segment("x", LEN).is_ok());
        store.close().unwrap();
    }
}

/// Without what the store says of its generations nothing is known of its files.
#[test]
fn a_store_without_its_generations_is_refused_and_salvaged() {
    for (_, policy) in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options(policy).open(&path).unwrap();
        change(&store, 1);
        store.close().unwrap();
        fs::remove_file(path.join("generations")).unwrap();
        let error = options(policy).open(&path).unwrap_err();
        assert!(matches!(&error, OpenError::Io { path, .. } if path.ends_with("generations")), "{error}");
        assert!(caliburn::check(&path).is_err() && caliburn::info(&path).is_err());
        let store = options(policy).create(false).read_only(true).salvage(true).open(&path).unwrap();
        assert!(store.damage().is_some());
        assert_eq!(content(&store)["a"].1[0], 1);
    }
}

/// What a file says at a place.
fn word(path: &Path, at: u64) -> u64 {
    let mut word = [0; 8];
    fs::File::open(path).unwrap().read_exact_at(&mut word, at).unwrap();
    u64::from_le_bytes(word)
}

/// A process that is killed between forcing the sums and noting it leaves a slot that vouches for this boot alone.
/// A power cut may tear the next stamp.
#[test]
fn a_stamp_that_the_sums_rely_on_stays_until_the_next_one_is_forced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(Policy::Redo).open(&path).unwrap();
    change(&store, 1);
    store.close().unwrap();
    killed(&path, "redo", 2);
    let [relied_on, there] = [("a.sums", [512, 1024]), ("a.segment", [4096, 4608])]
        .map(|(file, stamps)| stamps.map(|at| word(&path.join(file), at + 32)).into_iter().max().unwrap());
    assert_eq!(relied_on, there);
    let number = GenerationSlot::of_segment(SegmentId(0));
    let slot = GenerationSlot::new(number, there, WITHIN_BOOT);
    let generations = fs::OpenOptions::new().write(true).open(path.join("generations")).unwrap();
    generations.write_all_at(slot.as_bytes(), 8192 + number * 16).unwrap();
    let store = options(Policy::Redo).open(&path).unwrap();
    put(&store, &store.segment("a").unwrap().map_all().unwrap(), 0, 7);
    store.truncate().unwrap();
    let stamps = [4096, 4608].map(|at| word(&path.join("a.segment"), at + 32));
    assert!(stamps.iter().any(|stamp| *stamp > there), "nothing was stamped");
    assert!(stamps.contains(&relied_on), "{relied_on} is none of {stamps:?}");
    store.close().unwrap();
}
