//! `pm`: blocks of 4 KiB in memory that is taken for persistent: written, four written at once, read. The floor is
//! the same bytes stored past the caches, and a fence.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::Failure;
use caliburn::medium::{Files, Media, Medium, Memory, Replaced, Survives};
use caliburn_os::map::Reservation;
use caliburn_pm::{Blocks, Region, RegionOptions, SegmentKind, SegmentOptions};
use serde_json::json;
use std::hint::black_box;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// Files of which the memory is taken for persistent.
#[derive(Debug)]
struct Assumed;

#[derive(Debug)]
struct AssumedMedium(Arc<dyn Medium>);

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Assumed {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(AssumedMedium(Files.open(path, write)?)))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(AssumedMedium(Files.create(path)?)))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

// SAFETY: everything mapped is passed on from a file's medium.
unsafe impl Medium for AssumedMedium {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
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
    fn memory(&self) -> Memory {
        Memory::assumed(Survives::Power)
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Memory of the same kind, without anything around it.
struct Bare {
    memory: Reservation,
    _medium: Arc<dyn Medium>,
}

impl Bare {
    fn new(path: &Path, blocks: usize) -> Result<Bare, Failure> {
        let medium = Assumed.create(path)?;
        medium.set_len((blocks * BLOCK) as u64)?;
        let memory = Reservation::new(blocks * BLOCK, None)?;
        // SAFETY: the reservation is new, and nobody shrinks the file.
        unsafe { memory.map_shared(0, blocks * BLOCK, medium.descriptor(), 0, false) }?;
        Ok(Bare { memory, _medium: medium })
    }

    fn write(&self, block: usize, bytes: &[u8; BLOCK]) {
        let flush = Memory::assumed(Survives::Power).flush;
        // SAFETY: a block of the reservation, which is mapped.
        unsafe { flush.copy(bytes.as_ptr(), self.memory.base().as_ptr().add(block * BLOCK), BLOCK) };
        flush.fence();
    }

    fn read(&self, block: usize, bytes: &mut [u8; BLOCK]) {
        // SAFETY: a block of the reservation, which is mapped.
        unsafe { self.memory.base().as_ptr().add(block * BLOCK).copy_to(bytes.as_mut_ptr(), BLOCK) };
    }
}

fn disk(path: &Path, blocks: usize) -> Result<Blocks, Failure> {
    let len = (blocks * BLOCK) as u64;
    let options = RegionOptions { len: Some(len + (32 << 20)), ..RegionOptions::default() };
    let region = Arc::new(Region::create_on(&Assumed, path, &options)?);
    let kind = SegmentKind::Blocks { block_bytes: BLOCK as u32 };
    region.create_segment("disk", len, &SegmentOptions { kind, ..SegmentOptions::default() }, |_| {})?;
    Ok(region.attach_blocks("disk", true)?)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let blocks = (arguments.data_mb.unwrap_or(64) << 20) / BLOCK;
    let shared = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(if shared.is_dir() { shared } else { &arguments.dir })?;
    let (bare, disk) =
        (Bare::new(&dir.path().join("bare"), blocks)?, disk(&dir.path().join("region"), blocks)?);
    let contents: Vec<[u8; BLOCK]> = (0..8u8).map(|k| std::array::from_fn(|i| (i * 7) as u8 ^ k)).collect();
    for block in 0..blocks {
        bare.write(block, &contents[0]);
        disk.write(block as u64, &contents[0])?;
    }
    let params = |what: &str| json!({"what": what, "bytes": BLOCK, "blocks": blocks});
    let mut lines = [
        ("stores and fence", "4 KiB stored past the caches, and a fence"),
        ("stores and fence", "4 KiB copied out"),
        ("stores and fence", "a checksum of 4 KiB"),
        ("caliburn", "a block written"),
        ("caliburn", "four blocks written one after the other"),
        ("caliburn", "four blocks written at once"),
        ("caliburn", "a block read"),
    ]
    .map(|(system, what)| Line::new(system, "pm", "power", 1, params(what)));
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut turn = 0;
    report::interleave(arguments.rounds, &mut lines, || {
        let mut time = |act: &mut dyn FnMut(&mut Random, &[u8; BLOCK])| -> Sample {
            report::measure(arguments.seconds / 3.0, 64, || {
                turn += 1;
                act(&mut random, &contents[turn % 8]);
            })
        };
        let (mut found, mut there) = ([0; BLOCK], [0; BLOCK]);
        let sound = "the region is sound";
        vec![
            time(&mut |random, bytes| bare.write(random.below(blocks), bytes)),
            time(&mut |random, _| bare.read(random.below(blocks), black_box(&mut there))),
            time(&mut |_, bytes| _ = black_box(crc32c::crc32c(bytes))),
            time(&mut |random, bytes| disk.write(random.below(blocks) as u64, bytes).expect(sound)),
            time(&mut |random, bytes| {
                (0..4).for_each(|_| disk.write(random.below(blocks) as u64, bytes).expect(sound));
            }),
            time(&mut |random, bytes| {
                let mut four = disk.transaction();
                (0..4).for_each(|_| four.write(random.below(blocks) as u64, bytes).expect(sound));
                four.commit().expect(sound);
            }),
            time(&mut |random, _| disk.read(random.below(blocks) as u64, &mut found).expect(sound)),
        ]
    });
    if !disk.scrub(0..blocks as u64)?.is_empty() {
        return Err("blocks are damaged".into());
    }
    report::print("pm", arguments.json, &lines, 0);
    Ok(())
}
