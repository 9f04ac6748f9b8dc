//! Makes the stores that `tests/compat` keeps, one of each kind, in a folder: `cargo run --example compat FOLDER`.
//! To be run by the last revision that writes a format, before it changes; `tests/compat.rs` opens them ever
//! after.

use caliburn::heap::Heap;
use caliburn::{ArchiveOptions, Class, DumpOptions, Mode, Options, PString, Policy, SortedMap, Store};
use std::error::Error;
use std::fs::File;
use std::path::Path;

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create_new(true).policy(policy).log_bytes(256 << 10).stage_bytes(128 << 10);
    options
}

/// Each 8 bytes of the first 4096 hold their offset, multiplied.
fn fill(store: &Store, factor: u64, class: Class) -> Result<(), Box<dyn Error>> {
    let region = store.segment_or_create("data", 64 << 10)?.map_all()?;
    let mut tx = store.begin(Mode::Restore)?;
    for at in (0..4096).step_by(8) {
        tx.store(&region, at, &(at as u64 * factor))?;
    }
    tx.commit(class)?;
    Ok(())
}

fn objects(store: &Store) -> Result<(), Box<dyn Error>> {
    let heap = Heap::open(store, "objects")?;
    let mut tx = heap.begin()?;
    let place = tx.allocate(100)?;
    tx.write(place, 0, &[7; 100])?;
    tx.set_root("seven", Some(place))?;
    tx.commit(Class::Process)?;
    Ok(())
}

/// A store that was closed in good order.
fn closed(folder: &Path, policy: Policy, name: &str) -> Result<(), Box<dyn Error>> {
    let store = options(policy).open(folder.join(name))?;
    fill(&store, 3, Class::Process)?;
    objects(&store)?;
    Ok(store.close()?)
}

/// What a killed process left: its log has what the segments lack, and an undecided transaction.
fn killed(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Redo).background(false).open(folder.join("redo-killed"))?;
    fill(&store, 3, Class::Power)?;
    fill(&store, 5, Class::Power)?;
    let region = store.segment("data")?.map(32768..65536)?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 0, &11u64)?;
    tx.prepare(b"undecided")?;
    std::mem::forget((region, store));
    Ok(())
}

/// What a killed process left with the undo policy: old values.
fn killed_undo(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Undo).open(folder.join("undo-killed"))?;
    fill(&store, 3, Class::Process)?;
    let region = store.segment("data")?.map_all()?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 8, &99u64)?;
    std::mem::forget(tx);
    std::mem::forget((region, store));
    Ok(())
}

/// What a killed process left with the shadow policy: what a page held.
fn killed_shadow(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Shadow).open(folder.join("shadow-killed"))?;
    fill(&store, 3, Class::Power)?;
    let region = store.segment("data")?.map_all()?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 8, &99u64)?;
    std::mem::forget(tx);
    std::mem::forget((region, store));
    Ok(())
}

/// A dump of a store with something in its log, and an archive of what came afterwards.
fn dumped(folder: &Path) -> Result<(), Box<dyn Error>> {
    let path = folder.join("dumped");
    let store = options(Policy::Redo).open(&path)?;
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(folder.join("archive")))?;
    fill(&store, 2, Class::Power)?;
    store.truncate()?;
    fill(&store, 3, Class::Power)?;
    let whole = store.dump(&DumpOptions::new(), &mut File::create(folder.join("whole.dump"))?)?;
    fill(&store, 5, Class::Power)?;
    archiver.flush()?;
    store.dump(DumpOptions::new().since(&whole), &mut File::create(folder.join("since.dump"))?)?;
    Ok(store.close()?)
}

/// Typed objects: a map that is the store's only root.
fn typed(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Redo).open(folder.join("typed"))?;
    let words = SortedMap::<PString, u64>::open(&store, "words")?;
    for (number, word) in ["one", "two", "three"].into_iter().enumerate() {
        words.insert(word, number as u64 + 1)?;
    }
    drop(words);
    Ok(store.close()?)
}

/// A log that was given another size, and so stands in the other file.
fn relocated(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Redo).open(folder.join("relocated"))?;
    fill(&store, 3, Class::Power)?;
    store.relocate_log(Options::new().log_bytes(512 << 10))?;
    fill(&store, 5, Class::Power)?;
    Ok(store.close()?)
}

/// A dump of a store without a log.
fn dumped_undo(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store = options(Policy::Undo).open(folder.join("dumped-undo"))?;
    fill(&store, 3, Class::Process)?;
    store.dump(&DumpOptions::new(), &mut File::create(folder.join("undo.dump"))?)?;
    Ok(store.close()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: compat FOLDER")?;
    let folder = Path::new(&folder);
    closed(folder, Policy::Redo, "redo-closed")?;
    closed(folder, Policy::Undo, "undo-closed")?;
    closed(folder, Policy::Shadow, "shadow-closed")?;
    killed(folder)?;
    killed_undo(folder)?;
    killed_shadow(folder)?;
    dumped(folder)?;
    dumped_undo(folder)?;
    relocated(folder)?;
    typed(folder)
}
