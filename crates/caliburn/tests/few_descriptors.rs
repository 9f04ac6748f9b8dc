//! Stores with more segments than the process may have open files: the files are opened when they are used, and
//! closed when nothing of them is mapped any more.

mod support;

use caliburn::{Class, Mode, Options, Policy, Region, Store};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::clean;

/// So many descriptors this process and its children may have; a quarter is for segments.
const DESCRIPTORS: u64 = 160;
const SEGMENTS: u64 = 300;
const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

/// The tests of this process share its descriptors.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn options(policy: Policy) -> Options {
    limited(policy, DESCRIPTORS)
}

fn limited(policy: Policy, descriptors: u64) -> Options {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
    let mut options = support::options();
    options.policy(policy);
    options
}

fn name(number: u64) -> String {
    format!("s{number}")
}

fn made(path: &Path, policy: Policy, segments: u64) -> Store {
    let store = options(policy).open(path).unwrap();
    (0..segments).for_each(|number| drop(store.create_segment(&name(number), 65536).unwrap()));
    store
}

fn mapped(store: &Store, number: u64) -> Region {
    store.segment(&name(number)).unwrap().map_all().unwrap()
}

fn put(store: &Store, region: &Region, value: u64, class: Class) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, 64, &value).unwrap();
    tx.commit(class).unwrap();
}

fn value(region: &Region) -> u64 {
    region.load(64)
}

#[test]
fn a_program_that_uses_one_segment_after_the_other_never_has_too_many_files_open() {
    let _alone = alone();
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut store = made(&path, policy, SEGMENTS);
        for round in 1..4 {
            for number in 0..SEGMENTS {
                let region = mapped(&store, number);
                assert_eq!(value(&region), (round - 1) * 1000 + if round > 1 { number } else { 0 });
                put(&store, &region, round * 1000 + number, Class::Process);
            }
            store.segment(&name(round)).unwrap().grow(round * 131_072).unwrap();
            if round == 2 {
                store.close().unwrap();
                clean(&path);
                store = options(policy).open(&path).unwrap();
            }
        }
        store.close().unwrap();
        clean(&path);
        let store = options(policy).read_only(true).open(&path).unwrap();
        (0..SEGMENTS).for_each(|number| assert_eq!(value(&mapped(&store, number)), 3000 + number));
    }
}

#[test]
fn too_many_at_once_are_refused_and_the_store_goes_on() {
    let _alone = alone();
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = made(&path, policy, SEGMENTS);
        let mut regions = Vec::new();
        let refused = (0..SEGMENTS).find_map(|number| {
            let mapped = store.segment(&name(number)).unwrap().map_all();
            mapped.map(|region| regions.push(region)).err()
        });
        let text = refused.expect("they would take more descriptors than there are").to_string();
        assert!(text.contains("open files"), "{text}");
        regions.iter().for_each(|region| put(&store, region, 7, Class::Process));
        let free = |region: Region| region.unmap().unwrap_or_else(|refused| panic!("{}", refused.cause));
        let kept = regions.split_off(regions.len() - 3);
        regions.into_iter().for_each(free);
        let last = mapped(&store, SEGMENTS - 1);
        put(&store, &last, 8, Class::Process);
        store.truncate().unwrap();
        drop((kept, last));
        store.close().unwrap();
        clean(&path);
        let store = options(policy).open(&path).unwrap();
        assert_eq!(value(&mapped(&store, 0)), 7);
        assert_eq!(value(&mapped(&store, SEGMENTS - 1)), 8);
    }
}

#[test]
fn a_file_that_has_taken_the_name_of_a_segment_is_not_taken_for_it() {
    let _alone = alone();
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = made(&path, policy, SEGMENTS);
        let (file, moved) = (path.join(name(SEGMENTS - 1) + ".segment"), dir.path().join("moved"));
        std::fs::rename(&file, &moved).unwrap();
        let segment = store.segment(&name(SEGMENTS - 1)).unwrap();
        assert!(segment.map_all().is_err());
        std::fs::copy(&moved, &file).unwrap();
        let text = segment.map_all().expect_err("it is another file").to_string();
        assert!(text.contains("another file has taken its name"), "{text}");
        std::fs::rename(&moved, &file).unwrap();
        put(&store, &segment.map_all().unwrap(), 9, Class::Process);
        store.close().unwrap();
        clean(&path);
    }
}

fn child_of(test: &str, policy: Policy, path: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("CALIBURN_FEW_STORE", path);
    if policy == Policy::Undo {
        command.env("CALIBURN_FEW_UNDO", "1");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Of a child: its store and policy.
fn told() -> Option<(PathBuf, Policy)> {
    let path = std::env::var_os("CALIBURN_FEW_STORE")?;
    let undo = std::env::var_os("CALIBURN_FEW_UNDO").is_some();
    Some((path.into(), if undo { Policy::Undo } else { Policy::Redo }))
}

/// Run in the child, with as many descriptors as it likes: changes all segments, commits, and changes them once
/// more.
#[test]
fn rich_child() {
    let Some((path, policy)) = told() else { return };
    let store = limited(policy, 4096).open(path).unwrap();
    let regions: Vec<Region> = (0..SEGMENTS).map(|number| mapped(&store, number)).collect();
    regions.iter().for_each(|region| put(&store, region, 5, Class::Process));
    let mut left = store.begin(Mode::Restore).unwrap();
    regions.iter().for_each(|region| left.store(region, 64, &6u64).unwrap());
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
    left.commit(Class::Process).unwrap();
}

#[test]
fn a_process_with_fewer_descriptors_recovers_what_one_with_more_has_left() {
    let _alone = alone();
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        made(&path, policy, SEGMENTS).close().unwrap();
        let mut child = child_of("rich_child", policy, &path);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.ends_with("ready"))), "the child died by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        clean(&path);
        for _ in 0..2 {
            let store = options(policy).open(&path).unwrap();
            (0..SEGMENTS).for_each(|number| assert_eq!(value(&mapped(&store, number)), 5));
            store.close().unwrap();
            clean(&path);
        }
    }
}

/// Run in the child: changes one segment after the other, each change told when it is committed.
#[test]
fn child() {
    let Some((path, policy)) = told() else { return };
    let store = options(policy).open(path).unwrap();
    let first = value(&mapped(&store, 0));
    let mut told = std::io::stdout().lock();
    for round in first + 1.. {
        for number in 0..KILLED {
            let region = mapped(&store, number);
            put(&store, &region, round, Class::Process);
            writeln!(told, "told {number} {round}").unwrap();
        }
    }
}

const KILLED: u64 = 60;

#[test]
fn a_killed_process_leaves_what_it_has_told_in_every_segment() {
    let _alone = alone();
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        made(&path, policy, KILLED).close().unwrap();
        let mut told = vec![0; KILLED as usize];
        for kill in 0..12u64 {
            let mut child = child_of("child", policy, &path);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut hear = |line: String| {
                let mut words = line.split(' ').skip_while(|word| !word.ends_with("told")).skip(1);
                let mut number = || words.next()?.parse::<u64>().ok();
                if let (Some(segment), Some(round)) = (number(), number()) {
                    told[segment as usize] = round;
                }
            };
            let heard = (&mut lines).map_while(Result::ok).take(70).map(&mut hear).count();
            assert_eq!(heard, 70, "the child died by itself");
            std::thread::sleep(Duration::from_micros(kill * 700));
            child.kill().unwrap();
            child.wait().unwrap();
            lines.map_while(Result::ok).for_each(hear);
            let store = options(policy).open(&path).unwrap();
            for (number, told) in told.iter().enumerate() {
                let found = value(&mapped(&store, number as u64));
                assert!(
                    (*told..=told + 1).contains(&found),
                    "{policy:?}: segment {number}, {found}, {told} was told"
                );
            }
            store.close().unwrap();
            clean(&path);
        }
    }
}
