//! How much memory this process may use, and whether it is short of it: control groups of both
//! versions, physical memory, and pressure stall information.

use crate::descriptors;
use crate::simulated::planted;
use std::path::{Path, PathBuf};

/// The memory limits and usage of the control group that this process is in.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// The group's folder with the files that follow, if a limit is set there.
    group: Option<Group>,
    /// What the group tells that this process itself is in, limited or not.
    own: Option<PathBuf>,
    /// The whole system's stalls, looked at where no group has a limit.
    pressure: Option<PathBuf>,
    physical_bytes: u64,
    short: bool,
}

#[derive(Debug, Clone)]
struct Group {
    limit_bytes: u64,
    usage: PathBuf,
    pressure: Option<PathBuf>,
    stat: PathBuf,
}

impl Limits {
    /// A machine with so much memory, always short of it or never.
    pub fn of(physical_bytes: u64, short: bool) -> Limits {
        Limits { group: None, own: None, pressure: None, physical_bytes, short }
    }

    /// Reads the limits that hold for this process now.
    pub fn read() -> Limits {
        let physical_bytes =
            rustix::system::sysinfo().totalram * u64::from(rustix::system::sysinfo().mem_unit);
        let places = places();
        let group = group(&places).filter(|g| g.limit_bytes < physical_bytes);
        let own = places.iter().map(Place::stat).find(|stat| stat.exists());
        Limits { group, own, pressure: Some("/proc/pressure/memory".into()), physical_bytes, short: false }
    }

    /// The bytes that this process and its group may use: the group's limit or physical memory.
    pub fn bytes(&self) -> u64 {
        self.group.as_ref().map_or(self.physical_bytes, |g| g.limit_bytes)
    }

    /// Whether memory is short: the group's unreclaimable use is near its limit, or tasks have lately
    /// been stalled for want of memory.
    pub fn short(&self) -> bool {
        let near = |group: &Group| {
            let used = number(&group.usage).unwrap_or(0);
            used.saturating_sub(reclaimable(&group.stat)) > group.limit_bytes / 10 * 8
        };
        let stalled = |path: &Path| stalled_share(path).is_some_and(|share| share > 10.0);
        match &self.group {
            Some(group) => near(group) || group.pressure.as_deref().is_some_and(stalled),
            None => self.short || self.pressure.as_deref().is_some_and(stalled),
        }
    }

    /// Bytes that can be had, if what can be read again is given up for them.
    pub fn available(&self) -> u64 {
        // Who has said how much memory there is has said all.
        let system = self.pressure.as_ref().and_then(|_| {
            let text = descriptors::read_text("/proc/meminfo").ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
        });
        let system = system.unwrap_or(self.physical_bytes);
        let Some(group) = &self.group else { return system };
        let used = number(&group.usage).unwrap_or(0).saturating_sub(reclaimable(&group.stat));
        group.limit_bytes.saturating_sub(used).min(system)
    }

    /// How many pages of files were read again that had been pushed out of memory shortly before, by the group that
    /// has the limit, else by the one that this process is in, else by anybody: a count that only grows. None where
    /// the kernel does not tell (before 5.9).
    pub fn refaults(&self) -> Option<u64> {
        const NAME: &str = "workingset_refault_file";
        // Who has said how much memory there is has said all.
        let anybody = || self.pressure.as_ref().map(|_| Path::new("/proc/vmstat"));
        match (&self.group, &self.own) {
            (Some(group), _) => total(&descriptors::read_text(&group.stat).ok()?, NAME),
            // Not those of groups within it.
            (None, Some(own)) if !planted("others-refaults-count") => {
                field(&descriptors::read_text(own).ok()?, NAME)
            }
            _ => field(&descriptors::read_text(anybody()?).ok()?, NAME),
        }
    }
}

/// Whether the system counts all memory that may be stored to, and refuses what it could not give
/// (`vm.overcommit_memory` 2).
pub fn is_counted() -> bool {
    descriptors::read_text("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Of a group and the groups in it: version 1 has another name for that, version 2 no other.
fn total(text: &str, name: &str) -> Option<u64> {
    field(text, &format!("total_{name}")).or_else(|| field(text, name))
}

fn number(path: &Path) -> Option<u64> {
    descriptors::read_text(path).ok()?.trim().parse().ok()
}

/// Clean file pages: the kernel takes them back by itself.
fn reclaimable(stat: &Path) -> u64 {
    clean(&descriptors::read_text(stat).unwrap_or_default())
}

fn clean(stat: &str) -> u64 {
    let total = |name: &str| total(stat, name).unwrap_or(0);
    (total("active_file") + total("inactive_file")).saturating_sub(total("file_dirty").max(total("dirty")))
}

/// The share of the last ten seconds, in percent, in which some task waited for memory.
fn stalled_share(path: &Path) -> Option<f64> {
    let text = descriptors::read_text(path).ok()?;
    text.lines().find(|l| l.starts_with("some"))?.split("avg10=").nth(1)?.split(' ').next()?.parse().ok()
}

/// Where a control group of this process is: that of version 2, or of the memory of version 1.
struct Place {
    root: PathBuf,
    folder: PathBuf,
    second: bool,
}

impl Place {
    fn stat(&self) -> PathBuf {
        self.folder.join("memory.stat")
    }
}

fn places() -> Vec<Place> {
    let membership = descriptors::read_text("/proc/self/cgroup").unwrap_or_default();
    let mounts = descriptors::read_text("/proc/self/mounts").unwrap_or_default();
    let mount = |kind: &str, option: &str| {
        mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find_map(|f| {
            let hit =
                f.len() > 3 && f[2] == kind && (option.is_empty() || f[3].split(',').any(|o| o == option));
            hit.then(|| PathBuf::from(f[1]))
        })
    };
    let place = |controller: &str| {
        membership.lines().map(|l| l.splitn(3, ':').collect::<Vec<_>>()).find_map(|f| {
            let hit = f.len() == 3 && f[1].split(',').any(|c| c == controller);
            hit.then(|| f[2].trim_start_matches('/').to_owned())
        })
    };
    let of = |kind: &str, option: &str, second| {
        let (root, inside) = (mount(kind, option)?, place(option)?);
        // In a container the path may be that of the host, absent here: the mount's root then stands for it.
        let folder = if root.join(&inside).is_dir() { root.join(&inside) } else { root.clone() };
        Some(Place { root, folder, second })
    };
    of("cgroup2", "", true).into_iter().chain(of("cgroup", "memory", false)).collect()
}

/// The tightest limit on the way from this process's groups to the root.
fn group(places: &[Place]) -> Option<Group> {
    let mut found: Option<Group> = None;
    for Place { root, folder, second } in places {
        let (limit, usage) = match second {
            true => ("memory.max", "memory.current"),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        for at in folder.ancestors().take_while(|at| at.starts_with(root)) {
            let Some(limit_bytes) = number(&at.join(limit)) else { continue };
            if found.as_ref().is_none_or(|g| limit_bytes < g.limit_bytes) {
                let pressure = Some(at.join("memory.pressure")).filter(|path| *second && path.exists());
                let (usage, stat) = (at.join(usage), at.join("memory.stat"));
                found = Some(Group { limit_bytes, usage, pressure, stat });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_groups_within_a_group_hold_is_counted() {
        let own = "active_file 0\ninactive_file 1\ndirty 0\n";
        let first = format!("{own}total_active_file 70\ntotal_inactive_file 30\ntotal_dirty 20\n");
        assert_eq!(clean(&first), 80);
        assert_eq!(clean("active_file 70\ninactive_file 30\nfile_dirty 20\n"), 80);
        assert_eq!(total("workingset_refault_file 5\n", "workingset_refault_file"), Some(5));
    }

    #[test]
    fn there_is_always_a_finite_limit() {
        let limits = Limits::read();
        assert!(limits.bytes() > 1 << 20 && limits.bytes() <= limits.physical_bytes);
        assert!(limits.available() > 0 && limits.available() <= limits.bytes());
    }
}
