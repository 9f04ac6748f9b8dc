//! What a process that was killed left in its stage: the commits that are not in the log yet, and where its
//! log ends. Recovery reads it, `check` too; nobody has it mapped.

use crate::format::{
    self, ALIGN, BLOCK, CHUNK_HEAD, COUNT_MAX, Defect, LSN_MAX, Lsn, STAGE_ASKED, STAGE_BOOT, STAGE_CACHES,
    STAGE_CHECKPOINT, STAGE_CURRENT, STAGE_FRONTIERS, STAGE_GENERATION, STAGE_MAGIC, STAGE_MAKING,
    STAGE_WITNESSES, StageHeader, StagedHeader, WitnessRecord,
};
use crate::media_error::MediaError;
use crate::record::well_formed;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::witness::{Others, Reasons, Seen, Verdict, Witnesses, judge};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use zerocopy::{FromBytes, IntoBytes};

/// Number of chunks that a stage is divided into.
pub const CHUNKS: usize = 32;
/// Smallest stage in bytes.
pub const STAGE_BYTES_MIN: u64 = (CHUNKS * 4096) as u64;
/// Largest stage in bytes.
pub const STAGE_BYTES_MAX: u64 = 16 << 30;

/// A record found in the stage.
#[derive(Debug, Clone)]
pub struct Staged<'a> {
    /// The commit's stamp.
    pub stamp: u64,
    /// Its ranges.
    pub body: &'a [u8],
}

/// The record that begins at an offset of a chunk's bytes, and where the next does; none if it is not whole.
pub fn staged_at(bytes: &[u8], at: usize) -> Option<(Staged<'_>, usize)> {
    let (header, rest) = StagedHeader::ref_from_prefix(&bytes[at..]).ok()?;
    let len = usize::try_from(header.len.get()).ok()?;
    let body = rest.get(..len)?;
    Some((Staged { stamp: header.stamp.get(), body }, at + size_of::<StagedHeader>() + len))
}

/// Why a stage cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The stage is not what it must be.
    #[error("stage {}, offset {offset}: {defect}", path.display())]
    Bad {
        /// The stage's file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
}

/// What the segments show of the log, forced or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// All before this position.
    pub before: Lsn,
    /// As long as they lie in these page caches: a digest.
    pub caches: u64,
}

/// What a stage seems to hold, which is not taken up since its memory may not have survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Commits that are not in the log.
    pub commits: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Whether it is certain that the memory was lost.
    pub certain: bool,
    /// What the witnesses say.
    pub why: Reasons,
}

/// What a stage holds beyond the log.
#[derive(Debug, Default)]
pub struct StagedTail {
    path: PathBuf,
    /// Stamps and bodies of the records that were not handed over, oldest first.
    pub records: Vec<(u64, Vec<u8>)>,
    /// No stamp in the stage is greater.
    pub last: u64,
    /// Where the log ends. Since the stage is of this boot, all of it must be there, forced or not, and what
    /// was written beyond is in the stage, or was never committed.
    pub appended: Option<Lsn>,
    /// What the segments show, if it is known.
    pub checkpoint: Option<Checkpoint>,
    /// What earlier openings have heard of lost writes to the stage.
    pub asked: Asked,
    /// What is not taken up, if there is something.
    pub dropped: Option<Dropped>,
    /// The store's generation in which it was made, if its memory survived, or would have but for being a copy; 0 if
    /// the store has none.
    pub generation: Option<u64>,
}

/// Whether an earlier opening has asked the system for lost writes to the stage, which reports them once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Asked {
    /// Nothing that later openings need to know.
    #[default]
    Settled,
    /// It was killed meanwhile, and may have heard of a loss. What the stage held may be in the log by now.
    Perhaps,
    /// It heard of a loss, and failed later: nobody was told.
    Lost,
}

impl StagedTail {
    /// Reads what a stage holds beyond the log, if its memory survived. Else nothing, and what it seems to hold.
    pub fn read(medium: &dyn Medium, store: &Id, seen: &Seen) -> Result<StagedTail, StageError> {
        let asked = asked(medium)?;
        let Some((header, verdict)) = header(medium, store, seen)? else {
            return Ok(StagedTail { asked, ..StagedTail::default() });
        };
        let Header { chunk_bytes, handed_over, appended, checkpoint, generation } = header;
        if let Some((certain, why)) = verdict {
            let (commits, bytes) = count(medium, &header);
            let dropped = Dropped { commits, bytes, certain, why };
            let dropped = (commits > 0).then_some(dropped);
            // A stage that is not taken up because it is a copy must be of its store's generation all the same: an
            // older one would not tell what is missing.
            let generation = (seen.copy && !certain).then_some(generation);
            let path = medium.path().to_owned();
            return Ok(StagedTail { path, asked, dropped, generation, ..StagedTail::default() });
        }
        let read = |offset, len| read(medium, offset, len);
        let bad = |offset, defect| bad(medium, offset, defect);
        let mut found = Vec::new();
        let mut last = handed_over;
        let starts = (0..CHUNKS as u64).map(|chunk| BLOCK as u64 + chunk * chunk_bytes);
        // They are far apart: the disk may read them all at once.
        starts.clone().for_each(|at| medium.will_need(at, CHUNK_HEAD as u64));
        let (mut chunks, mut all) = (Vec::with_capacity(CHUNKS), 0);
        for start in starts {
            let published = u64::from_ne_bytes(read(start, 8)?.try_into().expect("eight bytes"));
            if published > chunk_bytes - CHUNK_HEAD as u64 {
                return Err(bad(start, Defect::Value("a chunk claims more bytes than it has".into())));
            }
            all += published;
            chunks.push((start, published));
        }
        if !medium.may_hold(all) {
            return Err(bad(
                BLOCK as u64,
                Defect::Value(format!("its chunks claim {all} bytes, nearly all holes")),
            ));
        }
        for (start, published) in chunks {
            let bytes = read(start + CHUNK_HEAD as u64, published as usize)?;
            let mut at = 0;
            while let Some((staged, next)) = staged_at(&bytes, at) {
                if !well_formed(staged.body) || !(1..COUNT_MAX).contains(&staged.stamp) {
                    let offset = start + (CHUNK_HEAD + at) as u64;
                    return Err(bad(offset, Defect::Value("a staged record is malformed".into())));
                }
                if staged.stamp >= handed_over {
                    last = last.max(staged.stamp);
                    found.push((staged.stamp, staged.body.to_vec()));
                }
                at = next;
            }
            if at != bytes.len() {
                let offset = start + (CHUNK_HEAD + at) as u64;
                return Err(bad(offset, Defect::Value("a staged record is malformed".into())));
            }
        }
        if !planted("staged-unsorted") {
            found.sort_by_key(|(stamp, _)| *stamp);
        }
        let path = medium.path().to_owned();
        let (appended, generation) = (Some(appended), Some(generation));
        Ok(StagedTail { path, records: found, last, appended, checkpoint, asked, dropped: None, generation })
    }

    /// What of the log has to be replayed, if the stage tells.
    pub fn live(&self) -> Option<Range<Lsn>> {
        Some(self.checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.before)..self.appended?)
    }

    /// Refuses a stage that `agrees` finds to be of the wrong generation.
    pub fn of_generation(&self, agrees: impl FnOnce(u64) -> Result<(), Defect>) -> Result<(), StageError> {
        let done = self.generation.map_or(Ok(()), agrees);
        let (path, offset) = (self.path.clone(), STAGE_GENERATION as u64);
        done.map_err(|defect| StageError::Bad { path, offset, defect })
    }

    /// Refuses a stage whose frontier lies before what its log says was forced ([`Scanned::forced`]). A process that
    /// dies leaves none such; a medium that lost what was in the page cache, without a reboot, does.
    ///
    /// [`Scanned::forced`]: crate::scan::Scanned::forced
    pub fn not_older_than(&self, forced: Lsn) -> Result<(), StageError> {
        let Some(end) = self.appended.filter(|end| *end < forced) else { return Ok(()) };
        let text = format!(
            "it is older than the log: it ends the log at LSN {end}, which was forced up to {forced}. The medium lost \
             what was not forced, without a reboot; open read-only for salvage, or remove the stage, to go on with \
             what was"
        );
        let offset = STAGE_CURRENT as u64;
        Err(StageError::Bad { path: self.path.clone(), offset, defect: Defect::Value(text) })
    }
}

fn bad(medium: &dyn Medium, offset: u64, defect: Defect) -> StageError {
    StageError::Bad { path: medium.path().to_owned(), offset, defect }
}

fn read(medium: &dyn Medium, offset: u64, len: usize) -> Result<Vec<u8>, StageError> {
    let mut bytes = vec![0; len];
    match medium.read_at(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(bad(medium, offset, Defect::Value("the file was cut off".into())))
        }
        Err(error) => Err(MediaError::new("read the stage", medium, offset, error).into()),
    }
}

/// The first block of a stage.
struct Header {
    chunk_bytes: u64,
    handed_over: u64,
    appended: Lsn,
    checkpoint: Option<Checkpoint>,
    generation: u64,
}

/// Why a stage is not taken up, and whether that is certain.
type Refusal = Option<(bool, Reasons)>;

/// What the witnesses say of a stage.
fn verdict(block: &[u8], header: &StageHeader, seen: &Seen) -> Verdict {
    let second: Id = block[STAGE_BOOT..STAGE_BOOT + 16].try_into().expect("sixteen bytes");
    let boot = if seen.now.boot == Some(second) { second } else { header.boot };
    let records = STAGE_WITNESSES
        .map(|at| WitnessRecord::read_from_prefix(&block[at..]).expect("a block holds a record").0);
    let mut noted = format::noted(&boot, &records);
    let written = records.iter().any(|record| record.as_bytes().iter().any(|byte| *byte != 0));
    if noted.others.is_none() && unless("torn-note-taken-for-none", written) {
        // What a power cut has left of a note, or what an earlier version has left in another boot. That the
        // boot is the same is too little then: some machines show the same one at each boot.
        noted = Witnesses {
            boot: noted.boot.filter(|boot| seen.now.boot != Some(*boot)),
            others: Some(Others::default()),
        };
    }
    judge(&noted, seen)
}

fn header(medium: &dyn Medium, store: &Id, seen: &Seen) -> Result<Option<(Header, Refusal)>, StageError> {
    if medium.len().map_err(|e| MediaError::new("measure the stage", medium, 0, e))? == 0 {
        return Ok(None);
    }
    let block = read(medium, 0, BLOCK)?;
    if block.iter().all(|byte| *byte == 0) || word(&block, STAGE_CURRENT) == STAGE_MAKING {
        return Ok(None);
    }
    let (header, _) = StageHeader::read_from_prefix(&block).expect("a block holds a header");
    let refusal = match verdict(&block, &header, seen) {
        _ if planted("stage-of-another-boot") => None,
        Verdict::Survived => None,
        Verdict::Lost(why) => Some((true, why)),
        Verdict::Unknown(why) => Some((false, why)),
    };
    match format::unseal(&block[..size_of::<StageHeader>()], STAGE_MAGIC, "stage", Some(store)) {
        // The power failed while it was made, in an earlier boot.
        Err(defect)
            if refusal.is_some()
                && (defect == Defect::Checksum || word(&block, 0) == 0 || word(&block, 8) == 0) =>
        {
            return Ok(None);
        }
        Err(defect) => return Err(bad(medium, 0, defect)),
        Ok(_) => {}
    }
    match fields(medium, &block, &header) {
        // What a power cut has left of it.
        Err(StageError::Bad { .. }) if refusal.is_some() => Ok(None),
        found => Ok(Some((found?, refusal))),
    }
}

fn fields(medium: &dyn Medium, block: &[u8], header: &StageHeader) -> Result<Header, StageError> {
    let impossible = |text: &str| Defect::Value(text.to_owned());
    let (chunks, chunk_bytes) = (header.chunks.get(), header.chunk_bytes.get());
    let bounds = BLOCK as u64..=STAGE_BYTES_MAX / CHUNKS as u64;
    if chunks != CHUNKS as u64 || !bounds.contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(ALIGN as u64)
    {
        return Err(bad(medium, 0, impossible("its header holds impossible values")));
    }
    let (handed_over, appended) = frontier(block).map_err(|d| bad(medium, STAGE_CURRENT as u64, d))?;
    let checkpoint =
        Checkpoint { before: Lsn(word(block, STAGE_CHECKPOINT)), caches: word(block, STAGE_CACHES) };
    let is_position = |at: Lsn| at.0 <= LSN_MAX && at.0.is_multiple_of(ALIGN as u64);
    if handed_over > COUNT_MAX || !is_position(appended) || !is_position(checkpoint.before) {
        return Err(bad(
            medium,
            STAGE_CURRENT as u64,
            impossible("its frontier or its checkpoint is nowhere"),
        ));
    }
    Ok(Header {
        chunk_bytes,
        handed_over,
        appended,
        checkpoint: (checkpoint.before > Lsn(0)).then_some(checkpoint),
        generation: word(block, STAGE_GENERATION),
    })
}

/// How many commits a stage seems to hold that are not in the log, and their bytes. It may be torn.
fn count(medium: &dyn Medium, header: &Header) -> (u64, u64) {
    let (mut commits, mut bytes) = (0, 0);
    for chunk in 0..CHUNKS as u64 {
        let start = BLOCK as u64 + chunk * header.chunk_bytes;
        let Ok(published) = read(medium, start, 8) else { continue };
        let published = u64::from_ne_bytes(published.try_into().expect("eight bytes"));
        let held = published.min(header.chunk_bytes - CHUNK_HEAD as u64);
        let Ok(chunk) = read(medium, start + CHUNK_HEAD as u64, held as usize) else { continue };
        let mut at = 0;
        while let Some((staged, next)) = staged_at(&chunk, at) {
            let is_record = (1..COUNT_MAX).contains(&staged.stamp) && well_formed(staged.body);
            if is_record && staged.stamp >= header.handed_over {
                commits += 1;
                bytes += (next - at) as u64;
            }
            at = next;
        }
    }
    (commits, bytes)
}

/// Where the log ends, if a stage tells whose memory survived. It may be in use.
pub fn log_end(medium: &dyn Medium, store: &Id, seen: &Seen) -> Result<Option<Lsn>, StageError> {
    let found = header(medium, store, seen)?.filter(|(_, refusal)| refusal.is_none());
    Ok(found.map(|(header, _)| header.appended))
}

/// How many commits a stage whose memory survived holds beyond the log. It may be in use: then it is the number of
/// one moment.
pub fn waiting(medium: &dyn Medium, store: &Id, seen: &Seen) -> Result<u64, StageError> {
    let found = header(medium, store, seen)?.filter(|(_, refusal)| refusal.is_none());
    Ok(found.map_or(0, |(header, _)| count(medium, &header).0))
}

/// Asks the system whether something of a stage that is not mapped was lost on its way to the medium. It says so
/// once: an opening that is killed meanwhile leaves a note, and so does one that has heard of a loss, until it has
/// ended ([`StagedTail::asked`]). The note of one that was killed stays until the store was closed: each opening
/// until then passes it on, since one that is killed may have told nobody.
pub fn arrived(medium: &dyn Medium, asked: Asked) -> Result<bool, MediaError> {
    if asked == Asked::Lost {
        return Ok(false);
    }
    note_asking(medium, Asked::Perhaps)?;
    let arrived = medium.written_back().is_ok();
    if !arrived {
        note_asking(medium, if planted("loss-heard-in-vain") { asked } else { Asked::Lost })?;
    } else if asked == Asked::Settled {
        note_asking(medium, Asked::Settled)?;
    }
    Ok(arrived)
}

/// Notes what an opening has heard.
pub fn note_asking(medium: &dyn Medium, asked: Asked) -> Result<(), MediaError> {
    let fail = |e| MediaError::new("write the stage", medium, STAGE_ASKED as u64, e);
    medium.write_at(&(asked as u64).to_ne_bytes(), STAGE_ASKED as u64).map_err(fail)
}

fn asked(medium: &dyn Medium) -> Result<Asked, MediaError> {
    let mut word = [0; 8];
    match medium.read_at(&mut word, STAGE_ASKED as u64) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Asked::Settled),
        other => other.map_err(|e| MediaError::new("read the stage", medium, STAGE_ASKED as u64, e))?,
    }
    Ok(match u64::from_ne_bytes(word) {
        0 => Asked::Settled,
        word if word == Asked::Lost as u64 => Asked::Lost,
        _ => Asked::Perhaps,
    })
}

/// Notes what the witnesses say in a stage that is being made.
pub fn note(medium: &dyn Medium, witnesses: &Witnesses) -> io::Result<()> {
    let record = WitnessRecord::new(witnesses);
    STAGE_WITNESSES.iter().try_for_each(|at| medium.write_at(record.as_bytes(), *at as u64))
}

fn word(block: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

fn frontier(block: &[u8]) -> Result<(u64, Lsn), Defect> {
    match STAGE_FRONTIERS.get(word(block, STAGE_CURRENT) as usize) {
        Some(at) => Ok((word(block, *at), Lsn(word(block, at + 8)))),
        None => Err(Defect::Value("it does not say which of its frontiers counts".into())),
    }
}

/// Says in which generation of the store it is used. For a stage that is not mapped: what it holds stays.
pub fn set_generation(medium: &dyn Medium, generation: u64) -> Result<(), MediaError> {
    let at = STAGE_GENERATION as u64;
    let fail = |e| MediaError::new("write the stage", medium, at, e);
    medium.write_at(&generation.to_ne_bytes(), at).map_err(fail)
}

/// From now on nothing is known of what the segments show. For a stage that is not mapped.
pub fn forget_checkpoint(medium: &dyn Medium) -> Result<(), MediaError> {
    let fail = |e| MediaError::new("write the stage", medium, STAGE_CHECKPOINT as u64, e);
    medium.write_at(&[0; 8], STAGE_CHECKPOINT as u64).map_err(fail)
}

/// Moves the frontier of a stage that is not mapped: what is stamped before `handed_over` is in the log, which
/// ends at `appended`.
pub fn advance(medium: &dyn Medium, handed_over: u64, appended: Lsn) -> Result<(), MediaError> {
    let fail = |action| move |e| MediaError::new(action, medium, STAGE_CURRENT as u64, e);
    let mut block = [0; BLOCK];
    medium.read_at(&mut block, 0).map_err(fail("read the stage"))?;
    let next = u64::from(word(&block, STAGE_CURRENT) == 0);
    let at = STAGE_FRONTIERS[next as usize] as u64;
    let words = [handed_over.to_ne_bytes(), appended.0.to_ne_bytes()].concat();
    medium.write_at(&words, at).map_err(fail("write the stage"))?;
    medium.write_at(&next.to_ne_bytes(), STAGE_CURRENT as u64).map_err(fail("write the stage"))
}
