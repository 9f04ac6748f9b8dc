//! Where it is mounted. A path may be another file system's by the time it is unmounted: it is known by its device.

use super::TYPE;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    dir: PathBuf,
    /// As the kernel names its device.
    device: String,
}

/// A file system as the kernel lists it.
struct Listed {
    device: String,
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
        let listed = topmost(&dir)?.filter(|listed| listed.kind == TYPE);
        let listed =
            listed.ok_or_else(|| io::Error::other("it is mounted, and not in /proc/self/mountinfo"))?;
        Ok(Mount { dir, device: listed.device })
    }

    /// Unmounts it, if it is still there.
    pub fn unmount(&self) -> io::Result<()> {
        match topmost(&self.dir)? {
            Some(listed) if listed.device == self.device => Ok(unmount(&self.dir, UnmountFlags::empty())?),
            Some(listed) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} was mounted over it ({})", listed.kind, listed.device),
            )),
            None => Ok(()),
        }
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

/// The file system that was mounted there last (proc(5), `/proc/PID/mountinfo`).
fn topmost(dir: &Path) -> io::Result<Option<Listed>> {
    let text = fs::read("/proc/self/mountinfo")?;
    let of_line = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let (device, at) = (words.get(2)?, words.get(4)?);
        let kind = words.iter().skip_while(|word| **word != b"-").nth(1)?;
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        (unescaped(at) == dir).then(|| Listed { device: text(device), kind: text(kind) })
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(of_line).next_back())
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
