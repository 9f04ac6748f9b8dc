//! Dumps of a store while it is used, its log archived, and stores made again from both (Camelot, sections 3.2 and
//! 4.3).
//!
//! ```text
//!   store --dump----> a stream: segments, and the log while they were read --.
//!     |                                                                      +--restore--> another store,
//!     '--archiver---> parts of the log, one behind the other ----------------'             as of any commit
//! ```
//!
//! Both read the store's files from outside, in the process that has it open or in another one: nothing is asked
//! of those who commit. Only what is to be archived is kept in the log until it was ([`hold`]).

pub(crate) mod archive;
pub(super) mod dump;
pub(crate) mod hold;
mod left;
mod live;
pub(crate) mod marks;
mod mend;
pub(crate) mod past;
pub(super) mod restore;

use crate::policy::backup::BackupError;
use caliburn_os::host::Lock;
use caliburn_os::medium::Media;
use std::io;
use std::path::Path;

/// Locks a file that is there for that, made if it is not there.
fn lock(media: &dyn Media, path: &Path) -> io::Result<Option<Lock>> {
    let file = match media.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => media.open(path, true),
        other => other,
    };
    file?.claim(false)
}
