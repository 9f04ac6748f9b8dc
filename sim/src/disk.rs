//! What a simulated machine keeps: files and names, each with what is durable, and what was done since
//! and may be lost. A disk changes by [`Act`]s only, so that the disk at any moment of a run can be had again
//! by repeating the first so many acts.

use crate::content::Content;
use crate::random::Random;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of a file: names come and go.
pub type FileId = u32;

/// One thing done to the disk, or to memory mapped from it.
#[derive(Debug, Clone)]
pub enum Act {
    /// A file with a new name.
    Create(PathBuf, FileId),
    /// A name goes.
    Remove(PathBuf),
    /// A name gets a new file with this content, which is durable; the name is when its directory is synced.
    Replace(PathBuf, FileId, Arc<[u8]>),
    /// Names in a directory become durable.
    SyncDirectory(PathBuf),
    /// Bytes are written.
    Write(FileId, u64, Arc<[u8]>),
    /// A file becomes longer.
    Extend(FileId, u64),
    /// What was written to a file becomes durable.
    Sync(FileId),
    /// A sync failed: what was written to a file and not durable never will be, though programs see it.
    Drop(FileId),
    /// Somebody was told that what was written to a file was lost on its way.
    Told(FileId),
    /// A file's inode is marked, as long as it stays in memory.
    Mark(FileId),
    /// Bytes are stored through a shared mapping of a file, in the page cache.
    Store(FileId, u64, Arc<[u8]>),
    /// Bytes are stored to persistent memory, through the processor's caches.
    StoreDirect(FileId, u64, Arc<[u8]>),
    /// The cache lines of these bytes are written back, once a fence follows.
    FlushLines(FileId, u64, u64),
    /// What was flushed before is durable after.
    Fence,
}

#[derive(Debug, Clone, Hash)]
enum Change {
    /// `true`: it made the file longer, and does so again if it survives.
    Write(u64, Arc<[u8]>, bool),
    Extend(u64),
    /// To persistent memory: in units of eight bytes. Flushed: durable at the next fence.
    Store {
        offset: u64,
        bytes: Arc<[u8]>,
        flushed: bool,
    },
}

#[derive(Debug, Clone, Default, Hash)]
struct File {
    /// What every program sees.
    now: Content,
    durable: Content,
    pending: Vec<Change>,
    /// Something was lost on its way to the medium, and nobody was told.
    lost: bool,
    /// How often the file system was mounted again.
    mounted: u64,
    /// Its inode has the mark of an opening: it stayed in memory since.
    marked: bool,
}

impl File {
    /// One with this content, durable.
    fn of(content: Content) -> File {
        File { now: content.clone(), durable: content, ..File::default() }
    }
}

#[derive(Debug, Clone, Hash)]
enum NameChange {
    Create(PathBuf, FileId),
    Remove(PathBuf),
}

/// Files and names.
#[derive(Debug, Clone, Default, Hash)]
pub struct Disk {
    files: BTreeMap<FileId, File>,
    names: BTreeMap<PathBuf, FileId>,
    durable_names: BTreeMap<PathBuf, FileId>,
    pending_names: Vec<NameChange>,
}

/// How a power cut treats what was not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it is lost.
    All,
    /// None is.
    Nothing,
    /// Each change survives, or part of it, as the seed says.
    Some(u64),
}

/// Bytes of a cache line.
pub const LINE: u64 = 64;

impl Disk {
    /// Does it.
    pub fn apply(&mut self, act: &Act) {
        match act {
            Act::Create(name, id) => {
                self.files.insert(*id, File::default());
                self.names.insert(name.clone(), *id);
                self.pending_names.push(NameChange::Create(name.clone(), *id));
            }
            Act::Remove(name) => {
                self.names.remove(name);
                self.pending_names.push(NameChange::Remove(name.clone()));
            }
            Act::Replace(name, id, bytes) => {
                self.files.insert(*id, File::of(Content::of(bytes)));
                self.names.insert(name.clone(), *id);
                self.pending_names.push(NameChange::Create(name.clone(), *id));
            }
            Act::SyncDirectory(path) => self.sync_names(path),
            Act::Write(id, offset, bytes) | Act::Store(id, offset, bytes) => {
                let file = self.file(*id);
                let extends = offset + bytes.len() as u64 > file.now.len();
                file.now.write(*offset, bytes);
                file.pending.push(Change::Write(*offset, bytes.clone(), extends));
            }
            Act::Extend(id, len) => {
                let file = self.file(*id);
                file.now.extend(*len);
                file.pending.push(Change::Extend(*len));
            }
            Act::Sync(id) => {
                let File { durable, pending, .. } = self.file(*id);
                for change in pending.drain(..) {
                    match change {
                        Change::Extend(len) => durable.extend(len),
                        Change::Write(offset, bytes, _) | Change::Store { offset, bytes, .. } => {
                            durable.write(offset, &bytes);
                        }
                    }
                }
            }
            Act::Drop(id) => self.file(*id).pending.retain(|change| matches!(change, Change::Store { .. })),
            Act::Told(id) => self.file(*id).lost = false,
            Act::Mark(id) => self.file(*id).marked = true,
            Act::StoreDirect(id, offset, bytes) => {
                let file = self.file(*id);
                file.now.write(*offset, bytes);
                file.pending.push(Change::Store { offset: *offset, bytes: bytes.clone(), flushed: false });
            }
            Act::FlushLines(id, from, len) => {
                let (from, end) = (from / LINE * LINE, (from + len).next_multiple_of(LINE));
                let file = self.file(*id);
                file.pending = std::mem::take(&mut file.pending)
                    .into_iter()
                    .flat_map(|change| split_at_flush(change, from, end))
                    .collect();
            }
            Act::Fence => self.files.values_mut().for_each(|file| {
                let File { durable, pending, .. } = file;
                pending.retain(|change| match change {
                    Change::Store { offset, bytes, flushed: true } => {
                        durable.write(*offset, bytes);
                        false
                    }
                    _ => true,
                });
            }),
        }
    }

    fn file(&mut self, id: FileId) -> &mut File {
        self.files.get_mut(&id).expect("an open file exists")
    }

    fn sync_names(&mut self, directory: &Path) {
        let durable = &mut self.durable_names;
        self.pending_names.retain(|change| {
            let (NameChange::Create(name, _) | NameChange::Remove(name)) = change;
            if name.parent() != Some(directory) {
                return true;
            }
            survive(durable, change);
            false
        });
    }

    /// The disk after the machine lost power.
    pub fn after_power_cut(&self, loss: Loss) -> Disk {
        let mut random = Random::new(if let Loss::Some(seed) = loss { seed } else { 0 });
        // Some cuts keep nearly all, some nearly nothing; a sector is 512 or 4096 bytes, or torn itself.
        let keep = match loss {
            Loss::All => 0,
            Loss::Nothing => 4,
            Loss::Some(_) => 1 + random.below(3),
        };
        let sector = match (random.chance(1, 2), loss) {
            (_, Loss::Some(seed)) if seed % 8 == 1 => 8,
            (true, _) => 512,
            (false, _) => 4096,
        };
        let mut disk = Disk { durable_names: self.durable_names.clone(), ..Disk::default() };
        for change in &self.pending_names {
            if random.below(4) < keep {
                survive(&mut disk.durable_names, change);
            }
        }
        disk.names = disk.durable_names.clone();
        for (id, file) in &self.files {
            // A file whose last name is gone is gone.
            if !disk.names.values().any(|named| named == id) {
                continue;
            }
            let mut torn = Torn { content: file.durable.clone(), skipped: HashMap::new() };
            for change in &file.pending {
                match change {
                    Change::Extend(len) if random.below(4) < keep => torn.content.extend(*len),
                    Change::Extend(_) => {}
                    // Without the extension that came before it, it lies beyond the end.
                    Change::Write(offset, bytes, extends)
                        if !extends && offset + bytes.len() as u64 > torn.content.len() => {}
                    Change::Write(offset, bytes, _) => {
                        let whole = random.below(4) < keep && loss != Loss::All;
                        torn.write(*offset, bytes, sector, || whole || random.below(4) < keep);
                    }
                    Change::Store { offset, bytes, .. } => {
                        torn.write(*offset, bytes, 8, || random.below(4) < keep);
                    }
                }
            }
            let content = torn.content;
            disk.files.insert(*id, File::of(content));
        }
        disk
    }

    /// The disk when a write of `bytes` was interrupted after `done` of them.
    pub fn interrupted(&self, id: FileId, offset: u64, bytes: &[u8], done: usize) -> Disk {
        let mut disk = self.clone();
        disk.apply(&Act::Write(id, offset, bytes[..done].into()));
        disk
    }

    /// Whether files of that ending have what is not durable.
    pub fn unforced(&self, ending: &str) -> bool {
        self.ending(ending).iter().any(|id| !self.files[id].pending.is_empty())
    }

    fn ending(&self, ending: &str) -> Vec<FileId> {
        let named = |name: &Path| name.to_string_lossy().ends_with(ending);
        self.names.iter().filter(|(name, _)| named(name)).map(|(_, id)| *id).collect()
    }

    /// The disk when some of what was written to files of that ending, and not forced, was lost on its way to the
    /// medium, and is not in the page cache any more; or all of it, where the medium was pulled and mounted again.
    /// `stores`: what was stored to mapped memory too.
    pub fn after_lost_writes(&self, ending: &str, seed: Option<u64>, stores: bool) -> Disk {
        let mut disk = self.clone();
        let mut random = Random::new(seed.unwrap_or(0));
        for id in self.ending(ending) {
            let file = disk.file(id);
            let written = file.pending.len();
            file.pending.retain(|change| match change {
                Change::Store { .. } if !stores => true,
                Change::Write(..) | Change::Store { .. } => seed.is_some() && random.chance(1, 2),
                Change::Extend(..) => true,
            });
            file.lost |= seed.is_some() && file.pending.len() < written;
            file.mounted += u64::from(seed.is_none());
            file.marked &= seed.is_some();
            let mut now = file.durable.clone();
            for change in &file.pending {
                match change {
                    Change::Extend(len) => now.extend(*len),
                    Change::Write(offset, bytes, _) | Change::Store { offset, bytes, .. } => {
                        now.write(*offset, bytes);
                    }
                }
            }
            file.now = now;
        }
        disk
    }

    /// Whether something written to a file was lost and nobody was told; and how often the file was mounted again.
    pub fn health(&self, id: FileId) -> (bool, u64) {
        (self.files[&id].lost, self.files[&id].mounted)
    }

    /// Whether something written to any file was lost and nobody was told.
    pub fn has_lost(&self) -> bool {
        self.files.values().any(|file| file.lost)
    }

    /// Whether a file's inode stayed in memory since it was marked.
    pub fn is_marked(&self, id: FileId) -> bool {
        self.files[&id].marked
    }

    /// Whether that can be said of a file with one of these endings.
    pub fn marked(&self, endings: &[&str]) -> bool {
        endings.iter().flat_map(|ending| self.ending(ending)).any(|id| self.files[&id].marked)
    }

    /// All inodes go from memory, whatever becomes of what it holds.
    pub fn evict(&mut self) {
        self.files.values_mut().for_each(|file| file.marked = false);
    }

    /// The file of that name.
    pub fn lookup(&self, name: &Path) -> Option<FileId> {
        self.names.get(name).copied()
    }

    /// Names in a directory.
    pub fn list(&self, directory: &Path) -> Vec<PathBuf> {
        self.names.keys().filter(|name| name.parent() == Some(directory)).cloned().collect()
    }

    /// What programs see of a file.
    pub fn content(&self, id: FileId) -> &Content {
        &self.files[&id].now
    }

    /// Changes a byte behind everybody's back.
    pub fn flip(&mut self, id: FileId, offset: u64, mask: u8) {
        let file = self.file(id);
        let mut byte = [0];
        if file.now.read(offset, &mut byte) {
            file.now.write(offset, &[byte[0] ^ mask]);
            file.durable = file.now.clone();
            file.pending.clear();
        }
    }

    /// A name goes, behind everybody's back.
    pub fn lose(&mut self, name: &Path) {
        self.names.remove(name);
        self.durable_names.remove(name);
    }

    /// A file has another content, behind everybody's back.
    pub fn put(&mut self, id: FileId, content: Content) {
        self.files.insert(id, File::of(content));
    }

    /// A number that no file has.
    pub fn unused(&self) -> FileId {
        self.files.keys().next_back().map_or(0, |last| last + 1)
    }

    /// Equal for equal disks.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

fn survive(names: &mut BTreeMap<PathBuf, FileId>, change: &NameChange) {
    match change {
        NameChange::Create(name, id) => drop(names.insert(name.clone(), *id)),
        NameChange::Remove(name) => drop(names.remove(name)),
    }
}

/// Where bytes belong, and they.
type Piece<'d> = (u64, &'d [u8]);

/// A file at a power cut.
struct Torn<'d> {
    content: Content,
    /// Changes that did not survive, by unit: they do if a later change of the same unit does, since a unit
    /// goes to the medium as it stands.
    skipped: HashMap<(u64, u64), Vec<Piece<'d>>>,
}

impl<'d> Torn<'d> {
    /// Writes those units of `bytes` that survive.
    fn write(&mut self, offset: u64, bytes: &'d [u8], unit: u64, mut survives: impl FnMut() -> bool) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min((unit - at % unit) as usize));
            let skipped = self.skipped.entry((unit, at / unit)).or_default();
            skipped.push((at, now));
            if survives() {
                for (at, bytes) in skipped.drain(..) {
                    self.content.write(at, bytes);
                }
            }
            at += now.len() as u64;
            rest = later;
        }
    }
}

/// The parts of a change within and without the lines that are flushed.
fn split_at_flush(change: Change, from: u64, end: u64) -> Vec<Change> {
    let Change::Store { offset, bytes, flushed: false } = change else { return vec![change] };
    let stop = offset + bytes.len() as u64;
    let cuts = [offset, from.clamp(offset, stop), end.clamp(offset, stop), stop];
    let part = |i: usize| {
        let (a, b) = (cuts[i], cuts[i + 1]);
        (a < b).then(|| Change::Store {
            offset: a,
            bytes: bytes[(a - offset) as usize..(b - offset) as usize].into(),
            flushed: i == 1,
        })
    };
    (0..3).filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        let mut disk = Disk::default();
        disk.apply(&Act::Create("d/f".into(), 0));
        disk
    }

    fn content(disk: &Disk, id: FileId) -> Vec<u8> {
        disk.content(id).bytes()
    }

    #[test]
    fn only_what_was_synced_is_sure_to_survive() {
        let mut disk = disk();
        disk.apply(&Act::Write(0, 0, (*b"kept").into()));
        disk.apply(&Act::Sync(0));
        assert!(
            disk.after_power_cut(Loss::All).lookup(Path::new("d/f")).is_none(),
            "the name was not durable"
        );
        disk.apply(&Act::SyncDirectory("d".into()));
        disk.apply(&Act::Write(0, 2, (*b"XX").into()));
        assert_eq!(content(&disk.after_power_cut(Loss::All), 0), b"kept");
        assert_eq!(content(&disk.after_power_cut(Loss::Nothing), 0), b"keXX");
    }

    #[test]
    fn some_cut_tears_a_write_between_sectors_and_keeps_a_later_write_without_an_earlier_one() {
        let mut disk = disk();
        disk.apply(&Act::SyncDirectory("d".into()));
        disk.apply(&Act::Extend(0, 2048));
        disk.apply(&Act::Sync(0));
        disk.apply(&Act::Write(0, 0, [1; 1024].into()));
        disk.apply(&Act::Write(0, 1024, [2; 512].into()));
        let (mut seen_torn, mut seen_reordered) = (false, false);
        for seed in 0..200 {
            let bytes = content(&disk.after_power_cut(Loss::Some(seed)), 0);
            for sector in bytes.chunks(512).filter(|_| seed % 8 != 1) {
                assert!(sector.iter().all(|b| *b == sector[0]), "a sector was torn");
            }
            seen_torn |= bytes[0] != bytes[512];
            seen_reordered |= bytes[0] == 0 && bytes[512] == 0 && bytes[1024] == 2;
        }
        assert!(seen_torn && seen_reordered);
    }

    /// A one-entry undo log in memory: old value, then its mark, then the new value. Correct only with a
    /// flush and a fence between each.
    fn memory_transaction(disk: &mut Disk, fences: bool) -> Vec<Disk> {
        let mut moments = Vec::new();
        let steps: [(u64, u64); 3] = [(64, 7), (128, 1), (0, 8)];
        for (at, value) in steps {
            let acts =
                [Act::StoreDirect(0, at, value.to_le_bytes().into()), Act::FlushLines(0, at, 8), Act::Fence];
            for act in acts.iter().take(if fences { 3 } else { 1 }) {
                disk.apply(act);
                moments.push(disk.clone());
            }
        }
        moments
    }

    #[test]
    fn memory_without_fences_is_caught_and_with_them_is_right() {
        for fences in [true, false] {
            let mut disk = disk();
            disk.apply(&Act::SyncDirectory("d".into()));
            disk.apply(&Act::Extend(0, 192));
            disk.apply(&Act::Write(0, 0, 7u64.to_le_bytes().into()));
            disk.apply(&Act::Sync(0));
            let word = |disk: &Disk, at: usize| content(disk, 0)[at];
            let wrong = memory_transaction(&mut disk, fences)
                .iter()
                .flat_map(|moment| (0..50).map(|seed| moment.after_power_cut(Loss::Some(seed))))
                // The value changed and the undo log cannot bring it back.
                .filter(|after| word(after, 0) == 8 && !(word(after, 128) == 1 && word(after, 64) == 7))
                .count();
            assert_eq!(wrong == 0, fences, "{wrong} wrong pictures with fences: {fences}");
        }
    }
}
