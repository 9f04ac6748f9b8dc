//! A restore that is killed at any step, and killed again when it is tried again, works in the end, whatever the
//! policy: what the attempts made goes, and nothing else.

mod support;

use caliburn::medium::{Files, Media, Medium, Replaced, Rules};
use caliburn::{BackupError, Class, DumpOptions, Mode, OpenError, Options, Policy, RestoreOptions, Store};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const LEN: u64 = 1 << 16;
const POLICIES: [Policy; 3] = [Policy::Redo, Policy::Undo, Policy::Shadow];

/// Files of a process that is killed at a step: what comes later does nothing.
#[derive(Debug)]
struct Killed {
    files: Arc<dyn Media>,
    steps: Arc<AtomicU64>,
}

#[derive(Debug)]
struct File(Arc<dyn Medium>, Arc<AtomicU64>);

fn step(steps: &AtomicU64) -> io::Result<()> {
    match steps.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::other("killed")),
    }
}

// SAFETY: the descriptor and the length are those of the file behind it.
unsafe impl Medium for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        step(&self.1)?;
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        step(&self.1)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        step(&self.1)?;
        self.0.set_len(len)
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Killed {
    fn after(steps: u64) -> Arc<Killed> {
        Arc::new(Killed { files: Arc::new(Files), steps: Arc::new(AtomicU64::new(steps)) })
    }

    fn file(&self, medium: Arc<dyn Medium>) -> Arc<dyn Medium> {
        Arc::new(File(medium, self.steps.clone()))
    }
}

// SAFETY: names, files and locks are those of `Files`.
unsafe impl Media for Killed {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(self.file(self.files.open(path, write)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        step(&self.steps)?;
        Ok(self.file(self.files.create(path)?))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        // Half of it, and all of it, are beside the name before they have it.
        for part in [content.len() / 2, content.len()] {
            step(&self.steps).inspect_err(|_| {
                if self.steps.swap(u64::MAX, SeqCst) == 0 {
                    fs::write(path.with_extension("new"), &content[..part]).unwrap();
                }
                self.steps.store(0, SeqCst);
            })?;
        }
        self.files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        step(&self.steps)?;
        self.files.sync_directory(path)
    }
    fn held(&self, directory: &Path, rules: &Rules) -> io::Result<Option<Arc<dyn Media>>> {
        let files = self.files.held(directory, rules)?.expect("names can change");
        Ok(Some(Arc::new(Killed { files, steps: self.steps.clone() })))
    }
    fn list_outside(&self, path: &Path) {
        self.files.list_outside(path);
    }
    fn holds(&self, path: &Path) -> bool {
        self.files.holds(path)
    }
    fn exists(&self, path: &Path) -> bool {
        self.files.exists(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.files.list(path)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        step(&self.steps)?;
        self.files.remove(path)
    }
}

/// In memory if that can be: a restore forces many names.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// A dump of a store with a segment, and an adopted file but for the undo policy, and the name of that one.
fn dumped(dir: &Path, policy: Policy) -> (Vec<u8>, Option<String>) {
    let (path, adopted) = (dir.join("from"), dir.join("adopted"));
    let mut options = support::options();
    let store = options.policy(policy).outside(&adopted).open(&path).unwrap();
    fs::write(&adopted, vec![5; LEN as usize]).unwrap();
    let adopted = (policy != Policy::Undo).then(|| store.adopt_segment(&adopted).unwrap().name().to_owned());
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 8, &7u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    (dump, adopted)
}

fn restore(dump: &[u8], to: &Path, steps: u64) -> Result<u64, BackupError> {
    let media = Killed::after(steps);
    let (mut options, mut how) = (Options::new(), RestoreOptions::new());
    options.log_bytes(64 << 10).stage_bytes(128 << 10).media(media.clone());
    how.external(to.with_extension("external")).checked(true);
    options.restore(&mut &dump[..], &how, to).map(|_| steps - media.steps.load(SeqCst))
}

fn used(to: &Path) {
    let mut options = support::options();
    let store = options.create(false).outside(to.with_extension("external")).open(to).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    assert_eq!(region.load::<u64>(8), 7);
    for adopted in fs::read_dir(to.with_extension("external")).unwrap() {
        assert_eq!(fs::read(adopted.unwrap().path()).unwrap(), [5; LEN as usize]);
    }
    assert!(!to.join("restoring").exists());
}

#[test]
fn a_restore_that_is_killed_can_be_tried_again() {
    for policy in POLICIES {
        let dir = directory();
        let ((dump, _), to) = (dumped(dir.path(), policy), dir.path().join("to"));
        let afresh = || {
            for path in [&to, &to.with_extension("external")] {
                let _ = fs::remove_dir_all(path);
            }
            fs::create_dir(to.with_extension("external")).unwrap();
        };
        afresh();
        let all = restore(&dump, &to, 1 << 40).unwrap();
        used(&to);
        for first in 0..all {
            let second = first * 7 % all;
            afresh();
            for steps in [first, second, 1 << 40] {
                let complete = to.join("catalog").exists() && !to.join("restoring").exists();
                match restore(&dump, &to, steps) {
                    Ok(_) => assert!(!complete),
                    // It was killed when nothing but forcing the end of it was missing.
                    Err(BackupError::Store(OpenError::Exists { .. })) => assert!(complete),
                    Err(error) => {
                        let killed = steps < 1 << 40 && error.to_string().contains("killed");
                        assert!(killed, "{policy:?}, {first}, {second}, {steps}: {error}");
                    }
                }
            }
            used(&to);
        }
    }
}

#[test]
fn what_an_attempt_did_not_make_stays() {
    for policy in POLICIES {
        let dir = directory();
        let ((dump, adopted), to) = (dumped(dir.path(), policy), dir.path().join("to"));
        let external = to.with_extension("external");
        fs::create_dir(&external).unwrap();
        // A user's file stands where an adopted one would be made: refused, now and later.
        if let Some(adopted) = adopted.map(|name| external.join(name)) {
            fs::write(&adopted, "mine").unwrap();
            for _ in 0..3 {
                restore(&dump, &to, 1 << 40).unwrap_err();
                assert_eq!(fs::read(&adopted).unwrap(), b"mine");
            }
            fs::remove_file(&adopted).unwrap();
        }
        fs::create_dir_all(&to).unwrap();
        // One beside what an attempt has left.
        for name in ["notes.segment", "archived", "restoring.old"] {
            fs::write(to.join(name), "mine").unwrap();
            let refused = restore(&dump, &to, 1 << 40).unwrap_err();
            assert!(matches!(refused, BackupError::Store(OpenError::Exists { .. })), "{refused}");
            assert_eq!(fs::read(to.join(name)).unwrap(), b"mine");
            fs::remove_file(to.join(name)).unwrap();
        }
        restore(&dump, &to, 1 << 40).unwrap();
        // A store that is complete, and one that was used.
        for _ in 0..2 {
            let refused = restore(&dump, &to, 1 << 40).unwrap_err();
            assert!(matches!(refused, BackupError::Store(OpenError::Exists { .. })), "{refused}");
            used(&to);
        }
    }
}

#[test]
fn a_store_that_was_opened_before_its_check_came_to_its_end_is_one() {
    let dir = directory();
    let ((dump, _), to) = (dumped(dir.path(), Policy::Undo), dir.path().join("to"));
    fs::create_dir(to.with_extension("external")).unwrap();
    let all = restore(&dump, &to, 1 << 40).unwrap();
    fs::remove_dir_all(&to).unwrap();
    // Killed in its check.
    restore(&dump, &to, all - 2).unwrap_err();
    assert!(to.join("restoring").exists() && to.join("catalog").exists());
    let _ = Store::options().read_only(true).open(&to);
    assert!(to.join("restoring").exists(), "to look at it changes nothing");
    used(&to);
    let refused = restore(&dump, &to, 1 << 40).unwrap_err();
    assert!(matches!(refused, BackupError::Store(OpenError::Exists { .. })), "{refused}");
    used(&to);
}

/// A directory that came from elsewhere says that an attempt has made a file outside.
#[test]
fn a_file_elsewhere_is_removed_only_if_the_restore_may_make_it() {
    let dir = directory();
    let ((dump, _), to) = (dumped(dir.path(), Policy::Redo), dir.path().join("to"));
    let (external, mine) = (to.with_extension("external"), dir.path().join("mine"));
    [&to, &external].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let refused = |id: &str| {
        let first = "A Caliburn store is being restored in this directory.";
        fs::write(to.join("restoring"), format!("{first}\nid:{id}\0data\0{}\0", mine.display())).unwrap();
        fs::write(&mine, "mine").unwrap();
        for _ in 0..2 {
            let refused = restore(&dump, &to, 1 << 40).unwrap_err().to_string();
            assert!(refused.contains("remove") && refused.contains("mine"), "{refused}");
            assert_eq!(fs::read(&mine).unwrap(), b"mine");
        }
        fs::remove_file(&mine).unwrap();
    };
    refused(&"a5".repeat(16));
    restore(&dump, &to, 1 << 40).unwrap();
    // The store itself, which is complete, stays too.
    refused(&caliburn::info(&to).unwrap().id);
    fs::remove_file(to.join("restoring")).unwrap();
    used(&to);
}
