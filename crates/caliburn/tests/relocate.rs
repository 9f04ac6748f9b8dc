//! The log of another size or in another place: at an opening, while the store is used, cut by power.

#[path = "support/cuts.rs"]
mod cuts;
#[path = "support/backup.rs"]
mod support;

use caliburn::{
    ArchiveOptions, Class, DumpOptions, Mode, OpenError, Options, Policy, RestoreOptions, Store, check, info,
};
use cuts::{Random, RecordedMedia, Recorder};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::{LEN, Model, assert_is, beside, dumped, options, restore, transact, wait_until, words};

const K: u64 = 1 << 10;

fn sized(bytes: u64) -> Options {
    let mut options = options();
    options.log_bytes(bytes);
    options
}

fn log_of(path: &Path) -> (PathBuf, u64) {
    let log = info(path).unwrap().log.unwrap();
    (log.path, log.capacity)
}

#[test]
fn an_opening_gives_the_log_the_size_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut model = Model::new();
    let mut number = 0;
    for (round, bytes) in
        [256 * K, 1 << 20, 64 * K, 64 * K, 128 * K, 1 << 20, 512 * K].into_iter().enumerate()
    {
        let store = sized(bytes).open(&path).unwrap();
        assert_eq!(store.query().log_bytes, bytes);
        assert_eq!(log_of(&path).1, bytes);
        let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
        for _ in 0..300 {
            number += 1;
            transact(&store, &region, number);
        }
        drop(region);
        // With something in the log, and without.
        match round % 2 {
            0 => drop(store),
            _ => store.close().unwrap(),
        }
        assert_eq!(check(&path).unwrap().problems, []);
        let logs = ["log", "log.2"].iter().filter(|name| path.join(name).exists()).count();
        assert_eq!(logs, 1, "the former log is there");
        assert_eq!(assert_is(&mut model, &words(&path), "closed"), number);
    }
    // Who names no size takes what is there.
    assert_eq!(Store::open(&path).unwrap().query().log_bytes, 512 * K);
}

#[test]
fn a_log_grows_and_moves_while_threads_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("s"), dir.path().join("elsewhere"));
    let (mut model, archive) = (Model::new(), dir.path().join("a"));
    let first = beside(&path, |store, done| {
        let mut outside = Options::new();
        outside.outside(dir.path());
        let mut archiver = outside.archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
        let first = dumped(|out| store.dump(&DumpOptions::new(), out)).1;
        for round in 1..12u64 {
            wait_until(done, done.load(SeqCst) + 100);
            let mut wanted = Options::new();
            wanted.log_bytes((1 << 20) + round * 256 * K);
            if round == 5 || round == 9 {
                wanted.log_path(elsewhere.with_extension(round.to_string()));
            }
            if round > 5 && round != 9 {
                // Out there it gets another size in another place.
                let error = store.relocate_log(&wanted).unwrap_err();
                assert!(matches!(error, OpenError::Option { name: "log_bytes", .. }), "{error}");
                continue;
            }
            // A dump that is being made may find another log.
            std::thread::scope(|scope| {
                let dumping = scope.spawn(|| dumped(|out| store.dump(&DumpOptions::new(), out)));
                // What is archived later is kept, and comes along.
                while let Err(error) = store.relocate_log(&wanted) {
                    assert!(matches!(error, OpenError::Option { .. }), "{error}");
                    archiver.flush().unwrap();
                }
                let (_, dump) = dumping.join().unwrap();
                let to = dir.path().join(format!("r{round}"));
                restore(&dump, &RestoreOptions::new(), &to).unwrap();
                assert_is(&mut model, &words(&to), &format!("dumped in round {round}"));
            });
            assert_eq!(store.query().log_bytes, (1 << 20) + round * 256 * K);
            archiver.step().unwrap();
        }
        let smaller = store.relocate_log(Options::new().log_bytes(1 << 20)).unwrap_err();
        assert!(smaller.to_string().contains("when the store is opened"), "{smaller}");
        archiver.flush().unwrap();
        first
    });
    let moved = log_of_listed(&path, dir.path());
    assert_eq!(moved, elsewhere.with_extension("9"));
    // The archive has no hole, and the file that the log has left is none any more.
    restore(&first, RestoreOptions::new().archive(&archive), &dir.path().join("all")).unwrap();
    assert_is(&mut model, &words(&dir.path().join("all")), "archived");
    let former = std::fs::read(elsewhere.with_extension("5")).unwrap();
    assert!(!former.starts_with(b"CALI"), "it still says that it is a log");
    let mut back = options();
    let store = back
        .log_bytes(1 << 20)
        .outside(dir.path())
        .log_path(elsewhere.with_extension("5"))
        .open(&path)
        .unwrap();
    assert_eq!(store.query().log_bytes, 1 << 20);
}

/// The way back from `log_path`. A file of that name that is no log of the store stays.
#[test]
fn a_log_comes_back_to_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("s"), dir.path().join("elsewhere"));
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    transact(&store, &region, 1);
    store.relocate_log(Options::new().log_path(&elsewhere)).unwrap();
    transact(&store, &region, 2);
    let inside = path.join("log");
    std::fs::write(&inside, "mine").unwrap();
    let refused = store.relocate_log(Options::new().log_path(&inside)).unwrap_err().to_string();
    assert!(refused.contains("no log of this store") && refused.contains("/s/log"), "{refused}");
    assert_eq!(std::fs::read(&inside).unwrap(), b"mine");
    std::fs::remove_file(&inside).unwrap();
    // What a killed attempt has left is no obstacle: it was made, or filled.
    std::fs::write(&inside, [0; 100]).unwrap();
    store.relocate_log(Options::new().log_path(&inside)).unwrap();
    transact(&store, &region, 3);
    drop(region);
    store.close().unwrap();
    assert!(std::fs::read(&elsewhere).unwrap()[..4096].iter().all(|byte| *byte == 0), "no log any more");
    assert_eq!(log_of_listed(&path, dir.path()), inside);
    let store = Options::new().log_path(&inside).open(&path).unwrap();
    assert_eq!(store.query().log_bytes, Options::new().info(&path).unwrap().log.unwrap().capacity);
    drop(store);
    let mut moved = Options::new();
    moved.log_bytes(8 << 20).log_path(&inside).open(&path).unwrap().close().unwrap();
    assert_eq!(
        log_of_listed(&path, dir.path()).file_name().unwrap(),
        "log.2",
        "another size, in the directory"
    );
}

fn log_of_listed(path: &Path, listed: &Path) -> PathBuf {
    Options::new().outside(listed).info(path).unwrap().log.unwrap().path
}

#[test]
fn what_is_undecided_comes_along() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = sized(256 * K).open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 4096, &7u64).unwrap();
    tx.prepare(b"it").unwrap();
    (1..50).for_each(|number| transact(&store, &region, number));
    store.relocate_log(Options::new().log_bytes(1 << 20)).unwrap();
    drop(region);
    drop(store);
    let store = sized(64 * K).open(&path).unwrap();
    assert_eq!(store.prepared().len(), 1);
    store.commit_prepared(b"it").unwrap();
    store.close().unwrap();
    assert_eq!(check(&path).unwrap().problems, []);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.segment("data").unwrap().map_all().unwrap().load::<u64>(4096), 7);
}

#[test]
fn what_contradicts_a_store_is_done_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let segment = store.create_segment("data", 1 << 16).unwrap();
    assert_eq!(store.segment_or_create("data", 1 << 18).unwrap().len(), 1 << 18);
    assert_eq!(store.segment_or_create("data", 1 << 16).unwrap().len(), 1 << 18);
    assert_eq!(segment.len(), 1 << 18);
    store.close().unwrap();
    let error = options().policy(Policy::Undo).open(at("s")).unwrap_err();
    assert!(error.to_string().contains("redo, and undo was asked for"), "{error}");
    options().policy(Policy::Redo).open(at("s")).unwrap();
    // A log goes nowhere where something of another store is, and stays where it was then.
    let other = options().log_path(at("theirs")).outside(dir.path()).open(at("other")).unwrap();
    other.close().unwrap();
    let error = options().log_path(at("theirs")).outside(dir.path()).open(at("s")).unwrap_err();
    assert!(error.to_string().contains("already holds part of a store"), "{error}");
    assert_eq!(log_of(&at("s")).0, at("s").join("log"));
    options().outside(dir.path()).open(at("other")).unwrap();
    // Undecided transactions that take more than a quarter.
    let store = options().open(at("s")).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 0, &[1; 40 << 10]).unwrap();
    tx.prepare(b"large").unwrap();
    drop(region);
    drop(store);
    let store = sized(64 * K).open(at("s")).unwrap();
    assert_eq!((store.query().log_bytes, store.prepared().len()), (1 << 20, 1));
}

/// Cut by power at any operation, all that was forced is there, and nothing that was not committed.
#[test]
fn a_relocation_that_is_cut_leaves_one_log_or_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (mut model, sizes) = (Model::new(), [64 * K, 96 * K, 128 * K]);
    let (mut cut_within, mut cuts) = (0, 0);
    for seed in 0..60u64 {
        let mut random = Random(seed);
        _ = std::fs::remove_dir_all(&path);
        let mut made = sized(64 * K);
        made.stage_bytes(128 << 10);
        made.open(&path).unwrap().create_segment("data", LEN).unwrap();
        let (mut number, mut floor) = (0, 0);
        for life in 0..4 {
            let recorder = Recorder::new(&path, 1 + random.below(120), seed * 10 + life);
            let on = || Arc::new(RecordedMedia(recorder.clone()));
            let mut asked = sized(sizes[random.below(3) as usize]);
            asked.stage_bytes(128 << 10).background(false).media(on());
            let before = recorder.picture.lock().unwrap().is_none();
            let store = asked.open(&path).unwrap();
            cut_within += u64::from(before && recorder.picture.lock().unwrap().is_some());
            let region = store.segment("data").unwrap().map_all().unwrap();
            while recorder.picture.lock().unwrap().is_none() {
                number += 1;
                transact(&store, &region, number);
                match random.below(5) {
                    0 => {
                        store.flush().unwrap();
                        recorder.acknowledged.store(number, SeqCst);
                    }
                    1 => store.truncate().unwrap(),
                    2 => {
                        let bytes = sizes[random.below(3) as usize].max(store.query().log_bytes);
                        let open = recorder.picture.lock().unwrap().is_none();
                        if store.query().log_used > bytes / 2 {
                            store.truncate().unwrap();
                        }
                        store.relocate_log(Options::new().log_bytes(bytes)).unwrap();
                        cut_within += u64::from(open && recorder.picture.lock().unwrap().is_some());
                    }
                    _ => {}
                }
            }
            cuts += 1;
            drop(region);
            drop(store);
            let picture = recorder.picture();
            floor = floor.max(picture.acknowledged);
            picture.restore(&path);
            let what = format!("seed {seed}, life {life}");
            assert_eq!(problems(&path), Vec::<String>::new(), "{what}");
            let store = support::options()
                .media(Arc::new(caliburn::medium::Files))
                .copied(true)
                .memory_kept(true)
                .log_bytes(log_of(&path).1)
                .open(&path);
            let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
            let region = store.segment("data").unwrap().map_all().unwrap();
            let found = (0..LEN as usize / 8).map(|word| region.load::<u64>(word * 8)).collect::<Vec<_>>();
            let there = assert_is(&mut model, &found, &what);
            assert!((floor..=number).contains(&there), "{what}: {there}, of {floor} to {number}");
            number = there;
            drop(region);
            store.close().unwrap();
        }
    }
    assert!(cut_within > cuts / 4, "{cut_within} of {cuts} cuts were within a relocation");
}

fn problems(path: &Path) -> Vec<String> {
    let report = options().copied(true).memory_kept(true).check(path).unwrap();
    report.problems.iter().map(|problem| problem.text.clone()).collect()
}

#[test]
fn larger_transactions_fit_a_larger_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = sized(64 * K);
    let store = options.large_transactions(false).open(dir.path().join("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let write = || {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &[5; 100 << 10])?;
        tx.commit(Class::Power).unwrap();
        Ok::<(), caliburn::RangeError>(())
    };
    assert!(write().is_err());
    store.relocate_log(Options::new().log_bytes(1 << 20)).unwrap();
    write().unwrap();
    assert_eq!(region.load::<u8>(1000), 5);
}

#[test]
fn a_segment_moves_while_others_are_used() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (path, there) = (dir.path().join("s"), dir.path().join("there"));
        let mut listed = options();
        listed.policy(policy).outside(dir.path());
        let store = listed.open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        let other = store.create_segment("other", LEN).unwrap().map_all().unwrap();
        let put = |value: u64| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&other, 8192, &value).unwrap();
            tx.commit(Class::Process).unwrap();
        };
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, LEN as usize - 8, &7u64).unwrap();
        tx.commit(Class::Process).unwrap();
        let used = |text: &str| {
            let error = store.move_segment("data", Some(&there)).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        };
        used("mapped");
        drop(region);
        let handle = store.segment("data").unwrap();
        used("handle");
        drop(handle);
        put(1);
        drop(store.move_segment("data", Some(&there)).unwrap());
        assert!(there.exists() && !path.join("data.segment").exists());
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!(region.load::<u64>(LEN as usize - 8), 7);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &8u64).unwrap();
        tx.commit(Class::Process).unwrap();
        drop(region);
        // Back again; and not to where something else is.
        std::fs::write(dir.path().join("theirs"), b"CALI-SEG of another").unwrap();
        let error = store.move_segment("data", Some(&dir.path().join("theirs"))).unwrap_err();
        assert!(error.to_string().contains("already holds part of a store"), "{error}");
        if policy == Policy::Redo {
            std::fs::write(dir.path().join("adopted"), [5; 1 << 20]).unwrap();
            let adopted = store.adopt_segment(dir.path().join("adopted")).unwrap();
            store.move_segment("data", Some(&dir.path().join("adopted"))).unwrap_err();
            assert_eq!(std::fs::read(dir.path().join("adopted")).unwrap(), [5; 1 << 20]);
            drop(adopted);
        }
        put(2);
        drop(store.move_segment("data", None).unwrap());
        assert!(!std::fs::read(&there).unwrap().starts_with(b"CALI"));
        drop(other);
        store.close().unwrap();
        assert_eq!(listed.check(&path).unwrap().problems, []);
        let store = listed.open(&path).unwrap();
        let [region, other] = ["data", "other"].map(|name| store.segment(name).unwrap().map_all().unwrap());
        assert_eq!((region.load::<u64>(0), region.load::<u64>(LEN as usize - 8)), (8, 7));
        assert_eq!(other.load::<u64>(8192), 2);
    }
}

/// Cut by power at any operation of a move, the segment is where it was, or where it was to go.
#[test]
fn a_segment_that_is_cut_as_it_moves_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (path, there) = (dir.path().join("s"), dir.path().join("there"));
    let mut found = [0, 0];
    for cut in 1.. {
        _ = std::fs::remove_dir_all(&path);
        _ = std::fs::remove_file(&there);
        let mut made = sized(64 * K);
        made.stage_bytes(128 << 10).outside(dir.path());
        let store = made.open(&path).unwrap();
        let region = store.create_segment("data", 1 << 17).unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &[6; 20_000]).unwrap();
        tx.commit(Class::Power).unwrap();
        drop(region);
        drop(store.move_segment("data", Some(&there)).unwrap());
        store.close().unwrap();
        // It is changed only when the catalog names the other.
        let outside = std::fs::read(&there).unwrap();
        let recorder = Recorder::new(&path, cut, cut);
        let mut media = made.clone();
        let store =
            media.background(false).media(Arc::new(RecordedMedia(recorder.clone()))).open(&path).unwrap();
        let before = recorder.picture.lock().unwrap().is_none();
        drop(store.move_segment("data", None).unwrap());
        let all = recorder.picture.lock().unwrap().is_none();
        drop(store);
        recorder.picture().restore(&path);
        std::fs::write(path.join("lock"), "").unwrap();
        std::fs::write(&there, outside).unwrap();
        let store = made.copied(true).memory_kept(true).open(&path).unwrap();
        let place = made.info(&path).unwrap().segments[0].path.clone();
        found[usize::from(place == there)] += u64::from(before && !all);
        let region = store.segment("data").unwrap().map_all().unwrap();
        let mut bytes = vec![0; 20_001];
        region.read(0, &mut bytes);
        assert!(bytes[..20_000].iter().all(|byte| *byte == 6) && bytes[20_000] == 0, "cut {cut}: {place:?}");
        if all {
            break;
        }
    }
    assert!(found[1] > 0, "{found:?}");
}

/// A log that is named by another name of its own file stays where it is.
#[test]
fn the_same_file_under_another_name_is_no_other_place() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut made = options();
    made.outside(dir.path()).log_path(at("log1"));
    let store = made.open(at("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &7u64).unwrap();
    tx.prepare(b"undecided").unwrap();
    std::fs::hard_link(at("log1"), at("hard")).unwrap();
    std::os::unix::fs::symlink(at("log1"), at("soft")).unwrap();
    std::fs::create_dir(at("x")).unwrap();
    for name in ["hard", "soft", "x/../log1"] {
        store.relocate_log(Options::new().log_path(at(name))).unwrap();
    }
    transact(&store, &region, 1);
    store.flush().unwrap();
    drop(region);
    drop(store);
    for name in ["x/../log1", "soft", "log1"] {
        let store = options().outside(dir.path()).log_path(at(name)).open(at("s")).unwrap();
        assert_eq!(store.prepared().len(), 1, "{name}");
        store.close().unwrap();
    }
    assert!(std::fs::read(at("log1")).unwrap().starts_with(b"CALI-LOG"));
}

#[test]
fn a_log_goes_over_nothing_that_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = options().open(at("s")).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    transact(&store, &region, 1);
    drop(region);
    store.close().unwrap();
    // A copy has the same identity.
    std::fs::create_dir(at("copy")).unwrap();
    for file in std::fs::read_dir(at("s")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), at("copy").join(file.file_name())).unwrap();
    }
    let copy = options().open(at("copy")).unwrap();
    for open in [true, false] {
        let theirs = if open { Some(options().open(at("s")).unwrap()) } else { None };
        copy.relocate_log(Options::new().log_path(at("s/log"))).unwrap_err();
        drop(theirs);
        assert_eq!(check(at("s")).unwrap().problems, []);
    }
    // What it has adopted is no place for it.
    std::fs::write(at("theirs"), [5; 8192]).unwrap();
    let adopted = copy.adopt_segment(at("theirs")).unwrap();
    let error = copy.relocate_log(Options::new().log_path(at("theirs"))).unwrap_err();
    assert!(
        error.to_string().contains("already has a segment") || error.to_string().contains("lock"),
        "{error}"
    );
    assert_eq!(std::fs::read(at("theirs")).unwrap(), [5; 8192]);
    drop(adopted);
    // What failed leaves nothing that stands in the way of the next attempt.
    copy.relocate_log(Options::new().log_path(at("free"))).unwrap();
}

/// Who waits for room in the log has the lock that a relocation needs, and needs the one that it has.
#[test]
fn a_relocation_and_those_who_wait_for_room_do_not_wait_for_each_other() {
    for background in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let mut small = sized(64 * K);
        small.stage_bytes(128 << 10).background(background);
        let store = small.open(dir.path().join("s")).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let (store, region, stop) = (&store, &region, &stop);
                scope.spawn(move || {
                    for number in 0.. {
                        if stop.load(SeqCst) {
                            return;
                        }
                        let mut tx = store.begin(Mode::Restore).unwrap();
                        tx.write(region, thread * 100_000, &[number as u8; 9000]).unwrap();
                        tx.commit(Class::Power).unwrap();
                    }
                });
            }
            for round in 1..20 {
                match store.relocate_log(Options::new().log_bytes((64 + round * 4) * K)) {
                    Ok(()) | Err(OpenError::Option { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            stop.store(true, SeqCst);
        });
    }
}

#[test]
fn a_full_log_that_waits_for_its_archive_is_refused_and_grows_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("a"));
    let store = sized(64 * K).open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            for number in 0..30u8 {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.write(&region, 0, &[number; 9000]).unwrap();
                tx.commit(Class::Power).unwrap();
            }
        });
        while store.query().log_kept + store.query().log_used < 40 << 10 {
            std::thread::yield_now();
        }
        let error = store.relocate_log(Options::new().log_bytes(66 * K)).unwrap_err();
        assert!(matches!(error, OpenError::Option { name: "log_bytes", .. }), "{error}");
        while !committing.is_finished() {
            archiver.flush().unwrap();
        }
    });
    archiver.flush().unwrap();
    store.relocate_log(Options::new().log_bytes(1 << 20)).unwrap();
    // An opening that cannot make it smaller for what is kept goes on with what there is.
    (0..30u8).for_each(|number| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &[number; 9000]).unwrap();
        tx.commit(Class::Power).unwrap();
    });
    drop((region, archiver));
    drop(store);
    let store = sized(64 * K).open(&path).unwrap();
    assert_eq!(store.query().log_bytes, 1 << 20);
}

/// A log outside of the directory that the directory comes to is not taken for what an attempt has left.
#[test]
fn a_log_that_the_directory_came_to_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("new")).unwrap();
    let mut made = options();
    made.outside(dir.path()).log_path(at("new/log"));
    made.open(at("s")).unwrap().create_segment("data", LEN).unwrap();
    for file in std::fs::read_dir(at("s")).unwrap() {
        let file = file.unwrap();
        std::fs::rename(file.path(), at("new").join(file.file_name())).unwrap();
    }
    for _ in 0..2 {
        let opened = options().outside(dir.path()).open(at("new"));
        assert!(at("new/log").exists(), "{opened:?}");
    }
}

/// Two directories with the same files are one store, whose log is locked wherever it is.
#[test]
fn a_relocated_log_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = sized(256 * K).open(at("s")).unwrap();
    store.relocate_log(Options::new().log_bytes(1 << 20)).unwrap();
    std::fs::create_dir(at("linked")).unwrap();
    for file in std::fs::read_dir(at("s")).unwrap() {
        let file = file.unwrap();
        if file.file_name() != "lock" {
            std::fs::hard_link(file.path(), at("linked").join(file.file_name())).unwrap();
        }
    }
    let error = Store::open(at("linked")).unwrap_err();
    assert!(error.to_string().contains("open"), "{error}");
}
