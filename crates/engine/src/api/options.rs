//! How a store is created and opened (RVM's options and `set_options`).

use crate::api::store::Store;
use crate::inspect::info::Info;
use crate::policy::kind::Policy;
use crate::policy::redo::history::History;
use crate::storage::class::Class;
use crate::storage::error::OpenError;
use crate::storage::pool;
use crate::storage::progress::{Progress, Watch};
use crate::storage::replica::Replica;
use crate::storage::report::Report;
use crate::storage::settings::{BeforeImages, BufferPool, Copies, LOG_BYTES, Prefetch, Settings};
use crate::storage::tuning::Tuning;
use crate::tracking::guard::Guard;
use crate::tracking::{Tracking, Wanted};
use caliburn_log::format::{BLOCK, LOG_BYTES_MAX, LOG_BYTES_MIN};
use caliburn_log::staged_tail::{STAGE_BYTES_MAX, STAGE_BYTES_MIN};
use caliburn_os::medium::Media;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// How a store is created and opened. Like [`std::fs::OpenOptions`]: set, then [`Options::open`].
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) policy: Option<Policy>,
    pub(crate) observable: bool,
    pub(crate) settings: Settings,
    wanted: Wanted,
}

impl Default for Options {
    fn default() -> Options {
        let (settings, wanted) = (Settings::default(), Wanted::default());
        Options { create: false, create_new: false, policy: None, observable: true, settings, wanted }
    }
}

impl Options {
    /// Defaults: open an existing store for writing.
    pub fn new() -> Options {
        Options::default()
    }

    /// Creates the store if the directory holds none.
    pub fn create(&mut self, yes: bool) -> &mut Options {
        self.create = yes;
        self
    }

    /// Creates the store; fails if one is there.
    pub fn create_new(&mut self, yes: bool) -> &mut Options {
        self.create_new = yes;
        self
    }

    /// Opens for reading: nothing is written, regions cannot be stored to, several readers may share.
    pub fn read_only(&mut self, yes: bool) -> &mut Options {
        self.settings.read_only = yes;
        self
    }

    /// With a damaged log or stage, opens read-only and shows what precedes the damage;
    /// [`Store::damage`] tells what is missing.
    pub fn salvage(&mut self, yes: bool) -> &mut Options {
        self.settings.salvage = yes;
        self.settings.read_only |= yes;
        self
    }

    /// The recovery policy of a new store. Default [`Policy::Redo`]. A store that is there with another one is
    /// refused: [`OpenError::OtherPolicy`].
    pub fn policy(&mut self, policy: Policy) -> &mut Options {
        self.policy = Some(policy);
        self
    }

    /// Bytes of the log, a multiple of 4096. Default 64 MiB, for a store that is there what it has. One that is
    /// opened for writing and has another size gets this one, before the opening returns: in another file of its
    /// directory. The log bounds a transaction's size.
    pub fn log_bytes(&mut self, bytes: u64) -> &mut Options {
        self.settings.log_bytes = Some(bytes);
        self
    }

    /// File or block device for the log. Default: in the store. The log of a store that is opened for writing and
    /// has it elsewhere is moved there, before the opening returns. A file or device outside of the store's
    /// directory that it was moved from is no log any more, and stays. With the shadow policy a store's log of
    /// before-images stays where it was made. The path of the file `log` in the store's directory brings a log back.
    pub fn log_path(&mut self, path: impl AsRef<Path>) -> &mut Options {
        self.settings.log_path = Some(path.as_ref().to_owned());
        self
    }

    /// Has the log written to a second file or block device as well, which is not in the store's directory: either
    /// may be lost, lag or lie, and no commit is lost (Camelot, section 4.4). A store that has one copy of its log
    /// gets this second one before the opening returns; so does one that has lost one of two, at this path or
    /// another, or, if the one at this path is left, where that one was. A copy that fails is left out from then on,
    /// and the store goes on with the other one: [`Query::log_copies`](crate::Query::log_copies) says how many
    /// there are. With the redo policy only.
    pub fn duplex_log(&mut self, path: impl AsRef<Path>) -> &mut Options {
        self.settings.copies = Copies::Two(path.as_ref().to_owned());
        self
    }

    /// Gives up the second copy of the log, if there is one.
    pub fn simplex_log(&mut self) -> &mut Options {
        self.settings.copies = Copies::One;
        self
    }

    /// Lists a file, a block device, or a directory with all that is in it, that the store may name though it is
    /// not in its directory: a log, a segment on a device, an adopted file. What is not listed is not touched,
    /// since a store that came from elsewhere can name any file. The path of [`Options::log_path`] is listed, and
    /// so is each path that a call of [`Store`] is given. Links are followed.
    pub fn outside(&mut self, path: impl AsRef<Path>) -> &mut Options {
        self.settings.rules.outside.push(path.as_ref().to_owned());
        self
    }

    /// Opens for writing also a store that was copied, or restored from a copy, while it was in use: see
    /// [`OpenError::Copied`]. To be given for a copy of one moment: a snapshot, or files that were copied while the
    /// program was stopped or after it was killed. With the redo and the shadow policy all of it is verified before;
    /// a copy that was made while transactions went on is refused then, but not always. Checksums can't tell a
    /// segment with its sums that are of before a truncation from a log of after it, nor a page that is newer than
    /// the log, where the log names it. With the undo policy, and for commits of class `Process` that redo's stage
    /// holds, nothing tells: [`Options::memory_kept`] is needed as well.
    pub fn copied(&mut self, yes: bool) -> &mut Options {
        self.settings.copied = yes;
        self
    }

    /// Says that what a killed program had stored in memory is there, where no witness can tell it
    /// (docs/durability.md); of a [copy](Options::copied), that all of its files are of one moment. With the undo
    /// policy a store that was in use then is opened and not refused, and with the redo policy commits of class
    /// `Process` that its stage holds are kept. To be given only if the system did not go down since, and no other
    /// state of the file system, such as a snapshot, was mounted: otherwise what is opened is torn, and nothing can
    /// tell.
    pub fn memory_kept(&mut self, yes: bool) -> &mut Options {
        self.settings.memory_kept = yes;
        self
    }

    /// Tells `callback` how far opening or checking a store is, at least with every mebibyte that is read.
    /// [`ControlFlow::Break`] ends it with [`OpenError::Interrupted`]: nothing is lost, and the next opening
    /// begins anew. Once what was read is being written, opening goes on to its end.
    pub fn progress(
        &mut self,
        callback: impl Fn(&Progress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> &mut Options {
        self.settings.watch = Watch::new(Arc::new(callback));
        self
    }

    /// Who may read and write the files that are made, as for `chmod`; less what the process's umask takes away.
    /// Default: the owner alone, `0o600`. A user who may read the file `lock`
    /// can open the store for reading, which keeps others from opening it for writing meanwhile.
    pub fn mode(&mut self, mode: u32) -> &mut Options {
        self.settings.rules.mode = mode & 0o666;
        self
    }

    /// Bytes of the stage, which holds commits until they are in the log. Default 32 MiB; never more than an
    /// eighth of the memory budget.
    pub fn stage_bytes(&mut self, bytes: u64) -> &mut Options {
        self.settings.stage_bytes = bytes;
        self
    }

    /// Address space kept free behind each region that reaches its segment's end, for growth. Default 64 GiB.
    pub fn reserve_bytes(&mut self, bytes: u64) -> &mut Options {
        self.settings.reserve_bytes = bytes;
        self
    }

    /// What the memory survives that a store with the undo policy is mapped from, where the system does not know:
    /// a device on a bus of its own, mapped with `-o dax`, or memory with a battery that the caches have too.
    /// Commits then write cache lines back as for persistent memory. If it is not true, or what the store
    /// forces stays in the page cache of a file system that is lost, the store is lost when the system goes
    /// down, and nobody notices.
    pub fn memory_survives(&mut self, class: Class) -> &mut Options {
        self.settings.memory_survives = Some(class);
        self
    }

    /// Refuses to open a store whose media cannot give this class: see [`Store::reach`].
    pub fn require(&mut self, class: Class) -> &mut Options {
        self.settings.require = class;
        self
    }

    /// Whether regions are protected from stores outside of transactions. Default: by pages in debug builds,
    /// else not.
    pub fn guard(&mut self, guard: Guard) -> &mut Options {
        self.wanted.guard = guard;
        self
    }

    /// How changes are found. Default: they are declared.
    pub fn tracking(&mut self, tracking: Tracking) -> &mut Options {
        self.wanted.tracking = tracking;
        self
    }

    /// When before-images are written, with the shadow policy where stores are caught. Default:
    /// [`BeforeImages::Adaptive`]. It may be another one at each opening.
    pub fn before_images(&mut self, when: BeforeImages) -> &mut Options {
        self.settings.before_images = when;
        self
    }

    /// Whether the log may grow for a transaction that outgrows it, at its commit. With the redo policy; default
    /// yes. Otherwise [`Transaction::set_range`](crate::Transaction::set_range) refuses what would be too much, as
    /// it does where the log cannot grow: it has two copies, or is outside of the store's directory.
    pub fn large_transactions(&mut self, yes: bool) -> &mut Options {
        self.settings.large = yes;
        self
    }

    /// Whether a transaction may outgrow the memory budget ([`Tuning::memory_budget`]): what it changes lies in
    /// files of the store's directory then. With the redo policy, where changes are declared, and neither guarded
    /// nor verified; default no: [`Transaction::set_range`](crate::Transaction::set_range) refuses what would be too
    /// much. Read first what is known to be missing (`docs/memory.md`). If the disk fails to write these files the
    /// store fails, and opened anew has all that was committed.
    pub fn overflow(&mut self, yes: bool) -> &mut Options {
        self.settings.overflow = yes;
        self
    }

    /// Has regions shown by a buffer pool, in place of the system: with the shadow policy, where stores are caught
    /// ([`Tracking::Fault`]). Before-images are written at once then. Loads are caught as well, so that system calls
    /// that are given memory of a region fail with EFAULT where its page is not in a frame, declared or not: copy
    /// it. A forked child has no memory where regions are. Default: the system does it, which is better wherever
    /// memory is wanted by others too.
    pub fn buffer_pool(&mut self, pool: BufferPool) -> &mut Options {
        self.settings.pool = Some(pool);
        self
    }

    /// What is read into memory before the program touches it, by a thread, and until memory is short: how fast is
    /// [`Tuning::prefetch_rate`]. Default: what is asked for. It may be another one at each opening. Nothing is read
    /// of files in memory; without background threads nothing but what is asked for, of which the system is told.
    pub fn prefetch(&mut self, what: Prefetch) -> &mut Options {
        self.settings.prefetch = what;
        self
    }

    /// Looks at every commit for bytes that were changed without being declared, and panics if there are any. For
    /// tests and debugging: it takes as much memory again as the regions, and time in proportion to what was
    /// stored to (before Linux 6.7, to the regions). What other processes store through mappings of their own, and
    /// devices to pinned memory, it does not see.
    pub fn verify(&mut self, yes: bool) -> &mut Options {
        self.wanted.verify = yes;
        self
    }

    /// With the redo policy, lets nothing reach a segment but bytes that a transaction declared, whatever else
    /// a program stores to the same pages: truncation goes by the log alone, in epochs, and never writes pages
    /// of memory. It reads the log back and so takes longer. Programs for RVM rely on it.
    pub fn declared_only(&mut self, yes: bool) -> &mut Options {
        self.settings.declared_only = yes;
        self
    }

    /// Where files come from; for simulated media.
    pub fn media(&mut self, media: Arc<dyn Media>) -> &mut Options {
        self.settings.media = media;
        self
    }

    /// Whether threads flush and truncate in the background. Default yes. Without them a lazy commit is forced
    /// when another is, by [`Store::flush`], or by [`Store::tend_flush`], which a program may call now and
    /// then, and a commit that needs room in the log makes it: for programs that have no threads, or fork.
    pub fn background(&mut self, yes: bool) -> &mut Options {
        self.settings.background = yes;
        self
    }

    /// Whether a thread tells other processes of the store when they ask ([`watch`](crate::watch), `caliburn
    /// top`). Default yes, if there are background threads; it looks once a second whether somebody asks.
    pub fn observable(&mut self, yes: bool) -> &mut Options {
        self.observable = yes;
        self
    }

    /// What can also be changed later.
    pub fn tuning(&mut self, tuning: Tuning) -> &mut Options {
        self.settings.tuning = tuning;
        self
    }

    /// Keeps the log on other machines too, as long as it is needed there: what commits in [`Class::Quorum`]
    /// survives the loss of this one. Every opening of the store for writing must name it. What is forced is sent
    /// soon, whatever its class; while the replica can't be reached the log keeps what it lacks, until that fills
    /// it, and those who commit in class `Quorum`, prepare, or decide, wait. A replica begins with the opening
    /// that first names it: a dump that is made later can be brought further by it.
    pub fn replica(&mut self, replica: Arc<dyn Replica>) -> &mut Options {
        self.settings.replica = Some(replica);
        self
    }

    /// Opens, or creates as the options say, the store in directory `path`. Recovery is part of it.
    ///
    /// # Errors
    /// See [`OpenError`]. A failed creation leaves nothing behind that a second attempt would trip over.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store, OpenError> {
        self.validate()?;
        let options = self.afresh();
        let opened = Store::open_with(path.as_ref(), &options);
        options.told(path.as_ref(), opened)
    }

    /// Verifies the store in directory `path`, as [`check()`](crate::check()) does, as it is to be opened with
    /// these options.
    ///
    /// # Errors
    /// As [`check()`](crate::check()).
    pub fn check(&self, path: impl AsRef<Path>) -> Result<Report, OpenError> {
        let options = self.afresh();
        let report = crate::inspect::check::check_with(&options.settings, path.as_ref());
        options.told(path.as_ref(), report)
    }

    /// Describes the store in directory `path`, as [`info()`](crate::info()) does.
    ///
    /// # Errors
    /// As [`info()`](crate::info()).
    pub fn info(&self, path: impl AsRef<Path>) -> Result<Info, OpenError> {
        crate::inspect::info::info_with(&self.settings, path.as_ref())
    }

    /// Opens the log of the store in directory `path` for reading its history, as [`History::open`] does.
    ///
    /// # Errors
    /// As [`History::open`].
    pub fn history(&self, path: impl AsRef<Path>) -> Result<History, OpenError> {
        History::open_with(&self.settings, path.as_ref())
    }

    /// The same, of which the program has ended nothing yet.
    pub(super) fn afresh(&self) -> Options {
        let mut options = self.clone();
        options.settings.watch = self.settings.watch.afresh();
        options
    }

    /// What failed because the program ended it says so.
    pub(super) fn told<T, E: From<OpenError>>(&self, path: &Path, outcome: Result<T, E>) -> Result<T, E> {
        match self.settings.watch.stopped() && outcome.is_err() {
            true => Err(OpenError::Interrupted { path: path.to_owned() }.into()),
            false => outcome,
        }
    }

    /// What is to track changes. Nothing does where there are none; a guard would open what is caught.
    pub(crate) fn wanted(&self) -> Wanted {
        match self.settings.read_only {
            true => Wanted { guard: Guard::Off, ..Wanted::default() },
            false if self.wanted.tracking != Tracking::Declared => {
                Wanted { guard: Guard::Off, ..self.wanted.clone() }
            }
            false => self.wanted.clone(),
        }
    }

    pub(super) fn validate(&self) -> Result<(), OpenError> {
        let bad = |name, value, why: String| Err(OpenError::Option { name, value, why });
        let log_bytes = self.settings.log_bytes.unwrap_or(LOG_BYTES);
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes) || !log_bytes.is_multiple_of(BLOCK as u64) {
            let why = format!("must be a multiple of {BLOCK}, {LOG_BYTES_MIN} to {LOG_BYTES_MAX}");
            return bad("log_bytes", log_bytes, why);
        }
        if self.settings.stage_bytes < STAGE_BYTES_MIN || self.settings.stage_bytes > STAGE_BYTES_MAX {
            return bad(
                "stage_bytes",
                self.settings.stage_bytes,
                format!("must be {STAGE_BYTES_MIN} to {}", STAGE_BYTES_MAX),
            );
        }
        if self.settings.salvage && !self.settings.read_only {
            return bad("read_only", 0, "a damaged store is opened for salvage read-only".into());
        }
        if self.wanted.guard == Guard::Keys && caliburn_os::guard::key().is_none() {
            let why = "this processor or kernel has no memory protection keys; use Guard::Pages";
            return bad("guard", 2, why.into());
        }
        if self.wanted.tracking != Tracking::Declared && self.wanted.verify {
            let why = "nothing is undeclared where changes are found";
            return bad("verify", 1, why.into());
        }
        if let Some(pool) = &self.settings.pool {
            pool::check(pool)?;
            if self.settings.read_only || self.wanted.tracking != Tracking::Fault {
                let why = "takes Tracking::Fault, and a store that is opened for writing".to_owned();
                return bad("buffer_pool", pool.bytes, why);
            }
        }
        if self.create_new && self.settings.read_only {
            return bad("read_only", 1, "a store is not created read-only".into());
        }
        self.settings.tuning.check()
    }
}
