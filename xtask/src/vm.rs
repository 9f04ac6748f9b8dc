//! Virtual machines that crash: QEMU under software emulation with Debian's cloud kernel and an initramfs of busybox
//! and our own static program. The kernel panics, is reset, or loses its power (the emulator is killed) while
//! commits go on, or the disk begins to refuse writes (dm-flakey); the next boot verifies. Redo stores are on a
//! virtio disk with ext4, some with their log on an emulated NVDIMM; undo stores on ext4 that is mapped directly
//! (`-o dax`) from such an NVDIMM, or from memory that the parameter `memmap=` reserves, which outlives a warm start
//! only; others on a file system on a disk of blocks in an NVDIMM, with a database of SQLite's and a tree of files.
//! A module of ours (`sim/guest/faulty.c`) has the kernel fail in other ways, and store wildly into blocks and all
//! else. One more machine logs what it writes to its disk (dm-log-writes), see `writes.rs`.

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

/// How a machine ends: its name, and the word for the guest.
const CRASHES: [(&str, &str); 8] = [
    ("panic", "c"),
    ("reset", "b"),
    ("power cut", "-"),
    ("failing disk, then a power cut", "f"),
    ("a null pointer", "n"),
    ("a stack that overflows", "s"),
    ("processors that hang", "h"),
    ("wild stores", "x"),
];
/// What a machine keeps its store on: a name, the word for the guest, the [`CRASHES`] in which it ends, by turns,
/// and how often it does where others do once.
const KINDS: [(&str, &str, &str, u64); 9] = [
    ("disk", "-", "cb-f", 4),
    ("disk and nvdimm", "/dev/pmem0", "cb-f", 4),
    ("shadow on a disk, caught", "shadow", "cb-f", 4),
    ("shadow on a disk, in a buffer pool", "pool", "cb-f", 4),
    ("undo in an nvdimm", "power", "cb-", 3),
    ("ext4 on a disk of blocks in an nvdimm", "disk", "-nbsch", 3),
    ("XFS on a disk of blocks in an nvdimm", "xfs", "sch-nb", 3),
    ("ext4 on a disk of blocks on a device of memory", "dax", "h-nbsc", 1),
    ("blocks on a device of memory, under wild stores", "wild", "x", 2),
];
/// What is kept in memory that outlives a warm start.
const RESERVED: [(&str, &str); 2] =
    [("undo in reserved memory", "os"), ("ext4 on a disk of blocks in reserved memory", "warm")];
/// A machine that does not crash: its processor has protection keys.
const KEYS: &str = "tests of protection keys";
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
    if kinds.is_empty() && !RESERVED.iter().any(|(kind, _)| kind.contains(word)) && !KEYS.contains(word) {
        return Err(format!("no kind of machine has {word:?} in its name"));
    }
    for (i, (kind, store, ways, often)) in kinds.iter().copied().enumerate() {
        new_media()?;
        let mut said = Said::default();
        let lives = (rounds + kinds.len() as u64 - 1 - i as u64) / kinds.len() as u64 * often;
        for round in 0..lives + 1 {
            let trigger = &ways[round as usize % ways.len()..][..1];
            let way = CRASHES.iter().position(|(_, word)| *word == trigger).expect("it is one of them");
            let after = 150 + round * 7919 % 1100;
            // The last boot only verifies.
            let last = round == lives;
            life(&kernel, store, trigger, after, last, &mut said)
                .map_err(|e| format!("{kind}, round {round}, {}: {e}", CRASHES[way].0))?;
            counts[way] += u64::from(!last);
        }
        println!("{kind}: {} survived", counts_of(said.acknowledged));
        if said.stores > 0 {
            let Said { stores, damaged, undone, .. } = said;
            println!("    {stores} wild stores, {damaged} damaged blocks, {undone} writes undone");
        }
        if store == "wild" && lives > 0 && said.damaged == 0 {
            return Err(format!("{kind}: {} wild stores damaged nothing", said.stores));
        }
    }
    for (kind, store) in RESERVED.into_iter().filter(|(kind, _)| kind.contains(word)) {
        let (starts, there) = warm_starts(&kernel, (kind, store), rounds.div_ceil(2))?;
        println!("{kind}: {} survived {starts} warm starts", counts_of(there));
    }
    for ((name, _), count) in CRASHES.iter().zip(counts).filter(|(_, count)| *count > 0) {
        println!("{count} times {name}");
    }
    if KEYS.contains(word) {
        tests_of_keys(&kernel)?;
    }
    println!("every acknowledged commit was there, {:.0} s", start.elapsed().as_secs_f64());
    if word.is_empty() { writes::run(rounds as usize * 20) } else { Ok(()) }
}

fn counts_of([a, b, rows, files]: [u64; WRITERS]) -> String {
    format!("{} commits, {rows} rows and {files} files", a + b)
}

/// Runs tests that need protection keys, in a machine that has them.
fn tests_of_keys(kernel: &Kernel) -> Result<(), String> {
    new_media()?;
    ended(start(kernel, "-", "keys,-,0,0,0,0,0", None)?)?;
    println!("{KEYS}: passed");
    Ok(())
}

/// A machine that logs the writes to its disk while commits go on for a moment.
pub fn log_writes(log: &str) -> Result<(), String> {
    let _ = fs::remove_file(log);
    let file = fs::File::create(log).map_err(|e| format!("{log}: {e}"))?;
    file.set_len(512 << 20).map_err(|e| format!("{log}: {e}"))?;
    new_media()?;
    fs::copy(format!("{FOLDER}/disk"), writes::BASE).map_err(|e| format!("{}: {e}", writes::BASE))?;
    ended(start(&kernel()?, "-", "-,w,2500,0,0,0,0", Some(log))?)
}

/// Waits for a machine that ends by itself, well.
fn ended(mut machine: Child) -> Result<(), String> {
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
    if said.contains("guest: ended 0") {
        Ok(())
    } else {
        Err(format!("a machine that should end well: {said}"))
    }
}

/// Where the program is that runs in the machines.
pub fn guest() -> String {
    format!("target/guest/{TARGET}/release/guest")
}

struct Kernel {
    version: String,
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
    let missing = "install qemu-system-x86, linux-image-cloud-amd64, linux-headers-cloud-amd64, make, busybox-static, cpio, kmod, dmsetup, e2fsprogs, \
         xfsprogs and sqlite3";
    let entries = fs::read_dir("/boot").map_err(|e| format!("/boot: {e}; {missing}"))?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let version =
        names.filter_map(|n| Some(n.strip_prefix("vmlinuz-")?.to_owned())).find(|n| n.contains("cloud"));
    let version = version.ok_or(format!("no cloud kernel in /boot: {missing}"))?;
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in
        "virtio_pci virtio_blk nfit nd_pmem nd_e820 device_dax dax_pmem dm_flakey dm_log_writes nbd xfs"
            .split(' ')
    {
        for line in output("modprobe", &["-S", &version, "-D", module])?.lines() {
            let Some(path) = line.trim().strip_prefix("insmod ") else { continue };
            let path = PathBuf::from(path.trim());
            if !modules.contains(&path) {
                modules.push(path);
            }
        }
    }
    Ok(Kernel { image: format!("/boot/vmlinuz-{version}").into(), modules, version })
}

fn initramfs(kernel: &Kernel) -> Result<(), String> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |e: std::io::Error| format!("{what}: {e}")
    };
    static_build("build --quiet -p caliburn-sim --bin guest")?;
    let built =
        static_build("test --quiet --no-run -p caliburn --test guard --test keys --message-format json")?;
    let root = Path::new(FOLDER).join("root");
    let _ = fs::remove_dir_all(&root);
    for folder in ["proc", "sys", "dev", "mnt", "bin", "tests", "modules"] {
        fs::create_dir_all(root.join(folder)).map_err(io(folder))?;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    fs::copy(busybox.ok_or("install busybox-static")?, root.join("bin/busybox")).map_err(io("busybox"))?;
    fs::copy(guest(), root.join("bin/guest")).map_err(io("guest"))?;
    let tests = built.split("\"executable\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    for path in tests {
        let name = path.rsplit('/').next().and_then(|name| name.split('-').next()).unwrap_or(path);
        fs::copy(path, root.join("tests").join(name)).map_err(io(path))?;
    }
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
    let ours = [faulty(kernel)?];
    for (i, module) in kernel.modules.iter().chain(&ours).enumerate() {
        fs::copy(module, root.join(format!("modules/{i:02}.ko"))).map_err(io("modules"))?;
    }
    let patience = (PATIENCE.as_secs() - 30).to_string();
    let init = include_str!("../../sim/guest/init.sh")
        .replace("sleep PATIENCE", &format!("sleep {patience}"))
        .replace("0 SOUND", &format!("0 {SOUND}"));
    fs::write(root.join("init"), init).map_err(io("init"))?;
    let pack = format!(
        "chmod +x {0}/init && cd {0} && find . | cpio -o -H newc --quiet | gzip -1 > ../initramfs",
        root.display()
    );
    output("sh", &["-c", &pack]).map(drop)
}

/// Builds what runs without libraries; returns what Cargo says of it.
fn static_build(line: &str) -> Result<String, String> {
    let mut build =
        crate::command(&format!("cargo {line} --release --target {TARGET} --target-dir target/guest"));
    build.env("RUSTFLAGS", "-C target-feature=+crt-static").stderr(Stdio::inherit());
    let output = build.output().map_err(|e| format!("cargo: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err("what runs in the machines does not build".into()),
    }
}

/// The module that has the kernel fail.
fn faulty(kernel: &Kernel) -> Result<PathBuf, String> {
    let folder = Path::new(FOLDER).join("faulty");
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(io)?;
    for name in ["faulty.c", "Kbuild"] {
        fs::copy(Path::new("sim/guest").join(name), folder.join(name)).map_err(io)?;
    }
    let headers = format!("/usr/src/linux-headers-{}", kernel.version);
    let here = folder.canonicalize().map_err(io)?;
    output("make", &["-s", "-C", &headers, &format!("M={}", here.display()), "modules"])
        .map_err(|e| format!("{e}; install linux-headers-{} and make", kernel.version))?;
    Ok(folder.join("faulty.ko"))
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
    qemu.args(["-append", &format!("console=ttyS0 panic=-1 oops=panic loglevel=3 {reserved}guest={words}")]);
    if !warm {
        qemu.arg("-no-reboot");
    }
    qemu.args(["-drive", &format!("file={FOLDER}/disk,if=virtio,format=raw")]);
    if let Some(second) = second {
        qemu.args(["-drive", &format!("file={second},if=virtio,format=raw")]);
    }
    if ["/dev/pmem0", "power", "disk", "xfs", "dax", "wild"].contains(&store) {
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
    said: &mut Said,
) -> Result<(), String> {
    let numbers: Vec<String> = said.acknowledged.iter().map(u64::to_string).collect();
    let words = format!("{store},{trigger},{after},{}", numbers.join(","));
    let mut machine = start(kernel, store, &words, None)?;
    let lines = console(&mut machine)?;
    let end = match trigger {
        _ if last => End::Kill,
        "-" => End::Kill,
        "f" => End::KillWhenFailed,
        "h" => End::KillWhenSilent,
        "x" => End::Anyhow,
        _ => End::Itself,
    };
    let ended = watch(&mut machine, &lines, end, after, said);
    let _ = machine.kill();
    let _ = machine.wait();
    // What it had said before it died counts.
    while let Ok(line) = lines.recv_timeout(Duration::from_millis(200)) {
        said.note(&line);
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
    let (mut noted, mut starts, mut said) = (Said::default(), 0, String::new());
    let mut begun = Instant::now();
    let ended = loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            // Behind what the firmware says.
            Ok(line) if line.contains("guest: verified ") => {
                let there: Vec<u64> =
                    line.split(' ').rev().take(WRITERS).filter_map(|n| n.parse().ok()).collect();
                let there: Vec<u64> = there.into_iter().rev().collect();
                if there.len() < WRITERS
                    || there.iter().zip(noted.acknowledged).any(|(there, acknowledged)| *there < acknowledged)
                {
                    break Err(format!("{:?} was acknowledged and {there:?} is there", noted.acknowledged));
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
                noted.note(&line);
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
    /// Its power is cut when nothing moves in it any more.
    KillWhenSilent,
    /// In one of these ways, and its programs may have ended before: its memory is not what it should be.
    Anyhow,
}

/// Longest that a machine goes on with memory that is not what it should be: one thread may hang, and others not.
const WILD: Duration = Duration::from_secs(60);
/// So long a machine says nothing that does not move.
const SILENCE: Duration = Duration::from_secs(4);

fn watch(
    machine: &mut Child,
    lines: &Receiver<String>,
    end: End,
    after: u64,
    noted: &mut Said,
) -> Result<(), String> {
    let start = Instant::now();
    let (mut verified, mut heard): (Option<Instant>, _) = (None, start);
    let mut said = String::new();
    while start.elapsed() < PATIENCE {
        match lines.recv_timeout(Duration::from_millis(5)) {
            Ok(line) if line.contains("guest: failed") && end == End::KillWhenFailed => {
                return machine.kill().map_err(|e| e.to_string());
            }
            Ok(line) if line.contains("guest: wrong") => return Err(format!("{said}{line}")),
            Ok(line) if line.contains("guest: ended") || line.contains("guest: no disk") => {
                if end != End::Anyhow || verified.is_none() {
                    return Err(format!("{said}{line}"));
                }
            }
            Ok(line) => {
                heard = Instant::now();
                if line.contains("guest: verified") {
                    verified = Some(heard);
                }
                if !line.starts_with("ack ") {
                    said += &format!("{line}\n");
                }
                noted.note(&line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The machine is off.
            Err(RecvTimeoutError::Disconnected) if verified.is_some() && end != End::KillWhenSilent => {
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("it went off before it verified, or where it should hang: {said}"));
            }
        }
        let Some(verified) = verified else { continue };
        let over = verified.elapsed() > Duration::from_millis(after);
        let silent = [End::KillWhenSilent, End::Anyhow].contains(&end) && heard.elapsed() > SILENCE;
        let long = end == End::Anyhow && verified.elapsed() > WILD;
        if over && (end == End::Kill || silent || long) {
            return machine.kill().map_err(|e| e.to_string());
        }
    }
    Err(format!("nothing for {} s: {said}", PATIENCE.as_secs()))
}

/// What machines of one kind have said.
#[derive(Default)]
struct Said {
    /// By writer.
    acknowledged: [u64; WRITERS],
    /// Wild stores, and afterwards blocks that were damaged, and writes that were undone.
    stores: u64,
    damaged: u64,
    undone: u64,
}

impl Said {
    /// `ack THREAD NUMBER`, whole, and what the guest counts: half a line at the end says nothing.
    fn note(&mut self, line: &str) {
        let number = |text: &str| text.parse::<u64>().ok();
        // Behind what the firmware says.
        let line = line.find("guest: ").map_or(line, |at| &line[at..]);
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ack", writer, newest] => {
                if let (Ok(writer), Some(newest)) = (writer.parse::<usize>(), number(newest))
                    && let Some(known) = self.acknowledged.get_mut(writer)
                {
                    // A number that was cut off is smaller than the newest.
                    *known = (*known).max(newest);
                }
            }
            ["guest:", count, "wild", "stores", ..] => self.stores += number(count).unwrap_or(0),
            ["guest:", damaged, "blocks", "were", "damaged,", undone, ..] => {
                self.damaged += number(damaged).unwrap_or(0);
                self.undone += number(undone).unwrap_or(0);
            }
            _ => {}
        }
    }
}
