//! fjall: a batch per transaction, persisted to the operating system's buffers (Process) or by fdatasync (Power).

use crate::records::{Database, Session};
use caliburn_bench::target::Failure;
use fjall::{KeyspaceCreateOptions, OwnedWriteBatch as WriteBatch, PersistMode};
use std::path::Path;

struct Opened {
    database: fjall::Database,
    records: fjall::Keyspace,
    durability: PersistMode,
}

/// A database in a directory.
pub fn open(dir: &Path, forced: bool, bytes: usize) -> Result<Box<dyn Database>, Failure> {
    let database = fjall::Database::builder(dir).cache_size(bytes as u64 * 2 + (64 << 20)).open()?;
    let records = database.keyspace("records", KeyspaceCreateOptions::default)?;
    let durability = if forced { PersistMode::SyncData } else { PersistMode::Buffer };
    Ok(Box::new(Opened { database, records, durability }))
}

impl Database for Opened {
    fn session(&self) -> Box<dyn Session + Send + '_> {
        Box::new(Own { opened: self, batch: self.database.batch() })
    }
}

struct Own<'d> {
    opened: &'d Opened,
    batch: WriteBatch,
}

impl Session for Own<'_> {
    fn begin(&mut self) -> Result<(), Failure> {
        self.batch = self.opened.database.batch().durability(Some(self.opened.durability));
        Ok(())
    }

    fn get(&mut self, key: u64, value: &mut [u8]) -> Result<bool, Failure> {
        let found = self.opened.records.get(key.to_be_bytes())?;
        found.iter().for_each(|found| value.copy_from_slice(found));
        Ok(found.is_some())
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Failure> {
        self.batch.insert(&self.opened.records, key.to_be_bytes(), value);
        Ok(())
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        self.batch.remove(&self.opened.records, key.to_be_bytes());
        Ok(())
    }

    fn scan(&mut self, from: u64, count: u64, value: &mut [u8]) -> Result<u64, Failure> {
        let mut records = 0;
        for found in self.opened.records.range(from.to_be_bytes()..).take(count as usize) {
            value.copy_from_slice(&found.value()?);
            records += 1;
        }
        Ok(records)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let batch = std::mem::replace(&mut self.batch, self.opened.database.batch());
        if !batch.is_empty() {
            batch.commit()?;
        }
        Ok(())
    }
}
