//! The power fails while a log is archived, a store dumped, a store restored: whatever was not forced is lost.

#[path = "support/cuts.rs"]
mod cuts;
#[path = "support/backup.rs"]
mod support;

use caliburn::{ArchiveOptions, DumpOptions, Options, RestoreOptions, Store};
use cuts::{Random, RecordedMedia, Recorder};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{LEN, Model, assert_is, options, restore, transact, words};

fn on(recorder: &Arc<Recorder>) -> Arc<RecordedMedia> {
    Arc::new(RecordedMedia(recorder.clone()))
}

/// So small that the log goes round, by a program that flushes and truncates itself.
fn small(recorder: &Arc<Recorder>) -> Options {
    let mut options = options();
    options.log_bytes(64 << 10).stage_bytes(128 << 10).background(false).media(on(recorder));
    options
}

/// Dumps a store with nothing in it, whose archive begins.
fn begun(path: &Path) -> Vec<u8> {
    let mut dump = Vec::new();
    let store = options().log_bytes(64 << 10).stage_bytes(128 << 10).open(path).unwrap();
    store.create_segment("data", LEN).unwrap();
    drop(Options::new().archiver(path, &ArchiveOptions::command("false", Duration::ZERO)).unwrap());
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    store.close().unwrap();
    dump
}

/// What is archived is never taken back, and nothing is missing between the archive and what is left.
#[test]
fn the_archive_has_what_a_power_cut_leaves_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for seed in 0..30u64 {
        let mut random = Random(seed);
        _ = fs::remove_dir_all(&path);
        let dump = begun(&path);
        // The parts are in the same directory, so that they are in the picture.
        let mut how = ArchiveOptions::directory(&path);
        how.part_bytes(1 << 10).age(Duration::ZERO);
        let (mut model, mut number, mut before) = (Model::new(), 0, Vec::new());
        for life in 0..3 {
            let recorder = Recorder::new(&path, 20 + random.below(400), seed * 10 + life);
            let store = small(&recorder).open(&path).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            let mut outside = Options::new();
            let mut archiver = outside.media(on(&recorder)).archiver(&path, &how).unwrap();
            while recorder.picture.lock().unwrap().is_none() {
                number += 1;
                transact(&store, &region, number);
                match random.below(6) {
                    0 => drop(archiver.step().unwrap()),
                    1 => drop(archiver.flush().unwrap()),
                    2 => store.tend_flush(random.below(2) == 0).unwrap(),
                    3 => store.tend_truncation().unwrap(),
                    _ => {}
                }
                if random.below(20) == 0 {
                    before.clear();
                    store.dump(&DumpOptions::new(), &mut before).unwrap();
                }
                // The program would wait for the archive, which it makes itself.
                if store.query().log_used > 30 << 10 {
                    archiver.flush().unwrap();
                    store.truncate().unwrap();
                }
            }
            let picture = recorder.picture();
            drop((archiver, region));
            drop(store);
            picture.restore(&path);
            let what = format!("seed {seed}, life {life}");
            let to = dir.path().join("r");
            let mut restored = |dump: &[u8], left: bool| {
                _ = fs::remove_dir_all(&to);
                let mut how = RestoreOptions::new();
                how.archive(&path);
                if left {
                    how.left(&path);
                }
                restore(dump, &how, &to).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_is(&mut model, &words(&to), &what)
            };
            let (archived, all) = (restored(&dump, false), restored(&dump, true));
            let store = options().background(false).open(&path).unwrap();
            number = store.segment("data").unwrap().map_all().unwrap().load(0);
            drop(store);
            assert!(archived <= number, "{what}: the archive has {archived}, the store {number}");
            assert_eq!(all, number, "{what}: archive and what is left");
        }
    }
}

/// A dump has nothing that is taken back either: it can be brought further by the archive.
#[test]
fn a_dump_does_not_have_what_a_power_cut_takes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for seed in 0..60u64 {
        let mut random = Random(seed);
        _ = fs::remove_dir_all(&path);
        begun(&path);
        let recorder = Recorder::new(&path, u64::MAX, seed);
        let store = small(&recorder).open(&path).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        (1..=random.below(40) + 1).for_each(|number| transact(&store, &region, number));
        store.tend_flush(false).unwrap();
        let mut dump = Vec::new();
        // From outside: nobody forces anything for it.
        let mut outside = Options::new();
        outside.media(on(&recorder)).background(false);
        outside.dump(&path, &DumpOptions::new(), &mut dump).unwrap();
        let picture = recorder.picture();
        drop(region);
        drop(store);
        picture.restore(&path);
        let to = dir.path().join("r");
        _ = fs::remove_dir_all(&to);
        restore(&dump, &RestoreOptions::new(), &to).unwrap();
        let dumped = assert_is(&mut Model::new(), &words(&to), "the dump");
        let store = options().background(false).open(&path).unwrap();
        let number = store.segment("data").unwrap().map_all().unwrap().load::<u64>(0);
        assert!(dumped <= number, "seed {seed}: the dump has {dumped}, the store {number}");
    }
}

/// Cut anywhere, there is no store, and it can be done again; or there is all of it.
#[test]
fn a_restore_that_is_cut_leaves_nothing_or_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut dump = Vec::new();
    {
        let store = options().open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        (1..=100).for_each(|number| transact(&store, &region, number));
        let mut tx = store.begin(caliburn::Mode::Restore).unwrap();
        tx.store(&region, LEN as usize - 16, &9u64).unwrap();
        tx.prepare(b"undecided").unwrap();
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        store.abort_prepared(b"undecided").unwrap();
    }
    let (to, left) = (dir.path().join("r"), dir.path().join("left"));
    let mut stores = 0;
    for cut in 1..400u64 {
        _ = fs::remove_dir_all(&to);
        let recorder = Recorder::new(&to, cut, cut);
        let mut options = Options::new();
        options.log_bytes(64 << 10).stage_bytes(128 << 10).media(on(&recorder));
        options.restore(&mut &dump[..], &RestoreOptions::new(), &to).unwrap();
        let all = recorder.picture.lock().unwrap().is_none();
        recorder.picture().restore(&left);
        // An empty directory is one without what the picture adds.
        if !left.join("restoring").exists() && !left.join("catalog").exists() {
            fs::remove_file(left.join("stage")).unwrap();
        }
        // Which is not among the media.
        fs::write(left.join("lock"), "").unwrap();
        if !left.join("catalog").exists() {
            assert!(Store::open(&left).is_err(), "cut {cut}");
            restore(&dump, &RestoreOptions::new(), &left)
                .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        } else {
            stores += 1;
        }
        assert_eq!(assert_is(&mut Model::new(), &words(&left), &format!("cut {cut}")), 100);
        let store = Store::open(&left).unwrap();
        assert_eq!(store.prepared().len(), 1, "cut {cut}");
        if all {
            break;
        }
    }
    assert!(stores > 0);
}

/// An archive that is begun at the very moment has no hole afterwards, and holds nobody up.
#[test]
fn an_archive_that_is_cut_as_it_begins_can_be_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("a"));
    let mut made = options();
    made.log_bytes(64 << 10).stage_bytes(128 << 10);
    for cut in 1.. {
        for path in [&path, &archive] {
            _ = fs::remove_dir_all(path);
        }
        let store = made.open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        (1..=20).for_each(|number| transact(&store, &region, number));
        drop(region);
        store.close().unwrap();
        let how = ArchiveOptions::directory(&archive);
        let recorder = Recorder::new(&path, cut, cut);
        drop(Options::new().media(on(&recorder)).archiver(&path, &how).unwrap());
        let all = recorder.picture.lock().unwrap().is_none();
        recorder.picture().restore(&path);
        fs::write(path.join("lock"), "").unwrap();
        // Nobody archives meanwhile: the log is kept at most until it is full.
        let store = made.open(&path).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        let mut archiver = Options::new().archiver(&path, &how).unwrap();
        let mut dump = Vec::new();
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        for number in 21..=120 {
            transact(&store, &region, number);
            archiver.flush().unwrap();
        }
        store.flush().unwrap();
        archiver.flush().unwrap();
        let to = dir.path().join("r");
        _ = fs::remove_dir_all(&to);
        restore(&dump, RestoreOptions::new().archive(&archive), &to)
            .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        assert_eq!(assert_is(&mut Model::new(), &words(&to), &format!("cut {cut}")), 120);
        if all {
            assert!(cut > 2, "the two marks were not cut");
            return;
        }
    }
}

/// What was written since a dump, of a store that lost its power in between, is laid over that dump.
#[test]
fn a_base_from_before_a_power_cut_is_one_still() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for seed in 0..20u64 {
        let mut random = Random(seed + 1000);
        _ = fs::remove_dir_all(&path);
        begun(&path);
        drop(
            Options::new().archiver(&path, &ArchiveOptions::directory(dir.path().join("a"))).unwrap().stop(),
        );
        let (mut number, mut chain, mut base) = (0, Vec::new(), None::<caliburn::Dumped>);
        for life in 0..5 {
            let recorder = Recorder::new(&path, 20 + random.below(300), seed * 10 + life);
            let store = small(&recorder).open(&path).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            while recorder.picture.lock().unwrap().is_none() {
                number += 1;
                transact(&store, &region, number);
                match random.below(8) {
                    0 => store.tend_flush(true).unwrap(),
                    1 => store.tend_truncation().unwrap(),
                    2 => store.truncate().unwrap(),
                    3 => {
                        let mut how = DumpOptions::new();
                        base.iter().for_each(|base| _ = how.since(base));
                        let mut bytes = Vec::new();
                        let made = store.dump(&how, &mut bytes).unwrap();
                        // One that came after the picture is of another past.
                        if recorder.picture.lock().unwrap().is_none() {
                            chain.extend(bytes);
                            base = Some(made);
                        }
                    }
                    _ => {}
                }
            }
            let picture = recorder.picture();
            drop(region);
            drop(store);
            picture.restore(&path);
            let store = options().background(false).log_bytes(64 << 10).open(&path).unwrap();
            number = store.segment("data").unwrap().map_all().unwrap().load(0);
            let what = format!("seed {seed}, life {life}");
            if let Some(base) = &mut base {
                let mut bytes = Vec::new();
                match store.dump(DumpOptions::new().since(base), &mut bytes) {
                    // Its mark was being written as the power failed.
                    Err(caliburn::BackupError::Base { .. }) => {
                        (chain, bytes) = (Vec::new(), Vec::new());
                        *base = store.dump(&DumpOptions::new(), &mut bytes).unwrap();
                    }
                    done => *base = done.unwrap_or_else(|error| panic!("{what}: {error}")),
                }
                chain.extend(bytes);
                let to = dir.path().join("r");
                _ = fs::remove_dir_all(&to);
                restore(&chain, &RestoreOptions::new(), &to)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(assert_is(&mut Model::new(), &words(&to), &what), number, "{what}");
            }
        }
    }
}
