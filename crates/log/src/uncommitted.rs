//! Undo logs as an opening finds them: what they say of transactions that were not committed.
//!
//! Where their memory is the page cache, the words of each chunk count what is valid in it, and they mean
//! something in the boot that wrote them alone. In persistent memory the ranges are sealed, and outlive it.

use crate::format::{
    self, ALIGN, Defect, Said, SegmentId, UNDO_ASKED, UNDO_COUNT, UNDO_DATA, UNDO_FIRST, UNDO_FURTHER,
    UNDO_HEAD, UNDO_MAGIC, UNDO_OWNER, UndoStatus, WitnessRecord, range_bytes,
};
use crate::media_error::MediaError;
use crate::prepared::{MARK, Prepared, is_new};
use crate::record::{Range, Ranges};
use crate::sealed::{SEAL, Seal};
use crate::status_pages;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::witness::{Seen, Verdict, Witnesses, judge};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Values of [`UndoStatus::clean`].
pub const CLEAN: u32 = 1;
/// See [`CLEAN`].
pub const DAMAGED: u32 = 2;

/// Bytes of a chunk; few where crashes are simulated, so that logs outgrow them.
pub const CHUNK_BYTES: usize = if cfg!(caliburn_sim) { 8 << 10 } else { 64 << 10 };

/// Most bytes of one.
const CHUNK_BYTES_MAX: usize = 16 << 20;

/// Why undo logs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The file is not what it must be.
    #[error("undo logs {}, offset {offset}: {defect}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
    /// The file of undecided transactions is not what it must be.
    #[error("undecided transactions in {}, offset {offset}: {defect}", path.display())]
    Prepared {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
}

/// The log of one transaction that was not committed, or of a branch of one.
#[derive(Debug)]
pub struct Uncommitted {
    /// Where its first chunk is in the file.
    offset: u64,
    /// How many transactions it is a branch of, one of another: what it saved is newer than what they did.
    depth: u32,
    /// Its chunks, oldest first: which of [`Found::parts`].
    parts: std::ops::Range<usize>,
    /// Bytes of its new values as a body, and of the identifier that its mark has: 0 if there is no mark.
    new: u64,
    marked: u16,
}

impl Uncommitted {
    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether its transaction was prepared.
    pub fn is_prepared(&self) -> bool {
        self.marked > 0
    }
}

/// Where ranges are: so many bytes of a chunk.
#[derive(Debug, Clone, Copy)]
struct Part {
    chunk: u32,
    len: u32,
}

/// What the undo logs of a store held when it was opened: where it is. Logs may be longer than there is memory, so
/// ranges are read a chunk at a time, whenever they are wanted.
#[derive(Debug)]
pub struct Found {
    /// The status page.
    pub status: UndoStatus,
    /// Logs of transactions that were not committed, in the order in which their old values go back.
    pub uncommitted: Vec<Uncommitted>,
    /// The segments that their old values are of.
    pub segments: BTreeSet<SegmentId>,
    /// The chunks of all of them.
    parts: Vec<Part>,
}

fn bad(medium: &dyn Medium, offset: u64, text: &str) -> UndoError {
    UndoError::Bad { path: medium.path().to_owned(), offset, defect: Defect::Value(text.into()) }
}

/// Makes the file of a new store, durably, in a generation of the store.
pub fn create(medium: &dyn Medium, store: Id, now: &Witnesses, generation: u64) -> Result<(), MediaError> {
    medium.set_len(UNDO_DATA).map_err(|e| MediaError::new("allocate undo logs", medium, UNDO_DATA, e))?;
    let mut status = UndoStatus {
        boot: format::boot_field(now),
        witnesses: WitnessRecord::new(now),
        chunk_bytes: (CHUNK_BYTES as u32).into(),
        clean: CLEAN.into(),
        store_generation: generation.into(),
        ..UndoStatus::new_zeroed()
    };
    for generation in 0..2u64 {
        status.generation = generation.into();
        status_pages::put(medium, status.as_bytes(), UNDO_MAGIC, store)?;
    }
    medium.sync().map_err(|e| MediaError::new("force undo logs", medium, 0, e))
}

/// Which generation of its store they are of.
pub fn said(status: &UndoStatus) -> Said {
    Said { generation: status.store_generation.get(), twin_lost: false }
}

/// Makes the status that was read durable: it may be in the page cache alone.
pub fn force_status(medium: &dyn Medium, status: &UndoStatus) -> Result<(), MediaError> {
    status_pages::put(medium, status.as_bytes(), UNDO_MAGIC, status.preamble.store)?;
    medium.sync().map_err(|e| MediaError::new("force undo logs", medium, 0, e))
}

/// Reads the status of undo logs.
pub fn read_status(medium: &dyn Medium, store: &Id) -> Result<UndoStatus, UndoError> {
    let page = status_pages::read(medium, UNDO_MAGIC, "file of undo logs", Some(store))?;
    let page = page.map_err(|defect| UndoError::Bad { path: medium.path().to_owned(), offset: 0, defect })?;
    Ok(UndoStatus::read_from_prefix(&page).expect("a page holds a status").0)
}

impl Found {
    /// Reads the undo logs of a store; what is uncommitted, if the memory survived, or outlives a boot. A store that
    /// was in use when its memory was lost is refused: its segments may hold anything. `each` is called with every
    /// range, and the place of its log.
    pub fn read(
        medium: &dyn Medium,
        store: &Id,
        seen: &Seen,
        each: &mut dyn FnMut(u64, &Range<'_>),
    ) -> Result<Found, UndoError> {
        let status = read_status(medium, store)?;
        match status.clean.get() {
            CLEAN => {}
            DAMAGED => {
                let text = "a segment could not be forced when the store was closed, or was not written back before: \
                            what it holds is unknown. Go back to a copy, or save what it holds to a new store: \
                            `caliburn recover STORE --salvage NEW`";
                return Err(bad(medium, 0, text));
            }
            _ if status.sealed == 1 => {}
            _ => survived(medium, &status, seen)?,
        }
        Found::read_as(medium, status, each)
    }

    /// The same whatever may have been lost: what is uncommitted as far as the logs show it, for salvage.
    pub fn read_anyway(medium: &dyn Medium, store: &Id) -> Result<Found, UndoError> {
        Found::read_as(medium, read_status(medium, store)?, &mut |_, _| {})
    }

    fn read_as(
        medium: &dyn Medium,
        status: UndoStatus,
        each: &mut dyn FnMut(u64, &Range<'_>),
    ) -> Result<Found, UndoError> {
        let mut found =
            Found { status, uncommitted: Vec::new(), segments: BTreeSet::new(), parts: Vec::new() };
        let len = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
        if len < UNDO_DATA {
            return Err(bad(medium, len, "the file ends before its first chunk: it was cut off"));
        }
        if found.status.clean.get() == CLEAN {
            return Ok(found);
        }
        if !(UNDO_HEAD * 2..=CHUNK_BYTES_MAX).contains(&found.chunk_bytes())
            || !found.chunk_bytes().is_multiple_of(ALIGN)
        {
            return Err(bad(medium, 0, "its chunks have impossibly few bytes, or many"));
        }
        found.find_logs(medium, len)?;
        found.verify(medium, each)?;
        Ok(found)
    }

    /// Whether they were written in persistent memory.
    pub fn sealed(&self) -> bool {
        self.status.sealed == 1
    }

    /// Calls `each` with the old values of a log, newest first: the order in which they are to be put back.
    pub fn newest_first<E: From<UndoError>>(
        &self,
        medium: &dyn Medium,
        log: &Uncommitted,
        mut each: impl FnMut(Range<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        let forwards = planted("undo-restored-forwards");
        let parts = &self.parts[log.parts.clone()];
        for i in 0..parts.len() {
            let part = parts[if forwards { i } else { parts.len() - 1 - i }];
            self.read_part(medium, part, &mut bytes)?;
            starts.clear();
            let mut walk = self.walk(&bytes);
            starts.extend(std::iter::from_fn(|| {
                let at = bytes.len() - walk.rest.len();
                walk.next().map(|_| at as u32)
            }));
            if !forwards {
                starts.reverse();
            }
            for at in &starts {
                let range = self.walk(&bytes[*at as usize..]).next().expect("it was there");
                if unless("new-values-restored", !is_new(range.segment)) {
                    each(range)?;
                }
            }
        }
        Ok(())
    }

    /// What the transaction of a log was to change, if it was prepared.
    pub fn prepared(&self, medium: &dyn Medium, log: &Uncommitted) -> Result<Option<Prepared>, UndoError> {
        if !log.is_prepared() {
            return Ok(None);
        }
        let mut prepared = Prepared { global_id: Vec::new(), time: 0, body: Vec::new() };
        let no_memory = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let reserved = prepared.body.try_reserve_exact(log.new as usize).map_err(no_memory);
        reserved.map_err(|e| {
            MediaError::new("get memory for an undecided transaction of", medium, log.offset, e)
        })?;
        let mut bytes = Vec::new();
        for part in &self.parts[log.parts.clone()] {
            self.read_part(medium, *part, &mut bytes)?;
            self.walk(&bytes).for_each(|range| prepared.take(&range));
        }
        Ok(Some(prepared))
    }

    /// Empties the logs after their old values were put back. Sealed ones are of the generation that the next
    /// opening ends.
    pub fn empty(&self, medium: &dyn Medium) -> Result<(), MediaError> {
        if self.sealed() {
            return Ok(());
        }
        for log in &self.uncommitted {
            let fail = |e| MediaError::new("empty undo log", medium, log.offset, e);
            medium.write_at(&[0; 8], log.offset).map_err(fail)?;
        }
        Ok(())
    }

    fn chunk_bytes(&self) -> usize {
        self.status.chunk_bytes.get() as usize
    }

    fn offset_of(&self, chunk: u32) -> u64 {
        UNDO_DATA + u64::from(chunk) * self.chunk_bytes() as u64
    }

    fn read_part(&self, medium: &dyn Medium, part: Part, bytes: &mut Vec<u8>) -> Result<(), UndoError> {
        bytes.resize(part.len as usize, 0);
        Ok(read(medium, self.offset_of(part.chunk) + UNDO_HEAD as u64, bytes)?)
    }

    /// The ranges of a part, oldest first.
    fn walk<'b>(&self, bytes: &'b [u8]) -> Walk<'b> {
        Walk { rest: bytes, trailer: if self.sealed() { SEAL } else { 0 } }
    }

    /// Reads every log once, before anything is changed by what one of them says.
    fn verify(
        &mut self,
        medium: &dyn Medium,
        each: &mut dyn FnMut(u64, &Range<'_>),
    ) -> Result<(), UndoError> {
        let (mut bytes, mut logs) = (Vec::new(), std::mem::take(&mut self.uncommitted));
        let mut last = None;
        for log in &mut logs {
            for part in &self.parts[log.parts.clone()] {
                self.read_part(medium, *part, &mut bytes)?;
                let mut walk = self.walk(&bytes);
                for range in &mut walk {
                    if range.segment == MARK {
                        log.marked = u16::try_from(range.bytes.len()).unwrap_or(0);
                    } else if is_new(range.segment) {
                        log.new += range_bytes(range.bytes.len()) as u64;
                    } else if last.replace(range.segment) != Some(range.segment) {
                        self.segments.insert(range.segment);
                    }
                    each(log.offset, &range);
                }
                if !walk.rest.is_empty() {
                    let text = "an undo log is malformed";
                    return Err(bad(medium, self.offset_of(part.chunk), text));
                }
                if planted("undo-logs-copied") {
                    std::mem::forget(std::mem::take(&mut bytes));
                }
            }
        }
        self.uncommitted = logs;
        Ok(())
    }
}

/// The ranges of a part of an undo log, oldest first.
struct Walk<'b> {
    rest: &'b [u8],
    /// Bytes behind each range: its seal, which was looked at.
    trailer: usize,
}

impl<'b> Iterator for Walk<'b> {
    type Item = Range<'b>;

    fn next(&mut self) -> Option<Range<'b>> {
        let mut ranges = Ranges::of(self.rest);
        let range = ranges.next()?;
        let behind = &self.rest[self.rest.len() - ranges.left()..];
        self.rest = behind.get(self.trailer..)?;
        Some(range)
    }
}

/// What was noted of the witnesses when a store was opened last.
pub fn noted(status: &UndoStatus) -> Witnesses {
    format::noted(&status.boot, [&status.witnesses])
}

/// Refuses a store that was in use, and whose memory did not survive that, or perhaps did not.
fn survived(medium: &dyn Medium, status: &UndoStatus, seen: &Seen) -> Result<(), UndoError> {
    if planted("undo-of-another-boot") {
        return Ok(());
    }
    let text = match judge(&noted(status), seen) {
        Verdict::Survived => return Ok(()),
        Verdict::Lost(why) => format!(
            "the store was in use when the system went down, and its memory did not outlive that ({why}): what its \
             segments hold now is neither old nor new. Go back to a copy, or open read-only for salvage"
        ),
        Verdict::Unknown(why) => format!(
            "the store was in use, and whether its memory has survived since cannot be told ({why}). If the system did \
             not go down, and no other state of its file system was mounted, open it with Options::memory_kept, or \
             `caliburn recover --memory-kept`; otherwise go back to a copy, or open read-only for salvage"
        ),
    };
    Err(bad(medium, 0, &text))
}

/// Whether an opening was killed as it asked whether writes were lost, and may have been told.
pub fn was_asked(medium: &dyn Medium) -> Result<bool, MediaError> {
    let mut word = [0; 8];
    let fail = |e| MediaError::new("read undo logs", medium, UNDO_ASKED, e);
    medium.read_at(&mut word, UNDO_ASKED).map(|()| word != [0; 8]).map_err(fail)
}

/// Notes that an opening asks, or has its answer.
pub fn note_asking(medium: &dyn Medium, asking: bool) -> Result<(), MediaError> {
    let fail = |e| MediaError::new("write undo logs", medium, UNDO_ASKED, e);
    medium.write_at(&u64::from(asking).to_ne_bytes(), UNDO_ASKED).map_err(fail)
}

/// Says durably that what the segments hold is unknown.
pub fn mark_damaged(medium: &dyn Medium, store: Id, status: &UndoStatus) -> Result<(), MediaError> {
    force_status(medium, status)?;
    let generation = status.generation + 1;
    let status = UndoStatus { generation, clean: DAMAGED.into(), ..*status };
    status_pages::put(medium, status.as_bytes(), UNDO_MAGIC, store)?;
    medium.sync().map_err(|e| MediaError::new("force undo logs", medium, 0, e))
}

/// A chunk of which a word says that it is in use.
struct Used {
    number: u32,
    words: [u64; 3],
}

/// The lower half of a word.
fn low(word: u64) -> u32 {
    word as u32
}

/// The upper half of a word.
fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Found {
    /// Finds the chunks of each log. `len`: of the file.
    fn find_logs(&mut self, medium: &dyn Medium, len: u64) -> Result<(), UndoError> {
        let used = self.read_heads(medium, len)?;
        let depths = depths(&used).map_err(|chunk| {
            bad(medium, self.offset_of(chunk), "an undo log says that it is a branch of itself")
        })?;
        // One that was taken and never written to says nothing.
        let mut further: Vec<u32> = (0..used.len() as u32).collect();
        let of = |at: &u32| (used[*at as usize].words[1], used[*at as usize].words[2]);
        further.retain(|at| low(of(at).1) > 0);
        further.sort_unstable_by_key(of);
        for (first, depth) in used.iter().zip(depths).filter(|(c, _)| low(c.words[0]) > 0) {
            let offset = self.offset_of(first.number);
            let owner = u64::from(first.number + 1) << 32 | u64::from(high(first.words[0]));
            let from = further.partition_point(|at| of(at).0 < owner);
            let further = further[from..].iter().take_while(|at| of(at).0 == owner);
            let start = self.parts.len();
            self.parts.push(Part { chunk: first.number, len: low(first.words[0]) });
            for (before, at) in further.enumerate() {
                let Used { number, words: [_, _, word] } = used[*at as usize];
                if high(word) as usize != before + 1 {
                    return Err(bad(medium, offset, "an undo log lacks one of its chunks"));
                }
                self.parts.push(Part { chunk: number, len: low(word) });
            }
            let parts = start..self.parts.len();
            self.uncommitted.push(Uncommitted { offset, depth, parts, new: 0, marked: 0 });
        }
        if !planted("branches-in-any-order") {
            self.uncommitted.sort_by_key(|log| std::cmp::Reverse(log.depth));
        }
        Ok(())
    }

    /// The chunks in use, by number.
    fn read_heads(&self, medium: &dyn Medium, len: u64) -> Result<Vec<Used>, UndoError> {
        let mut made = [0; 8];
        medium
            .read_at(&mut made, UNDO_COUNT)
            .map_err(|e| MediaError::new("read undo logs", medium, UNDO_COUNT, e))?;
        let (made, chunk_bytes) = (u64::from_ne_bytes(made), self.chunk_bytes() as u64);
        // It may be longer: the process that made more of them was killed before it could say so.
        if (len - UNDO_DATA) / chunk_bytes < made {
            return Err(bad(medium, len, &format!("the file must hold {made} chunks: it was cut off")));
        }
        if made > u64::from(u32::MAX) {
            return Err(bad(medium, UNDO_COUNT, "it claims more chunks than can be numbered"));
        }
        let (mut used, mut number, mut chunk) = (Vec::new(), 0, Vec::new());
        while number < made {
            let offset = UNDO_DATA + number * chunk_bytes;
            // What is in a hole was never written to.
            let next = medium.next_data(offset).map_or(made, |at| (at - UNDO_DATA) / chunk_bytes);
            if next > number {
                number = next;
                continue;
            }
            let words = match self.sealed() {
                false => self.read_head(medium, offset)?,
                true => self.read_sealed(medium, number as u32, &mut chunk)?,
            };
            used.extend(words.map(|words| Used { number: number as u32, words }));
            number += 1;
        }
        Ok(used)
    }

    fn read_head(&self, medium: &dyn Medium, offset: u64) -> Result<Option<[u64; 3]>, UndoError> {
        let mut head = [0; UNDO_HEAD];
        medium
            .read_no_further(&mut head, offset)
            .map_err(|e| MediaError::new("read undo log", medium, offset, e))?;
        let words = words(&head);
        let valid = low(words[0]).max(if words[1] != 0 { low(words[2]) } else { 0 }) as usize;
        if valid > self.chunk_bytes() - UNDO_HEAD {
            return Err(bad(medium, offset, "a chunk claims more bytes than it has"));
        }
        // One that holds nothing may be a branch, and have branches.
        Ok((valid > 0 || words[1] != 0).then_some(words))
    }

    /// The same of a chunk whose ranges are sealed: the words are made to say what the seals do.
    fn read_sealed(
        &self,
        medium: &dyn Medium,
        number: u32,
        chunk: &mut Vec<u8>,
    ) -> Result<Option<[u64; 3]>, UndoError> {
        chunk.resize(self.chunk_bytes(), 0);
        read(medium, self.offset_of(number), chunk)?;
        let (head, bytes) = chunk.split_at(UNDO_HEAD);
        let [first, owner, further] = words(head);
        let (turn, generation) = (high(first), self.status.generation.get());
        let arrived = |whose, ordinal, turn| {
            let seal = Seal::new(generation, whose, ordinal, turn);
            seal.ranges(bytes).map(|range| (range_bytes(range.bytes.len()) + SEAL) as u64).sum::<u64>()
        };
        let bytes = arrived(number, 0, turn);
        if bytes > 0 {
            return Ok(Some([u64::from(turn) << 32 | bytes, owner, 0]));
        }
        let Some(whose) = high(owner).checked_sub(1) else { return Ok(None) };
        let ordinal = high(further);
        let bytes = arrived(whose, ordinal, low(owner));
        // One that holds nothing may be a branch, and have branches.
        Ok(Some([u64::from(turn) << 32, owner, u64::from(ordinal) << 32 | bytes]))
    }
}

/// How many logs the log is a branch of that begins with each chunk. An error, the number of a chunk: they go round
/// in a circle.
fn depths(chunks: &[Used]) -> Result<Vec<u32>, u32> {
    let parent = |chunk: &Used| {
        let owner = chunk.words[1];
        let number = high(owner).checked_sub(1)?;
        let at = chunks.binary_search_by_key(&number, |c| c.number).ok()?;
        (high(chunks[at].words[0]) == low(owner)).then_some(at)
    };
    /// Not known yet.
    const UNKNOWN: u32 = u32::MAX;
    let mut depths = vec![UNKNOWN; chunks.len()];
    for (number, chunk) in chunks.iter().enumerate().filter(|(_, c)| low(c.words[0]) > 0) {
        // Up to one whose depth is known, or that is no branch, and back.
        let (mut path, mut above) = (vec![number], parent(chunk));
        while let Some(parent_number) = above.filter(|parent| depths[*parent] == UNKNOWN) {
            if path.len() > chunks.len() {
                return Err(chunk.number);
            }
            path.push(parent_number);
            above = parent(&chunks[parent_number]);
        }
        let first = above.map_or(0, |above| depths[above] + 1);
        for (number, depth) in path.into_iter().rev().zip(first..) {
            depths[number] = depth;
        }
    }
    Ok(depths)
}

fn read(medium: &dyn Medium, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
    medium.read_at(bytes, offset).map_err(|e| MediaError::new("read undo log", medium, offset, e))
}

fn words(head: &[u8]) -> [u64; 3] {
    [UNDO_FIRST, UNDO_OWNER, UNDO_FURTHER]
        .map(|at| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes")))
}
