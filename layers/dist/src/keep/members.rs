//! Members of an etcd on this machine, started and stopped by a program: for demonstrations, tests and measurements.
//! Those of a cluster that is relied on run on machines of their own: `docs/camelot.md`.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Why there are no members.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// There is no etcd here.
    #[error("etcd is not installed here; on Debian: apt-get install etcd-server")]
    NotInstalled,
    /// Something else.
    #[error("etcd: {0}")]
    Io(#[from] io::Error),
}

/// Some members, on loopback. Killed when this is dropped.
#[derive(Debug)]
pub struct Members {
    dir: PathBuf,
    quota: u64,
    all: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    child: Option<Child>,
}

/// Addresses that are free, and stay so until this process listens there: while a member that was killed is away,
/// too. They are on an address of loopback of this process's own, where the system puts neither another's listener
/// nor a connection's end; and none is given out twice.
///
/// # Errors
/// When loopback has none.
pub fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    // A process's identifier has at most 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 + high % 64, middle, low);
    let next = || -> io::Result<SocketAddr> {
        loop {
            let address = SocketAddr::from((own, NEXT.fetch_add(1, Relaxed)));
            match TcpListener::bind(address) {
                Ok(_) => return Ok(address),
                // Someone listens to this port of all addresses.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
    };
    (0..count).map(|_| next()).collect()
}

impl Members {
    /// Starts so many, which keep what they know in a directory.
    ///
    /// # Errors
    /// [`MembersError`].
    pub fn start(count: usize, dir: impl Into<PathBuf>) -> Result<Members, MembersError> {
        Members::start_with_quota(count, dir, 1 << 30)
    }

    /// The same, with so many bytes for what each knows.
    ///
    /// # Errors
    /// [`MembersError`].
    pub fn start_with_quota(
        count: usize,
        dir: impl Into<PathBuf>,
        quota: u64,
    ) -> Result<Members, MembersError> {
        let addresses = free_addresses(2 * count)?;
        let (clients, peers) = addresses.split_at(count);
        let pairs = clients.iter().zip(peers);
        let all = pairs.map(|(client, peer)| Member { client: *client, peer: *peer, child: None }).collect();
        let mut members = Members { dir: dir.into(), quota, all };
        std::fs::create_dir_all(&members.dir)?;
        (0..count).try_for_each(|member| members.run(member))?;
        Ok(members)
    }

    /// Runs one that was killed, with what it had.
    ///
    /// # Errors
    /// [`MembersError`].
    pub fn run(&mut self, member: usize) -> Result<(), MembersError> {
        let name = |number: usize| format!("m{number}");
        let peers = self.all.iter().enumerate();
        let peers: Vec<String> = peers.map(|(at, of)| format!("{}=http://{}", name(at), of.peer)).collect();
        let Member { client, peer, .. } = &self.all[member];
        let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let log = File::create(self.dir.join(format!("{}.log", name(member))))?;
        let child = Command::new("etcd")
            .args(["--name", &name(member), "--data-dir"])
            .arg(self.dir.join(name(member)))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"])
            .args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m"])
            .args(["--snapshot-count", "500", "--quota-backend-bytes", &self.quota.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MembersError::NotInstalled,
            _ => error.into(),
        })?;
        self.all[member].child = Some(child);
        Ok(())
    }

    /// Kills one (SIGKILL), if it runs.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.all[member].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops one (SIGSTOP), or lets it go on.
    pub fn pause(&self, member: usize, stops: bool) {
        pause(self.all[member].child.as_ref(), stops);
    }

    /// What one printed since it was run.
    ///
    /// # Errors
    /// When it never ran.
    pub fn printed(&self, member: usize) -> io::Result<String> {
        std::fs::read_to_string(self.dir.join(format!("m{member}.log")))
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Where programs reach them.
    pub fn addresses(&self) -> Vec<String> {
        self.all.iter().map(|member| format!("http://{}", member.client)).collect()
    }

    /// The same, as addresses.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        self.all.iter().map(|member| member.client).collect()
    }

    /// Where one reaches the others.
    pub fn peer(&self, member: usize) -> String {
        format!("http://{}", self.all[member].peer)
    }

    /// Where they keep what they know.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Stops a process (SIGSTOP), or lets it go on.
pub fn pause(child: Option<&Child>, stops: bool) {
    let signal = if stops { Signal::STOP } else { Signal::CONT };
    let pid = child.and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.all.len()).for_each(|member| self.kill(member));
    }
}
