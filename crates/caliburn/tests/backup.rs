//! Dumps of stores that are being changed, and stores made again as of any commit.

#[path = "support/backup.rs"]
mod support;

use caliburn::{
    ArchiveOptions, BackupError, Class, DumpOptions, Filter, History, Mode, Options, RestoreOptions, Store,
    Until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use support::{LEN, Model, assert_is, beside, dumped, options, restore, transact, wait_until, words};

#[test]
fn a_dump_of_a_busy_store_is_that_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    beside(&dir.path().join("s"), |store, done| {
        for round in 0..12u64 {
            wait_until(done, (round + 1) * 300);
            let before = done.load(SeqCst);
            let (told, dump) = dumped(|dump| match round % 2 {
                0 => store.dump(&DumpOptions::new(), dump),
                // As another process does.
                _ => Options::new().dump(store.path(), &DumpOptions::new(), dump),
            });
            let to = dir.path().join(format!("r{round}"));
            assert_eq!(restore(&dump, &RestoreOptions::new(), &to).unwrap(), told.lsn);
            let number = assert_is(&mut model, &words(&to), &format!("round {round}"));
            assert!(round % 2 == 1 || number >= before, "{number} is not all that was committed: {before}");
        }
    });
}

/// A transaction that changes a segment which was read, and one which was not yet, and reaches both meanwhile.
#[test]
fn what_is_committed_and_truncated_while_segments_are_read_is_there_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let [first, second] = ["first", "second"].map(|name| {
        let region = store.create_segment(name, 1 << 16).unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &1u64).unwrap();
        tx.commit(Class::Process).unwrap();
        region
    });
    store.truncate().unwrap();
    let busy = store.clone();
    let regions = std::sync::Mutex::new(Some((first, second)));
    let mut outside = Options::new();
    outside.progress(move |_| {
        if let Some((first, second)) = regions.lock().unwrap().take() {
            let mut tx = busy.begin(Mode::Restore).unwrap();
            tx.store(&first, 0, &2u64).unwrap();
            tx.store(&second, 0, &2u64).unwrap();
            tx.commit(Class::Power).unwrap();
            busy.truncate().unwrap();
        }
        std::ops::ControlFlow::Continue(())
    });
    let mut dump = Vec::new();
    outside.dump(&path, &DumpOptions::new(), &mut dump).unwrap();
    let to = dir.path().join("r");
    restore(&dump, &RestoreOptions::new(), &to).unwrap();
    let restored = Store::open(&to).unwrap();
    let value = |name| restored.segment(name).unwrap().map_all().unwrap().load::<u64>(0);
    assert_eq!((value("first"), value("second")), (2, 2));
}

/// The log from one LSN to another, as it was archived: for each record the last transaction in it, and its time.
fn archived(store: &Path, archive: &Path) -> Vec<(u64, u64, u64)> {
    let mut found: Vec<(u64, u64, u64)> = History::archived(archive, &Filter::default())
        .unwrap()
        .into_iter()
        .filter_map(|event| {
            let last = event.changes.iter().rev().find(|change| change.offset == 0)?;
            Some((event.lsn, u64::from_le_bytes(last.bytes[..8].try_into().unwrap()), event.time))
        })
        .collect();
    found.sort_unstable();
    assert!(!found.is_empty(), "{}", store.display());
    found
}

/// At least 500 moments, each of them exact: what was committed before, and nothing else.
#[test]
fn a_store_is_restored_as_of_any_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let mut dumps: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    beside(&path, |store, done| {
        let mut to = ArchiveOptions::directory(&archive);
        to.part_bytes(64 << 10);
        let mut archiver = Options::new().archiver(&path, &to).unwrap();
        std::thread::scope(|scope| {
            let dumping = scope.spawn(|| {
                for round in 0..6u64 {
                    let (told, dump) = dumped(|dump| store.dump(&DumpOptions::new(), dump));
                    // Of one without records, only the time is known when it was whole.
                    let time = if told.last == 0 { told.time } else { told.last };
                    dumps.push((told.lsn, time, dump));
                    while done.load(SeqCst) < (round + 1) * 1500 {
                        std::thread::yield_now();
                    }
                }
                store.flush().unwrap();
            });
            // A dump waits for a log that is full, and that for its archive.
            while !dumping.is_finished() {
                if archiver.step().unwrap().is_none() {
                    std::thread::yield_now();
                }
            }
        });
        archiver.flush().unwrap();
    });
    let records = archived(&path, &archive);
    let mut model = Model::new();
    let (mut seed, mut tried) = (1u64, 0);
    let moments = 500;
    let step = (records.len() / moments).max(1);
    for (i, (lsn, _, time)) in records.iter().enumerate().step_by(step) {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let usable: Vec<_> = dumps.iter().filter(|(end, last, _)| end <= lsn && last <= time).collect();
        let Some((.., dump)) = usable.get((seed >> 33) as usize % usable.len().max(1)) else { continue };
        let before = i.checked_sub(1).map(|i| records[i]);
        let (until, number) = match seed >> 60 & 1 {
            0 => (Until::Lsn(*lsn), before.map(|(_, number, _)| number)),
            // The last record of that time, if several have it.
            _ => {
                let last = records.iter().rev().find(|(_, _, at)| at <= time).unwrap();
                (Until::Time(*time), Some(last.1))
            }
        };
        let to = dir.path().join(format!("r{i}"));
        let mut how = RestoreOptions::new();
        how.archive(&archive).until(until);
        restore(dump, &how, &to).unwrap_or_else(|error| panic!("{until:?}: {error}"));
        let found = assert_is(&mut model, &words(&to), &format!("{until:?}"));
        if let Some(number) = number {
            assert_eq!(found, number, "{until:?}");
        }
        fs::remove_dir_all(&to).unwrap();
        tried += 1;
    }
    println!("{tried} moments of {}", records.len());
    assert!(tried >= moments.min(records.len()) * 9 / 10, "{tried} of {} records", records.len());
}

/// A store with some commits, closed; a dump of it before the last ones, and its archive.
struct Scene {
    dir: tempfile::TempDir,
    dump: Vec<u8>,
    /// The last transaction in the dump, and of all.
    dumped: u64,
    last: u64,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
        let store = options().open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        let mut to = ArchiveOptions::directory(&archive);
        to.part_bytes(16 << 10);
        let mut archiver = Options::new().archiver(&path, &to).unwrap();
        (1..=200).for_each(|number| transact(&store, &region, number));
        let mut dump = Vec::new();
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        (201..=700).for_each(|number| transact(&store, &region, number));
        store.flush().unwrap();
        archiver.flush().unwrap();
        // Not in the archive, but in the log.
        (701..=750).for_each(|number| transact(&store, &region, number));
        drop(region);
        store.close().unwrap();
        Scene { dir, dump, dumped: 200, last: 750 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn parts(&self) -> Vec<PathBuf> {
        let mut parts: Vec<PathBuf> =
            fs::read_dir(self.path("archive")).unwrap().map(|entry| entry.unwrap().path()).collect();
        parts.sort();
        parts
    }

    fn all(&self) -> RestoreOptions {
        let mut how = RestoreOptions::new();
        how.archive(self.path("archive")).left(self.path("s"));
        how
    }
}

#[test]
fn what_is_lost_is_made_again_from_what_is_left() {
    let scene = Scene::new();
    let mut model = Model::new();
    let mut number = |to: &Path| assert_is(&mut model, &words(to), &to.display().to_string());
    let to = |name: &str| scene.path(name);
    restore(&scene.dump, &RestoreOptions::new(), &to("dump alone")).unwrap();
    assert_eq!(number(&to("dump alone")), scene.dumped);
    restore(&scene.dump, RestoreOptions::new().archive(to("archive")), &to("and archive")).unwrap();
    assert_eq!(number(&to("and archive")), 700);
    // All segments are lost, and the catalog.
    for name in ["data.segment", "data.sums", "catalog"] {
        fs::rename(to("s").join(name), to(name)).unwrap();
        restore(&scene.dump, &scene.all(), &to(&format!("without {name}"))).unwrap();
        assert_eq!(number(&to(&format!("without {name}"))), scene.last);
    }
    // The log, too.
    fs::remove_file(to("s").join("log")).unwrap();
    let error = restore(&scene.dump, &scene.all(), &to("without a log")).unwrap_err();
    assert!(error.to_string().contains("open log"), "{error}");
    // The stage of another boot has nothing to tell, and none is missed.
    restore(&scene.dump, RestoreOptions::new().archive(to("archive")), &to("again")).unwrap();
    assert_eq!(number(&to("again")), 700);
}

#[test]
fn what_is_missing_or_damaged_is_named_and_leaves_no_store() {
    let scene = Scene::new();
    let to = scene.path("r");
    let refused = |dump: &[u8], how: &RestoreOptions| {
        let error = restore(dump, how, &to).unwrap_err();
        assert!(!to.join("catalog").exists(), "{error}");
        error
    };
    let parts = scene.parts();
    assert!(parts.len() > 5, "{parts:?}");
    // A part in the middle.
    let away = scene.path("away");
    fs::rename(&parts[parts.len() - 2], &away).unwrap();
    // What is left of the store has it still, so that it is not asked.
    let mut archive = RestoreOptions::new();
    archive.archive(scene.path("archive"));
    match refused(&scene.dump, &archive) {
        BackupError::Hole { from, to } => {
            let name = parts[parts.len() - 2].file_name().unwrap().to_string_lossy().into_owned();
            assert_eq!(name, format!("{from:020}-{to:020}.log"));
            // What comes before it can be had.
            let mut how = archive.clone();
            restore(&scene.dump, how.until(Until::Lsn(from)), &scene.path("before")).unwrap();
            assert_is(&mut Model::new(), &words(&scene.path("before")), "before the hole");
        }
        other => panic!("{other}"),
    }
    fs::rename(&away, &parts[parts.len() - 2]).unwrap();
    // A damaged part, wherever.
    let good = fs::read(&parts[parts.len() - 2]).unwrap();
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&parts[parts.len() - 2], &bad).unwrap();
        let error = refused(&scene.dump, &scene.all());
        let named = error.to_string().contains(&*parts[parts.len() - 2].to_string_lossy());
        assert!(named, "{at}: {error}");
    }
    fs::write(&parts[parts.len() - 2], &good[..good.len() - 9]).unwrap();
    assert!(refused(&scene.dump, &scene.all()).to_string().contains("cut off"));
    fs::write(&parts[parts.len() - 2], &good).unwrap();
    // A damaged dump, and one that was cut off.
    for at in (0..scene.dump.len()).step_by(scene.dump.len() / 60) {
        let mut bad = scene.dump.clone();
        bad[at] ^= 64;
        assert!(matches!(refused(&bad, &scene.all()), BackupError::Stream(_)), "{at}");
        assert!(matches!(refused(&scene.dump[..at], &scene.all()), BackupError::Stream(_)), "{at}");
    }
    // A part under another's name: what its name says is missing is.
    let [.., named, next, _] = &parts[..] else { panic!("{parts:?}") };
    let away = scene.path("away");
    fs::rename(named, &away).unwrap();
    fs::copy(next, named).unwrap();
    let error = refused(&scene.dump, &scene.all());
    assert!(error.to_string().contains("its name says otherwise"), "{error}");
    fs::rename(&away, named).unwrap();
    // Another store's archive.
    let other = Scene::new();
    let mut how = RestoreOptions::new();
    let error = refused(&scene.dump, how.archive(other.path("archive")));
    assert!(matches!(error, BackupError::Foreign { .. } | BackupError::Hole { .. }), "{error}");
    // A moment before the dump, and one that never came.
    assert!(matches!(refused(&scene.dump, scene.all().until(Until::Lsn(8))), BackupError::Later { .. }));
    assert!(matches!(refused(&scene.dump, scene.all().until(Until::Time(1))), BackupError::Later { .. }));
    let beyond = refused(&scene.dump, scene.all().until(Until::Lsn(1 << 40)));
    assert!(matches!(beyond, BackupError::NotReached { .. }), "{beyond}");
    // After all that, the same directory.
    restore(&scene.dump, &scene.all(), &to).unwrap();
    assert_eq!(assert_is(&mut Model::new(), &words(&to), "at last"), scene.last);
    let taken = restore(&scene.dump, &scene.all(), &to).unwrap_err().to_string();
    assert!(taken.contains("already holds a store"), "{taken}");
    // Files of a user's are not touched.
    let theirs = scene.path("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("letter.txt"), "dear").unwrap();
    assert!(restore(&scene.dump, &scene.all(), &theirs).is_err());
    assert_eq!(fs::read(theirs.join("letter.txt")).unwrap(), b"dear");
}

#[test]
fn damage_is_not_dumped() {
    let scene = Scene::new();
    // That the log is kept for an archive excuses nothing: it has nothing left to write.
    let path = scene.path("s");
    let file = path.join("data.segment");
    let mut bytes = fs::read(&file).unwrap();
    let at = 65_536 + 123_456;
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let mut dump = Vec::new();
    match Options::new().dump(&path, &DumpOptions::new(), &mut dump).unwrap_err() {
        BackupError::Damaged { segment, offset, .. } => {
            assert_eq!((segment.as_str(), offset), ("data", at as u64 / 4096 * 4096));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(restore(&dump, &RestoreOptions::new(), &scene.path("r")), Err(BackupError::Stream(_))));
}

/// A target that takes only so much.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_target_that_fills_up_fails_the_dump_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    beside(&dir.path().join("s"), |store, done| {
        wait_until(done, 500);
        for room in [0, 10, 50, 5000, 300_000] {
            let error = store.dump(&DumpOptions::new(), &mut Full(room)).unwrap_err();
            assert!(matches!(error, BackupError::Stream(_)), "{error}");
        }
        wait_until(done, done.load(SeqCst) + 100);
        let (_, dump) = dumped(|dump| store.dump(DumpOptions::new().rate(100 << 20), dump));
        restore(&dump, &RestoreOptions::new(), &dir.path().join("r")).unwrap();
        assert_is(&mut Model::new(), &words(&dir.path().join("r")), "after the failures");
    });
}

#[test]
fn segments_that_come_and_grow_are_in_dumps_and_archives() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
    transact(&store, &region, 1);
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    let late = store.create_segment("late", 65_536).unwrap();
    late.grow(1 << 20).unwrap();
    let late = late.map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&late, (1 << 20) - 8, &77u64).unwrap();
    tx.commit(Class::Power).unwrap();
    archiver.flush().unwrap();
    let to = dir.path().join("r");
    restore(&dump, RestoreOptions::new().archive(&archive), &to).unwrap();
    let again = Store::open(&to).unwrap();
    let late = again.segment("late").unwrap().map_all().unwrap();
    assert_eq!((late.len(), late.load::<u64>((1 << 20) - 8)), (1 << 20, 77));
}

#[test]
fn an_older_catalog_that_is_left_makes_nothing_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let (path, older) = (dir.path().join("s"), dir.path().join("older"));
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    transact(&store, &region, 1);
    drop((store, region));
    std::fs::copy(path.join("catalog"), &older).unwrap();
    let store = options().open(&path).unwrap();
    store.segment("data").unwrap().grow(LEN + 65_536).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, LEN as usize + 8, &77u64).unwrap();
    tx.commit(Class::Power).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    drop((store, region));
    // Of the store, the older catalog is left, and the log.
    std::fs::copy(&older, path.join("catalog")).unwrap();
    let to = dir.path().join("r");
    restore(&dump, RestoreOptions::new().left(&path), &to).unwrap();
    let again = Store::open(&to).unwrap();
    let region = again.segment("data").unwrap().map_all().unwrap();
    assert_eq!((region.len() as u64, region.load::<u64>(LEN as usize + 8)), (LEN + 65_536, 77));
}

#[test]
fn undecided_transactions_stay_undecided_and_can_be_decided() {
    for commits in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
        let store = options().open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
        let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
        let mut dump = Vec::new();
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        for (id, at) in [(b"one", 8), (b"two", 4096)] {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&region, at, &5u64).unwrap();
            tx.prepare(id).unwrap();
        }
        store.commit_prepared(b"one").unwrap();
        archiver.flush().unwrap();
        let to = dir.path().join("r");
        restore(&dump, RestoreOptions::new().archive(&archive), &to).unwrap();
        let again = Store::open(&to).unwrap();
        let region = again.segment("data").unwrap().map_all().unwrap();
        assert_eq!((region.load::<u64>(8), region.load::<u64>(4096)), (5, 0));
        assert_eq!(again.prepared().iter().map(|p| &p.global_id[..]).collect::<Vec<_>>(), [b"two"]);
        if commits {
            again.commit_prepared(b"two").unwrap();
        } else {
            again.abort_prepared(b"two").unwrap();
        }
        assert_eq!(region.load::<u64>(4096), if commits { 5 } else { 0 });
        store.abort_prepared(b"two").unwrap();
    }
}

#[test]
fn adopted_files_are_dumped_and_made_again_where_they_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = (dir.path().join("s"), dir.path().join("theirs"));
    fs::write(&file, vec![3u8; 10 * 512]).unwrap();
    let store = options().open(&path).unwrap();
    let region = store.adopt_segment(&file).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 1000, &7u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    let to = dir.path().join("r");
    let error = restore(&dump, &RestoreOptions::new(), &to).unwrap_err();
    assert!(matches!(error, BackupError::External { .. }), "{error}");
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    restore(&dump, RestoreOptions::new().external(&elsewhere), &to).unwrap();
    let file_of = |dir: &Path| fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let made = fs::read(file_of(&elsewhere)).unwrap();
    assert_eq!((made.len(), made[0], &made[1000..1008]), (5120, 3, &7u64.to_le_bytes()[..]));
    Options::new().outside(&elsewhere).open(&to).unwrap();
    // Of an attempt that failed nothing is in the way of the next.
    let (to, again) = (dir.path().join("r2"), dir.path().join("again"));
    fs::create_dir(&again).unwrap();
    restore(&dump[..dump.len() - 20], RestoreOptions::new().external(&again), &to).unwrap_err();
    restore(&dump, RestoreOptions::new().external(&again), &to).unwrap();
    assert_eq!(fs::read(file_of(&again)).unwrap(), made);
    // What is adopted later, or longer then, is in no log: it takes another dump.
    let archive = dir.path().join("archive");
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    fs::write(dir.path().join("late"), vec![4u8; 4096]).unwrap();
    let late = store.adopt_segment(dir.path().join("late")).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&late, 8, &7u64).unwrap();
    tx.commit(Class::Power).unwrap();
    archiver.flush().unwrap();
    let (to, elsewhere) = (dir.path().join("r3"), dir.path().join("third"));
    fs::create_dir(&elsewhere).unwrap();
    let mut how = RestoreOptions::new();
    let error = restore(&dump, how.external(&elsewhere).archive(&archive), &to).unwrap_err();
    assert!(matches!(error, BackupError::Adopted { .. }), "{error}");
}
