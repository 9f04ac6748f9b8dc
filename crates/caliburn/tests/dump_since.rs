//! Dumps of what was written since an earlier one, and stores made of a dump and those that are laid over it.

#[path = "support/backup.rs"]
mod support;

use caliburn::{
    ArchiveOptions, BackupError, Class, DumpOptions, Dumped, Mode, Options, Region, RestoreOptions, Store,
    Until,
};
use std::path::Path;
use support::{LEN, Model, assert_is, beside, dumped, options, restore, transact, wait_until, words};

fn whole(store: &Store) -> (Dumped, Vec<u8>) {
    dumped(|out| store.dump(&DumpOptions::new(), out))
}

fn since(store: &Store, base: &Dumped) -> (Dumped, Vec<u8>) {
    let (told, bytes) = dumped(|out| store.dump(DumpOptions::new().since(base), out));
    assert_eq!(told.base.as_ref(), Some(&base.id));
    (told, bytes)
}

fn restored(chain: &[&[u8]], to: &Path) -> Result<u64, BackupError> {
    restore(&chain.concat(), &RestoreOptions::new(), to)
}

#[test]
fn laid_over_each_other_they_are_the_store_as_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    for opening in 0..3u64 {
        // A store that is opened again goes on with the chain.
        let path = dir.path().join(format!("s{opening}"));
        let mut chain: Option<(Dumped, Vec<Vec<u8>>)> = None;
        for life in 0..2u64 {
            beside(&path, |store, done| {
                for round in 0..6u64 {
                    wait_until(done, (life * 6 + round) * 200 + 100);
                    let (base, mut dumps) = chain.take().unwrap_or_else(|| {
                        let (told, bytes) = whole(store);
                        (told, vec![bytes])
                    });
                    let (told, bytes) = since(store, &base);
                    assert!(told.lsn >= base.lsn);
                    dumps.push(bytes);
                    let to = dir.path().join(format!("r{opening}-{life}-{round}"));
                    let all: Vec<&[u8]> = dumps.iter().map(|bytes| &bytes[..]).collect();
                    assert_eq!(restored(&all, &to).unwrap(), told.lsn);
                    assert_is(&mut model, &words(&to), &format!("round {round} of life {life}"));
                    chain = Some((told, dumps));
                }
            });
        }
    }
}

fn put(store: &Store, region: &Region, offset: usize, bytes: &[u8]) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(region, offset, bytes).unwrap();
    tx.commit(Class::Process).unwrap();
}

#[test]
fn what_was_not_written_is_neither_read_nor_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let mut large = options();
    large.log_bytes(64 << 20);
    let store = large.open(dir.path().join("s")).unwrap();
    let region = store.create_segment("large", 256 << 20).unwrap().map_all().unwrap();
    for part in 0..64 {
        put(&store, &region, part << 20, &[part as u8 + 1; 1 << 20]);
    }
    store.truncate().unwrap();
    let (first, all) = whole(&store);
    assert!(first.data_bytes >= 64 << 20, "{first:?}");
    // Of a page that was written zeros are left, and of another nothing changes.
    put(&store, &region, 5 << 20, &[0; 4096]);
    put(&store, &region, 40 << 20, b"changed");
    put(&store, &region, 200 << 20, b"where nothing was");
    store.truncate().unwrap();
    let (second, part) = since(&store, &first);
    assert!(second.data_bytes <= 64 << 10 && second.log_bytes == 0, "{second:?}");
    let (third, nothing) = since(&store, &second);
    assert_eq!((third.data_bytes, third.lsn), (0, second.lsn));
    drop(region);
    store.close().unwrap();
    let to = dir.path().join("r");
    restored(&[&all, &part, &nothing], &to).unwrap();
    assert_eq!(caliburn::check(&to).unwrap().problems, []);
    let [left, right] =
        [dir.path().join("s"), to].map(|path| std::fs::read(path.join("large.segment")).unwrap());
    assert!(left[65536..] == right[65536..], "they differ");
}

#[test]
fn what_is_undecided_is_decided_between_dumps() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    for (number, offset) in [(1u64, 0), (2, 8192), (3, 16384)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, offset, &number).unwrap();
        tx.prepare(&number.to_le_bytes()).unwrap();
    }
    let (first, all) = whole(&store);
    store.commit_prepared(&1u64.to_le_bytes()).unwrap();
    store.abort_prepared(&2u64.to_le_bytes()).unwrap();
    store.truncate().unwrap();
    let (_, part) = since(&store, &first);
    let to = dir.path().join("r");
    restored(&[&all, &part], &to).unwrap();
    let copy = Store::open(&to).unwrap();
    let left: Vec<_> = copy.prepared().into_iter().map(|prepared| prepared.global_id).collect();
    assert_eq!(left, [3u64.to_le_bytes()]);
    copy.commit_prepared(&3u64.to_le_bytes()).unwrap();
    let region = copy.segment("data").unwrap().map_all().unwrap();
    assert_eq!([0, 8192, 16384].map(|at| region.load::<u64>(at)), [1, 0, 3]);
}

#[test]
fn segments_that_come_and_grow_and_adopted_files_are_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let one = store.create_segment("one", 1 << 16).unwrap();
    put(&store, &one.map_all().unwrap(), 0, b"one");
    std::fs::write(at("data"), [1; 8192]).unwrap();
    let adopted = store.adopt_segment(at("data")).unwrap();
    let (first, all) = whole(&store);
    one.grow(1 << 18).unwrap();
    put(&store, &one.map(1 << 17..1 << 18).unwrap(), 5, b"longer");
    let two = store.create_segment("two", 1 << 16).unwrap();
    put(&store, &two.map_all().unwrap(), 0, b"two");
    put(&store, &adopted.map_all().unwrap(), 4096, &[0; 4096]);
    std::fs::write(at("later"), [2; 4096]).unwrap();
    let second = store.adopt_segment(at("later")).unwrap();
    store.truncate().unwrap();
    let (_, part) = since(&store, &first);
    std::fs::create_dir(at("out")).unwrap();
    restore(&[all, part].concat(), RestoreOptions::new().external(at("out")), &at("r")).unwrap();
    let copy = Store::open(at("r")).unwrap();
    let read = |name: &str, offset: usize, len: usize| {
        let mut bytes = vec![0; len];
        copy.segment(name).unwrap().map_all().unwrap().read(offset, &mut bytes);
        bytes
    };
    assert_eq!(read("one", 0, 3), b"one");
    assert_eq!(read("one", (1 << 17) + 5, 6), b"longer");
    assert_eq!(read("two", 0, 3), b"two");
    let [data, later] =
        [adopted, second].map(|segment| std::fs::read(at("out").join(segment.name())).unwrap());
    assert_eq!(data, [[1; 4096], [0; 4096]].concat());
    assert_eq!(later, [2; 4096]);
}

#[test]
fn the_archive_brings_them_further() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("a"));
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
    (1..300).for_each(|number| transact(&store, &region, number));
    let (first, mut bytes) = whole(&store);
    (300..600).for_each(|number| transact(&store, &region, number));
    archiver.flush().unwrap();
    let (second, part) = since(&store, &first);
    bytes.extend(part);
    (600..900).for_each(|number| transact(&store, &region, number));
    store.flush().unwrap();
    archiver.flush().unwrap();
    let mut model = Model::new();
    let mut how = RestoreOptions::new();
    restore(&bytes, how.archive(&archive), &dir.path().join("all")).unwrap();
    assert_eq!(assert_is(&mut model, &words(&dir.path().join("all")), "all"), 899);
    let early = restore(&bytes, how.until(Until::Lsn(first.lsn)), &dir.path().join("early")).unwrap_err();
    assert!(matches!(early, BackupError::Later { lsn, .. } if lsn == second.lsn), "{early}");
}

#[test]
fn only_a_dump_of_the_stores_own_past_is_a_base() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    put(&store, &region, 0, b"first");
    let (first, all) = whole(&store);
    drop(region);
    store.close().unwrap();
    // The store is brought back from a copy later, and goes on otherwise.
    std::fs::create_dir(at("copy")).unwrap();
    for file in std::fs::read_dir(at("s")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), at("copy").join(file.file_name())).unwrap();
    }
    let store = options().open(at("s")).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    put(&store, &region, 0, b"not of the copy");
    let (second, _) = since(&store, &first);
    let copy = options().open(at("copy")).unwrap();
    let region = copy.segment("data").unwrap().map_all().unwrap();
    (0..100u8).for_each(|i| put(&copy, &region, 100, &[i; 4000]));
    let refused = |store: &Store, base: &Dumped| {
        let error = store.dump(DumpOptions::new().since(base), &mut Vec::new()).unwrap_err();
        assert!(matches!(&error, BackupError::Base { id, .. } if *id == base.id), "{error}");
    };
    refused(&copy, &second);
    // The one of before the copy is of both pasts.
    let (_, part) = since(&copy, &first);
    restored(&[&all, &part], &at("r")).unwrap();
    let report = caliburn::check(at("r")).unwrap();
    assert_eq!(report.problems, []);
    let other = options().open(at("other")).unwrap();
    refused(&other, &first);
    let mut unknown = first.clone();
    unknown.id = "zz".repeat(16);
    refused(&store, &unknown);
    unknown.id = String::new();
    refused(&store, &unknown);
    unknown = first.clone();
    unknown.lsn += 8;
    refused(&store, &unknown);
}

#[test]
fn a_chain_in_another_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut number = 0;
    let mut some = || {
        (0..20).for_each(|_| {
            number += 1;
            transact(&store, &region, number);
        });
    };
    some();
    let (first, a) = whole(&store);
    some();
    let (second, b) = since(&store, &first);
    some();
    let (_, c) = since(&store, &second);
    some();
    let (_, other) = whole(&store);
    let refused = |chain: &[&[u8]], name: &str| {
        let to = dir.path().join(name);
        let error = restored(chain, &to).unwrap_err();
        assert!(matches!(error, BackupError::NotItsBase { .. }), "{name}: {error}");
        assert!(caliburn::check(&to).is_err(), "{name}: there is a store");
    };
    refused(&[&b], "alone");
    refused(&[&a, &c], "gap");
    refused(&[&a, &b, &b], "twice");
    refused(&[&other, &b], "another");
    refused(&[&a, &other], "two whole ones");
    let cut = restored(&[&a, &b[..b.len() - 1]], &dir.path().join("cut")).unwrap_err();
    assert!(cut.to_string().contains("cut off"), "{cut}");
    restored(&[&a, &b, &c], &dir.path().join("good")).unwrap();
}

/// Of a copy whose mark of a dump is newer than its log.
#[test]
fn a_mark_behind_the_end_of_the_log_is_of_another_past() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    put(&store, &region, 0, b"first");
    drop(region);
    store.close().unwrap();
    std::fs::create_dir(at("copy")).unwrap();
    for file in std::fs::read_dir(at("s")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), at("copy").join(file.file_name())).unwrap();
    }
    let store = options().open(at("s")).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    (0..100u8).for_each(|i| put(&store, &region, 0, &[i; 4000]));
    let (late, _) = whole(&store);
    std::fs::copy(at("s").join("dumped"), at("copy").join("dumped")).unwrap();
    for grown in [false, true] {
        let copy = options().open(at("copy")).unwrap();
        let region = copy.segment("data").unwrap().map_all().unwrap();
        if grown {
            // Its own log comes to where the other one was.
            (0..200u8).for_each(|i| put(&copy, &region, 8192, &[i; 4000]));
        }
        let error = copy.dump(DumpOptions::new().since(&late), &mut Vec::new()).unwrap_err();
        assert!(matches!(error, BackupError::Base { .. }), "{error}");
    }
}

/// What says when a page was written is not believed when it is damaged: the page is in the dump.
#[test]
fn a_damaged_entry_hides_no_page() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    put(&store, &region, 0, b"first");
    store.truncate().unwrap();
    let (first, all) = whole(&store);
    put(&store, &region, 0, b"second");
    store.truncate().unwrap();
    // The upper half of the first page's entry.
    let sums = std::fs::OpenOptions::new().write(true).open(path.join("data.sums")).unwrap();
    sums.write_all_at(&[0; 8], 4096 + 8).unwrap();
    assert_eq!(store.scrub().unwrap(), [("data".to_owned(), 0)]);
    let error = store.dump(DumpOptions::new().since(&first), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    drop(region);
    drop(store);
    assert_eq!(caliburn::check(&path).unwrap().problems.len(), 1);
    drop(all);
}

/// A file that was adopted may be made sparse by others, which changes nothing.
#[test]
fn an_adopted_file_with_new_holes_is_dumped_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("theirs"), vec![7; 8 << 20]).unwrap();
    let mut large = options();
    large.log_bytes(16 << 20).outside(dir.path());
    let store = large.open(at("s")).unwrap();
    let segment = store.adopt_segment(at("theirs")).unwrap();
    let (first, mut chain) = whole(&store);
    let region = segment.map_all().unwrap();
    put(&store, &region, 2 << 20, &vec![0; 4 << 20]);
    let name = segment.name().to_owned();
    drop((region, segment));
    store.close().unwrap();
    let done =
        std::process::Command::new("cp").arg("--sparse=always").args([at("theirs"), at("sparse")]).status();
    assert!(done.unwrap().success());
    std::fs::rename(at("sparse"), at("theirs")).unwrap();
    let store = large.open(at("s")).unwrap();
    chain.extend(since(&store, &first).1);
    std::fs::create_dir(at("out")).unwrap();
    restore(&chain, RestoreOptions::new().external(at("out")), &at("r")).unwrap();
    assert!(
        std::fs::read(at("out").join(name)).unwrap() == std::fs::read(at("theirs")).unwrap(),
        "they differ"
    );
}
