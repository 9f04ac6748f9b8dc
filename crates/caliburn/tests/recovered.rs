//! A copy of one file is older when recovery has written to the file since, and when an older file of generations
//! was taken up since. It is refused by name, or what it holds is right all the same.

mod support;

use caliburn::{Class, Mode, Options, Policy, Region, Store};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const PAGE: usize = 4096;
const POLICIES: [(&str, Policy); 3] =
    [("redo", Policy::Redo), ("undo", Policy::Undo), ("shadow", Policy::Shadow)];

fn options(policy: Policy) -> Options {
    let mut options = support::options();
    options.policy(policy).log_bytes(64 << 10).stage_bytes(128 << 10).copied(false).memory_kept(false);
    options
}

fn region(store: &Store, name: &str) -> Region {
    store.segment_or_create(name, 16 * PAGE as u64).unwrap().map_all().unwrap()
}

/// A program that uses a store, in a process of its own: `WORD VALUE END`.
fn run(path: &Path, policy: &str, line: &str) {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program", "--nocapture"])
        .envs([("CALIBURN_POLICY", policy), ("CALIBURN_LINE", line)])
        .env("CALIBURN_STORE", path)
        .output()
        .unwrap();
    let killed = line.ends_with("kill");
    assert_eq!(ended.status.success(), !killed, "{line}: {ended:?}");
}

#[test]
fn program() {
    let Ok(line) = std::env::var("CALIBURN_LINE") else { return };
    let policy = std::env::var("CALIBURN_POLICY").unwrap();
    let policy = POLICIES.iter().find(|(name, _)| *name == policy).unwrap().1;
    let store = options(policy).open(std::env::var_os("CALIBURN_STORE").unwrap()).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let [names, value, end] = words[..] else { panic!("{line}") };
    let value: u64 = value.parse().unwrap();
    let regions: Vec<Region> = names.split('+').map(|name| region(&store, name)).collect();
    let mut tx = store.begin(Mode::Restore).unwrap();
    for region in &regions {
        (0..4).for_each(|page| tx.store(region, page * PAGE, &value).unwrap());
    }
    if end == "half-kill" {
        // SAFETY: it ends this process and does nothing else.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    tx.commit(store.reach().min(Class::Power)).unwrap();
    if end == "kill" {
        // SAFETY: as above.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    drop(regions);
    store.close().unwrap();
}

type Files = BTreeMap<String, Vec<u8>>;

fn files(path: &Path) -> Files {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

/// Makes a file what it was, in its place.
fn put_back(path: &Path, name: &str, all: &Files) {
    let file = fs::OpenOptions::new().write(true).open(path.join(name)).unwrap();
    file.set_len(all[name].len() as u64).unwrap();
    file.write_all_at(&all[name], 0).unwrap();
}

/// With a file put back the store is refused, and the file named; or segment `b` has what it must.
fn is_noticed(path: &Path, policy: Policy, (name, all): (&str, &Files), value: u64, world: &str) {
    let now = files(path);
    put_back(path, name, all);
    let checked = options(policy).check(path).map(|report| report.problems.is_empty());
    match options(policy).open(path) {
        Err(error) => assert!(error.to_string().contains(name), "{world}, {name}: {error}"),
        Ok(store) => {
            let region = region(&store, "b");
            let found: Vec<u64> = (0..4).map(|page| region.load(page * PAGE)).collect();
            assert_eq!((found, checked.unwrap()), (vec![value; 4], true), "{world}, {name}");
            drop(region);
            store.close().unwrap();
        }
    }
    for name in now.keys().filter(|name| *name != "lock") {
        put_back(path, name, &now);
    }
}

/// A transaction over two segments was half done when its process was killed. Later ones use one of them.
#[test]
fn what_was_undone_does_not_come_back_with_a_copy_of_before() {
    for (name, policy) in POLICIES {
        for end in ["close", "kill"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            run(&path, name, "a+b 1 close");
            run(&path, name, "a+b 777 half-kill");
            let before = files(&path);
            for value in 2..4 {
                run(&path, name, &format!("a {value} {end}"));
                for victim in ["b.segment", "b.sums"].into_iter().filter(|name| before.contains_key(*name)) {
                    is_noticed(&path, policy, (victim, &before), 1, &format!("{name}, {end}"));
                }
            }
        }
    }
}

/// Of a copy the stage is not taken up, and how much that leaves out is told. An older stage does not tell.
#[test]
fn an_older_stage_in_a_copy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let mut quiet = options(Policy::Redo);
    quiet.background(false);
    drop(quiet.open(&path).unwrap());
    let early = files(&path);
    let store = quiet.open(&path).unwrap();
    let region = region(&store, "a");
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    tx.commit(Class::Process).unwrap();
    support::copy_store(&path, &copy);
    let told = quiet.copied(true).open(&copy).unwrap();
    assert_eq!(told.open_report().dropped_commits, 1);
    drop(told);
    fs::remove_dir_all(&copy).unwrap();
    support::copy_store(&path, &copy);
    put_back(&copy, "stage", &early);
    let refused = quiet.open(&copy).unwrap_err().to_string();
    assert!(refused.contains("copy/stage") && refused.contains("older copy"), "{refused}");
}

/// It was taken up, since it lagged little; from then on it says what files do.
#[test]
fn an_older_file_of_generations_notices_all_again_after_an_opening() {
    for (name, policy) in POLICIES {
        for end in ["close", "kill"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            run(&path, name, "a+b 1 close");
            let early = files(&path);
            run(&path, name, &format!("b 2 {end}"));
            put_back(&path, "generations", &early);
            for value in 3..5 {
                run(&path, name, &format!("a {value} {end}"));
            }
            for victim in ["b.segment", "b.sums"].into_iter().filter(|name| early.contains_key(*name)) {
                is_noticed(&path, policy, (victim, &early), 2, &format!("{name}, {end}"));
            }
        }
    }
}
