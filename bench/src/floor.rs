//! Floors: the least that any system with the same promise must do, written by hand.

use crate::target::{Declare, Failure, Target};
use caliburn_os::persist::Flush;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file mapped shared: its stores survive the process.
pub struct Mapped {
    base: *mut u8,
    len: usize,
}

// SAFETY: whoever has it has all of the mapping.
unsafe impl Send for Mapped {}

impl Mapped {
    /// A new file of so many bytes, all of them present.
    pub fn new(path: &Path, len: usize) -> Result<Mapped, Failure> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len as u64)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the system's choice.
        let base =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)? };
        Ok(Mapped { base: base.cast(), len })
    }

    /// All of a file that is there.
    pub fn of(file: &File) -> Result<Mapped, Failure> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let len = file.metadata()?.len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let base = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
        Ok(Mapped { base: base.cast(), len })
    }

    /// Its first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// Plain stores to mapped memory: no transaction at all.
pub struct Plain(pub Mapped);

impl Target for Plain {
    const NAME: &'static str = "plain stores";
    const POLICY: &'static str = "none";

    type Tx<'a> = &'a Mapped;

    #[inline]
    fn transaction(&mut self, change: impl FnOnce(&mut &Mapped)) {
        change(&mut &self.0);
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= self.0.len);
        // SAFETY: in bounds, and no other thread uses the mapping.
        unsafe { ptr::copy_nonoverlapping(self.0.base.add(offset), target.as_mut_ptr(), target.len()) };
    }
}

impl Declare for &Mapped {
    #[inline]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len);
        // SAFETY: in bounds, as just asserted.
        unsafe { self.base.add(offset) }
    }
}

/// A hand-written undo log in mapped memory: old values are appended to the log before the store, and
/// one store empties the log at commit. What Vista does, with nothing around it.
pub struct HandWritten {
    data: Mapped,
    log: Mapped,
}

impl HandWritten {
    /// With its data and its log.
    pub fn new(data: Mapped, log: Mapped) -> HandWritten {
        HandWritten { data, log }
    }
}

impl HandWritten {
    fn used(&self) -> &AtomicU64 {
        // SAFETY: the mapping begins with the count of log bytes in use, aligned.
        unsafe { &*self.log.base.cast::<AtomicU64>() }
    }
}

/// Its transaction.
pub struct UndoTx<'a> {
    undo: &'a HandWritten,
    at: usize,
}

impl Declare for UndoTx<'_> {
    #[inline]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        let HandWritten { data, log } = self.undo;
        assert!(offset + len <= data.len && self.at + 16 + len <= log.len);
        // SAFETY: both ranges are in bounds, as just asserted.
        unsafe {
            log.base.add(self.at).cast::<[usize; 2]>().write_unaligned([offset, len]);
            ptr::copy_nonoverlapping(data.base.add(offset), log.base.add(self.at + 16), len);
            self.at += (16 + len).next_multiple_of(8);
            // The old value is in the log before the program's store comes.
            self.undo.used().store(self.at as u64, Ordering::Release);
            data.base.add(offset)
        }
    }
}

impl Target for HandWritten {
    const NAME: &'static str = "hand-written undo log";
    const POLICY: &'static str = "undo";

    type Tx<'a> = UndoTx<'a>;

    #[inline]
    fn transaction(&mut self, change: impl FnOnce(&mut UndoTx<'_>)) {
        let mut tx = UndoTx { undo: self, at: 8 };
        change(&mut tx);
        self.used().store(8, Ordering::Release);
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= self.data.len);
        // SAFETY: in bounds, and no other thread uses the mapping.
        unsafe { ptr::copy_nonoverlapping(self.data.base.add(offset), target.as_mut_ptr(), target.len()) };
    }
}

/// [`HandWritten`] for persistent memory: each range is checksummed and fenced before the store, what was
/// changed before the commit, and the commit before it returns.
pub struct WrittenBack {
    data: Mapped,
    log: Mapped,
    changed: Vec<(usize, usize)>,
    flush: Flush,
    turn: u64,
}

impl WrittenBack {
    /// With its data and its log.
    pub fn new(data: Mapped, log: Mapped) -> WrittenBack {
        WrittenBack { data, log, changed: Vec::new(), flush: Flush::of_this_processor(), turn: 0 }
    }
}

/// Its transaction.
pub struct WrittenBackTx<'a> {
    undo: &'a mut WrittenBack,
    at: usize,
}

impl Declare for WrittenBackTx<'_> {
    #[inline]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        let WrittenBack { data, log, changed, flush, turn } = &mut *self.undo;
        let total = (16 + len).next_multiple_of(8);
        assert!(offset + len <= data.len && self.at + total + 8 <= log.len);
        // SAFETY: both ranges are in bounds, as just asserted.
        unsafe {
            let at = log.base.add(self.at);
            at.cast::<[usize; 2]>().write_unaligned([offset, len]);
            ptr::copy_nonoverlapping(data.base.add(offset), at.add(16), len);
            let sum = crc32c::crc32c_append(*turn as u32, std::slice::from_raw_parts(at, 16 + len));
            at.add(total).cast::<u64>().write_unaligned(*turn << 32 | u64::from(sum));
            flush.lines(at, total + 8);
            flush.fence();
            self.at += total + 8;
            changed.push((offset, len));
            data.base.add(offset)
        }
    }
}

impl Target for WrittenBack {
    const NAME: &'static str = "hand-written, fenced";
    const POLICY: &'static str = "undo";

    type Tx<'a> = WrittenBackTx<'a>;

    #[inline]
    fn transaction(&mut self, change: impl FnOnce(&mut WrittenBackTx<'_>)) {
        let mut tx = WrittenBackTx { undo: self, at: 8 };
        change(&mut tx);
        self.turn += 1;
        // SAFETY: what was declared is in bounds; the log begins with the number of the transaction, aligned.
        unsafe {
            for (offset, len) in self.changed.drain(..) {
                self.flush.lines(self.data.base.add(offset), len);
            }
            self.flush.fence();
            (*self.log.base.cast::<AtomicU64>()).store(self.turn, Ordering::Release);
            self.flush.lines(self.log.base, 8);
        }
        self.flush.fence();
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= self.data.len);
        // SAFETY: in bounds, and no other thread uses the mapping.
        unsafe { ptr::copy_nonoverlapping(self.data.base.add(offset), target.as_mut_ptr(), target.len()) };
    }
}

/// A hand-written redo log: plain memory, and one `pwrite` per transaction of what it changed, which is forced
/// or not. What many a server does.
pub struct WriteAhead {
    data: Mapped,
    log: File,
    record: Vec<u8>,
    changed: Vec<(usize, usize)>,
    at: u64,
    forced: bool,
}

impl WriteAhead {
    /// Bytes of the log, which wraps.
    const LOG: u64 = 256 << 20;

    /// With its data and a new log.
    pub fn new(data: Mapped, log: &Path, forced: bool) -> Result<WriteAhead, Failure> {
        let log = OpenOptions::new().write(true).create(true).truncate(true).open(log)?;
        // Written once, so that forcing writes no more than the bytes.
        (0..WriteAhead::LOG >> 20).try_for_each(|mb| log.write_all_at(&[0; 1 << 20], mb << 20))?;
        log.sync_all()?;
        Ok(WriteAhead { data, log, record: Vec::new(), changed: Vec::new(), at: 0, forced })
    }
}

/// Its transaction.
pub struct WriteAheadTx<'a>(&'a mut WriteAhead);

impl Declare for WriteAheadTx<'_> {
    #[inline]
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.0.data.len);
        self.0.changed.push((offset, len));
        // SAFETY: in bounds, as just asserted.
        unsafe { self.0.data.base.add(offset) }
    }
}

impl Target for WriteAhead {
    const NAME: &'static str = "memory + pwrite";
    const POLICY: &'static str = "redo";

    type Tx<'a> = WriteAheadTx<'a>;

    fn transaction(&mut self, change: impl FnOnce(&mut WriteAheadTx<'_>)) {
        change(&mut WriteAheadTx(self));
        self.record.clear();
        for (offset, len) in self.changed.drain(..) {
            self.record.extend([offset as u64, len as u64].map(u64::to_le_bytes).as_flattened());
            // SAFETY: in bounds, as asserted when it was declared.
            self.record.extend(unsafe { std::slice::from_raw_parts(self.data.base.add(offset), len) });
        }
        let sum = crc32c::crc32c(&self.record);
        self.record.extend(sum.to_le_bytes());
        if self.at + self.record.len() as u64 > WriteAhead::LOG {
            self.at = 0;
        }
        self.log.write_all_at(&self.record, self.at).expect("the disk works");
        if self.forced {
            self.log.sync_data().expect("the disk works");
        }
        self.at += self.record.len() as u64;
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= self.data.len);
        // SAFETY: in bounds, and no other thread uses the mapping.
        unsafe { ptr::copy_nonoverlapping(self.data.base.add(offset), target.as_mut_ptr(), target.len()) };
    }
}

/// A bare forced write: one `pwrite` of a record's size into a preallocated file, one `fdatasync`.
pub struct ForcedWrite {
    file: File,
    record: Vec<u8>,
    at: u64,
    len: u64,
}

impl ForcedWrite {
    /// A new file, for records of so many bytes.
    pub fn new(path: &Path, record: usize) -> Result<ForcedWrite, Failure> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let len = 64 << 20;
        file.write_all_at(&vec![0; len], 0)?;
        file.sync_all()?;
        Ok(ForcedWrite { file, record: vec![7; record], at: 0, len: len as u64 })
    }

    /// Writes a record and forces it.
    pub fn force(&mut self) -> Result<(), Failure> {
        if self.at + self.record.len() as u64 > self.len {
            self.at = 0;
        }
        self.file.write_all_at(&self.record, self.at)?;
        self.file.sync_data()?;
        self.at += self.record.len() as u64;
        Ok(())
    }
}
