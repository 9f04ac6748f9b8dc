//! Twin pages: a small structure that changes durably. It stands twice and is written in turn, so that whatever
//! becomes of the one being written, the other is whole. The valid one with the greater generation counts.
//!
//! Invariant: a page is written only while its twin is durable. What an opening reads tells that of one page only.
//! If one is [torn](is_one_torn), the other is durable. If both are whole, the older one is, and the page cache may
//! show a newer one that a failed force, or a failed write, has left in memory. So the first page that an opening
//! writes goes over the torn one, or else over the newest, and is forced; then the next one goes over its twin.

use crate::format::{self, BLOCK, COUNT_MAX, Defect, STATUS_AT};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use std::io;

use crate::media_error::MediaError;

/// Offset of the generation: behind the preamble.
const GENERATION: usize = size_of::<format::Preamble>();

fn generation(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[GENERATION..GENERATION + 8].try_into().expect("eight bytes"))
}

fn countable(generation: u64) -> Result<(), Defect> {
    match generation {
        ..COUNT_MAX => Ok(()),
        _ => Err(Defect::Value("its status page was written impossibly often".into())),
    }
}

/// Reads the page that counts; if neither is valid, what the better one says. `store` is compared if known.
pub fn read(
    medium: &dyn Medium,
    magic: [u8; 8],
    what: &'static str,
    store: Option<&Id>,
) -> Result<Result<Vec<u8>, Defect>, MediaError> {
    read_parts(medium, BLOCK, (magic, &[format::VERSION], what), store, |_| Ok(None))
}

/// The same of a structure that stands in each page as often as parts of so many bytes fit, each with a checksum: so
/// that what damages one of them later does not pass for a write that was cut short. `lacks` says what was written
/// with one and is not there, so that it does not count.
pub fn read_parts(
    medium: &dyn Medium,
    part: usize,
    (magic, versions, what): ([u8; 8], &[u32], &'static str),
    store: Option<&Id>,
    mut lacks: impl FnMut(&[u8]) -> Result<Option<Defect>, MediaError>,
) -> Result<Result<Vec<u8>, Defect>, MediaError> {
    let mut best: Option<Vec<u8>> = None;
    let mut defects = Vec::new();
    let parts = STATUS_AT.into_iter().flat_map(|page| (page..page + BLOCK as u64).step_by(part));
    for at in parts {
        let mut page = vec![0; part];
        match medium.read_at(&mut page, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let text = "the file is too short for a status page: it was cut off";
                defects.push(Defect::Value(text.into()));
                continue;
            }
            Err(error) => return Err(MediaError::new("read the status", medium, at, error)),
        }
        let sealed = format::unseal_any(&page, magic, versions, what, store);
        match sealed.and_then(|_| countable(generation(&page))) {
            Ok(()) if best.as_ref().is_some_and(|best| generation(best) >= generation(&page)) => {}
            Ok(()) => match lacks(&page)? {
                None => best = Some(page),
                Some(defect) => defects.push(defect),
            },
            Err(defect) => defects.push(defect),
        }
    }
    // A page with a known magic says more than one without.
    defects.sort_by_key(|d| matches!(d, Defect::Magic { .. } | Defect::Checksum));
    Ok(best.ok_or_else(|| defects.swap_remove(0)))
}

/// Whether one of the pages is not what was written there: torn, cut off or damaged. The other one was durable
/// before that was written.
pub fn is_one_torn(medium: &dyn Medium, magic: [u8; 8], what: &'static str, store: &Id) -> bool {
    STATUS_AT.iter().any(|at| {
        let mut page = [0; BLOCK];
        medium.read_at(&mut page, *at).is_err() || format::unseal(&page, magic, what, Some(store)).is_err()
    })
}

/// Writes a structure to the place that its generation names; that place.
pub fn put(medium: &dyn Medium, status: &[u8], magic: [u8; 8], store: Id) -> Result<u64, MediaError> {
    put_parts(medium, BLOCK, status, (magic, format::VERSION), store)
}

/// The same in parts of so many bytes, for [`read_parts`].
pub fn put_parts(
    medium: &dyn Medium,
    part: usize,
    status: &[u8],
    (magic, version): ([u8; 8], u32),
    store: Id,
) -> Result<u64, MediaError> {
    let mut page = vec![0; BLOCK];
    for part in page.chunks_mut(part) {
        part[..status.len()].copy_from_slice(status);
        format::seal_as(part, magic, version, store);
    }
    let at = STATUS_AT[(generation(&page) % 2) as usize];
    medium.write_at(&page, at).map_err(|e| MediaError::new("write the status", medium, at, e))?;
    Ok(at)
}
