//! Stores that earlier revisions made open, with what was in them, or are refused for the reason that holds.
//!
//! `tests/compat` has an archive of stores for each revision that wrote a format of its own, made by
//! `cargo run --example compat`.

use caliburn::heap::Heap;
use caliburn::{Store, check};
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
        assert_eq!(check(&path).unwrap().problems, [], "{}", archive.display());
        let store = Store::open(&path).unwrap();
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

#[test]
fn an_undo_store_that_was_in_use_in_another_boot_is_refused_and_says_why() {
    for archive in archives() {
        let dir = unpack(&archive);
        match Store::open(dir.path().join("undo-killed")) {
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("in use when the system went down"), "{error}");
            }
            // In the boot that made it, what was not committed is undone.
            Ok(store) => verify(&store, 3),
        }
    }
}
