//! Memory that can only be mapped, in larger pieces than pages: devices of memory (device DAX, `/dev/dax0.0`), and
//! files on hugetlbfs, which no system call writes to. What writes a part of it maps that part meanwhile.

use crate::descriptors;
use crate::files::{self, FileMedium, Files, HUGETLBFS};
use crate::map::Reservation;
use crate::medium::{Media, Medium, Replaced, Rules};
use crate::names;
use crate::persist::{Memory, Survives};
use crate::span;
use rustix::fs::{FileType, fstat, fstatfs};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// As [`Files`], and such memory besides: for who maps by the [grain](Medium::grain) of a medium.
#[derive(Debug, Default, Clone, Copy)]
pub struct MappedFiles;

impl MappedFiles {
    fn medium(file: File, path: &Path) -> io::Result<Arc<dyn Medium>> {
        match MappedMedium::of(&file)? {
            Some((kind, memory)) => Ok(Arc::new(MappedMedium { file, path: path.to_owned(), kind, memory })),
            None => FileMedium::from_file(file, path),
        }
    }
}

// SAFETY: as for `Files`.
unsafe impl Media for MappedFiles {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        MappedFiles::medium(names::open_outside(path, write)?, path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        MappedFiles::medium(names::create_outside(path, Rules::default().mode())?, path)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

/// Such a file or device.
#[derive(Debug)]
struct MappedMedium {
    file: File,
    path: PathBuf,
    kind: Kind,
    memory: Memory,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Of so many bytes, in pieces of so many.
    Device { len: u64, grain: u64 },
    /// In pages of so many.
    Huge { grain: u64 },
}

impl MappedMedium {
    /// Whether it is such memory, and what is known of it then.
    fn of(file: &File) -> io::Result<Option<(Kind, Memory)>> {
        let about = fstat(file)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => {
                let of = fstatfs(file)?;
                let grain = of.f_bsize as u64;
                return Ok((of.f_type == HUGETLBFS).then_some((Kind::Huge { grain }, Memory::CACHE)));
            }
            FileType::CharacterDevice => {}
            _ => return Ok(None),
        }
        let (major, minor) = (rustix::fs::major(about.st_rdev), rustix::fs::minor(about.st_rdev));
        let device = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
        let of_dax = fs::read_link(device.join("subsystem")).is_ok_and(|bus| bus.ends_with("dax"));
        let number = |name: &str| descriptors::read_text(device.join(name)).ok()?.trim().parse::<u64>().ok();
        let (true, Some(len)) = (of_dax, number("size")) else { return Ok(None) };
        // Kernels before 5.10 do not say.
        let can_be = |grain: &u64| grain.is_power_of_two() && *grain >= crate::page_size() as u64;
        let grain = number("align").filter(can_be).unwrap_or(2 << 20);
        Ok(Some((Kind::Device { len, grain }, Memory::of_device(&device))))
    }

    /// Has a file on hugetlbfs have pages for a part: what cannot be had is an error here, and would be a signal
    /// later.
    fn allocate(&self, from: u64, len: u64) -> io::Result<()> {
        let now = self.file.metadata()?.len();
        let Err(errno) = files::allocate(&self.file, from, len) else { return Ok(()) };
        // Lengths are whole pages.
        let _ = self.file.set_len(now.next_multiple_of(self.grain() as u64));
        if errno == rustix::io::Errno::NOSPC {
            let text = "too few huge pages are free: see /sys/kernel/mm/hugepages, and the limits of the mount and of the \
                        control group";
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        Err(errno.into())
    }

    /// Maps a part, which the medium must have, as long as it takes.
    fn with<T>(&self, offset: u64, len: usize, write: bool, f: impl FnOnce(*mut u8) -> T) -> io::Result<T> {
        let (end, grain) = (offset.checked_add(len as u64), self.grain() as u64);
        let Some(end) = end.filter(|end| self.len().is_ok_and(|len| *end <= len)) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let from = offset / grain * grain;
        let whole = (end.next_multiple_of(grain) - from).max(grain) as usize;
        let mapped = Reservation::aligned(whole, grain as usize, 0)?;
        // SAFETY: the reservation is new; the file is as long, and never shrinks.
        unsafe {
            match write {
                true => mapped.map_shared(0, whole, self.file.as_fd(), from, false)?,
                false => mapped.map_to_read(0, whole, self.file.as_fd(), from)?,
            }
        }
        Ok(f(mapped.base().as_ptr().wrapping_add((offset - from) as usize)))
    }
}

// SAFETY: the descriptor is that of one open file or device, which nothing here ever shrinks.
unsafe impl Medium for MappedMedium {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if let Kind::Huge { .. } = self.kind {
            // A hole that is touched takes memory, or kills where there is none.
            return self.file.read_exact_at(buffer, offset);
        }
        let len = buffer.len();
        // SAFETY: so many bytes are mapped there; others may store to them.
        self.with(offset, len, false, |at| unsafe { span::copy(at, buffer.as_mut_ptr(), len) })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(offset, bytes.len(), true, |at| {
            // SAFETY: so many bytes are mapped there for writing; others may read them.
            unsafe { self.memory.flush.copy(bytes.as_ptr(), at, bytes.len()) };
            self.memory.flush.fence();
        })
    }

    /// What is stored there is there.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        match self.kind {
            Kind::Device { len, .. } => Ok(len),
            // Of the last page nothing can be touched if the file ends within it.
            Kind::Huge { grain } => Ok(self.file.metadata()?.len() / grain * grain),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.kind {
            Kind::Device { len: there, .. } if len > there => {
                let text = format!("the device holds {there} bytes and {len} are needed");
                Err(io::Error::new(io::ErrorKind::StorageFull, text))
            }
            Kind::Device { .. } => Ok(()),
            Kind::Huge { grain } => {
                let len = len.checked_next_multiple_of(grain).ok_or(io::ErrorKind::InvalidInput)?;
                let now = self.len()?;
                if len > now { self.allocate(now, len - now) } else { Ok(()) }
            }
        }
    }

    fn fill_holes(&self) -> io::Result<()> {
        match self.kind {
            Kind::Device { .. } => Ok(()),
            Kind::Huge { .. } => self.allocate(0, self.len()?),
        }
    }

    fn grain(&self) -> usize {
        let (Kind::Device { grain, .. } | Kind::Huge { grain }) = self.kind;
        grain as usize
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn volatile(&self) -> bool {
        self.memory.survives == Survives::Process
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_are_no_memory() {
        for path in ["/dev/null", "/dev/zero"] {
            let error = MappedFiles.open(Path::new(path), true).unwrap_err();
            assert!(
                error.to_string().contains("neither a regular file nor a device that holds data"),
                "{error}"
            );
        }
    }
}
