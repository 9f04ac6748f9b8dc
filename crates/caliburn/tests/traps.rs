//! Traps that others fell into, as far as no other test has them; docs/testing.md lists them all.

mod support;

use caliburn::{Class, Mode};
use std::io::Write;
use std::time::{Duration, Instant};
use support::{clean, options};

/// A record that ends exactly where the ring ends, and one that begins there, at every opening.
#[test]
fn the_log_may_wrap_exactly_at_its_end() {
    const RECORD: usize = 1024;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.log_bytes(64 << 10);
    drop(support::region(&options.open(&path).unwrap()));
    let mut number = 0u8;
    for opening in 0..6u64 {
        let store = options.open(&path).unwrap();
        let region = support::region(&store);
        let mut bytes = vec![0; RECORD - 56];
        region.read(0, &mut bytes);
        assert!(bytes.iter().all(|b| *b == number), "opening {opening}");
        // 64 of them fill the ring: the third opening begins at its end.
        for _ in 0..if opening == 0 { 63 } else { 1 + 63 * (opening % 2) } {
            let before = store.statistics().log_bytes;
            number = number.wrapping_add(1);
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.write(&region, 0, &vec![number; RECORD - 56]).unwrap();
            tx.commit(Class::Power).unwrap();
            assert_eq!(store.statistics().log_bytes - before, RECORD as u64);
        }
        // As if killed here.
        let copy = dir.path().join("copy");
        support::copy_store(&path, &copy);
        drop((region, store));
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        clean(&path);
    }
}

/// An abort copies old values back; it must not cost a multiple of a commit.
#[test]
fn an_abort_is_not_much_slower_than_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = support::open(&dir.path().join("s"));
    let region = support::region(&store);
    let run = |abort: bool| {
        let start = Instant::now();
        for i in 0..400u64 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            for range in 0..50 {
                tx.store(&region, range * 512, &i).unwrap();
            }
            if abort { tx.abort() } else { tx.commit(Class::Process).unwrap() }
        }
        start.elapsed()
    };
    let mut ratios: Vec<f64> = (0..15)
        .map(|_| run(true).as_secs_f64() / run(false).max(Duration::from_nanos(1)).as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[7] < 3.0, "an abort takes {:.1} times as long as a commit", ratios[7]);
}

/// A medium that begins to fail: a loop device whose backing file cannot be written any more. The error is
/// reported, stays, and loses nothing that was acknowledged before.
#[test]
fn a_log_on_a_device_that_fails() {
    let Some(mount) = support::mount("6m") else { return };
    let backing = mount.path.join("backing");
    let Some(device) = support::loop_device(&backing, 2 << 20) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.log_path(&device.path).log_bytes(1 << 20);
    let store = options.open(&path).unwrap();
    let region = support::region(&store);
    for value in 1..=20 {
        support::put(&store, &region, 0, value, Class::Power);
    }
    // From the middle of the ring on the device has no room any more.
    support::run("sync", &["-f", backing.to_str().unwrap()]);
    let hole = ["-p", "-o", "524288", "-l", "1048576", backing.to_str().unwrap()];
    support::run("fallocate", &hole);
    let mut full = std::fs::File::create(mount.path.join("full")).unwrap();
    while full.write_all(&[1; 4096]).is_ok() {}
    let mut last = 20;
    let failed = loop {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 4096, &[7; 8000]).unwrap();
        tx.store(&region, 0, &(last + 1)).unwrap();
        match tx.commit(Class::Power) {
            Ok(()) => last += 1,
            Err(error) => break error.to_string(),
        }
        assert!(last < 1000, "the device never failed");
    };
    assert!(failed.contains(device.path.to_str().unwrap()), "{failed}");
    assert!(store.begin(Mode::Restore).is_err() && store.flush().is_err() && store.truncate().is_err());
    assert!(store.query().failed && store.statistics().committed > 20);
    drop(region);
    store.close().unwrap_err();
    // The medium is mended. What the kernel could not write is lost, and said to be; what precedes it is not.
    drop(full);
    std::fs::remove_file(mount.path.join("full")).unwrap();
    let store = match options.open(&path) {
        Ok(store) => store,
        Err(error) => {
            assert!(error.to_string().contains("records are lost from there on"), "{error}");
            options.create(false).salvage(true).open(&path).unwrap()
        }
    };
    let region = store.segment("data").unwrap().map_all().unwrap();
    // The write that failed took the block with it that its record shares with the end of the one before.
    assert!(region.load::<u64>(0) + 1 >= last, "{} of {last}", region.load::<u64>(0));
}

/// A copy that was made file by file while the store was in use: the log is of an earlier moment than a segment.
#[test]
fn segments_that_are_later_than_the_log_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = support::open(&path);
    let region = support::region(&store);
    let log = std::fs::read(path.join("log")).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &7u64).unwrap();
    tx.commit(Class::Power).unwrap();
    store.truncate().unwrap();
    let copy = dir.path().join("copy");
    support::copy_store(&path, &copy);
    let of_two_moments =
        || caliburn::check(&copy).unwrap().problems.iter().any(|p| p.text.contains("moments"));
    assert!(!of_two_moments());
    std::fs::write(copy.join("log"), log).unwrap();
    // The stage of this boot would tell, too.
    std::fs::remove_file(copy.join("stage")).unwrap();
    assert!(of_two_moments());
    let refused = options().copied(true).memory_kept(true).open(&copy).unwrap_err().to_string();
    assert!(refused.contains("different moments"), "{refused}");
}
