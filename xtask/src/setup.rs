//! What the tests need beside a Rust toolchain: found out before anything runs, installed where that may be
//! done, and named where not.

use crate::run;
use std::path::Path;
use std::process::Command;

/// What needs a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The C interface and the manual pages.
    C,
    /// Counting instructions.
    Instructions,
    /// What Caliburn is compared with.
    Rivals,
    /// Crashing virtual machines.
    Machines,
    /// Keeping what nodes must agree on.
    Nodes,
    /// Other file systems and failing system calls: single tests say that they did not run.
    FileSystems,
}

/// A Debian package, by what shows that it is there: a command, or a file if it begins with `/`, with `*` for
/// any name.
const WANTED: [(&str, &str, Part); 28] = [
    ("c++", "g++", Part::C),
    ("ld", "binutils", Part::C),
    ("valgrind", "valgrind", Part::C),
    ("pkg-config", "pkg-config", Part::C),
    ("groff", "groff", Part::C),
    ("valgrind", "valgrind", Part::Instructions),
    ("/usr/include/lmdb.h", "liblmdb-dev", Part::Rivals),
    ("/usr/include/rocksdb/c.h", "librocksdb-dev", Part::Rivals),
    ("/usr/include/db.h", "libdb5.3-dev", Part::Rivals),
    ("/usr/include/libpmemobj.h", "libpmemobj-dev", Part::Rivals),
    ("/usr/include/sqlite3.h", "libsqlite3-dev", Part::Rivals),
    ("/usr/lib/llvm-*/lib/libclang.so", "libclang-14-dev", Part::Rivals),
    ("c++", "g++", Part::Rivals),
    ("qemu-system-x86_64", "qemu-system-x86", Part::Machines),
    ("/boot/vmlinuz-*cloud*", "linux-image-cloud-amd64", Part::Machines),
    ("/usr/src/linux-headers-*cloud*/Makefile", "linux-headers-cloud-amd64", Part::Machines),
    ("make", "make", Part::Machines),
    ("busybox", "busybox-static", Part::Machines),
    ("cpio", "cpio", Part::Machines),
    ("modprobe", "kmod", Part::Machines),
    ("dmsetup", "dmsetup", Part::Machines),
    ("mkfs.xfs", "xfsprogs", Part::Machines),
    ("sqlite3", "sqlite3", Part::Machines),
    ("etcd", "etcd-server", Part::Nodes),
    ("mkfs.xfs", "xfsprogs", Part::FileSystems),
    ("mkfs.ext4", "e2fsprogs", Part::FileSystems),
    ("strace", "strace", Part::FileSystems),
    ("bindfs", "bindfs", Part::FileSystems),
];

/// What is not there.
#[derive(Debug, Default)]
pub struct Missing(Vec<(&'static str, Part)>);

impl Missing {
    /// Looks, and installs what is missing where it may: as root, with Debian's package manager.
    pub fn mend() -> Missing {
        for component in ["rustfmt", "clippy"] {
            let there = Command::new("cargo").args([&component.replace("rust", ""), "--version"]).output();
            if !there.is_ok_and(|output| output.status.success()) {
                let _ = run(&format!("rustup component add {component}"));
            }
        }
        // Where it cannot be had, what needs it says so.
        let _ = Command::new("rustup").args(["target", "add", "aarch64-unknown-linux-gnu"]).output();
        let missing = Missing::look();
        if missing.0.is_empty() || !is_root() || !is_there("apt-get") {
            return missing;
        }
        let install = format!("apt-get install -y -qq --no-install-recommends {}", missing.packages());
        let mut command = crate::command(&install);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::process::Stdio::null());
        if let Err(error) = run("apt-get update -qq").and_then(|()| crate::succeed(command, &install)) {
            println!("--- {error}");
        }
        Missing::look()
    }

    /// Looks.
    pub fn look() -> Missing {
        Missing(
            WANTED
                .iter()
                .filter(|(sign, ..)| !is_there(sign))
                .map(|(_, name, part)| (*name, *part))
                .collect(),
        )
    }

    /// The packages, each once.
    pub fn packages(&self) -> String {
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" ")
    }

    /// Whether a part of the tests can run.
    pub fn allows(&self, part: Part) -> bool {
        !self.0.iter().any(|(_, of)| *of == part)
    }

    /// What can't run, and the line that mends it; none if everything can.
    pub fn said(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let mut parts: Vec<String> = self.0.iter().map(|(_, part)| format!("{part:?}")).collect();
        parts.dedup();
        let packages = self.packages();
        Some(format!(
            "not run for want of packages: {}\n    sudo apt-get install {packages}",
            parts.join(", ")
        ))
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether a command, or a file, is there.
fn is_there(sign: &str) -> bool {
    if sign.starts_with('/') {
        return match sign.split_once('*') {
            None => Path::new(sign).exists(),
            Some(_) => Command::new("sh")
                .args(["-c", &format!("ls {sign}")])
                .output()
                .is_ok_and(|o| o.status.success()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| folder.join(sign).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_line_that_mends_it() {
        let missing = Missing(vec![("valgrind", Part::C), ("valgrind", Part::Instructions)]);
        assert!(!missing.allows(Part::C) && missing.allows(Part::Machines));
        let said = missing.said().unwrap();
        assert!(
            said.ends_with("sudo apt-get install valgrind") && said.contains("C, Instructions"),
            "{said}"
        );
        assert!(Missing::default().said().is_none());
        assert!(is_there("sh") && is_there("/bin/*sh") && !is_there("no-such-command"));
    }
}
