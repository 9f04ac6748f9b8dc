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
use crate::keep::log::{NodeLog, each_part, store_of};
use crate::node::error::NodeError;
use caliburn_engine::{DumpOptions, OpenError, Options, RestoreOptions, Store};
use caliburn_os::simulated::planted;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
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
    /// A dump is made when so many bytes of log have come since the last one.
    pub every: u64,
}

/// A node's log, and where its dumps are.
#[derive(Debug, Clone)]
pub(crate) struct Copies {
    pub log: Arc<NodeLog>,
    node: NodeId,
    /// Whose log it was in the beginning.
    named: Option<String>,
    dumps: PathBuf,
    every: u64,
    /// Held by who makes a dump.
    making: Arc<Mutex<()>>,
}

/// The identity of the store that is here, if there is one.
fn store_here(path: &Path) -> Result<Option<String>, NodeError> {
    match caliburn_engine::info(path) {
        Ok(info) => Ok(Some(info.id)),
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
        let (named, here) = (store_of(etcd, node).await?, store_here(path)?);
        let goes_on = named.is_none() || named == here;
        if let Some(named) = named.as_ref().filter(|_| !goes_on && !how.take_over) {
            return Err(NodeError::Replaced { node: node.0, path: path.to_owned(), named: named.clone() });
        }
        // 2
        let life = etcd.begin_life(node, Incarnation(0)).await?;
        if store_of(etcd, node).await? != named {
            return Err(NodeError::Stopped("another one has taken over the node at this moment"));
        }
        let log = Arc::new(NodeLog::new(etcd.clone(), node, life));
        let (dumps, every, making) = (how.dumps.clone(), how.every, Arc::default());
        let copies = Copies { log, node, named, dumps, every, making };
        // 3
        if let Some(named) = copies.named.as_ref().filter(|_| !goes_on) {
            copies.take_over(etcd, named, path, options).await?;
        }
        Ok((copies, life))
    }

    /// Files of the node's dumps whose names end so.
    fn files(&self, ending: &str) -> Result<Vec<(String, PathBuf)>, NodeError> {
        let (prefix, fail) = (format!("{}-", self.node.0), || NodeError::io("list", &self.dumps));
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dumps).map_err(fail())? {
            let path = entry.map_err(fail())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let rest = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(ending));
            found.extend(rest.map(|rest| (rest.to_owned(), path)));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The newest dump of a store: the names tell where they end.
    fn newest(&self, store: &str) -> Result<Option<PathBuf>, NodeError> {
        let mut dumps = self.files(DUMP)?;
        dumps.retain(|(name, _)| name.starts_with(store));
        Ok(dumps.pop().map(|(_, path)| path))
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
        let no_dump =
            || NodeError::NoDump { node: self.node.0, store: named.to_owned(), dumps: self.dumps.clone() };
        let dump = self.newest(named)?.ok_or_else(no_dump)?;
        if let Some(here) = store_here(path)? {
            let aside = path.with_extension(format!("{here}.replaced"));
            fs::rename(path, &aside).map_err(NodeError::io("put aside", path))?;
            tracing::warn!(aside = %aside.display(), "node {}: the store that was replaced is put aside", self.node.0);
        }
        let parts = path.with_extension("parts");
        _ = fs::remove_dir_all(&parts);
        fs::create_dir_all(&parts).map_err(NodeError::io("make", &parts))?;
        let fetched =
            each_part(etcd, self.node, named, |name, bytes| fs::write(parts.join(name), bytes)).await?;
        fetched.map_err(NodeError::io("write", &parts))?;
        let (options, to, archive) = (options.clone(), path.to_owned(), parts.clone());
        let restoring = tokio::task::spawn_blocking(move || {
            let mut source = io::BufReader::new(File::open(&dump).map_err(NodeError::io("open", &dump))?);
            let mut how = RestoreOptions::new();
            how.archive(&archive);
            options.restore(&mut source, &how, &to).map_err(|error| NodeError::Backup(to, Box::new(error)))
        });
        let restored = restoring.await.map_err(|_| NodeError::Stopped("the store could not be made"))??;
        _ = fs::remove_dir_all(&parts);
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
        fs::create_dir_all(&self.dumps).map_err(NodeError::io("make", &self.dumps))?;
        let id = self.log.store();
        let making = self.dumps.join(format!("{}-{id}{MAKING}", self.node.0));
        let fail = NodeError::io;
        let mut file = BufWriter::new(File::create(&making).map_err(fail("make", &making))?);
        let dumped = store.dump(&DumpOptions::new(), &mut file);
        let dumped = dumped.map_err(|error| NodeError::Backup(making.clone(), Box::new(error)))?;
        file.flush().map_err(fail("write", &making))?;
        file.get_ref().sync_all().map_err(fail("force", &making))?;
        let made = self.dumps.join(format!("{}-{id}-{:020}{DUMP}", self.node.0, dumped.lsn));
        fs::rename(&making, &made).map_err(fail("name", &made))?;
        File::open(&self.dumps).and_then(|dir| dir.sync_all()).map_err(fail("force", &self.dumps))?;
        self.log.settle(dumped.lsn).map_err(|error| NodeError::Log(error.to_string()))?;
        let others = self.files(DUMP)?.into_iter().chain(self.files(MAKING)?);
        for (_, other) in others.filter(|(_, path)| *path != made) {
            fs::remove_file(&other).map_err(fail("remove", &other))?;
        }
        Ok(())
    }

    /// Steps 4 and 5, if the log is not this store's yet.
    pub fn settle(&self, store: &Store) -> Result<(), NodeError> {
        match self.named.as_ref() == Some(&self.log.store()) || planted("log-not-settled") {
            true => Ok(()),
            false => self.dump(store),
        }
    }
}
