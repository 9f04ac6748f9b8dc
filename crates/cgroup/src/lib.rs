//! A memory control group, of whichever version the system has: for tests and benchmarks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when dropped, after whoever is in it has ended.
pub struct Group {
    /// Its folder.
    pub path: PathBuf,
}

impl Group {
    /// A group of at most so many bytes, without swap; why none can be made.
    pub fn new(name: &str, limit: u64) -> Result<Group, String> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let v2 = Path::new("/sys/fs/cgroup");
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("caliburn-{name}-{}-{number}", std::process::id());
        let (path, file) = if v1.join("memory.limit_in_bytes").exists() {
            (v1.join(name), "memory.limit_in_bytes")
        } else if std::fs::read_to_string(v2.join("cgroup.subtree_control"))
            .is_ok_and(|s| s.contains("memory"))
        {
            (v2.join(name), "memory.max")
        } else {
            return Err("no memory controller".into());
        };
        std::fs::create_dir(&path).map_err(|error| format!("no control group can be made: {error}"))?;
        let group = Group { path };
        std::fs::write(group.path.join(file), limit.to_string())
            .map_err(|error| format!("the control group takes no limit: {error}"))?;
        // No swap, where the system has any.
        let _ = std::fs::write(group.path.join("memory.memsw.limit_in_bytes"), limit.to_string());
        let _ = std::fs::write(group.path.join("memory.swap.max"), "0");
        Ok(group)
    }

    /// A group within this one, without a limit of its own.
    pub fn part(&self, name: &str) -> Result<Group, String> {
        // In version 2 a group says which controllers those within have.
        let _ = std::fs::write(self.path.join("cgroup.subtree_control"), "+memory");
        let path = self.path.join(name);
        std::fs::create_dir(&path).map_err(|error| format!("no group within can be made: {error}"))?;
        Ok(Group { path })
    }

    /// Puts the calling process into a group.
    pub fn enter(path: &Path) -> io::Result<()> {
        std::fs::write(path.join("cgroup.procs"), std::process::id().to_string())
    }

    /// The most bytes that it had at once, where the system tells.
    pub fn peak(&self) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(self.path.join(name)).ok();
        read("memory.peak").or_else(|| read("memory.max_usage_in_bytes"))?.trim().parse().ok()
    }

    /// How many processes of it were killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let read = |name: &str| std::fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}
