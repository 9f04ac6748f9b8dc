//! Stores that earlier revisions made open, with what was in them, or are refused for the reason that holds.
//!
//! `tests/compat` has an archive of stores for each revision that wrote a format of its own, made by
//! `cargo run --example compat`.

use caliburn::heap::Heap;
use caliburn::{Class, DumpOptions, Mode, Options, PString, RestoreOptions, SortedMap, Store, check};
use std::path::{Path, PathBuf};
use std::process::Command;

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|e| e == "gz"));
    assert!(!found.is_empty(), "there are no archives to try");
    found
}

fn unpack(archive: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(done.success(), "{}", archive.display());
    dir
}

fn verify(store: &Store, factor: u64) {
    let region = store.segment("data").unwrap().map_all().unwrap();
    for at in (0..4096).step_by(8) {
        assert_eq!(region.load::<u64>(at), at as u64 * factor, "byte {at}");
    }
}

#[test]
fn stores_that_were_closed_show_what_was_in_them() {
    for archive in archives() {
        let dir = unpack(&archive);
        for name in ["redo-closed", "undo-closed"] {
            let path = dir.path().join(name);
            assert_eq!(check(&path).unwrap().problems, [], "{name} of {}", archive.display());
            // The second opening reads what this revision has written.
            for _ in 0..2 {
                let store = Store::open(&path).unwrap();
                verify(&store, 3);
                let heap = Heap::open(&store, "objects").unwrap();
                let place = heap.root("seven").unwrap();
                let mut bytes = [0; 100];
                heap.region().read(place.0 as usize, &mut bytes);
                assert_eq!(bytes, [7; 100]);
                drop(heap);
                store.close().unwrap();
            }
        }
    }
}

#[test]
fn what_a_killed_process_forced_is_recovered() {
    for archive in archives() {
        let dir = unpack(&archive);
        let path = dir.path().join("redo-killed");
        // They are copies of what was in use, which newer ones notice.
        let mut options = Options::new();
        options.copied(true);
        assert_eq!(options.check(&path).unwrap().problems, [], "{}", archive.display());
        let store = options.open(&path).unwrap();
        verify(&store, 5);
        assert_eq!(store.prepared().len(), 1);
        store.commit_prepared(b"undecided").unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!(region.load::<u64>(32768), 11);
        drop(region);
        store.close().unwrap();
        verify(&Store::open(&path).unwrap(), 5);
    }
}

/// Segments of shadow stores had no checksums once: so they stay, and `check` says so. A store that is made of
/// them has some.
#[test]
fn shadow_stores_without_checksums_go_on_without() {
    in_archives("shadow-closed", |dir| {
        let summed = dir.join("shadow-closed/data.sums").exists();
        for (name, unverified) in [("shadow-closed", true), ("shadow-killed", true), ("restored", false)] {
            let path = dir.join(name);
            let unverified = unverified && !summed;
            let mut options = Options::new();
            options.copied(true);
            for turn in 0..2 {
                let report = options.check(&path).unwrap();
                assert_eq!(report.problems, [], "{name}");
                assert_eq!(report.unverified_bytes > 0, unverified, "{name}: {report:?}");
                assert_eq!(report.notes.iter().any(|note| note.contains("no checksums")), unverified);
                if name == "shadow-killed" && unverified {
                    // It is a copy of what was in use, and nothing can tell whether it is whole.
                    let refused = options.open(&path).unwrap_err().to_string();
                    assert!(refused.contains("no checksums"), "{refused}");
                    break;
                }
                let store = options.open(&path).unwrap();
                let region = store.segment("data").unwrap().map_all().unwrap();
                assert_eq!(region.load::<u64>(8), if turn == 0 { 24 } else { 5 });
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(&region, 8, &5u64).unwrap();
                tx.commit(Class::Power).unwrap();
                assert_eq!(store.scrub().unwrap(), []);
                if (name, turn) == ("shadow-closed", 0) {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    tx.store(&region, 8, &24u64).unwrap();
                    tx.commit(Class::Power).unwrap();
                    let mut dump = Vec::new();
                    store.dump(&DumpOptions::new(), &mut dump).unwrap();
                    Options::new()
                        .restore(&mut &dump[..], &RestoreOptions::new(), dir.join("restored"))
                        .unwrap();
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    tx.store(&region, 8, &5u64).unwrap();
                    tx.commit(Class::Power).unwrap();
                }
                drop(region);
                store.close().unwrap();
            }
            assert_eq!(path.join("data.sums").exists(), !unverified);
            let catalog = std::fs::read(path.join("catalog")).unwrap();
            assert_eq!(catalog[8] == 1, unverified, "the version is that of its making");
        }
    });
}

/// Of a revision that could, what is in the archives besides stores.
fn in_archives(name: &str, act: impl Fn(&Path)) {
    let unpacked: Vec<_> = archives().iter().map(|archive| unpack(archive)).collect();
    let mut having = unpacked.iter().map(|dir| dir.path()).filter(|dir| dir.join(name).exists()).peekable();
    assert!(having.peek().is_some(), "no archive has {name}");
    having.for_each(act);
}

#[test]
fn a_dump_and_an_archive_are_restored() {
    in_archives("whole.dump", |dir| {
        let dump = std::fs::read(dir.join("whole.dump")).unwrap();
        for (archive, factor) in [(None, 3), (Some(dir.join("archive")), 5)] {
            let mut how = RestoreOptions::new();
            archive.iter().for_each(|path| _ = how.archive(path));
            let to = dir.join(format!("restored{factor}"));
            Options::new().restore(&mut &dump[..], &how, &to).unwrap();
            assert_eq!(check(&to).unwrap().problems, []);
            verify(&Store::open(&to).unwrap(), factor);
        }
    });
}

#[test]
fn dumps_that_are_laid_over_others_are_restored() {
    in_archives("since.dump", |dir| {
        let chain = ["whole.dump", "since.dump"].map(|name| std::fs::read(dir.join(name)).unwrap()).concat();
        let to = dir.join("restored");
        Options::new().restore(&mut &chain[..], &RestoreOptions::new(), &to).unwrap();
        verify(&Store::open(&to).unwrap(), 5);
        let undo = std::fs::read(dir.join("undo.dump")).unwrap();
        let to = dir.join("restored-undo");
        Options::new().restore(&mut &undo[..], &RestoreOptions::new(), &to).unwrap();
        verify(&Store::open(&to).unwrap(), 3);
        assert_eq!(check(dir.join("relocated")).unwrap().problems, []);
        verify(&Store::open(dir.join("relocated")).unwrap(), 5);
    });
}

#[test]
fn typed_objects_are_there() {
    in_archives("typed", |dir| {
        let store = Store::open(dir.join("typed")).unwrap();
        let words = SortedMap::<PString, u64>::open(&store, "words").unwrap();
        assert_eq!(words.get("two"), Some(2));
        words.insert("four", 4).unwrap();
        assert_eq!(words.read().len(), 4);
    });
}

/// Of the checksums of an older version nothing tells when a page was written: all pages are in each dump.
#[test]
fn stores_of_older_formats_are_dumped_since_an_earlier_dump() {
    for archive in archives() {
        let dir = unpack(&archive);
        let store = Store::open(dir.path().join("redo-closed")).unwrap();
        let mut bytes = Vec::new();
        let whole = store.dump(&DumpOptions::new(), &mut bytes).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..4096).step_by(8).for_each(|at| tx.store(&region, at, &(at as u64 * 7)).unwrap());
        tx.commit(Class::Power).unwrap();
        store.truncate().unwrap();
        store.dump(DumpOptions::new().since(&whole), &mut bytes).unwrap();
        let to = dir.path().join("restored");
        Options::new().restore(&mut &bytes[..], &RestoreOptions::new(), &to).unwrap();
        assert_eq!(check(&to).unwrap().problems, []);
        verify(&Store::open(&to).unwrap(), 7);
    }
}

#[test]
fn an_undo_store_that_was_in_use_in_another_boot_is_refused_and_says_why() {
    for archive in archives() {
        let dir = unpack(&archive);
        match Options::new().copied(true).open(dir.path().join("undo-killed")) {
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("in use when the system went down"), "{error}");
            }
            // In the boot that made it, what was not committed is undone.
            Ok(store) => verify(&store, 3),
        }
    }
}
