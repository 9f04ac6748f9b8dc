//! What runs inside a virtual machine that is about to crash (`cargo xtask vm`): verifies what the last crash
//! left, then commits in two threads and says on its console what was acknowledged.
//!
//! `guest STORE LOG CRASH MILLISECONDS ACKNOWLEDGED...` (of both threads, of a database, of a tree of files); `LOG`
//! is a device, `-` for a file, or `power` or `os` for an undo store in memory that survives as much, or `shadow`
//! for a shadow store to which nothing is declared, `pool` for one in a buffer pool, `disk`, `xfs`, `dax` or `warm`
//! for one on a file system on a disk of blocks, with a database and a tree of files beside it; `CRASH` is `c` or
//! `b` for the kernel's sysrq trigger, `r` for either; `n`, `s` or `h` for a fault of the kernel: a null pointer, a
//! stack that overflows, processors that hang; `-` to be crashed from without; `f` when the disk is to fail; `w` to
//! end after the time, with marks in the log of a device mapper's writes; `v` to verify only.
//!
//! `guest disk REGION DEVICE` is that disk: a segment of blocks in a region, as a block device. `guest wild REGION
//! CRASH MILLISECONDS ACKNOWLEDGED...` writes to such a segment while the kernel stores wildly.

mod others;
mod wild;

use caliburn::{
    BeforeImages, BufferPool, Class, Mode, Options, Policy, Region, Replacement, Store, Tracking, Tuning,
};
use caliburn_pm::nbd::Device;
use caliburn_pm::{Blocks, Export};
use caliburn_pm::{RegionOptions, SegmentKind, SegmentOptions};
use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const THREADS: usize = 2;
const CELLS: u64 = 500;
const PART: usize = CELLS as usize * 64;
/// Behind the parts, with the shadow policy: one word in each of more pages than may wait, all of which every eighth
/// transaction of a thread changes.
const WIDE: usize = 400 * PAGE;
const PAGE: usize = 4096;

fn wide() -> impl Iterator<Item = usize> {
    (THREADS * PART..THREADS * PART + WIDE).step_by(PAGE)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The cells that commit `number` of a thread sets to `number`; cell 0 always.
fn cells(thread: usize, number: u64) -> impl Iterator<Item = usize> {
    let random = mix(number * 2 + thread as u64);
    std::iter::once(0).chain((0..random % 12).map(move |i| 1 + (mix(random + i) % (CELLS - 1)) as usize))
}

fn verify(region: &Region, acknowledged: [u64; THREADS], is_wide: bool) {
    for (thread, acknowledged) in acknowledged.into_iter().enumerate() {
        let last: u64 = region.load(thread * PART);
        assert!(last >= acknowledged, "thread {thread}: {acknowledged} was acknowledged and {last} is there");
        let mut expected = vec![0; CELLS as usize];
        for number in 1..=last {
            cells(thread, number).for_each(|cell| expected[cell] = number);
        }
        for (cell, value) in expected.into_iter().enumerate() {
            let there: u64 = region.load(thread * PART + cell * 64);
            assert_eq!(there, value, "thread {thread}, cell {cell}, commit {last}");
        }
    }
    // All of it is of one transaction, the last of its thread that changed it.
    let value: u64 = region.load(wide().next().expect("there are some"));
    let newest = [0, 1].map(|thread| if is_wide { region.load::<u64>(thread * PART) / 8 * 8 } else { 0 });
    assert_eq!(value / 2, newest[(value % 2) as usize], "{value} of {newest:?}");
    assert!(value > 0 || newest == [0, 0], "none of {newest:?}");
    wide().for_each(|at| assert_eq!(region.load::<u64>(at), value, "byte {at}"));
}

fn say(text: String) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Unwraps; on a disk that is to fail, an error is a fair outcome, but nothing may be committed after it.
fn expect<T, E: Display>(result: Result<T, E>, what: &str, fails: bool) -> T {
    match result {
        Ok(value) => value,
        Err(error) if fails => {
            say(format!("guest: failed, {what}: {error}\n"));
            loop {
                std::thread::park();
            }
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Notes in the log of writes what was acknowledged before.
fn mark(acknowledged: &[AtomicU64; THREADS]) {
    let [a, b] = acknowledged.each_ref().map(|n| n.load(SeqCst));
    let arguments = ["message", "d", "0", "mark", &format!("ack.{a}.{b}")];
    let status = Command::new("/bin/dmsetup").args(arguments).status().expect("dmsetup runs");
    assert!(status.success(), "dmsetup: {status}");
}

/// How the store is opened.
fn options(log: &str) -> Options {
    let mut options = Store::options();
    options.create(true).log_bytes(1 << 20).stage_bytes(1 << 20);
    match log {
        "-" | "disk" | "xfs" | "dax" | "warm" => {}
        "power" => _ = options.policy(Policy::Undo).require(Class::Power),
        "os" => _ = options.policy(Policy::Undo).require(Class::Os),
        "shadow" => {
            options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(BeforeImages::Lazy);
            options.tuning(Tuning { memory_budget: Some(1 << 20), ..Tuning::default() });
        }
        "pool" => {
            let (bytes, page_bytes, replacement) = (1 << 20, 8192, Replacement::Random);
            options.policy(Policy::Shadow).tracking(Tracking::Fault);
            options.buffer_pool(BufferPool { bytes, page_bytes, replacement });
        }
        device => _ = options.log_path(device),
    }
    options
}

/// A segment of blocks, made with its region if there is none.
fn attached(path: &Path) -> Result<(Arc<caliburn_pm::Region>, Blocks), caliburn_pm::Error> {
    use caliburn_pm::{Error, Region};
    let create = || Region::create(path, &RegionOptions { len: Some(48 << 20), ..RegionOptions::default() });
    let region = Arc::new(match Region::open(path) {
        // A file that is not there, or a device of zeros; what holds anything else stays as it is.
        Err(Error::Medium { .. } | Error::NotARegion { .. }) => create()?,
        opened => opened?,
    });
    if region.segments()?.is_empty() {
        let kind = SegmentKind::Blocks { block_bytes: 4096 };
        region.create_segment(
            "disk",
            38 << 20,
            &SegmentOptions { kind, ..SegmentOptions::default() },
            |_| {},
        )?;
    }
    let blocks = region.attach_blocks("disk", true)?;
    Ok((region, blocks))
}

/// Serves a segment of blocks as a block device.
fn disk(path: &Path, device: &Path) -> Result<(), Box<dyn Error>> {
    let (region, blocks) = attached(path)?;
    let damaged = blocks.scrub(0..blocks.len())?;
    assert!(damaged.is_empty(), "blocks are damaged: {damaged:?}");
    let kind = region.info()?.kind;
    assert!(kind.survives() > caliburn_pm::Survives::Process, "{kind}");
    let about = format!("guest: a disk on {kind}, {} blocks undone\n", blocks.counts().undone);
    let export = Export { name: "disk".into(), blocks: Arc::new(blocks), at_once: false };
    let ready = || {
        std::fs::File::create("/ready").expect("there is room");
        say(about);
    };
    Device::new(device, export, 2)?.run(ready)?;
    Ok(())
}

/// Has the kernel fail.
fn fail(crash: &str) {
    let fault = match crash {
        "n" => "null",
        "s" => "stack",
        "h" => "hang",
        key => return std::fs::write("/proc/sysrq-trigger", key).expect("it does not return"),
    };
    std::fs::write("/sys/module/faulty/parameters/fault", fault).expect("it does not return");
    panic!("the kernel has not failed by {fault}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, what, region, device] = &arguments[..]
        && what == "disk"
    {
        return disk(Path::new(region), Path::new(device)).expect("the disk");
    }
    let number = |text: &str| text.parse::<u64>().expect("a number");
    if let [_, what, region, _, after, a, b, ..] = &arguments[..]
        && what == "wild"
    {
        return wild::run(Path::new(region), number(after), [number(a), number(b)]);
    }
    let [_, store, log, crash, after, a, b, rows, files] = &arguments[..] else { panic!("see the source") };
    let path = Path::new(store);
    let fails = crash == "f";
    let options = options(log);
    if path.join("catalog").exists() {
        let report = expect(options.check(path), "check", fails);
        assert!(report.is_clean(), "{:?}", report.problems);
    }
    let store = &expect(options.open(path), "open", fails);
    let segment = expect(store.segment_or_create("data", (THREADS * PART + WIDE) as u64), "segment", fails);
    let region = &expect(segment.map_all(), "map", fails);
    // It does not survive more, and does not say so.
    assert_eq!(store.reach(), if log == "os" { Class::Os } else { Class::Power });
    let shadow = log == "shadow" || log == "pool";
    verify(region, [number(a), number(b)], shadow);
    let beside = ["disk", "xfs", "dax", "warm"].contains(&&log[..]).then(|| {
        let folder = path.parent().expect("the store is on the disk");
        others::Beside::open(folder, [number(rows), number(files)])
    });
    let [last_row, last_file] = beside.as_ref().map_or([0; 2], |beside| beside.last);
    let last: [u64; THREADS] = std::array::from_fn(|thread| region.load(thread * PART));
    say(format!("guest: verified {} {} {last_row} {last_file}\n", last[0], last[1]));
    if crash == "v" {
        return;
    }
    let acknowledged = &[AtomicU64::new(number(a)), AtomicU64::new(number(b))];
    std::thread::scope(|scope| {
        if crash == "w" {
            scope.spawn(|| {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(number(after)) {
                    mark(acknowledged);
                }
                std::process::exit(0);
            });
        } else if ["c", "b", "r", "n", "s", "h"].contains(&&crash[..]) {
            scope.spawn(|| {
                let either = ["c", "b"][(mix(region.load(0)) % 2) as usize];
                std::thread::sleep(Duration::from_millis(number(after)));
                fail(if crash == "r" { either } else { crash });
            });
        }
        if let Some(beside) = beside {
            scope.spawn(move || beside.write());
        }
        for (thread, mine) in acknowledged.iter().enumerate() {
            scope.spawn(move || commit(store, region, thread, mine, (shadow, fails)));
        }
    });
}

/// Commits of one thread, until the machine is gone.
fn commit(store: &Store, region: &Region, thread: usize, mine: &AtomicU64, (shadow, fails): (bool, bool)) {
    let put = |at: usize, value: u64| {
        // SAFETY: the word is mapped, and one transaction at a time is open.
        unsafe { region.as_ptr().add(at).cast::<u64>().write_volatile(value) };
    };
    for number in region.load::<u64>(thread * PART) + 1.. {
        let mut tx = expect(store.begin(Mode::Restore), "begin", fails);
        for cell in cells(thread, number) {
            let at = thread * PART + cell * 64;
            if shadow {
                put(at, number);
            } else {
                expect(tx.store(region, at, &number), "declare", fails);
            }
        }
        if shadow && number.is_multiple_of(8) {
            // They are stolen, in part before the commit.
            wide().for_each(|page| put(page, number * 2 + thread as u64));
        }
        let class = if mix(number).is_multiple_of(3) { store.reach() } else { Class::Process };
        expect(tx.commit(class), "commit", fails);
        if class > Class::Process {
            mine.store(number, SeqCst);
            say(format!("ack {thread} {number}\n"));
        }
    }
}
