//! Virtual machines that crash: QEMU under software emulation with Debian's cloud kernel and an initramfs of
//! busybox and our own static program. The kernel panics, is reset, or loses its power (the emulator is
//! killed) while commits go on, or the disk begins to refuse writes (dm-flakey); the next boot verifies. The store is
//! on a virtio disk with ext4; in every other machine its log is on an emulated NVDIMM. One more machine
//! logs what it writes to its disk (dm-log-writes), see `writes.rs`.

use crate::writes;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const FOLDER: &str = "target/vm";
/// Longest that a machine may take from power on to its verdict, and to its crash.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a machine ends.
const CRASHES: [(&str, &str); 4] =
    [("panic", "c"), ("reset", "b"), ("power cut", "-"), ("failing disk, then a power cut", "f")];
/// Seconds from its start after which the failing disk refuses writes: opened by then, with commits going on.
const SOUND: u32 = 4;

/// Crashes machines in each way so many times.
pub fn run(rounds: &str) -> Result<(), String> {
    let rounds: u64 = rounds.parse().map_err(|e| format!("{rounds:?}: {e}"))?;
    let start = Instant::now();
    let kernel = kernel()?;
    initramfs(&kernel)?;
    let mut counts = [0u64; CRASHES.len()];
    for (kind, nvdimm) in [("disk", false), ("disk and nvdimm", true)] {
        new_media()?;
        let mut acknowledged = [0u64; 2];
        let share = if nvdimm { rounds / 2 } else { rounds - rounds / 2 };
        let ways = CRASHES.len() as u64;
        for round in 0..share * ways + 1 {
            // The last boot only verifies.
            let (name, trigger) = CRASHES[(round % ways) as usize];
            let after = 150 + round * 7919 % 1100;
            let last = round == share * ways;
            life(&kernel, nvdimm, trigger, after, last, &mut acknowledged)
                .map_err(|e| format!("{kind}, round {round}, {name}: {e}"))?;
            if !last {
                counts[(round % ways) as usize] += 1;
            }
        }
        println!("{kind}: {} commits survived", acknowledged.iter().sum::<u64>());
    }
    for ((name, _), count) in CRASHES.iter().zip(counts) {
        println!("{count} times {name}");
    }
    println!("every acknowledged commit was there, {:.0} s", start.elapsed().as_secs_f64());
    writes::run(rounds as usize * 20)
}

/// A machine that logs the writes to its disk while commits go on for a moment.
pub fn log_writes(log: &str) -> Result<(), String> {
    let _ = fs::remove_file(log);
    let file = fs::File::create(log).map_err(|e| format!("{log}: {e}"))?;
    file.set_len(512 << 20).map_err(|e| format!("{log}: {e}"))?;
    new_media()?;
    fs::copy(format!("{FOLDER}/disk"), writes::BASE).map_err(|e| format!("{}: {e}", writes::BASE))?;
    let mut machine = start(&kernel()?, false, "-,w,2500,0,0", Some(log))?;
    let lines = console(&mut machine)?;
    let mut said = String::new();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) if line.starts_with("ack ") => {}
            Ok(line) => said += &format!("{line}\n"),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = machine.kill();
    let _ = machine.wait();
    if said.contains("guest: ended 0") { Ok(()) } else { Err(format!("the logging machine: {said}")) }
}

/// Where the program is that runs in the machines.
pub fn guest() -> String {
    format!("target/guest/{TARGET}/release/guest")
}

struct Kernel {
    image: PathBuf,
    modules: Vec<PathBuf>,
}

pub fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Debian's cloud kernel, and the modules that the guest needs, in order.
fn kernel() -> Result<Kernel, String> {
    let missing =
        "install qemu-system-x86, linux-image-cloud-amd64, busybox-static, cpio, kmod, dmsetup and e2fsprogs";
    let entries = fs::read_dir("/boot").map_err(|e| format!("/boot: {e}; {missing}"))?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let version =
        names.filter_map(|n| Some(n.strip_prefix("vmlinuz-")?.to_owned())).find(|n| n.contains("cloud"));
    let version = version.ok_or(format!("no cloud kernel in /boot: {missing}"))?;
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in ["virtio_pci", "virtio_blk", "nfit", "nd_pmem", "dm_flakey", "dm_log_writes"] {
        for line in output("modprobe", &["-S", &version, "-D", module])?.lines() {
            let Some(path) = line.trim().strip_prefix("insmod ") else { continue };
            let path = PathBuf::from(path.trim());
            if !modules.contains(&path) {
                modules.push(path);
            }
        }
    }
    Ok(Kernel { image: format!("/boot/vmlinuz-{version}").into(), modules })
}

fn initramfs(kernel: &Kernel) -> Result<(), String> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |e: std::io::Error| format!("{what}: {e}")
    };
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet", "-p", "caliburn-sim", "--bin", "guest", "--target", TARGET]);
    build.args(["--target-dir", "target/guest"]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    if !build.status().map_err(io("cargo"))?.success() {
        return Err("the guest's program does not build".into());
    }
    let root = Path::new(FOLDER).join("root");
    let _ = fs::remove_dir_all(&root);
    for folder in ["proc", "sys", "dev", "mnt", "bin", "modules"] {
        fs::create_dir_all(root.join(folder)).map_err(io(folder))?;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    fs::copy(busybox.ok_or("install busybox-static")?, root.join("bin/busybox")).map_err(io("busybox"))?;
    fs::copy(guest(), root.join("bin/guest")).map_err(io("guest"))?;
    let dmsetup = ["/sbin/dmsetup", "/usr/sbin/dmsetup"].into_iter().find(|p| Path::new(p).exists());
    let dmsetup = dmsetup.ok_or("install dmsetup")?;
    fs::copy(dmsetup, root.join("bin/dmsetup")).map_err(io("dmsetup"))?;
    // The libraries that it needs, where it looks for them.
    for path in output("ldd", &[dmsetup])?.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = root.join(&path[1..]);
        fs::create_dir_all(target.parent().unwrap_or(&root)).map_err(io(path))?;
        fs::copy(path, target).map_err(io(path))?;
    }
    let mut init = "#!/bin/busybox sh\nb=/bin/busybox\n$b mount -t proc proc /proc\n\
                    $b mount -t sysfs sysfs /sys\n$b mount -t devtmpfs dev /dev\n"
        .to_owned();
    for (i, module) in kernel.modules.iter().enumerate() {
        fs::copy(module, root.join(format!("modules/{i}.ko"))).map_err(io("modules"))?;
        init += &format!("$b insmod /modules/{i}.ko\n");
    }
    let table = |rest: &str| {
        format!(
            "/bin/dmsetup create d --noudevsync --table \"0 $($b cat /sys/block/vda/size) {rest}\"; disk=/dev/dm-0;;\n"
        )
    };
    init += "disk=/dev/vda\n\
             for word in $($b cat /proc/cmdline); do case $word in guest=*) words=${word#guest=};; esac; done\n";
    init += &format!(
        "case $words in\n*,f,*) {}*,w,*) {}esac\n",
        table(&format!("flakey /dev/vda 0 {SOUND} 1000 1 error_writes")),
        table("log-writes /dev/vda /dev/vdb")
    );
    init += "$b mount -t ext4 $disk /mnt || echo guest: no disk\n\
             /bin/guest /mnt/store $(echo $words | $b tr , ' ')\n\
             echo guest: ended $?\n$b umount /mnt\n$b sync\n\
             [ $disk = /dev/vda ] || /bin/dmsetup remove --noudevsync d\n$b poweroff -f\n";
    fs::write(root.join("init"), init).map_err(io("init"))?;
    let pack = format!(
        "chmod +x {0}/init && cd {0} && find . | cpio -o -H newc --quiet | gzip -1 > ../initramfs",
        root.display()
    );
    output("sh", &["-c", &pack]).map(drop)
}

fn new_media() -> Result<(), String> {
    for (name, bytes) in [("disk", 64 << 20), ("nvdimm", 16 << 20)] {
        let path = format!("{FOLDER}/{name}");
        let _ = fs::remove_file(&path);
        let file = fs::File::create(&path).map_err(|e| format!("{path}: {e}"))?;
        file.set_len(bytes).map_err(|e| format!("{path}: {e}"))?;
    }
    output("mkfs.ext4", &["-q", &format!("{FOLDER}/disk")]).map(drop)
}

fn start(kernel: &Kernel, nvdimm: bool, words: &str, second: Option<&str>) -> Result<Child, String> {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-nographic", "-no-reboot", "-kernel"]);
    qemu.arg(&kernel.image).args(["-initrd", &format!("{FOLDER}/initramfs")]);
    qemu.args(["-append", &format!("console=ttyS0 panic=-1 loglevel=3 guest={words}")]);
    qemu.args(["-drive", &format!("file={FOLDER}/disk,if=virtio,format=raw")]);
    if let Some(second) = second {
        qemu.args(["-drive", &format!("file={second},if=virtio,format=raw")]);
    }
    if nvdimm {
        qemu.args(["-machine", "pc,nvdimm=on", "-m", "512,slots=2,maxmem=1G", "-object"]);
        qemu.arg(format!("memory-backend-file,id=mem1,share=on,mem-path={FOLDER}/nvdimm,size=16M"));
        qemu.args(["-device", "nvdimm,id=nvdimm1,memdev=mem1"]);
    } else {
        qemu.args(["-m", "512"]);
    }
    qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    qemu.spawn().map_err(|e| format!("qemu-system-x86_64: {e}"))
}

/// One machine's life: it verifies what the last one left, then commits until it crashes.
fn life(
    kernel: &Kernel,
    nvdimm: bool,
    trigger: &str,
    after: u64,
    last: bool,
    acknowledged: &mut [u64; 2],
) -> Result<(), String> {
    let log = if nvdimm { "/dev/pmem0" } else { "-" };
    let words = format!("{log},{trigger},{after},{},{}", acknowledged[0], acknowledged[1]);
    let mut machine = start(kernel, nvdimm, &words, None)?;
    let lines = console(&mut machine)?;
    let end = match trigger {
        _ if last => End::Kill,
        "-" => End::Kill,
        "f" => End::KillWhenFailed,
        _ => End::Itself,
    };
    let ended = watch(&mut machine, &lines, end, after, acknowledged);
    let _ = machine.kill();
    let _ = machine.wait();
    // What it had said before it died counts.
    while let Ok(line) = lines.recv_timeout(Duration::from_millis(200)) {
        note(&line, acknowledged);
    }
    ended
}

/// The lines that a machine says.
fn console(machine: &mut Child) -> Result<Receiver<String>, String> {
    let console = BufReader::new(machine.stdout.take().ok_or("no console")?);
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}

/// What ends a machine.
#[derive(PartialEq, Eq)]
enum End {
    /// It does.
    Itself,
    /// Its power is cut.
    Kill,
    /// Its power is cut when its disk has failed.
    KillWhenFailed,
}

fn watch(
    machine: &mut Child,
    lines: &Receiver<String>,
    end: End,
    after: u64,
    acknowledged: &mut [u64; 2],
) -> Result<(), String> {
    let start = Instant::now();
    let mut verified: Option<Instant> = None;
    let mut said = String::new();
    while start.elapsed() < PATIENCE {
        match lines.recv_timeout(Duration::from_millis(5)) {
            Ok(line) if line.contains("guest: failed") && end == End::KillWhenFailed => {
                return machine.kill().map_err(|e| e.to_string());
            }
            Ok(line) if line.contains("guest: verified") => verified = Some(Instant::now()),
            Ok(line) if line.contains("guest: ended") || line.contains("guest: no disk") => {
                return Err(format!("{said}{line}"));
            }
            Ok(line) if line.contains("panicked") && !line.contains("sysrq") => said = format!("{line}\n"),
            Ok(line) => {
                if !said.is_empty() {
                    said += &format!("{line}\n");
                }
                note(&line, acknowledged);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The machine is off.
            Err(RecvTimeoutError::Disconnected) if verified.is_some() => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("it went off before it verified: {said}"));
            }
        }
        if end == End::Kill && verified.is_some_and(|at| at.elapsed() > Duration::from_millis(after)) {
            return machine.kill().map_err(|e| e.to_string());
        }
    }
    Err(format!("nothing for {} s: {said}", PATIENCE.as_secs()))
}

/// `ack THREAD NUMBER`, whole: half a line at the end says nothing.
fn note(line: &str, acknowledged: &mut [u64; 2]) {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["ack", thread @ ("0" | "1"), number] = words[..]
        && let Ok(number) = number.parse::<u64>()
    {
        let newest = &mut acknowledged[usize::from(thread == "1")];
        // A number that was cut off is smaller than the newest.
        *newest = (*newest).max(number);
    }
}
