//! What the tests share.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod cuts;

use caliburn::{Class, Mode, Options, Region, Store};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options for small stores.
pub fn options() -> Options {
    let mut options = Store::options();
    // Some tests copy a store that is in use, in place of killing a process.
    options
        .create(true)
        .log_bytes(1 << 20)
        .stage_bytes(1 << 20)
        .reserve_bytes(1 << 30)
        .copied(true)
        .memory_kept(true);
    options
}

pub fn open(path: &Path) -> Store {
    options().open(path).unwrap()
}

/// The whole of segment "data", one megabyte unless it exists.
pub fn region(store: &Store) -> Region {
    store.segment_or_create("data", 1 << 20).unwrap().map_all().unwrap()
}

/// Just stores, without declaring it.
pub fn just_store(region: &Region, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= region.len());
    // SAFETY: the bytes are mapped, and a test's threads store to different ones.
    unsafe { region.as_ptr().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
}

/// The same, of a number.
pub fn set(region: &Region, at: usize, value: u64) {
    just_store(region, at, &value.to_ne_bytes());
}

/// Stores of all threads are the transaction's.
pub fn many_threads_store(store: &Store, region: &Region) {
    let words = region.len() / 8;
    for turn in 1..=4u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                // They meet in pages, not in words.
                scope.spawn(move || (0..words / 4).for_each(|i| set(region, (i * 4 + thread) * 8, turn)));
            }
        });
        if turn == 3 {
            tx.abort()
        } else {
            tx.commit(Class::Process).unwrap()
        }
        let there = if turn == 3 { 2 } else { turn };
        assert!((0..words).all(|i| region.load::<u64>(i * 8) == there), "{turn}");
    }
}

pub fn put(store: &Store, region: &Region, offset: usize, value: u64, class: Class) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, offset, &value).unwrap();
    tx.commit(class).unwrap();
}

/// Files of this process cannot become longer than that.
pub fn limit_files(bytes: u64) {
    let both = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is whole; what is written beyond the limit fails, with the signal ignored.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const both), 0);
    }
}

/// A sound store must check clean.
pub fn clean(path: &Path) {
    let report = options().check(path).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Copies a store's files as they are, which is what a killed process leaves behind: as they are at one moment,
/// though the store's threads may be at work.
pub fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let files: Vec<_> = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for _ in 0..100 {
        for file in &files {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let same = |file: &std::ffi::OsString| {
            std::fs::read(from.join(file)).unwrap() == std::fs::read(to.join(file)).unwrap()
        };
        if files.iter().all(same) {
            return;
        }
    }
    panic!("the store does not come to rest");
}

/// Changes bytes of a file.
pub fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

pub fn root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A small file system in memory, unmounted at the end. Needs root; without it says so and returns none.
pub struct Mount {
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

pub fn mount(size: &str) -> Option<Mount> {
    if !root() {
        eprintln!("not run: mounting a file system needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", path.to_str().unwrap()]);
    Some(Mount { path, _dir: dir })
}

/// A file system of a kind on a loop device, unmounted at the end. Needs root, loop devices and the kind's
/// `mkfs`; without them says so and returns none.
pub fn mount_loop(kind: &str, megabytes: u64) -> Option<Mount> {
    mount_loop_in(&std::env::temp_dir(), kind, megabytes)
}

/// The same, with the image in a directory.
pub fn mount_loop_in(directory: &Path, kind: &str, megabytes: u64) -> Option<Mount> {
    let mkfs = format!("mkfs.{kind}");
    if !root() || Command::new(&mkfs).arg("-V").output().is_err() {
        eprintln!("not run: a file system on a loop device needs root and {mkfs}");
        return None;
    }
    let dir = tempfile::tempdir_in(directory).unwrap();
    let (image, path) = (dir.path().join("image"), dir.path().join("mounted"));
    std::fs::create_dir(&path).unwrap();
    std::fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
    run(&mkfs, &["-q", image.to_str().unwrap()]);
    let arguments = ["-o", "loop", image.to_str().unwrap(), path.to_str().unwrap()];
    if !Command::new("mount").args(arguments).status().unwrap().success() {
        eprintln!("not run: this kernel mounts no {kind} on a loop device");
        return None;
    }
    Some(Mount { path, _dir: dir })
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// A block device backed by a file, detached at the end. Needs root and loop devices.
pub struct Loop {
    pub path: PathBuf,
}

pub fn loop_device(file: &Path, bytes: u64) -> Option<Loop> {
    if !root() {
        eprintln!("not run: a loop device needs root");
        return None;
    }
    std::fs::File::create(file).unwrap().set_len(bytes).unwrap();
    let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
    if !output.status.success() {
        eprintln!("not run: no loop device: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(Loop { path: String::from_utf8(output.stdout).unwrap().trim().into() })
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// Has the test `child` of the same file do something within a control group of so many bytes. Not where there are
/// none.
pub fn in_group(limit: u64, what: &str, store: &Path) {
    let group = match caliburn_cgroup::Group::new("test", limit) {
        Ok(group) => group,
        Err(why) => return eprintln!("not run: {why}"),
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("CALIBURN_INSIDE", what)
        .env("CALIBURN_INSIDE_STORE", store)
        .env("CALIBURN_INSIDE_GROUP", &group.path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert_eq!(group.oom_kills(), 0);
}

/// For the child: what to do, to which store, once it is in the group.
pub fn inside() -> Option<(String, PathBuf)> {
    let what = std::env::var("CALIBURN_INSIDE").ok()?;
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    caliburn_cgroup::Group::enter(&path("CALIBURN_INSIDE_GROUP")).unwrap();
    Some((what, path("CALIBURN_INSIDE_STORE")))
}

/// Has a system call fail so for this thread from now on, as a filter of a container does.
pub fn forbid(call: libc::c_long, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: call as u32,
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is whole, and lives as long as the call; it is this thread's alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Takes all the room of the file system that `filler` is on.
pub fn fill(filler: &Path) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(filler).unwrap();
    for len in [1 << 20, 4096] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
    let _ = file.sync_all();
}

/// Punches a hole in a file.
pub fn punch(path: &Path, from: u64, len: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len).unwrap();
}
