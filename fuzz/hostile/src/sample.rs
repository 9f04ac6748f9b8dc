//! Sound stores as a killed process leaves them, which the trials begin with.

use caliburn::heap::Heap;
use caliburn::{Class, Mode, Options, Policy};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs, process};

/// Files of a store by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The folder in which trials are made. The store is `s` in it, and nothing else there is the store's.
pub struct Works {
    pub folder: PathBuf,
}

/// What no store names, unless a change has it do so.
pub const VICTIM: &str = "victim";
/// A file that the sound stores have adopted, and that is listed.
pub const ADOPTED: &str = "adopted";
/// What the victim holds, a page of which is like a segment's header.
pub fn victim() -> Vec<u8> {
    vec![7; 128 << 10]
}

impl Works {
    pub fn new() -> Works {
        let memory = PathBuf::from("/dev/shm");
        let above = if memory.is_dir() { memory } else { env::temp_dir() };
        let ours = |name: &str| name.strip_prefix("caliburn-hostile-").map(str::to_owned);
        // Those of processes that died of what they found.
        for entry in fs::read_dir(&above).into_iter().flatten().flatten() {
            let process = entry.file_name().to_str().and_then(ours);
            if process.is_some_and(|id| !PathBuf::from("/proc").join(id).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = above.join(format!("caliburn-hostile-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("room for stores");
        fs::write(folder.join(VICTIM), victim()).expect("room for stores");
        Works { folder }
    }

    pub fn store(&self) -> PathBuf {
        self.folder.join("s")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redo,
    Undo,
    /// Undo in memory that is said to be persistent.
    Sealed,
}

/// A sound store.
pub struct Sample {
    pub kind: Kind,
    pub files: Files,
}

impl Sample {
    pub fn options(&self, works: &Works) -> Options {
        let mut options = Options::new();
        options.log_bytes(64 << 10).stage_bytes(128 << 10).reserve_bytes(1 << 20).background(false);
        options.outside(works.path(ADOPTED)).copied(true);
        match self.kind {
            Kind::Redo => options.policy(Policy::Redo),
            Kind::Undo => options.policy(Policy::Undo),
            Kind::Sealed => options.policy(Policy::Undo).memory_survives(Class::Power),
        };
        options
    }
}

/// One of each kind; of redo three, with other numbers of commits in the log and in the stage.
pub fn all(works: &Works) -> Vec<Sample> {
    let kinds = [(Kind::Redo, 12), (Kind::Redo, 3), (Kind::Redo, 200), (Kind::Undo, 12), (Kind::Sealed, 12)];
    kinds.map(|(kind, commits)| make(works, kind, commits)).into()
}

fn make(works: &Works, kind: Kind, commits: u64) -> Sample {
    let mut sample = Sample { kind, files: Files::new() };
    let path = works.store();
    let _ = fs::remove_dir_all(&path);
    fs::write(works.path(ADOPTED), vec![5; 8192]).expect("room");
    let open = || {
        let store = sample.options(works).create(true).open(&path).expect("sound");
        let region = store.segment_or_create("data", 65536).expect("sound").map_all().expect("sound");
        (store, region)
    };
    let (mut store, mut region) = open();
    if kind != Kind::Redo {
        // What is in a file of its own from here on.
        let mut tx = store.begin(Mode::Restore).expect("sound");
        tx.write(&region, 60_000, &[3; 100]).expect("sound");
        tx.prepare(b"left").expect("sound");
        store.close().expect("sound");
        drop(region);
        (store, region) = open();
    }
    let adopted = (kind == Kind::Redo).then(|| store.adopt_segment(works.path(ADOPTED)).expect("sound"));
    let adopted = adopted.map(|segment| segment.map_all().expect("sound"));
    let heap = Heap::open(&store, "h").expect("sound");
    {
        let mut tx = heap.begin().expect("sound");
        for (number, len) in [8, 24, 100, 3000, 70_000].into_iter().enumerate() {
            let place = tx.allocate(len).expect("sound");
            tx.set_root(&format!("root{number}"), Some(place)).expect("sound");
        }
        tx.commit(Class::Process).expect("sound");
    }
    if kind == Kind::Redo {
        store.truncate().expect("sound");
    }
    for number in 0..commits {
        let mut tx = store.begin(Mode::Restore).expect("sound");
        tx.store(&region, number as usize * 100, &number).expect("sound");
        if let Some(adopted) = &adopted {
            tx.store(adopted, number as usize * 8 % 4096, &number).expect("sound");
        }
        tx.commit(Class::Process).expect("sound");
        if number == commits * 2 / 3 {
            // To the log; the rest stays in the stage.
            store.tend_flush(true).expect("sound");
        }
    }
    let mut open = store.begin(Mode::Restore).expect("sound");
    open.store(&region, 50_000, &1u64).expect("sound");
    let mut branch = open.branch().expect("sound");
    branch.write(&region, 51_000, &[1; 300]).expect("sound");
    drop(branch);
    if kind == Kind::Redo {
        open.prepare(b"undecided").expect("sound");
        sample.files = read(&path);
        store.abort_prepared(b"undecided").expect("sound");
    } else {
        let mut second = store.begin(Mode::Restore).expect("sound");
        second.write(&region, 40_000, &[9; 5000]).expect("sound");
        second.prepare(b"undecided").expect("sound");
        sample.files = read(&path);
        store.abort_prepared(b"undecided").expect("sound");
        open.abort();
    }
    sample
}

fn read(path: &std::path::Path) -> Files {
    let names = fs::read_dir(path).expect("there").map(|entry| entry.expect("there").file_name());
    let names: Vec<String> = names.map(|name| name.into_string().expect("ours")).collect();
    let of = |name: &String| fs::read(path.join(name)).expect("there");
    names.iter().filter(|name| *name != "lock").map(|name| (name.clone(), of(name))).collect()
}
