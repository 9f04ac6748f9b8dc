//! Blocks of a segment, on files.

use caliburn_os::files::Files;
use caliburn_os::medium::{Media, Medium, Replaced};
use caliburn_pm::{Blocks, Error, Region, RegionOptions, SegmentKind, SegmentOptions};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MB: u64 = 1 << 20;

fn made(dir: &Path, block_bytes: u32, blocks: u64) -> (Arc<Region>, PathBuf) {
    let path = dir.join("region");
    let len = if block_bytes == 512 { 4 * MB } else { 24 * MB };
    let options = RegionOptions { len: Some(len), ..RegionOptions::default() };
    let region = Arc::new(Region::create(&path, &options).unwrap());
    let kind = SegmentKind::Blocks { block_bytes };
    let options = SegmentOptions { kind, ..SegmentOptions::default() };
    region.create_segment("disk", blocks * u64::from(block_bytes), &options, |_| {}).unwrap();
    (region, path)
}

fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i as u64 / 3) as u8).collect()
}

fn read(disk: &Blocks, block: u64) -> Vec<u8> {
    let mut found = vec![1; disk.block_bytes()];
    disk.read(block, &mut found).unwrap();
    found
}

#[test]
fn blocks_show_what_was_written_last_also_when_attached_again() {
    for block_bytes in [512, 4096, 65_536] {
        let dir = tempfile::tempdir().unwrap();
        let (region, path) = made(dir.path(), block_bytes, 50);
        let len = block_bytes as usize;
        let disk = region.attach_blocks("disk", true).unwrap();
        assert_eq!((disk.len(), disk.block_bytes(), disk.writes_max()), (50, len, MB as usize / len));
        assert!(read(&disk, 49).iter().all(|byte| *byte == 0), "what was never written is zeros");
        for turn in 0..5 {
            for block in 0..50 {
                disk.write(block, &content(turn * 100 + block, len)).unwrap();
            }
        }
        disk.write(10, &[content(1, len), content(2, len)].concat()).unwrap();
        disk.clear(20..22).unwrap();
        let mut several = disk.transaction();
        let (one, two) = (content(7, len), content(8, len));
        several.write(30, &two).unwrap();
        several.write(30, &one).unwrap();
        several.write(40, &two).unwrap();
        several.commit().unwrap();
        let shows = |disk: &Blocks| {
            let expected = |block: u64| match block {
                10 | 11 => content(block - 9, len),
                20 | 21 => vec![0; len],
                30 => content(7, len),
                40 => content(8, len),
                _ => content(400 + block, len),
            };
            (0..50).for_each(|block| assert!(read(disk, block) == expected(block), "{block}"));
            let mut all = vec![0; 50 * len];
            disk.read(0, &mut all).unwrap();
            assert!(all.chunks(len).zip(0..).all(|(found, block)| found == expected(block)));
            assert_eq!(disk.scrub(0..50).unwrap(), []);
        };
        shows(&disk);
        drop(disk);
        drop(region);
        let region = Arc::new(Region::open_to_read(&path).unwrap());
        shows(&region.attach_blocks("disk", false).unwrap());
    }
}

#[test]
fn a_bit_that_is_flipped_anywhere_is_told_of_and_mended_by_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    for block in (0..8).chain(0..6) {
        disk.write(block, &content(block, 512)).unwrap();
    }
    disk.clear(7..8).unwrap();
    drop(disk);
    let expected = |block: u64| if block == 7 { vec![0; 512] } else { content(block, 512) };
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    // Everything behind the base that is not zero, which is entries, lanes, and places in use and out of use.
    let all: Vec<usize> = (512 << 10..before.len()).filter(|at| before[*at] != 0).collect();
    assert!(all.len() > 3000);
    let mut told = 0;
    for (i, at) in all.into_iter().enumerate().step_by(5) {
        file.write_all_at(&[before[at] ^ 1 << (i % 8)], at as u64).unwrap();
        let disk = region.attach_blocks("disk", true).unwrap();
        for block in 0..8 {
            let mut found = vec![1; 512];
            match disk.read(block, &mut found) {
                Ok(()) => assert!(found == expected(block), "block {block} is wrong after a flip at {at}"),
                Err(Error::Block { block: damaged, .. }) => {
                    assert_eq!(damaged, block);
                    assert!(found.iter().all(|byte| *byte == 0), "damaged bytes were returned");
                    assert_eq!(disk.scrub(0..8).unwrap(), [block]);
                    told += 1;
                    disk.write(block, &content(99, 512)).unwrap();
                    assert!(read(&disk, block) == content(99, 512));
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(disk);
        file.write_all_at(&before, 0).unwrap();
    }
    assert!(told > 300, "{told}");
}

#[test]
fn ranges_and_lengths_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = made(dir.path(), 4096, 300);
    let disk = region.attach_blocks("disk", true).unwrap();
    assert!(matches!(region.attach("disk", true), Err(Error::Busy { .. })));
    assert!(matches!(
        Arc::new(Region::open(&path).unwrap()).attach_blocks("disk", true),
        Err(Error::Busy { .. })
    ));
    for (block, len) in [(300, 4096), (299, 8192), (u64::MAX, 4096), (1 << 63, 4096)] {
        assert!(matches!(disk.write(block, &vec![0; len]), Err(Error::Range { .. })));
        assert!(matches!(disk.read(block, &mut vec![0; len]), Err(Error::Range { .. })));
        assert!(matches!(disk.clear(block..block.saturating_add(2)), Err(Error::Range { .. })));
    }
    for len in [1, 4095, 4097] {
        assert!(matches!(disk.write(0, &vec![0; len]), Err(Error::Invalid { .. })));
        assert!(matches!(disk.read(0, &mut vec![0; len]), Err(Error::Invalid { .. })));
        assert!(disk.transaction().write(0, &vec![0; len]).is_err());
    }
    assert!(disk.transaction().write(300, &[0; 4096]).is_err());
    assert!(matches!(disk.write_at_once(0, &vec![1; 257 * 4096]), Err(Error::Invalid { .. })));
    disk.write_at_once(0, &vec![1; 256 * 4096]).unwrap();
    disk.transaction().commit().unwrap();
    drop(disk);
    assert!(region.attach("disk", true).err().unwrap().to_string().contains("is made of blocks"));
    let disk = region.attach_blocks("disk", false).unwrap();
    assert!(matches!(disk.write(0, &[0; 4096]), Err(Error::ReadOnly(_))));
    assert!(matches!(disk.flush(), Err(Error::ReadOnly(_))));
    assert!(read(&disk, 255).iter().all(|byte| *byte == 1));
}

#[test]
fn readers_see_writes_of_several_blocks_wholly_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _) = made(dir.path(), 512, 64);
    let disk = region.attach_blocks("disk", true).unwrap();
    let (disk, ended) = (&disk, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                scope.spawn(move || {
                    for turn in 0..400 {
                        // All of eight neighbours, at places that others write to, too.
                        let first = (turn * 7 + writer * 13) % 57;
                        disk.write_at_once(first / 8 * 8, &content(turn * 10 + writer, 512).repeat(8))
                            .unwrap();
                        if turn % 50 == 0 {
                            disk.flush().unwrap();
                        }
                    }
                })
            })
            .collect();
        for reader in 0..2u64 {
            scope.spawn(move || {
                let mut found = vec![0; 8 * 512];
                while !ended.load(Ordering::Relaxed) {
                    for group in 0..8 {
                        disk.read((group + reader) % 8 * 8, &mut found).unwrap();
                        assert!(found.chunks(512).all(|block| block == &found[..512]), "a mixture");
                    }
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(disk.scrub(0..64).unwrap(), []);
    let counts = disk.counts();
    assert_eq!((counts.transactions, counts.writes, counts.damaged), (1200, 9600, 0));
}

/// Files that can no more be forced from some moment on.
#[derive(Debug)]
struct Bad(Arc<AtomicBool>);

#[derive(Debug)]
struct BadMedium(Arc<dyn Medium>, Arc<AtomicBool>);

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Bad {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(BadMedium(Files.open(path, write)?, self.0.clone())))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Files.create(path)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

// SAFETY: everything mapped is passed on from a file's medium.
unsafe impl Medium for BadMedium {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        if self.1.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(5)) } else { self.0.sync() }
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn after_a_force_that_failed_nothing_is_written_and_the_next_one_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    drop(region);
    let bad = Arc::new(AtomicBool::new(false));
    let region = Arc::new(Region::open_on(&Bad(bad.clone()), &path, true).unwrap());
    region.create_segment("other", 4096, &SegmentOptions::default(), |_| {}).unwrap();
    let disk = region.attach_blocks("disk", true).unwrap();
    let other = region.attach("other", true).unwrap();
    disk.write(0, &content(1, 512)).unwrap();
    disk.flush().unwrap();
    disk.write(1, &content(2, 512)).unwrap();
    bad.store(true, Ordering::Relaxed);
    assert!(matches!(disk.flush(), Err(Error::Medium { action: "force", .. })));
    bad.store(false, Ordering::Relaxed);
    // What the medium has is not known any more.
    assert!(matches!(disk.flush(), Err(Error::Medium { .. })));
    assert!(matches!(disk.write(2, &content(3, 512)), Err(Error::Medium { .. })));
    // Nor of other segments, though the system would not say so again.
    assert!(matches!(other.flush(), Err(Error::Medium { .. })));
    assert!(matches!(other.write(0, b"x"), Err(Error::Medium { .. })));
    assert!(matches!(other.written(0, 1), Err(Error::Medium { .. })));
    assert!(region.create_segment("third", 4096, &SegmentOptions::default(), |_| {}).is_err());
    drop((disk, other));
    let region = Arc::new(Region::open(&path).unwrap());
    assert!(region.segment("disk").unwrap().writing, "it was given up as if all were well");
    let disk = region.attach_blocks("disk", true).unwrap();
    assert!(read(&disk, 0) == content(1, 512) && read(&disk, 1) == content(2, 512));
    drop(disk);
    assert!(!region.segment("disk").unwrap().writing);
}

#[test]
fn a_writer_that_panics_has_not_given_it_up() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    disk.write(0, &content(1, 512)).unwrap();
    let panics = move || {
        let _disk = disk;
        panic!("in the middle of something");
    };
    assert!(std::thread::spawn(panics).join().is_err());
    assert!(region.segment("disk").unwrap().writing);
    let disk = region.attach_blocks("disk", true).unwrap();
    assert!(read(&disk, 0) == content(1, 512));
    drop(disk);
    assert!(!region.segment("disk").unwrap().writing);
}

/// Where a block's entries stand: behind the base and eight lanes, since the segment is the region's first.
fn entries_of(block: u64) -> u64 {
    (512 << 10) + 8 * (36 << 10) + block * 64
}

/// Where some bytes stand in a file, each time.
fn places(file: &[u8], bytes: &[u8]) -> Vec<u64> {
    let all = (0..file.len() - bytes.len()).step_by(512).filter(|at| &file[*at..at + bytes.len()] == bytes);
    all.map(|at| at as u64).collect()
}

/// A copy of a region as it is when its process dies now, changed somehow.
fn crashed(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Arc<Region> {
    let copy = path.with_extension("crashed");
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(&copy, bytes).unwrap();
    Arc::new(Region::open(&copy).unwrap())
}

#[test]
fn what_had_ended_is_there_however_often_another_writes_one_of_its_blocks() {
    for times in [1, 31, 32, 63, 64, 65, 130] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (region, path) = made(dir.path(), 512, 8);
        let disk = region.attach_blocks("disk", true).unwrap();
        disk.write_at_once(2, &[content(2, 512), content(3, 512)].concat()).unwrap();
        // In another lane.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..times).for_each(|i| disk.write(3, &content(100 + i, 512)).unwrap()));
        });
        let left = crashed(&path, |_| {});
        let left = left.attach_blocks("disk", true).unwrap();
        assert!(read(&left, 2) == content(2, 512), "{times}");
        assert!(read(&left, 3) == content(99 + times, 512), "{times}");
    }
}

#[test]
fn a_block_that_was_damaged_is_part_of_a_write_like_any_other() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    disk.write(0, &content(1, 512)).unwrap();
    disk.write(1, &content(2, 512)).unwrap();
    drop((disk, region));
    let mut bytes = std::fs::read(&path).unwrap();
    let at = places(&bytes, &content(1, 512))[0] as usize;
    bytes[at + 5] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let region = Arc::new(Region::open(&path).unwrap());
    let disk = region.attach_blocks("disk", true).unwrap();
    assert!(disk.read(0, &mut [0; 512]).is_err());
    let before = std::fs::read(&path).unwrap();
    disk.write_at_once(0, &[content(3, 512), content(4, 512)].concat()).unwrap();
    // Killed between the two entries: none of them is there.
    let part = entries_of(1) as usize..entries_of(2) as usize;
    let left = crashed(&path, |now| now[part.clone()].copy_from_slice(&before[part.clone()]));
    let left = left.attach_blocks("disk", true).unwrap();
    assert!(read(&left, 1) == content(2, 512) && left.read(0, &mut [0; 512]).is_err());
}

#[test]
fn a_block_whose_entry_is_damaged_takes_no_other_s_place_and_stays_damaged_until_it_is_written() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (region, path) = made(dir.path(), 512, 16);
    let disk = region.attach_blocks("disk", true).unwrap();
    // The place that block 0 was in first is block 1's.
    for (block, number) in [(0, 1), (0, 2), (1, 11)] {
        disk.write(block, &content(number, 512)).unwrap();
    }
    drop((disk, region));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[entries_of(0) as usize + 32] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let region = Arc::new(Region::open(&path).unwrap());
    let disk = region.attach_blocks("disk", true).unwrap();
    let damaged = std::fs::read(&path).unwrap();
    disk.write(0, &content(3, 512)).unwrap();
    (2..16).for_each(|block| disk.write(block, &content(20 + block, 512)).unwrap());
    assert!(read(&disk, 0) == content(3, 512) && read(&disk, 1) == content(11, 512));
    // Killed before the new entry was there.
    let new = entries_of(0) as usize..entries_of(0) as usize + 32;
    let left = crashed(&path, |now| {
        let entries = entries_of(0) as usize..entries_of(1) as usize;
        now[entries.clone()].copy_from_slice(&damaged[entries]);
        assert!(now[new.clone()] == damaged[new.clone()]);
    });
    assert!(left.attach_blocks("disk", true).unwrap().read(0, &mut [0; 512]).is_err());
}

/// Of a block that is damaged nobody knows where it was; there are some hundred places more than blocks.
#[test]
fn blocks_that_are_mended_again_and_again_take_no_places_from_others() {
    // In memory, and on a disk's file, where a block is not written twice between two forces.
    for (dir, block_bytes, times) in
        [(tempfile::tempdir_in("/dev/shm").unwrap(), 512, 600), (tempfile::tempdir().unwrap(), 4096, 100)]
    {
        let (region, path) = made(dir.path(), block_bytes, 16);
        let len = block_bytes as usize;
        let disk = region.attach_blocks("disk", true).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let free = disk.counts().free;
        for number in 0..times {
            // Both entries of each are zeros.
            (3..6).for_each(|block| file.write_all_at(&[0; 64], entries_of(block)).unwrap());
            assert!(disk.read(3, &mut vec![0; len]).is_err());
            disk.write(3, &content(number, len)).unwrap();
            disk.write_at_once(4, &[content(number, len), content(number, len)].concat()).unwrap();
            disk.write(number % 3, &content(number, len)).unwrap();
            assert!((3..6).all(|block| read(&disk, block) == content(number, len)));
            assert!(disk.counts().free + 16 >= free, "{free} places were free, {} are", disk.counts().free);
        }
        // All of them are there when it is attached again.
        drop(disk);
        let disk = region.attach_blocks("disk", true).unwrap();
        assert!((3..6).all(|block| read(&disk, block) == content(times - 1, len)));
        assert!(disk.scrub(0..16).unwrap().is_empty());
    }
}

/// A place that a block leaves is the next one to be taken; the older entry of who left it names it for long.
#[test]
fn places_that_older_entries_of_others_name_are_found_too() {
    const SIZE: usize = 65_536;
    for dir in [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()] {
        let (region, path) = made(dir.path(), SIZE as u32, 128);
        let disk = region.attach_blocks("disk", true).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let content = |number: u64| vec![number as u8; SIZE];
        (0..128).for_each(|block| disk.write(block, &content(block)).unwrap());
        disk.flush().unwrap();
        let free = disk.counts().free;
        for number in 0..64 {
            // One leaves a place, another one takes it, and is damaged and mended.
            disk.write(number, &content(number + 1)).unwrap();
            disk.flush().unwrap();
            disk.write(64 + number, &content(number + 2)).unwrap();
            file.write_all_at(&[0; 64], entries_of(64 + number)).unwrap();
            disk.write(64 + number, &content(number + 3)).unwrap();
            disk.flush().unwrap();
            // They are looked for when there are some.
            assert!(disk.counts().free + 8 >= free, "{number}: {free} were free, {} are", disk.counts().free);
        }
        assert!((0..64).all(|block| read(&disk, block) == content(block + 1)));
        assert!((64..128).all(|block| read(&disk, block) == content(block - 61)));
    }
}

/// Nor those for it: more of them than there are lanes write all the time, several blocks at once, too, where there
/// are places for two such writes and little more.
#[test]
fn who_mends_does_not_wait_for_ever_for_others() {
    const SIZE: usize = 65_536;
    for dir in [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()] {
        let (region, path) = made(dir.path(), SIZE as u32, 128);
        let disk = &region.attach_blocks("disk", true).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..12 {
                scope.spawn(move || {
                    let (first, content) = (thread * 8, vec![thread as u8; 8 * SIZE]);
                    while !is_over.load(Ordering::Relaxed) {
                        disk.write(first, &content[..SIZE]).unwrap();
                        disk.write_at_once(first, &content).unwrap();
                    }
                });
            }
            for number in 0..40 {
                (100..104).for_each(|block| file.write_all_at(&[0; 64], entries_of(block)).unwrap());
                let content = vec![number; 4 * SIZE];
                match number % 2 {
                    0 => disk.write(100, &content).unwrap(),
                    _ => disk.write_at_once(100, &content).unwrap(),
                }
                assert!((100..104).all(|block| read(disk, block) == content[..SIZE]));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(disk.scrub(0..128).unwrap().is_empty());
    }
}

#[test]
fn zeros_in_place_of_an_entry_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    for (block, number) in [(0, 1), (0, 2), (1, 3)] {
        disk.write(block, &content(number, 512)).unwrap();
    }
    drop((disk, region));
    for (block, at, len) in [(0, 32, 8), (0, 0, 64), (1, 0, 8), (1, 0, 24), (5, 0, 64)] {
        let left = crashed(&path, |now| {
            let at = entries_of(block) as usize + at;
            now[at..at + len].fill(0);
        });
        let left = left.attach_blocks("disk", true).unwrap();
        assert!(left.read(block, &mut [0; 512]).is_err(), "{block}, {at}");
        assert_eq!(left.scrub(0..8).unwrap(), [block]);
    }
}

#[test]
fn many_writers_of_a_file_do_not_wait_for_each_other_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let options = RegionOptions { len: Some(12 * MB), ..RegionOptions::default() };
    let region = Arc::new(Region::create(&path, &options).unwrap());
    let kind = SegmentKind::Blocks { block_bytes: 65_536 };
    let options = SegmentOptions { kind, lanes: 1, ..SegmentOptions::default() };
    region.create_segment("disk", 64 * 65_536, &options, |_| {}).unwrap();
    let disk = region.attach_blocks("disk", true).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..32u64 {
            let disk = &disk;
            scope.spawn(move || {
                let bytes = vec![writer as u8; 65_536];
                (0..20).for_each(|i| disk.write((i * 13 + writer * 7) % 64, &bytes).unwrap());
            });
        }
    });
    assert_eq!(disk.scrub(0..64).unwrap(), []);
}

#[test]
fn an_entry_that_stands_for_another_block_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    for block in 0..8 {
        disk.write(block, &content(block, 512)).unwrap();
    }
    drop(disk);
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut entries = [0; 64];
    file.read_exact_at(&mut entries, entries_of(3)).unwrap();
    assert!(entries != [0; 64]);
    file.write_all_at(&entries, entries_of(4)).unwrap();
    let disk = region.attach_blocks("disk", true).unwrap();
    assert!(read(&disk, 3) == content(3, 512));
    assert!(matches!(disk.read(4, &mut [0; 512]), Err(Error::Block { block: 4, .. })));
}

#[test]
fn a_list_of_which_a_word_did_not_last_is_no_list() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    (0..8).for_each(|block| disk.write(block, &content(block, 512)).unwrap());
    // A lane has two lists: the third write has that of the first.
    disk.write_at_once(0, &[content(10, 512), content(11, 512)].concat()).unwrap();
    disk.write_at_once(4, &[content(14, 512), content(15, 512)].concat()).unwrap();
    let before = std::fs::read(&path).unwrap();
    disk.write_at_once(0, &[content(20, 512), content(21, 512), content(22, 512)].concat()).unwrap();
    let after = std::fs::read(&path).unwrap();
    let lanes = (0..8).map(|lane| (512 << 10) + lane * (36 << 10));
    let lane: usize = lanes.clone().find(|at| before[*at..*at + 64] != after[*at..*at + 64]).unwrap();
    // What it says of how many blocks there are, and the entry of the third one, did not last.
    let entries = entries_of(2) as usize..entries_of(3) as usize;
    for part in [lane + 16 + 8..lane + 16 + 16, lane + 32 + 8..lane + 32 + 16] {
        let left = crashed(&path, |now| {
            now[part.clone()].copy_from_slice(&before[part.clone()]);
            now[entries.clone()].copy_from_slice(&before[entries.clone()]);
        });
        let left = left.attach_blocks("disk", true).unwrap();
        let shown: Vec<Vec<u8>> = (0..3).map(|block| read(&left, block)).collect();
        assert!(shown == [content(10, 512), content(11, 512), content(2, 512)], "half of it is there");
    }
}

/// A list that had lasted when the write it is of had not must not stand for a later one.
#[test]
fn a_list_of_a_write_that_is_not_there_is_no_others() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (region, path) = made(dir.path(), 512, 8);
    let disk = region.attach_blocks("disk", true).unwrap();
    (0..8).for_each(|block| disk.write(block, &content(block, 512)).unwrap());
    let before = std::fs::read(&path).unwrap();
    disk.write_at_once(0, &[content(10, 512), content(11, 512)].concat()).unwrap();
    let entries =
        |blocks: std::ops::Range<u64>| entries_of(blocks.start) as usize..entries_of(blocks.end) as usize;
    let mut lane = 0;
    let left = crashed(&path, |now| {
        let mut lanes = (0..8).map(|lane| (512 << 10) + lane * (36 << 10));
        lane = lanes.find(|at| before[*at..*at + 64] != now[*at..*at + 64]).unwrap();
        // Nothing but the list lasted.
        let parts = [lane..lane + 16, entries(0..2)];
        parts.into_iter().for_each(|part| now[part.clone()].copy_from_slice(&before[part]));
    });
    let (path, left) = (path.with_extension("crashed"), left.attach_blocks("disk", true).unwrap());
    assert!(read(&left, 0) == content(0, 512) && read(&left, 1) == content(1, 512));
    let before = std::fs::read(&path).unwrap();
    left.write_at_once(0, &[content(20, 512), content(21, 512), content(22, 512)].concat()).unwrap();
    let mut now = std::fs::read(&path).unwrap();
    // Of this one, two entries.
    let parts = [lane..lane + (36 << 10), entries(2..3)];
    parts.into_iter().for_each(|part| now[part.clone()].copy_from_slice(&before[part]));
    let path = path.with_extension("again");
    std::fs::write(&path, now).unwrap();
    let left = Arc::new(Region::open(&path).unwrap()).attach_blocks("disk", true).unwrap();
    (0..3).for_each(|block| assert!(read(&left, block) == content(block, 512), "half of it is there"));
}
