//! A region in huge pages, which no system call writes to. They are the system's to have: where it has none that are
//! free, and gives none, this does not run. Devices of memory are tried in virtual machines.

use caliburn_os::mapped::MappedFiles;
use caliburn_os::medium::Media;
use caliburn_pm::{Error, Kind, Region, RegionOptions, SegmentKind, SegmentOptions};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const HUGE: u64 = 2 << 20;
const PAGES: u64 = 24;

/// A file system of huge pages, of which there are so many at most; with what is had for it given back.
struct Huge {
    dir: tempfile::TempDir,
    before: String,
}

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

impl Huge {
    fn mount() -> Option<Huge> {
        let before = fs::read_to_string(NUMBER).ok()?;
        let dir = tempfile::tempdir().unwrap();
        let number = |text: &str| text.trim().parse::<u64>().unwrap();
        let wanted = number(&before) + PAGES;
        fs::write(NUMBER, wanted.to_string()).ok()?;
        let huge = Huge { dir, before };
        let options = format!("pagesize=2M,size={}", PAGES * HUGE);
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", &options, "none"]).arg(huge.dir.path());
        let has_them = number(&fs::read_to_string(NUMBER).unwrap()) == wanted;
        (mount.status().unwrap().success() && has_them).then_some(huge)
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
        let _ = fs::write(NUMBER, &self.before);
    }
}

fn create(path: &Path, len: u64, unit: Option<u32>) -> Result<Region, Error> {
    Region::create(path, &RegionOptions { len: Some(len), unit, ..RegionOptions::default() })
}

/// A file that is long and has holes, as a kill in the middle of growing leaves it, gets its pages, or is no region.
fn holes(dir: &Path) {
    let sparse = &dir.join("sparse");
    fs::File::create(sparse).unwrap().set_len(16 * HUGE).unwrap();
    let full = Region::create(sparse, &RegionOptions::default()).unwrap_err().to_string();
    assert!(full.contains("too few huge pages"), "{full}");
    fs::File::options().write(true).open(sparse).unwrap().set_len(2 * HUGE).unwrap();
    let three = RegionOptions { len: Some(3 * HUGE), ..RegionOptions::default() };
    let small = Region::create(sparse, &three).map(drop);
    assert!(small.is_ok(), "{small:?}");
    assert!(fs::metadata(sparse).unwrap().blocks() * 512 >= 3 * HUGE);
    let small = Region::open(sparse).unwrap();
    fs::File::options().write(true).open(sparse).unwrap().set_len(16 * HUGE).unwrap();
    let full = small.grow(16 * HUGE).unwrap_err().to_string();
    assert!(full.contains("too few huge pages"), "{full}");
    assert_eq!(small.info().unwrap().len, 3 * HUGE);
    drop(small);
    fs::remove_file(sparse).unwrap();
    // One that ends within a page, which cannot be touched there.
    let odd = fs::File::create(sparse).unwrap();
    rustix::fs::fallocate(&odd, rustix::fs::FallocateFlags::empty(), 0, 2 * HUGE + 100).unwrap();
    assert_eq!(MappedFiles.open(sparse, true).unwrap().len().unwrap(), 2 * HUGE);
    let refused = Region::create(sparse, &RegionOptions { len: Some(1 << 40), ..RegionOptions::default() });
    assert!(refused.is_err());
    assert_eq!(fs::metadata(sparse).unwrap().len(), 3 * HUGE, "what could be had is given back");
    fs::remove_file(sparse).unwrap();
    // Nor are other kinds of files memory because they are there.
    let error = MappedFiles.open(dir, false).unwrap_err();
    assert!(error.to_string().contains("neither a regular file"), "{error}");
}

#[test]
fn a_region_in_huge_pages_is_one() {
    let Some(huge) = Huge::mount() else {
        println!("did not run: no huge pages can be had here");
        return;
    };
    let path = &huge.dir.path().join("region");
    let refused = create(path, 16 * HUGE, Some(64 << 10)).unwrap_err().to_string();
    assert!(refused.contains("by 2097152 bytes only"), "{refused}");
    let region = Arc::new(create(path, 16 * HUGE, None).unwrap());
    let info = region.info().unwrap();
    assert_eq!((info.kind, info.unit, info.len), (Kind::InMemory, HUGE as u32, 16 * HUGE));
    let again = create(path, 16 * HUGE, None).unwrap_err().to_string();
    assert!(again.contains("there is a region already"), "{again}");

    let blocks = SegmentKind::Blocks { block_bytes: 4096 };
    region
        .create_segment(
            "disk",
            1 << 20,
            &SegmentOptions { kind: blocks, ..SegmentOptions::default() },
            |_| {},
        )
        .unwrap();
    let mut at = SegmentOptions { address: Some(0x6000_0000_1000), ..SegmentOptions::default() };
    let odd = region.create_segment("memory", 10_000, &at, |_| {}).unwrap_err().to_string();
    assert!(odd.contains("a multiple of 2097152"), "{odd}");
    at.address = Some(0x6000_0000_0000);
    region.create_segment("memory", 10_000, &at, |_| {}).unwrap();
    let disk = region.attach_blocks("disk", true).unwrap();
    (0..256).for_each(|block| disk.write(block, &[block as u8; 4096]).unwrap());
    let memory = region.attach("memory", true).unwrap();
    assert_eq!(memory.as_ptr().addr(), 0x6000_0000_0000);
    memory.write(9_000, b"there").unwrap();
    memory.flush().unwrap();
    drop(memory);

    // While they are used, or not.
    region.resize("memory", 3 * HUGE, |_| {}).unwrap();
    region.grow(20 * HUGE).unwrap();
    let full = region.grow(PAGES * HUGE * 2).unwrap_err().to_string();
    assert!(full.contains("huge pages"), "{full}");
    assert_eq!(region.info().unwrap().medium_len, 20 * HUGE);
    region.shrink(19 * HUGE).unwrap();
    drop((disk, region));

    holes(huge.dir.path());

    // What another program finds there, with a copy of the base that is damaged.
    let medium = MappedFiles.open(path, true).unwrap();
    let mut header = [0; 128];
    medium.read_at(&mut header, 0).unwrap();
    assert_eq!(&header[..7], b"CALIBPM");
    header[100] ^= 1;
    medium.write_at(&header, 0).unwrap();
    assert!(medium.read_at(&mut header, 20 * HUGE - 100).is_err());
    let region = Arc::new(Region::open(path).unwrap());
    let disk = region.attach_blocks("disk", false).unwrap();
    let mut found = [0; 4096];
    for block in 0..256 {
        disk.read(block, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == block as u8));
    }
    let mut there = [0; 5];
    region.attach("memory", false).unwrap().read(9_000, &mut there).unwrap();
    assert_eq!(&there, b"there");
    assert_eq!(region.info().unwrap().damage, [None, None], "who opens it mends it");
}
