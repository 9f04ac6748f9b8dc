//! Regions that older programs made, in which the newest entry of block 0 has a word that equals one that was never
//! written. Those programs could not read it (`tests/compat/pm`).

use caliburn_pm::{Blocks, Region, RegionOptions, SegmentKind, SegmentOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const BLOCK: usize = 4096;

fn unpacked() -> tempfile::TempDir {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat/pm/6d922c4.tar.gz");
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(done.success());
    dir
}

/// What a block holds, if it is one byte again and again; none if it is damaged.
fn shown(disk: &Blocks, block: u64) -> Option<u8> {
    let mut found = vec![1; BLOCK];
    disk.read(block, &mut found).ok()?;
    assert!(found.iter().all(|byte| *byte == found[0]), "block {block} is a mixture");
    Some(found[0])
}

/// A region with one segment of eight blocks and one lane.
fn made(path: &Path) -> Arc<Region> {
    let options = RegionOptions { len: Some(3 << 20), ..RegionOptions::default() };
    let region = Arc::new(Region::create(path, &options).unwrap());
    let kind = SegmentKind::Blocks { block_bytes: BLOCK as u32 };
    let options = SegmentOptions { kind, lanes: 1, ..SegmentOptions::default() };
    region.create_segment("disk", 8 * BLOCK as u64, &options, |_| {}).unwrap();
    region
}

/// A copy of a region as it is when its process dies now.
fn killed(path: &Path) -> Arc<Region> {
    let copy: PathBuf = path.with_extension("killed");
    std::fs::copy(path, &copy).unwrap();
    Arc::new(Region::open(&copy).unwrap())
}

#[test]
fn a_block_in_the_first_place_of_the_first_lane_is_there_in_each_version() {
    for folder in ["/dev/shm", "/tmp"] {
        let dir = tempfile::tempdir_in(folder).unwrap();
        let path = dir.path().join("region");
        let region = made(&path);
        let disk = region.attach_blocks("disk", true).unwrap();
        // Block 1 takes the first place and gives it back: block 0 alternates between that and another one.
        let put = |block, byte| {
            disk.write(block, &[byte; BLOCK]).unwrap();
            disk.flush().unwrap();
        };
        [(1, 0x51), (0, 1), (0, 2), (0, 3), (1, 0x52)].into_iter().for_each(|(block, byte)| put(block, byte));
        for turn in 4..=200 {
            put(0, turn);
            assert_eq!(shown(&disk, 0), Some(turn));
            if turn % 9 == 1 || (62..68).contains(&turn) {
                let left = killed(&path);
                let left = left.attach_blocks("disk", true).unwrap();
                assert_eq!([shown(&left, 0), shown(&left, 1)], [Some(turn), Some(0x52)]);
            }
        }
        assert_eq!(disk.unread_by_older(0..8).unwrap(), []);
    }
}

/// Writes all blocks in turn, and compares what they show after each write.
fn use_up(disk: &Blocks, mut expected: [Option<u8>; 8]) {
    for turn in 0..150u8 {
        let block = u64::from(turn) * 5 % 8;
        disk.write(block, &[turn; BLOCK]).unwrap();
        expected[block as usize] = Some(turn);
        let found: [Option<u8>; 8] = std::array::from_fn(|block| shown(disk, block as u64));
        assert_eq!(found, expected, "after write {turn}, of block {block}");
    }
    assert_eq!(disk.unread_by_older(0..8).unwrap(), []);
}

#[test]
fn a_block_that_older_programs_could_not_read_is_read_and_told_of() {
    let dir = unpacked();
    let mut expected = [Some(0); 8];
    expected[..2].copy_from_slice(&[Some(64), Some(0x52)]);
    for name in ["killed", "clean"] {
        let path = dir.path().join(name);
        for write in [false, true] {
            let region = Arc::new(Region::open(&path).unwrap());
            let disk = region.attach_blocks("disk", write).unwrap();
            let found: [Option<u8>; 8] = std::array::from_fn(|block| shown(&disk, block as u64));
            assert_eq!(found, expected, "{name}");
            assert_eq!(disk.unread_by_older(0..8).unwrap(), [0]);
            if write {
                disk.write(0, &[65; BLOCK]).unwrap();
                assert_eq!(disk.unread_by_older(0..8).unwrap(), []);
                expected[0] = Some(65);
                use_up(&disk, expected);
                expected[0] = Some(64);
            }
        }
    }
}

#[test]
fn a_block_whose_place_an_older_program_gave_away_is_damaged_until_it_is_written() {
    let dir = unpacked();
    let region = Arc::new(Region::open(dir.path().join("reused")).unwrap());
    let disk = region.attach_blocks("disk", true).unwrap();
    let others = |first| [first, 0x52, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67];
    let found: [Option<u8>; 8] = std::array::from_fn(|block| shown(&disk, block as u64));
    assert_eq!(found[0], None);
    assert_eq!(found[1..], others(0).map(Some)[1..]);
    assert_eq!((disk.scrub(0..8).unwrap(), disk.unread_by_older(0..8).unwrap()), (vec![0], vec![0]));
    // The place is the other block's, also when this one is written.
    disk.write(0, &[0x40; BLOCK]).unwrap();
    assert_eq!((disk.scrub(0..8).unwrap(), disk.unread_by_older(0..8).unwrap()), (vec![], vec![]));
    use_up(&disk, others(0x40).map(Some));
}
