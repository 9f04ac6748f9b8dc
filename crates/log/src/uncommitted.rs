//! Undo logs as an opening finds them: what they say of transactions that were not committed.
//!
//! Where their memory is the page cache, the words of each chunk count what is valid in it, and they mean
//! something in the boot that wrote them alone. In persistent memory the ranges are sealed, and outlive it.

use crate::format::{
    ALIGN, Defect, UNDO_COUNT, UNDO_DATA, UNDO_FIRST, UNDO_FURTHER, UNDO_HEAD, UNDO_MAGIC, UNDO_OWNER,
    UndoStatus,
};
use crate::media_error::MediaError;
use crate::prepared::{Prepared, is_new};
use crate::record::{Range, Ranges, push_range, well_formed};
use crate::sealed::Seal;
use crate::status_pages;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use std::collections::BTreeMap;
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
    depth: usize,
    /// The ranges of each of its chunks, oldest first.
    chunks: Vec<Vec<u8>>,
}

impl Uncommitted {
    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its old values, newest first: the order in which they are to be put back.
    pub fn newest_first(&self) -> Vec<Range<'_>> {
        let mut ranges: Vec<_> =
            self.ranges().filter(|range| unless("new-values-restored", !is_new(range.segment))).collect();
        if !planted("undo-restored-forwards") {
            ranges.reverse();
        }
        ranges
    }

    /// What its transaction was to change, if it was prepared.
    pub fn prepared(&self) -> Option<Prepared> {
        Prepared::of_run(self.ranges())
    }

    fn ranges(&self) -> impl Iterator<Item = Range<'_>> {
        self.chunks.iter().flat_map(|chunk| Ranges::of(chunk))
    }
}

/// What the undo logs of a store held when it was opened.
#[derive(Debug)]
pub struct Found {
    /// The status page.
    pub status: UndoStatus,
    /// Logs of transactions that were not committed.
    pub uncommitted: Vec<Uncommitted>,
}

fn bad(medium: &dyn Medium, offset: u64, text: &str) -> UndoError {
    UndoError::Bad { path: medium.path().to_owned(), offset, defect: Defect::Value(text.into()) }
}

/// Makes the file of a new store, durably.
pub fn create(medium: &dyn Medium, store: Id, boot: Id) -> Result<(), MediaError> {
    medium.set_len(UNDO_DATA).map_err(|e| MediaError::new("allocate undo logs", medium, UNDO_DATA, e))?;
    let mut status = UndoStatus {
        boot,
        chunk_bytes: (CHUNK_BYTES as u32).into(),
        clean: CLEAN.into(),
        ..UndoStatus::new_zeroed()
    };
    for generation in 0..2u64 {
        status.generation = generation.into();
        status_pages::put(medium, status.as_bytes(), UNDO_MAGIC, store)?;
    }
    medium.sync().map_err(|e| MediaError::new("force undo logs", medium, 0, e))
}

/// Reads the status of undo logs.
pub fn read_status(medium: &dyn Medium, store: &Id) -> Result<UndoStatus, UndoError> {
    let page = status_pages::read(medium, UNDO_MAGIC, "file of undo logs", Some(store))?;
    let page = page.map_err(|defect| UndoError::Bad { path: medium.path().to_owned(), offset: 0, defect })?;
    Ok(UndoStatus::read_from_prefix(&page).expect("a page holds a status").0)
}

impl Found {
    /// Reads the undo logs of a store; what is uncommitted, if the memory is that of this boot or outlived others.
    /// A store that was in use when its memory was lost is refused: its segments may hold anything.
    pub fn read(medium: &dyn Medium, store: &Id, boot: &Id) -> Result<Found, UndoError> {
        let mut found = Found { status: read_status(medium, store)?, uncommitted: Vec::new() };
        let len = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
        if len < UNDO_DATA {
            return Err(bad(medium, len, "the file ends before its first chunk: it was cut off"));
        }
        match found.status.clean.get() {
            CLEAN => return Ok(found),
            DAMAGED => {
                let text = "a segment could not be forced when the store was closed: what it holds is unknown. Go back to \
                            a copy, or open read-only for salvage";
                return Err(bad(medium, 0, text));
            }
            _ => {}
        }
        let other = unless("undo-of-another-boot", found.status.boot != *boot);
        if other && !found.sealed() {
            let text = "the store was in use when the system went down, and its memory did not outlive that: what its \
                        segments hold now is neither old nor new. Go back to a copy, or open read-only for salvage";
            return Err(bad(medium, 0, text));
        }
        let chunk_bytes = found.status.chunk_bytes.get() as usize;
        if !(UNDO_HEAD * 2..=CHUNK_BYTES_MAX).contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(ALIGN) {
            return Err(bad(medium, 0, "its chunks have impossibly few bytes, or many"));
        }
        let generation = found.sealed().then(|| found.status.generation.get());
        found.uncommitted = read_logs(medium, len, chunk_bytes, generation)?;
        Ok(found)
    }

    /// Whether they were written in persistent memory.
    pub fn sealed(&self) -> bool {
        self.status.sealed == 1
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
}

/// A chunk of which a word says that it is in use.
struct Used {
    offset: u64,
    words: [u64; 3],
    ranges: Vec<u8>,
}

/// `len`: of the file; `generation`: of sealed ranges.
fn read_logs(
    medium: &dyn Medium,
    len: u64,
    chunk_bytes: usize,
    generation: Option<u64>,
) -> Result<Vec<Uncommitted>, UndoError> {
    let mut made = [0; 8];
    medium
        .read_at(&mut made, UNDO_COUNT)
        .map_err(|e| MediaError::new("read undo logs", medium, UNDO_COUNT, e))?;
    let made = u64::from_ne_bytes(made);
    // It may be longer: the process that made more of them was killed before it could say so.
    if (len - UNDO_DATA) / (chunk_bytes as u64) < made {
        return Err(bad(medium, len, &format!("the file must hold {made} chunks: it was cut off")));
    }
    if made > u64::from(u32::MAX) {
        return Err(bad(medium, UNDO_COUNT, "it claims more chunks than can be numbered"));
    }
    let mut chunks = Chunks::new();
    let mut number = 0;
    while number < made {
        let offset = UNDO_DATA + number * chunk_bytes as u64;
        // What is in a hole was never written to.
        let next = medium.next_data(offset).map_or(made, |at| (at - UNDO_DATA) / chunk_bytes as u64);
        if next > number {
            number = next;
            continue;
        }
        let used = match generation {
            None => read_chunk(medium, offset, chunk_bytes)?,
            Some(generation) => read_sealed(medium, offset, chunk_bytes, generation, number as u32)?,
        };
        if let Some(used) = used {
            chunks.insert(number, used);
        }
        number += 1;
    }
    let low = |word: u64| word & u64::from(u32::MAX);
    let depths = depths(medium, &chunks)?;
    // One that was taken and never written to says nothing.
    let mut further: BTreeMap<u64, Vec<&Used>> = BTreeMap::new();
    for chunk in chunks.values().filter(|c| low(c.words[2]) > 0) {
        further.entry(chunk.words[1]).or_default().push(chunk);
    }
    let mut found = Vec::new();
    for (number, first) in chunks.iter().filter(|(_, c)| low(c.words[0]) > 0) {
        let owner = (number + 1) << 32 | first.words[0] >> 32;
        let mut further = further.remove(&owner).unwrap_or_default();
        further.sort_by_key(|c| c.words[2] >> 32);
        if further.iter().enumerate().any(|(i, c)| c.words[2] >> 32 != i as u64 + 1) {
            return Err(bad(medium, first.offset, "an undo log lacks one of its chunks"));
        }
        let take = |chunk: &Used, len: u64| {
            let ranges = chunk.ranges.get(..len as usize).filter(|ranges| well_formed(ranges));
            ranges.map(<[u8]>::to_vec).ok_or_else(|| bad(medium, chunk.offset, "an undo log is malformed"))
        };
        let mut all = vec![take(first, low(first.words[0]))?];
        for chunk in further {
            all.push(take(chunk, low(chunk.words[2]))?);
        }
        found.push(Uncommitted { offset: first.offset, depth: depths[number], chunks: all });
    }
    if !planted("branches-in-any-order") {
        found.sort_by_key(|log| std::cmp::Reverse(log.depth));
    }
    Ok(found)
}

/// Those in use, by number.
type Chunks = BTreeMap<u64, Used>;

/// How many logs each log is a branch of, by the number of its first chunk. Refused if they go round in a circle.
fn depths(medium: &dyn Medium, chunks: &Chunks) -> Result<BTreeMap<u64, usize>, UndoError> {
    let parent = |chunk: &Used| {
        let owner = chunk.words[1];
        let number = (owner >> 32).wrapping_sub(1);
        chunks.get(&number).filter(|c| c.words[0] >> 32 == owner & u64::from(u32::MAX)).map(|_| number)
    };
    let mut depths: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, chunk) in chunks.iter().filter(|(_, c)| c.words[0] as u32 > 0) {
        // Up to one whose depth is known, or that is no branch, and back.
        let (mut path, mut above) = (vec![*number], parent(chunk));
        while let Some(parent_number) = above.filter(|parent| !depths.contains_key(parent)) {
            if path.len() > chunks.len() {
                return Err(bad(medium, chunk.offset, "an undo log says that it is a branch of itself"));
            }
            path.push(parent_number);
            above = parent(&chunks[&parent_number]);
        }
        let first = above.map_or(0, |above| depths[&above] + 1);
        depths.extend(path.into_iter().rev().zip(first..));
    }
    Ok(depths)
}

fn read_chunk(medium: &dyn Medium, offset: u64, chunk_bytes: usize) -> Result<Option<Used>, UndoError> {
    let mut head = [0; UNDO_HEAD];
    read(medium, offset, &mut head)?;
    let words = words(&head);
    let valid = (words[0] as u32).max(if words[1] != 0 { words[2] as u32 } else { 0 }) as usize;
    if valid > chunk_bytes - UNDO_HEAD {
        return Err(bad(medium, offset, "a chunk claims more bytes than it has"));
    }
    // One that holds nothing may be a branch, and have branches.
    if valid == 0 && words[1] == 0 {
        return Ok(None);
    }
    let mut ranges = vec![0; valid];
    read(medium, offset + UNDO_HEAD as u64, &mut ranges)?;
    Ok(Some(Used { offset, words, ranges }))
}

/// The same of a chunk whose ranges are sealed: the words are made to say what the seals do.
fn read_sealed(
    medium: &dyn Medium,
    offset: u64,
    chunk_bytes: usize,
    generation: u64,
    number: u32,
) -> Result<Option<Used>, UndoError> {
    let mut chunk = vec![0; chunk_bytes];
    read(medium, offset, &mut chunk)?;
    let (head, bytes) = chunk.split_at(UNDO_HEAD);
    let [first, owner, further] = words(head);
    let turn = (first >> 32) as u32;
    let arrived = |seal: Seal| {
        let mut ranges = Vec::new();
        seal.ranges(bytes).for_each(|r| push_range(&mut ranges, r.segment, r.offset, r.bytes));
        (!ranges.is_empty()).then_some(ranges)
    };
    if let Some(ranges) = arrived(Seal::new(generation, number, 0, turn)) {
        let words = [u64::from(turn) << 32 | ranges.len() as u64, owner, 0];
        return Ok(Some(Used { offset, words, ranges }));
    }
    if owner >> 32 == 0 {
        return Ok(None);
    }
    let (whose, ordinal) = ((owner >> 32) as u32 - 1, (further >> 32) as u32);
    let ranges = arrived(Seal::new(generation, whose, ordinal, owner as u32)).unwrap_or_default();
    // One that holds nothing may be a branch, and have branches.
    let words = [u64::from(turn) << 32, owner, u64::from(ordinal) << 32 | ranges.len() as u64];
    Ok(Some(Used { offset, words, ranges }))
}

fn read(medium: &dyn Medium, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
    medium.read_at(bytes, offset).map_err(|e| MediaError::new("read undo log", medium, offset, e))
}

fn words(head: &[u8]) -> [u64; 3] {
    [UNDO_FIRST, UNDO_OWNER, UNDO_FURTHER]
        .map(|at| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes")))
}
