//! A process, told from any other that had its number before or gets it later.

use caliburn_os::descriptors::above;
use caliburn_os::host::{Boot, boot_id};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::str::FromStr;

/// A process: its number, when it was started, and since which boot of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    number: i32,
    /// In ticks since the machine was booted.
    started: u64,
    /// 0 where the system shows none.
    boot: u128,
}

fn started(number: i32) -> Option<u64> {
    let stat = caliburn_os::descriptors::read_text(format!("/proc/{number}/stat")).ok()?;
    // Behind the program's name, which may hold anything: field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

impl ProcessId {
    /// One that runs.
    pub fn of(number: u32) -> Option<ProcessId> {
        let number = i32::try_from(number).ok().filter(|number| *number > 0)?;
        // Without one, number and start tell processes apart all the same, but for those of two boots.
        let boot = Boot::of(boot_id()).ok()?.id.map_or(0, u128::from_be_bytes);
        Some(ProcessId { number, started: started(number)?, boot })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.number)
    }

    /// Something that can be read when it has ended; nothing if it has.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = self.pid()?;
        let opened = above(|| Ok(pidfd_open(pid, PidfdFlags::empty())?)).ok()?;
        // Of whoever has the number now.
        (ProcessId::of(self.number as u32) == Some(*self)).then_some(opened)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:x}", self.number, self.started, self.boot)
    }
}

impl FromStr for ProcessId {
    type Err = ();

    fn from_str(text: &str) -> Result<ProcessId, ()> {
        let mut parts = text.trim().split('.');
        let mut next = || parts.next().ok_or(());
        let number = next()?.parse().ok().filter(|number| *number > 0).ok_or(())?;
        let started = next()?.parse().map_err(|_| ())?;
        let boot = u128::from_str_radix(next()?, 16).map_err(|_| ())?;
        if parts.next().is_some() { Err(()) } else { Ok(ProcessId { number, started, boot }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_only() {
        let own = ProcessId::of(std::process::id()).unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert!(own.open().is_some());
        assert!(ProcessId { started: own.started + 1, ..own }.open().is_none(), "another one had the number");
        assert!(ProcessId { boot: own.boot + 1, ..own }.open().is_none());
        for wrong in ["", "1", "1.2", "-1.2.3", "0.2.3", "1.2.3.4", "4294967297.1.1", "x"] {
            assert_eq!(wrong.parse::<ProcessId>(), Err(()), "{wrong}");
        }
        assert_eq!(ProcessId::of(0), None);
        assert_eq!(ProcessId::of(u32::MAX), None);
    }
}
