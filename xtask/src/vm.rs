//! Virtual machines that crash: QEMU under software emulation with Debian's cloud kernel and an initramfs of busybox
//! and our own static program. The kernel panics, is reset, or loses its power (the emulator is killed) while
//! commits go on, or the disk begins to refuse writes (dm-flakey); the next boot verifies. Redo stores are on a
//! virtio disk with ext4, some with their log on an emulated NVDIMM; undo stores on ext4 that is mapped directly
//! (`-o dax`) from such an NVDIMM, or from memory that the parameter `memmap=` reserves, which outlives a warm start
//! only; others on a file system on a disk of blocks in an NVDIMM, with a database of SQLite's and a tree of files.
//! One more machine logs what it writes to its disk (dm-log-writes), see `writes.rs`.

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
/// What a machine keeps its store on: a name, the word for the guest, and in how many of [`CRASHES`] it can end.
const KINDS: [(&str, &str, usize); 7] = [
    ("disk", "-", 4),
    ("disk and nvdimm", "/dev/pmem0", 4),
    ("shadow on a disk, caught", "shadow", 4),
    ("shadow on a disk, in a buffer pool", "pool", 4),
    ("undo in an nvdimm", "power", 3),
    ("ext4 on a disk of blocks in an nvdimm", "disk", 3),
    ("XFS on a disk of blocks in an nvdimm", "xfs", 3),
];
/// What is kept in memory that outlives a warm start.
const RESERVED: [(&str, &str); 2] =
    [("undo in reserved memory", "os"), ("ext4 on a disk of blocks in reserved memory", "warm")];
/// Who says what was acknowledged: two threads with a store, a database, a tree of files.
const WRITERS: usize = 4;
/// Seconds from its start after which the failing disk refuses writes: opened by then, with commits going on.
const SOUND: u32 = 4;

/// Crashes machines in each way so many times, those of which the kind's name holds a word.
pub fn run(rounds: &str, word: &str) -> Result<(), String> {
    let rounds: u64 = rounds.parse().map_err(|e| format!("{rounds:?}: {e}"))?;
    let start = Instant::now();
    let kernel = kernel()?;
    initramfs(&kernel)?;
    let mut counts = [0u64; CRASHES.len()];
    let kinds: Vec<_> = KINDS.into_iter().filter(|(kind, ..)| kind.contains(word)).collect();
    if !KINDS
        .iter()
        .map(|(kind, ..)| kind)
        .chain(RESERVED.iter().map(|(kind, _)| kind))
        .any(|kind| kind.contains(word))
    {
        return Err(format!("no kind of machine has {word:?} in its name"));
    }
    for (i, (kind, store, ways)) in kinds.iter().copied().enumerate() {
        new_media()?;
        let mut acknowledged = [0u64; WRITERS];
        let share = (rounds + kinds.len() as u64 - 1 - i as u64) / kinds.len() as u64;
        for round in 0..share * ways as u64 + 1 {
            // The last boot only verifies.
            let way = (round % ways as u64) as usize;
            let (name, trigger) = CRASHES[way];
            let after = 150 + round * 7919 % 1100;
            let last = round == share * ways as u64;
            life(&kernel, store, trigger, after, last, &mut acknowledged)
                .map_err(|e| format!("{kind}, round {round}, {name}: {e}"))?;
            if !last {
                counts[way] += 1;
            }
        }
        println!("{kind}: {} survived", counts_of(acknowledged));
    }
    for (kind, store) in RESERVED.into_iter().filter(|(kind, _)| kind.contains(word)) {
        let (starts, there) = warm_starts(&kernel, (kind, store), rounds.div_ceil(2))?;
        println!("{kind}: {} survived {starts} warm starts", counts_of(there));
    }
    for ((name, _), count) in CRASHES.iter().zip(counts) {
        println!("{count} times {name}");
    }
    println!("every acknowledged commit was there, {:.0} s", start.elapsed().as_secs_f64());
    if word.is_empty() { writes::run(rounds as usize * 20) } else { Ok(()) }
}

fn counts_of([a, b, rows, files]: [u64; WRITERS]) -> String {
    format!("{} commits, {rows} rows and {files} files", a + b)
}

/// A machine that logs the writes to its disk while commits go on for a moment.
pub fn log_writes(log: &str) -> Result<(), String> {
    let _ = fs::remove_file(log);
    let file = fs::File::create(log).map_err(|e| format!("{log}: {e}"))?;
    file.set_len(512 << 20).map_err(|e| format!("{log}: {e}"))?;
    new_media()?;
    fs::copy(format!("{FOLDER}/disk"), writes::BASE).map_err(|e| format!("{}: {e}", writes::BASE))?;
    let mut machine = start(&kernel()?, "-", "-,w,2500,0,0,0,0", Some(log))?;
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
    let missing = "install qemu-system-x86, linux-image-cloud-amd64, busybox-static, cpio, kmod, dmsetup, e2fsprogs, \
         xfsprogs and sqlite3";
    let entries = fs::read_dir("/boot").map_err(|e| format!("/boot: {e}; {missing}"))?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let version =
        names.filter_map(|n| Some(n.strip_prefix("vmlinuz-")?.to_owned())).find(|n| n.contains("cloud"));
    let version = version.ok_or(format!("no cloud kernel in /boot: {missing}"))?;
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in
        ["virtio_pci", "virtio_blk", "nfit", "nd_pmem", "nd_e820", "dm_flakey", "dm_log_writes", "nbd", "xfs"]
    {
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
    for program in ["dmsetup", "mkfs.ext4", "e2fsck", "mkfs.xfs", "xfs_repair", "sqlite3"] {
        let places = ["/sbin", "/usr/sbin", "/usr/bin"].map(|folder| format!("{folder}/{program}"));
        let place = places.iter().find(|place| Path::new(place).exists());
        let place =
            place.ok_or(format!("install dmsetup, e2fsprogs, xfsprogs and sqlite3, for {program}"))?;
        fs::copy(place, root.join("bin").join(program)).map_err(io(program))?;
        // The libraries that it needs, where it looks for them.
        for path in output("ldd", &[place])?.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = root.join(&path[1..]);
            fs::create_dir_all(target.parent().unwrap_or(&root)).map_err(io(path))?;
            fs::copy(path, target).map_err(io(path))?;
        }
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
    // Whoever waits for ever is shown before the machine is given up.
    init += &format!(
        "($b sleep {}; echo 8 > /proc/sys/kernel/printk; echo guest: stuck; echo l > /proc/sysrq-trigger; \
         echo t > /proc/sysrq-trigger) &\n",
        PATIENCE.as_secs() - 30
    );
    init += "disk=/dev/vda\n\
             for word in $($b cat /proc/cmdline); do case $word in guest=*) words=${word#guest=};; esac; done\n";
    init += &format!(
        "how=\ncase $words in\npower,*|os,*|disk,*|xfs,*|warm,*) disk=/dev/pmem0; how='-o dax';;\n*,f,*) {}*,w,*) {}esac\n",
        table(&format!("flakey /dev/vda 0 {SOUND} 1000 1 error_writes")),
        table("log-writes /dev/vda /dev/vdb")
    );
    // An NVDIMM can be mapped directly when a header on it says where its pages are described; that header and
    // the file system are made when the memory is new.
    init += "kind=ext4\nmount() { $b mount -t $kind $how $disk /mnt; }\n\
             case $words in power,*|os,*|disk,*|xfs,*|warm,*) if ! mount 2>/dev/null; then echo guest: new memory\n\
             if [ $($b cat /sys/block/pmem0/queue/dax) = 0 ]; then cd /sys/bus/nd/devices\n\
             echo namespace0.0 > ../drivers/nd_pmem/unbind; echo ram > pfn0.0/mode; echo 2097152 > pfn0.0/align\n\
             $b cat /proc/sys/kernel/random/uuid > pfn0.0/uuid; echo namespace0.0 > pfn0.0/namespace\n\
             echo pfn0.0 > ../drivers/nd_pmem/bind; cd /; fi\n\
             /bin/mkfs.ext4 -q -b 4096 $disk; else $b umount /mnt; fi;; esac\n\
             make='/bin/mkfs.ext4 -q -b 4096'; check='/bin/e2fsck -f -n'\n\
             case $words in xfs,*) kind=xfs; make='/bin/mkfs.xfs --unsupported -q'; check='/bin/xfs_repair -n';; esac\n\
             case $words in disk,*|xfs,*|warm,*) $b mkdir /pm; $b mount -t ext4 -o dax /dev/pmem0 /pm\n\
             /bin/guest disk /pm/region /dev/nbd0 &\n\
             until [ -e /ready ]; do $b usleep 20000; done; disk=/dev/nbd0; how=\n\
             if [ -e /pm/made ]; then mount; $b umount /mnt; $check $disk >/check 2>&1 || { $b cat /check; echo guest: ended by $check; }\n\
             else echo guest: new disk; $make $disk; $b touch /pm/made; $b sync; fi;; esac\n\
             mount || echo guest: no disk\n\
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

/// A disk with an empty file system, and an empty NVDIMM.
fn new_media() -> Result<(), String> {
    for (name, bytes) in [("disk", 64 << 20), ("nvdimm", 64 << 20)] {
        let path = format!("{FOLDER}/{name}");
        let _ = fs::remove_file(&path);
        let file = fs::File::create(&path).map_err(|e| format!("{path}: {e}"))?;
        file.set_len(bytes).map_err(|e| format!("{path}: {e}"))?;
    }
    output("mkfs.ext4", &["-q", &format!("{FOLDER}/disk")]).map(drop)
}

fn start(kernel: &Kernel, store: &str, words: &str, second: Option<&str>) -> Result<Child, String> {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-nographic", "-kernel"]);
    qemu.arg(&kernel.image).args(["-initrd", &format!("{FOLDER}/initramfs")]);
    let warm = RESERVED.iter().any(|(_, word)| *word == store);
    let reserved = if warm { "memmap=64M!256M " } else { "" };
    qemu.args(["-append", &format!("console=ttyS0 panic=-1 loglevel=3 {reserved}guest={words}")]);
    if !warm {
        qemu.arg("-no-reboot");
    }
    qemu.args(["-drive", &format!("file={FOLDER}/disk,if=virtio,format=raw")]);
    if let Some(second) = second {
        qemu.args(["-drive", &format!("file={second},if=virtio,format=raw")]);
    }
    if ["/dev/pmem0", "power", "disk", "xfs"].contains(&store) {
        qemu.args(["-machine", "pc,nvdimm=on", "-m", "512,slots=2,maxmem=1G", "-object"]);
        qemu.arg(format!("memory-backend-file,id=mem1,share=on,mem-path={FOLDER}/nvdimm,size=64M"));
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
    store: &str,
    trigger: &str,
    after: u64,
    last: bool,
    acknowledged: &mut [u64; WRITERS],
) -> Result<(), String> {
    let numbers: Vec<String> = acknowledged.iter().map(u64::to_string).collect();
    let words = format!("{store},{trigger},{after},{}", numbers.join(","));
    let mut machine = start(kernel, store, &words, None)?;
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

/// One machine that is started warm so many times, by a panic or a reset, with its store in memory that outlives
/// it: how many times it was, and how much there is in the end.
fn warm_starts(
    kernel: &Kernel,
    (kind, store): (&str, &str),
    wanted: u64,
) -> Result<(u64, [u64; WRITERS]), String> {
    new_media()?;
    let mut machine = start(kernel, store, &format!("{store},r,700,0,0,0,0"), None)?;
    let lines = console(&mut machine)?;
    let (mut acknowledged, mut starts, mut said) = ([0u64; WRITERS], 0, String::new());
    let mut begun = Instant::now();
    let ended = loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            // Behind what the firmware says.
            Ok(line) if line.contains("guest: verified ") => {
                let there: Vec<u64> =
                    line.split(' ').rev().take(WRITERS).filter_map(|n| n.parse().ok()).collect();
                let there: Vec<u64> = there.into_iter().rev().collect();
                if there.len() < WRITERS
                    || there.iter().zip(acknowledged).any(|(there, acknowledged)| *there < acknowledged)
                {
                    break Err(format!("{acknowledged:?} was acknowledged and {there:?} is there"));
                }
                if starts == wanted {
                    break Ok((starts, std::array::from_fn(|writer| there[writer])));
                }
                starts += 1;
                (begun, said) = (Instant::now(), String::new());
            }
            Ok(line) if line.contains("guest: ended") || line.contains("guest: no disk") => {
                break Err(format!("{said}{line}"));
            }
            Ok(line) if line.contains("guest: new memory") && starts > 0 => {
                break Err("the memory did not survive a warm start".into());
            }
            Ok(line) => {
                note(&line, &mut acknowledged);
                said += &format!("{line}\n");
            }
            Err(RecvTimeoutError::Timeout) if begun.elapsed() < PATIENCE => {}
            Err(_) => break Err(format!("nothing for {} s, or it went off: {said}", PATIENCE.as_secs())),
        }
    };
    let _ = machine.kill();
    let _ = machine.wait();
    ended.map_err(|e| format!("{kind}, warm start {starts}: {e}"))
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
    acknowledged: &mut [u64; WRITERS],
) -> Result<(), String> {
    let start = Instant::now();
    let mut verified: Option<Instant> = None;
    let mut said = String::new();
    while start.elapsed() < PATIENCE {
        match lines.recv_timeout(Duration::from_millis(5)) {
            Ok(line) if line.contains("guest: failed") && end == End::KillWhenFailed => {
                return machine.kill().map_err(|e| e.to_string());
            }
            Ok(line) if line.contains("guest: verified") => {
                verified = Some(Instant::now());
                said += &format!("{line}\n");
            }
            Ok(line) if line.contains("guest: ended") || line.contains("guest: no disk") => {
                return Err(format!("{said}{line}"));
            }
            Ok(line) => {
                if !line.starts_with("ack ") {
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
fn note(line: &str, acknowledged: &mut [u64; WRITERS]) {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["ack", writer, number] = words[..]
        && let (Ok(writer), Ok(number)) = (writer.parse::<usize>(), number.parse::<u64>())
        && let Some(newest) = acknowledged.get_mut(writer)
    {
        // A number that was cut off is smaller than the newest.
        *newest = (*newest).max(number);
    }
}
