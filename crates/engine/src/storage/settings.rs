//! How a store is to be opened, as far as its storage and its policy are concerned.

use crate::storage::class::Class;
use crate::storage::error::OpenError;
use crate::storage::progress::Watch;
use crate::storage::replica::Replica;
use crate::storage::tuning::Tuning;
use caliburn_os::files::Files;
use caliburn_os::medium::{Media, Memory, Rules};
use caliburn_os::witness::{Look, Seen};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a new store's log.
pub(crate) const LOG_BYTES: u64 = 64 << 20;

/// When what a page held is written to the log of before-images, where stores are caught
/// ([`Tracking::Fault`](crate::Tracking::Fault)) and the policy is `shadow`
/// ([`Options::before_images`](crate::Options::before_images)). What is declared is always written at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BeforeImages {
    /// Before the page is stored to (McNamee's UMS): a force for each page that is found, or few pages that lie
    /// together. Memory is the system's at all times.
    Eager,
    /// As late as the memory budget ([`Tuning::memory_budget`](crate::Tuning)) lets them: pages that were stored to
    /// are private to the process until then, or until the commit (RPVM). Then all of them are written with one
    /// force.
    Lazy,
    /// Lazily as long as memory is plentiful. A transaction goes on eagerly as soon as what waits has outgrown the
    /// budget (a sixteenth of it where memory cannot hold all that is mapped besides), or the system, or the control
    /// group, is short of memory: it is asked when pages are stored to, at most every five milliseconds.
    #[default]
    Adaptive,
}

/// Memory of the engine's own in which regions show their segments, page by page, in place of the system's: what
/// databases do (McNamee, section 6.1.1), as a yardstick for what the system does by itself
/// ([`Options::buffer_pool`](crate::Options::buffer_pool)). A page is read when it is touched, and another one goes
/// to its place in the segment for it, as soon as all frames of the pool are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPool {
    /// Bytes of all frames: at least eight.
    pub bytes: u64,
    /// Bytes that are read and written at once: a power of two, from the system's page to 16 MiB. Each page in a
    /// frame takes two mappings of those that the process may have (`vm.max_map_count`), so a pool of small
    /// pages is not large.
    pub page_bytes: usize,
    /// Which page goes.
    pub replacement: Replacement,
}

impl Default for BufferPool {
    /// What the paper found to be best: 96 MiB, in pages of 64 KiB, replaced at random.
    fn default() -> BufferPool {
        BufferPool { bytes: 96 << 20, page_bytes: 64 << 10, replacement: Replacement::Random }
    }
}

/// Which page leaves a buffer pool for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// Any.
    Random,
    /// The one that has been there for the longest time.
    Fifo,
    /// The same, but a quarter of the frames are hidden from the program: what it touches there is young again, for
    /// the price of a fault.
    SecondChance,
}

/// How much a transaction will change ([`Transaction::will_change`](crate::Transaction::will_change)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Little: its pages fit the memory budget.
    Few,
    /// Much: more pages than memory should hold until it commits.
    Many,
}

/// What is read into memory before the program touches it ([`Options::prefetch`](crate::Options::prefetch)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Prefetch {
    /// What is asked for by [`Region::prefetch`](crate::Region::prefetch), and nothing else.
    #[default]
    Asked,
    /// All of a region when it is mapped, from its beginning on, if there is memory for all that is mapped.
    Regions,
    /// What the program touched when the store was open before, in that order, as far as there is memory. What it
    /// touches is recorded for the next time, in units of 64 KiB, when the store is closed and once a minute.
    Recorded,
}

/// How many media are to have the log.
#[derive(Debug, Clone, Default)]
pub(crate) enum Copies {
    /// As many as have it.
    #[default]
    AsBefore,
    One,
    /// This one too.
    Two(PathBuf),
}

/// See [`Options`](crate::Options) for what each is.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub read_only: bool,
    pub salvage: bool,
    /// As given: else that of the store, or [`LOG_BYTES`].
    pub log_bytes: Option<u64>,
    pub log_path: Option<PathBuf>,
    pub copies: Copies,
    pub stage_bytes: u64,
    pub reserve_bytes: u64,
    pub media: Arc<dyn Media>,
    pub background: bool,
    pub memory_survives: Option<Class>,
    pub require: Class,
    pub declared_only: bool,
    pub large: bool,
    pub overflow: bool,
    pub before_images: BeforeImages,
    pub prefetch: Prefetch,
    pub pool: Option<BufferPool>,
    pub rules: Rules,
    pub copied: bool,
    pub memory_kept: bool,
    pub watch: Watch,
    pub tuning: Tuning,
    pub replica: Option<Arc<dyn Replica>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            read_only: false,
            salvage: false,
            log_bytes: None,
            log_path: None,
            copies: Copies::default(),
            stage_bytes: 32 << 20,
            reserve_bytes: 64 << 30,
            media: Arc::new(Files),
            background: true,
            memory_survives: None,
            require: Class::Process,
            declared_only: false,
            large: true,
            overflow: false,
            before_images: BeforeImages::default(),
            prefetch: Prefetch::default(),
            pool: None,
            rules: Rules::default(),
            copied: false,
            memory_kept: false,
            watch: Watch::default(),
            tuning: Tuning::default(),
            replica: None,
        }
    }
}

impl Settings {
    /// What can be seen of whether the memory of these files survived.
    pub fn see(&self, media: &dyn Media, dir: &Path, files: &[Look]) -> Result<Seen, OpenError> {
        let seen = Seen::of(media, files).map_err(OpenError::io("read the boot's identity for", dir))?;
        Ok(seen.vouched(self.memory_kept))
    }

    /// The memory that a medium maps, as far as the system knows of it, or as the program says.
    pub fn memory(&self, known: Memory) -> Memory {
        self.memory_survives.map_or(known, |class| known.surviving(class.into()))
    }

    /// The log's replica, in a store that is opened for writing.
    pub fn replica(&self) -> Option<&Arc<dyn Replica>> {
        self.replica.as_ref().filter(|_| !self.read_only)
    }

    /// Refuses a store of which the weakest file survives less than is required.
    pub fn require(&self, dir: &Path, (weakest, reach): (PathBuf, Class)) -> Result<(), OpenError> {
        let replicated = reach >= Class::Power && self.replica().is_some();
        let reach = if replicated { Class::Quorum } else { reach };
        match self.require > reach {
            true => Err(OpenError::Class { path: dir.to_owned(), weakest, wanted: self.require, reach }),
            false => Ok(()),
        }
    }

    /// What commits survive: as much as the weakest of the store's media. Refused if that is not enough.
    pub fn reach(
        &self,
        dir: &Path,
        media: impl IntoIterator<Item = (PathBuf, Class)>,
    ) -> Result<Class, OpenError> {
        let weakest = media.into_iter().min_by_key(|(_, class)| *class);
        let weakest = weakest.expect("a store has a log or undo logs");
        let reach = weakest.1;
        self.require(dir, weakest).map(|()| reach)
    }
}
