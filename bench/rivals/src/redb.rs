//! redb. It has no commit that survives only the process: `Durability::None`, which survives nothing until the
//! next durable commit, stands for the Process class; `Immediate` for Power.

use crate::records::{Database, Session};
use caliburn_bench::target::Failure;
use redb::{Builder, Durability, ReadableTable, TableDefinition, WriteTransaction};
use std::path::Path;

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");

struct Opened {
    database: redb::Database,
    durability: Durability,
}

/// A database in a directory.
pub fn open(dir: &Path, forced: bool, bytes: usize) -> Result<Box<dyn Database>, Failure> {
    let database = Builder::new().set_cache_size(bytes * 3 + (64 << 20)).create(dir.join("records.redb"))?;
    let durability = if forced { Durability::Immediate } else { Durability::None };
    let tx = database.begin_write()?;
    tx.open_table(RECORDS)?;
    tx.commit()?;
    Ok(Box::new(Opened { database, durability }))
}

impl Database for Opened {
    fn session(&self) -> Box<dyn Session + Send + '_> {
        Box::new(Own { opened: self, tx: None, changed: false })
    }
}

struct Own<'d> {
    opened: &'d Opened,
    tx: Option<WriteTransaction>,
    changed: bool,
}

impl Own<'_> {
    fn tx(&self) -> &WriteTransaction {
        self.tx.as_ref().expect("begun")
    }
}

impl Session for Own<'_> {
    fn begin(&mut self) -> Result<(), Failure> {
        let mut tx = self.opened.database.begin_write()?;
        tx.set_durability(self.opened.durability)?;
        (self.tx, self.changed) = (Some(tx), false);
        Ok(())
    }

    fn get(&mut self, key: u64, value: &mut [u8]) -> Result<bool, Failure> {
        let table = self.tx().open_table(RECORDS)?;
        let found = table.get(key)?;
        found.iter().for_each(|found| value.copy_from_slice(found.value()));
        Ok(found.is_some())
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Failure> {
        self.tx().open_table(RECORDS)?.insert(key, value)?;
        self.changed = true;
        Ok(())
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        self.tx().open_table(RECORDS)?.remove(key)?;
        self.changed = true;
        Ok(())
    }

    fn scan(&mut self, from: u64, count: u64, value: &mut [u8]) -> Result<u64, Failure> {
        let (table, mut records) = (self.tx().open_table(RECORDS)?, 0);
        for found in table.range(from..)?.take(count as usize) {
            value.copy_from_slice(found?.1.value());
            records += 1;
        }
        Ok(records)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let tx = self.tx.take().expect("begun");
        if self.changed {
            tx.commit()?;
        } else {
            tx.abort()?;
        }
        Ok(())
    }
}
