//! What a workload runs on: some memory with transactions, or with less.

use caliburn::{Class, Mode, Options, Policy, Region, Store, Transaction};
use std::path::{Path, PathBuf};

/// Why nothing could be measured.
pub type Failure = Box<dyn std::error::Error>;

/// Memory that a workload changes in transactions.
pub trait Target {
    /// Name in reports, and the policy.
    const NAME: &'static str;
    /// The recovery policy.
    const POLICY: &'static str;
    /// A transaction in progress.
    type Tx<'a>: Declare
    where
        Self: 'a;
    /// Runs one transaction: `change` declares each range before it stores to it.
    fn transaction(&mut self, change: impl FnOnce(&mut Self::Tx<'_>));
    /// What is left when it was closed and opened again: what it holds, not what the work left in memory.
    /// Itself, where there is nothing to be opened.
    fn reopened(self) -> Result<Self, Failure>
    where
        Self: Sized,
    {
        Ok(self)
    }
    /// Finishes what was left to threads in the background, which would take the processor from whoever is
    /// measured next.
    fn drain(&mut self) {}
    /// Copies bytes out, for checking the result.
    fn read(&self, offset: usize, target: &mut [u8]);
}

/// A transaction in progress.
pub trait Declare {
    /// Declares `[offset, offset + len)`, which is within bounds, and says where it is in memory.
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8;
}

/// A Caliburn store with one region, with the redo policy or the undo policy.
pub struct Caliburn<const UNDO: bool> {
    region: Region,
    store: Store,
    mode: Mode,
    class: Class,
    dir: PathBuf,
    options: Options,
}

/// Options of a store with a log and a stage of so many megabytes.
pub fn options(log_mb: u64, stage_mb: u64) -> Options {
    let mut options = Store::options();
    options.create(true).log_bytes(log_mb << 20).stage_bytes(stage_mb << 20);
    options
}

/// Moves all that was committed to the segments. With the undo policy it is there already.
pub fn drain(store: &Store) {
    if store.policy() == Policy::Redo {
        store.truncate().expect("the store is sound");
    }
}

/// A store with the redo policy.
pub type Redo = Caliburn<false>;
/// A store with the undo policy.
pub type Undo = Caliburn<true>;

impl<const UNDO: bool> Caliburn<UNDO> {
    /// Opens the store in a directory, with a segment of so many bytes.
    pub fn new(dir: &Path, options: &Options, bytes: usize, class: Class) -> Result<Self, Failure> {
        let mut options = options.clone();
        options.policy(if UNDO { Policy::Undo } else { Policy::Redo });
        let store = options.open(dir)?;
        let region = store.segment_or_create("data", bytes as u64)?.map_all()?;
        Ok(Caliburn { region, store, mode: Mode::Restore, class, dir: dir.to_owned(), options })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Closes the store in good order.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.region);
        Ok(self.store.close()?)
    }
}

/// Its transaction.
pub struct Tx<'a> {
    tx: Transaction<'a>,
    region: &'a Region,
}

impl Declare for Tx<'_> {
    // As the call that it stands for.
    #[inline(always)]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        self.tx.set_range(self.region, offset..offset + len).expect("the workload stays in bounds");
        // SAFETY: `set_range` found the range within the region.
        unsafe { self.region.as_ptr().add(offset) }
    }
}

impl<const UNDO: bool> Target for Caliburn<UNDO> {
    const NAME: &'static str = "caliburn";
    const POLICY: &'static str = if UNDO { "undo" } else { "redo" };

    type Tx<'a> = Tx<'a>;

    #[inline]
    fn transaction(&mut self, change: impl FnOnce(&mut Tx<'_>)) {
        let tx = self.store.begin(self.mode).expect("the store is sound");
        let mut tx = Tx { tx, region: &self.region };
        change(&mut tx);
        tx.tx.commit(self.class).expect("the store is sound");
    }

    fn reopened(self) -> Result<Self, Failure> {
        let (dir, options, class) = (self.dir.clone(), self.options.clone(), self.class);
        let bytes = self.region.len();
        self.close()?;
        Caliburn::new(&dir, &options, bytes, class)
    }

    fn drain(&mut self) {
        drain(&self.store);
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        self.region.read(offset, target);
    }
}

/// A part of a region, for one of several threads.
pub struct Part<'s> {
    store: &'s Store,
    region: &'s Region,
    from: usize,
    class: Class,
}

impl<'s> Part<'s> {
    /// The part that begins there, for commits in the `Process` class.
    pub fn new(store: &'s Store, region: &'s Region, from: usize) -> Part<'s> {
        Part::of_class(store, region, from, Class::Process)
    }

    /// The part that begins there.
    pub fn of_class(store: &'s Store, region: &'s Region, from: usize, class: Class) -> Part<'s> {
        Part { store, region, from, class }
    }
}

/// Its transaction.
pub struct PartTx<'a> {
    tx: Tx<'a>,
    from: usize,
}

impl Declare for PartTx<'_> {
    #[inline]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        self.tx.declare(self.from + offset, len)
    }
}

impl Target for Part<'_> {
    const NAME: &'static str = "caliburn";
    const POLICY: &'static str = "";

    type Tx<'a>
        = PartTx<'a>
    where
        Self: 'a;

    #[inline]
    fn transaction(&mut self, change: impl FnOnce(&mut PartTx<'_>)) {
        let tx = self.store.begin(Mode::Restore).expect("the store is sound");
        let mut tx = PartTx { tx: Tx { tx, region: self.region }, from: self.from };
        change(&mut tx);
        tx.tx.tx.commit(self.class).expect("the store is sound");
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        self.region.read(self.from + offset, target);
    }
}
