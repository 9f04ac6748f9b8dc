//! Crashes of a region of persistent memory: of its base segment, of blocks, and of writes of several blocks at
//! once.
//!
//! A life makes or attaches a region and does a few random things with it; it is cut after everything that it does
//! to the medium, in the middle of a store, too, by a power cut or the death of the process. What is left is taken
//! up again: of each block it must show what its last write has stored, or, of the one write that was under way,
//! that; of several at once all or none. Where the medium must be flushed, a power cut may bring a block back to
//! what it was at the last flush, or to anything since. Taking up is cut, too.

use crate::disk::{Act, Disk, Loss};
use crate::explore::Failure;
use crate::media::{Entry, Hardware, Machine, MachineMedia};
use crate::random::Random;
use caliburn_pm::{Blocks, Region, RegionOptions, SegmentKind, SegmentOptions};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

const PATH: &str = "/region";
const BLOCKS: u64 = 6;
const BYTES: u32 = 512;

/// One thing that is done.
#[derive(Debug, Clone)]
enum Step {
    /// A block gets a number; 0 clears it. By another thread, or by this one: in another lane.
    Write(u64, u64, bool),
    /// Several do.
    Several(Vec<(u64, u64)>, bool),
    Flush,
    /// Given up, and attached again.
    Again,
    /// Another segment is made, gets another length, or is destroyed.
    Other(u64),
}

/// What is known of a life when it is cut.
#[derive(Debug, Clone, Default)]
struct Known {
    /// What blocks may show, the last one first.
    blocks: BTreeMap<u64, Vec<u64>>,
    /// What is under way.
    now: Vec<(u64, u64)>,
    /// The length of the other segment, 0 if there is none, and what it may be instead.
    other: [u64; 2],
    /// Whether the region, and the segment of blocks, are there.
    made: bool,
    /// Nobody has looked yet what a power cut has left of it.
    unseen: bool,
}

type PmMachine = Machine<Known>;

/// Numbers begin behind those of lives before.
fn steps(random: &mut Random, mut number: u64) -> Vec<Step> {
    let mut next = || {
        number += 1;
        number
    };
    (0..6 + random.below(8))
        .map(|_| match random.below(10) {
            0..4 => Step::Write(random.below(BLOCKS), next(), random.chance(1, 3)),
            4 => Step::Write(random.below(BLOCKS), 0, false),
            5 | 6 => {
                let blocks: BTreeSet<u64> = (0..2 + random.below(3)).map(|_| random.below(BLOCKS)).collect();
                Step::Several(blocks.into_iter().map(|block| (block, next())).collect(), random.chance(1, 3))
            }
            7 => Step::Flush,
            8 => Step::Again,
            _ => Step::Other(random.below(4) * 50_000),
        })
        .collect()
}

fn bytes(number: u64) -> Vec<u8> {
    (0..u64::from(BYTES))
        .map(|i| if number == 0 { 0 } else { (number * 37 + i / 8 * 11 + 1) as u8 })
        .collect()
}

impl Known {
    /// A write is under way.
    fn begin(&mut self, writes: &[(u64, u64)]) {
        self.now = writes.to_vec();
    }

    /// It has returned. Where nothing need be flushed, or all was, it is all that may be there.
    fn end(&mut self, flushed: bool) {
        for (block, number) in std::mem::take(&mut self.now) {
            let may = self.blocks.entry(block).or_default();
            may.insert(0, number);
            if flushed {
                may.truncate(1);
            }
        }
    }

    fn flushed(&mut self) {
        self.blocks.values_mut().for_each(|may| may.truncate(1));
    }
}

/// Does something in this thread, or in another one.
fn by<T: Send>(another: bool, act: impl FnOnce() -> T + Send) -> T {
    if !another {
        return act();
    }
    let inherited = caliburn_os::simulated::inherited();
    let act = move || {
        inherited();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join()).expect("it does not panic")
}

/// A life: of a region that is made, or of what another life has left.
fn life(machine: &Arc<PmMachine>, left: Option<&Known>, steps: &[Step], direct: bool) -> Result<(), String> {
    let media = MachineMedia(machine.clone());
    let mut known = left.cloned().unwrap_or_default();
    known.unseen = left.is_some();
    machine.mark(known.clone());
    machine.run(|| {
        let told = |error: caliburn_pm::Error| error.to_string();
        let region = Arc::new(match left {
            Some(_) => Region::open_on(&media, Path::new(PATH), true).map_err(told)?,
            None => {
                let options = RegionOptions { len: Some(4 << 20), ..RegionOptions::default() };
                let region = Region::create_on(&media, Path::new(PATH), &options).map_err(told)?;
                let kind = SegmentKind::Blocks { block_bytes: BYTES };
                let options = SegmentOptions { kind, ..SegmentOptions::default() };
                region.create_segment("disk", BLOCKS * u64::from(BYTES), &options, |_| {}).map_err(told)?;
                known.made = true;
                (0..BLOCKS).for_each(|block| _ = known.blocks.insert(block, vec![0]));
                machine.mark(known.clone());
                region
            }
        });
        let mut disk = Some(region.attach_blocks("disk", true).map_err(told)?);
        if left.is_some() {
            let shown = show(disk.as_ref().expect("just attached"), &known)?;
            known.blocks = shown.into_iter().map(|(block, number)| (block, vec![number])).collect();
            known.now.clear();
            known.unseen = false;
            known.other = [region.segment("other").map_or(0, |other| other.len); 2];
            machine.mark(known.clone());
        }
        for step in steps {
            let blocks = disk.as_ref().expect("attached between steps");
            match step {
                Step::Write(block, number, aside) => {
                    known.begin(&[(*block, *number)]);
                    machine.mark(known.clone());
                    let write = || match number {
                        0 => blocks.clear(*block..block + 1),
                        _ => blocks.write(*block, &bytes(*number)),
                    };
                    by(*aside, write).map_err(told)?;
                    known.end(direct);
                }
                Step::Several(writes, aside) => {
                    known.begin(writes);
                    machine.mark(known.clone());
                    let contents: Vec<(u64, Vec<u8>)> = writes.iter().map(|(b, n)| (*b, bytes(*n))).collect();
                    let commit = || {
                        let mut transaction = blocks.transaction();
                        contents
                            .iter()
                            .try_for_each(|(block, content)| transaction.write(*block, content))?;
                        transaction.commit()
                    };
                    by(*aside, commit).map_err(told)?;
                    // One block alone is no more than that block.
                    known.end(direct || writes.len() > 1);
                    if writes.len() > 1 {
                        known.flushed();
                    }
                }
                Step::Flush => {
                    blocks.flush().map_err(told)?;
                    known.flushed();
                }
                Step::Again => {
                    drop(disk.take());
                    known.flushed();
                    machine.mark(known.clone());
                    disk = Some(region.attach_blocks("disk", true).map_err(told)?);
                }
                Step::Other(len) => {
                    known.other[1] = *len;
                    machine.mark(known.clone());
                    match (known.other[0], *len) {
                        (0, 0) => {}
                        (0, len) => region
                            .create_segment("other", len, &SegmentOptions::default(), |_| {})
                            .map_err(told)?,
                        (_, 0) => region.destroy("other").map_err(told)?,
                        (_, len) => region.resize("other", len, |_| {}).map_err(told)?,
                    }
                    known.other[0] = *len;
                }
            }
            machine.mark(known.clone());
        }
        Ok(())
    })
}

/// What is left shows what it may.
fn take_up(machine: &Arc<PmMachine>, known: &Known) -> Result<(), String> {
    let media = MachineMedia(machine.clone());
    machine.run(|| {
        let told = |error: caliburn_pm::Error| error.to_string();
        let region = match Region::open_on(&media, Path::new(PATH), true) {
            Ok(region) => Arc::new(region),
            Err(_) if !known.made => return Ok(()),
            Err(error) => return Err(told(error)),
        };
        let names: Vec<(String, u64)> =
            region.segments().map_err(told)?.into_iter().map(|s| (s.name, s.len)).collect();
        if !known.made {
            return Ok(());
        }
        let other = names.iter().find(|(name, _)| name == "other").map_or(0, |(_, len)| *len);
        if !known.other.contains(&other) {
            return Err(format!("the other segment has {other} bytes, and may have {:?}", known.other));
        }
        if other > 0 {
            let segment = region.attach("other", true).map_err(told)?;
            let mut all = vec![1; other as usize];
            segment.read(0, &mut all).map_err(told)?;
            if all.iter().any(|byte| *byte != 0) {
                return Err("the other segment is not zeros".into());
            }
        }
        let disk = region.attach_blocks("disk", true).map_err(told)?;
        show(&disk, known)?;
        // It can be used, and what it shows stays.
        for block in 0..BLOCKS {
            disk.write(block, &bytes(900 + block)).map_err(told)?;
        }
        for block in 0..BLOCKS {
            let mut found = vec![0; BYTES as usize];
            disk.read(block, &mut found).map_err(told)?;
            if found != bytes(900 + block) {
                return Err(format!("block {block} does not show what was written after the crash"));
            }
        }
        Ok(())
    })
}

/// Each block shows what it may, and of what was under way all is there or nothing.
fn show(disk: &Blocks, known: &Known) -> Result<BTreeMap<u64, u64>, String> {
    let mut shown = BTreeMap::new();
    for block in 0..BLOCKS {
        let mut found = vec![0; BYTES as usize];
        disk.read(block, &mut found).map_err(|error| error.to_string())?;
        let now = known.now.iter().filter(|(b, _)| *b == block).map(|(_, number)| *number);
        let mut may = known.blocks[&block].iter().copied().chain(now);
        let number = may.find(|number| bytes(*number) == found);
        let number = number.ok_or_else(|| {
            let shows = (0..100).find(|number| bytes(*number) == found);
            format!("block {block} shows {shows:?}, and is none of {:?}", known.blocks[&block])
        })?;
        shown.insert(block, number);
    }
    let there = known.now.iter().filter(|(block, number)| shown[block] == *number).count();
    if there != 0 && there != known.now.len() {
        return Err(format!("of {} blocks that were written at once {there} are there", known.now.len()));
    }
    Ok(shown)
}

/// What crashes may leave after the first so many entries of a journal: disks, and whether the power was cut.
fn images(disk: &Disk, next: Option<&Entry<Known>>, random: &mut Random) -> Vec<(Disk, bool)> {
    let losses = [Loss::All, Loss::Some(random.bits()), Loss::Some(random.bits()), Loss::Some(random.bits())];
    let mut images: Vec<(Disk, bool)> = losses.map(|loss| (disk.after_power_cut(loss), true)).into();
    images.push((disk.clone(), false));
    let Some(Entry::Act(next)) = next else { return images };
    let mut part = |bytes: &[u8]| bytes[..random.below(bytes.len() as u64) as usize / 8 * 8].into();
    let begun = match next {
        Act::Store(id, offset, bytes) if bytes.len() > 8 => Act::Store(*id, *offset, part(bytes)),
        Act::StoreDirect(id, offset, bytes) if bytes.len() > 8 => Act::StoreDirect(*id, *offset, part(bytes)),
        _ => return images,
    };
    let mut half = disk.clone();
    half.apply(&begun);
    images.push((half.after_power_cut(Loss::Some(random.bits())), true));
    images.push((half, false));
    images
}

/// Cuts a life after everything that it does, and so some of the lives of what that leaves.
pub fn pm(seed: u64, persistent: bool, random: &mut Random) -> Result<u64, Failure> {
    let steps = steps(random, 0);
    let hardware = Hardware { persistent, ..Hardware::default() };
    let machine: Arc<PmMachine> = Machine::new(Disk::default(), [1; 16], 1 << 40, hardware, None);
    let done = life(&machine, None, &steps, persistent)
        .and_then(|()| cut(Disk::default(), &machine, hardware, 0, random));
    done.map_err(|why| Failure { path: format!("pm, seed {seed}: {steps:?}"), why })
}

/// Lives after one another.
const LIVES: u64 = 3;

fn cut(
    mut disk: Disk,
    machine: &Arc<PmMachine>,
    hardware: Hardware,
    lives: u64,
    random: &mut Random,
) -> Result<u64, String> {
    let (mut known, mut seen, mut cases) = (Known::default(), HashSet::new(), 0);
    let mut journal = machine.take_journal().into_iter().peekable();
    while let Some(entry) = journal.next() {
        match entry {
            Entry::Mark(mark) => known = mark,
            Entry::Act(act) => disk.apply(&act),
        }
        if lives > 0 && random.below(4) != 0 {
            continue;
        }
        for (image, power) in images(&disk, journal.peek(), random) {
            // The death of the process takes nothing that was written.
            let mut may = known.clone();
            if !power && !known.unseen {
                may.flushed();
            }
            if !seen.insert((image.digest(), format!("{may:?}"))) {
                continue;
            }
            cases += 1;
            let machine: Arc<PmMachine> = Machine::new(image.clone(), [2; 16], 1 << 41, hardware, None);
            take_up(&machine, &may)
                .map_err(|why| format!("{why}, {}", if power { "after a power cut" } else { "killed" }))?;
            if random.below(64) == 0 {
                cases += again(image.clone(), &machine, &known, hardware, random)?;
            }
            if known.made && lives + 1 < LIVES && random.below(150) == 0 {
                let steps = steps(random, 20 * (lives + 1));
                let machine: Arc<PmMachine> = Machine::new(image.clone(), [2; 16], 1 << 41, hardware, None);
                let next = life(&machine, Some(&known), &steps, hardware.persistent);
                let next = next.and_then(|()| cut(image, &machine, hardware, lives + 1, random));
                cases += next.map_err(|why| format!("{why}; in a life with {steps:?}"))?;
            }
        }
    }
    Ok(cases)
}

/// Cuts what takes up, up to where it begins to use what it has found.
fn again(
    mut disk: Disk,
    machine: &Arc<PmMachine>,
    known: &Known,
    hardware: Hardware,
    random: &mut Random,
) -> Result<u64, String> {
    let mut cases = 0;
    let journal = machine.take_journal();
    let first = journal.iter().position(is_of_use).unwrap_or(journal.len());
    for entry in journal.into_iter().take(first) {
        if let Entry::Act(act) = entry {
            disk.apply(&act);
        }
        if random.below(8) != 0 {
            continue;
        }
        for (image, _) in images(&disk, None, random) {
            cases += 1;
            let machine: Arc<PmMachine> = Machine::new(image, [3; 16], 1 << 42, hardware, None);
            take_up(&machine, known).map_err(|why| format!("after a crash of recovery: {why}"))?;
        }
    }
    Ok(cases)
}

/// Whether it is the first store of a block's bytes.
fn is_of_use(entry: &Entry<Known>) -> bool {
    matches!(entry, Entry::Act(Act::Store(_, _, bytes) | Act::StoreDirect(_, _, bytes)) if bytes.len() == BYTES as usize)
}
