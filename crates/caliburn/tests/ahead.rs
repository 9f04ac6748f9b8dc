//! Reading ahead: all of a region, what a program asks for, and what it touched when the store was open before; how
//! fast, and until when. And regions that are read in order, once.

mod support;

use caliburn::{
    BeforeImages, Class, Mode, Options, Policy, Prefetch, PrefetchEnd, Prefetched, Region, Store, Tracking,
    Tuning,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const UNIT: usize = 64 << 10;
const LEN: usize = 32 << 20;
/// Longer than any of this takes.
const LONG: Duration = Duration::from_secs(60);

fn options(prefetch: Prefetch, rate: Option<u64>) -> Options {
    let mut options = support::options();
    options.prefetch(prefetch).tuning(Tuning { prefetch_rate: rate, ..Tuning::default() });
    options
}

/// One test at a time: what others read pushes out what one looks for.
static ALONE: Mutex<()> = Mutex::new(());

/// On a disk, where there is something to read, and not in memory.
struct World {
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new(len: usize) -> World {
        World::with(len, &options(Prefetch::Asked, None))
    }

    fn with(len: usize, options: &Options) -> World {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let world = World { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), _alone };
        let store = options.open(world.path()).unwrap();
        let region = store.create_segment("data", len as u64).unwrap().map_all().unwrap();
        for part in (0..len).step_by(256 << 10) {
            let mut tx = store.begin(Mode::NoRestore).unwrap();
            tx.write(&region, part, &[7; 256 << 10]).unwrap();
            tx.commit(Class::Process).unwrap();
        }
        drop(region);
        store.close().unwrap();
        world.forget();
        world
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn file(&self) -> File {
        File::open(self.path().join("data.segment")).unwrap()
    }

    fn forget(&self) {
        let file = self.file();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(self.resident().iter().filter(|is| **is).count(), 0, "the system keeps pages in memory");
    }

    /// Which pages of the data are in the system's memory.
    fn resident(&self) -> Vec<bool> {
        let file = self.file();
        let len = file.metadata().unwrap().len() as usize;
        let mut pages = vec![0u8; len / PAGE];
        // SAFETY: a mapping of its own of a file that does not shrink; it is not touched, and gone again.
        unsafe {
            let at =
                libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mincore(at, len, pages.as_mut_ptr()), 0);
            libc::munmap(at, len);
        }
        pages.iter().skip(UNIT / PAGE).map(|page| page & 1 == 1).collect()
    }

    fn open(&self, prefetch: Prefetch, rate: Option<u64>) -> (Store, Region) {
        let store = options(prefetch, rate).open(self.path()).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        (store, region)
    }
}

fn told(Prefetched { bytes, end, .. }: Prefetched) -> (u64, PrefetchEnd) {
    (bytes, end)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_region_that_fits_is_read_when_it_is_mapped() {
    let world = World::new(LEN);
    let (store, region) = world.open(Prefetch::Regions, None);
    until("not all of it was read", || world.resident().iter().all(|is| *is));
    drop(region);
    store.close().unwrap();
    world.forget();
    let (store, _region) = world.open(Prefetch::Asked, None);
    store.query();
    assert!(world.resident().iter().all(|is| !is), "nobody has asked for it");
}

#[test]
fn what_is_asked_for_is_read_and_holes_are_not() {
    let world = World::new(LEN);
    let (store, region) = world.open(Prefetch::Asked, None);
    let asked = region.prefetch(8 << 20..16 << 20);
    assert_eq!(told(asked.wait()), (8 << 20, PrefetchEnd::Complete));
    let resident = world.resident();
    assert!(resident[2048..4096].iter().all(|is| *is));
    assert!(resident[..1024].iter().all(|is| !is), "what nobody asked for was read");
    assert_eq!(told(region.prefetch(5..5).wait()), (0, PrefetchEnd::Complete));
    let holes = store.create_segment("holes", 64 << 20).unwrap().map_all().unwrap();
    let holes = holes.prefetch(0..64 << 20).wait();
    assert!(holes.bytes <= 1 << 20 && holes.end == PrefetchEnd::Complete, "{holes:?}");
}

#[test]
#[should_panic(expected = "data")]
fn what_leaves_the_region_is_refused() {
    let world = World::new(1 << 20);
    let (_store, region) = world.open(Prefetch::Asked, None);
    region.prefetch(0..(1 << 20) + 1);
}

#[test]
fn it_is_as_fast_as_it_may_be_and_ends_with_region_and_store() {
    let world = World::new(LEN);
    let (store, region) = world.open(Prefetch::Asked, Some(16 << 20));
    let begun = Instant::now();
    region.prefetch(0..8 << 20).wait();
    assert!(begun.elapsed() >= Duration::from_millis(499), "{:?}", begun.elapsed());
    // What would take hours.
    store.set_options(Tuning { prefetch_rate: Some(1000), ..Tuning::default() }).unwrap();
    let begun = Instant::now();
    let (one, two) = (region.prefetch(8 << 20..LEN), region.prefetch(0..LEN));
    until("it does not begin", || one.bytes() > 0);
    // It is seen at once that it may be faster, and slower again.
    store.set_options(Tuning::default()).unwrap();
    assert_eq!(told(one.wait()), (LEN as u64 - (8 << 20), PrefetchEnd::Complete));
    two.wait();
    store.set_options(Tuning { prefetch_rate: Some(1000), ..Tuning::default() }).unwrap();
    let (one, two) = (region.prefetch(8 << 20..LEN), region.prefetch(0..LEN));
    until("it does not begin", || one.bytes() > 0);
    drop(region);
    for asked in [one, two] {
        assert_eq!(asked.wait().end, PrefetchEnd::Unmapped);
    }
    let region = store.segment("data").unwrap().map_all().unwrap();
    let last = region.prefetch(0..LEN);
    until("it does not begin", || last.bytes() > 0);
    store.close().unwrap();
    assert_eq!(last.wait().end, PrefetchEnd::Unmapped);
    assert_eq!(region.prefetch(0..LEN).wait().end, PrefetchEnd::Unmapped, "the store is closed");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    assert!(options(Prefetch::Asked, Some(0)).open(world.path()).is_err());
}

#[test]
fn an_address_is_free_as_soon_as_a_region_is_unmapped() {
    let world = World::new(LEN);
    let (store, region) = world.open(Prefetch::Recorded, Some(1 << 20));
    drop(region);
    // Far from where the system puts what the other tests map meanwhile.
    for turn in 0..200 {
        let region = store.segment("data").unwrap().map_at(0..LEN as u64, 0x2A40_0000_0000);
        let region = region.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        let asked = region.prefetch(0..LEN);
        region.load::<u8>(turn * UNIT);
        if turn % 10 == 0 {
            until("it does not begin", || asked.bytes() > 0);
        }
    }
    store.close().unwrap();
}

#[test]
fn without_threads_it_is_a_hint_to_the_system() {
    let world = World::new(LEN);
    let mut options = options(Prefetch::Recorded, None);
    let store = options.background(false).open(world.path()).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    let hint = region.prefetch(0..LEN);
    assert_eq!(hint.ended().map(told), Some((0, PrefetchEnd::Hinted)));
    drop(region);
    store.close().unwrap();
    assert!(!world.path().join("order").exists(), "nobody has looked");
}

/// Touches units, each in a mapping of its own, so that it is seen when that ends.
fn touch(store: &Store, units: &[usize]) {
    for unit in units {
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!(region.load::<u8>(unit * UNIT), 7);
    }
}

#[test]
fn what_was_touched_before_is_read_in_that_order() {
    let world = World::new(LEN);
    let order = [300, 20, 480, 150];
    let store = options(Prefetch::Recorded, None).open(world.path()).unwrap();
    touch(&store, &order);
    store.close().unwrap();
    for turn in 0..2 {
        world.forget();
        // A unit each tenth of a second.
        let (store, region) = world.open(Prefetch::Recorded, Some(10 * UNIT as u64));
        let begun = Instant::now();
        let mut seen: Vec<Option<Duration>> = vec![None; order.len()];
        let mut looks = BTreeSet::new();
        until("not all of it was read", || {
            let resident = world.resident();
            looks.insert(order.map(|unit| resident[unit * UNIT / PAGE]));
            for (unit, seen) in order.iter().zip(&mut seen) {
                if resident[unit * UNIT / PAGE] {
                    seen.get_or_insert(begun.elapsed());
                }
            }
            seen.iter().all(Option::is_some)
        });
        assert!(seen.is_sorted() && looks.len() > 2, "turn {turn}: {seen:?}");
        assert!(!world.resident()[400 * UNIT / PAGE], "what was not touched was read");
        drop(region);
        // It is not what was read ahead that is recorded, but what is touched.
        touch(&store, &order);
        store.close().unwrap();
    }
}

#[test]
fn an_order_that_is_damaged_or_of_another_store_is_none() {
    let other = {
        let other = World::new(1 << 20);
        let store = options(Prefetch::Recorded, None).open(other.path()).unwrap();
        touch(&store, &[9]);
        store.close().unwrap();
        std::fs::read(other.path().join("order")).unwrap()
    };
    let world = World::new(LEN);
    let path = world.path().join("order");
    let store = options(Prefetch::Recorded, None).open(world.path()).unwrap();
    touch(&store, &[9]);
    store.close().unwrap();
    let good = std::fs::read(&path).unwrap();
    assert_eq!(other.len(), good.len());
    for bad in [vec![], vec![0; 40], good[..good.len() - 1].to_vec(), vec![0xFF; 4096], other] {
        std::fs::write(&path, &bad).unwrap();
        // As somebody leaves it who is killed while it is replaced.
        std::fs::write(path.with_extension("new"), &good[..20]).unwrap();
        let (store, region) = world.open(Prefetch::Recorded, None);
        assert_eq!(region.load::<u8>(0), 7);
        drop(region);
        store.close().unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), bad, "it is not recorded anew");
    }
    // Whoever only reads follows it, and writes nothing.
    std::fs::write(&path, &good).unwrap();
    world.forget();
    let mut reading = options(Prefetch::Recorded, None);
    let store = reading.create(false).read_only(true).open(world.path()).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    until("it was not read", || world.resident()[9 * UNIT / PAGE]);
    assert_eq!(region.load::<u8>(100 * UNIT), 7);
    drop(region);
    store.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), good);
    support::clean(&world.path());
}

#[test]
fn pages_that_a_transaction_gave_back_count_as_touched() {
    for before in [BeforeImages::Eager, BeforeImages::Lazy] {
        let mut shadow = options(Prefetch::Recorded, None);
        shadow.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(before);
        let world = World::with(LEN, &shadow);
        std::fs::remove_file(world.path().join("order")).unwrap();
        let store = shadow.open(world.path()).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        for unit in [7, 400] {
            let tx = store.begin(Mode::Restore).unwrap();
            support::just_store(&region, unit * UNIT, &[8]);
            tx.commit(Class::Power).unwrap();
        }
        drop(region);
        store.close().unwrap();
        world.forget();
        let mut reading = shadow.clone();
        let store = reading.create(false).read_only(true).open(world.path()).unwrap();
        let _region = store.segment("data").unwrap().map_all().unwrap();
        until("it was not read", || [7, 400].iter().all(|unit| world.resident()[unit * UNIT / PAGE]));
        assert!(!world.resident()[200 * UNIT / PAGE], "what was not touched was read");
    }
}

const LIMIT: u64 = 64 << 20;

/// Run in the child, inside the group.
#[test]
fn child() {
    let Some((what, path)) = support::inside() else { return };
    let fits = what == "others want it";
    let mut options = options(if fits { Prefetch::Asked } else { Prefetch::Regions }, Some(16 << 20));
    let store = options.log_bytes(1 << 20).stage_bytes(1 << 20).open(path).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    match &*what {
        "others want it" => {
            let asked = region.prefetch(0..region.len());
            until("it does not begin", || asked.bytes() > 0);
            let taken = vec![1u8; (LIMIT / 100 * 85) as usize];
            assert_eq!(asked.wait().end, PrefetchEnd::Short);
            drop(std::hint::black_box(taken));
        }
        "more than there is" => {
            // Nothing was asked for when it was mapped, since it does not fit.
            store.set_options(Tuning::default()).unwrap();
            let asked = region.prefetch(0..region.len()).wait();
            assert!(asked.end == PrefetchEnd::Short && asked.bytes <= LIMIT, "{asked:?}");
        }
        "it thrashes" => {
            let marked = |name: &str| store.path().with_file_name(name);
            store.set_options(Tuning::default()).unwrap();
            for turn in 0.. {
                (0..region.len()).step_by(PAGE).for_each(|at| assert_eq!(region.load::<u8>(at), 7));
                if turn == 1 {
                    std::fs::write(marked("begun"), "").unwrap();
                }
                if marked("done").exists() {
                    break;
                }
            }
        }
        "it was there before" => {
            store.set_options(Tuning::default()).unwrap();
            (0..region.len()).step_by(PAGE).for_each(|at| assert_eq!(region.load::<u8>(at), 7));
            // What is read again now was pushed out by what came behind it, and is nobody else's want.
            let asked = region.prefetch(0..region.len() / 4).wait();
            assert_eq!(told(asked), (region.len() as u64 / 4, PrefetchEnd::Complete));
        }
        _ => {
            let pages = region.len() / PAGE;
            let read = |part: std::ops::Range<usize>| {
                let before = read_faults();
                part.for_each(|page| assert_eq!(region.load::<u8>(page * PAGE), 7));
                read_faults() - before
            };
            let scattered = read(0..pages / 3);
            // A part of nothing, the wrong way around.
            #[allow(clippy::reversed_empty_ranges, reason = "it is what is tried")]
            drop(region.sequential(2 * PAGE..5));
            let sequential = region.sequential(pages / 3 * PAGE..pages / 3 * 2 * PAGE);
            let in_order = read(pages / 3..pages / 3 * 2);
            drop(sequential);
            let again = read(pages / 3 * 2..pages);
            println!("of {} pages read by faults: {scattered}, in order {in_order}, then {again}", pages / 3);
            assert!(in_order * 4 < scattered.min(again));
        }
    }
}

/// How often this process had to wait for a page to be read.
fn read_faults() -> usize {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    text.rsplit(')').next().unwrap().split_whitespace().nth(9).unwrap().parse().unwrap()
}

#[test]
fn it_ends_when_others_want_the_memory() {
    support::in_group(LIMIT, "others want it", &World::new(LEN).path());
}

/// Who reads the same again and again in a group that cannot hold it is short of memory; others are not.
#[test]
fn want_in_another_group_is_not_ours() {
    let world = World::new(3 * LEN);
    let (path, begun) = (world.path(), world.path().with_file_name("begun"));
    let store = options(Prefetch::Asked, Some(8 << 20)).open(path.with_file_name("other")).unwrap();
    let region = store.create_segment("data", 8 << 20).unwrap().map_all().unwrap();
    for part in (0..8 << 20).step_by(256 << 10) {
        let mut tx = store.begin(Mode::NoRestore).unwrap();
        tx.write(&region, part, &[7; 256 << 10]).unwrap();
        tx.commit(Class::Process).unwrap();
    }
    std::thread::scope(|scope| {
        let thrashing = scope.spawn(|| support::in_group(LIMIT, "it thrashes", &path));
        until("it does not begin", || begun.exists() || thrashing.is_finished());
        let asked = region.prefetch(0..region.len()).wait();
        std::fs::write(path.with_file_name("done"), "").unwrap();
        assert_eq!(told(asked), (8 << 20, PrefetchEnd::Complete));
    });
}

#[test]
fn more_than_there_is_memory_for_is_not_read() {
    support::in_group(LIMIT, "more than there is", &World::new(3 * LEN).path());
}

#[test]
fn what_was_pushed_out_is_read_ahead_again() {
    support::in_group(LIMIT, "it was there before", &World::new(3 * LEN).path());
}

#[test]
fn a_region_larger_than_memory_is_read_in_order_by_few_faults() {
    support::in_group(LIMIT, "in order", &World::new(3 * LEN).path());
}
