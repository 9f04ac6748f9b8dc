//! Crashes of a region of persistent memory: of its base segment, of blocks, and of writes of several blocks at
//! once.
//!
//! A life makes or attaches a region and does a few random things with it; it is cut after everything that it does
//! to the medium, in the middle of a store, too, by a power cut or the death of the process. What is left is taken
//! up again: of each block it must show what its last write has stored, or, of the one write that was under way,
//! that; of several at once all or none. Where the medium must be flushed, a power cut may bring a block back to
//! what it was at the last flush, or to anything since. Taking up is cut, too. A bit of what says where a block is
//! may be flipped, while nobody uses the segment: until the block is written again reading it is an error, and
//! nothing else.
//!
//! Versions of blocks come round after seven writes and begin two before that, and a third of the workloads has one
//! lane, so that all that an entry says is 0 again and again.

use crate::disk::{Act, Disk, Loss};
use crate::explore::Failure;
use crate::media::{Entry, Hardware, Machine, MachineMedia};
use crate::random::Random;
use caliburn_os::medium::Media;
use caliburn_pm::{Blocks, Error, Region, RegionOptions, SegmentKind, SegmentOptions};
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
    /// Given up; a bit of a block's entries is flipped; attached again.
    Damage(u64, u64),
}

/// What is known of a life when it is cut.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Lanes of the segment.
    lanes: u32,
    /// What blocks may show, the last one first.
    blocks: BTreeMap<u64, Vec<u64>>,
    /// Those that were damaged, and may be still. What they were before they do not show any more.
    damaged: BTreeSet<u64>,
    /// One that is being damaged.
    damaging: Option<u64>,
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

/// Numbers begin behind those of lives before. With damage, or without.
fn steps(random: &mut Random, mut number: u64, damages: bool) -> Vec<Step> {
    let mut next = || {
        number += 1;
        number
    };
    let mut steps: Vec<Step> = (0..6 + random.below(8))
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
        .collect();
    for _ in 0..if damages { 1 + random.below(2) } else { 0 } {
        let bit = random.below(2) * ENTRY_BITS + random.below(WORDS_BITS);
        steps.insert(random.below(steps.len() as u64) as usize, Step::Damage(random.below(BLOCKS), bit));
    }
    steps
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
                self.damaged.remove(&block);
            }
        }
    }

    fn flushed(&mut self) {
        self.blocks.values_mut().for_each(|may| may.truncate(1));
        self.damaged.retain(|block| self.blocks[block].is_empty());
    }

    fn may_be_damaged(&self, block: u64) -> bool {
        self.damaged.contains(&block) || self.damaging == Some(block)
    }

    fn damage(&mut self, block: u64) {
        self.damaging = None;
        self.damaged.insert(block);
        self.blocks.insert(block, Vec::new());
    }
}

/// Bits of an entry, and those of them that say something.
const ENTRY_BITS: u64 = 32 * 8;
const WORDS_BITS: u64 = 24 * 8;

/// Where a block's entries stand: behind the base and the lanes, since the segment is the region's first.
fn entries_of(lanes: u32, block: u64) -> u64 {
    (512 << 10) + u64::from(lanes) * (36 << 10) + block * 64
}

/// Flips a bit of a block's entries, on the medium, too.
fn damage(media: &MachineMedia<Known>, entries: u64, bit: u64) -> std::io::Result<()> {
    let (file, at) = (media.open(Path::new(PATH), true)?, entries + bit / 8);
    let mut byte = [0];
    file.read_at(&mut byte, at)?;
    file.write_at(&[byte[0] ^ 1 << (bit % 8)], at)?;
    file.sync()
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

/// A life: of what another life has left, or of a region that is made.
fn life(machine: &Arc<PmMachine>, known: &Known, steps: &[Step], direct: bool) -> Result<(), String> {
    let (media, left) = (MachineMedia(machine.clone()), known.made);
    let mut known = known.clone();
    known.unseen = left;
    machine.mark(known.clone());
    machine.run(|| {
        let told = |error: caliburn_pm::Error| error.to_string();
        if known.damaging.is_some() {
            // A bit that was being flipped is flipped from now on, or is not: the next power cut changes it no more.
            let forced = media.open(Path::new(PATH), true).and_then(|file| file.sync());
            forced.map_err(|error| error.to_string())?;
        }
        let region = Arc::new(match left {
            true => Region::open_on(&media, Path::new(PATH), true).map_err(told)?,
            false => {
                let options = RegionOptions { len: Some(4 << 20), ..RegionOptions::default() };
                let region = Region::create_on(&media, Path::new(PATH), &options).map_err(told)?;
                let kind = SegmentKind::Blocks { block_bytes: BYTES };
                let options = SegmentOptions { kind, lanes: known.lanes, ..SegmentOptions::default() };
                region.create_segment("disk", BLOCKS * u64::from(BYTES), &options, |_| {}).map_err(told)?;
                known.made = true;
                (0..BLOCKS).for_each(|block| _ = known.blocks.insert(block, vec![0]));
                machine.mark(known.clone());
                region
            }
        });
        let disk = Some(region.attach_blocks("disk", true).map_err(told)?);
        if left {
            let shown = show(disk.as_ref().expect("just attached"), &known)?;
            known.blocks =
                shown.into_iter().map(|(block, number)| (block, number.into_iter().collect())).collect();
            known.damaging = None;
            known.damaged =
                known.blocks.iter().filter(|(_, may)| may.is_empty()).map(|(block, _)| *block).collect();
            known.now.clear();
            known.unseen = false;
            known.other = [region.segment("other").map_or(0, |other| other.len); 2];
            machine.mark(known.clone());
        }
        let mut running = Running { machine, media: &media, region: &region, disk, known, direct };
        steps.iter().try_for_each(|step| running.step(step))
    })
}

/// A region in use.
struct Running<'m> {
    machine: &'m Arc<PmMachine>,
    media: &'m MachineMedia<Known>,
    region: &'m Arc<Region>,
    disk: Option<Blocks>,
    known: Known,
    direct: bool,
}

impl Running<'_> {
    fn mark(&self) {
        self.machine.mark(self.known.clone());
    }

    /// Writes under way, by this thread or another one.
    fn write(
        &mut self,
        writes: &[(u64, u64)],
        aside: bool,
        act: impl FnOnce(&Blocks) -> PmResult + Send,
    ) -> PmResult {
        self.known.begin(writes);
        self.mark();
        let blocks = self.disk.as_ref().expect("attached between steps");
        by(aside, || act(blocks))
    }

    fn attach(&mut self) -> PmResult {
        self.disk = Some(self.region.attach_blocks("disk", true)?);
        Ok(())
    }

    /// Given up: all of it lasts.
    fn give_up(&mut self) {
        drop(self.disk.take());
        self.known.flushed();
        self.mark();
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        match step {
            Step::Write(block, number, aside) => {
                let write = |blocks: &Blocks| match number {
                    0 => blocks.clear(*block..block + 1),
                    _ => blocks.write(*block, &bytes(*number)),
                };
                self.write(&[(*block, *number)], *aside, write).map_err(told)?;
                self.known.end(self.direct);
            }
            Step::Several(writes, aside) => {
                let contents: Vec<(u64, Vec<u8>)> = writes.iter().map(|(b, n)| (*b, bytes(*n))).collect();
                let commit = |blocks: &Blocks| {
                    let mut transaction = blocks.transaction();
                    contents.iter().try_for_each(|(block, content)| transaction.write(*block, content))?;
                    transaction.commit()
                };
                self.write(writes, *aside, commit).map_err(told)?;
                // One block alone is no more than that block.
                self.known.end(self.direct || writes.len() > 1);
                if writes.len() > 1 {
                    self.known.flushed();
                }
            }
            Step::Flush => {
                self.disk.as_ref().expect("attached between steps").flush().map_err(told)?;
                self.known.flushed();
            }
            Step::Again => {
                self.give_up();
                self.attach().map_err(told)?;
            }
            Step::Damage(block, bit) => {
                self.give_up();
                self.known.damaging = Some(*block);
                self.mark();
                let entries = entries_of(self.known.lanes, *block);
                damage(self.media, entries, *bit).map_err(|error| error.to_string())?;
                self.known.damage(*block);
                self.mark();
                self.attach().map_err(told)?;
            }
            Step::Other(len) => self.other(*len).map_err(told)?,
        }
        self.mark();
        Ok(())
    }

    /// The other segment is made, gets another length, or is destroyed.
    fn other(&mut self, len: u64) -> PmResult {
        self.known.other[1] = len;
        self.mark();
        match (self.known.other[0], len) {
            (0, 0) => {}
            (0, len) => self.region.create_segment("other", len, &SegmentOptions::default(), |_| {})?,
            (_, 0) => self.region.destroy("other")?,
            (_, len) => self.region.resize("other", len, |_| {})?,
        }
        self.known.other[0] = len;
        Ok(())
    }
}

type PmResult = caliburn_pm::Result<()>;

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

/// Each block shows what it may, and of what was under way all is there or nothing. What they show; none if a block
/// is damaged.
fn show(disk: &Blocks, known: &Known) -> Result<BTreeMap<u64, Option<u64>>, String> {
    let mut shown = BTreeMap::new();
    for block in 0..BLOCKS {
        let mut found = vec![0; BYTES as usize];
        match disk.read(block, &mut found) {
            Ok(()) => {}
            Err(Error::Block { block: told, .. }) if told == block && known.may_be_damaged(block) => {
                shown.insert(block, None);
                continue;
            }
            Err(error) => return Err(error.to_string()),
        }
        let now = known.now.iter().filter(|(b, _)| *b == block).map(|(_, number)| *number);
        let mut may = known.blocks[&block].iter().copied().chain(now);
        let number = may.find(|number| bytes(*number) == found);
        let number = number.ok_or_else(|| {
            let shows = (0..100).find(|number| bytes(*number) == found);
            format!("block {block} shows {shows:?}, and is none of {:?}", known.blocks[&block])
        })?;
        shown.insert(block, Some(number));
    }
    // One that was damaged before may be still.
    let now: Vec<bool> =
        known.now.iter().filter_map(|(block, number)| Some(shown[block]? == *number)).collect();
    let there = now.iter().filter(|is_there| **is_there).count();
    if there != 0 && there != now.len() {
        return Err(format!("of {} blocks that were written at once {there} are there", now.len()));
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
    // The others are what they were before there was damage, by which planted bugs are found.
    let damages = seed.is_multiple_of(3);
    let steps = steps(random, 0, damages);
    let hardware = Hardware { persistent, ..Hardware::default() };
    let machine: Arc<PmMachine> = Machine::new(Disk::default(), [1; 16], 1 << 40, hardware, None);
    let known = Known { lanes: [8, 1, 2][(seed / 3 % 3) as usize], ..Known::default() };
    let done = life(&machine, &known, &steps, persistent)
        .and_then(|()| cut(Disk::default(), &machine, hardware, (0, damages), random));
    done.map_err(|why| Failure { path: format!("pm, seed {seed}: {steps:?}"), why })
}

/// Lives after one another.
const LIVES: u64 = 3;

fn cut(
    mut disk: Disk,
    machine: &Arc<PmMachine>,
    hardware: Hardware,
    (lives, damages): (u64, bool),
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
                let steps = steps(random, 20 * (lives + 1), damages);
                let machine: Arc<PmMachine> = Machine::new(image.clone(), [2; 16], 1 << 41, hardware, None);
                let next = life(&machine, &known, &steps, hardware.persistent);
                let next = next.and_then(|()| cut(image, &machine, hardware, (lives + 1, damages), random));
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
