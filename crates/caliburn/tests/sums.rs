//! Checksums of the segments of stores with the shadow policy: what flips on the disk is found.

mod support;

use caliburn::{BeforeImages, Class, Mode, Options, Policy, Problem, Region, Store, Tracking};
use std::path::Path;
use support::{copy_store, patch};

const PAGE: usize = 4096;
/// More pages than have sums that can wait.
const PAGES: usize = 1024;
/// Where data begin in a segment's file, and entries in a file of sums.
const DATA: u64 = 65536;
const ENTRIES: u64 = 4096;

fn options() -> Options {
    let mut options = support::options();
    options.policy(Policy::Shadow);
    options
}

fn made(path: &Path) -> (Store, Region) {
    let store = options().open(path).unwrap();
    let region = store.create_segment("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    (store, region)
}

fn put(store: &Store, region: &Region, pages: impl IntoIterator<Item = usize>, value: u64) {
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    pages.into_iter().for_each(|page| tx.store(region, page * PAGE + 64, &value).unwrap());
    tx.commit(Class::Power).unwrap();
}

fn found(path: &Path) -> Vec<Problem> {
    options().copied(true).check(path).unwrap().problems
}

/// Flips a bit; `check` names what is damaged, once, and is content when the bit is back.
fn flip(path: &Path, file: &str, at: u64, (named, offset): (&str, u64)) {
    let whole = path.join(file);
    let bit = |bytes: Vec<u8>| bytes[at as usize] ^ 16;
    patch(&whole, at, &[bit(std::fs::read(&whole).unwrap())]);
    let problems = found(path);
    assert_eq!(problems.len(), 1, "{file} at {at}: {problems:?}");
    let Problem { path: of, offset: place, text } = &problems[0];
    assert!(of.ends_with(named) && *place == offset, "{file} at {at}: {problems:?}");
    assert!(file != "data.segment" || text.contains("do not match their checksums"), "{text}");
    patch(&whole, at, &[bit(std::fs::read(&whole).unwrap())]);
    assert_eq!(found(path), []);
}

fn flip_page(path: &Path, page: usize) {
    let offset = DATA + (page * PAGE) as u64;
    for at in [0, 64, 4095] {
        flip(path, "data.segment", offset + at, ("data.segment", offset));
    }
}

fn flip_entry(path: &Path, page: usize) {
    let offset = DATA + (page * PAGE) as u64;
    for at in [0, 5, 11] {
        flip(path, "data.sums", ENTRIES + page as u64 * 16 + at, ("data.segment", offset));
    }
}

/// In pages that one commit of many changed, that of few, and that none did; and in the sums of them.
#[test]
fn a_flipped_bit_is_found_after_a_close_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed) = (dir.path().join("s"), dir.path().join("k"));
    let (store, region) = made(&path);
    put(&store, &region, 0..900, 1);
    for page in 0..20 {
        put(&store, &region, [page, 5], page as u64 + 2);
    }
    put(&store, &region, 100..300, 7);
    assert_eq!(store.scrub().unwrap(), []);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.write(&region, 400 * PAGE, &[7; 2 * PAGE]).unwrap();
    copy_store(&path, &killed);
    // What is being changed is not compared; what goes back is, and so are the sums of it.
    for at in [0, 5, 11] {
        flip(&killed, "data.sums", ENTRIES + 400 * 16 + at, ("shadow", 65536));
    }
    for page in [5, 19, 20, 150, 899, 900, 1023] {
        flip_page(&killed, page);
    }
    for page in [50, 402, 899] {
        flip_entry(&killed, page);
    }
    patch(&killed.join("data.segment"), DATA + 401 * PAGE as u64 + 5, &[99]);
    assert_eq!(found(&killed), []);
    let again = options().copied(true).open(&killed).unwrap();
    assert_eq!(again.scrub().unwrap(), []);
    again.close().unwrap();
    assert_eq!(found(&killed), []);
    drop(tx);
    drop(region);
    store.close().unwrap();
    for path in [&path, &killed] {
        assert_eq!(options().check(path).unwrap().unverified_bytes, 0);
        for page in [5, 19, 20, 150, 400, 899, 900, 1023] {
            flip_page(path, page);
        }
        for page in [5, 50, 150, 400, 899] {
            flip_entry(path, page);
        }
        flip(path, "data.sums", 20, ("data.sums", 0));
    }
}

/// Files of two moments: the pages and the sums of one, the log of another one, whichever was earlier. A copy of one
/// moment is opened, also when a transaction is open.
#[test]
fn a_copy_of_two_moments_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = made(&dir.path().join("s"));
    put(&store, &region, 0..900, 1);
    let moment = |number: u64| {
        put(&store, &region, [3, 4], number);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 400 * PAGE, &number.to_le_bytes()).unwrap();
        let copy = dir.path().join(format!("copy{number}"));
        copy_store(&dir.path().join("s"), &copy);
        tx.commit(Class::Power).unwrap();
        copy
    };
    let [first, second] = [moment(1), moment(2)];
    for (from, to) in [(&first, &second), (&second, &first)] {
        for file in ["data.segment", "shadow"] {
            let mixed = dir.path().join("mixed");
            copy_store(to, &mixed);
            std::fs::copy(from.join(file), mixed.join(file)).unwrap();
            let refused = options().copied(true).open(&mixed).unwrap_err().to_string();
            assert!(refused.contains("checksum") || refused.contains("not what was committed"), "{refused}");
            std::fs::remove_dir_all(&mixed).unwrap();
        }
    }
    for (copy, number) in [(first, 1), (second, 2)] {
        let store = options().copied(true).open(&copy).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!(region.load::<u64>(3 * PAGE + 64), number);
        assert_eq!(region.load::<u64>(400 * PAGE), number - 1);
    }
}

/// A copied log whose status is older than its batches: what was to come then is not taken for what comes now.
#[test]
fn batches_of_later_generations_in_a_copy_are_not_laid_over_its_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (path, [early, late]) = (dir.path().join("s"), ["early", "late"].map(|name| dir.path().join(name)));
    let (store, region) = made(&path);
    put(&store, &region, 0..4, 1);
    copy_store(&path, &early);
    (0..10).for_each(|value| put(&store, &region, [4, 5], 500 + value));
    copy_store(&path, &late);
    let batches = std::fs::read(late.join("shadow")).unwrap().split_off(65536);
    patch(&early.join("shadow"), 65536, &batches);
    for commits in 0..14 {
        let copy = dir.path().join(format!("copy{commits}"));
        copy_store(&early, &copy);
        let store = options().copied(true).open(&copy).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        (0..commits).for_each(|value| put(&store, &region, [0], 1000 + value));
        let words = || -> Vec<u64> { (0..8).map(|page| region.load(page * PAGE + 64)).collect() };
        let before = words();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 64, &7777u64).unwrap();
        tx.abort();
        assert_eq!(words(), before, "after {commits} commits");
    }
}

/// Both ways of keeping before-images, and pages that the program just stores to.
#[test]
fn what_is_caught_has_sums() {
    for before in [BeforeImages::Eager, BeforeImages::Lazy] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options().tracking(Tracking::Fault).before_images(before).open(&path).unwrap();
        let region = store.create_segment("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
        for turn in 1..4 {
            let tx = store.begin(Mode::NoRestore).unwrap();
            (0..30).for_each(|page| support::set(&region, page * turn * PAGE, turn as u64));
            tx.commit(Class::Power).unwrap();
            let tx = store.begin(Mode::Restore).unwrap();
            (0..30).for_each(|page| support::set(&region, page * PAGE, 99));
            tx.abort();
            assert_eq!(store.scrub().unwrap(), []);
        }
        drop(region);
        store.close().unwrap();
        assert_eq!(found(&path), []);
        flip_page(&path, 0);
        flip_page(&path, 87);
    }
}

/// The running program finds the damage, and a page that it then changes stays marked as damaged.
#[test]
fn what_was_damaged_before_it_was_changed_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = made(&path);
    put(&store, &region, 0..3, 1);
    patch(&path.join("data.segment"), DATA + PAGE as u64 + 700, &[1]);
    let offset = PAGE as u64;
    assert_eq!(store.scrub().unwrap(), [("data".to_owned(), offset)]);
    put(&store, &region, 0..3, 2);
    put(&store, &region, 1..2, 3);
    assert_eq!(store.scrub().unwrap(), [("data".to_owned(), offset)]);
    drop(region);
    store.close().unwrap();
    let problems = found(&path);
    assert_eq!((problems.len(), problems[0].offset), (1, DATA + offset), "{problems:?}");
}

/// A page of yesterday is whole, and another one.
#[test]
fn a_page_that_is_what_it_was_earlier_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = made(&path);
    put(&store, &region, [3], 1);
    let mut page = vec![0; PAGE];
    region.read(3 * PAGE, &mut page);
    put(&store, &region, [3], 2);
    drop(region);
    store.close().unwrap();
    patch(&path.join("data.segment"), DATA + 3 * PAGE as u64, &page);
    assert_eq!(found(&path).len(), 1);
}
