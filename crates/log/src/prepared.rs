//! The undecided transactions of a store without a log: what an undo log says of one, and the file that keeps them
//! from one opening to the next.
//!
//! A transaction that is prepared has, behind its old values, the new ones as ranges of [`NEW`] segments, and last
//! a [`MARK`], which holds its identifier. With the mark it is undecided; without it, it is not committed.

use crate::format::{self, Defect, PREPARED_MAGIC, PreparedEntry, PreparedHeader, SegmentId, padded};
use crate::record::{self, GLOBAL_ID_MAX, Range, well_formed};
use caliburn_os::host::Id;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Added to a segment's number: the range holds new values.
pub const NEW: u32 = 1 << 31;
/// In place of a segment's number: the range holds the identifier, and the time is its offset.
pub const MARK: SegmentId = SegmentId(u32::MAX);

/// Whether a range of an undo log is part of what a prepared transaction has put there.
pub fn is_new(segment: SegmentId) -> bool {
    segment.0 & NEW != 0
}

/// A transaction that was prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its identifier.
    pub global_id: Vec<u8>,
    /// When it was prepared, nanoseconds since 1970.
    pub time: u64,
    /// The new values, as ranges of a record.
    pub body: Vec<u8>,
}

impl Prepared {
    /// Takes what one of the ranges of an undo log says of its transaction, from the oldest on.
    pub fn take(&mut self, range: &Range<'_>) {
        if range.segment == MARK {
            (self.global_id, self.time) = (range.bytes.to_vec(), range.offset);
        } else if is_new(range.segment) {
            let segment = SegmentId(range.segment.0 & !NEW);
            record::push_range(&mut self.body, segment, range.offset, range.bytes);
        }
    }
}

/// The file's content.
pub fn encode(store: Id, prepared: &[Prepared]) -> Vec<u8> {
    let mut out = vec![0; size_of::<PreparedHeader>()];
    for entry in prepared {
        let fixed = PreparedEntry {
            time: entry.time.into(),
            body: (entry.body.len() as u64).into(),
            id: (entry.global_id.len() as u16).into(),
            ..PreparedEntry::new_zeroed()
        };
        out.extend_from_slice(fixed.as_bytes());
        out.extend_from_slice(&entry.global_id);
        out.resize(padded(out.len()), 0);
        out.extend_from_slice(&entry.body);
    }
    let header = PreparedHeader {
        len: (out.len() as u64).into(),
        count: (prepared.len() as u64).into(),
        ..PreparedHeader::new_zeroed()
    };
    out[..size_of::<PreparedHeader>()].copy_from_slice(header.as_bytes());
    format::seal(&mut out, PREPARED_MAGIC, store);
    out
}

/// What [`encode`] has written; else what is wrong, and at which offset.
pub fn decode(bytes: &[u8], store: &Id) -> Result<Vec<Prepared>, (u64, Defect)> {
    let value = |offset: usize, text: &str| (offset as u64, Defect::Value(text.into()));
    let short = || value(bytes.len(), "the file ends here: it was cut off");
    let (header, _) = PreparedHeader::read_from_prefix(bytes).map_err(|_| short())?;
    match format::unseal(bytes, PREPARED_MAGIC, "file of undecided transactions", Some(store)) {
        Err(Defect::Checksum) if header.len.get() > bytes.len() as u64 => return Err(short()),
        other => other.map_err(|defect| (0, defect))?,
    };
    let (mut at, mut found) = (size_of::<PreparedHeader>(), Vec::<Prepared>::new());
    while at < bytes.len() {
        let entry = at;
        let mut take = |len: usize| {
            let part = at.checked_add(len).and_then(|end| bytes.get(at..end)).ok_or_else(short);
            at += part.as_ref().map_or(0, |part| part.len());
            part
        };
        let fixed =
            PreparedEntry::read_from_bytes(take(size_of::<PreparedEntry>())?).expect("the size is right");
        let id = usize::from(fixed.id.get());
        let global_id = take(padded(id))?[..id].to_vec();
        let body = take(usize::try_from(fixed.body.get()).unwrap_or(usize::MAX))?.to_vec();
        let known = found.iter().any(|other| other.global_id == global_id);
        if !(1..=GLOBAL_ID_MAX).contains(&id) || known || !well_formed(&body) {
            return Err(value(entry, "a transaction in it is none that this program writes"));
        }
        found.push(Prepared { global_id, time: fixed.time.get(), body });
    }
    if header.count.get() != found.len() as u64 {
        return Err(value(0, "it does not hold as many transactions as it says"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::push_range;

    fn sample() -> Vec<Prepared> {
        let mut body = Vec::new();
        push_range(&mut body, SegmentId(3), 40, b"hello");
        let one = Prepared { global_id: b"one".to_vec(), time: 5, body };
        vec![Prepared { global_id: b"12345678".to_vec(), ..one.clone() }, one]
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else_is() {
        let store = [7; 16];
        for wanted in [vec![], sample()] {
            let bytes = encode(store, &wanted);
            assert_eq!(decode(&bytes, &store).unwrap(), wanted);
            for at in 0..bytes.len() {
                assert!(decode(&bytes[..at], &store).is_err(), "cut off at {at}");
                let mut flipped = bytes.clone();
                flipped[at] ^= 16;
                assert!(decode(&flipped, &store).is_err(), "flipped at {at}");
            }
            assert!(decode(&bytes, &[8; 16]).is_err(), "another store's");
        }
    }

    #[test]
    fn what_no_program_of_ours_writes_is_refused_though_its_checksum_is_right() {
        let store = [7; 16];
        let refused = |change: &dyn Fn(&mut Vec<Prepared>)| {
            let mut wrong = sample();
            change(&mut wrong);
            assert!(matches!(decode(&encode(store, &wrong), &store), Err((_, Defect::Value(_)))));
        };
        refused(&|wrong| wrong[0].global_id.clear());
        refused(&|wrong| wrong[0].global_id = vec![1; GLOBAL_ID_MAX + 1]);
        refused(&|wrong| wrong[0].global_id = b"one".to_vec());
        refused(&|wrong| wrong[1].body.truncate(8));
    }
}
