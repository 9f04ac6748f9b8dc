//! Losing everything that was not forced: a medium that remembers which writes were not synced yet, and at
//! a chosen operation takes a picture of what a power cut would leave: every unsynced write survives
//! wholly, in some of its 512-byte sectors, or not at all. The stage is lost, as after any reboot.
//!
//! Each picture is recovered and compared with a model, and recovery itself is cut again and again.

mod support;

use caliburn::medium::{Files, Media, Medium, Replaced};
use caliburn::{Class, Mode, Options, Region, Store};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::clean;

const SECTOR: usize = 512;

/// What would be on the disk.
#[derive(Debug, Default, Clone)]
struct Durable {
    content: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Extend(u64),
}

/// Media that remember, and take a picture at the operation that the countdown names.
#[derive(Debug)]
struct Recorder {
    files: Mutex<HashMap<PathBuf, Durable>>,
    countdown: AtomicU64,
    seed: u64,
    picture: Mutex<Option<Picture>>,
    /// Sequence number of the last commit whose force was acknowledged.
    acknowledged: AtomicU64,
}

#[derive(Debug)]
struct Picture {
    files: HashMap<PathBuf, Vec<u8>>,
    acknowledged: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % n
    }
}

impl Recorder {
    /// Starts from what is on the disk now.
    fn new(dir: &Path, countdown: u64, seed: u64) -> Arc<Recorder> {
        let mut files = HashMap::new();
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            files.insert(
                path.clone(),
                Durable { content: std::fs::read(path).unwrap(), unsynced: Vec::new() },
            );
        }
        Arc::new(Recorder {
            files: Mutex::new(files),
            countdown: AtomicU64::new(countdown),
            seed,
            picture: Mutex::new(None),
            acknowledged: AtomicU64::new(0),
        })
    }

    /// Called with the files locked, before each operation takes effect.
    fn step(&self, files: &HashMap<PathBuf, Durable>) {
        if self.countdown.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.take(files);
        }
    }

    fn take(&self, files: &HashMap<PathBuf, Durable>) {
        let mut random = Random(self.seed);
        // Some cuts keep nearly all, some nearly nothing.
        let keep = random.below(5);
        let mut sorted: Vec<_> = files.iter().collect();
        sorted.sort_by_key(|(path, _)| path.as_path());
        let left = sorted.into_iter().map(|(path, file)| {
            let mut content = file.content.clone();
            for change in &file.unsynced {
                match change {
                    Change::Extend(len) if random.below(4) < keep => {
                        content.resize(content.len().max(*len as usize), 0);
                    }
                    Change::Extend(_) => {}
                    Change::Write(offset, bytes) => {
                        let whole = random.below(4) < keep;
                        let mut at = 0;
                        while at < bytes.len() {
                            let start = *offset as usize + at;
                            let len = (SECTOR - start % SECTOR).min(bytes.len() - at);
                            if whole || random.below(4) < keep {
                                content.resize(content.len().max(start + len), 0);
                                content[start..start + len].copy_from_slice(&bytes[at..at + len]);
                            }
                            at += len;
                        }
                    }
                }
            }
            (path.clone(), content)
        });
        let picture =
            Picture { files: left.collect(), acknowledged: self.acknowledged.load(Ordering::SeqCst) };
        self.picture.lock().unwrap().get_or_insert(picture);
    }

    /// The picture, taken now if the countdown was not reached.
    fn picture(&self) -> Picture {
        let files = self.files.lock().unwrap();
        self.take(&files);
        self.picture.lock().unwrap().take().unwrap()
    }
}

impl Picture {
    /// Puts the files of the picture in a directory; the stage is gone.
    fn restore(&self, dir: &Path) {
        std::fs::remove_dir_all(dir).ok();
        std::fs::create_dir(dir).unwrap();
        for (path, content) in &self.files {
            let name = path.file_name().unwrap();
            if name != "stage" {
                std::fs::write(dir.join(name), content).unwrap();
            }
        }
        std::fs::write(dir.join("stage"), vec![0; 1 << 16]).unwrap();
    }
}

#[derive(Debug)]
struct Recorded {
    inner: Arc<dyn Medium>,
    recorder: Arc<Recorder>,
}

impl Recorded {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut files = self.recorder.files.lock().unwrap();
        self.recorder.step(&files);
        files.entry(self.path().to_owned()).or_default().unsynced.push(change);
        Ok(())
    }
}

// SAFETY: everything mapped is passed on from a file's medium.
unsafe impl Medium for Recorded {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Write(offset, bytes.to_vec()))?;
        self.inner.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let mut files = self.recorder.files.lock().unwrap();
        self.recorder.step(&files);
        let file = files.entry(self.path().to_owned()).or_default();
        for change in std::mem::take(&mut file.unsynced) {
            match change {
                Change::Extend(len) => file.content.resize(file.content.len().max(len as usize), 0),
                Change::Write(offset, bytes) => {
                    let end = offset as usize + bytes.len();
                    file.content.resize(file.content.len().max(end), 0);
                    file.content[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Extend(len))?;
        self.inner.set_len(len)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[derive(Debug)]
struct RecordedMedia(Arc<Recorder>);

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for RecordedMedia {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(Recorded { inner: Files.open(path, write)?, recorder: self.0.clone() }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        let inner = Files.create(path)?;
        self.0.files.lock().unwrap().insert(path.to_owned(), Durable::default());
        Ok(Arc::new(Recorded { inner, recorder: self.0.clone() }))
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        let mut files = self.0.files.lock().unwrap();
        self.0.step(&files);
        let replaced = Files.replace(path, content)?;
        files.insert(path.to_owned(), Durable { content: content.to_vec(), unsynced: Vec::new() });
        Ok(replaced)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

const CELLS: usize = 4096;

/// Options with a log so small that truncation is always at work.
fn options(recorder: Option<&Arc<Recorder>>) -> Options {
    let mut options = support::options();
    options.log_bytes(64 << 10).stage_bytes(128 << 10);
    if let Some(recorder) = recorder {
        options.media(Arc::new(RecordedMedia(recorder.clone())));
    }
    options
}

fn region(store: &Store) -> Region {
    store.segment_or_create("data", (CELLS * 64) as u64).unwrap().map_all().unwrap()
}

/// The state after each commit: cell 0 holds the commit's number, others what commits wrote there.
struct Model {
    states: Vec<Vec<u64>>,
}

/// Runs commits until the picture is taken; returns the model.
fn workload(store: &Store, memory: &Region, recorder: &Recorder, random: &mut Random, most: u64) -> Model {
    let mut now: Vec<u64> = (0..CELLS).map(|i| memory.load(i * 64)).collect();
    let first = now[0];
    let mut model = Model { states: vec![now.clone()] };
    for number in first + 1..first + 1 + most {
        if recorder.picture.lock().unwrap().is_some() {
            break;
        }
        let mut tx = store.begin(if random.below(4) == 0 { Mode::NoRestore } else { Mode::Restore }).unwrap();
        let mut next = now.clone();
        let cells = [0].into_iter().chain((0..random.below(30)).map(|_| random.below(CELLS as u64) as usize));
        let cells: Vec<usize> = cells.collect();
        for cell in &cells {
            tx.store(memory, cell * 64, &number).unwrap();
            next[*cell] = number;
        }
        let kind = random.below(10);
        let class = match kind {
            0..=5 => Class::Process,
            _ => Class::Power,
        };
        tx.commit(class).unwrap();
        now = next;
        model.states.push(now.clone());
        if class == Class::Power {
            recorder.acknowledged.store(number, Ordering::SeqCst);
        }
        match kind {
            // An aborted transaction leaves no trace.
            0 => {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(memory, random.below(CELLS as u64) as usize * 64, &u64::MAX).unwrap();
                tx.abort();
            }
            1 if random.below(5) == 0 => {
                store.flush().unwrap();
                recorder.acknowledged.store(number, Ordering::SeqCst);
            }
            // Growth is durable when it returns: no cut may leave a catalog ahead of its file.
            3 if random.below(6) == 0 => {
                let segment = store.segment("data").unwrap();
                segment.grow(segment.len() + 65536).unwrap();
                memory.grow(segment.len() as usize).unwrap();
            }
            2 if random.below(8) == 0 => {
                store.truncate().unwrap();
                recorder.acknowledged.store(number, Ordering::SeqCst);
            }
            _ => {}
        }
    }
    model
}

/// The recovered state must be that after some commit, none acknowledged missing.
fn verify(dir: &Path, model: &Model, acknowledged: u64, what: &str) -> u64 {
    clean(dir);
    let store = options(None).open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let memory = region(&store);
    let number: u64 = memory.load(0);
    assert!(
        number >= acknowledged,
        "{what}: commit {acknowledged} was acknowledged, {number} is the newest there"
    );
    let expected = &model.states[(number - model.states[0][0]) as usize];
    for (i, value) in expected.iter().enumerate() {
        assert_eq!(memory.load::<u64>(i * 64), *value, "{what}: cell {i} is not that of commit {number}");
    }
    drop(memory);
    store.close().unwrap();
    clean(dir);
    number
}

#[test]
fn what_was_forced_survives_and_nothing_is_half_done() {
    let rounds = std::env::var("CALIBURN_CUTS").map_or(120, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let store = options(None).open(&path).unwrap();
        drop(region(&store));
        store.close().unwrap();

        let mut random = Random(seed);
        let recorder = Recorder::new(&path, 1 + random.below(400), seed);
        let store = options(Some(&recorder)).open(&path).unwrap();
        let memory = region(&store);
        let model = workload(&store, &memory, &recorder, &mut random, 300);
        let picture = recorder.picture();
        drop((memory, store));

        // Cut recovery, and what follows it, at every so many operations; each time from the same picture.
        let mut expected = None;
        for again in 0..6 {
            picture.restore(&cut);
            if again > 0 {
                let recorder = Recorder::new(&cut, 1 + random.below(12), seed + again);
                match options(Some(&recorder)).open(&cut) {
                    Ok(store) => {
                        let memory = region(&store);
                        assert!(memory.load::<u64>(0) >= picture.acknowledged);
                        store.truncate().unwrap();
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                recorder.picture().restore(&cut);
            }
            let number = verify(&cut, &model, picture.acknowledged, &format!("seed {seed}, cut {again}"));
            assert_eq!(
                *expected.get_or_insert(number),
                number,
                "seed {seed}: recovery cut short came to another state"
            );
        }
    }
}
