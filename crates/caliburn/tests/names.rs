//! Names: a store is the directory that was opened, whatever becomes of its name; its files are its own; and what a
//! name means is known also when forcing it failed.

use caliburn::medium::{Files, Media, Medium, Replaced};
use caliburn::{Class, Mode, Options, Policy, Store};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs};

const LEN: u64 = 64 * 1024;

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(1 << 20).stage_bytes(1 << 20);
    options
}

/// Puts a number into the segment `data`, made or found.
fn put(store: &Store, value: u64) {
    let segment = store.segment("data").or_else(|_| store.create_segment("data", LEN)).unwrap();
    let region = segment.map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &value).unwrap();
    tx.commit(Class::Process).unwrap();
}

fn number(store: &Store) -> u64 {
    store.segment("data").unwrap().map_all().unwrap().load(0)
}

#[test]
fn a_store_is_its_directory_whatever_is_called_so_later() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("s"), dir.path().join("moved"));
        let store = options(policy).open(&path).unwrap();
        put(&store, 1);
        fs::rename(&path, &moved).unwrap();
        let other = options(policy).open(&path).unwrap();
        put(&other, 2);
        let catalog = fs::read(path.join("catalog")).unwrap();

        store.segment("data").unwrap().grow(8 * LEN).unwrap();
        store.create_segment("more", LEN).unwrap();
        put(&store, 3);
        store.truncate().unwrap();
        store.close().unwrap();
        assert_eq!(fs::read(path.join("catalog")).unwrap(), catalog, "the other store was changed");
        assert!(moved.join("more.segment").exists() && !path.join("more.segment").exists());
        other.close().unwrap();
        let store = options(policy).open(&moved).unwrap();
        assert_eq!((number(&store), store.segment("data").unwrap().len()), (3, 8 * LEN));
        assert_eq!(number(&options(policy).open(&path).unwrap()), 2);
    }
}

/// The only test here that uses the working directory.
#[test]
fn another_working_directory_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let places = ["a", "b"].map(|name| dir.path().join(name));
    let [a, b] = places.each_ref().map(|place| {
        fs::create_dir(place).unwrap();
        env::set_current_dir(place).unwrap();
        let store = options(Policy::Redo).open("store").unwrap();
        put(&store, 1);
        store
    });
    b.close().unwrap();
    let catalog = fs::read(places[1].join("store/catalog")).unwrap();
    // The working directory is that of the store that is closed.
    a.segment("data").unwrap().grow(4 * LEN).unwrap();
    put(&a, 7);
    a.flush().unwrap();
    drop(a);
    env::set_current_dir("/").unwrap();
    assert_eq!(fs::read(places[1].join("store/catalog")).unwrap(), catalog);
    assert_eq!(number(&Store::open(places[0].join("store")).unwrap()), 7);
    assert_eq!(number(&Store::open(places[1].join("store")).unwrap()), 1);
}

/// Files of which a directory can be made not to force its names.
#[derive(Debug)]
struct Reluctant {
    held: Arc<dyn Media>,
    fails: Arc<AtomicBool>,
}

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Reluctant {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        self.held.open(path, write)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        self.held.create(path)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        let replaced = self.held.replace(path, content)?;
        let fails = self.fails.load(Ordering::Relaxed);
        Ok(if fails { Replaced::Perhaps(io::Error::other("the directory is ill")) } else { replaced })
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.held.sync_directory(path)
    }
}

#[test]
fn a_segment_of_which_the_name_was_not_forced_stays_and_the_store_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    options(Policy::Redo).open(&path).unwrap().close().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let held = Files.held(&path, &Default::default()).unwrap().unwrap();
    let mut reluctant = options(Policy::Redo);
    reluctant.media(Arc::new(Reluctant { held, fails: fails.clone() }));
    let store = reluctant.open(&path).unwrap();
    put(&store, 5);
    fails.store(true, Ordering::Relaxed);
    let error = store.create_segment("more", LEN).unwrap_err().to_string();
    assert!(error.contains("the directory is ill") && error.contains("catalog"), "{error}");
    fails.store(false, Ordering::Relaxed);
    // A second try would begin by removing what the catalog on disk names.
    let again = store.create_segment("more", LEN).unwrap_err().to_string();
    assert!(again.contains("the directory is ill"), "{again}");
    assert!(path.join("more.segment").exists());
    assert!(store.close().is_err(), "closing said that all is well");
    let store = Store::open(&path).unwrap();
    assert_eq!(number(&store), 5);
    assert_eq!(store.segment("more").unwrap().len(), LEN);
}

#[test]
fn links_in_a_store_are_not_followed() {
    for name in ["lock", "catalog", "log", "stage", "data.segment", "data.sums"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("s"), dir.path().join("target"));
        let store = options(Policy::Redo).open(&path).unwrap();
        put(&store, 1);
        store.close().unwrap();
        fs::rename(path.join(name), &target).unwrap();
        symlink(&target, path.join(name)).unwrap();
        let before = fs::read(&target).unwrap();
        let error = Store::open(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
        assert_eq!(fs::read(&target).unwrap(), before, "{name} was written through");
    }
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    for name in ["lock", "catalog", "log", "stage", "data.segment", "data.sums"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options(Policy::Redo).open(&path).unwrap();
        put(&store, 1);
        store.close().unwrap();
        fs::remove_file(path.join(name)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join(name), rustix::fs::Mode::RWXU).unwrap();
        let error = Store::open(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
        let checked = caliburn::check(&path);
        assert!(!checked.is_ok_and(|report| report.is_clean()), "{name}: check calls it clean");
    }
}

#[test]
fn files_in_the_directory_are_the_stores_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(Policy::Redo).open(&path).unwrap();
    let own =
        |error: caliburn::SegmentError| assert!(error.to_string().contains("the store's own"), "{error}");
    for name in ["y.segment", "y.sums", "log", "catalog.new"] {
        own(store.create_segment_at("x", LEN, path.join(name)).unwrap_err());
        own(store.create_segment_at("x", LEN, dir.path().join("s/../s").join(name)).unwrap_err());
    }
    own(store.adopt_segment(path.join("log")).unwrap_err());
    let outside: PathBuf = dir.path().join("outside");
    fs::write(&outside, [9; 4096]).unwrap();
    let adopted = store.adopt_segment(&outside).unwrap();
    let error = store.create_segment_at("z", LEN, &outside).unwrap_err().to_string();
    assert!(error.contains(adopted.name()), "an adopted file became another segment: {error}");
    assert_eq!(fs::read(&outside).unwrap()[..4096], [9; 4096]);

    let mut inside = options(Policy::Redo);
    let other = dir.path().join("t");
    fs::create_dir(&other).unwrap();
    inside.log_path(other.join("mylog"));
    let error = inside.open(&other).map(drop).unwrap_err().to_string();
    assert!(error.contains("the store's own"), "{error}");
}

#[test]
fn what_was_there_before_the_store_is_left_alone() {
    for name in ["lock", "log", "stage", "undo", "catalog.new", "making", "other"] {
        for policy in [Policy::Redo, Policy::Undo] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            fs::write(&path, "the combination is 12-4-33").unwrap();
            let error = options(policy).open(dir.path()).map(drop).unwrap_err().to_string();
            assert!(error.contains("lock") || error.contains("other files"), "{name}: {error}");
            assert_eq!(fs::read(&path).unwrap(), b"the combination is 12-4-33", "{name}");
        }
    }
}

#[test]
fn a_users_file_in_a_store_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    options(Policy::Redo).open(&path).unwrap().close().unwrap();
    fs::write(path.join("making"), "lists").unwrap();
    options(Policy::Redo).open(&path).unwrap().close().unwrap();
    assert_eq!(fs::read(path.join("making")).unwrap(), b"lists");
}

#[test]
fn a_log_whose_catalog_is_missing_is_not_taken_for_rubbish() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(Policy::Redo).open(&path).unwrap();
    put(&store, 1);
    drop(store);
    let [catalog, log] = ["catalog", "log"].map(|name| path.join(name));
    fs::rename(&catalog, dir.path().join("catalog")).unwrap();
    fs::remove_file(path.join("data.segment")).unwrap();
    fs::remove_file(path.join("data.sums")).unwrap();
    let before = fs::read(&log).unwrap();
    assert!(options(Policy::Redo).open(&path).is_err());
    assert_eq!(fs::read(&log).unwrap(), before);
}

#[test]
fn a_copy_whose_log_is_the_others_is_not_opened_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy, log) = (dir.path().join("s"), dir.path().join("copy"), dir.path().join("log"));
    let store = options(Policy::Redo).log_path(&log).open(&path).unwrap();
    let segment = dir.path().join("elsewhere");
    store.create_segment_at("far", LEN, &segment).unwrap();
    put(&store, 1);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let listed = || Store::options().outside(dir.path()).clone();
    let error = listed().open(&copy).map(drop).unwrap_err().to_string();
    assert!(error.contains("another store"), "{error}");
    put(&store, 2);
    store.close().unwrap();
    assert_eq!(number(&listed().open(&path).unwrap()), 2);
}

#[test]
fn a_lock_that_was_removed_still_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(Policy::Redo).open(&path).unwrap();
    fs::remove_file(path.join("lock")).unwrap();
    let error = Store::open(&path).map(drop).unwrap_err();
    assert!(matches!(error, caliburn::OpenError::InUse { .. }), "{error}");
    drop(store);
    assert!(Store::open(&path).is_ok());
}

/// A store that comes from elsewhere can name any file; only those that the program lists are touched.
#[test]
fn what_a_store_names_outside_is_not_touched_unless_the_program_lists_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim, log) = (dir.path().join("s"), dir.path().join("victim"), dir.path().join("log"));
    fs::write(&victim, [7; 8192]).unwrap();
    let given = |outside: &[&Path]| {
        let mut given = options(Policy::Redo);
        // It is of one moment.
        given.copied(true);
        outside.iter().for_each(|path| _ = given.outside(path));
        given
    };
    let store = given(&[]).log_path(&log).open(&path).unwrap();
    let region = store.adopt_segment(&victim).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    tx.commit(Class::Power).unwrap();
    // Killed: a change of the victim awaits recovery.
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for name in ["catalog", "generations", "stage"] {
        fs::copy(path.join(name), copy.join(name)).unwrap();
    }
    let other_log = dir.path().join("other.log");
    fs::copy(&log, &other_log).unwrap();
    drop((region, store));
    fs::write(&victim, [7; 8192]).unwrap();
    fs::copy(&other_log, &log).unwrap();

    let untouched = || assert_eq!(fs::read(&victim).unwrap(), [7; 8192]);
    let text = |error: caliburn::OpenError| error.to_string();
    let error = text(given(&[]).open(&copy).unwrap_err());
    assert!(error.contains("open log") && error.contains("Options::outside"), "{error}");
    assert!(text(caliburn::check(&copy).unwrap_err()).contains("Options::outside"));
    assert!(caliburn::info(&copy).is_err() && caliburn::History::open(&copy).is_err());
    let only_log = given(&[&log]);
    let error = text(only_log.open(&copy).unwrap_err());
    assert!(error.contains("victim") && error.contains("Options::outside"), "{error}");
    assert!(text(only_log.check(&copy).unwrap_err()).contains("victim"), "it was judged unseen");
    assert_eq!(only_log.info(&copy).unwrap().segments[0].path, victim);
    assert_eq!(only_log.history(&copy).unwrap().live(&Default::default(), false).unwrap().len(), 1);
    untouched();
    // A link leads to what it leads to.
    symlink(&victim, dir.path().join("link")).unwrap();
    let all = given(&[&log, &dir.path().join("link")]);
    assert!(all.check(&copy).unwrap().is_clean());
    let store = all.open(&copy).unwrap();
    store.truncate().unwrap();
    assert_eq!(fs::read(&victim).unwrap()[..8], 1u64.to_le_bytes());
}

#[test]
fn files_are_their_owners_alone_unless_the_program_wants_more() {
    use std::os::unix::fs::PermissionsExt;
    for (mode, wanted) in [(None, 0o600), (Some(0o640), 0o640)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut options = options(Policy::Redo);
        mode.inspect(|mode| _ = options.mode(*mode));
        let store = options.open(&path).unwrap();
        put(&store, 1);
        for name in ["catalog", "lock", "log", "stage", "data.segment", "data.sums"] {
            let found = fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, wanted, "{name}");
        }
    }
}

/// A copy of a store that was in use may be of several moments; a store that was closed, moved, or whose process was
/// killed, is of one.
#[test]
fn a_copy_of_a_store_in_use_is_not_written_to_unless_that_is_meant() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy, moved) = (dir.path().join("s"), dir.path().join("copy"), dir.path().join("moved"));
        let copy_all = |from: &Path, to: &Path| {
            let _ = fs::remove_dir_all(to);
            fs::create_dir(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        };
        let store = options(policy).open(&path).unwrap();
        put(&store, 1);
        copy_all(&path, &copy);
        if Files.open(&path.join("catalog"), false).unwrap().place().is_none() {
            eprintln!("not run: this file system does not tell files from each other for good");
            return;
        }
        let error = options(policy).open(&copy).unwrap_err().to_string();
        assert!(error.contains("in use when it was copied"), "{error}");
        assert!(!caliburn::check(&copy).unwrap().is_clean());
        // To look at it does no harm.
        assert_eq!(number(&options(policy).read_only(true).memory_kept(true).open(&copy).unwrap()), 1);
        let mut meant = options(policy);
        meant.copied(true);
        if policy == Policy::Undo {
            // Nothing tells whether it is whole.
            let error = meant.open(&copy).unwrap_err().to_string();
            assert!(error.contains("its files are copies") && error.contains("memory-kept"), "{error}");
            assert!(!meant.check(&copy).unwrap().is_clean());
            meant.memory_kept(true);
        }
        let report = meant.check(&copy).unwrap();
        assert!(
            report.is_clean() && report.notes.iter().any(|note| note.contains("in use when it was copied")),
            "{report:?}"
        );
        assert_eq!(number(&meant.open(&copy).unwrap()), 1);
        // That was noted: it is a store of its own now.
        assert_eq!(number(&options(policy).open(&copy).unwrap()), 1);

        // What a copy has of a page that was being written is found before anything is built on it.
        if policy == Policy::Redo {
            put(&store, 2);
            store.truncate().unwrap();
            put(&store, 3);
            copy_all(&path, &copy);
            let mut data = fs::read(copy.join("data.segment")).unwrap();
            data[65536 + 8192] = 1;
            fs::write(copy.join("data.segment"), data).unwrap();
            let error = meant.open(&copy).unwrap_err().to_string();
            assert!(error.contains("do not match their checksums"), "{error}");
        }
        // A backup that was made meanwhile, put back where the store was.
        copy_all(&path, &copy);
        store.close().unwrap();
        copy_all(&copy, &path);
        assert!(options(policy).open(&path).is_err());
        meant.open(&path).unwrap().close().unwrap();
        copy_all(&path, &copy);
        options(policy).open(&copy).unwrap().close().unwrap();
        fs::rename(&path, &moved).unwrap();
        options(policy).open(&moved).unwrap().close().unwrap();
    }
}
