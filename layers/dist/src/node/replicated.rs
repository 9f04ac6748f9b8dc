//! A node whose log other machines have too: begun, taken over from a machine that is gone, dumped.
//!
//! ```text
//!   1 whose log is it?         another store's: that one has taken over, or is gone and is to be taken over
//!   2 a life of the node       from now on no other one writes to the log
//!   3 taken over: the newest dump, and the log from there on, make the store here
//!   4 a dump of this store     made when its log was begun, durable
//!   5 it is this store's log   before the node answers anybody; what is older is deleted
//! ```
//!
//! A crash before 5 leaves the former store's log whole, and what was made here is made again.

use crate::commit::word::{Incarnation, Node as NodeId};
use crate::keep::etcd::Etcd;
use crate::keep::log::{NodeLog, each_part, head_of_store, store_of};
use crate::node::dumps;
use crate::node::error::NodeError;
use caliburn_engine::{Info, OpenError, Options, RestoreOptions, Store};
use caliburn_os::descriptors::{self, open_to_read};
use caliburn_os::simulated::planted;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How the names of dumps end, and of one that is being made.
const DUMP: &str = ".dump";
const MAKING: &str = ".making";

/// How a node's log is replicated.
#[derive(Debug, Clone)]
pub(crate) struct Replicated {
    /// Where dumps go, which the machine that takes over can read.
    pub dumps: PathBuf,
    /// Whether a node whose store is not here, or was replaced, is made again.
    pub take_over: bool,
    /// A dump is made when etcd holds so many bytes of the log.
    pub every: u64,
}

/// A directory, and how the names of a node's dumps there begin: others may use it.
#[derive(Debug, Clone)]
struct Dumps {
    dir: PathBuf,
    prefix: String,
}

impl Dumps {
    /// Files of dumps of a store that were made, or begun, in the order of where they end.
    fn of(&self, store: &str) -> Result<Vec<PathBuf>, NodeError> {
        let (prefix, fail) = (format!("{}{store}", self.prefix), || NodeError::io("list", &self.dir));
        let mut found = Vec::new();
        for entry in descriptors::list(&self.dir).map_err(fail())? {
            let path = entry.map_err(fail())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&prefix) && (name.ends_with(DUMP) || name.ends_with(MAKING)) {
                found.push(path);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The newest dump of a store.
    fn newest(&self, node: NodeId, store: &str) -> Result<PathBuf, NodeError> {
        let whole = |path: &PathBuf| path.to_string_lossy().ends_with(DUMP);
        self.of(store)?.into_iter().rfind(whole).ok_or_else(|| NodeError::NoDump {
            node: node.0,
            store: store.to_owned(),
            dumps: self.dir.clone(),
        })
    }
}

/// A path beside another one.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// A node's log, and where its dumps are.
#[derive(Debug, Clone)]
pub(crate) struct Copies {
    pub log: Arc<NodeLog>,
    node: NodeId,
    /// Whose log it was in the beginning.
    named: Option<String>,
    dumps: Dumps,
    every: u64,
    /// Held by who makes a dump.
    making: Arc<Mutex<()>>,
}

/// The store that is here, if there is one.
fn store_here(path: &Path, options: &Options) -> Result<Option<Info>, NodeError> {
    match options.info(path) {
        Ok(info) => Ok(Some(info)),
        Err(OpenError::NotAStore { .. }) => Ok(None),
        Err(error) => Err(NodeError::Open(path.to_owned(), error)),
    }
}

impl Copies {
    /// Steps 1 to 3. The life that began.
    pub async fn begin(
        (etcd, node): (&Etcd, NodeId),
        how: &Replicated,
        (path, options): (&Path, &Options),
    ) -> Result<(Copies, Incarnation), NodeError> {
        // 1
        let (named, here) = (store_of(etcd, node).await?, store_here(path, options)?);
        let goes_on = named.is_none() || named == here.as_ref().map(|here| here.id.clone());
        let dumps = Dumps { dir: how.dumps.clone(), prefix: format!("{}-{}-", etcd.cluster(), node.0) };
        if let Some(named) = named.as_ref().filter(|_| !goes_on) {
            if !how.take_over {
                return Err(NodeError::Replaced {
                    node: node.0,
                    path: path.to_owned(),
                    named: named.clone(),
                });
            }
            // Before the one that may run well is fenced.
            dumps.newest(node, named)?;
            if let Some(holder) = here.and_then(|here| here.in_use_by) {
                let in_use = OpenError::InUse { path: path.to_owned(), holder };
                return Err(NodeError::Open(path.to_owned(), in_use));
            }
        }
        // 2
        let life = etcd.begin_life(node, Incarnation(0)).await?;
        if store_of(etcd, node).await? != named {
            return Err(NodeError::Stopped("another one has taken over the node at this moment"));
        }
        let log = Arc::new(NodeLog::new(etcd.clone(), node, life));
        let (every, making) = (how.every, Arc::default());
        let copies = Copies { log, node, named, dumps, every, making };
        // 3
        if let Some(named) = copies.named.as_ref().filter(|_| !goes_on) {
            copies.take_over(etcd, named, path, options).await?;
        }
        Ok((copies, life))
    }

    /// Whether so much of the log has come since the last dump that it is time for another one.
    pub fn is_due(&self) -> bool {
        self.log.bytes() > self.every
    }

    /// Makes the store here of the newest dump and the log. What was here and was replaced is put aside.
    async fn take_over(
        &self,
        etcd: &Etcd,
        named: &str,
        path: &Path,
        options: &Options,
    ) -> Result<(), NodeError> {
        let dump = self.dumps.newest(self.node, named)?;
        if let Some(here) = store_here(path, options)? {
            let ending = format!(".{}.replaced", here.id);
            let logs = here.log.into_iter().flat_map(|log| [Some(log.path), log.second]).flatten();
            let logs: Vec<PathBuf> = logs.filter(|log| log.is_absolute() && !log.starts_with(path)).collect();
            // The logs last: a store without its log would be taken for a damaged one by who tries again.
            for was in [path].into_iter().chain(logs.iter().map(|log| &**log).filter(|log| log.exists())) {
                let aside = beside(was, &ending);
                fs::rename(was, &aside).map_err(NodeError::io("put aside", was))?;
                tracing::warn!(aside = %aside.display(), "node {}: what was replaced is put aside", self.node.0);
            }
        }
        let parts = beside(path, &format!(".{named}.parts"));
        descriptors::occupy();
        _ = fs::remove_dir_all(&parts);
        fs::create_dir_all(&parts).map_err(NodeError::io("make", &parts))?;
        let fetched =
            each_part(etcd, self.node, named, |name, bytes| descriptors::write(parts.join(name), bytes))
                .await?;
        fetched.map_err(NodeError::io("write", &parts))?;
        let (options, to, archive) = (options.clone(), path.to_owned(), parts.clone());
        let restoring = tokio::task::spawn_blocking(move || {
            let mut source = io::BufReader::new(open_to_read(&dump).map_err(NodeError::io("open", &dump))?);
            let mut how = RestoreOptions::new();
            how.archive(&archive);
            options.restore(&mut source, &how, &to).map_err(|error| NodeError::Backup(to, Box::new(error)))
        });
        let restored = restoring.await.map_err(|_| NodeError::Stopped("the store could not be made"))??;
        descriptors::occupy();
        _ = fs::remove_dir_all(&parts);
        let end = head_of_store(etcd, self.node, named).await?;
        if !planted("end-of-log-not-compared") && restored.lsn < end {
            return Err(NodeError::Log(format!(
                "node {}: etcd has its log up to LSN {end}, and of that only what stands before {} can be read: commits are missing. What could be read is at {}; nothing was deleted",
                self.node.0,
                restored.lsn,
                path.display()
            )));
        }
        tracing::info!(
            lsn = restored.lsn,
            undecided = restored.undecided,
            "node {} was taken over",
            self.node.0
        );
        Ok(())
    }

    /// Steps 4 and 5, or the same later: makes a dump, durably, and lets go what it has of the log.
    pub fn dump(&self, store: &Store) -> Result<(), NodeError> {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let (dir, prefix, id) = (&self.dumps.dir, &self.dumps.prefix, self.log.store());
        let name = |lsn| format!("{prefix}{id}-{lsn:020}{DUMP}");
        let (dumped, made) = dumps::write(store, dir, &format!("{prefix}{id}{MAKING}"), name)?;
        self.log.settle(dumped.lsn).map_err(|error| NodeError::Log(error.to_string()))?;
        // Of this store, and the one that it has succeeded. Whoever has taken over meanwhile has another one.
        let former = self.named.iter().filter(|named| **named != id);
        for store in former.chain([&id]) {
            for older in self.dumps.of(store)?.into_iter().filter(|path| *path != made) {
                match fs::remove_file(&older) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(NodeError::io("remove", &older)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Steps 4 and 5, if the log is not this store's yet, or its dumps are gone.
    pub fn settle(&self, store: &Store) -> Result<(), NodeError> {
        let own = self.log.store();
        let settled = self.named.as_ref() == Some(&own) && self.dumps.newest(self.node, &own).is_ok();
        if settled || planted("log-not-settled") { Ok(()) } else { self.dump(store) }
    }
}
