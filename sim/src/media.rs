//! The simulated machine: files and names in memory, behind the engine's one seam to media.
//!
//! # The faults that it may commit
//!
//! At a **power cut** ([`Disk::after_power_cut`]):
//! 1. A write or extension that was not synced survives wholly, in some of its sectors (512 or 4096 bytes; in
//!    some cuts of 8), or not at all, whatever became of earlier and later ones.
//! 2. A name that was created or removed without its directory being synced is as before, or not.
//! 3. A store to mapped memory that was not flushed and fenced survives in any of its eight-byte words.
//! 4. Everything else survives: nothing synced changes, not in a sector that is half written either, and
//!    `replace` is atomic.
//!
//! When a **process is killed** ([`Disk::after_lost_writes`]), in the same boot: some of what was written to
//! segments and not synced is lost on its way to the medium, gone from the page cache, and told of once; or all
//! of it is, because the medium was pulled and mounted again.
//!
//! At the **death of the process** ([`Disk::interrupted`]):
//! 5. Every write and every store to mapped memory that was begun is there, in program order; the last
//!    write may have come only part of the way. What was not synced can still be lost by a later power cut.
//!
//! While it **runs** ([`Fault`]):
//! 6. Any one operation, or one more after it, or all from one on, fails with an error: as on a bad medium, or a
//!    full one.
//! 7. A write that fails may have written a part; a read that fails may be short.
//! 8. A sync that fails has lost what was not durable, though programs go on seeing it; later syncs succeed.
//!
//! 9. A read sees some of its pieces as they were before what another thread writes meanwhile, and some after.
//! 10. The system says that it could not write a file without a name, in which memory lies.
//!
//! Whatever becomes of it, what it shows of its boot, clock and mounts may be what it showed before, or not, or
//! nothing ([`Sight`]); only inodes that are marked stayed in memory for certain, and such marks may go.
//!
//! On the **shelf** ([`Disk::flip`]): 11. A bit is flipped.

use crate::disk::{Act, Disk, FileId};
use crate::sight::Sight;
use caliburn::Region;
use caliburn::medium::{Media, Medium, Replaced};
use caliburn_os::host::{Boot, Id, Lock, LockError};
use caliburn_os::memory::Limits;
use caliburn_os::persist::{Memory, Survives};
use caliburn_os::simulated::Watcher;
use caliburn_os::sync::choice;
use rustix::fs::MemfdFlags;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// What of a read other threads can come between.
const PIECE: usize = 4096;

/// What goes wrong while the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The number of the operation that fails, from 0.
    pub at: u64,
    /// Whether all later ones fail too.
    pub lasting: bool,
    /// So many operations later one more fails.
    pub again: Option<u64>,
    /// The medium is full, rather than bad.
    pub full: bool,
    /// How much of a failing write or read is done, in 64ths.
    pub part: u8,
}

/// Everything that happened, in order.
#[derive(Debug, Clone)]
pub enum Entry<M> {
    /// The engine did something to the disk.
    Act(Act),
    /// The workload says how far it is.
    Mark(M),
}

/// A machine with a disk. `M` is what a workload notes in the journal.
#[derive(Debug)]
pub struct Machine<M> {
    state: Mutex<State<M>>,
    boot: Id,
    hardware: Hardware,
}

/// What a machine is made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hardware {
    /// It is short of memory and descriptors.
    pub short: bool,
    /// Files are mapped from persistent memory.
    pub persistent: bool,
    /// What it shows of whether memory survived, besides the boot's identity and the marks of inodes.
    pub sight: Sight,
}

#[derive(Debug)]
struct State<M> {
    disk: Disk,
    journal: Vec<Entry<M>>,
    operations: u64,
    time: u64,
    fault: Option<Fault>,
    failed: bool,
    /// Of memory in a file without a name something was lost.
    lost: bool,
    descriptors: HashMap<RawFd, FileId>,
    /// The later ones lie over the earlier.
    mappings: Vec<Mapping>,
    locked: bool,
}

/// A machine as the engine sees it.
#[derive(Debug)]
pub struct MachineMedia<M>(pub Arc<Machine<M>>);

impl<M: std::fmt::Debug + Send + 'static> Machine<M> {
    /// A machine that was switched on with this disk.
    pub fn new(disk: Disk, boot: Id, time: u64, hardware: Hardware, fault: Option<Fault>) -> Arc<Machine<M>> {
        let state = State {
            disk,
            journal: Vec::new(),
            operations: 0,
            time,
            fault,
            failed: false,
            lost: false,
            descriptors: HashMap::new(),
            mappings: Vec::new(),
            locked: false,
        };
        Arc::new(Machine { state: Mutex::new(state), boot, hardware })
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes something in the journal.
    pub fn mark(&self, mark: M) {
        self.lock().journal.push(Entry::Mark(mark));
    }

    /// Everything that happened so far.
    pub fn take_journal(&self) -> Vec<Entry<M>> {
        std::mem::take(&mut self.lock().journal)
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Whether the fault has come about.
    pub fn failed(&self) -> bool {
        self.lock().failed
    }

    /// Whether memory was lost that lay in a file without a name.
    pub fn lost_memory(&self) -> bool {
        self.lock().lost
    }

    /// What time it is.
    pub fn time(&self) -> u64 {
        self.lock().time
    }

    /// The disk as programs see it now.
    pub fn disk(&self) -> Disk {
        self.lock().disk.clone()
    }

    /// Has the stores of this thread to mapped memory reported to this machine while `work` runs.
    pub fn run<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        struct Unwatch;
        impl Drop for Unwatch {
            fn drop(&mut self) {
                caliburn_os::simulated::watch(None);
            }
        }
        caliburn_os::simulated::watch(Some(Arc::new(MachineWatcher(self.clone()))));
        let _unwatch = Unwatch;
        work()
    }
}

impl<M> State<M> {
    /// Counts an operation; the error and the part that is done if it is to fail.
    fn step(&mut self) -> Result<(), (io::Error, u8)> {
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            Some(fault)
                if number == fault.at
                    || (fault.lasting && number > fault.at)
                    || fault.again.is_some_and(|later| number == fault.at + later) =>
            {
                self.failed = true;
                let errno = if fault.full { rustix::io::Errno::NOSPC } else { rustix::io::Errno::IO };
                Err((errno.into(), fault.part))
            }
            _ => Ok(()),
        }
    }

    fn act(&mut self, act: Act) {
        self.disk.apply(&act);
        self.journal.push(Entry::Act(act));
    }

    /// The file that is mapped there, and the offset in it.
    fn place(&self, at: usize) -> Option<(FileId, u64)> {
        let inside = |(base, bytes, _): &&Mapping| (*base..base + bytes).contains(&at);
        let (base, _, shows) = self.mappings.iter().rev().find(inside)?;
        shows.map(|(id, offset)| (id, offset + (at - base) as u64))
    }

    fn plain_step(&mut self) -> io::Result<()> {
        self.step().map_err(|(error, _)| error)
    }
}

/// Memory: its address, its length, and where it shows a file, if it does.
type Mapping = (usize, usize, Option<(FileId, u64)>);

struct MachineWatcher<M>(Arc<Machine<M>>);

/// Pages of memory.
const PAGE: usize = 4096;

thread_local! {
    /// Reused for what stores to memory have changed.
    static STORED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<M: std::fmt::Debug + Send + 'static> MachineWatcher<M> {
    fn stored_in_page(&self, at: usize, len: usize) {
        let mut state = self.0.lock();
        let Some((id, offset)) = state.place(at) else { return };
        STORED.with_borrow_mut(|bytes| {
            bytes.resize(len, 0);
            // SAFETY: this thread has just stored these bytes, and no other uses this store.
            unsafe {
                let source = std::ptr::with_exposed_provenance::<u8>(at);
                source.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
            }
            let bytes = bytes[..].into();
            state.act(match self.0.hardware.persistent {
                true => Act::StoreDirect(id, offset, bytes),
                false => Act::Store(id, offset, bytes),
            });
        });
    }
}

impl<M: std::fmt::Debug + Send + 'static> Watcher for MachineWatcher<M> {
    fn mapped(&self, descriptor: RawFd, base: usize, len: usize, offset: u64) {
        let mut state = self.0.lock();
        let id = state.descriptors[&descriptor];
        state.mappings.push((base, len, Some((id, offset))));
    }

    fn unmapped(&self, base: usize, len: usize) {
        let mappings = &mut self.0.lock().mappings;
        mappings.retain(|(at, bytes, _)| *at < base || at + bytes > base + len);
        if mappings.iter().any(|(at, bytes, _)| *at < base + len && at + bytes > base) {
            mappings.push((base, len, None));
        }
    }

    fn stored(&self, at: usize, len: usize) {
        if self.0.hardware.persistent {
            return self.stored_in_page(at, len);
        }
        // One page may be a file's, and the next one private.
        let ends = (at / PAGE + 1..).map(|page| page * PAGE).take_while(|end| *end < at + len);
        let bounds = std::iter::once(at).chain(ends.clone()).zip(ends.chain([at + len]));
        bounds.for_each(|(at, end)| self.stored_in_page(at, end - at));
    }

    fn flushed(&self, at: usize, len: usize) {
        let mut state = self.0.lock();
        if let Some((id, offset)) = state.place(at) {
            state.act(Act::FlushLines(id, offset, len as u64));
        }
    }

    fn fenced(&self) {
        self.0.lock().act(Act::Fence);
    }

    fn intact(&self, _: RawFd) -> io::Result<()> {
        let mut state = self.0.lock();
        let done = state.plain_step();
        state.lost |= done.is_err();
        done
    }

    fn clock(&self) -> u64 {
        let mut state = self.0.lock();
        state.time += 1 << 20;
        state.time
    }
}

#[derive(Debug)]
struct SimulatedFile<M> {
    machine: Arc<Machine<M>>,
    id: FileId,
    path: PathBuf,
    write: bool,
    /// Made when somebody maps the file.
    descriptor: OnceLock<OwnedFd>,
}

impl<M: std::fmt::Debug + Send + 'static> SimulatedFile<M> {
    fn writable(&self) -> io::Result<()> {
        if self.write { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    fn write(&self, state: &mut State<M>, bytes: &[u8], offset: u64) -> io::Result<()> {
        state.act(Act::Write(self.id, offset, bytes.into()));
        // Whoever has mapped the file sees it, through another handle, too.
        for (descriptor, _) in state.descriptors.iter().filter(|(_, id)| **id == self.id) {
            // SAFETY: a descriptor is taken off the list before it is closed.
            rustix::io::pwrite(unsafe { BorrowedFd::borrow_raw(*descriptor) }, bytes, offset)?;
        }
        Ok(())
    }
}

// SAFETY: a file's descriptor is that of one anonymous file of its own, as long as the content when it is
// made and extended with it; nothing shrinks.
unsafe impl<M: std::fmt::Debug + Send + 'static> Medium for SimulatedFile<M> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.machine.lock();
        if let Err((error, part)) = state.step() {
            let done = buffer.len() * usize::from(part) / 64;
            state.disk.content(self.id).read(offset, &mut buffer[..done]);
            return Err(error);
        }
        drop(state);
        let mut all = true;
        for (piece, offset) in buffer.chunks_mut(PIECE).zip((offset..).step_by(PIECE)) {
            choice();
            all &= self.machine.lock().disk.content(self.id).read(offset, piece);
        }
        if all { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writable()?;
        let mut state = self.machine.lock();
        if let Err((error, part)) = state.step() {
            self.write(&mut state, &bytes[..bytes.len() * usize::from(part) / 64], offset)?;
            return Err(error);
        }
        self.write(&mut state, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.written_back()?;
        let mut state = self.machine.lock();
        if let Err((error, _)) = state.step() {
            state.act(Act::Drop(self.id));
            return Err(error);
        }
        state.act(Act::Sync(self.id));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.machine.lock();
        state.plain_step()?;
        Ok(state.disk.content(self.id).len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        let mut state = self.machine.lock();
        state.plain_step()?;
        if len > state.disk.content(self.id).len() {
            state.act(Act::Extend(self.id, len));
            // Of every handle of the file: one file is one length.
            for (descriptor, _) in state.descriptors.iter().filter(|(_, id)| **id == self.id) {
                // SAFETY: a descriptor is taken off the list before it is closed.
                rustix::fs::ftruncate(unsafe { BorrowedFd::borrow_raw(*descriptor) }, len)?;
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        let make = || {
            let mut state = self.machine.lock();
            let content = state.disk.content(self.id);
            let made = rustix::fs::memfd_create("simulated", MemfdFlags::CLOEXEC).and_then(|fd| {
                rustix::fs::ftruncate(&fd, content.len())?;
                for (offset, page) in content.pages() {
                    let inside = page.len().min((content.len() - offset) as usize);
                    rustix::io::pwrite(&fd, &page[..inside], offset)?;
                }
                Ok(fd)
            });
            let fd = made.expect("the machine that simulates has memory");
            state.descriptors.insert(fd.as_raw_fd(), self.id);
            fd
        };
        self.descriptor.get_or_init(make).as_fd()
    }

    fn cache(&self) -> Option<[u64; 3]> {
        let (_, mounted) = self.machine.lock().disk.health(self.id);
        Some([0, u64::from(self.id), mounted])
    }

    fn mount(&self) -> Option<[u64; 2]> {
        let (_, mounted) = self.machine.lock().disk.health(self.id);
        self.machine.hardware.sight.mount(mounted)
    }

    fn pinned(&self) -> bool {
        self.machine.lock().disk.is_marked(self.id)
    }

    fn watch(&self) {
        let mut state = self.machine.lock();
        if !state.disk.is_marked(self.id) {
            state.act(Act::Mark(self.id));
        }
    }

    fn written_back(&self) -> io::Result<()> {
        let mut state = self.machine.lock();
        if !state.disk.health(self.id).0 {
            return Ok(());
        }
        state.failed = true;
        state.act(Act::Told(self.id));
        Err(rustix::io::Errno::IO.into())
    }

    fn memory(&self) -> Memory {
        match self.machine.hardware.persistent {
            true => Memory::assumed(Survives::Power),
            false => Memory::CACHE,
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Stores as a program does that declares nothing.
pub fn just_store(region: &Region, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= region.len());
    let target = region.as_ptr().wrapping_add(offset);
    // SAFETY: the bytes are mapped while the region is borrowed, and only this thread uses them.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    caliburn_os::simulated::stored(target, bytes.len());
}

/// Unlocks the machine's directory.
struct Unlock<M: 'static>(Arc<Machine<M>>);

impl<M> std::fmt::Debug for Unlock<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unlock")
    }
}

impl<M: 'static> Drop for Unlock<M> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).locked = false;
    }
}

impl<M> Drop for SimulatedFile<M> {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.get() {
            let mut state = self.machine.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            state.descriptors.remove(&descriptor.as_raw_fd());
        }
    }
}

impl<M: std::fmt::Debug + Send + 'static> MachineMedia<M> {
    fn file(&self, id: FileId, path: &Path, write: bool) -> Arc<dyn Medium> {
        let (machine, path) = (self.0.clone(), path.to_owned());
        Arc::new(SimulatedFile { machine, id, path, write, descriptor: OnceLock::new() })
    }
}

// SAFETY: a file is a number, which one name has, and its descriptors are anonymous files of its own.
unsafe impl<M: std::fmt::Debug + Send + 'static> Media for MachineMedia<M> {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        let mut state = self.0.lock();
        state.plain_step()?;
        let id = state.disk.lookup(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(id, path, write))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        let mut state = self.0.lock();
        state.plain_step()?;
        if state.disk.lookup(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.disk.unused();
        state.act(Act::Create(path.to_owned(), id));
        Ok(self.file(id, path, true))
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        let mut state = self.0.lock();
        let id = state.disk.unused();
        let forced = match state.step() {
            Err((error, part)) if part < 32 => return Err(error),
            other => other,
        };
        state.act(Act::Replace(path.to_owned(), id, content.into()));
        if let Err((error, _)) = forced {
            return Ok(Replaced::Perhaps(error));
        }
        state.act(Act::SyncDirectory(path.parent().expect("a file is in a directory").to_owned()));
        Ok(Replaced::Durably)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.plain_step()?;
        state.act(Act::SyncDirectory(path.to_owned()));
        Ok(())
    }

    fn exists(&self, path: &Path) -> bool {
        let disk = &self.0.lock().disk;
        disk.lookup(path).is_some() || !disk.list(path).is_empty()
    }

    fn create_directory(&self, _path: &Path) -> io::Result<()> {
        self.0.lock().plain_step()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut state = self.0.lock();
        state.plain_step()?;
        Ok(state.disk.list(path).iter().filter_map(|name| Some(name.file_name()?.to_owned())).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.0.lock();
        state.plain_step()?;
        let id = state.disk.lookup(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.disk.content(id).bytes())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.plain_step()?;
        state.disk.lookup(path).ok_or(io::ErrorKind::NotFound)?;
        state.act(Act::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_directory(&self, _path: &Path) -> io::Result<()> {
        self.0.lock().plain_step()
    }

    fn lock(&self, _path: &Path, _shared: bool) -> Result<Lock, LockError> {
        let mut state = self.0.lock();
        state.plain_step().map_err(LockError::Io)?;
        if std::mem::replace(&mut state.locked, true) {
            return Err(LockError::Held("the simulated process".into()));
        }
        Ok(Lock::of(Unlock(self.0.clone())))
    }

    fn random_id(&self) -> io::Result<Id> {
        Ok([7; 16])
    }

    fn limits(&self) -> Limits {
        Limits::of(8 << 30, self.0.hardware.short)
    }

    fn descriptors(&self) -> u64 {
        if self.0.hardware.short { 0 } else { u64::MAX }
    }

    fn boot(&self) -> io::Result<Boot> {
        self.0.lock().plain_step()?;
        Ok(self.0.hardware.sight.boot(self.0.boot))
    }
}
