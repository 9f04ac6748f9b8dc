//! A window that goes along a stretch of a log, record by record: no log is in memory whole.

use crate::format::{LOG_DATA, Lsn};
use crate::media_error::MediaError;
use crate::record::{Decoded, Record, decode};
use crate::ring::{STEP, read_ring};
use caliburn_os::map::Buffer;
use caliburn_os::medium::Medium;
use caliburn_os::overflow;
use caliburn_os::page_size;
use std::io;
use std::os::fd::AsFd;

/// Bytes beyond which a record is not copied into memory.
const LARGE: u64 = if cfg!(any(test, caliburn_sim)) { 4 << 10 } else { 16 << 20 };

/// A window that goes along a stretch of a log.
pub(crate) struct Window<'m> {
    medium: &'m dyn Medium,
    capacity: u64,
    from: Lsn,
    /// Bytes of the stretch.
    room: u64,
    /// Where the next record is in it.
    at: u64,
    /// How much of it was read.
    read: u64,
    /// The last of what was read.
    bytes: Vec<u8>,
}

impl<'m> Window<'m> {
    pub fn new(medium: &'m dyn Medium, capacity: u64, from: Lsn, room: u64) -> Window<'m> {
        Window { medium, capacity, from, room, at: 0, read: 0, bytes: Vec::new() }
    }

    /// Where the next record is.
    pub fn position(&self) -> Lsn {
        Lsn(self.from.0 + self.at)
    }

    /// Goes back: what is there was changed.
    pub fn back_to(&mut self, at: Lsn) {
        self.at = at.0 - self.from.0;
        self.read = self.at;
        self.bytes.clear();
    }

    /// Goes past the next record, if there is a valid one that ends before `most`; what must be read for that is, in
    /// steps. Its incarnation, and how far it says that the log was forced.
    pub fn next(
        &mut self,
        incarnation: u32,
        most: u64,
        step: u64,
        each: &mut dyn FnMut(&Record<'_>),
    ) -> Result<Option<(u32, Lsn)>, MediaError> {
        while self.at < most {
            let unseen = &self.bytes[self.bytes.len() - (self.read - self.at) as usize..];
            match decode(unseen, self.position(), incarnation, most - self.at) {
                Decoded::Longer(needed) if needed > LARGE && self.at + needed <= self.room => {
                    let (bytes, intact) = self.read_long(needed)?;
                    let decoded = decode(&bytes, self.position(), incarnation, most - self.at);
                    let Decoded::Valid(record) = decoded else { break };
                    intact()?;
                    each(&record);
                    let told = (record.incarnation, record.forced);
                    self.back_to(record.next());
                    intact()?;
                    return Ok(Some(told));
                }
                Decoded::Valid(record) => {
                    each(&record);
                    let told = (record.incarnation, record.forced);
                    self.at += record.len();
                    return Ok(Some(told));
                }
                Decoded::Longer(needed) if self.read < self.room && self.at + needed <= self.room => {
                    self.fill(needed, step.min(most - self.at))?;
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Reads a long record to memory that lies in a file: there may be less of it than the record takes. And what
    /// says whether it is there still.
    fn read_long(
        &self,
        needed: u64,
    ) -> Result<(Buffer, impl Fn() -> Result<(), MediaError> + use<'m>), MediaError> {
        let medium = self.medium;
        let from = self.position().0;
        let fail =
            |action, error| MediaError::new(action, self.medium, LOG_DATA + from % self.capacity, error);
        if !self.medium.may_hold(needed) {
            let text = format!("a record of {needed} bytes, nearly all of them holes");
            return Err(fail("read the log", io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let get = |error| fail("get memory for a record of", error);
        let file = medium.scratch(needed.next_multiple_of(page_size() as u64)).map_err(get)?;
        let mut buffer = Buffer::in_file(file.as_fd(), needed as usize).map_err(get)?;
        for (at, part) in (from..).step_by(STEP as usize).zip(buffer.chunks_mut(STEP as usize)) {
            read_ring(self.medium, self.capacity, Lsn(at), part)?;
        }
        let offset = LOG_DATA + from % self.capacity;
        let intact = move || {
            let lost =
                |error| MediaError::new("keep memory in a file for a record of", medium, offset, error);
            overflow::intact(file.as_fd()).map_err(lost)
        };
        Ok((buffer, intact))
    }

    /// Reads on until `needed` bytes are unseen, `step` at a time if there are so many.
    fn fill(&mut self, needed: u64, step: u64) -> Result<(), MediaError> {
        let unseen = self.read - self.at;
        self.bytes.drain(..self.bytes.len() - unseen as usize);
        let more = step.max(needed - unseen).min(self.room - self.read);
        let no_memory = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let reserved = self.bytes.try_reserve_exact(more as usize).map_err(no_memory);
        reserved.map_err(|e| MediaError::new("get memory for a record of", self.medium, 0, e))?;
        self.bytes.resize((unseen + more) as usize, 0);
        let target = &mut self.bytes[unseen as usize..];
        read_ring(self.medium, self.capacity, Lsn(self.from.0 + self.read), target)?;
        self.read += more;
        Ok(())
    }
}
