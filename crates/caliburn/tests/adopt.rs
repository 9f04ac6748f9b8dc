//! Files that are nothing but data, taken over as they are: what programs for RVM have.

mod support;

use caliburn::{Class, Guard, MapError, Mode, OpenError, Options, Policy, Region, SegmentError, Store};
use std::fs;
use std::path::{Path, PathBuf};
use support::{clean, copy_store};

fn options() -> Options {
    let mut options = support::options();
    options.declared_only(true).guard(Guard::Off).outside(std::env::temp_dir());
    options
}

/// A file of that many bytes, each its offset modulo 251.
fn file(dir: &Path, name: &str, len: usize) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, pattern(len)).unwrap();
    path
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn put(store: &Store, region: &Region, offset: usize, bytes: &[u8]) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(region, offset, bytes).unwrap();
    tx.commit(Class::Power).unwrap();
}

/// Memory of the test's own.
fn memory(len: usize) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the system likes.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE) };
    memory.unwrap().expose_provenance()
}

#[test]
fn a_file_is_a_segment_byte_for_byte_up_to_its_last_whole_sector() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 10_000), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let segment = store.adopt_segment(&data).unwrap();
    assert_eq!(segment.len(), 9728);
    let region = segment.map_all().unwrap();
    assert_eq!(region.len(), 9728);
    let mut there = vec![0; 9728];
    region.read(0, &mut there);
    assert_eq!(there, pattern(9728));
    let mut expected = pattern(10_000);
    for (offset, bytes) in [(0, &b"first"[..]), (4093, b"across"), (9725, b"end")] {
        put(&store, &region, offset, bytes);
        expected[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    let mut tx = store.begin(Mode::Restore).unwrap();
    assert!(tx.write(&region, 9728, b"x").is_err());
    tx.abort();
    assert_eq!(fs::read(&data).unwrap(), pattern(10_000), "nothing but truncation writes to a segment");
    store.truncate().unwrap();
    assert_eq!(fs::read(&data).unwrap(), expected);
    put(&store, &region, 9720, b"!");
    region.unmap().unwrap();
    expected[9720] = b'!';
    assert_eq!(fs::read(&data).unwrap(), expected);
    drop(store);
    clean(&path);
    let store = options().open(&path).unwrap();
    let segment = store.adopt_segment(&data).unwrap();
    assert_eq!(store.segments().len(), 1);
    assert_eq!(segment.map_all().unwrap().load::<u8>(9720), b'!');
    assert!(matches!(segment.grow(1 << 20), Err(SegmentError::Length { .. })));
}

#[test]
fn what_was_not_declared_never_reaches_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 16384), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    let stray = |offset: usize| {
        // SAFETY: within the region, which this thread alone uses.
        unsafe { region.as_ptr().add(offset).write_volatile(0xEE) }
    };
    let mut open = store.begin(Mode::Restore).unwrap();
    open.write(&region, 200, b"uncommitted").unwrap();
    stray(99);
    put(&store, &region, 100, b"declared");
    stray(108);
    stray(5000);
    store.truncate().unwrap();
    let mut expected = pattern(16384);
    expected[100..108].copy_from_slice(b"declared");
    assert_eq!(fs::read(&data).unwrap(), expected);
    assert_eq!(store.statistics().truncations, 0);
    // Nor does what was not declared get lost with its page's private copy.
    assert_eq!(region.load::<u8>(5000), 0xEE);
    open.commit(Class::Power).unwrap();
    store.truncate().unwrap();
    expected[200..211].copy_from_slice(b"uncommitted");
    assert_eq!(fs::read(&data).unwrap(), expected);
}

#[test]
fn an_abort_without_old_values_leaves_the_memory_and_spares_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 8192), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.write(&region, 100, b"kept").unwrap();
    tx.abort();
    put(&store, &region, 50, b"x");
    store.truncate().unwrap();
    let mut expected = pattern(8192);
    expected[50] = b'x';
    assert_eq!((region.load::<[u8; 4]>(100), fs::read(&data).unwrap()), (*b"kept", expected));
    assert_eq!(store.query().uncommitted, 0);
}

#[test]
fn a_killed_process_leaves_commits_in_the_log_and_the_file_gets_them() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 8192), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    put(&store, &region, 10, b"durable");
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 20, b"lazy").unwrap();
    tx.commit(Class::Process).unwrap();
    let killed = dir.path().join("killed");
    copy_store(&path, &killed);
    drop(region);
    drop(store);
    fs::write(&data, pattern(8192)).unwrap();
    assert!(options().check(&killed).unwrap().is_clean());
    let store = options().open(&killed).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    let mut there = [0; 14];
    region.read(10, &mut there);
    assert_eq!(&there, b"durable\x11\x12\x13lazy");
    store.truncate().unwrap();
    assert_eq!(&fs::read(&data).unwrap()[10..24], b"durable\x11\x12\x13lazy");
}

#[test]
fn a_file_may_go_or_change_when_the_log_holds_nothing_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 8192), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    put(&store, &region, 0, b"x");
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    store.truncate().unwrap();
    drop((region, store));
    fs::remove_file(&data).unwrap();

    // The log of the copy names it.
    let error = options().open(&copy).unwrap_err();
    assert!(matches!(error, OpenError::Segment(SegmentError::Io { .. })), "{error}");
    assert!(error.to_string().contains("/data"), "{error}");
    file(dir.path(), "data", 512);
    assert!(matches!(options().open(&copy), Err(OpenError::Segment(SegmentError::Bad { .. }))));
    file(dir.path(), "data", 8192);
    drop(options().open(&copy).unwrap());
    fs::remove_file(&data).unwrap();

    // That of the store does not.
    clean(&path);
    assert_eq!(caliburn::info(&path).unwrap().segments[0].path, data);
    let store = options().open(&path).unwrap();
    assert!(store.segments().is_empty());
    assert!(matches!(store.adopt_segment(&data), Err(SegmentError::Io { .. })));
    file(dir.path(), "data", 512);
    assert_eq!(store.adopt_segment(&data).unwrap().len(), 512);
    // Longer by now.
    file(dir.path(), "data", 65536);
    let segment = store.adopt_segment(&data).unwrap();
    assert_eq!(segment.len(), 65536);
    let region = segment.map(4096..65536).unwrap();
    put(&store, &region, 61439, b"z");
    store.truncate().unwrap();
    assert_eq!(fs::read(&data).unwrap()[65535], b'z');
}

/// Two segments of one file would write their pages over each other's.
#[test]
fn a_file_is_one_segment_by_whatever_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = file(dir.path(), "data", 8192);
    let (link, second) = (dir.path().join("link"), dir.path().join("second"));
    std::os::unix::fs::symlink(&data, &link).unwrap();
    fs::hard_link(&data, &second).unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let first = store.adopt_segment(&data).unwrap();
    assert_eq!(store.adopt_segment(dir.path().join("./data")).unwrap().id(), first.id());
    for other in [link, second] {
        let error = store.adopt_segment(&other).unwrap_err();
        assert!(matches!(&error, SegmentError::Exists { name } if name == first.name()), "{error}");
    }
    assert_eq!(store.segments().len(), 1);
}

/// A region knew less of its last page than the file does by now.
#[test]
fn what_was_appended_to_a_file_stays() {
    for declared_only in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let data = file(dir.path(), "data", 4608);
        let mut options = options();
        let store = options.declared_only(declared_only).open(dir.path().join("s")).unwrap();
        let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
        put(&store, &region, 4600, b"end");
        let mut bytes = fs::read(&data).unwrap();
        bytes.extend([b'X'; 3584]);
        use std::io::Write;
        fs::OpenOptions::new().append(true).open(&data).unwrap().write_all(&[b'X'; 3584]).unwrap();
        let segment = store.adopt_segment(&data).unwrap();
        assert_eq!(segment.len(), 8192);
        assert!(matches!(region.grow(8192), Err(MapError::Alignment { .. })));
        store.truncate().unwrap();
        bytes[4600..4603].copy_from_slice(b"end");
        assert_eq!(fs::read(&data).unwrap(), bytes);
        drop(region);
        assert_eq!(segment.map_all().unwrap().load::<u8>(8191), b'X');
    }
}

#[test]
fn what_is_no_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 511), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    assert!(matches!(store.adopt_segment(&data), Err(SegmentError::Length { len: 511, .. })));
    assert!(matches!(store.adopt_segment(path.join("log")), Err(SegmentError::Io { .. })));
    let other = dir.path().join("other");
    drop(options().open(&other).unwrap());
    assert!(matches!(store.adopt_segment(other.join("log")), Err(SegmentError::Bad { .. })));
    assert!(matches!(store.adopt_segment(dir.path()), Err(SegmentError::Io { .. } | SegmentError::Media(_))));
    let undo = options().policy(Policy::Undo).open(dir.path().join("undo")).unwrap();
    assert!(matches!(undo.adopt_segment(&data), Err(SegmentError::Undo { .. })));
}

#[test]
fn a_region_takes_memory_of_the_programs_own_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 9728), dir.path().join("s"));
    // The truncator may have the region for a moment after it was dropped.
    let store = options().background(false).open(&path).unwrap();
    let segment = store.adopt_segment(&data).unwrap();
    let address = memory(12288);
    assert!(matches!(segment.map_at(0..9728, address), Err(MapError::AddressTaken { .. })));
    // SAFETY: nothing else refers to the memory.
    let region = unsafe { segment.map_over(0..9728, address) }.unwrap();
    assert_eq!(region.as_ptr().addr(), address);
    assert_eq!(region.load::<u8>(9727), (9727 % 251) as u8);
    put(&store, &region, 0, b"mine");
    // SAFETY: as above; it must be refused.
    let again = unsafe { segment.map_over(0..4096, address + 4096) };
    assert!(matches!(again, Err(MapError::Mapped { .. })));
    let left = region.leave().unwrap();
    // SAFETY: the memory is the test's again.
    let there = unsafe { std::slice::from_raw_parts(left, 9728) };
    assert_eq!((&there[..4], there[9727]), (&b"mine"[..], (9727 % 251) as u8));
    // The same memory again, and the latest values.
    // SAFETY: what referred to the memory is not used any more.
    let region = unsafe { segment.map_over(0..9728, address) }.unwrap();
    assert_eq!(region.load::<[u8; 4]>(0), *b"mine");
    drop(region);
    // It was not left. Another test may have the address by now.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(data.to_str().unwrap()), "{maps}");
}

#[test]
fn memory_that_was_not_read_keeps_its_content_and_spoils_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (file(dir.path(), "data", 8192), dir.path().join("s"));
    let store = options().open(&path).unwrap();
    let segment = store.adopt_segment(&data).unwrap();
    let address = memory(8192);
    // SAFETY: the memory is the test's.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(7, 8192) };
    // SAFETY: nothing else refers to the memory.
    let region = unsafe { segment.map_unread(0..8192, address) }.unwrap();
    assert_eq!((region.load::<u8>(0), region.load::<u8>(8191)), (7, 7));
    put(&store, &region, 5000, b"new");
    store.truncate().unwrap();
    let mut expected = pattern(8192);
    expected[5000..5003].copy_from_slice(b"new");
    assert_eq!(fs::read(&data).unwrap(), expected);
    assert_eq!(region.load::<u8>(4999), 7);

    let plain = support::options().open(dir.path().join("plain")).unwrap();
    let other = plain.adopt_segment(file(dir.path(), "other", 8192)).unwrap();
    // SAFETY: as above; it must be refused.
    assert!(matches!(unsafe { other.map_unread(0..8192, memory(8192)) }, Err(MapError::Unread { .. })));
}
