//! What is left of a damaged store is saved, and what is lost is said.

use caliburn::{Class, Mode, Policy, Store, check, info};
use caliburn_log::uncommitted;
use caliburn_os::files::Files;
use caliburn_os::medium::Media;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

fn salvage(store: &Path, to: &Path) -> (Output, Vec<Value>) {
    let [store, to] = [store, to].map(|path| path.to_str().unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_caliburn"))
        .args(["recover", store, "--salvage", to, "--copied", "--json"])
        .output()
        .unwrap();
    let steps = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    (output, steps)
}

/// A store that was killed: segments that were truncated, and later commits in the log.
fn killed(path: &Path) {
    let mut options = Store::options();
    let store = options.create(true).log_bytes(1 << 20).background(false).open(path).unwrap();
    let regions = ["one", "two"].map(|name| store.create_segment(name, 1 << 18).unwrap().map_all().unwrap());
    for number in 1..=20u64 {
        for region in &regions {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(region, number as usize * 4096, &number).unwrap();
            tx.commit(Class::Power).unwrap();
        }
        if number == 10 {
            store.truncate().unwrap();
        }
    }
    std::mem::forget((regions, store));
}

/// The numbers that segment `one` of a store has.
fn numbers(path: &Path) -> Vec<u64> {
    assert_eq!(check(path).unwrap().problems, []);
    let store = Store::open(path).unwrap();
    let region = store.segment("one").unwrap().map_all().unwrap();
    assert!(store.segment("two").is_ok());
    (1..=20).map(|number| region.load::<u64>(number * 4096)).filter(|number| *number > 0).collect()
}

fn damage(path: &Path, offset: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// All files of a directory.
fn content(path: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        // Who looks at a store locks it.
        .filter(|entry| entry.file_name() != "lock")
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn each_step_says_what_is_lost_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // The store that is killed stays as it is in this process: copies are worked with.
    killed(&at("killed"));
    let copy = |name: &str| {
        fs::create_dir(at(name)).unwrap();
        for (file, bytes) in content(&at("killed")) {
            fs::write(at(name).join(file), bytes).unwrap();
        }
        fs::write(at(name).join("lock"), "").unwrap();
        at(name)
    };
    let saved = |name: &str, act: &dyn Fn(&Path)| {
        let store = copy(name);
        act(&store);
        let before = content(&store);
        let (output, steps) = salvage(&store, &at(&format!("{name}-saved")));
        assert_eq!(content(&store), before, "{name}: the damaged store was changed");
        let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["check", "read", "log", "copy"], "{output:?}");
        let lost: Vec<String> = steps
            .iter()
            .flat_map(|step| step["lost"].as_array().unwrap())
            .map(|lost| lost.as_str().unwrap().to_owned())
            .collect();
        (output.status.code(), numbers(&at(&format!("{name}-saved"))), lost)
    };
    let all: Vec<u64> = (1..=20).collect();
    let (code, found, lost) = saved("sound", &|_| {});
    assert_eq!((code, found, lost), (Some(0), all.clone(), Vec::new()));

    // A page: it is told, and all else is there.
    let (code, found, lost) =
        saved("page", &|path| damage(&path.join("two.segment"), 65536 + 4096, &[9; 16]));
    assert_eq!((code, found), (Some(1), all));
    assert!(lost[0].contains("two.segment, offset 69632"), "{lost:?}");

    // The log, in its midst: what stands before is there, and when it ends is told.
    let (code, found, lost) = saved("log", &|path| {
        let log = fs::read(path.join("log")).unwrap();
        let bytes = 15u64.to_le_bytes();
        let at = log.windows(8).position(|window| window == bytes).unwrap();
        damage(&path.join("log"), at as u64, &[0xee; 8]);
    });
    assert_eq!(code, Some(1));
    assert!(found.len() >= 10 && found.len() < 20, "{found:?}");
    assert!(lost.iter().any(|lost| lost.contains("records that stand behind the damage")), "{lost:?}");

    // The catalog: segments as they are, by their names.
    let (code, found, lost) = saved("catalog", &|path| fs::write(path.join("catalog"), b"nothing").unwrap());
    assert_eq!(code, Some(1));
    assert!(found.len() >= 10, "{found:?}");
    assert!(lost.iter().any(|lost| lost.contains("what is in the log and not in them")), "{lost:?}");

    // The log's status, and so all of the log.
    let (code, found, _) = saved("status", &|path| damage(&path.join("log"), 0, &[0; 8192]));
    assert_eq!(code, Some(1));
    assert!(found.len() >= 10, "{found:?}");
    // What cannot be taken along is said, and a store in use is not read.
    let store = Store::options().create(true).log_bytes(1 << 20).open(at("used")).unwrap();
    let region = store.create_segment("one", 1 << 18).unwrap().map_all().unwrap();
    store.create_segment("two", 1 << 18).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 4096, &1u64).unwrap();
    tx.prepare(b"doubtful").unwrap();
    let (output, _) = salvage(&at("used"), &at("used-saved"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is in use"), "{output:?}");
    drop(region);
    drop(store);
    let (output, steps) = salvage(&at("used"), &at("used-saved"));
    assert!(steps[1]["lost"][0].as_str().unwrap().contains("doubtful"), "{steps:?}");
    assert_eq!(output.status.code(), Some(1));
    fs::create_dir(at("empty")).unwrap();
    assert!(!salvage(&at("empty"), &at("empty-saved")).0.status.success());
    assert!(!at("empty-saved").exists());
    let (output, _) = salvage(&at("page"), &at("page-saved"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it exists already"), "{output:?}");
    // It has its name when it is complete. What is left of a try that did not end stays.
    assert!(!at("page-saved.unfinished").exists());
    fs::create_dir(at("later.unfinished")).unwrap();
    let (output, _) = salvage(&at("page"), &at("later"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("that did not end left it"), "{output:?}");
    assert!(!at("later").exists() && at("later.unfinished").exists());
}

#[test]
fn an_undo_store_whose_segments_could_not_be_forced_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let undo = || {
        let mut options = Store::options();
        options.policy(Policy::Undo);
        options
    };
    let store = undo().create(true).open(&path).unwrap();
    let region = store.create_segment("one", 1 << 18).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 4096, &1u64).unwrap();
    tx.commit(Class::Process).unwrap();
    drop(region);
    store.close().unwrap();
    // As when the force at closing has failed.
    let logs = Files.open(&path.join("undo"), true).unwrap();
    let id = u128::from_str_radix(&info(&path).unwrap().id, 16).unwrap().to_be_bytes();
    let status = uncommitted::read_status(&*logs, &id).unwrap();
    uncommitted::mark_damaged(&*logs, id, &status).unwrap();
    drop(logs);
    let refused = undo().open(&path).unwrap_err().to_string();
    assert!(refused.contains("recover STORE --salvage NEW"), "{refused}");

    for (name, why) in [("saved", "could not be forced"), ("again", "does not begin with")] {
        let saved = dir.path().join(name);
        let (output, steps) = salvage(&path, &saved);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(steps[1]["lost"][0].as_str().unwrap().contains(why), "{steps:?}");
        let store = undo().open(&saved).unwrap();
        assert_eq!(store.policy(), Policy::Undo);
        assert_eq!(store.segment("one").unwrap().map_all().unwrap().load::<u64>(4096), 1);
        damage(&path.join("undo"), 0, &[0; 8192]);
    }
    // The files tell the policy, where nothing else does.
    fs::write(path.join("catalog"), b"nothing").unwrap();
    let saved = dir.path().join("files");
    assert_eq!(salvage(&path, &saved).0.status.code(), Some(1));
    assert_eq!(Store::open(&saved).unwrap().policy(), Policy::Undo);
}

/// Two accounts of 50; then 30 go from one to the other in a transaction that is open when the program is killed.
fn half_done(policy: Policy, path: &Path) {
    let mut options = Store::options();
    let store = options.create(true).policy(policy).open(path.with_extension("first")).unwrap();
    let region = store.create_segment("one", 1 << 18).unwrap().map_all().unwrap();
    let class = store.reach();
    let mut tx = store.begin(Mode::Restore).unwrap();
    [0, 65536].into_iter().for_each(|at| tx.store(&region, at, &50u64).unwrap());
    tx.commit(class).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &20u64).unwrap();
    fs::create_dir(path).unwrap();
    for (name, bytes) in content(&path.with_extension("first")) {
        fs::write(path.join(name), bytes).unwrap();
    }
    fs::write(path.join("lock"), "").unwrap();
    tx.abort();
}

/// Whatever was lost, what an open transaction has stored is not what was committed.
#[test]
fn what_an_open_transaction_has_stored_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("undo");
    half_done(Policy::Undo, &path);
    let logs = Files.open(&path.join("undo"), true).unwrap();
    let id = u128::from_str_radix(&info(&path).unwrap().id, 16).unwrap().to_be_bytes();
    let status = uncommitted::read_status(&*logs, &id).unwrap();
    uncommitted::mark_damaged(&*logs, id, &status).unwrap();
    let shadow = dir.path().join("shadow");
    half_done(Policy::Shadow, &shadow);
    for (path, what) in [(path, "not written back"), (shadow, "")] {
        let saved = path.with_extension("saved");
        let (output, steps) = salvage(&path, &saved);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        assert!(steps[1]["lost"].to_string().contains(what), "{steps:?}");
        let store = Store::open(&saved).unwrap();
        let region = store.segment("one").unwrap().map_all().unwrap();
        assert_eq!([0, 65536].map(|at| region.load::<u64>(at)), [50, 50], "{}", path.display());
    }
}
