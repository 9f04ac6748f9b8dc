//! Every allocation and every system call on a store's files fails, once each, one at a time, in a process
//! that opens the store, commits, truncates and closes. Each call gives an error or a success; the library
//! does not panic; and the store has what was acknowledged, whatever failed.
//!
//! Failing an allocation ends a Rust program: that is the death of the process, which the store survives.
//! System calls are failed by `strace`.

mod support;

use caliburn::{Class, Mode, Options, Policy, Store, Tracking};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicI64, Ordering};
use support::clean;

/// Allocations until one fails; negative: none does.
static COUNTDOWN: AtomicI64 = AtomicI64::new(-1);

struct Failing;

// SAFETY: everything is passed on to the system's allocator, or refused.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTDOWN.load(Ordering::Relaxed) >= 0 && COUNTDOWN.fetch_sub(1, Ordering::Relaxed) == 0 {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn say(what: &str, value: u64) {
    let text = format!("{what} {value}\n");
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// How a store recovers, and how a program changes it.
type Kind = (Policy, Tracking);

const KINDS: [Kind; 4] = [
    (Policy::Redo, Tracking::Declared),
    (Policy::Undo, Tracking::Declared),
    (Policy::Shadow, Tracking::Fault),
    (Policy::Redo, Tracking::Scan),
];

/// The store itself, and its files.
const FILES: [&str; 11] = [
    "",
    "log",
    "stage",
    "undo",
    "shadow",
    "catalog",
    "catalog.new",
    "generations",
    "lock",
    "data.segment",
    "data.sums",
];
/// What fails, and how.
const CALLS: [(&str, &str); 23] = [
    ("openat", "EMFILE"),
    ("read", "EIO"),
    ("pread64", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("fdatasync", "EIO"),
    ("fsync", "EIO"),
    ("fallocate", "ENOSPC"),
    ("fallocate", "EOPNOTSUPP"),
    ("ftruncate", "EIO"),
    ("mmap", "ENOMEM"),
    ("flock", "ENOLCK"),
    ("rename", "EIO"),
    ("statx", "EIO"),
    ("fstat", "EIO"),
    ("lseek", "EIO"),
    ("close", "EIO"),
    ("clone3", "EAGAIN"),
    ("madvise", "EAGAIN"),
    ("mprotect", "ENOMEM"),
    ("getrandom", "EINTR"),
    ("userfaultfd", "EPERM"),
    ("ioctl", "EINVAL"),
];

fn options((policy, tracking): Kind) -> Options {
    let mut options = support::options();
    options.policy(policy).tracking(tracking);
    options
}

/// Opens, commits, grows, prepares, truncates, closes. Says what was acknowledged.
fn use_store(path: &Path, kind: Kind) -> Result<(), Box<dyn std::error::Error>> {
    let (policy, tracking) = kind;
    let store = options(kind).open(path)?;
    let power = if policy == Policy::Undo { Class::Process } else { Class::Power };
    let segment = store.segment("data")?;
    let region = segment.map_all()?;
    for (value, class) in [(2u64, Class::Process), (3, power)] {
        let mut tx = store.begin(Mode::Restore)?;
        for at in [0, 8192] {
            if tracking == Tracking::Declared {
                tx.store(&region, at, &value)?;
            } else {
                support::set(&region, at, value);
            }
            if tracking == Tracking::Fault {
                // What waits is stolen when more of its page is declared.
                tx.store(&region, at + 40, &value)?;
            }
        }
        say("begun", value);
        tx.commit(class)?;
        say("committed", value);
    }
    segment.grow(segment.len() + 65536)?;
    region.grow(segment.len() as usize)?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 16, &9u64)?;
    if (policy, tracking) != KINDS[0] {
        // More than a chunk of the undo log. With the shadow policy each page takes system calls.
        let many = if policy == Policy::Shadow { 10_000 } else { 400_000 };
        tx.write(&region, 65536, &vec![1; many])?;
        if tracking != Tracking::Declared {
            support::just_store(&region, 600_000, &[2; 10_000]);
        }
        tx.abort();
    } else {
        tx.prepare(b"id")?;
        store.abort_prepared(b"id")?;
    }
    store.truncate()?;
    region.unmap()?;
    store.close()?;
    say("closed", 0);
    Ok(())
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_CALLS_STORE") else { return };
    if let Some(number) = std::env::var("CALIBURN_CALLS_ALLOCATION").ok().and_then(|n| n.parse().ok()) {
        COUNTDOWN.store(number, Ordering::Relaxed);
    }
    let kind: usize = std::env::var("CALIBURN_CALLS_KIND").unwrap().parse().unwrap();
    let done = use_store(Path::new(&path), KINDS[kind]);
    if COUNTDOWN.swap(-1, Ordering::Relaxed) >= 0 {
        say("untouched", 0);
    }
    if let Err(error) = done {
        eprintln!("error: {error}");
    }
}

fn nursery(dir: &Path, kind: Kind) {
    let store = options(kind).open(dir).unwrap();
    let region = support::region(&store);
    for offset in [0, 8192] {
        support::put(&store, &region, offset, 1, Class::Process);
    }
    drop(region);
    store.close().unwrap();
    // Something to recover.
    let store = options(kind).open(dir).unwrap();
    let region = support::region(&store);
    let copy = dir.with_extension("crashed");
    support::put(&store, &region, 24, 7, Class::Process);
    let mut open = store.begin(Mode::Restore).unwrap();
    open.store(&region, 24, &8u64).unwrap();
    support::copy_store(dir, &copy);
    open.abort();
    drop((region, store));
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::rename(&copy, dir).unwrap();
}

/// What a number of the child's lines says, the newest.
fn said(output: &Output, what: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines =
        text.lines().filter_map(|line| line.rsplit_once(&format!("{what} "))?.1.trim().parse().ok());
    lines.next_back()
}

fn judge(path: &Path, kind: Kind, output: &Output, what: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !errors.contains("panicked at crates/engine") && !errors.contains("panicked at crates/log"),
        "{what}: {errors}"
    );
    assert!(!errors.contains("panicked at crates/os"), "{what}: {errors}");
    let store = match options(kind).open(path) {
        // A segment that cannot be forced when an undo store is closed is lost, and said to be.
        Err(error) if kind.0 == Policy::Undo && error.to_string().contains("could not be forced") => {
            assert!(errors.contains("force segment"), "{what}: {error}, though: {errors}");
            return;
        }
        opened => opened.unwrap_or_else(|e| panic!("{what}: {e}")),
    };
    let region = support::region(&store);
    let (first, second): (u64, u64) = (region.load(0), region.load(8192));
    let (low, high) = (said(output, "committed").unwrap_or(1), said(output, "begun").unwrap_or(1));
    assert_eq!(first, second, "{what}: half done");
    assert!((low..=high).contains(&first), "{what}: {first} is there, {low} was acknowledged: {errors}");
    assert_eq!((region.load::<u64>(16), region.load::<u64>(24)), (0, 7), "{what}");
    drop(region);
    store.close().unwrap();
    clean(path);
}

fn fresh(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("s");
    std::fs::remove_dir_all(&path).ok();
    support::copy_store(&dir.join("nursery"), &path);
    path
}

#[test]
fn every_allocation_may_fail() {
    for (number_of_kind, kind) in KINDS.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        nursery(&dir.path().join("nursery"), kind);
        let mut failed = 0;
        for number in 0.. {
            let path = fresh(dir.path());
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "child", "--nocapture"]).env("CALIBURN_CALLS_STORE", &path);
            child.env("CALIBURN_CALLS_ALLOCATION", number.to_string()).env("RUST_BACKTRACE", "0");
            child.env("CALIBURN_CALLS_KIND", number_of_kind.to_string());
            let output = child.output().unwrap();
            judge(&path, kind, &output, &format!("{kind:?}, allocation {number}"));
            if said(&output, "untouched").is_some() {
                break;
            }
            failed += 1;
        }
        assert!(failed > 100, "only {failed} allocations were failed");
        println!("{kind:?}: {failed} allocations failed once each");
    }
}

#[test]
fn every_system_call_on_the_stores_files_may_fail() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("not run: strace is not installed");
        return;
    }
    for (number, kind) in KINDS.into_iter().enumerate() {
        let failed = fail_system_calls(number, &CALLS, &FILES);
        assert!(failed > 60, "only {failed} system calls were failed");
        println!("{kind:?}: {failed} system calls failed once each");
    }
}

/// Writing to a segment's stamp among them, when the store is closed: no force failed, so nothing is lost.
#[test]
fn a_write_to_an_undo_segment_may_fail() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("not run: strace is not installed");
        return;
    }
    let failed = fail_system_calls(1, &[("pwrite64", "EIO")], &["data.segment"]);
    assert!(failed > 0, "nothing is written to the segment");
}

/// Fails each of these calls on these files once; how often.
fn fail_system_calls(number: usize, calls: &[(&str, &str)], files: &[&str]) -> usize {
    let kind = KINDS[number];
    let dir = tempfile::tempdir().unwrap();
    nursery(&dir.path().join("nursery"), kind);
    let mut failed = 0;
    for &(call, error) in calls {
        for when in 1..400 {
            let path = fresh(dir.path());
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-e", &format!("trace={call}")]);
            strace.args(["-e", &format!("inject={call}:error={error}:when={when}")]);
            // Calls that name no file of the store are failed wherever they are.
            if !["clone3", "madvise", "mprotect", "getrandom", "userfaultfd", "ioctl"].contains(&call) {
                for file in files {
                    strace.arg("-P").arg(path.join(file));
                }
            }
            strace.arg(std::env::current_exe().unwrap()).args(["--exact", "child", "--nocapture"]);
            strace.env("CALIBURN_CALLS_STORE", &path).env("RUST_BACKTRACE", "0");
            strace.env("CALIBURN_CALLS_KIND", number.to_string());
            let output = strace.output().unwrap();
            let injected = String::from_utf8_lossy(&output.stderr).contains("(INJECTED)");
            judge(&path, kind, &output, &format!("{kind:?}, {call} number {when} with {error}"));
            if !injected {
                break;
            }
            failed += 1;
        }
    }
    failed
}

#[test]
fn a_store_is_used_as_described() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        nursery(&dir.path().join("nursery"), kind);
        use_store(&fresh(dir.path()), kind).unwrap();
        drop(Store::open(dir.path().join("s")).unwrap());
    }
}
