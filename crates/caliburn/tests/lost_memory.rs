//! Memory that lies in files without names is lost when the system cannot write them: nothing of it is committed,
//! and nothing that was committed is lost.

mod support;

use caliburn::medium::{Files, Media, Medium, Replaced};
use caliburn::{BufferPool, Class, Guard, Mode, Policy, Region, Store, Tracking, Tuning};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{Mount, options};

const SEGMENT: u64 = 19 << 20;

/// Files of the running system; those without names lie elsewhere.
#[derive(Debug)]
struct Elsewhere(PathBuf);

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Elsewhere {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Files.open(path, write)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Files.create(path)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
    fn scratch(&self, _: &Path, len: u64) -> io::Result<OwnedFd> {
        let mut how = std::fs::OpenOptions::new();
        let file = how.read(true).write(true).custom_flags(libc::O_TMPFILE).open(&self.0)?;
        file.set_len(len)?;
        Ok(file.into())
    }
}

/// A file system on a disk that says it has 256 MB, and has less.
struct Small {
    mounted: Mount,
    disk: Mount,
}

fn small() -> Option<Small> {
    let disk = support::mount("32m")?;
    let mounted = support::mount_loop_in(&disk.path, "ext4", 256)?;
    Some(Small { mounted, disk })
}

impl Small {
    fn open(&self, path: &Path) -> Store {
        let mut options = options();
        // What lies in files is so little that nothing is written before it must be.
        let tuning = Tuning { memory_budget: Some(16 << 20), ..Tuning::default() };
        options.guard(Guard::Off).overflow(true).tuning(tuning).background(false);
        options.media(Arc::new(Elsewhere(self.mounted.path.clone()))).open(path).unwrap()
    }

    /// Takes away what the disk has left, and has the system write all it can.
    fn fail(&self) {
        let mut filler = std::fs::File::create(self.disk.path.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        // It says that it cannot.
        let _ = std::process::Command::new("sync").arg("-f").arg(&self.mounted.path).output().unwrap();
    }
}

fn memory(store: &Store) -> Region {
    store.segment_or_create("data", SEGMENT).unwrap().map_all().unwrap()
}

/// Stores a number to each page.
fn store_all<'a>(tx: &mut caliburn::Transaction<'a>, memory: &'a Region, number: u64) {
    (0..memory.len()).step_by(4096).for_each(|at| tx.store(memory, at, &number).unwrap());
}

/// Another opening finds these numbers on all pages.
fn recovered_is(path: &Path, number: u64) {
    support::clean(path);
    let store = Store::options().open(path).unwrap();
    let memory = memory(&store);
    (0..memory.len()).step_by(4096).for_each(|at| assert_eq!(memory.load::<u64>(at), number, "{at}"));
}

fn message(error: impl std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[test]
fn it_is_not_committed() {
    let dir = tempfile::tempdir().unwrap();
    for by_another in [false, true] {
        let Some(small) = small() else { return };
        let path = dir.path().join(format!("s {by_another}"));
        let store = small.open(&path);
        let memory = memory(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        store_all(&mut tx, &memory, 7);
        assert!(store.query().overflow_bytes > 2 << 20);
        small.fail();
        let refused = if by_another {
            let mut other = store.begin(Mode::Restore).unwrap();
            other.store(&memory, SEGMENT as usize - 8, &1u64).unwrap();
            let refused = other.commit(Class::Process);
            tx.abort();
            refused
        } else {
            tx.commit(Class::Process)
        };
        let text = message(refused.unwrap_err());
        assert!(text.contains("keep memory in files without names") && text.contains("space"), "{text}");
        let again = store.begin(Mode::Restore).expect_err("it stays failed");
        assert!(message(again).contains("keep memory in files"));
        drop((memory, store));
        recovered_is(&path, 0);
    }
}

#[test]
fn it_is_not_put_back() {
    let Some(small) = small() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = small.open(&path);
    let memory = memory(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    store_all(&mut tx, &memory, 7);
    small.fail();
    tx.abort();
    let text = message(store.begin(Mode::Restore).expect_err("the store has failed"));
    assert!(text.contains("keep memory in files without names"), "{text}");
    drop((memory, store));
    recovered_is(&path, 0);
}

#[test]
fn it_does_not_reach_segments() {
    let Some(small) = small() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = small.open(&path);
    let memory = memory(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    store_all(&mut tx, &memory, 7);
    tx.commit(Class::Process).unwrap();
    small.fail();
    let text = message(store.truncate().unwrap_err());
    assert!(text.contains("keep memory in files without names"), "{text}");
    drop((memory, store));
    recovered_is(&path, 7);
}

#[test]
fn frames_of_a_pool_are_not_committed() {
    let Some(small) = small() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).guard(Guard::Off);
    options.media(Arc::new(Elsewhere(small.mounted.path.clone())));
    let pool = BufferPool { bytes: 16 << 20, ..BufferPool::default() };
    let store = options.buffer_pool(pool).open(&path).unwrap();
    let memory = memory(&store);
    let fill = |number: u64| {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..8 << 20).step_by(4096).for_each(|at| {
            // SAFETY: within the region, which has no references into it.
            unsafe { memory.as_ptr().add(at).cast::<u64>().write(number) }
        });
        tx
    };
    let tx = fill(7);
    small.fail();
    let text = message(tx.commit(Class::Process).unwrap_err());
    assert!(text.contains("keep the frames of a buffer pool"), "{text}");
    drop((memory, store));
    recovered_is(&path, 0);
}

/// Copies a file without room for what is zero, as `cp --sparse=always` does.
fn copy_sparsely(from: &Path, to: &Path) {
    use std::os::unix::fs::FileExt;
    let bytes = std::fs::read(from).unwrap();
    let file = std::fs::File::create(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (at, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        file.write_all_at(page, at as u64 * 4096).unwrap();
    }
}

/// Bytes that the file system still has for files.
fn free(path: &Path) -> u64 {
    let about = rustix::fs::statvfs(path).unwrap();
    about.f_bavail * about.f_frsize
}

/// A store into a hole ends the process on a full disk (SIGBUS): the opening has room made, or is refused.
#[test]
fn a_sparse_copy_is_refused_on_a_full_disk() {
    for policy in [Policy::Redo, Policy::Undo, Policy::Shadow] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = options().policy(policy).open(&path).unwrap();
        let region = memory(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 8, &7u64).unwrap();
        tx.commit(store.reach()).unwrap();
        drop(region);
        store.close().unwrap();

        let Some(disk) = support::mount("96m") else { return };
        let copy = disk.path.join("s");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            copy_sparsely(&entry.path(), &copy.join(entry.file_name()));
        }
        let filler = disk.path.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        file.set_len(file.metadata().unwrap().len() - (64 << 10)).unwrap();
        drop(file);
        let refused = options().copied(true).memory_kept(true).open(&copy).unwrap_err();
        assert!(message(&refused).contains("allocate"), "{policy:?}: {}", message(&refused));
        assert!(message(&refused).contains("holes need"), "{policy:?}: {}", message(&refused));
        assert!(free(&disk.path) > 32 << 10, "{policy:?}: what is refused has taken the room that there was");

        // Not removed alone: a process that another test has just forked may have it open.
        std::fs::File::create(&filler).unwrap();
        let store = options().copied(true).memory_kept(true).open(&copy).unwrap();
        let region = memory(&store);
        assert_eq!(region.load::<u64>(8), 7, "{policy:?}");
        let mut tx = store.begin(Mode::Restore).unwrap();
        store_all(&mut tx, &region, 8);
        tx.commit(store.reach()).unwrap();
        drop(region);
        store.close().unwrap();
    }
}
