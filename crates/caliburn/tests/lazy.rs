//! Before-images that are written as late as memory lets them (`BeforeImages::Lazy`, `Adaptive`).

mod support;

use caliburn::{BeforeImages, Class, Extent, Mode, Options, Policy, Region, Store, Tracking, Tuning, check};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use support::{copy_store, limit_files, set};

const PAGE: usize = 4096;
/// Several times as many pages as may wait.
const PAGES: usize = 4096;
const WAIT: usize = 256;

fn options(before: BeforeImages) -> Options {
    let mut options = support::options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(before);
    options.tuning(Tuning { memory_budget: Some((WAIT * PAGE) as u64), ..Tuning::default() });
    options
}

fn opened(path: &Path) -> (Store, Region) {
    let store = options(BeforeImages::Lazy).open(path).unwrap();
    let region = store.segment_or_create("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    (store, region)
}

fn all(region: &Region, expected: impl Fn(usize) -> u64) {
    for page in 0..PAGES {
        assert_eq!(region.load::<u64>(page * PAGE + 8), expected(page), "page {page}");
    }
}

fn clean(path: &Path) {
    assert_eq!(check(path).unwrap().problems, []);
}

/// Pages of a region that are this process's own.
fn private_pages(region: &Region) -> usize {
    let (mut pages, start) = (0, region.as_ptr().addr());
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    for page in 0..region.len().div_ceil(PAGE) {
        let mut entry = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&map, &mut entry, ((start / PAGE + page) * 8) as u64)
            .unwrap();
        let entry = u64::from_le_bytes(entry);
        pages += usize::from(entry >> 63 == 1 && entry >> 61 & 1 == 0);
    }
    pages
}

#[test]
fn what_fits_memory_waits_and_nothing_is_written_before_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path);
    for turn in 1..=3u64 {
        let file = std::fs::read(path.join("data.segment")).unwrap();
        let tx = store.begin(Mode::Restore).unwrap();
        (0..100).for_each(|i| set(&region, i * PAGE + 8, turn));
        assert_eq!(store.query().log_used, 0);
        assert!(std::fs::read(path.join("data.segment")).unwrap() == file);
        if turn == 2 {
            tx.abort();
        } else {
            tx.commit(Class::Power).unwrap();
            assert!(std::fs::read(path.join("data.segment")).unwrap() != file);
        }
        assert_eq!((private_pages(&region), store.query().log_used), (0, 0));
        let there = if turn == 2 { 1 } else { turn };
        all(&region, |page| if page < 100 { there } else { 0 });
    }
    drop(region);
    store.close().unwrap();
    clean(&path);
}

#[test]
fn what_does_not_is_stolen_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
    let (store, region) = opened(&path);
    for turn in 1..=4u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        for i in 0..PAGES {
            // First in order, then scattered.
            let page = if turn < 3 { i } else { i * 1031 % PAGES };
            set(&region, page * PAGE + 8, turn * 10);
            // What was stolen can be stored to as before.
            set(&region, i / 2 * PAGE + 8, turn * 10);
        }
        assert!(store.query().log_used as usize > (PAGES - 2 * WAIT) * PAGE / 2);
        assert!(private_pages(&region) <= WAIT + 128, "{}", private_pages(&region));
        all(&region, |_| turn * 10);
        if turn == 4 {
            // Killed here, nothing of it is left.
            copy_store(&path, &copy);
        }
        let before = if turn > 2 { 10 } else { 0 };
        if turn % 2 == 1 {
            tx.commit(Class::Power).unwrap();
            all(&region, |_| turn * 10);
        } else {
            tx.abort();
            all(&region, |_| before + if turn == 4 { 20 } else { 10 });
        }
        assert_eq!((private_pages(&region), store.query().log_used), (0, 0));
    }
    let (second, restored) = opened(&copy);
    all(&restored, |_| 30);
    drop(restored);
    second.close().unwrap();
    clean(&copy);
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(&path);
    all(&region, |_| 30);
}

/// Stores that are made while their page is being stolen are not lost.
#[test]
fn threads_store_to_pages_that_are_being_stolen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path);
    for round in 1..=3u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        let (done, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The same few pages again and again; each time the last store must be there.
                let mut n = 0;
                while !done.load(SeqCst) {
                    for page in 0..8 {
                        assert!(
                            n == 0 || region.load::<u64>(page * PAGE + 64) == n,
                            "page {page}, store {n}"
                        );
                        set(&region, page * PAGE + 64, n + 1);
                    }
                    n += 1;
                }
                counted.store(n, SeqCst);
            });
            for page in 16..PAGES {
                set(&region, page * PAGE + 8, round);
            }
            done.store(true, SeqCst);
        });
        let last = counted.load(SeqCst);
        assert!((0..8).all(|page| region.load::<u64>(page * PAGE + 64) == last));
        tx.commit(Class::Power).unwrap();
        assert!((0..8).all(|page| region.load::<u64>(page * PAGE + 64) == last));
        all(&region, |page| if page < 16 { 0 } else { round });
    }
}

/// Also when the pages had been stored to before they were declared, and others are stolen meanwhile.
#[test]
fn a_system_call_stores_to_what_was_declared_while_pages_are_stolen() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for _ in 0..3 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..8).for_each(|page| set(&region, page * PAGE + 64, 7));
        tx.set_range(&region, 0..8 * PAGE).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                // SAFETY: the bytes are mapped and declared, and nobody else uses them.
                let target = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), 8 * PAGE) };
                let mut zeros = std::fs::File::open("/dev/zero").unwrap();
                let mut reads = 0u64;
                while !done.load(SeqCst) {
                    zeros.read_exact(target).map_err(|error| format!("read {reads}: {error}"))?;
                    reads += 1;
                }
                Ok::<u64, String>(reads)
            });
            (16..PAGES).for_each(|page| set(&region, page * PAGE + 8, 5));
            done.store(true, SeqCst);
            assert!(reading.join().unwrap().unwrap() > 0);
        });
        assert_eq!(region.load::<u64>(64), 0);
        tx.abort();
        all(&region, |_| 0);
    }
}

/// Locked memory cannot be given back: it holds what it must all the same.
#[test]
fn locked_memory_holds_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    all(&region, |_| 0);
    let lock = |yes: bool| {
        // SAFETY: the pages are mapped, and were all read.
        unsafe {
            let at = region.as_ptr().cast();
            if yes { libc::mlock(at, 64 * PAGE) } else { libc::munlock(at, 64 * PAGE) }
        }
    };
    if lock(true) != 0 {
        return;
    }
    let tx = store.begin(Mode::Restore).unwrap();
    (0..32).for_each(|page| set(&region, page * PAGE + 8, 1));
    tx.commit(Class::Power).unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    (0..64).for_each(|page| set(&region, page * PAGE + 8, 2));
    tx.abort();
    all(&region, |page| u64::from(page < 32));
    lock(false);
}

/// A segment that grows, and another one, in the same transaction; regions that are mapped in parts.
#[test]
fn several_regions_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(BeforeImages::Lazy).open(&path).unwrap();
    let half = (PAGES / 2 * PAGE) as u64;
    let one = store.create_segment("one", 2 * half).unwrap();
    let two = store.create_segment("two", half).unwrap();
    let regions = [one.map(0..half).unwrap(), one.map(half..2 * half).unwrap(), two.map_all().unwrap()];
    for turn in 1..=3u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        for page in (0..PAGES / 2).step_by(3) {
            regions.iter().for_each(|region| set(region, page * PAGE, turn));
        }
        if turn == 2 {
            tx.abort()
        } else {
            tx.commit(Class::Power).unwrap()
        }
        let there = if turn == 2 { 1 } else { turn };
        for page in 0..PAGES / 2 {
            let wanted = if page % 3 == 0 { there } else { 0 };
            assert!(regions.iter().all(|region| region.load::<u64>(page * PAGE) == wanted), "page {page}");
        }
    }
    drop(regions);
    store.close().unwrap();
    clean(&path);
}

/// Mapping, growing and stealing wait for each other, but never in a circle.
#[test]
fn regions_are_mapped_and_grow_while_pages_are_stolen() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let other = store.create_segment("other", 1 << 20).unwrap();
    let growing = store.create_segment("growing", 1 << 16).unwrap();
    let grown = growing.map_all().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mapping = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(SeqCst) || rounds == 0 {
                other.map(0..1 << 19).unwrap().unmap().unwrap();
                if rounds < 256 {
                    growing.grow(growing.len() + (1 << 16)).unwrap();
                    grown.grow(growing.len() as usize).unwrap();
                }
                rounds += 1;
            }
        });
        for turn in 1..=3 {
            let tx = store.begin(Mode::Restore).unwrap();
            (0..PAGES).for_each(|page| set(&region, page * 1031 % PAGES * PAGE + 8, turn));
            tx.commit(Class::Power).unwrap();
        }
        done.store(true, SeqCst);
        mapping.join().unwrap();
    });
    all(&region, |_| 3);
}

/// Many scattered pages, transaction after transaction, none of which outgrows memory.
#[test]
fn mappings_are_joined_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = options(BeforeImages::Lazy)
        .tuning(Tuning { memory_budget: Some(64 << 20), ..Tuning::default() })
        .open(dir.path().join("s"))
        .unwrap();
    let region = store.create_segment("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    let memory = region.as_ptr().addr()..region.as_ptr().addr() + region.len();
    let mappings = || {
        let all = std::fs::read_to_string("/proc/self/maps").unwrap();
        let starts =
            all.lines().map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
        starts.filter(|start| memory.contains(start)).count()
    };
    for turn in 1..=3u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        // So far apart that each is opened alone.
        (0..PAGES / 16).for_each(|i| set(&region, i * 16 * PAGE, turn));
        if turn == 2 {
            tx.abort()
        } else {
            tx.commit(Class::Power).unwrap()
        }
        assert_eq!(mappings(), 1, "turn {turn}");
        // Few of them stolen, and many.
        for declared in [20, 200] {
            let mut tx = store.begin(Mode::Restore).unwrap();
            (0..declared).for_each(|i| tx.store(&region, i * 20 * PAGE, &turn).unwrap());
            set(&region, 7 * PAGE, turn);
            tx.commit(Class::Power).unwrap();
            assert_eq!(mappings(), 1, "turn {turn}, {declared} declared");
        }
    }
}

/// Pages that were stored to, all over, and are then declared one by one.
#[test]
fn what_waits_is_declared_with_one_force() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for turn in 1..=2u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..WAIT).for_each(|page| set(&region, page * PAGE + 8, turn));
        let used = |after: &str| {
            let used = store.query().log_used as usize / PAGE;
            assert!((WAIT / 2..WAIT + 125).contains(&used), "{used} pages {after}");
        };
        for page in (0..WAIT).step_by(2) {
            tx.store(&region, page * PAGE + 16, &turn).unwrap();
            used("when some are declared");
        }
        if turn == 2 {
            tx.abort()
        } else {
            tx.commit(Class::Power).unwrap()
        }
        all(&region, |page| u64::from(page < WAIT));
        assert!((0..WAIT).all(|page| region.load::<u64>(page * PAGE + 16) == u64::from(page % 2 == 0)));
    }
}

/// A file that was adopted, its last page cut off, and what was appended to it mapped behind that.
#[test]
fn a_region_that_ends_within_a_page_has_another_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (dir.path().join("data"), dir.path().join("s"));
    std::fs::write(&data, [1; 3 * PAGE + 512]).unwrap();
    let with = || {
        let mut with = options(BeforeImages::Lazy);
        with.outside(dir.path());
        with
    };
    let store = with().open(&path).unwrap();
    let first = store.adopt_segment(&data).unwrap().map_all().unwrap();
    std::fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(8 * PAGE as u64).unwrap();
    let second = store.adopt_segment(&data).unwrap().map(4 * PAGE as u64..8 * PAGE as u64).unwrap();
    for (turn, declares) in [(1, false), (2, true), (3, false), (4, false)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        for region in [&first, &second] {
            set(region, 3 * PAGE, turn);
            if declares {
                tx.store(region, 3 * PAGE + 8, &turn).unwrap();
            }
            set(region, 8, turn);
        }
        if turn == 3 {
            tx.abort()
        } else {
            tx.commit(Class::Power).unwrap()
        }
        let there = if turn == 3 { 2 } else { turn };
        let file = std::fs::read(&data).unwrap();
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        for (region, at) in [(&first, 0), (&second, 4 * PAGE)] {
            assert_eq!(
                (region.load::<u64>(3 * PAGE), word(at + 3 * PAGE), word(at + 8)),
                (there, there, there)
            );
        }
        assert_eq!((private_pages(&first), private_pages(&second)), (0, 0));
    }
}

/// Files cannot become longer: nothing can be stolen. The transaction sees what it stores, and is lost.
fn on_a_full_disk(dir: &Path) -> ! {
    let path = dir.join("s");
    let (store, region) = opened(&path);
    let tx = store.begin(Mode::Restore).unwrap();
    (0..100).for_each(|page| set(&region, page * PAGE + 8, 1));
    tx.commit(Class::Power).unwrap();
    limit_files((PAGES * PAGE + (128 << 10)) as u64);
    for commits in [true, false, true] {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 2));
        (0..PAGES).for_each(|page| set(&region, page * PAGE + 16, 3));
        all(&region, |_| 2);
        if commits {
            let lost = tx.commit(Class::Power).unwrap_err().to_string();
            assert!(lost.contains("old values could not be kept"), "{lost}");
        } else {
            tx.abort();
        }
        all(&region, |page| u64::from(page < 100));
    }
    limit_files(libc::RLIM_INFINITY);
    let tx = store.begin(Mode::Restore).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE + 24, 4));
    tx.commit(Class::Power).unwrap();
    all(&region, |page| u64::from(page < 100));
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(&path);
    assert!((0..PAGES).all(|page| region.load::<u64>(page * PAGE + 24) == 4));
    assert!((0..PAGES).all(|page| region.load::<u64>(page * PAGE + 16) == 0));
    all(&region, |page| u64::from(page < 100));
    std::process::exit(55);
}

#[test]
fn a_full_disk_loses_the_transaction_and_nothing_else() {
    const CHILD: &str = "CALIBURN_LAZY_FULL";
    if std::env::var_os(CHILD).is_some() {
        on_a_full_disk(tempfile::tempdir().unwrap().path());
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_full_disk_loses_the_transaction_and_nothing_else", "--nocapture"]);
    let output = command.env(CHILD, "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(55), "{told}");
}

#[test]
fn a_transaction_says_beforehand_that_it_changes_many_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    for (extent, log_used) in [(Some(Extent::Many), true), (None, false), (Some(Extent::Few), false)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        set(&region, 8, 1);
        extent.into_iter().for_each(|extent| tx.will_change(extent));
        // What waits by then does so no longer.
        set(&region, 64 * PAGE + 8, 1);
        assert_eq!(store.query().log_used > 0, log_used, "{extent:?}");
        assert_eq!(private_pages(&region) == 0, log_used, "{extent:?}");
        tx.abort();
        all(&region, |_| 0);
    }
}

const LIMIT: u64 = 64 << 20;

/// Whether touching a page of a region reads that page alone.
fn is_scattered(region: &Region) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", region.as_ptr().addr());
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
    lines.find(|line| line.starts_with("VmFlags:")).unwrap().contains(" rr")
}

/// A region that is larger than memory, of which little is read, is read as any file is; one of which so much is
/// stored to that pages are pushed out and read again is read page by page.
fn is_read_around_while_there_is_memory(path: &Path) {
    let mut options = support::options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(BeforeImages::Eager);
    let store = options.open(path).unwrap();
    let region = store.segment_or_create("data", LIMIT / 2 * 3).unwrap().map_all().unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 0, 1);
    assert!(!is_scattered(&region));
    let mut rounds = 0;
    while !is_scattered(&region) {
        (0..region.len() / PAGE).for_each(|page| set(&region, page * PAGE + 8, rounds));
        rounds += 1;
        assert!(rounds < 8, "all of it was stored to eight times");
    }
    tx.commit(Class::Power).unwrap();
}

/// Run in the child, inside a group that cannot hold all that is mapped.
#[test]
fn child() {
    let Some((what, path)) = support::inside() else { return };
    if what == "advice" {
        return is_read_around_while_there_is_memory(&path);
    }
    let mut options = support::options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(BeforeImages::Adaptive);
    let store = options.open(path).unwrap();
    let region = store.segment_or_create("data", LIMIT / 2 * 3).unwrap().map_all().unwrap();
    let pages = store.query().memory_budget as usize / PAGE / 4;
    for (extent, log_used) in [(None, true), (Some(Extent::Few), false)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        extent.into_iter().for_each(|extent| tx.will_change(extent));
        (0..pages).for_each(|page| set(&region, page * PAGE, 1));
        assert_eq!(store.query().log_used > 0, log_used, "{extent:?}");
        tx.commit(Class::Power).unwrap();
    }
}

#[test]
fn a_transaction_says_beforehand_that_it_changes_few_pages() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    support::in_group(LIMIT, "", &dir.path().join("s"));
}

#[test]
fn a_region_that_is_larger_than_memory_is_read_around_at_first() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    support::in_group(LIMIT, "advice", &dir.path().join("s"));
}
