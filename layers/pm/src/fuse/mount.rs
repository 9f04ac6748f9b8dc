//! Where it is mounted. A path may be another file system's by the time it is unmounted: it is known by its device.

use super::TYPE;
use caliburn_os::descriptors;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mounted file system; unmounted when dropped, unless it has ended.
#[derive(Debug)]
pub(super) struct Mount(Place);

/// Where it is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// As the kernel names its device.
    device: String,
    /// The kernel may give that name to another one then.
    has_ended: Arc<AtomicBool>,
}

/// A file system as the kernel lists it.
struct Listed {
    device: String,
    at: PathBuf,
    kind: String,
}

impl Mount {
    pub fn new(dir: &Path, fuse: &File, write: bool) -> io::Result<Mount> {
        let dir = resolved(dir)?;
        // Several servers may have been killed there, one after the other.
        while let Some(listed) = topmost(&dir)?.filter(|listed| listed.kind == TYPE) {
            if statfs(&dir).err() != Some(rustix::io::Errno::NOTCONN) {
                let why = format!("another one is mounted there already ({})", listed.device);
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            unmount(&dir, UnmountFlags::DETACH)?;
        }
        if !fs::metadata(&dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let options = format!(
            "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
            fuse.as_raw_fd()
        );
        let options = CString::new(options)?;
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, !write);
        mount("caliburn", &dir, TYPE, flags, &*options)?;
        let lost = || io::Error::other("it is mounted, and not in /proc/self/mountinfo");
        match topmost(&dir).and_then(|listed| listed.filter(|listed| listed.kind == TYPE).ok_or_else(lost)) {
            Ok(Listed { device, .. }) => Ok(Mount(Place { device, has_ended: Arc::default() })),
            Err(error) => {
                unmount(&dir, UnmountFlags::DETACH)?;
                Err(error)
            }
        }
    }

    pub fn place(&self) -> Place {
        self.0.clone()
    }

    /// Somebody has unmounted it.
    pub fn ended(self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.0.unmount() {
            tracing::warn!(%error, "what was mounted stays so");
        }
    }
}

impl Place {
    /// Unmounts it, wherever it is by now.
    pub fn unmount(&self) -> io::Result<()> {
        if self.has_ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut all = listed()?;
        let ours = all.iter().rposition(|listed| listed.device == self.device && listed.kind == TYPE);
        let busy = |why| io::Error::new(io::ErrorKind::ResourceBusy, why);
        let ours =
            ours.ok_or_else(|| busy("it is mounted nowhere, and somebody has its file open".to_owned()))?;
        let over = all[ours + 1..].iter().find(|listed| listed.at == all[ours].at);
        if let Some(Listed { kind, device, .. }) = over {
            return Err(busy(format!("{kind} was mounted over it ({device})")));
        }
        Ok(unmount(all.swap_remove(ours).at, UnmountFlags::empty())?)
    }
}

/// As the kernel writes it. What was mounted there may not answer any more.
fn resolved(dir: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(dir).or_else(|error| match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(fs::canonicalize(parent)?.join(name))
        }
        _ => Err(error),
    })
}

/// The file system that was mounted there last.
fn topmost(dir: &Path) -> io::Result<Option<Listed>> {
    Ok(listed()?.into_iter().rfind(|listed| listed.at == dir))
}

/// All that are mounted (proc(5), `/proc/PID/mountinfo`).
fn listed() -> io::Result<Vec<Listed>> {
    let text = descriptors::read("/proc/self/mountinfo")?;
    let of_line = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let (device, at) = (words.get(2)?, unescaped(words.get(4)?));
        let kind = words.iter().skip_while(|word| **word != b"-").nth(1)?;
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        Some(Listed { device: text(device), at, kind: text(kind) })
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(of_line).collect())
}

/// Spaces and the like are three octal digits behind a backslash.
fn unescaped(word: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::new(), word);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn paths_are_as_the_kernel_writes_them() {
        for (word, path) in
            [("/a\\040b", "/a b"), ("/a\\134040", "/a\\040"), ("/a\\0", "/a\\0"), ("/x", "/x")]
        {
            assert_eq!(unescaped(word.as_bytes()).as_os_str().as_bytes(), path.as_bytes());
        }
        assert_eq!(topmost(Path::new("/proc")).unwrap().map(|listed| listed.kind).as_deref(), Some("proc"));
        assert!(topmost(Path::new("/proc/self")).unwrap().is_none());
    }
}
