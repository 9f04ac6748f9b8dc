//! Media that lose what was not forced: they remember which writes were not synced yet, and at a chosen
//! operation take a picture of what a power cut would leave: every unsynced write survives wholly, in some of
//! its 512-byte sectors, or not at all. The stage is lost, as after any reboot.
#![allow(dead_code, reason = "each test needs a part of it")]

use caliburn::medium::{Files, Media, Medium, Replaced};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
pub struct Recorder {
    files: Mutex<HashMap<PathBuf, Durable>>,
    countdown: AtomicU64,
    seed: u64,
    pub picture: Mutex<Option<Picture>>,
    /// Sequence number of the last commit whose force was acknowledged.
    pub acknowledged: AtomicU64,
}

#[derive(Debug)]
pub struct Picture {
    files: HashMap<PathBuf, Vec<u8>>,
    pub acknowledged: u64,
}

/// A stream of numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % n
    }
}

impl Recorder {
    /// Starts from what is on the disk now.
    pub fn new(dir: &Path, countdown: u64, seed: u64) -> Arc<Recorder> {
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

    /// From now on the countdown is another one.
    pub fn cut_at(&self, countdown: u64) {
        self.countdown.store(countdown, Ordering::SeqCst);
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
    pub fn picture(&self) -> Picture {
        let files = self.files.lock().unwrap();
        self.take(&files);
        self.picture.lock().unwrap().take().unwrap()
    }
}

impl Picture {
    /// Puts the files of the picture in a directory; the stage is gone.
    pub fn restore(&self, dir: &Path) {
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
pub struct RecordedMedia(pub Arc<Recorder>);

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
