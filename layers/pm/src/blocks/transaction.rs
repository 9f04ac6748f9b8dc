//! Several blocks, written wholly or not at all.

use super::entry::Entry;
use super::lane::Listed;
use super::{Blocks, Stored, Target, entry_of};
use crate::error::{Error, Result};
use caliburn_os::simulated::unless;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Writes of several blocks that happen together, or not at all. Dropped, it does nothing.
#[derive(Debug)]
#[must_use = "nothing is written before it commits"]
pub struct Transaction<'b> {
    blocks: &'b Blocks,
    writes: BTreeMap<u64, &'b [u8]>,
}

impl Blocks {
    /// Begins a transaction. It sees nothing, and locks nothing, until it commits.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction { blocks: self, writes: BTreeMap::new() }
    }

    /// Writes blocks, all of them wholly or none.
    pub fn write_at_once(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let mut writes = BTreeMap::new();
        for (block, part) in self.range(block, bytes.len())?.zip(bytes.chunks(self.geometry.block_bytes)) {
            writes.insert(block, part);
        }
        self.commit(&writes)
    }

    pub(super) fn commit(&self, writes: &BTreeMap<u64, &[u8]>) -> Result<()> {
        self.check_write()?;
        if writes.len() > self.geometry.writes() {
            let why = format!("at most {} are written at once", self.geometry.writes());
            return Err(Error::invalid("blocks", writes.len(), why));
        }
        match writes.first_key_value() {
            None => return Ok(()),
            Some((block, bytes)) if writes.len() == 1 => {
                self.write_one(*block, Some(bytes))?;
                return if self.epoch.is_some() { self.flush() } else { Ok(()) };
            }
            Some(_) => {}
        }
        let Some(epoch) = &self.epoch else {
            self.write_several(writes);
            return Ok(());
        };
        let _gate = epoch.gate.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Of these blocks, too, what was written before must last, if this does not.
        self.force(epoch)?;
        self.write_several(writes);
        self.force(epoch)
    }

    fn write_several(&self, writes: &BTreeMap<u64, &[u8]>) {
        writes.keys().for_each(|block| self.head.soon(self.geometry.entries(*block)));
        let _locks = self.locks.write(writes.keys().copied());
        let targets: Vec<Target> = writes.keys().map(|block| self.target(*block)).collect();
        targets.iter().for_each(|target| self.settle_others(target));
        let mending = self.mending(&targets);
        self.leave(-(targets.len() as i64));
        let gathering = self.gathering.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (number, mut lane) = self.take_lane();
        let places: Vec<u32> = writes.iter().map(|_| self.take_place(number, &mut lane)).collect();
        drop(gathering);
        // First what takes longest.
        let stored: Vec<Stored> =
            places.iter().zip(writes.values()).map(|(place, bytes)| self.store(*place, bytes)).collect();
        lane.number += 1;
        let of = (number, lane.number);
        let entries: Vec<Entry> =
            targets.iter().zip(stored).map(|(target, stored)| entry_of(target, stored, of, true)).collect();
        let listed: Vec<Listed> =
            targets.iter().map(|target| Listed { block: target.block, version: target.version }).collect();
        let words = self.lane_words(number);
        if unless("several-not-listed", true) {
            words.list((lane.several % 2) as usize, lane.number, &listed);
        }
        lane.several += 1;
        self.begin(number, &lane);
        for (target, entry) in targets.iter().zip(&entries) {
            self.store_entry(target, entry);
        }
        self.head.fence();
        self.end(number, &lane);
        targets.iter().for_each(|target| self.note_written(target, &mut lane));
        lane.writes += targets.len() as u64;
        self.counts.transactions.fetch_add(1, Ordering::Relaxed);
        drop(lane);
        self.mended(mending, &targets);
    }
}

impl<'b> Transaction<'b> {
    /// Adds the write of a block; of two writes of a block the later one counts.
    pub fn write(&mut self, block: u64, bytes: &'b [u8]) -> Result<()> {
        let len = self.blocks.block_bytes();
        if bytes.len() != len {
            return Err(Error::invalid("a length of", bytes.len(), format!("a block has {len} bytes")));
        }
        self.blocks.check(block..block.saturating_add(1))?;
        self.writes.insert(block, bytes);
        Ok(())
    }

    /// Writes the blocks. When it returns they last as long as the medium does.
    pub fn commit(self) -> Result<()> {
        self.blocks.commit(&self.writes)
    }
}
