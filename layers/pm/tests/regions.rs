//! Regions and their segments, on files.

use caliburn_pm::{Error, Kind, Region, RegionOptions, Result, SegmentKind, SegmentOptions};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MB: u64 = 1 << 20;
const COPY: u64 = 256 << 10;

struct Made {
    region: Arc<Region>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

fn made(len: u64) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region =
        Region::create(&path, &RegionOptions { len: Some(len), ..RegionOptions::default() }).unwrap();
    Made { region: Arc::new(region), path, _dir: dir }
}

fn plain(region: &Region, name: &str, len: u64) -> Result<()> {
    region.create_segment(name, len, &SegmentOptions::default(), |_| {})
}

fn names(region: &Region) -> Vec<(String, u64)> {
    region.segments().unwrap().into_iter().map(|segment| (segment.name, segment.len)).collect()
}

fn damage(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn text<T>(done: Result<T>) -> String {
    done.err().expect("it is refused").to_string()
}

#[test]
fn segments_keep_what_was_written_to_them() {
    let Made { region, path, _dir } = made(8 * MB);
    plain(&region, "one", 100_000).unwrap();
    plain(&region, "two", MB).unwrap();
    let mut all = vec![9; 100_000];
    region.attach("one", false).unwrap().read(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0), "a new segment is zeros");
    {
        let one = region.attach("one", true).unwrap();
        one.write(99_990, b"the end...").unwrap();
        // SAFETY: within the segment, which this thread alone has.
        unsafe { one.as_ptr().write_bytes(7, 100) };
        one.written(0, 100).unwrap();
        one.flush().unwrap();
        assert_eq!((one.len(), one.name()), (100_000, "one"));
    }
    drop(region);
    let region = Arc::new(Region::open(&path).unwrap());
    assert_eq!(names(&region), [("one".into(), 100_000), ("two".into(), MB)]);
    let one = region.attach("one", false).unwrap();
    let mut end = [0; 10];
    one.read(99_990, &mut end).unwrap();
    assert_eq!(&end, b"the end...");
    one.read(95, &mut end).unwrap();
    assert_eq!(end, [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    let info = region.segment("one").unwrap();
    assert!(info.written > info.created && !info.writing && !info.from_before);
    assert!(info.writer.contains(&format!("process {}", std::process::id())), "{}", info.writer);
    let about = region.info().unwrap();
    assert!(matches!(about.kind, Kind::File | Kind::InMemory), "{:?}", about.kind);
    assert_eq!(about.free, 8 * MB - 2 * COPY - 2 * 65_536 - MB);
}

#[test]
fn either_copy_of_the_base_may_be_lost_and_is_made_again() {
    for copy in [0, COPY] {
        // Its mark, its version, its length, the name of a segment.
        for at in [0, 8, 16, 128 + 8] {
            let Made { region, path, _dir } = made(4 * MB);
            plain(&region, "kept", 70_000).unwrap();
            drop(region);
            damage(&path, copy + at);
            {
                let looked = Region::open_to_read(&path).unwrap();
                let damage = looked.info().unwrap().damage;
                assert_eq!((damage[0].is_some(), damage[1].is_some()), (copy == 0, copy != 0));
                assert_eq!(names(&looked), [("kept".into(), 70_000)]);
            }
            let region = Region::open(&path).unwrap();
            assert_eq!(region.info().unwrap().damage, [None, None]);
            drop(region);
            damage(&path, COPY - copy + at);
            assert_eq!(names(&Region::open(&path).unwrap()), [("kept".into(), 70_000)]);
        }
    }
}

#[test]
fn what_is_no_region_is_refused_and_left_as_it_is() {
    let Made { region, path, _dir } = made(4 * MB);
    plain(&region, "kept", 70_000).unwrap();
    let again = text(Region::create(&path, &RegionOptions::default()));
    assert!(again.contains("there is a region already"), "{again}");
    drop(region);
    let before = std::fs::read(&path).unwrap();
    damage(&path, 100);
    damage(&path, COPY + 100);
    let both = text(Region::open(&path));
    assert!(both.contains("both copies") && both.contains("checksum"), "{both}");
    // A region that is damaged is not made anew by mistake either.
    assert!(text(Region::create(&path, &RegionOptions::default())).contains("there is a region already"));
    std::fs::write(&path, &before).unwrap();
    for copy in [0, COPY as usize] {
        let mut other = before.clone();
        other[copy + 8] = 2;
        std::fs::write(&path, &other).unwrap();
        assert_eq!(names(&Region::open_to_read(&path).unwrap()), [("kept".into(), 70_000)]);
    }
    let mut other = before.clone();
    (other[8], other[COPY as usize + 8]) = (2, 2);
    std::fs::write(&path, &other).unwrap();
    assert!(text(Region::open(&path)).contains("of version 2, and this program knows 1"));
    // Cut short: in its segments, and in its base.
    for (len, why) in [(before.len() - 4096, "and the medium has"), (100, "too few")] {
        std::fs::write(&path, &before[..len]).unwrap();
        let cut = text(Region::open(&path));
        assert!(cut.contains(why), "{cut}");
    }
    // Somebody's file, short or long, is not a region, and does not become one by mistake.
    for len in [10, 300 << 10, 1 << 20] {
        std::fs::write(&path, vec![b'x'; len]).unwrap();
        assert!(matches!(Region::open(&path), Err(Error::NotARegion { .. })));
        let options = RegionOptions { len: Some(8 * MB), ..RegionOptions::default() };
        assert!(text(Region::create(&path, &options)).contains("it holds something else"));
        assert!(std::fs::read(&path).unwrap() == vec![b'x'; len]);
    }
    std::fs::write(&path, vec![0; before.len()]).unwrap();
    assert!(text(Region::open(&path)).contains("pm create"));
    assert!(matches!(Region::open(_dir.path().join("none")), Err(Error::Medium { .. })));
}

#[test]
fn sizes_and_names_that_cannot_be_are_refused() {
    let Made { region, _dir, .. } = made(4 * MB);
    let dir = _dir.path();
    for len in [0, 1, 2 * COPY, 1 << 63, u64::MAX] {
        let options = RegionOptions { len: Some(len), ..RegionOptions::default() };
        assert!(text(Region::create(dir.join("new"), &options)).contains("a length of"), "{len}");
    }
    for unit in [0, 1, 65_537, 1 << 31] {
        let options = RegionOptions { len: Some(8 * MB), unit: Some(unit), ..RegionOptions::default() };
        assert!(text(Region::create(dir.join("new"), &options)).contains("units of"), "{unit}");
    }
    for len in [0, 1 << 63, u64::MAX] {
        assert!(text(plain(&region, "s", len)).contains("a length of"), "{len}");
    }
    assert!(matches!(plain(&region, "s", 1 << 40), Err(Error::Full { .. })));
    assert!(
        matches!(plain(&region, "s", 4 * MB), Err(Error::Full { free, .. }) if free == 4 * MB - 2 * COPY)
    );
    for name in ["", "a/b", "a\nb", &"x".repeat(65)] {
        assert!(text(plain(&region, name, 100)).contains("the name"), "{name}");
    }
    plain(&region, &"x".repeat(64), 100).unwrap();
    assert!(matches!(plain(&region, &"x".repeat(64), 100), Err(Error::Exists(_))));
    for (block_bytes, lanes, len) in [
        (511, 8, MB),
        (256, 8, MB),
        (131_072, 8, MB),
        (4096, 0, MB),
        (4096, 65, MB),
        (4096, 8, 4097),
        (4096, 8, 0),
    ] {
        let kind = SegmentKind::Blocks { block_bytes };
        let options = SegmentOptions { kind, lanes, ..SegmentOptions::default() };
        let refused = text(region.create_segment("b", len, &options, |_| {}));
        assert!(
            refused.contains("blocks of") || refused.contains("lanes") || refused.contains("a length of"),
            "{refused}"
        );
    }
    for address in [0, 1, 1 << 47, u64::MAX - 4095] {
        let options = SegmentOptions { address: Some(address), ..SegmentOptions::default() };
        assert!(
            text(region.create_segment("a", 100, &options, |_| {})).contains("the address"),
            "{address:#x}"
        );
    }
    let segment = region.attach(&"x".repeat(64), true).unwrap();
    for (at, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1 << 63, 100)] {
        assert!(matches!(segment.write(at, &vec![0; len]), Err(Error::Range { .. })), "{at}");
        assert!(matches!(segment.read(at, &mut vec![0; len]), Err(Error::Range { .. })), "{at}");
    }
}

#[test]
fn what_is_attached_is_neither_destroyed_nor_changed_by_others() {
    let Made { region, path, _dir } = made(8 * MB);
    plain(&region, "s", 100_000).unwrap();
    // As another process would.
    let other = Arc::new(Region::open(&path).unwrap());
    let writer = region.attach("s", true).unwrap();
    for others in [&region, &other] {
        assert!(matches!(others.destroy("s"), Err(Error::Busy { .. })));
        assert!(matches!(others.resize("s", 10, |_| {}), Err(Error::Busy { .. })));
        assert!(matches!(others.protect("s", true), Err(Error::Busy { .. })));
        assert!(matches!(others.attach("s", false), Err(Error::Busy { .. })));
        assert!(matches!(others.attach("s", true), Err(Error::Busy { .. })));
    }
    assert!(other.segment("s").unwrap().writing);
    drop(writer);
    let readers = [
        region.attach("s", false).unwrap(),
        other.attach("s", false).unwrap(),
        other.attach("s", false).unwrap(),
    ];
    assert!(matches!(readers[0].write(0, &[1]), Err(Error::ReadOnly(_))));
    assert!(matches!(other.destroy("s"), Err(Error::Busy { .. })));
    assert!(matches!(region.attach("s", true), Err(Error::Busy { .. })));
    // Others are made and destroyed meanwhile.
    plain(&other, "t", 100_000).unwrap();
    assert_eq!(names(&region).len(), 2);
    other.destroy("t").unwrap();
    assert!(matches!(region.attach("t", true), Err(Error::NoSegment(_))));
    drop(readers);
    other.destroy("s").unwrap();
    assert_eq!(names(&region), []);
    assert!(matches!(region.destroy("s"), Err(Error::NoSegment(_))));
    let looked = Arc::new(Region::open_to_read(&path).unwrap());
    assert!(matches!(plain(&looked, "s", 10), Err(Error::ReadOnly(_))));
}

#[test]
fn room_is_found_in_pieces_and_what_was_another_s_is_zeros() {
    let Made { region, _dir, .. } = made(2 * COPY + 16 * 65_536);
    for i in 0..16 {
        plain(&region, &i.to_string(), 65_536).unwrap();
        region.attach(&i.to_string(), true).unwrap().write(0, &[i as u8 + 1; 65_536]).unwrap();
    }
    (0..16).step_by(2).for_each(|i| region.destroy(&i.to_string()).unwrap());
    plain(&region, "scattered", 7 * 65_536 + 1).unwrap();
    let scattered = region.attach("scattered", true).unwrap();
    let mut all = vec![1; 7 * 65_536 + 1];
    scattered.read(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
    let fill: Vec<u8> = (0..all.len()).map(|i| (i / 100) as u8).collect();
    scattered.write(0, &fill).unwrap();
    scattered.read(0, &mut all).unwrap();
    assert!(all == fill);
    drop(scattered);
    assert!(matches!(plain(&region, "more", 1), Err(Error::Full { free: 0, .. })));
    // Shorter, and longer again: what comes is zeros.
    region.resize("scattered", 10, |_| {}).unwrap();
    assert_eq!(region.info().unwrap().free, 7 * 65_536);
    region.resize("scattered", 65_536 * 3, |_| {}).unwrap();
    let scattered = region.attach("scattered", false).unwrap();
    let mut all = vec![1; 3 * 65_536];
    scattered.read(0, &mut all).unwrap();
    assert!(all[..10] == fill[..10] && all[10..].iter().all(|byte| *byte == 0));
    for i in (1..16).step_by(2) {
        let mut kept = vec![0; 65_536];
        region.attach(&i.to_string(), false).unwrap().read(0, &mut kept).unwrap();
        assert!(kept.iter().all(|byte| *byte == i as u8 + 1), "{i}");
    }
}

#[test]
fn a_region_grows_and_shrinks_while_it_is_used() {
    let Made { region, path, _dir } = made(4 * MB);
    plain(&region, "s", MB).unwrap();
    let segment = region.attach("s", true).unwrap();
    let other = Region::open(&path).unwrap();
    assert!(matches!(plain(&other, "t", 6 * MB), Err(Error::Full { .. })));
    other.grow(16 * MB).unwrap();
    plain(&region, "t", 6 * MB).unwrap();
    segment.write(MB - 4, b"last").unwrap();
    assert!(text(region.grow(MB)).contains("bytes already"));
    let shrunk = text(region.shrink(5 * MB));
    assert!(shrunk.contains("\"t\" lies up to byte"), "{shrunk}");
    assert!(text(region.shrink(0)).contains("never fewer"));
    other.destroy("t").unwrap();
    region.shrink(5 * MB).unwrap();
    assert_eq!(other.info().unwrap().len, 5 * MB);
    assert!(matches!(plain(&other, "t", 6 * MB), Err(Error::Full { .. })));
    let mut last = [0; 4];
    segment.read(MB - 4, &mut last).unwrap();
    assert_eq!(&last, b"last");
}

#[test]
fn a_protected_segment_is_read_only_for_all() {
    let Made { region, _dir, .. } = made(4 * MB);
    plain(&region, "s", 100).unwrap();
    region.protect("s", true).unwrap();
    for refused in
        [text(region.attach("s", true)), text(region.destroy("s")), text(region.resize("s", 10, |_| {}))]
    {
        assert!(refused.contains("is protected"), "{refused}");
    }
    assert!(region.segment("s").unwrap().protected);
    region.attach("s", false).unwrap();
    region.protect("s", false).unwrap();
    region.attach("s", true).unwrap();
    region.own("s", Some(0o640), None, Some(5)).unwrap();
    let info = region.segment("s").unwrap();
    assert_eq!((info.mode, info.gid), (0o640, 5));
}

#[test]
fn a_segment_lies_where_it_was_asked_to_and_pointers_hold() {
    let Made { region, path, _dir } = made(4 * MB);
    let address = 0x3000_0000_0000_u64;
    let options = SegmentOptions { address: Some(address), ..SegmentOptions::default() };
    region.create_segment("s", 100_000, &options, |_| {}).unwrap();
    let segment = region.attach("s", true).unwrap();
    assert_eq!(segment.as_ptr().addr() as u64, address);
    segment.write(8, &(address + 4096).to_le_bytes()).unwrap();
    segment.write(4096, b"there").unwrap();
    // It is taken now.
    let taken = text(Arc::new(Region::open(&path).unwrap()).attach("s", false));
    assert!(taken.contains("attached"), "{taken}");
    drop(segment);
    let segment = region.attach("s", false).unwrap();
    // SAFETY: the word lies in the segment, and so do the bytes that it points to.
    let found = unsafe {
        let pointer = segment.as_ptr().add(8).cast::<*const [u8; 5]>().read();
        *pointer
    };
    assert_eq!(&found, b"there");
}

#[test]
fn of_two_that_make_a_region_at_once_one_is_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for round in 0..60 {
        let path = dir.path().join(round.to_string());
        let go = std::sync::Barrier::new(2);
        let make = |name: &str| {
            go.wait();
            let region =
                Region::create(&path, &RegionOptions { len: Some(MB), ..RegionOptions::default() }).ok()?;
            plain(&region, name, 4096).ok()
        };
        let made = std::thread::scope(|scope| {
            let other = scope.spawn(|| make("a"));
            [make("b"), other.join().unwrap()]
        });
        assert_ne!(made, [Some(()), Some(())], "round {round}");
        assert_eq!(names(&Region::open(&path).unwrap()).len(), 1);
    }
}

#[test]
fn a_region_is_not_made_anew_while_one_of_its_segments_is_attached() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    let options = RegionOptions { len: Some(2 * MB), force: true, ..RegionOptions::default() };
    let region = Arc::new(Region::create(&path, &options).unwrap());
    // Numbers are not used again.
    for _ in 0..2100 {
        plain(&region, "s", 4096).unwrap();
        region.destroy("s").unwrap();
    }
    plain(&region, "s", 4096).unwrap();
    let segment = region.attach("s", true).unwrap();
    assert!(matches!(Region::create(&path, &options), Err(Error::Busy { .. })));
    drop(segment);
    assert_eq!(names(&Region::create(&path, &options).unwrap()), []);
}

#[test]
fn data_behind_zeros_is_somebody_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = File::create_new(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"somebody's", 50 << 20).unwrap();
    assert!(text(Region::create(&path, &RegionOptions::default())).contains("it holds something else"));
    file.write_all_at(&[0; 10], 50 << 20).unwrap();
    Region::create(&path, &RegionOptions::default()).unwrap();
}

#[test]
fn those_who_look_do_not_keep_others_from_changing_it() {
    let Made { region, path, _dir } = made(4 * MB);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let looked = Region::open_to_read(&path).unwrap();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(looked.info().unwrap().damage, [None, None]);
                }
            });
        }
        for number in 0..20 {
            plain(&region, &number.to_string(), 4096).unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(names(&region).len(), 20);
}

/// Runs one of these tests again, in a process of its own that is told of a region.
fn again(test: &str, path: &Path) -> std::process::Output {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--test-threads", "1", "--nocapture"]).env(CHILD, path).output().unwrap()
}

const CHILD: &str = "CALIBURN_PM_REGION";

/// In a process that has little address space.
#[test]
fn a_segment_that_cannot_grow_stays_as_it_was() {
    if let Some(path) = std::env::var_os(CHILD) {
        let region = Region::open(Path::new(&path)).unwrap();
        let limit = Rlimit { current: Some(700 * MB), maximum: Some(700 * MB) };
        setrlimit(Resource::As, limit).unwrap();
        let before = region.segment("one").unwrap();
        let refused = text(region.resize("one", 800 * MB, |_| {}));
        assert!(refused.contains("address space"), "{refused}");
        assert_eq!(region.segment("one").unwrap(), before);
        return;
    }
    let Made { region, path, _dir } = made(900 * MB);
    plain(&region, "one", MB).unwrap();
    drop(region);
    let child = again("a_segment_that_cannot_grow_stays_as_it_was", &path);
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// Nor one whose process is killed while it clears what has come; while it does, nobody takes that.
#[test]
fn a_segment_that_was_growing_when_its_process_was_killed_is_as_it_was() {
    if let Some(path) = std::env::var_os(CHILD) {
        let region = Region::open(Path::new(&path)).unwrap();
        let before = region.segment("one").unwrap().taken;
        region
            .resize("one", 4 * MB, |_| {
                let other = Region::open(Path::new(&path)).unwrap();
                assert!(other.segment("one").unwrap().taken > before, "it is in use");
                std::process::abort();
            })
            .unwrap();
    }
    let Made { region, path, _dir } = made(8 * MB);
    plain(&region, "one", 100_000).unwrap();
    let before = region.segment("one").unwrap();
    let free = region.info().unwrap().free;
    drop(region);
    let child = again("a_segment_that_was_growing_when_its_process_was_killed_is_as_it_was", &path);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{}", String::from_utf8_lossy(&child.stdout));
    let taken = |region: Region| (region.segment("one").unwrap(), region.info().unwrap().free);
    assert!(taken(Region::open_to_read(&path).unwrap()).1 < free, "it was killed in the middle");
    assert_eq!(taken(Region::open(&path).unwrap()), (before, free));
}

#[test]
fn what_a_region_counts_on_is_no_hole() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    let has = |len: u64| std::fs::metadata(&path).unwrap().blocks() * 512 >= len;
    File::create(&path).unwrap().set_len(4 * MB).unwrap();
    let region = Region::create(&path, &RegionOptions::default()).unwrap();
    assert!(has(4 * MB));
    // As a kill in the middle of growing may leave it.
    File::options().write(true).open(&path).unwrap().set_len(8 * MB).unwrap();
    assert!(!has(8 * MB));
    region.grow(8 * MB).unwrap();
    assert!(has(8 * MB));
}
