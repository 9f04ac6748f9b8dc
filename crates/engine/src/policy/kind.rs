//! What a policy does with stores that are not open: creating, opening, checking, describing.

use super::Recovery;
use super::backup::BackupError;
use super::backup::dump::{DumpOptions, Dumped};
use super::backup::restore::{Making, Restored};
use super::query::LogInfo;
use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::error::OpenError;
use crate::storage::generations::Generations;
use crate::storage::opener::Opener;
use crate::storage::progress::Watch;
use crate::storage::report::{OpenReport, Report};
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use crate::storage::{self, Storage};
use crate::write_set::Sets;
use caliburn_log::format::{Defect, Said};
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::unless;
use caliburn_os::witness::{Look, Seen};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use zerocopy::little_endian::U64;

/// How a store's changes are undone and redone. The numbers are those of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// New values go to a log, and from there to the segments (RVM): survives what the log's medium does,
    /// a power cut as well. The default.
    Redo = 0,
    /// The segments are the store: they are mapped shared, and old values are kept in memory of the same kind
    /// until the commit (Vista). No log, no truncation, no copy but one; survives what that memory does. On
    /// files that is the death of the process; a store in use when the system goes down is lost. On persistent
    /// memory, a file system mounted with `-o dax`, it is a power cut, and every commit is in
    /// [`Class::Power`](crate::Class::Power); on a region that `memmap=` reserves, a warm start,
    /// [`Class::Os`](crate::Class::Os). [`Store::reach`](crate::Store::reach) tells.
    Undo = 1,
    /// The segments are the store, mapped shared, and what a page held is durable in a log of before-images before
    /// it is stored to; a commit forces the pages that changed (UMS: McNamee, chapter 5). A transaction is as
    /// large as the disk, not as memory or log: the system writes its pages back and takes their memory when it is
    /// short. One transaction at a time is open, and every commit is in [`Class::Power`](crate::Class::Power).
    Shadow = 2,
}

impl Policy {
    /// Its name for people: `redo`.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Redo => "redo",
            Policy::Undo => "undo",
            Policy::Shadow => "shadow",
        }
    }
}

/// A policy, and what it does with a store that is not open.
pub(crate) trait Kind: Sync {
    fn policy(&self) -> Policy;
    /// Whether segments of a new store have checksums beside them: only where all that reaches them is known to the
    /// engine.
    fn sums(&self) -> bool;
    /// The same of a store that there is.
    fn has_sums(&self, _: &Catalog) -> bool {
        self.sums()
    }
    /// Whether memory is the process's own: the segments do not have what an open transaction stores.
    fn is_private(&self) -> bool {
        false
    }
    /// Makes the files of a new store, the catalog last.
    fn create(&self, new: New<'_>) -> Result<(), OpenError>;
    /// Recovers a store, and takes it into use.
    fn open(&self, opening: Opening<'_>) -> Result<Opened, OpenError>;
    /// Verifies what a store has besides its catalog and the segments' headers.
    fn check(
        &self,
        store: &Closed<'_>,
        segments: &[Arc<SegmentState>],
        report: &mut Report,
    ) -> Result<(), OpenError>;
    /// The log, if there is one, and whether the store was closed in good order.
    fn info(&self, store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError>;
    /// Dumps a store to a stream, whoever has it open: from outside.
    fn dump(
        &self,
        settings: &Settings,
        dir: &Path,
        how: &DumpOptions,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError>;
    /// Makes a store of a dump, of which the first catalog was read.
    fn restore(&self, making: Making<'_>, first: Catalog) -> Result<Restored, BackupError>;
    /// The file besides the segments that its commits depend on.
    fn keeper<'c>(&self, catalog: &'c Catalog) -> &'c Path;
    /// What a commit survives of a medium.
    fn survives(&self, medium: &dyn Medium) -> Class;
}

/// A store that is to be made.
pub(crate) struct New<'a> {
    pub dir: &'a Path,
    pub settings: &'a Settings,
    pub store: Id,
    /// Says, after a failure, whether the directory durably has no catalog, so that its files can be removed.
    pub uncatalogued: &'a mut bool,
}

/// The files of a store that is not open.
pub(crate) struct Closed<'a> {
    /// The caller's options.
    pub settings: &'a Settings,
    /// Somebody has it open for writing.
    pub in_use: bool,
    /// Is told how far its check is.
    pub watch: &'a Watch,
    pub media: &'a Arc<dyn Media>,
    pub dir: &'a Path,
    pub catalog: &'a Catalog,
    /// None in a store that has none, and while another process may be changing them.
    pub generations: Option<&'a Arc<Generations>>,
}

/// A store whose catalog and segments were read.
pub(crate) struct Opening<'a> {
    pub settings: &'a Settings,
    pub found: storage::Found,
    /// Something tracks changes, and must see each declaration.
    pub tracked: bool,
}

impl Opening<'_> {
    pub fn dir(&self) -> &Path {
        &self.found.dir
    }

    pub fn media(&self) -> &dyn Media {
        &*self.settings.media
    }

    pub fn write(&self) -> bool {
        !self.settings.read_only
    }

    /// How its segments are opened.
    pub fn opener(&self) -> Opener<'_> {
        let (media, descriptors) = (&self.settings.media, &self.found.descriptors);
        let generations = self.found.generations.as_ref();
        Opener { media, descriptors, dir: self.dir(), write: self.write(), claim: true, generations }
    }

    /// Refuses a file that says whether the store was closed, and is older than others; salvage notes it. `name`
    /// names it as what is wrong.
    pub fn check_keeper(
        &mut self,
        said: Said,
        name: impl FnOnce(Defect) -> OpenError,
    ) -> Result<(), OpenError> {
        let Some(generations) = &self.found.generations else { return Ok(()) };
        match generations.check_keeper(said, name) {
            Err(error) if self.settings.salvage => {
                self.found.damage.get_or_insert(error);
                Ok(())
            }
            other => other,
        }
    }

    /// Refuses to write to a store whose files are not those that were in use, unless that is meant; whether it
    /// is.
    pub fn copied_from(&self, medium: &dyn Medium, recorded: [U64; 2]) -> Result<bool, OpenError> {
        let copied = is_another(medium, recorded) && self.write();
        if copied && unless("copies-not-noticed", !self.settings.copied) {
            return Err(OpenError::Copied { path: self.dir().to_owned() });
        }
        Ok(copied)
    }

    /// Whether its files are not those that were in use, to be written to or not.
    pub fn is_copy(&self, medium: &dyn Medium, recorded: [U64; 2]) -> bool {
        is_another(medium, recorded)
    }
}

impl Closed<'_> {
    /// What can be seen of whether the memory of these files survived.
    pub fn see(&self, files: &[Look]) -> Result<Seen, OpenError> {
        self.settings.see(&**self.media, self.dir, files)
    }

    /// As [`Opening::check_keeper`].
    pub fn check_keeper(&self, said: Said, name: impl FnOnce(Defect) -> OpenError) -> Result<(), OpenError> {
        self.generations.map_or(Ok(()), |generations| generations.check_keeper(said, name))
    }

    /// Says of a store that was in use that its files are not those of then; whether it says so.
    pub fn report_copy(&self, medium: &dyn Medium, recorded: [U64; 2], report: &mut Report) -> bool {
        if !is_another(medium, recorded) {
            return false;
        }
        let text = OpenError::Copied { path: self.dir.to_owned() }.to_string();
        match self.settings.copied {
            true => report.notes.push(text),
            false => report.problem(self.dir, 0, text),
        }
        true
    }
}

/// Whether the file that says whether a store was closed is not the one that was in use.
fn is_another(medium: &dyn Medium, recorded: [U64; 2]) -> bool {
    let recorded = recorded.map(U64::get);
    recorded != [0; 2] && medium.place().is_some_and(|place| place != recorded)
}

/// A store that was recovered.
pub(crate) struct Opened {
    pub storage: Arc<Storage>,
    pub sets: Arc<Sets>,
    pub policy: Box<dyn Recovery>,
    /// What is missing, in a store opened for salvage.
    pub damage: Option<OpenError>,
    /// What else there is to say of the opening.
    pub report: OpenReport,
}
