//! The status pages of a log of before-images, and the sums that they bring: of pages that were committed, and whose
//! sums the sums files do not have yet. So a commit forces no sums file.
//!
//! ```text
//!   commit:           sums, if they do not fit the page - status page - force
//!   now and then:     sums files written - forced - the next status page brings none of them
//!   recovery:         status page - force - sums files - force - the next status page brings none
//! ```
//!
//! Invariant: a sums file has no sum of a page whose commit is not durable: what is undone has the sum that it had.

use crate::format::{
    self, BLOCK, Defect, HEAD_HALF, IMAGES_MAGIC, IMAGES_VERSION, ImagesStatus, PageSum, STATUS_AT,
    SUMMED_IMAGES, SUMS_ROOM, SUMS_WAITING, SUMS_WITHIN, Said, SegmentId, VERSION,
};
use crate::media_error::MediaError;
use crate::status_pages;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use zerocopy::{FromBytes, IntoBytes};

/// Value of [`ImagesStatus::clean`] after an orderly close.
pub const CLEAN: u32 = 1;

/// Why a log of before-images cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The file is not what it must be.
    #[error("before-images {}, offset {offset}: {defect}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
}

pub(crate) fn bad(medium: &dyn Medium, offset: u64, defect: Defect) -> ImagesError {
    ImagesError::Bad { path: medium.path().to_owned(), offset, defect }
}

/// A page of a segment's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// The segment.
    pub segment: SegmentId,
    /// Its number in the segment's data.
    pub number: u64,
}

/// The versions of status pages that are read.
const VERSIONS: &[u32] = &[VERSION, IMAGES_VERSION, SUMMED_IMAGES];
const SUM: usize = size_of::<PageSum>();
/// Sums that are read, or written, at once.
const CHUNK: usize = 4096;

/// Which generation of its store they are of.
pub fn said(status: &ImagesStatus) -> Said {
    Said { generation: status.store_generation.get(), twin_lost: false }
}

/// Reads the status page that counts.
///
/// # Errors
/// [`ImagesError`].
pub fn read_status(medium: &dyn Medium, store: &Id) -> Result<ImagesStatus, ImagesError> {
    let what = (IMAGES_MAGIC, VERSIONS, "file of before-images");
    let lacks = |part: &[u8]| {
        let status = decode(part);
        let there = match status.sums_at.get() {
            0 => size_of::<ImagesStatus>() + status.sums.get() as usize * SUM <= part.len(),
            at => at >= SUMS_ROOM[0] && whole_copy(medium, &status)?.is_some(),
        };
        let lost = || Defect::Value("the sums that belong to its status are not there".into());
        Ok((!there && unless("torn-sums-believed", true)).then(lost))
    };
    let page = status_pages::read_parts(medium, status_part(), what, Some(store), lacks)?;
    Ok(decode(&page.map_err(|defect| bad(medium, 0, defect))?))
}

fn decode(part: &[u8]) -> ImagesStatus {
    ImagesStatus::read_from_prefix(part).expect("a page holds a status").0
}

/// Bytes of each of the copies of the status in its page.
fn status_part() -> usize {
    if planted("one-status-of-images") { BLOCK } else { HEAD_HALF }
}

pub(crate) fn put_status(
    medium: &dyn Medium,
    status: &ImagesStatus,
    within: &[u8],
    store: Id,
) -> Result<(), MediaError> {
    let version = if status.sums == 0 { IMAGES_VERSION } else { SUMMED_IMAGES };
    let bytes = [status.as_bytes(), within].concat();
    status_pages::put_parts(medium, status_part(), &bytes, (IMAGES_MAGIC, version), store).map(drop)
}

/// Makes the status that was read durable, with its sums: it may be in the page cache alone.
///
/// # Errors
/// When the medium fails.
pub fn force_status(medium: &dyn Medium, status: &ImagesStatus) -> Result<(), MediaError> {
    put_again(medium, status)?;
    medium.sync().map_err(|e| MediaError::new("force before-images", medium, 0, e))
}

/// Writes again the status that was read, and its sums.
pub(crate) fn put_again(medium: &dyn Medium, status: &ImagesStatus) -> Result<(), MediaError> {
    let mut within = Vec::new();
    match status.sums_at.get() {
        0 => each_chunk(medium, status, |_, bytes| {
            within.extend_from_slice(bytes);
            Ok(())
        })?,
        at => each_chunk(medium, status, |offset, bytes| put_copies(medium, (at, status), offset, bytes))?,
    }
    put_status(medium, status, &within, status.preamble.store)
}

/// Bytes that a copy of `count` sums takes.
pub(crate) fn copy_bytes(count: u64) -> u64 {
    (count * SUM as u64).next_multiple_of(BLOCK as u64)
}

fn put_copies(
    medium: &dyn Medium,
    (at, status): (u64, &ImagesStatus),
    offset: u64,
    bytes: &[u8],
) -> Result<(), MediaError> {
    for at in [at, at + copy_bytes(status.sums.get().into())] {
        let at = at + offset;
        let written = medium.write_at(bytes, at);
        written.map_err(|e| MediaError::new("write sums to before-images", medium, at, e))?;
    }
    Ok(())
}

/// Where one of the two copies of its sums is whole.
fn whole_copy(medium: &dyn Medium, status: &ImagesStatus) -> Result<Option<u64>, MediaError> {
    let at = status.sums_at.get();
    for at in [Some(at), at.checked_add(copy_bytes(status.sums.get().into()))].into_iter().flatten() {
        let mut crc = 0;
        let read = chunks(medium, at, status.sums.get(), |_, bytes| {
            crc = crc32c::crc32c_append(crc, bytes);
            Ok(())
        });
        match read {
            Err(error) if error.source.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
            Ok(()) if status.sums_crc == crc => return Ok(Some(at)),
            Ok(()) => {}
        }
    }
    Ok(None)
}

/// Reads `count` sums at `at`.
fn chunks(
    medium: &dyn Medium,
    at: u64,
    count: u32,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), MediaError>,
) -> Result<(), MediaError> {
    let mut bytes = vec![0; (count as usize).min(CHUNK) * SUM];
    let (mut offset, total) = (0, u64::from(count) * SUM as u64);
    while offset < total {
        let part = &mut bytes[..(total - offset).min((CHUNK * SUM) as u64) as usize];
        let fail = |e| MediaError::new("read sums from before-images", medium, at, e);
        medium.read_at(part, at.saturating_add(offset)).map_err(fail)?;
        each(offset, part)?;
        offset += part.len() as u64;
    }
    Ok(())
}

/// The sums of a status that was read, as they stand.
fn each_chunk(
    medium: &dyn Medium,
    status: &ImagesStatus,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), MediaError>,
) -> Result<(), MediaError> {
    if status.sums == 0 {
        return Ok(());
    }
    let changed = |at: u64| {
        let source = io::Error::new(io::ErrorKind::InvalidData, "it has changed since its status was read");
        MediaError::new("read sums from before-images", medium, at, source)
    };
    if status.sums_at != 0 {
        let at = whole_copy(medium, status)?.ok_or_else(|| changed(status.sums_at.get()))?;
        return chunks(medium, at, status.sums.get(), each);
    }
    let at = STATUS_AT[(status.generation.get() % 2) as usize];
    let mut block = vec![0; BLOCK];
    medium.read_at(&mut block, at).map_err(|e| MediaError::new("read the status", medium, at, e))?;
    let mut parts = block.chunks(status_part());
    let part = parts.find(|part| {
        let sealed = format::unseal_any(part, IMAGES_MAGIC, VERSIONS, "status", Some(&status.preamble.store));
        sealed.is_ok() && decode(part).as_bytes() == status.as_bytes()
    });
    let sums =
        part.and_then(|part| part[size_of::<ImagesStatus>()..].get(..status.sums.get() as usize * SUM));
    each(0, sums.ok_or_else(|| changed(at))?)
}

/// Calls `each` with the sums of a status that was read.
///
/// # Errors
/// When the medium fails; those of `each`.
pub fn each_sum(
    medium: &dyn Medium,
    status: &ImagesStatus,
    mut each: impl FnMut(Page, u32) -> Result<(), MediaError>,
) -> Result<(), MediaError> {
    each_chunk(medium, status, |_, bytes| {
        let sums = <[PageSum]>::ref_from_bytes(bytes).expect("whole sums");
        sums.iter().try_for_each(|of| {
            let page = Page { segment: SegmentId(of.segment.get()), number: of.page.get() };
            each(page, of.sum.get())
        })
    })
}

/// Sums of pages.
pub type Sums = BTreeMap<Page, u32>;

/// All sums that a status brings.
pub fn sums(medium: &dyn Medium, status: &ImagesStatus) -> Result<Sums, MediaError> {
    let mut all = Sums::new();
    each_sum(medium, status, |page, sum| {
        all.insert(page, sum);
        Ok(())
    })?;
    Ok(all)
}

/// Whether `sums` sums fit a status page and the room beside it.
pub fn has_room(sums: u64) -> bool {
    sums <= SUMS_WAITING as u64
}

/// Writes the sums that a status page is to bring, if they do not fit it; what follows in it.
pub(crate) fn put_sums(
    medium: &dyn Medium,
    status: &mut ImagesStatus,
    sums: &Sums,
) -> Result<Vec<u8>, MediaError> {
    let mut bytes = Vec::with_capacity(sums.len() * SUM);
    sums.iter().for_each(|(page, sum)| bytes.extend_from_slice(encode(*page, *sum).as_bytes()));
    (status.sums, status.sums_at, status.sums_crc) = ((sums.len() as u32).into(), 0.into(), 0.into());
    if sums.len() <= SUMS_WITHIN {
        return Ok(bytes);
    }
    let at = SUMS_ROOM[(status.generation.get() % 2) as usize];
    (status.sums_at, status.sums_crc) = (at.into(), crc32c::crc32c(&bytes).into());
    put_copies(medium, (at, status), 0, &bytes)?;
    Ok(Vec::new())
}

fn encode(page: Page, sum: u32) -> PageSum {
    PageSum { segment: page.segment.0.into(), sum: sum.into(), page: page.number.into() }
}

/// Writes `count` sums behind the images.
pub(crate) fn put_many(
    medium: &dyn Medium,
    status: &mut ImagesStatus,
    (at, count): (u64, u64),
    sums: impl Iterator<Item = Result<(Page, u32), MediaError>>,
) -> Result<(), MediaError> {
    let too_many = |_| {
        let source = io::Error::new(io::ErrorKind::FileTooLarge, "too many pages of one transaction");
        MediaError::new("write sums to before-images", medium, at, source)
    };
    status.sums = u32::try_from(count).map_err(too_many)?.into();
    let (mut bytes, mut offset, mut crc) = (Vec::with_capacity(CHUNK * SUM), 0, 0);
    let mut put = |bytes: &mut Vec<u8>| {
        crc = crc32c::crc32c_append(crc, bytes);
        put_copies(medium, (at, status), offset, bytes)?;
        offset += bytes.len() as u64;
        bytes.clear();
        Ok(())
    };
    for sum in sums {
        let (page, sum) = sum?;
        bytes.extend_from_slice(encode(page, sum).as_bytes());
        if bytes.len() == CHUNK * SUM {
            put(&mut bytes)?;
        }
    }
    put(&mut bytes)?;
    assert_eq!(offset, count * SUM as u64, "one sum for each page");
    (status.sums_at, status.sums_crc) = (at.into(), crc.into());
    Ok(())
}
