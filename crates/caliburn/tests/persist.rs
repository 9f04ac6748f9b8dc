//! The undo policy in persistent memory, as far as it shows without such memory: commits write cache lines
//! back, and the undo logs outlive the boot. That the order is right is shown on simulated and virtual
//! machines.

mod support;

use caliburn::medium::{Files, Flush, Media, Medium, Memory, Replaced};
use caliburn::{
    Class, CommitError, Guard, MapError, Mode, OpenError, Options, Policy, Region, SegmentError, Store,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use support::{clean, copy_store};

/// Files that are mapped from the memory given, in a boot of their own.
#[derive(Debug)]
struct Machine {
    boot: u8,
    memory: Memory,
    /// What is in a directory named `cache`.
    other: Memory,
}

#[derive(Debug)]
struct Mapped(Arc<dyn Medium>, Memory);

// SAFETY: the descriptor and the length are those of the file behind it.
unsafe impl Medium for Mapped {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn memory(&self) -> Memory {
        self.1
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Machine {
    fn map(&self, medium: Arc<dyn Medium>) -> Arc<dyn Medium> {
        let cached = medium.path().components().any(|c| c.as_os_str() == "cache");
        Arc::new(Mapped(medium, if cached { self.other } else { self.memory }))
    }
}

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Machine {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(self.map(Files.open(path, write)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Ok(self.map(Files.create(path)?))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        Ok([self.boot; 16])
    }
}

const PERSISTENT: Class = Class::Power;

fn options() -> Options {
    let mut options = support::options();
    options.policy(Policy::Undo);
    options
}

fn machine(boot: u8, class: Class) -> Options {
    let memory = Memory::assumed(class.into());
    let mut options = options();
    options.media(Arc::new(Machine { boot, memory, other: Memory::CACHE }));
    options
}

fn region(store: &Store) -> Region {
    store.segment_or_create("data", 4 << 20).unwrap().map_all().unwrap()
}

#[test]
fn commits_survive_what_the_memory_does_and_the_rest_is_undone_in_another_boot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = machine(1, PERSISTENT).require(PERSISTENT).open(&path).unwrap();
    assert_eq!(store.reach(), PERSISTENT);
    let region1 = region(&store);
    for (i, class) in [Class::Process, Class::Os, Class::Power].into_iter().enumerate() {
        support::put(&store, &region1, i * 8, i as u64 + 1, class);
    }
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region1, 24, &4u64).unwrap();
    assert!(tx.commit_async().unwrap().is_durable());
    store.flush().unwrap();
    // Aborted, and far longer than a chunk of a log.
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region1, 16, &vec![7; 1 << 20]).unwrap();
    tx.store(&region1, 0, &9u64).unwrap();
    tx.abort();
    assert_eq!((region1.load::<u64>(16), region1.load::<u64>(1 << 20)), (3, 0));
    let mut open = store.begin(Mode::Restore).unwrap();
    open.store(&region1, 8, &99u64).unwrap();
    open.write(&region1, 4000, &vec![5; 1 << 20]).unwrap();
    open.store(&region1, 12, &98u32).unwrap();

    for (name, mut next) in [("as it was", machine(2, PERSISTENT)), ("without such memory", options())] {
        let copy = dir.path().join(name);
        copy_store(&path, &copy);
        clean(&copy);
        let shown = next.create(false).read_only(true).open(&copy).unwrap();
        assert_eq!(shown.segment("data").unwrap().map_all().unwrap().load::<u64>(8), 2);
        drop(shown);
        let recovered = next.read_only(false).open(&copy).unwrap();
        assert_eq!(recovered.reach(), if name == "as it was" { PERSISTENT } else { Class::Process });
        let there = region(&recovered);
        let mut bytes = vec![1; 4 << 20];
        there.read(0, &mut bytes);
        let expected: Vec<u8> = (1..=4u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(bytes[..32], expected[..], "{name}");
        assert!(bytes[32..].iter().all(|b| *b == 0), "{name}");
        support::put(&recovered, &there, 0, 11, Class::Process);
        drop(there);
        recovered.close().unwrap();
        clean(&copy);
        let again = machine(3, PERSISTENT).open(&copy).unwrap();
        assert_eq!(region(&again).load::<u64>(0), 11);
    }
    open.commit(PERSISTENT).unwrap();
    assert_eq!(region1.load::<u32>(12), 98);
}

#[test]
fn no_more_is_promised_than_the_memory_survives() {
    let dir = tempfile::tempdir().unwrap();
    let store = machine(1, Class::Os).open(dir.path().join("warm")).unwrap();
    let region = region(&store);
    support::put(&store, &region, 0, 1, Class::Os);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &2u64).unwrap();
    let error = tx.commit(Class::Power).unwrap_err();
    assert!(matches!(error, CommitError::Class { wanted: Class::Power, reach: Class::Os }), "{error}");
    assert!(store.flush().is_err());
    assert_eq!(region.load::<u64>(0), 1);

    // What a program says of its memory is believed.
    let assumed = options().memory_survives(Class::Power).open(dir.path().join("battery")).unwrap();
    assert_eq!(assumed.reach(), Class::Power);
    let region = assumed.create_segment("data", 65536).unwrap().map_all().unwrap();
    support::put(&assumed, &region, 0, 1, Class::Power);
}

#[test]
fn a_store_that_cannot_give_what_is_required_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let error = options().require(Class::Power).open(&path).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Class { wanted: Class::Power, reach: Class::Process, .. }), "{text}");
    assert!(text.contains("/undo survives class Process") && text.contains("-o dax"), "{text}");
    // Nothing is left of it.
    assert!(!path.exists());
    let error =
        support::options().create_new(true).policy(Policy::Undo).require(Class::Os).open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Class { wanted: Class::Os, .. }), "{error}");
    drop(support::options().require(Class::Power).open(&path).unwrap());

    let store = machine(1, PERSISTENT).open(dir.path().join("fast")).unwrap();
    std::fs::create_dir(dir.path().join("cache")).unwrap();
    let slow = dir.path().join("cache/segment");
    let error = store.create_segment_at("slow", 65536, &slow).unwrap_err();
    assert!(matches!(error, SegmentError::Weaker { segment: Class::Process, .. }), "{error}");
    assert!(error.to_string().contains("cache/segment"), "{error}");
    store.create_segment("slow", 65536).unwrap();
    drop(store);

    // The caches of one survive with it, of the other they do not.
    let memory = Memory { flush: Flush::Fence, ..Memory::assumed(Class::Power.into()) };
    let machine1 = Machine { boot: 1, memory, other: Memory::assumed(Class::Power.into()) };
    let store = options().media(Arc::new(machine1)).open(dir.path().join("caches")).unwrap();
    let error = store.create_segment_at("lines", 65536, &slow).unwrap_err();
    assert!(matches!(error, SegmentError::Weaker { segment: Class::Process, .. }), "{error}");
    store.create_segment_at("fence", 65536, dir.path().join("fence")).unwrap();
    drop(store);

    // It was moved there meanwhile.
    let moved = dir.path().join("cache/moved");
    std::fs::rename(dir.path().join("fast"), &moved).unwrap();
    let error = machine(1, PERSISTENT).require(PERSISTENT).open(&moved).unwrap_err();
    assert!(matches!(error, OpenError::Class { reach: Class::Process, .. }), "{error}");
    assert_eq!(machine(1, PERSISTENT).open(&moved).unwrap().reach(), Class::Process);
}

#[test]
fn a_mapping_that_is_refused_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory { sync: true, ..Memory::assumed(Class::Power.into()) };
    let machine = Machine { boot: 1, memory, other: Memory::CACHE };
    let store = options().media(Arc::new(machine)).open(dir.path().join("s")).unwrap();
    let error = store.create_segment("data", 65536).unwrap().map_all().unwrap_err();
    assert!(matches!(error, MapError::Io { .. }), "{error}");
    let text = format!("{error}");
    assert!(text.contains("MAP_SYNC") && text.contains("-o dax"), "{text}");
}

#[test]
fn a_file_system_in_memory_has_no_power_to_survive() {
    let Some(mount) = support::mount("64m") else { return };
    let mut redo = support::options();
    let store = redo.open(mount.path.join("s")).unwrap();
    assert_eq!(store.reach(), Class::Process);
    let segment = mount.path.join("segment");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let safe = support::options().open(dir.path().join("safe")).unwrap();
    let error = safe.create_segment_at("data", 65536, &segment).unwrap_err();
    assert!(
        matches!(error, SegmentError::Weaker { store: Class::Power, segment: Class::Process, .. }),
        "{error}"
    );
    assert!(!segment.exists() || std::fs::metadata(&segment).unwrap().len() == 0);
    store.create_segment_at("data", 65536, &segment).unwrap();
    drop((store, safe));
    let error = redo.outside(&segment).require(Class::Power).open(mount.path.join("s")).unwrap_err();
    assert!(matches!(error, OpenError::Class { reach: Class::Process, .. }), "{error}");
    let error = redo.open(mount.path.join("new")).unwrap_err();
    assert!(matches!(error, OpenError::Class { reach: Class::Process, .. }), "{error}");
    assert_eq!(support::options().open(dir.path().join("s")).unwrap().reach(), Class::Power);
}

/// A store that was used as ordinary memory by a process that died is taken up as persistent: all of it must be
/// there before it is relied on.
#[test]
fn a_store_in_the_page_cache_becomes_persistent_when_its_segments_are_forced() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let store = options().open(&path).unwrap();
    let region1 = region(&store);
    support::put(&store, &region1, 0, 1, Class::Process);
    let mut open = store.begin(Mode::Restore).unwrap();
    open.store(&region1, 8, &9u64).unwrap();
    copy_store(&path, &copy);
    let persistent = options().memory_survives(Class::Power).open(&copy).unwrap();
    let there = region(&persistent);
    assert_eq!((there.load::<u64>(0), there.load::<u64>(8), persistent.reach()), (1, 0, Class::Power));
    let mut left = persistent.begin(Mode::Restore).unwrap();
    left.store(&there, 0, &5u64).unwrap();
    let again = dir.path().join("again");
    copy_store(&copy, &again);
    assert_eq!(region(&machine(9, PERSISTENT).open(&again).unwrap()).load::<u64>(0), 1);
}

/// A file system in memory with huge pages maps a region with them, wherever its segment's data begin in the
/// file; one whose files cannot be written to is refused with a word about the other.
#[test]
fn huge_pages_are_used_where_the_file_system_has_them() {
    if !std::fs::exists("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap() {
        eprintln!("not run: this kernel has no huge pages for files in memory");
        return;
    }
    let Some(mount) = support::mount("256m,huge=always") else { return };
    // A guard would split the mapping.
    let store = options().guard(Guard::Off).open(mount.path.join("s")).unwrap();
    let region = store.create_segment("data", 16 << 20).unwrap().map_all().unwrap();
    for at in (0..region.len()).step_by(4096) {
        support::put(&store, &region, at, 1, Class::Process);
    }
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{:x}-", region.as_ptr().addr());
    let of_region = maps.lines().skip_while(|line| !line.starts_with(&begins));
    let mapped = of_region.clone().find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kilobytes: u64 = mapped.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    let all = all.lines().find_map(|line| line.strip_prefix("ShmemHugePages:")).unwrap();
    let all: u64 = all.trim().trim_end_matches(" kB").parse().unwrap();
    // Memory may be too scattered for some; those that the file has are mapped but where it begins and ends
    // within one.
    if all >= 12 << 10 {
        assert!(
            kilobytes >= 4 << 10,
            "{kilobytes} kB of 16 MB are mapped in huge pages, and {all} kB are there"
        );
    } else {
        eprintln!("not shown: {all} kB of memory for files are in huge pages");
    }
    let dir = tempfile::tempdir().unwrap();
    support::run("mount", &["-t", "hugetlbfs", "none", dir.path().to_str().unwrap()]);
    let error = options().open(dir.path().join("s")).unwrap_err().to_string();
    support::run("umount", &[dir.path().to_str().unwrap()]);
    assert!(error.contains("hugetlbfs") && error.contains("huge=always"), "{error}");
}
