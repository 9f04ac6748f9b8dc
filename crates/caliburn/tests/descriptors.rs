//! A program that has closed its standard streams, as daemons do, and prints all the same: nothing that it prints
//! gets into a file of a store. It closes them before each step, in stores of each kind, while a thread prints.

mod support;

use caliburn::{
    ArchiveOptions, BufferPool, DumpOptions, Guard, Options, Policy, Replacement, RestoreOptions, Store,
    Tracking,
};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{options, put, region};

const STREAMS: std::ops::Range<i32> = 0..3;
/// Where a program without standard streams says what is wrong.
const SAYS: i32 = 100;

/// Whether nothing of ours has the number of a standard stream: nothing at all, or `/dev/null`.
fn is_harmless(number: i32) -> bool {
    // SAFETY: the number is only asked about: it is not closed.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
    file.metadata().map_or(true, |about| about.rdev() == libc::makedev(1, 3))
}

/// Prints as long as the process lives, to all numbers of standard streams, and finds what is not harmless.
fn print_again_and_again(ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        for number in STREAMS {
            assert!(is_harmless(number), "a file had the number {number}");
            // SAFETY: the slice has that many bytes; a number without a file makes the call fail.
            unsafe { libc::write(number, c"a warning of the program's".as_ptr().cast(), 26) };
        }
    }
}

/// Closes the standard streams, does something, and looks who has their numbers.
fn step<T>(name: &str, done: impl FnOnce() -> T) -> T {
    // SAFETY: this process was started for this, and nothing in it expects them.
    STREAMS.for_each(|number| _ = unsafe { libc::close(number) });
    let done = done();
    assert!(STREAMS.into_iter().all(is_harmless), "{name}: a file has the number of a standard stream");
    done
}

fn pool() -> BufferPool {
    BufferPool { bytes: 64 << 10, page_bytes: 4096, replacement: Replacement::Fifo }
}

/// Ways in which a store is used, of each policy that has them.
fn ways(policy: Policy) -> Vec<(&'static str, Options)> {
    let of = |change: &dyn Fn(&mut Options)| {
        let mut options = options();
        // What opens a file at the moment when the program closes a number may get that one for an instant: nothing
        // else may be opened meanwhile.
        options.policy(policy).background(false);
        change(&mut options);
        options
    };
    let mut all =
        vec![("declared", of(&|_| ())), ("faults", of(&|options| _ = options.tracking(Tracking::Fault)))];
    if policy == Policy::Redo {
        all.push(("scan", of(&|options| _ = options.tracking(Tracking::Scan))));
        all.push(("guard", of(&|options| _ = options.guard(Guard::Pages))));
        all.push(("overflow", of(&|options| _ = options.overflow(true).large_transactions(true))));
    }
    if policy == Policy::Shadow {
        all.push(("pool", of(&|options| _ = options.tracking(Tracking::Fault).buffer_pool(pool()))));
    }
    all
}

fn use_store(path: &Path, options: &Options) {
    let store = step("create", || options.open(path)).unwrap();
    let region = step("map", || region(&store));
    (0..20)
        .for_each(|i| step("commit", || put(&store, &region, i * 4096, i as u64, caliburn::Class::Process)));
    step("flush", || drop(store.flush()));
    step("truncate", || store.truncate().unwrap());
    step("other segment", || drop(store.create_segment("other", 65536).unwrap().map_all().unwrap()));
    step("metrics", || drop(store.metrics()));
    let mut dump = Vec::new();
    step("dump", || store.dump(&DumpOptions::new(), &mut dump)).unwrap();
    step("unmap", || drop(region));
    step("close", || store.close().unwrap());
    step("check", || assert!(options.check(path).unwrap().is_clean()));
    step("info", || drop(options.info(path).unwrap()));
    let store = step("open", || options.open(path)).unwrap();
    let region = step("map again", || support::region(&store));
    assert_eq!(region.load::<u64>(19 * 4096), 19);
    // Nothing that was printed is in it.
    let restored = path.with_extension("restored");
    step("restore", || Options::new().restore(&mut &*dump, RestoreOptions::new().checked(true), &restored))
        .unwrap();
}

/// What only the redo policy has: its log in other places, dumps and archives.
fn use_log(dir: &Path) {
    let (path, at) = (dir.join("logged"), |name: &str| dir.join(name));
    let store = step("create", || options().background(false).open(&path)).unwrap();
    let mapped = step("map", || region(&store));
    step("larger log", || store.relocate_log(options().log_bytes(2 << 20)).unwrap());
    let mut dump = Vec::new();
    step("dump", || store.dump(&DumpOptions::new(), &mut dump)).unwrap();
    let archive = ArchiveOptions::command("cat %p > /dev/null; echo of the command", Duration::from_secs(60));
    put(&store, &mapped, 0, 7, caliburn::Class::Power);
    step("archive", || Options::new().archiver(&path, &archive).unwrap().stop()).unwrap();
    drop(mapped);
    step("close", || store.close().unwrap());
    step("restore", || Options::new().restore(&mut &*dump, &RestoreOptions::new(), at("restored"))).unwrap();
    step("check", || assert!(Options::new().check(at("restored")).unwrap().is_clean()));
    let objects = step("typed", || Store::options().create(true).open(at("typed"))).unwrap();
    let heap = step("heap", || caliburn::heap::Heap::open(&objects, "heap").unwrap());
    step("end", || drop(heap));
    step("duplex", || drop(options().outside(dir).duplex_log(at("copy")).open(&path).unwrap()));
}

#[test]
fn nothing_that_a_program_prints_gets_into_a_store_where_its_streams_were_closed() {
    const CHILD: &str = "CALIBURN_TEST_WITHOUT_STREAMS";
    let name = "nothing_that_a_program_prints_gets_into_a_store_where_its_streams_were_closed";
    let Some(dir) = std::env::var_os(CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    };
    // SAFETY: the number is nobody's, in a process that was started for this.
    let says = unsafe {
        assert_eq!(libc::dup3(std::io::stderr().as_raw_fd(), SAYS, libc::O_CLOEXEC), SAYS);
        File::from_raw_fd(SAYS)
    };
    std::panic::set_hook(Box::new(move |panic| {
        let _ = std::io::Write::write_all(&mut &says, format!("{panic}\n").as_bytes());
        std::process::exit(1);
    }));
    static ENDED: AtomicBool = AtomicBool::new(false);
    step("begin", || ());
    let printing = std::thread::spawn(|| print_again_and_again(&ENDED));
    let dir = Path::new(&dir);
    for policy in [Policy::Redo, Policy::Undo, Policy::Shadow] {
        for (name, options) in ways(policy) {
            use_store(&dir.join(format!("{policy:?}-{name}")), &options);
        }
    }
    use_log(dir);
    ENDED.store(true, Ordering::Relaxed);
    printing.join().unwrap();
    std::process::exit(7);
}
