//! What is done with a changed store: all that a user does with one.

use crate::mutation::Changed;
use crate::sample::{ADOPTED, Kind, Sample, VICTIM, Works, victim};
use caliburn::heap::Heap;
use caliburn::{Class, Filter, Mode, Store};
use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// More than the stage, the chunks of undo logs and the growth of a heap take together.
const MADE: u64 = 64 << 20;
/// Segments longer than this are not mapped.
const MAPPED: u64 = 8 << 20;

pub fn run(sample: &Sample, works: &Works, changed: &Changed) {
    let path = works.store();
    put(works, changed);
    let allocated = allocated_in(works);
    let options = sample.options(works);

    let _ = options.info(&path);
    let report = options.check(&path);
    let clean = report.as_ref().is_ok_and(|report| report.is_clean());
    if let Ok(history) = options.history(&path) {
        let _ = history.live(&Filter::default(), false);
        let _ = history.live(&Filter::default(), true);
        let _ = history.all(&Filter::default());
    }
    for salvage in [false, true] {
        let mut read_only = options.clone();
        read_only.read_only(true).salvage(salvage);
        let store = read_only.open(&path);
        if let Err(error) = &store
            && clean
        {
            panic!("check calls it clean, and it is not opened for reading: {error}");
        }
        let _ = store.map(|store| look(&store));
    }
    untouched(works);

    match options.open(&path) {
        Err(error) => {
            assert!(!clean || is_full(&error), "check calls it clean, and it is refused: {error}");
        }
        Ok(store) => {
            look(&store);
            let _ = store.check_heap_and_use(sample.kind);
            let _ = store.truncate();
            let _ = store.close();
            let again = options.check(&path);
            let again = again.expect("it was opened just now");
            assert!(!clean || again.is_clean(), "after {report:?} it is {:?}", again.problems);
        }
    }
    untouched(works);
    let after = allocated_in(works);
    let room = 2 * (allocated + changed.holes()) + MADE;
    assert!(after <= room, "{allocated} bytes were there, {after} are, and {room} are too much");
}

/// Whether the medium has no room, for holes that opening fills.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    let full = io.is_some_and(|io| io.kind() == std::io::ErrorKind::StorageFull);
    full || error.source().is_some_and(is_full)
}

/// Bytes that the store takes of its medium: holes take none.
fn allocated_in(works: &Works) -> u64 {
    let blocks =
        |entry: std::io::Result<fs::DirEntry>| entry.and_then(|entry| Ok(entry.metadata()?.blocks() * 512));
    fs::read_dir(works.store()).expect("there").map(|entry| blocks(entry).expect("there")).sum()
}

/// Makes the directory anew.
fn put(works: &Works, changed: &Changed) {
    let path = works.store();
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).expect("room");
    for (name, bytes) in &changed.files {
        fs::write(path.join(name), bytes).expect("room");
        if let Some(len) = changed.lengths.get(name).filter(|len| **len > bytes.len() as u64) {
            let file = fs::OpenOptions::new().write(true).open(path.join(name)).expect("just made");
            // Some file systems have no such files.
            let _ = file.set_len(*len);
        }
    }
    fs::write(works.path(ADOPTED), vec![5; 8192]).expect("room");
}

fn untouched(works: &Works) {
    assert!(fs::read(works.path(VICTIM)).is_ok_and(|bytes| bytes == victim()), "a file outside was changed");
    let mut names: Vec<_> =
        fs::read_dir(&works.folder).expect("there").map(|entry| entry.expect("there").file_name()).collect();
    names.sort();
    assert_eq!(names, [ADOPTED, "s", VICTIM], "something was made or removed outside");
}

/// Reads all of it.
fn look(store: &Store) {
    for segment in store.segments().iter().filter(|segment| segment.len() <= MAPPED) {
        if let Ok(region) = segment.map_all() {
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes);
        }
    }
    let _ = (store.query(), store.prepared());
}

trait Use {
    fn check_heap_and_use(&self, kind: Kind) -> Result<(), Box<dyn Error>>;
}

impl Use for Store {
    fn check_heap_and_use(&self, kind: Kind) -> Result<(), Box<dyn Error>> {
        let class = if kind == Kind::Sealed { Class::Power } else { Class::Process };
        for prepared in self.prepared() {
            let _ = self.commit_prepared(&prepared.global_id);
        }
        for segment in self.segments().iter().filter(|segment| segment.len() <= MAPPED) {
            if let Ok(region) = segment.map(0..4096.min(segment.len()))
                && let Ok(mut tx) = self.begin(Mode::Restore)
            {
                let _ = tx.store(&region, 8, &1u64);
                let _ = tx.commit(class);
            }
        }
        let small = |name: &str| self.segment(name).is_ok_and(|segment| segment.len() <= MAPPED);
        if !small("h") || !small("h.heap") {
            return Ok(());
        }
        let heap = Heap::open(self, "h")?;
        let _ = (heap.check(), heap.statistics(), heap.enclosing(u64::MAX), heap.enclosing(70_000));
        for root in 0..5 {
            let name = format!("root{root}");
            let Some(place) = heap.root(&name) else { continue };
            let mut tx = heap.begin()?;
            let _ = heap.usable_len(place);
            let _ = tx.write(place, 0, &[1; 8]);
            let made = tx.allocate(24 << root)?;
            let _ = tx.reallocate(made, 100_000);
            if tx.free(place).is_ok() {
                tx.set_root(&name, None)?;
            }
            if root % 2 == 0 { tx.commit(class)? } else { tx.abort() }
        }
        let _ = heap.check();
        let _ = self.segments().first().map(|segment| segment.grow(1 << 20));
        Ok(())
    }
}
