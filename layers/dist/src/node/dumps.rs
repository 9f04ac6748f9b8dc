//! Dumps of a node's store, as files.

use crate::node::error::NodeError;
use caliburn_engine::{DumpOptions, Dumped, Store};
use caliburn_os::descriptors::{above, open_to_read};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes one to a directory: it has its name, which says where in the log it ends, when it is whole and durable.
/// Until then it is called `making`.
pub(super) fn write(
    store: &Store,
    dir: &Path,
    making: &str,
    name: impl Fn(u64) -> String,
) -> Result<(Dumped, PathBuf), NodeError> {
    let making = dir.join(making);
    let done = fs::create_dir_all(dir).map_err(NodeError::io("make", dir)).and_then(|()| to(store, &making));
    let named = done.and_then(|dumped| {
        let made = dir.join(name(dumped.lsn));
        fs::rename(&making, &made).map_err(NodeError::io("name", &made))?;
        open_to_read(dir).and_then(|dir| dir.sync_all()).map_err(NodeError::io("force", dir))?;
        Ok((dumped, made))
    });
    if named.is_err() {
        _ = fs::remove_file(&making);
    }
    named
}

fn to(store: &Store, making: &Path) -> Result<Dumped, NodeError> {
    let mut file = BufWriter::new(above(|| File::create(making)).map_err(NodeError::io("make", making))?);
    let dumped = store.dump(&DumpOptions::new(), &mut file);
    let dumped = dumped.map_err(|error| NodeError::Backup(making.to_owned(), Box::new(error)))?;
    file.flush().map_err(NodeError::io("write", making))?;
    file.get_ref().sync_all().map_err(NodeError::io("force", making))?;
    Ok(dumped)
}
