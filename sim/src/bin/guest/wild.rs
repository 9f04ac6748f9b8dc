//! Blocks under wild stores: the kernel is told to store random words to random places, of the system's memory and
//! of the blocks', until it fails or is failed. Meanwhile two threads write, each write with its number in all of
//! its blocks. A block is what it was when it was written last, or an error: that is looked at all the time, and of
//! every block by the next life.

use crate::{attached, mix, say};
use caliburn_pm::{Blocks, Error};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const THREADS: u64 = 2;
const SIZE: usize = 4096;
/// Wild stores of a life: the first ones, and then one of so many, go to the blocks' memory.
const STORES: u64 = 4000;
const FIRST: u64 = 200;
const SHARE: u64 = 8;
/// Of the lanes the last write each may be undone, if it was damaged and the writer died (docs/pm.md).
const LANES: usize = 8;

/// What a write leaves in a block.
fn content(block: u64, number: u64) -> Vec<u8> {
    let words = (2..SIZE as u64 / 8).map(|word| mix(block << 40 ^ number << 12 ^ word));
    [block, number].into_iter().chain(words).flat_map(u64::to_le_bytes).collect()
}

/// The blocks of write `number` of a thread, in order: of one in four several, at once. Most are written seldom, so
/// that what is damaged stays so for a while.
fn blocks(thread: u64, number: u64, len: u64) -> Vec<u64> {
    let random = mix(number * THREADS + thread);
    let count = if random.is_multiple_of(4) { 2 + random / 4 % 6 } else { 1 };
    let of = len / THREADS / if (random / 32).is_multiple_of(16) { 1 } else { 16 };
    let mut blocks: Vec<u64> = (0..count).map(|i| mix(random ^ i) % of * THREADS + thread).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// The number of the write that a block has; none if it is damaged.
fn found(disk: &Blocks, block: u64) -> Option<u64> {
    let mut bytes = vec![0; SIZE];
    match disk.read(block, &mut bytes) {
        Err(Error::Block { block: which, .. }) if which == block => None,
        Err(error) => wrong(format!("block {block}: {error}")),
        Ok(()) => {
            let number = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
            if bytes != content(block, number) {
                wrong(format!("block {block} is nothing that was written: {:?}", &bytes[..32]));
            }
            Some(number)
        }
    }
}

fn wrong(text: String) -> ! {
    say(format!("guest: wrong: {text}\n"));
    std::process::exit(1)
}

fn write(disk: &Blocks, thread: u64, number: u64) -> Result<(), Error> {
    let blocks = blocks(thread, number, disk.len());
    let contents: Vec<Vec<u8>> = blocks.iter().map(|block| content(*block, number)).collect();
    match (&blocks[..], &contents[..]) {
        ([block], [content]) => disk.write(*block, content),
        _ => {
            let mut all = disk.transaction();
            blocks.iter().zip(&contents).try_for_each(|(block, content)| all.write(*block, content))?;
            all.commit()
        }
    }
}

/// What a life has found.
#[derive(Default)]
struct Tally {
    damaged: usize,
    undone: usize,
}

/// Looks at all blocks of a thread, of whose writes so many were acknowledged, mends what is damaged, and tells the
/// number of the last write.
fn verify(disk: &Blocks, thread: u64, acknowledged: u64, tally: &mut Tally) -> u64 {
    let mine = (0..disk.len()).filter(|block| block % THREADS == thread);
    let there: Vec<(u64, Option<u64>)> = mine.map(|block| (block, found(disk, block))).collect();
    let newest = there.iter().filter_map(|(_, number)| *number).max().unwrap_or(0);
    let last = newest.max(acknowledged);
    let mut writes: Vec<Vec<u64>> = vec![vec![0]; disk.len() as usize];
    for number in 1..=last {
        blocks(thread, number, disk.len()).into_iter().for_each(|block| writes[block as usize].push(number));
    }
    // Writes that are not there, and some of which is, by a block.
    let mut undone: Vec<u64> = Vec::new();
    for (block, number) in there {
        let of_block = &writes[block as usize];
        let (due, before) = (of_block[of_block.len() - 1], of_block[of_block.len().saturating_sub(2)]);
        match number {
            Some(number) if number == due => continue,
            None => tally.damaged += 1,
            Some(number) if number == before => undone.push(due),
            Some(number) => {
                wrong(format!("block {block} is of write {number} and must be of {due}, of {last}"))
            }
        }
        disk.write(block, &content(block, due)).expect("it is mended");
    }
    undone.sort_unstable();
    undone.dedup();
    tally.undone += undone.len();
    if tally.undone > LANES {
        wrong(format!(
            "writes {undone:?} of thread {thread}, up to {last}, are undone, {} in all",
            tally.undone
        ));
    }
    last
}

/// Where memory of a name is, as the kernel says, in bytes: only root is told.
fn memory(name: &str) -> Vec<(u64, u64)> {
    let listed = fs::read_to_string("/proc/iomem").expect("memory is listed");
    let of_line = |line: &str| {
        let (range, what) = line.trim().split_once(" : ")?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)? + 1)).filter(|_| what == name)
    };
    let ranges: Vec<(u64, u64)> = listed.lines().filter_map(of_line).collect();
    assert!(!ranges.is_empty(), "no {name}: {listed}");
    ranges
}

/// A wild store to a place in one of these ranges; whether the kernel could.
fn store(ranges: &[(u64, u64)], random: u64) -> bool {
    let all: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    let mut at = random % (all / 8) * 8;
    let place = ranges.iter().find_map(|(start, end)| {
        let here = (at < end - start).then_some(start + at);
        at = at.saturating_sub(end - start);
        here
    });
    let word = format!("{:x} {:x}", place.expect("it is in one of them"), mix(random));
    fs::write("/sys/module/faulty/parameters/store", word).is_ok()
}

/// `guest wild REGION MILLISECONDS ACKNOWLEDGED...` (of both threads).
pub fn run(path: &Path, after: u64, acknowledged: [u64; THREADS as usize]) {
    let (_region, disk) = attached(path).expect("the region");
    if acknowledged == [0; 2] {
        (0..disk.len()).for_each(|block| disk.write(block, &content(block, 0)).expect("it is written"));
    }
    let mut tally = Tally::default();
    let last: Vec<u64> =
        (0..).zip(acknowledged).map(|(thread, number)| verify(&disk, thread, number, &mut tally)).collect();
    let Tally { damaged, undone } = tally;
    say(format!("guest: {damaged} blocks were damaged, {undone} writes undone\n"));
    say(format!("guest: verified {} {} 0 0\n", last[0], last[1]));
    let written = [0, 1].map(|thread: usize| AtomicU64::new(last[thread]));
    std::thread::scope(|scope| {
        for (thread, written) in (0..).zip(&written) {
            let disk = &disk;
            scope.spawn(move || {
                for number in written.load(SeqCst) + 1.. {
                    write(disk, thread, number).expect("it is written");
                    written.store(number, SeqCst);
                    if number.is_multiple_of(16) {
                        say(format!("ack {thread} {number}\n"));
                    }
                }
            });
        }
        scope.spawn(|| {
            for i in 0.. {
                let _ = found(&disk, mix(i) % disk.len());
            }
        });
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(after));
            let (blocks, system) = (memory("dax0.0"), memory("System RAM"));
            let seed = mix(last[0] ^ last[1] << 32);
            for i in 1..=STORES {
                let to_blocks = i <= FIRST || i.is_multiple_of(SHARE);
                let done = store(if to_blocks { &blocks } else { &system }, mix(seed ^ i));
                assert!(done || !to_blocks, "the blocks' memory cannot be stored to");
                if i.is_multiple_of(100) {
                    say("guest: 100 wild stores\n".to_owned());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = fs::write("/proc/sysrq-trigger", "c");
        });
    });
}
