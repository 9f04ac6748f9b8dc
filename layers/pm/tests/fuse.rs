//! A segment of blocks as a file.

use caliburn_pm::{Export, Mounted, Region, RegionOptions, SegmentKind, SegmentOptions, Unmount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

const LEN: u64 = 1 << 20;

fn region(path: &Path) -> Arc<Region> {
    region_of(path, 4096, LEN)
}

fn region_of(path: &Path, block_bytes: u64, len: u64) -> Arc<Region> {
    let options = RegionOptions { len: Some(len + (32 << 20)), ..RegionOptions::default() };
    let region = Region::create(path, &options).unwrap();
    let kind = SegmentKind::Blocks { block_bytes: block_bytes as u32 };
    region
        .create_segment("disk", len, &SegmentOptions { kind, ..SegmentOptions::default() }, |_| {})
        .unwrap();
    Arc::new(region)
}

/// Mounts a segment; nothing if this system has no FUSE, or this user may not mount.
fn mounted(region: &Arc<Region>, dir: &Path, write: bool) -> Option<(PathBuf, Served)> {
    fs::create_dir_all(dir).unwrap();
    let blocks = region.attach_blocks("disk", write).unwrap();
    let export = Export { name: "disk".into(), blocks: Arc::new(blocks), at_once: true };
    let mounted = match Mounted::new(dir, export) {
        Ok(mounted) => mounted,
        Err(error) => {
            // No FUSE, or not for this user.
            let may = [libc::ENOENT, libc::EPERM, libc::EACCES].map(Some);
            assert!(dir.is_dir() && may.contains(&error.raw_os_error()), "{error}");
            println!("did not run: nothing can be mounted here: {error}");
            return None;
        }
    };
    let unmount = mounted.unmount();
    let running = std::thread::spawn(move || mounted.run().unwrap());
    let file = dir.join("disk");
    Some((file.clone(), Served { unmount, running, file }))
}

struct Served {
    unmount: Unmount,
    running: JoinHandle<Export>,
    file: PathBuf,
}

impl Served {
    /// Unmounts, and gives back what was served.
    fn end(self) -> Export {
        // As often as it takes: it is refused while the file is open, and served further.
        let open = File::open(&self.file).unwrap();
        assert_eq!(self.unmount.unmount().unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
        drop(open);
        self.unmount.unmount().unwrap();
        self.running.join().unwrap()
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_file_is_read_written_forced_and_has_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let region = region(&dir.path().join("region"));
    let Some((path, end)) = mounted(&region, &dir.path().join("mnt"), true) else { return };
    let names: Vec<_> =
        fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk"]);
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.len(), about.mode() & 0o777, about.blocks()), (LEN, 0o600, LEN / 512));
    let file = open(&path);
    let content: Vec<u8> = (0..300_000u32).map(|i| (i * 7 / 3) as u8).collect();
    file.write_all_at(&content, 1234).unwrap();
    file.sync_all().unwrap();
    let mut found = vec![1; content.len() + 4];
    file.read_exact_at(&mut found, 1232).unwrap();
    assert!(
        found[..2] == [0; 2] && found[2..][..content.len()] == content && found[found.len() - 2..] == [0; 2]
    );
    // At its end, and beyond.
    assert_eq!(file.write_at(&[7; 5000], LEN - 3000).unwrap(), 3000);
    assert_eq!(file.read_at(&mut found, LEN - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut found, LEN + 10).unwrap(), 0);
    assert_eq!(file.write_at(&[7; 10], LEN).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    for (result, errno) in [
        (file.set_len(LEN / 2), libc::EPERM),
        (File::create(&path).map(drop), libc::EPERM),
        (fs::remove_file(&path), libc::ENOSYS),
        (fs::write(path.with_file_name("other"), "x"), libc::ENOSYS),
        (File::open(path.with_file_name("other")).map(drop), libc::ENOENT),
    ] {
        let found = result.unwrap_err().raw_os_error();
        assert!(
            [Some(errno), Some(libc::EPERM), Some(libc::ENOENT)].contains(&found),
            "{found:?}, not {errno}"
        );
    }
    // Parts of blocks at both ends of a hole, whole ones between.
    let hole = |mode| rustix::fs::fallocate(&file, mode, 5000, 10_000);
    hole(rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE).unwrap();
    let mut expected = content.clone();
    expected[5000 - 1234..15_000 - 1234].fill(0);
    file.read_exact_at(&mut found[..content.len()], 1234).unwrap();
    assert!(found[..content.len()] == expected);
    assert_eq!(
        hole(rustix::fs::FallocateFlags::COLLAPSE_RANGE).unwrap_err().raw_os_error(),
        libc::EOPNOTSUPP
    );
    // It is the only one, and stays.
    let other = path.with_file_name("other");
    let refused = [
        fs::remove_file(&path),
        fs::rename(&path, &other),
        fs::create_dir(&other),
        File::create(&other).map(drop),
        fs::hard_link(&path, &other),
        std::os::unix::fs::symlink(&path, &other),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    // Beyond the end: nothing grows, and where nothing need grow there is nothing to be done.
    let (zeros, keep) = (rustix::fs::FallocateFlags::ZERO_RANGE, rustix::fs::FallocateFlags::KEEP_SIZE);
    let beyond = rustix::fs::fallocate(&file, zeros, LEN - 10, 1 << 40).unwrap_err();
    assert_eq!((beyond.raw_os_error(), file.metadata().unwrap().len()), (libc::ENOSPC, LEN));
    file.read_exact_at(&mut found[..10], LEN - 10).unwrap();
    assert_eq!(found[..10], [7; 10]);
    rustix::fs::fallocate(&file, zeros | keep, LEN - 10, 1 << 40).unwrap();
    file.read_exact_at(&mut found[..10], LEN - 10).unwrap();
    assert_eq!(found[..10], [0; 10]);
    let hole_beyond = rustix::fs::FallocateFlags::PUNCH_HOLE | keep;
    rustix::fs::fallocate(&file, hole_beyond, LEN + 5000, 5000).unwrap();
    drop(file);
    let export = end.end();
    assert!(export.blocks.counts().flushes > 0);
    let mut blocks = vec![0; content.len()];
    export.blocks.read_bytes(1234, &mut blocks).unwrap();
    assert!(blocks == expected);
    assert!(export.blocks.scrub(0..export.blocks.len()).unwrap().is_empty());
}

/// The kernel hands on what is written in requests of some pages of the program's buffer.
#[test]
fn a_write_is_one_request_or_cut_between_blocks() {
    for block_bytes in [512, 4096, 65_536] {
        let dir = tempfile::tempdir().unwrap();
        let region = region_of(&dir.path().join("region"), block_bytes, 4 << 20);
        let Some((path, end)) = mounted(&region, &dir.path().join("mnt"), true) else { return };
        let file = open(&path);
        let buffer: Vec<u8> = vec![7; (3 << 20) + 8192];
        let page = buffer.as_ptr().align_offset(4096);
        file.write_all_at(&buffer[page..page + (3 << 20)], 65_536).unwrap();
        let whole = (1 << 20) - 65_536;
        for from in [64, 520, 4095] {
            file.write_all_at(&buffer[page + from..page + from + whole], 65_536).unwrap();
        }
        drop(file);
        let export = end.end();
        // Who writes a part of a block reads it first.
        let counts = export.blocks.counts();
        assert_eq!(counts.writes, ((3 << 20) + 3 * whole as u64) / block_bytes, "{counts:?}");
        assert_eq!(counts.reads, 0, "{counts:?}");
    }
}

#[test]
fn a_server_leaves_alone_what_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (region(&dir.path().join("first")), region(&dir.path().join("second")));
    let mnt = dir.path().join("mnt dir");
    let Some((path, end)) = mounted(&first, &mnt, true) else { return };
    let export = || Export {
        name: "disk".into(),
        blocks: Arc::new(second.attach_blocks("disk", true).unwrap()),
        at_once: false,
    };
    let twice = Mounted::new(&mnt, export()).unwrap_err();
    assert!(twice.to_string().contains("mounted there already"), "{twice}");
    let file = Mounted::new(&dir.path().join("second"), export()).unwrap_err();
    assert_eq!(file.kind(), std::io::ErrorKind::NotADirectory);
    assert!(Mounted::new(&dir.path().join("none"), export()).is_err());
    assert!(path.exists());
    // Another file system that was mounted over it stays.
    let run = |arguments: &[&str], at: &Path| {
        let mut command = std::process::Command::new(arguments[0]);
        assert!(command.args(&arguments[1..]).arg(at).status().unwrap().success());
    };
    run(&["mount", "-t", "tmpfs", "none"], &mnt);
    fs::write(mnt.join("theirs"), "x").unwrap();
    assert_eq!(end.unmount.unmount().unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    assert!(mnt.join("theirs").exists());
    run(&["umount"], &mnt);
    // It is found where it is by now.
    let _ = end.end();
    let (above, moved) = (dir.path().join("above"), dir.path().join("moved"));
    let Some((_, end)) = mounted(&first, &above.join("mnt"), true) else { return };
    fs::rename(&above, &moved).unwrap();
    assert!(moved.join("mnt/disk").exists());
    end.unmount.unmount().unwrap();
    let _ = end.running.join().unwrap();
    assert!(!moved.join("mnt/disk").exists());
    // And unmounted, if nobody comes to serve it.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    drop(Mounted::new(&other, export()).unwrap());
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
}

#[test]
fn who_may_only_read_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let region = region(&dir.path().join("region"));
    region.attach_blocks("disk", true).unwrap().write(3, &[9; 4096]).unwrap();
    let Some((path, end)) = mounted(&region, &dir.path().join("mnt"), false) else { return };
    let mut found = [0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut found, 3 * 4096).unwrap();
    assert_eq!(found, [9; 4096]);
    let refused = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let _ = end.end();
}

#[test]
fn a_damaged_block_is_an_error_of_reading() {
    let dir = tempfile::tempdir().unwrap();
    let (at, mnt) = (dir.path().join("region"), dir.path().join("mnt"));
    let content: Vec<u8> = (0..4096u32).map(|i| (i * 31 / 7) as u8).collect();
    let shared = region(&at);
    shared.attach_blocks("disk", true).unwrap().write(5, &content).unwrap();
    drop(shared);
    let mut bytes = fs::read(&at).unwrap();
    let place = (0..bytes.len() - 4096).step_by(512).find(|at| bytes[*at..at + 4096] == content).unwrap();
    bytes[place + 17] ^= 1;
    fs::write(&at, &bytes).unwrap();
    let shared = Arc::new(Region::open(&at).unwrap());
    let Some((path, end)) = mounted(&shared, &mnt, true) else { return };
    let file = open(&path);
    let mut found = vec![0; 4096];
    assert_eq!(file.read_at(&mut found, 5 * 4096).unwrap_err().raw_os_error(), Some(libc::EIO));
    file.read_exact_at(&mut found, 6 * 4096).unwrap();
    file.write_all_at(&content, 5 * 4096).unwrap();
    file.read_exact_at(&mut found, 5 * 4096).unwrap();
    assert!(found == content);
    drop(file);
    let _ = end.end();
}
