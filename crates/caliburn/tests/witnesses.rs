//! What is judged of a store whose program was killed: whether its memory survived, in every combination of what the
//! boot id, the clocks, the mount, the file's inode and the system's reports of lost writes may say. Nothing that
//! was committed is left out in silence, and nothing torn is opened.

mod support;

use caliburn::medium::{Boot, Clock, Files, Media, Medium, Memory, Replaced};
use caliburn::{Class, Mode, OpenError, Options, Policy, Region, Store};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What the system shows.
#[derive(Debug, Clone, Copy)]
struct Shown {
    id: Option<u8>,
    clock: Option<Clock>,
    mount: Option<u64>,
    /// Of files in a directory named `outside`.
    outside: Option<u64>,
    pinned: bool,
}

const NOON: i64 = 1_700_000_000_000_000_000;
const FIRST: Shown = Shown {
    id: Some(1),
    clock: Some(Clock { began: NOON, running: 60_000_000_000 }),
    mount: Some(7),
    outside: Some(70),
    pinned: false,
};

/// Files of the running system, on a machine that shows what it likes.
#[derive(Debug)]
struct Machine {
    shown: Mutex<Shown>,
    /// Something that was written to files whose names end so was lost on its way; told once.
    lost: Mutex<Option<&'static str>>,
    /// The process is killed as it is told.
    dies: AtomicBool,
    /// When it has been told, the disk takes no more, and files that were not open cannot be opened.
    fails: AtomicBool,
}

#[derive(Debug, Clone)]
struct Shows(Arc<Machine>);

#[derive(Debug)]
struct File(Arc<dyn Medium>, Arc<Machine>);

impl Shows {
    fn new(shown: Shown) -> Shows {
        let (shown, lost) = (Mutex::new(shown), Mutex::new(None));
        Shows(Arc::new(Machine { shown, lost, dies: AtomicBool::new(false), fails: AtomicBool::new(false) }))
    }

    fn shown(&self) -> Shown {
        *self.0.shown.lock().unwrap()
    }

    fn file(&self, medium: io::Result<Arc<dyn Medium>>) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(File(medium?, self.0.clone())))
    }

    /// An error if the machine fails, and has reported the loss.
    fn works(&self) -> io::Result<()> {
        let failed = self.0.fails.load(Ordering::SeqCst) && self.0.lost.lock().unwrap().is_none();
        if failed { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    fn options(&self, policy: Policy) -> Options {
        let mut options = Store::options();
        options.create(true).policy(policy).log_bytes(64 << 10).stage_bytes(128 << 10).reserve_bytes(1 << 30);
        options.background(false).media(Arc::new(self.clone()));
        options
    }
}

// SAFETY: the descriptor and the length are those of the file behind it.
unsafe impl Medium for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        let redo = !self.path().to_string_lossy().ends_with("undo");
        if redo {
            Shows(self.1.clone()).works()?
        }
        self.0.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn memory(&self) -> Memory {
        self.0.memory()
    }
    fn mount(&self) -> Option<[u64; 2]> {
        let shown = self.1.shown.lock().unwrap();
        let outside = self.path().components().any(|part| part.as_os_str() == "outside");
        let number = if outside { shown.outside } else { shown.mount };
        number.map(|number| [u64::from(outside), number])
    }
    fn pinned(&self) -> bool {
        self.1.shown.lock().unwrap().pinned
    }
    fn written_back(&self) -> io::Result<()> {
        let mut lost = self.1.lost.lock().unwrap();
        if lost.take_if(|name| self.path().to_string_lossy().ends_with(*name)).is_none() {
            return self.0.written_back();
        }
        assert!(!self.1.dies.load(Ordering::SeqCst), "killed");
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Shows {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        if path.extension().is_some_and(|extension| extension == "segment") {
            self.works()?;
        }
        self.file(Files.open(path, write))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        self.file(Files.create(path))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
    fn boot(&self) -> io::Result<Boot> {
        let Shown { id, clock, .. } = self.shown();
        Ok(Boot { id: id.map(|id| [id; 16]), clock })
    }
}

fn region(store: &Store) -> Region {
    store.segment_or_create("data", 64 << 10).unwrap().map_all().unwrap()
}

/// A store that a killed program leaves in a directory, on a machine that showed that: 5 is committed in class
/// `Process`, and with the undo policy 9 is stored by a transaction that is open.
fn killed(policy: Policy, path: &Path, shown: Shown) {
    let (first, shows) = (path.with_extension("first"), Shows::new(shown));
    let store = shows.options(policy).open(&first).unwrap();
    let region = region(&store);
    store.truncate().unwrap();
    support::put(&store, &region, 0, 5, Class::Process);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &9u64).unwrap();
    support::copy_store(&first, path);
    tx.abort();
    drop(region);
    store.close().unwrap();
    std::fs::remove_dir_all(&first).unwrap();
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Word {
    Same,
    Other,
    Nothing,
}
use Word::{Nothing, Other, Same};

fn world([boot, clock, mount]: [Word; 3], pinned: bool) -> Shown {
    fn told<T>(word: Word, same: T, other: T) -> Option<T> {
        match word {
            Same => Some(same),
            Other => Some(other),
            Nothing => None,
        }
    }
    let later = Clock { began: NOON, running: 70_000_000_000 };
    let rebooted = Clock { began: NOON + 65_000_000_000, running: 61_000_000_000 };
    Shown {
        id: told(boot, 1, 2),
        clock: told(clock, later, rebooted),
        mount: told(mount, 7, 8),
        pinned,
        ..FIRST
    }
}

/// Every world, with what the table in docs/durability.md says of it.
fn worlds() -> impl Iterator<Item = (Shown, bool)> {
    (0..54).map(|number| {
        let words = [1, 3, 9].map(|by| [Same, Other, Nothing][number / by % 3]);
        let pinned = number >= 27;
        let same = |word| word == Same;
        let kept = match words {
            [Same, clock, mount] => clock != Other && mount != Other,
            [Nothing, clock, mount] => same(clock) && same(mount),
            [Other, ..] => false,
        };
        (world(words, pinned), pinned || kept)
    })
}

#[test]
fn redo_keeps_what_was_committed_or_counts_what_it_goes_without() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    killed(Policy::Redo, &path, FIRST);
    for (shown, survived) in worlds() {
        support::copy_store(&path, &copy);
        let shows = Shows::new(shown);
        let report = shows.options(Policy::Redo).check(&copy).unwrap();
        assert!(report.is_clean(), "{report:?}");
        let named = report.notes.iter().any(|note| {
            note.contains("1 commits")
                && note.contains("Opening drops them")
                && note.contains("--memory-kept")
        });
        assert_eq!(named, !survived, "{shown:?}: {:?}", report.notes);
        let store = shows.options(Policy::Redo).open(&copy).unwrap();
        let found = region(&store).load::<u64>(0);
        let said = store.open_report();
        assert_eq!((found, said.dropped_commits), if survived { (5, 0) } else { (0, 1) }, "{shown:?}");
        assert_eq!((said.dropped_bytes > 0, said.notices.len()), (!survived, usize::from(!survived)));
        // As if it had been killed at once: it is of this boot now.
        drop(store);
        std::fs::remove_dir_all(&copy).unwrap();
        if survived {
            continue;
        }
        support::copy_store(&path, &copy);
        let store = shows.options(Policy::Redo).memory_kept(true).open(&copy).unwrap();
        assert_eq!((region(&store).load::<u64>(0), store.open_report().dropped_commits), (5, 0));
        drop(store);
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

#[test]
fn undo_opens_what_survived_and_refuses_what_may_be_torn() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    killed(Policy::Undo, &path, FIRST);
    for (shown, survived) in worlds() {
        support::copy_store(&path, &copy);
        let shows = Shows::new(shown);
        let report = shows.options(Policy::Undo).check(&copy).unwrap();
        assert_eq!(report.is_clean(), survived, "{shown:?}: {:?}", report.problems);
        let opened = shows.options(Policy::Undo).open(&copy);
        if !survived {
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("was in use") && error.contains("salvage"), "{error}");
            if error.contains("cannot be told") {
                assert!(error.contains("--memory-kept"), "{error}");
            }
            assert_eq!(error.contains("/proc/sys/kernel/random/boot_id"), shown.id.is_none(), "{error}");
            let salvaged =
                shows.options(Policy::Undo).create(false).salvage(true).read_only(true).open(&copy);
            assert_eq!(salvaged.unwrap().damage().unwrap().to_string(), error);
            // The way out.
            let opened = shows.options(Policy::Undo).memory_kept(true).open(&copy).unwrap();
            assert_eq!(region(&opened).load::<u64>(0), 5);
            drop(opened);
        } else {
            assert_eq!(region(&opened.unwrap()).load::<u64>(0), 5, "{shown:?}");
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

/// A system that shows less than others did not keep what it shows: stores are made and opened there.
#[test]
fn a_store_is_made_and_recovered_where_there_is_no_boot_id() {
    let dir = tempfile::tempdir().unwrap();
    for policy in [Policy::Redo, Policy::Undo, Policy::Shadow] {
        let path = dir.path().join(policy.name());
        let nothing = Shown { id: None, ..FIRST };
        if policy == Policy::Shadow {
            let shows = Shows::new(Shown { clock: None, mount: None, outside: None, ..nothing });
            drop(shows.options(policy).open(&path).unwrap());
            drop(shows.options(policy).open(&path).unwrap());
            continue;
        }
        killed(policy, &path, nothing);
        let same = world([Nothing, Same, Same], false);
        let store = Shows::new(same).options(policy).open(&path).unwrap();
        assert_eq!(region(&store).load::<u64>(0), 5);
        store.close().unwrap();
        // Closed, it opens anywhere.
        let nowhere = Shown { id: None, clock: None, mount: None, outside: None, pinned: false };
        let store = Shows::new(nowhere).options(policy).open(&path).unwrap();
        assert_eq!(region(&store).load::<u64>(0), 5);
    }
}

#[test]
fn what_the_system_reports_as_lost_is_not_relied_on() {
    let dir = tempfile::tempdir().unwrap();
    let pinned = Shown { pinned: true, ..FIRST };
    for lost in ["undo", "data.segment"] {
        let path = dir.path().join(lost);
        killed(Policy::Undo, &path, FIRST);
        let shows = Shows::new(pinned);
        // Who only looks does not take the report away.
        *shows.0.lost.lock().unwrap() = Some(lost);
        assert!(shows.options(Policy::Undo).check(&path).unwrap().is_clean());
        // A reported loss counts for good, even if the program vouches for memory.
        for vouched in [lost == "undo", true, false] {
            let opened = shows.options(Policy::Undo).memory_kept(vouched).open(&path);
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("not written back") && error.contains("salvage"), "{error}");
            assert!(!shows.options(Policy::Undo).check(&path).unwrap().is_clean());
        }
    }
    let path = dir.path().join("redo");
    killed(Policy::Redo, &path, FIRST);
    let shows = Shows::new(pinned);
    *shows.0.lost.lock().unwrap() = Some("stage");
    let store = shows.options(Policy::Redo).open(&path).unwrap();
    let said = store.open_report();
    assert_eq!((region(&store).load::<u64>(0), said.dropped_commits), (0, 1));
    assert!(said.notices[0].contains("reports that writes to its files were lost"), "{said:?}");
}

/// A filter of system calls refuses the question (ENOSYS, EPERM), as gVisor does: that is no lost write.
#[test]
fn a_system_that_does_not_answer_has_reported_no_loss() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        let forbidden = std::thread::spawn(move || {
            let dir = tempfile::tempdir().unwrap();
            for policy in [Policy::Redo, Policy::Undo] {
                killed(policy, &dir.path().join(policy.name()), FIRST);
            }
            support::forbid(libc::SYS_sync_file_range, errno);
            for policy in [Policy::Redo, Policy::Undo] {
                let shows = Shows::new(Shown { pinned: true, ..FIRST });
                let store = shows.options(policy).open(dir.path().join(policy.name())).unwrap();
                let said = store.open_report();
                assert_eq!((region(&store).load::<u64>(0), said.dropped_commits), (5, 0), "{policy:?}");
                assert_eq!(said.notices, [""; 0], "{policy:?}");
            }
        });
        forbidden.join().unwrap();
    }
}

/// The system reports a loss once: an opening that fails after that has told nobody what it means.
#[test]
fn an_opening_that_fails_after_it_has_heard_of_a_loss_does_not_forget_it() {
    let dir = tempfile::tempdir().unwrap();
    let pinned = Shown { pinned: true, ..FIRST };
    for (policy, lost) in [(Policy::Redo, "stage"), (Policy::Undo, "undo")] {
        let path = dir.path().join(policy.name());
        killed(policy, &path, FIRST);
        let shows = Shows::new(pinned);
        *shows.0.lost.lock().unwrap() = Some(lost);
        shows.0.fails.store(true, Ordering::SeqCst);
        // Another failure forgets it no more than one.
        for _ in 0..2 {
            shows.options(policy).open(&path).unwrap_err();
        }
        assert_eq!(*shows.0.lost.lock().unwrap(), None, "it was reported");
        shows.0.fails.store(false, Ordering::SeqCst);
        match (policy, shows.options(policy).open(&path)) {
            (Policy::Redo, Ok(store)) => {
                assert_eq!((region(&store).load::<u64>(0), store.open_report().dropped_commits), (0, 1));
                drop(store);
                // It was told.
                let store = shows.options(policy).open(&path).unwrap();
                assert_eq!(
                    (store.open_report().dropped_commits, &store.open_report().notices[..]),
                    (0, &[][..])
                );
            }
            (Policy::Undo, Err(OpenError::Undo(_))) => {}
            (policy, other) => panic!("{policy:?}: {other:?}"),
        }
    }
}

/// Only the one that was killed was told.
#[test]
fn an_opening_that_is_killed_as_it_asks_leaves_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let pinned = Shown { pinned: true, ..FIRST };
    for (policy, lost) in [(Policy::Redo, "stage"), (Policy::Undo, "data.segment")] {
        let path = dir.path().join(policy.name());
        killed(policy, &path, FIRST);
        let shows = Shows::new(pinned);
        *shows.0.lost.lock().unwrap() = Some(lost);
        shows.0.dies.store(true, Ordering::SeqCst);
        let died =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shows.options(policy).open(&path)));
        assert!(died.is_err());
        let told = |store: &Store| {
            let notices = &store.open_report().notices;
            assert!(notices.iter().any(|notice| notice.contains("killed while it asked")), "{notices:?}");
        };
        let store = Shows::new(pinned).options(policy).open(&path).unwrap();
        told(&store);
        // One that is killed later has perhaps told nobody: the next one says it, too.
        let left = path.with_extension("left");
        support::copy_store(&path, &left);
        told(&Shows::new(pinned).options(policy).open(&left).unwrap());
        // After an orderly close the note is gone.
        drop(store);
        let store = Shows::new(pinned).options(policy).open(&path).unwrap();
        assert_eq!(store.open_report().notices, [""; 0]);
    }
}

/// An earlier version notes the boot id alone, and leaves what a later one had noted before.
#[test]
fn what_an_earlier_version_has_noted_is_judged_by_the_boot_id() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    killed(Policy::Redo, &path, FIRST);
    for record in [64, 2112] {
        support::patch(&path.join("stage"), record, &[0; 64]);
    }
    for (boot, survived) in [(Same, true), (Other, false), (Nothing, false)] {
        support::copy_store(&path, &copy);
        let shows = Shows::new(world([boot, Other, Other], false));
        let store = shows.options(Policy::Redo).open(&copy).unwrap();
        let found = (region(&store).load::<u64>(0), store.open_report().dropped_commits);
        assert_eq!(found, if survived { (5, 0) } else { (0, 1) }, "{boot:?}");
        drop(store);
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

/// A power cut may leave parts of a note, in a stage that is not forced.
#[test]
fn a_torn_note_is_no_note_of_an_earlier_version() {
    let dir = tempfile::tempdir().unwrap();
    for (pinned, found) in [(false, (0, 1)), (true, (5, 0))] {
        let path = dir.path().join(format!("{pinned}"));
        killed(Policy::Redo, &path, FIRST);
        for record in [64, 2112] {
            support::patch(&path.join("stage"), record + 8, &[0; 8]);
        }
        let store = Shows::new(Shown { pinned, ..FIRST }).options(Policy::Redo).open(&path).unwrap();
        assert_eq!((region(&store).load::<u64>(0), store.open_report().dropped_commits), found);
    }
}

/// Segments elsewhere are on mounts of their own.
#[test]
fn a_segment_elsewhere_is_on_a_mount_that_is_noted_too() {
    let dir = tempfile::tempdir().unwrap();
    let (path, outside) = (dir.path().join("s"), dir.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    let file = outside.join("more");
    let store = Shows::new(FIRST).options(Policy::Undo).open(&path).unwrap();
    let inside = region(&store);
    let more = store.create_segment_at("more", 64 << 10, &file).unwrap().map_all().unwrap();
    support::put(&store, &more, 0, 6, Class::Process);
    // It is never closed, and its lock is its own.
    let (copy, held) = (dir.path().join("copy"), outside.join("held"));
    std::fs::rename(&file, &held).unwrap();
    std::fs::copy(&held, &file).unwrap();
    support::copy_store(&path, &copy);
    let open = |shown| Shows::new(shown).options(Policy::Undo).outside(&outside).open(&copy);
    let error = open(Shown { outside: Some(71), ..FIRST }).unwrap_err();
    assert!(matches!(&error, OpenError::Undo(_)) && error.to_string().contains("another mount"), "{error}");
    let error = open(Shown { mount: Some(8), ..FIRST }).unwrap_err().to_string();
    assert!(error.contains("another mount"), "{error}");
    let opened = open(FIRST).unwrap();
    assert_eq!(opened.segment("more").unwrap().map_all().unwrap().load::<u64>(0), 6);
    drop((inside, more));
}
