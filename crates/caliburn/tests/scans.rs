//! Programs that just store: changes that are found by looking.

mod support;

use caliburn::{Class, MapError, Mode, OpenError, Options, Policy, Region, Segment, Store, Tracking, Tuning};
use proptest::prelude::*;
use std::io::Read;
use std::path::Path;
use support::{copy_store, set};

const LEN: usize = 1 << 20;

fn options() -> Options {
    let mut options = support::options();
    options.tracking(Tracking::Scan).log_bytes(4 << 20);
    options
}

fn data(store: &Store) -> Segment {
    store.segment_or_create("data", LEN as u64).unwrap()
}

fn opened(path: &Path) -> (Store, Region) {
    let store = options().open(path).unwrap();
    let region = data(&store).map_all().unwrap();
    (store, region)
}

/// Whether the kernel is one that notes what is stored to, and does so for this process.
fn can_watch() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    // SAFETY: takes flags: close-on-exec, and of this process's own faults only.
    let file = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
    // SAFETY: it was just opened, if it was.
    let allowed = file >= 0 && unsafe { libc::close(file as libc::c_int) } == 0;
    allowed && (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

fn word(region: &Region, at: usize) -> u64 {
    region.load(at)
}

#[test]
fn a_program_just_stores() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path);
    for turn in 1..=3u64 {
        let tx = store.begin(Mode::NoRestore).unwrap();
        (0..100).for_each(|i| set(&region, i * 9001, turn));
        tx.commit(Class::Process).unwrap();
        // What is stored again is found again.
        let tx = store.begin(Mode::Restore).unwrap();
        (0..100).for_each(|i| set(&region, i * 9001, 99));
        (0..LEN / 8).for_each(|i| set(&region, i * 8, 98));
        tx.abort();
        assert!((0..100).all(|i| word(&region, i * 9001) == turn));
    }
    drop(region);
    store.close().unwrap();
    support::clean(&path);
    let (_store, region) = opened(&path);
    let there = (0..100).map(|i| word(&region, i * 9001)).collect::<Vec<_>>();
    assert_eq!(there, [3; 100]);
}

/// A page is found, and the bytes in it that differ are logged.
#[test]
fn only_what_has_changed_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for turn in 1..=2 {
        let before = store.statistics().committed_log_bytes;
        let tx = store.begin(Mode::NoRestore).unwrap();
        (0..100).for_each(|page| set(&region, page * 8192 + 100, turn * 0x0101_0101_0101_0101));
        // The same again is no change.
        (0..100).for_each(|page| set(&region, page * 8192 + 4096, 0));
        tx.commit(Class::Process).unwrap();
        let logged = store.statistics().committed_log_bytes - before;
        assert!((100 * 8..100 * 64).contains(&logged), "{logged} bytes");
    }
    let before = store.statistics();
    store.begin(Mode::NoRestore).unwrap().commit(Class::Power).unwrap();
    assert_eq!(store.statistics().committed_log_bytes, before.committed_log_bytes);
}

#[test]
fn declared_ranges_and_found_pages_mix() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for commits in [true, false] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        let base = u64::from(!commits) * 10;
        tx.store(&region, 100, &(base + 1)).unwrap();
        set(&region, 200, base + 2);
        set(&region, 5000, base + 3);
        tx.store(&region, 5100, &(base + 4)).unwrap();
        tx.write(&region, 3000, &[5; 20_000]).unwrap();
        set(&region, 22_000, base + 6);
        if commits {
            tx.commit(Class::Process).unwrap()
        } else {
            tx.abort()
        }
        assert_eq!((word(&region, 100), word(&region, 200), word(&region, 22_000)), (1, 2, 6));
    }
}

#[test]
fn a_killed_process_leaves_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
    let (store, region) = opened(&path);
    let tx = store.begin(Mode::NoRestore).unwrap();
    set(&region, 40, 1);
    tx.commit(Class::Process).unwrap();
    let tx = store.begin(Mode::NoRestore).unwrap();
    (0..LEN / 8).for_each(|i| set(&region, i * 8, 2));
    copy_store(&path, &copy);
    // What recovery lays over memory is committed: aborting does not undo it.
    let (second, restored) = opened(&copy);
    for _ in 0..2 {
        assert!((0..LEN / 8).all(|i| word(&restored, i * 8) == u64::from(i == 5)));
        let other = second.begin(Mode::NoRestore).unwrap();
        set(&restored, 40, 7);
        set(&restored, 48, 7);
        other.abort();
    }
    tx.commit(Class::Process).unwrap();
    assert_eq!(word(&region, 40), 2);
}

#[test]
fn many_threads_store_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    support::many_threads_store(&store, &region);
}

#[test]
fn what_a_system_call_stores_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for commits in [false, true] {
        let tx = store.begin(Mode::Restore).unwrap();
        // SAFETY: the bytes are mapped, and nobody else uses them.
        let target = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(8000), 5000) };
        std::fs::File::open("/proc/self/exe").unwrap().read_exact(target).unwrap();
        let read = word(&region, 8000);
        assert_ne!(read, 0);
        if commits {
            tx.commit(Class::Power).unwrap();
        } else {
            tx.abort();
        }
        assert_eq!(word(&region, 8000), if commits { read } else { 0 });
    }
}

#[test]
fn a_region_that_was_stored_to_stays_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 4096, 1);
    let refused = region.unmap().unwrap_err();
    assert!(matches!(refused.cause, MapError::Uncommitted { .. }), "{}", refused.cause);
    tx.commit(Class::Process).unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    refused.region.unmap().unwrap();
    tx.commit(Class::Process).unwrap();
    assert_eq!(word(&data(&store).map_all().unwrap(), 4096), 1);
}

/// Memory that is the program's again is watched no more, and no more part of anything.
#[test]
fn a_region_that_is_left_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 4096, 1);
    tx.commit(Class::Process).unwrap();
    // Where the kernel can, it watches, until then.
    let base = format!("{:x}-", region.as_ptr().addr());
    let watched = || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&base));
        lines.find(|line| line.starts_with("VmFlags:")).unwrap().contains(" uw")
    };
    assert_eq!(watched(), can_watch());
    let memory = region.leave().unwrap();
    assert!(!watched());
    let tx = store.begin(Mode::Restore).unwrap();
    // SAFETY: the memory is this test's.
    unsafe {
        memory.add(4096).write_volatile(9);
        tx.abort();
        assert_eq!(memory.add(4096).read_volatile(), 9);
        assert_eq!(libc::munmap(memory.cast(), LEN), 0);
    }
    assert_eq!(word(&data(&store).map_all().unwrap(), 4096), 1);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for policy in [Policy::Undo, Policy::Shadow] {
        let path = dir.path().join(policy.name());
        let refused = options().policy(policy).open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::Option { name: "tracking", .. }), "{refused}");
        assert!(refused.to_string().contains("Tracking::Fault"), "{refused}");
        assert!(!path.exists(), "nor is there anything then");
        let mut plain = support::options();
        plain.policy(policy).open(&path).unwrap().close().unwrap();
        let refused = options().open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::Option { name: "tracking", .. }), "{refused}");
    }
    let both = options().verify(true).open(dir.path().join("s")).unwrap_err();
    assert!(matches!(both, OpenError::Option { name: "verify", .. }), "{both}");
    let (store, _region) = opened(&dir.path().join("t"));
    let mut tx = store.begin(Mode::Restore).unwrap();
    assert!(tx.savepoint().is_err() && tx.branch().is_err() && store.begin(Mode::Restore).is_err());
    assert!(tx.prepare(b"id").is_err());
}

/// A transaction that is too large for the log is lost, and nothing else.
#[test]
fn what_the_log_cannot_take_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().large_transactions(false).log_bytes(1 << 20).open(&path).unwrap();
    let region = data(&store).map_all().unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 4096, 1);
    tx.commit(Class::Process).unwrap();
    for _ in 0..2 {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..LEN / 8).for_each(|i| set(&region, i * 8, !0));
        let lost = tx.commit(Class::Process).unwrap_err().to_string();
        assert!(lost.contains("need a log of at least"), "{lost}");
        assert!((0..LEN / 8).all(|i| word(&region, i * 8) == u64::from(i == 512)));
    }
    drop(region);
    store.close().unwrap();
    // Where it may grow, it does.
    let store = options().open(&path).unwrap();
    let region = data(&store).map_all().unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    (0..LEN / 8).for_each(|i| set(&region, i * 8, !0));
    tx.commit(Class::Process).unwrap();
    assert!((0..LEN / 8).all(|i| word(&region, i * 8) == !0));
}

/// Memory of somebody else's in place of the region's is nobody's change.
#[test]
fn what_was_mapped_over_a_region_is_not_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 0, 1);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the page is the region's, which this test misuses, and nobody else uses it.
    let over = unsafe {
        libc::mmap(region.as_ptr().add(8192).cast(), 8192, protection, flags | libc::MAP_FIXED, -1, 0)
    };
    assert_ne!(over, libc::MAP_FAILED);
    set(&region, 8192, 2);
    let refused = tx.commit(Class::Process).unwrap_err().to_string();
    assert!(refused.contains("\"data\"") && refused.contains("mapped over"), "{refused}");
    assert_eq!(word(&region, 0), 0);
    region.unmap().unwrap();
    let region = data(&store).map_all().unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 0, 3);
    tx.commit(Class::Process).unwrap();
    assert_eq!((word(&region, 0), word(&region, 8192)), (3, 0));
}

/// Changes a word of every page, in transactions of 64, which are committed or undone.
fn change_all(store: &Store, region: &Region, turn: u64, commits: bool) {
    let pages = region.len() / 4096;
    for part in 0..pages / 64 {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..64).for_each(|page| set(region, (part * 64 + page) * 4096, turn));
        if commits { tx.commit(Class::Process).unwrap() } else { tx.abort() }
    }
    let there = if commits { turn } else { turn - 1 };
    assert!((0..pages).all(|page| word(region, page * 4096) == there), "{turn}");
}

/// What is locked in memory is not given back, and that is all.
#[test]
fn locked_memory_stays() {
    const WIDE: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let tuning = Tuning { memory_budget: Some(2 << 20), ..Tuning::default() };
    let store = options().tuning(tuning).open(dir.path().join("s")).unwrap();
    let region = store.create_segment("wide", WIDE as u64).unwrap().map_all().unwrap();
    // Locked at once, they would keep the kernel busy for ever: `docs/memory.md`.
    // SAFETY: takes an address and a length, of pages that are mapped.
    let locked = unsafe {
        libc::madvise(region.as_ptr().cast(), WIDE, libc::MADV_POPULATE_READ) == 0
            && libc::mlock(region.as_ptr().cast(), WIDE) == 0
    };
    if !locked {
        eprintln!("not run: so much memory may not be locked");
        return;
    }
    for turn in 1..=3u64 {
        change_all(&store, &region, turn, turn != 2);
    }
}

/// Memory that was there before the segment was: what was not stored to since is no change.
#[test]
fn memory_of_the_programs_own_is_compared_with_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let memory = caliburn_map(LEN);
    // SAFETY: the memory is this test's, and stays as long as the region.
    unsafe {
        memory.write_bytes(3, LEN);
        let region = data(&store).map_unread(0..LEN as u64, memory.addr()).unwrap();
        let tx = store.begin(Mode::Restore).unwrap();
        set(&region, 4096, 1);
        tx.commit(Class::Process).unwrap();
        let tx = store.begin(Mode::Restore).unwrap();
        set(&region, 8192, 1);
        tx.abort();
        assert_eq!((word(&region, 4096), word(&region, 8192) as u8), (1, 3));
        region.unmap().unwrap();
    }
    store.close().unwrap();
    let (_store, region) = opened(&path);
    assert_eq!((word(&region, 4096), word(&region, 4104), word(&region, 8192)), (1, 0, 0));
}

/// Memory of the program's.
fn caliburn_map(len: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: takes nothing from anybody.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.expose_provenance();
    memory.cast()
}

/// Pages go back to the system when the segment has what they hold, and images of pages as well.
#[test]
fn memory_is_given_back() {
    const WIDE: usize = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let tuning = Tuning { memory_budget: Some(4 << 20), ..Tuning::default() };
    let store = options().tuning(tuning).open(dir.path().join("s")).unwrap();
    let region = store.create_segment("wide", WIDE as u64).unwrap().map_all().unwrap();
    for turn in 1..=4u64 {
        // What is undone has taken memory, too.
        change_all(&store, &region, turn, turn != 3);
        store.truncate().unwrap();
        let private = private_of(&region);
        assert!(
            private < 8 << 20,
            "{private} bytes are private of {WIDE}, and of as much that is compared with"
        );
    }
    assert!(store.statistics().pages_dropped > 1000);
}

/// Bytes of this process's own in the mapping of a region, and in all others that begin with the same file.
fn private_of(region: &Region) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let base = format!("{:x}-", region.as_ptr().addr());
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some(word) if !word.ends_with(':') => parts.push((line, 0)),
            Some("Anonymous:") => {
                parts.last_mut().unwrap().1 = words.next().unwrap().parse::<usize>().unwrap() << 10;
            }
            _ => {}
        }
    }
    let of = |line: &str| line.split_ascii_whitespace().nth(5).unwrap_or_default().to_owned();
    let file = parts.iter().find(|(line, _)| line.starts_with(&base)).map(|(line, _)| of(line)).unwrap();
    let both: Vec<usize> =
        parts.iter().filter(|(line, _)| of(line) == file).map(|(_, bytes)| *bytes).collect();
    assert!(both.len() >= 2, "a region and its image");
    both.iter().sum()
}

/// Where userfaultfd is forbidden, changes are found all the same.
#[test]
fn without_userfaultfd_all_is_compared() {
    std::thread::scope(|scope| {
        let forbidden = scope.spawn(|| {
            support::forbid(libc::SYS_userfaultfd, libc::EPERM);
            let dir = tempfile::tempdir().unwrap();
            let (store, region) = opened(&dir.path().join("s"));
            for turn in 1..=3 {
                let tx = store.begin(Mode::Restore).unwrap();
                (0..100).for_each(|i| set(&region, i * 9001, turn));
                if turn == 2 {
                    tx.abort()
                } else {
                    tx.commit(Class::Process).unwrap()
                }
                let there = if turn == 2 { 1 } else { turn };
                assert!((0..100).all(|i| word(&region, i * 9001) == there));
            }
        });
        forbidden.join().unwrap();
    });
}

#[derive(Debug, Clone)]
enum Step {
    Store(usize, usize, u8),
    Declare(usize, usize, u8),
    Commit,
    Abort,
    Truncate,
    Kill,
    Grow,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..LEN - 20_000, prop_oneof![1..20usize, 1..20_000usize], any::<u8>());
    prop_oneof![
        8 => place().prop_map(|(at, len, with)| Step::Store(at, len, with)),
        2 => place().prop_map(|(at, len, with)| Step::Declare(at, len, with)),
        3 => Just(Step::Commit),
        2 => Just(Step::Abort),
        1 => Just(Step::Truncate),
        1 => Just(Step::Kill),
        1 => Just(Step::Grow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is stored, memory after the end of a transaction is what was committed.
    #[test]
    fn memory_is_what_was_committed(steps in proptest::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("0");
        let with = |path: &Path| {
            let tuning = Tuning { memory_budget: Some(2 << 20), ..Tuning::default() };
            options().tuning(tuning).open(path).unwrap()
        };
        let mut store = with(&path);
        let mut region = store.create_segment("data", LEN as u64 / 2).unwrap().map_all().unwrap();
        let mut committed = vec![0; LEN];
        for (number, steps) in steps.split_inclusive(|s| !matches!(s, Step::Store(..) | Step::Declare(..))).enumerate() {
            let mut now = committed.clone();
            let mut tx = store.begin(Mode::Restore).unwrap();
            for step in steps {
                let (Step::Store(at, len, with) | Step::Declare(at, len, with)) = *step else { continue };
                let (at, end) = (at.min(region.len()), (at + len).min(region.len()));
                if matches!(step, Step::Declare(..)) {
                    tx.write(&region, at, &vec![with; end - at]).unwrap();
                } else {
                    // SAFETY: the bytes are mapped, and this thread's.
                    unsafe { region.as_ptr().add(at).write_bytes(with, end - at) };
                }
                now[at..end].fill(with);
            }
            let last = steps.last().unwrap();
            match last {
                Step::Abort => tx.abort(),
                Step::Kill => {
                    let next = dir.path().join((number + 1).to_string());
                    copy_store(&path, &next);
                    drop(tx);
                    let len = region.len();
                    (region, store, path) = {
                        drop((region, store));
                        let store = with(&next);
                        (store.segment("data").unwrap().map(0..len as u64).unwrap(), store, next)
                    };
                }
                _ => {
                    tx.commit(Class::Process).unwrap();
                    committed = now;
                }
            }
            match last {
                Step::Truncate => store.truncate().unwrap(),
                Step::Grow => {
                    store.segment("data").unwrap().grow(LEN as u64).unwrap();
                    region.grow(LEN).unwrap();
                }
                _ => {}
            }
            // SAFETY: the bytes are mapped, and nobody stores to them.
            let there = unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) };
            let wrong = there.iter().zip(&committed).position(|(a, b)| a != b);
            prop_assert_eq!(wrong, None, "after {:?}", steps);
        }
    }
}
