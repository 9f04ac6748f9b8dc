//! `cargo xtask others`: programs of others, unchanged, on a disk of blocks in memory, which is a file through FUSE
//! and a loop device of that. Exercisers that know what they wrote (`fsx`, `fio --verify`), on the device and on
//! ext4 and XFS upon it; PostgreSQL under `pgbench`, while the server of the disk is killed. As root; nothing is
//! left behind.

use crate::{run, vm::output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COMMAND: &str = "target/release/caliburn-pm";
const FOLDER: &str = "target/others";
/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk of blocks that is served, and the loop device of it.
struct Disk {
    region: PathBuf,
    folder: PathBuf,
    server: Option<Child>,
    device: String,
}

/// A shell's command, with what it has to say when it fails.
fn shell(line: &str) -> Result<String, String> {
    output("sh", &["-c", line])
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > PATIENCE {
            return Err(format!("{what}: not in {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Disk {
    fn new() -> Result<Disk, String> {
        let folder = PathBuf::from(FOLDER);
        for name in ["served", "fs"] {
            fs::create_dir_all(folder.join(name)).map_err(|e| format!("{FOLDER}: {e}"))?;
        }
        let folder = fs::canonicalize(folder).map_err(|e| format!("{FOLDER}: {e}"))?;
        let region = Path::new("/dev/shm").join(format!("caliburn-others-{}", std::process::id()));
        let disk = Disk { region, folder, server: None, device: String::new() };
        let region = disk.region.display().to_string();
        output(COMMAND, &["create", &region, "--bytes", "800M"])?;
        output(COMMAND, &["add", &region, "disk", "640M", "--blocks", "4096"])?;
        Ok(disk)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("served/disk")
    }

    fn fs(&self) -> String {
        self.folder.join("fs").display().to_string()
    }

    fn serve(&mut self) -> Result<(), String> {
        let mut server = Command::new(COMMAND);
        server.arg("serve").arg(&self.region).args(["disk", "--mount"]).arg(self.folder.join("served"));
        server.stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(server.spawn().map_err(|e| format!("{COMMAND}: {e}"))?);
        let file = self.file();
        until("the disk is served", || file.is_file())?;
        let device = output("losetup", &["--direct-io=on", "-f", "--show", &file.display().to_string()])?;
        self.device = device.trim().to_owned();
        Ok(())
    }

    /// Kills the server, as if it had crashed; whoever uses the disk sees errors.
    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Nobody uses it any more.
    fn leave(&mut self) {
        let _ = shell(&format!("umount -l {} 2>&1", self.fs()));
        if !self.device.is_empty() {
            let _ = output("losetup", &["-d", &self.device]);
            self.device.clear();
        }
        self.kill();
        let _ = shell(&format!("umount -l {}/served 2>&1", self.folder.display()));
    }

    /// Kills all processes that are at home in the file system; how many there were.
    fn kill_users(&self) -> usize {
        let home = |process: &fs::DirEntry| fs::read_link(process.path().join("cwd"));
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let users = processes.filter(|process| home(process).is_ok_and(|at| at.starts_with(self.fs())));
        let kill = |process: fs::DirEntry| shell(&format!("kill -9 {}", process.file_name().display()));
        users.map(kill).count()
    }

    fn mount(&self) -> Result<(), String> {
        output("mount", &[&self.device, &self.fs()]).map(drop)
    }

    fn unmount(&self) -> Result<(), String> {
        output("umount", &[&self.fs()]).map(drop)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.kill_users();
        self.leave();
        let _ = fs::remove_file(&self.region);
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_dir_all(run_folder());
    }
}

/// How a file system is made, and looked at.
const FILE_SYSTEMS: [(&str, &str, &str); 2] =
    [("ext4", "mkfs.ext4 -q -F", "e2fsck -f -n"), ("XFS", "mkfs.xfs -q -f", "xfs_repair -n")];

/// Runs them, with PostgreSQL killed so many times.
pub fn run_all(kills: &str) -> Result<(), String> {
    let kills: usize = kills.parse().map_err(|e| format!("{kills:?}: {e}"))?;
    run("cargo build --release --quiet -p caliburn-pm-command")?;
    let fsx = output("sh", &["-c", "command -v fsx || true"])?;
    if fsx.trim().is_empty() {
        return Err("install fsx (cargo install fsx), fio, postgresql, xfsprogs and e2fsprogs".into());
    }
    let mut disk = Disk::new()?;
    disk.serve()?;
    on_the_device(&disk)?;
    for (name, make, check) in FILE_SYSTEMS {
        shell(&format!("{make} {}", disk.device))?;
        disk.mount()?;
        on_a_file_system(&disk.fs())?;
        disk.unmount()?;
        shell(&format!("{check} {} 2>&1", disk.device))?;
        println!("{name}: fsx, fio, and what is there afterwards is sound");
    }
    postgres(&mut disk, kills)
}

/// Reads and writes of all lengths that a device takes.
fn on_the_device(disk: &Disk) -> Result<(), String> {
    let (device, folder) = (&disk.device, disk.folder.display());
    let configuration = "flen = 33554432\nblockmode = true\nnomsyncafterwrite = true\n[opsize]\nmax = 262144\nalign = 512\n\
                         [weights]\ntruncate = 0.0\nclose_open = 0.0\nposix_fallocate = 0.0\npunch_hole = 1.0\n";
    fs::write(disk.folder.join("fsx.toml"), configuration).map_err(|e| format!("{folder}: {e}"))?;
    shell(&format!("fsx -q -N 20000 -S 3 -f {folder}/fsx.toml -P {folder} {device} 2>&1"))?;
    shell(&format!(
        "fio --name=device --filename={device} --rw=randwrite --bsrange=512-256k --blockalign=512 --size=256m --direct=1 \
         --verify=crc32c --verify_state_save=0 --verify_fatal=1 --fsync=64 --trim_percentage=10 --iodepth=8 --ioengine=libaio --serialize_overlap=1 2>&1"
    ))?;
    println!("the device: fsx, fio");
    Ok(())
}

fn on_a_file_system(dir: &str) -> Result<(), String> {
    for seed in [1, 2] {
        shell(&format!("fsx -q -N 20000 -S {seed} -P /tmp {dir}/file{seed} 2>&1"))?;
    }
    shell(&format!(
        "fio --name=files --directory={dir} --rw=randwrite --bsrange=1k-128k --size=64m --numjobs=2 --fsync=32 \
         --verify=crc32c --verify_state_save=0 --verify_fatal=1 2>&1"
    ))?;
    Ok(())
}

/// Where PostgreSQL has its socket and its log; what it must reach is not below the folders of root.
fn run_folder() -> String {
    format!("/tmp/caliburn-others-{}", std::process::id())
}

/// PostgreSQL's programs as its user, who may not be root.
fn as_postgres(line: &str) -> Result<String, String> {
    shell(&format!(
        "cd / && PATH=$(echo /usr/lib/postgresql/*/bin):$PATH setpriv --reuid=postgres --regid=postgres --clear-groups {line}"
    ))
}

/// Transactions of `pgbench` while the disk is killed: after each recovery the balances agree with the history,
/// which has every transaction that was acknowledged, and every index with its table.
fn postgres(disk: &mut Disk, kills: usize) -> Result<(), String> {
    shell(&format!("mkfs.ext4 -q -F {}", disk.device))?;
    let (data, run) = (format!("{}/data", disk.fs()), run_folder());
    let serve = |disk: &Disk| {
        disk.mount()?;
        shell(&format!("chown postgres {}", disk.fs()))
    };
    serve(disk)?;
    shell(&format!("mkdir -p {run} && chown postgres {run}"))?;
    as_postgres(&format!("initdb -k -D {data} >/dev/null"))?;
    let start = || {
        as_postgres(&format!(
            "pg_ctl -w -D {data} -l {run}/log -o '-k {run} -c listen_addresses= -c fsync=on' start"
        ))
    };
    let ask = |sql: &str| {
        as_postgres(&format!("psql -h {run} -At -d postgres -c \"{sql}\"")).map(|text| text.trim().to_owned())
    };
    start()?;
    as_postgres(&format!("pgbench -h {run} -q -i -s 2 postgres 2>&1"))?;
    ask("CREATE EXTENSION amcheck")?;
    let mut there = 0;
    for kill in 1..=kills {
        let mut bench = Command::new("sh");
        let log = format!("{run}/bench");
        bench.arg("-c").arg(format!(
            "cd / && rm -f {log}; PATH=$(echo /usr/lib/postgresql/*/bin):$PATH exec setpriv --reuid=postgres --regid=postgres \
             --clear-groups pgbench -h {run} -n -c 4 -j 2 -T 120 --progress=1 postgres"
        ));
        let progress =
            fs::File::create(format!("{}/progress", disk.folder.display())).map_err(|e| e.to_string())?;
        let mut bench = bench.stdout(Stdio::null()).stderr(progress).spawn().map_err(|e| e.to_string())?;
        // Some transactions more each time, and never at the same moment of one.
        let counted = || ask("SELECT count(*) FROM pgbench_history").ok().and_then(|n| n.parse::<u64>().ok());
        let wanted = there + 500 + 97 * kill as u64;
        until("transactions go on", || counted().is_some_and(|count| count > wanted))?;
        // What a committed transaction sees was acknowledged, or is about to be by one that lasts.
        let acknowledged = counted().ok_or("the database does not answer")?;
        disk.kill();
        let _ = bench.kill();
        let _ = bench.wait();
        until("the database is gone", || disk.kill_users() == 0)?;
        disk.leave();
        disk.serve()?;
        // The journal first.
        serve(disk)?;
        disk.unmount()?;
        shell(&format!("e2fsck -f -n {} 2>&1", disk.device))?;
        serve(disk)?;
        // They name a process that is dead, and may not have been waited for.
        for lock in [format!("{data}/postmaster.pid"), format!("{run}/.s.PGSQL.5432.lock")] {
            let _ = fs::remove_file(lock);
        }
        start()?;
        let sums = ask(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) || ' ' || (SELECT sum(tbalance) FROM pgbench_tellers) || ' ' \
             || (SELECT sum(bbalance) FROM pgbench_branches) || ' ' || (SELECT sum(delta) FROM pgbench_history)",
        )?;
        let sums: Vec<&str> = sums.split(' ').collect();
        there = counted().ok_or("the database does not answer")?;
        if sums.len() != 4 || sums.iter().any(|sum| *sum != sums[0]) || there < acknowledged {
            return Err(format!(
                "kill {kill}: balances {sums:?}; {there} transactions, of {acknowledged} that were there"
            ));
        }
        as_postgres(&format!("pg_amcheck -h {run} --heapallindexed -d postgres 2>&1"))?;
    }
    as_postgres(&format!("pg_ctl -D {data} stop"))?;
    disk.unmount()?;
    println!("PostgreSQL: {there} transactions of pgbench survived {kills} kills of the disk's server");
    Ok(())
}
