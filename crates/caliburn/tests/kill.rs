//! Real processes, really killed: two threads commit in both classes, a third does nothing but abort, the
//! segment grows and truncation runs all the time, and SIGKILL comes at any moment, recovery included.
//! Sometimes the process was stopped before. Everything acknowledged must be there, and each thread's
//! memory must be that of one of its commits. On the temporary directory, in memory, on XFS, and on an ext4 that
//! is full.

mod support;

use caliburn::{
    BeforeImages, BufferPool, Class, Guard, Mode, Options, Policy, RangeError, Region, Replacement, Store,
    Tracking, Transaction, Tuning,
};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::clean;

const THREADS: usize = 2;
const CELLS: u64 = 2000;

/// How a store recovers, and how a program changes it.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    policy: Policy,
    tracking: Tracking,
    /// Bytes from cell to cell.
    step: usize,
    /// Whether a buffer pool of few frames shows it.
    pooled: bool,
}

const CLOSE: usize = 64;
const REDO: Kind = Kind { policy: Policy::Redo, tracking: Tracking::Declared, step: CLOSE, pooled: false };
const UNDO: Kind = Kind { policy: Policy::Undo, ..REDO };
const FOUND: Kind = Kind { tracking: Tracking::Scan, ..REDO };
const SHADOW: Kind = Kind { policy: Policy::Shadow, ..REDO };
const CAUGHT: Kind = Kind { tracking: Tracking::Fault, ..SHADOW };
/// Long runs are of more pages than may wait.
const STOLEN: Kind = Kind { step: 4096, ..CAUGHT };
const POOLED: Kind = Kind { pooled: true, ..STOLEN };
/// Long runs are of more pages than memory is to keep, and of more bytes than the log takes, which is small again
/// after each opening.
const OUTGROWN: Kind = Kind { step: 4096, ..REDO };
const ALL: [Kind; 8] = [REDO, UNDO, FOUND, SHADOW, CAUGHT, STOLEN, POOLED, OUTGROWN];

impl Kind {
    fn options(self) -> Options {
        let mut options = support::options();
        options.log_bytes(256 << 10).stage_bytes(128 << 10).policy(self.policy).tracking(self.tracking);
        if self.pooled {
            let (bytes, page_bytes) = (32 << 16, 1 << 16);
            options.buffer_pool(BufferPool { bytes, page_bytes, replacement: Replacement::SecondChance });
        }
        if self == OUTGROWN {
            // Pages that are guarded cannot be moved.
            options.log_bytes(64 << 10).guard(Guard::Off).overflow(true);
            options.tuning(Tuning { memory_budget: Some(1 << 20), ..Tuning::default() });
        }
        if self == STOLEN {
            options.before_images(BeforeImages::Lazy);
            options.tuning(Tuning { memory_budget: Some(1 << 20), ..Tuning::default() });
        }
        options
    }

    /// Bytes of a thread.
    fn part(self) -> usize {
        4096 * self.step
    }

    fn offset(self, thread: usize, cell: u64) -> usize {
        thread * self.part() + cell as usize * self.step
    }

    /// Behind the threads' parts, what is always aborted.
    fn len(self) -> usize {
        THREADS * self.part() + self.step * 1024
    }

    fn region(self, store: &Store) -> Region {
        store.segment_or_create("data", self.len() as u64).unwrap().map_all().unwrap()
    }
}

/// Declares and stores, or just stores.
fn write<'t>(
    tx: &mut Transaction<'t>,
    memory: &'t Region,
    (offset, bytes): (usize, &[u8]),
    tracking: Tracking,
) -> Result<(), RangeError> {
    if tracking == Tracking::Declared {
        return tx.write(memory, offset, bytes);
    }
    support::just_store(memory, offset, bytes);
    Ok(())
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The cells that commit `number` of a thread sets to `number`; cell 0 always. Now and then a long run, too
/// large for the stage.
fn cells(kind: Kind, thread: usize, number: u64) -> Vec<std::ops::Range<u64>> {
    let random = mix(number * 2 + thread as u64);
    if random.is_multiple_of(if kind.step > CLOSE { 7 } else { 97 }) {
        return vec![0..1, 100..900];
    }
    let one = |i| {
        let at = 1 + mix(random + i) % (CELLS - 1);
        at..at + 1
    };
    std::iter::once(0..1).chain((0..random % 20).map(one)).collect()
}

/// Run in the child: commits for ever, acknowledging each on standard output.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_KILL_STORE") else { return };
    // A thread that finds something wrong ends the process, for its parent to see.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::exit(1);
    }));
    let kind = ALL[std::env::var("CALIBURN_KILL_KIND").unwrap().parse::<usize>().unwrap()];
    let Kind { policy, tracking, step, .. } = kind;
    let store = kind.options().open(Path::new(&path)).unwrap();
    let memory = kind.region(&store);
    let (store, memory) = (&store, &memory);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0u64.. {
                let mut tx = store.begin(Mode::Restore).unwrap();
                let many = if step > CLOSE && round.is_multiple_of(10) { 600 } else { 1 + round % 40 };
                for i in 0..many {
                    let at = THREADS * kind.part() + (mix(round + i) % 1000) as usize * step;
                    write(&mut tx, memory, (at, &[0xFF; 8]), tracking).unwrap();
                }
                tx.abort();
                if round.is_multiple_of(300) && memory.len() < kind.len() + (8 << 20) {
                    let segment = store.segment("data").unwrap();
                    match segment.grow(segment.len() + 65536) {
                        Ok(()) => memory.grow(segment.len() as usize).unwrap(),
                        Err(error) if error.to_string().contains("No space left") => say("full"),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in memory.load::<u64>(kind.offset(thread, 0)) + 1.. {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    for run in cells(kind, thread, number) {
                        if step == CLOSE && run.end - run.start > 1 {
                            let bytes: Vec<u8> =
                                run.clone().flat_map(|_| [number; 8]).flat_map(u64::to_ne_bytes).collect();
                            write(&mut tx, memory, (kind.offset(thread, run.start), &bytes), tracking)
                                .unwrap();
                            continue;
                        }
                        for cell in run {
                            let at = kind.offset(thread, cell);
                            let bytes = [number; 8].map(u64::to_ne_bytes);
                            let some = if kind == OUTGROWN { &bytes[..] } else { &bytes[..1] };
                            write(&mut tx, memory, (at, some.as_flattened()), tracking).unwrap();
                        }
                    }
                    if mix(number).is_multiple_of(7) {
                        tx.abort();
                        continue;
                    }
                    let power = policy == Policy::Redo && mix(number).is_multiple_of(11);
                    tx.commit(if power { Class::Power } else { Class::Process }).unwrap();
                    say(&format!("ack {thread} {number}"));
                }
            });
        }
    });
}

/// In one piece: a process that is killed says half a line at most, and that last.
fn say(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What a thread's part must hold after its commit `last`.
fn expected(kind: Kind, thread: usize, last: u64) -> Vec<u64> {
    let mut state = vec![0; CELLS as usize];
    for number in (1..=last).filter(|n| !mix(*n).is_multiple_of(7)) {
        for run in cells(kind, thread, number) {
            state[run.start as usize..run.end as usize].fill(number);
        }
    }
    state
}

#[test]
fn killed_at_any_moment_nothing_acknowledged_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    kill_again_and_again(dir.path(), 1, REDO);
}

#[test]
fn the_same_with_the_undo_policy() {
    let dir = tempfile::tempdir().unwrap();
    kill_again_and_again(dir.path(), 5, UNDO);
    let Some(mount) = support::mount("64m") else { return };
    kill_again_and_again(&mount.path, 6, UNDO);
}

#[test]
fn the_same_where_transactions_outgrow_log_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    kill_again_and_again(dir.path(), 12, OUTGROWN);
    let Some(mount) = support::mount("64m") else { return };
    kill_again_and_again(&mount.path, 13, OUTGROWN);
}

#[test]
fn the_same_where_changes_are_found() {
    let dir = tempfile::tempdir().unwrap();
    kill_again_and_again(dir.path(), 7, FOUND);
}

#[test]
fn the_same_with_the_shadow_policy() {
    for (seed, kind) in [(8, SHADOW), (9, CAUGHT), (10, STOLEN), (11, POOLED)] {
        let dir = tempfile::tempdir().unwrap();
        kill_again_and_again(dir.path(), seed, kind);
        let Some(mount) = support::mount("64m") else { continue };
        kill_again_and_again(&mount.path, seed, kind);
    }
}

#[test]
fn the_same_in_memory() {
    let Some(mount) = support::mount("64m") else { return };
    kill_again_and_again(&mount.path, 2, REDO);
}

#[test]
fn the_same_on_xfs() {
    let Some(mount) = support::mount_loop("xfs", 320) else { return };
    kill_again_and_again(&mount.path, 3, REDO);
}

#[test]
fn the_same_on_ext4_that_is_full() {
    let Some(mount) = support::mount_loop("ext4", 64) else { return };
    drop(REDO.region(&REDO.options().open(mount.path.join("s")).unwrap()));
    let full = std::fs::File::create(mount.path.join("full")).unwrap();
    while (&full).write_all(&[1; 65536]).is_ok() {}
    // Some growth succeeds; not so much that a slow machine never comes to the end of it.
    full.set_len(full.metadata().unwrap().len() - (256 << 10)).unwrap();
    kill_until(&mount.path, 4, REDO, true);
}

fn signal(child: &std::process::Child, name: &str) {
    support::run("kill", &[name, &child.id().to_string()]);
}

fn kill_again_and_again(dir: &Path, seed: u64, kind: Kind) {
    kill_until(dir, seed, kind, false);
}

/// Until some have also met the end of the file system, if that is wanted.
fn kill_until(dir: &Path, seed: u64, kind: Kind, end: bool) {
    let path = dir.join("s");
    let copies = tempfile::tempdir().unwrap();
    let store = kind.options().open(&path).unwrap();
    drop(kind.region(&store));
    store.close().unwrap();
    let kills = std::env::var("CALIBURN_KILLS").map_or(60, |n| n.parse().unwrap());
    // Who forces hundreds of pages lives longer, and commits less.
    let (kills, longest, enough) =
        if kind.step > CLOSE { (kills / 3, 300_000, 25) } else { (kills, 90_000, 100) };
    let mut acknowledged = [0u64; THREADS];
    let mut full = false;
    // On a busy machine most die before they have done anything.
    for kill in 0..kills.max(60) * 20 {
        if kill >= kills && acknowledged.iter().all(|n| *n > enough) && full >= end {
            break;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let number = ALL.iter().position(|other| *other == kind).unwrap().to_string();
        let mut child = child
            .env("CALIBURN_KILL_KIND", number)
            .args(["--exact", "child", "--nocapture"])
            .env("CALIBURN_KILL_STORE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        // A third die within their first milliseconds, while they recover.
        let random = mix(kill * 31 + seed);
        let life = if random.is_multiple_of(3) { random / 3 % 9_000 } else { random / 3 % longest };
        let reader = std::thread::spawn(move || {
            let (mut last, mut full) = ([0u64; THREADS], false);
            for line in output.lines().map_while(Result::ok) {
                full |= line == "full";
                // The test harness prints its own lines before ours.
                let Some((_, line)) = line.split_once("ack ") else { continue };
                if let Some((thread, number)) =
                    line.split_once(' ').and_then(|(t, n)| Some((t.parse::<usize>().ok()?, n.parse().ok()?)))
                {
                    last[thread] = number;
                }
            }
            (last, full)
        });
        std::thread::sleep(Duration::from_micros(life));
        if random.is_multiple_of(8) {
            signal(&child, "-STOP");
            std::thread::sleep(Duration::from_millis(3));
            if random.is_multiple_of(16) {
                signal(&child, "-CONT");
                std::thread::sleep(Duration::from_micros(life / 8));
            }
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "the child died by itself: {status}");
        let (said, was_full) = reader.join().unwrap();
        full |= was_full;
        for (newest, last) in acknowledged.iter_mut().zip(said) {
            *newest = (*newest).max(last);
        }
        // Looked at on a copy, so that the next child has to recover too.
        if kill % 4 == 0 {
            let copy = copies.path().join("copy");
            support::copy_store(&path, &copy);
            verify(&copy, &acknowledged, kill, kind);
            std::fs::remove_dir_all(&copy).unwrap();
        }
    }
    verify(&path, &acknowledged, kills, kind);
    assert!(acknowledged.iter().all(|n| *n > enough), "hardly anything was committed: {acknowledged:?}");
    assert!(full >= end, "no growth met the end of the file system");
}

fn verify(path: &Path, acknowledged: &[u64], kill: u64, kind: Kind) {
    clean(path);
    let store = kind.options().open(path).unwrap();
    let memory = kind.region(&store);
    for (thread, acknowledged) in acknowledged.iter().enumerate() {
        let last: u64 = memory.load(kind.offset(thread, 0));
        assert!(
            last >= *acknowledged,
            "kill {kill}: thread {thread} acknowledged {acknowledged} and has {last}"
        );
        for (cell, value) in expected(kind, thread, last).into_iter().enumerate() {
            assert_eq!(
                memory.load::<u64>(kind.offset(thread, cell as u64)),
                value,
                "kill {kill}, thread {thread}, cell {cell}"
            );
        }
    }
    drop(memory);
    store.close().unwrap();
    clean(path);
}
