//! Bad input: each kind gets a specific error, nothing is lost, and the store opens again.

mod support;

use caliburn::{Class, MapError, Mode, OpenError, RangeError, SegmentError, Store, Tuning};
use std::path::Path;
use support::{clean, copy_store, mount, open, options, patch, put, region};

/// A store with 42 at offset 0, closed; or as a killed process leaves it.
fn sample(path: &Path, killed: bool) {
    let live = path.with_extension("live");
    let store = open(&live);
    let memory = region(&store);
    put(&store, &memory, 0, 42, Class::Power);
    if killed {
        copy_store(&live, path);
    }
    drop(memory);
    store.close().unwrap();
    if killed { std::fs::remove_dir_all(live).unwrap() } else { std::fs::rename(live, path).unwrap() }
}

fn holds_42(path: &Path) {
    let store = open(path);
    assert_eq!(region(&store).load::<u64>(0), 42);
}

/// Damages a file of a sound store, expects an error of that text and a problem in `check`, mends the
/// file, and expects all to be well.
fn refused(file: &str, killed: bool, offset: u64, bytes: &[u8], texts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    sample(&path, killed);
    let sound = std::fs::read(path.join(file)).unwrap();
    patch(&path.join(file), offset, bytes);
    let before = std::fs::read(path.join(file)).unwrap();
    let error = options().open(&path).unwrap_err().to_string();
    for text in texts.iter().chain([&file]) {
        assert!(error.contains(text), "{file}: {error:?} lacks {text:?}");
    }
    assert_eq!(std::fs::read(path.join(file)).unwrap(), before, "{file} was changed by a refused opening");
    let report = options().check(&path).unwrap();
    assert!(!report.is_clean(), "check did not notice damage to {file}");
    assert!(report.problems.iter().any(|p| p.path.ends_with(file)), "{:?}", report.problems);
    std::fs::write(path.join(file), sound).unwrap();
    holds_42(&path);
    clean(&path);
}

#[test]
fn wrong_magic() {
    refused("catalog", false, 0, b"garbage!", &["offset 0", "not a Caliburn catalog"]);
    refused("data.segment", false, 0, b"garbage!", &["offset 0", "not a Caliburn segment"]);
    refused("data.sums", false, 0, b"garbage!", &["not a Caliburn sums file"]);
    refused("stage", true, 0, b"garbage!", &["not a Caliburn stage"]);
    let mut both = vec![0; 4104];
    both[..8].copy_from_slice(b"garbage!");
    both[4096..].copy_from_slice(b"garbage!");
    refused("log", false, 0, &both, &["offset 0", "not a Caliburn log"]);
}

#[test]
fn version_from_the_future() {
    for file in ["catalog", "data.segment", "data.sums"] {
        refused(file, false, 8, &9u32.to_le_bytes(), &["version is 9", "use the program that wrote it"]);
    }
    refused("stage", true, 8, &9u32.to_le_bytes(), &["version is 9"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    sample(&path, false);
    for at in [8, 4096 + 8] {
        patch(&path.join("log"), at, &9u32.to_le_bytes());
    }
    assert!(Store::open(&path).unwrap_err().to_string().contains("version is 9"));
}

#[test]
fn flipped_bits_in_headers() {
    refused("catalog", false, 40, &[0xFF], &["offset 0"]);
    refused("data.segment", false, 41, &[0xFF], &["checksum"]);
    refused("data.sums", false, 36, &[0xFF], &["checksum"]);
    refused("stage", true, 33, &[0xAA, 0x55, 0xAA], &["checksum"]);
}

#[test]
fn one_damaged_status_page_is_survived_by_its_twin() {
    for at in [0, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        sample(&path, true);
        patch(&path.join("log"), at + 40, &[0xFF; 16]);
        let report = caliburn::check(&path).unwrap();
        assert_eq!(report.notes.iter().filter(|n| n.contains("status page")).count(), 1, "{report:?}");
        holds_42(&path);
    }
}

#[test]
fn files_cut_short() {
    for (file, len) in [
        ("catalog", 30),
        ("catalog", 60),
        ("data.segment", 100),
        ("data.segment", 70_000),
        ("data.sums", 100),
        ("log", 100),
        ("log", 5000),
        ("log", 500_000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        sample(&path, false);
        let sound = std::fs::read(path.join(file)).unwrap();
        std::fs::OpenOptions::new().write(true).open(path.join(file)).unwrap().set_len(len).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("cut off") && error.contains(file), "{file} at {len}: {error}");
        assert!(!caliburn::check(&path).unwrap().is_clean());
        std::fs::write(path.join(file), sound).unwrap();
        holds_42(&path);
    }
}

#[test]
fn files_missing() {
    for (file, text) in [
        ("catalog", "not a store"),
        ("log", "open log"),
        ("data.segment", "open segment"),
        ("data.sums", "open sums"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        sample(&path, false);
        std::fs::rename(path.join(file), dir.path().join("away")).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains(text), "{file}: {error}");
        std::fs::rename(dir.path().join("away"), path.join(file)).unwrap();
        holds_42(&path);
    }
    assert!(matches!(Store::open("/nonexistent/store"), Err(OpenError::NotAStore { .. })));
}

#[test]
fn parts_of_another_store() {
    for file in ["log", "stage", "data.segment", "data.sums"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("s"), dir.path().join("other"));
        sample(&path, true);
        sample(&other, true);
        std::fs::rename(path.join(file), dir.path().join("own")).unwrap();
        std::fs::copy(other.join(file), path.join(file)).unwrap();
        let error = options().open(&path).unwrap_err().to_string();
        assert!(error.contains("belongs to another store") && error.contains(file), "{file}: {error}");
        assert!(!options().check(&path).unwrap().is_clean());
        std::fs::rename(dir.path().join("own"), path.join(file)).unwrap();
        holds_42(&path);
    }
}

#[test]
fn damage_in_the_forced_log_is_reported_and_salvaged_never_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("s"));
    let store = open(&live);
    let memory = region(&store);
    for i in 0..10u64 {
        put(&store, &memory, i as usize * 8, i + 1, Class::Power);
    }
    copy_store(&live, &path);
    let sixth = caliburn::History::open(&path).unwrap().live(&Default::default(), false).unwrap()[5].lsn;
    // With the stage of this boot, and as if after a reboot, when only the records themselves can tell.
    for rebooted in [false, true] {
        if rebooted {
            std::fs::write(path.join("stage"), vec![0; 1 << 20]).unwrap();
        }
        let offset = 65536 + sixth + 50;
        patch(&path.join("log"), offset, &[0xEE]);
        let error = options().open(&path).unwrap_err();
        let OpenError::Damaged(damage) = &error else { panic!("{error}") };
        assert_eq!((damage.at.0, damage.offset), (sixth, 65536 + sixth));
        assert!(error.to_string().contains("salvage"), "{error}");
        let report = options().check(&path).unwrap();
        assert_eq!(report.problems.iter().map(|p| p.offset).collect::<Vec<_>>(), [65536 + sixth]);

        let salvaged = Store::options().salvage(true).open(&path).unwrap();
        assert!(salvaged.damage().is_some());
        let memory = salvaged.segment("data").unwrap().map_all().unwrap();
        let found: Vec<u64> = (0..10).map(|i| memory.load(i * 8)).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]);
        assert!(matches!(salvaged.begin(Mode::Restore), Err(caliburn::BeginError::ReadOnly)));
        drop((memory, salvaged));

        patch(&path.join("log"), offset, &[std::fs::read(live.join("log")).unwrap()[offset as usize]]);
        assert!(options().check(&path).unwrap().is_clean());
    }
    let store = open(&path);
    assert_eq!(region(&store).load::<u64>(72), 10);
}

#[test]
fn damage_in_a_segment_is_found_by_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    sample(&path, false);
    for offset in [65536, 65536 + 8192, 65536 + (1 << 20) - 1] {
        let sound = std::fs::read(path.join("data.segment")).unwrap();
        patch(&path.join("data.segment"), offset, &[0x77]);
        let report = caliburn::check(&path).unwrap();
        assert_eq!(report.problems.len(), 1);
        assert_eq!(report.problems[0].offset, 65536 + (offset - 65536) / 4096 * 4096);
        std::fs::write(path.join("data.segment"), sound).unwrap();
    }
    clean(&path);
}

#[test]
fn a_read_only_directory() {
    let Some(mount) = mount("8m") else { return };
    let path = mount.path.join("s");
    sample(&path, false);
    support::run("mount", &["-o", "remount,ro", mount.path.to_str().unwrap()]);
    let error = Store::open(&path).unwrap_err().to_string();
    assert!(error.contains("lock") && error.to_lowercase().contains("read-only"), "{error}");
    let error = options().open(mount.path.join("new")).unwrap_err().to_string();
    assert!(error.contains("create directory") && error.to_lowercase().contains("read-only"), "{error}");
    // Reading works.
    let store = Store::options().read_only(true).open(&path).unwrap();
    assert_eq!(store.segment("data").unwrap().map_all().unwrap().load::<u64>(0), 42);
    drop(store);
    clean(&path);
    support::run("mount", &["-o", "remount,rw", mount.path.to_str().unwrap()]);
    holds_42(&path);
}

#[test]
fn a_full_disk_at_create_leaves_nothing_behind() {
    let Some(mount) = mount("512k") else { return };
    let path = mount.path.join("s");
    let error = options().open(&path).unwrap_err().to_string();
    assert!(error.contains("allocate the log") && error.contains("No space left"), "{error}");
    assert!(!path.exists(), "a failed creation left its directory");
    drop(mount);
    let Some(mount) = support::mount("4m") else { return };
    let store = open(&mount.path.join("s"));
    let error = store.create_segment("big", 16 << 20).unwrap_err().to_string();
    assert!(error.contains("allocate segment") && error.contains("No space left"), "{error}");
    store.create_segment("big", 64 << 10).unwrap();
}

#[test]
fn a_creation_that_failed_can_be_tried_again_with_the_log_elsewhere() {
    let Some(mount) = mount("512k") else { return };
    let dir = tempfile::tempdir().unwrap();
    for existing in [false, true] {
        let log = dir.path().join(format!("log-{existing}"));
        if existing {
            std::fs::write(&log, vec![0; 4 << 20]).unwrap();
        }
        let mut options = options();
        options.log_path(&log);
        let error = options.open(mount.path.join("s")).unwrap_err().to_string();
        assert!(error.contains("allocate the stage"), "{error}");
        let store = options.open(dir.path().join(format!("store-{existing}"))).unwrap();
        // A log that is a store's is not taken for another.
        let error = options.open(dir.path().join("thief")).unwrap_err().to_string();
        assert!(error.contains("already holds part of a store"), "{error}");
        put(&store, &region(&store), 0, 1, Class::Power);
    }
}

#[test]
fn a_full_disk_at_grow_leaves_the_segment_as_it_was_and_stops_neither_commits_nor_truncation() {
    let Some(mount) = mount("8m") else { return };
    let path = mount.path.join("s");
    let store = open(&path);
    let segment = store.segment_or_create("data", 1 << 20).unwrap();
    let memory = segment.map_all().unwrap();
    let error = segment.grow(64 << 20).unwrap_err();
    assert!(
        matches!(&error, SegmentError::Media(_)) && error.to_string().contains("No space left"),
        "{error}"
    );
    assert_eq!(segment.len(), 1 << 20);
    // Fill what is left of the disk. Log, stage and segment have their space already.
    let mut filler = std::fs::File::create(mount.path.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[1; 65536]).is_ok_and(|n| n > 0) {}
    for i in 0..20_000u64 {
        let class = if i % 5000 == 0 { Class::Power } else { Class::Process };
        put(&store, &memory, i as usize % 131_072 * 8, i, class);
    }
    store.truncate().unwrap();
    assert_eq!(store.query().log_used, 0);
    drop(memory);
    store.close().unwrap();
    clean(&path);
    // For a larger stage there is no room: the one that is there serves.
    let store = options().stage_bytes(4 << 20).open(&path).unwrap();
    put(&store, &region(&store), 0, 7, Class::Power);
    store.close().unwrap();
    std::fs::remove_file(mount.path.join("filler")).unwrap();
    let store = open(&path);
    assert_eq!(region(&store).load::<u64>(19_999 * 8), 19_999);
}

#[test]
fn ranges_outside_the_region_null_and_huge() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let len = memory.len();
    let mut tx = store.begin(Mode::Restore).unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "that is the bad input")]
    let ranges = [len..len + 1, len - 4..len + 4, 0..usize::MAX, usize::MAX - 1..usize::MAX, 8..4];
    for range in ranges {
        let error = tx.set_range(&memory, range.clone()).unwrap_err();
        assert!(matches!(error, RangeError::OutOfBounds { .. }), "{range:?}: {error}");
    }
    assert!(tx.write(&memory, usize::MAX - 3, &[1; 8]).is_err());
    tx.set_range(&memory, len..len).unwrap();
    tx.set_range(&memory, 0..0).unwrap();
    for (address, len) in
        [(0, 8), (8, usize::MAX), (memory.as_ptr().addr() - 1, 1), (memory.as_ptr().addr() + len, 1)]
    {
        // SAFETY: nothing is unmapped; the addresses are the bad input.
        let error = unsafe { tx.set_range_at(std::ptr::without_provenance(address), len) }.unwrap_err();
        assert!(matches!(error, RangeError::NotMapped { .. }), "{address:#x}: {error}");
    }
    // SAFETY: nothing is unmapped.
    let error = unsafe { tx.set_range_at(memory.as_ptr(), usize::MAX) }.unwrap_err();
    assert!(matches!(error, RangeError::OutOfBounds { .. }), "{error}");
    // The transaction is none the worse.
    tx.store(&memory, 0, &7u64).unwrap();
    tx.commit(Class::Power).unwrap();
    assert_eq!(memory.load::<u64>(0), 7);
}

#[test]
#[should_panic(
    expected = "range of 8 bytes at 1048572 of segment \"data\": the region there holds bytes 0..1048576"
)]
fn reading_outside_the_region_panics_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    region(&store).load::<u64>((1 << 20) - 4);
}

#[test]
#[should_panic(expected = "a no-restore transaction cannot be aborted")]
fn aborting_a_no_restore_transaction_panics_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.store(&memory, 0, &7u64).unwrap();
    tx.abort();
}

#[test]
#[should_panic(expected = "the region belongs to another store")]
fn a_region_of_another_store_panics_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (open(&dir.path().join("s")), open(&dir.path().join("t")));
    let memory = region(&other);
    let mut tx = store.begin(Mode::Restore).unwrap();
    let _ = tx.store(&memory, 0, &7u64);
}

#[test]
fn a_dropped_no_restore_transaction_never_reaches_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let memory = region(&store);
    put(&store, &memory, 8, 1, Class::Process);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.store(&memory, 0, &7u64).unwrap();
    drop(tx);
    // A commit on the same page is truncated from the log, not from memory.
    put(&store, &memory, 16, 2, Class::Power);
    store.truncate().unwrap();
    assert!(memory.unmap().is_err(), "its region stays");
    assert!(store.close().unwrap_err().to_string().contains("still open"));
    // The region of the failed unmap keeps the directory; look at a copy.
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    let store = open(&copy);
    let memory = region(&store);
    assert_eq!([0, 8, 16].map(|at| memory.load::<u64>(at)), [0, 1, 2]);
}

#[test]
fn after_unmapping_an_address_is_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let address = memory.as_ptr();
    memory.unmap().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    // SAFETY: the address is only looked up.
    assert!(matches!(unsafe { tx.set_range_at(address, 8) }, Err(RangeError::NotMapped { .. })));
}

#[test]
fn options_out_of_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for (name, value) in [
        ("log_bytes", 0),
        ("log_bytes", 4095),
        ("log_bytes", 65537),
        ("stage_bytes", 1),
        ("stage_bytes", u64::MAX),
    ] {
        let mut options = options();
        if name == "log_bytes" {
            options.log_bytes(value)
        } else {
            options.stage_bytes(value)
        };
        let error = options.open(&path).unwrap_err();
        assert!(matches!(&error, OpenError::Option { name: n, .. } if *n == name), "{error}");
        assert!(error.to_string().contains(&value.to_string()));
    }
    let store = open(&path);
    for tuning in [
        Tuning { truncate_percent: 0, ..Tuning::default() },
        Tuning { truncate_percent: 91, ..Tuning::default() },
        Tuning { flush_interval: std::time::Duration::ZERO, ..Tuning::default() },
        Tuning { memory_budget: Some(5), ..Tuning::default() },
    ] {
        assert!(matches!(store.set_options(tuning), Err(OpenError::Option { .. })));
        assert_eq!(store.tuning(), Tuning::default());
    }
    store.set_options(Tuning { truncate_percent: 20, ..Tuning::default() }).unwrap();
}

#[test]
fn names_and_lengths_of_segments() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    for name in ["", ".", ".hidden", "a/b", "a b", "\0", &"x".repeat(256)] {
        assert!(matches!(store.create_segment(name, 1), Err(SegmentError::Name { .. })), "{name:?}");
    }
    for len in [0, u64::MAX, 1 << 63] {
        assert!(matches!(store.create_segment("a", len), Err(SegmentError::Length { .. })), "{len}");
    }
    assert_eq!(store.create_segment("a", 1).unwrap().len(), 65536);
    assert!(matches!(store.create_segment("a", 1), Err(SegmentError::Exists { .. })));
    assert!(matches!(store.segment("b"), Err(SegmentError::Unknown { .. })));
    assert!(matches!(store.segment("a").unwrap().map(0..65537), Err(MapError::Alignment { .. })));
}

#[test]
fn a_second_opening_fails_at_once_and_names_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let error = Store::open(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    let report = caliburn::check(&path).unwrap();
    assert!(report.is_clean() && report.in_use_by.is_some(), "{report:?}");
    store.close().unwrap();
    open(&path);
}

#[test]
fn creating_over_other_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("precious"), "data").unwrap();
    assert!(matches!(options().open(dir.path()), Err(OpenError::Exists { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let path = dir.path().join("s");
    open(&path).close().unwrap();
    assert!(matches!(options().create_new(true).open(&path), Err(OpenError::Exists { .. })));
}

/// A medium that was pulled and plugged in again, without a reboot, has lost what was in the page cache: its
/// stage says less than the log that was forced. Believed, it would end the log too soon.
#[test]
fn a_stage_older_than_its_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (stage, early) = (path.join("stage"), dir.path().join("early"));
    let store = support::open(&path);
    let region = support::region(&store);
    support::put(&store, &region, 0, 1, Class::Power);
    std::fs::copy(&stage, &early).unwrap();
    support::put(&store, &region, 0, 2, Class::Power);
    drop(region);
    store.close().unwrap();
    std::fs::copy(&early, &stage).unwrap();
    let refused = |path: &Path| {
        let error = support::options().open(path).unwrap_err().to_string();
        assert!(error.contains("older than the log") && error.contains("remove the stage"), "{error}");
        assert!(!support::options().check(path).unwrap().is_clean());
        let salvaged = Store::options().salvage(true).memory_kept(true).open(path).unwrap();
        assert!(salvaged.damage().unwrap().to_string().contains("older than the log"));
        let memory = salvaged.segment("data").unwrap().map_all().unwrap();
        memory.load::<u64>(0)
    };
    assert_eq!(refused(&path), 2);
    std::fs::remove_file(&stage).unwrap();
    let store = support::open(&path);
    let region = support::region(&store);
    assert_eq!(region.load::<u64>(0), 2);

    // No status page tells; the records do that were forced since.
    std::fs::copy(&stage, &early).unwrap();
    for i in 3..6 {
        support::put(&store, &region, 0, i, Class::Power);
    }
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    std::fs::copy(&early, copy.join("stage")).unwrap();
    assert_eq!(refused(&copy), 5);
}

/// A stage that cannot be read is left out for salvage, and said to be missing.
#[test]
fn a_damaged_stage_is_left_out_for_salvage() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("s"));
    let store = open(&live);
    let memory = region(&store);
    put(&store, &memory, 0, 1, Class::Power);
    copy_store(&live, &path);
    for (offset, bytes) in [(0, &b"garbage!"[..]), (33, &[0xAA, 0x55]), (4096, &[0xFF; 8])] {
        let before = std::fs::read(path.join("stage")).unwrap();
        patch(&path.join("stage"), offset, bytes);
        let error = options().open(&path).unwrap_err().to_string();
        let salvaged = Store::options().salvage(true).memory_kept(true).open(&path).unwrap();
        assert_eq!(salvaged.damage().unwrap().to_string(), error);
        assert_eq!(salvaged.segment("data").unwrap().map_all().unwrap().load::<u64>(0), 1);
        drop(salvaged);
        std::fs::write(path.join("stage"), before).unwrap();
    }
    assert!(Store::options().salvage(true).open(&path).unwrap().damage().is_none());
}

/// Creation forces the names of what it makes outside of the store, too; here only that it can.
#[test]
fn directories_above_a_new_store_and_its_log_are_made_and_forced() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = support::options();
    options.log_path(dir.path().join("elsewhere"));
    let store = options.open(dir.path().join("a/b/c/s")).unwrap();
    store.create_segment_at("x", 65536, dir.path().join("x")).unwrap();
    store.close().unwrap();
    options.outside(dir.path());
    assert!(options.check(dir.path().join("a/b/c/s")).unwrap().is_clean());
}

/// A store in use is looked at while three threads change it and truncation goes on.
#[test]
fn a_store_in_use_is_checked_and_described_beside_its_writers() {
    for policy in [caliburn::Policy::Redo, caliburn::Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options().policy(policy).open(&path).unwrap();
        let memory = region(&store);
        put(&store, &memory, 8192, 7, Class::Process);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (store, memory, stop) = (&store, &memory, &stop);
                scope.spawn(move || {
                    for round in 0u64.. {
                        put(store, memory, thread * 1000, round, Class::Process);
                        if stop.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            for _ in 0..50 {
                let report = caliburn::check(&path).unwrap();
                assert!(report.is_clean(), "{report:?}");
                assert!(report.in_use_by.is_some_and(|holder| holder.contains("process")));
                let info = caliburn::info(&path).unwrap();
                assert!(info.in_use_by.is_some() && info.log.is_none_or(|log| log.appended >= log.forced));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        if policy == caliburn::Policy::Redo {
            store.flush().unwrap();
            let log = caliburn::info(&path).unwrap().log.unwrap();
            assert!(log.appended > log.head || store.query().log_used == 0);
            // What is damaged is damaged for those who look on, too.
            let status = log.appended % log.capacity;
            if store.query().log_used > 200 {
                patch(&path.join("log"), 65536 + status - 100, &[0xEE; 8]);
                assert!(!caliburn::check(&path).unwrap().is_clean());
            }
        }
    }
}
