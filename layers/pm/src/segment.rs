//! A plain segment, attached: bytes, copied or mapped.

use crate::attached::Attached;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// A plain segment, attached. Given up when dropped.
#[derive(Debug)]
pub struct Segment {
    memory: Memory,
    len: u64,
    /// Given up after the memory.
    attached: Attached,
}

impl Segment {
    pub(crate) fn new(attached: Attached, memory: Memory, len: u64) -> Segment {
        Segment { memory, len, attached }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where it is mapped. Attached to be read, it must not be stored to; stores to it last when
    /// [`Segment::written`] and [`Segment::flush`] were called.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.base()
    }

    fn check(&self, at: u64, len: usize) -> Result<usize> {
        match at.checked_add(len as u64).filter(|end| *end <= self.len) {
            Some(_) => Ok(at as usize),
            None => Err(Error::Range {
                what: "bytes",
                name: self.attached.name.clone(),
                start: at,
                end: at.saturating_add(len as u64),
                len: self.len,
            }),
        }
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        let at = self.check(at, buffer.len())?;
        self.memory.read(at, buffer);
        Ok(())
    }

    /// Copies bytes in. What was there may be seen in part if the process dies meanwhile, or others read.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.check_write()?;
        let at = self.check(at, bytes.len())?;
        self.memory.write(at, bytes);
        self.memory.fence();
        Ok(())
    }

    /// Says that the program itself has stored bytes where the segment is mapped.
    pub fn written(&self, at: u64, len: usize) -> Result<()> {
        self.check_write()?;
        let at = self.check(at, len)?;
        self.memory.stored(at, len);
        self.memory.fence();
        Ok(())
    }

    /// Makes what was written last as long as the medium does.
    pub fn flush(&self) -> Result<()> {
        self.check_write()?;
        self.memory.force()
    }

    fn check_write(&self) -> Result<()> {
        match self.attached.write {
            true => self.memory.sound(),
            false => Err(Error::ReadOnly(format!("segment {:?}", self.attached.name))),
        }
    }
}
