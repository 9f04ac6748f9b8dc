//! The table of undecided transactions, as policies keep it: `P` is where a policy has what makes one durable.

use crate::policy::Claimed;
use crate::policy::query::Prepared;
use crate::storage::error::CommitError;
use caliburn_log::SegmentId;
use caliburn_log::format::Lsn;
use caliburn_log::record::{GLOBAL_ID_MAX, Ranges};
use std::collections::BTreeMap;

/// The undecided transactions by their global identifiers.
pub(crate) type Table<P> = BTreeMap<Vec<u8>, Entry<P>>;

/// One undecided transaction.
pub(crate) struct Entry<P> {
    /// The new values, as ranges of a record.
    pub body: Vec<u8>,
    pub time: u64,
    /// Its slot, if this process prepared it.
    pub slot: Option<usize>,
    /// Somebody is preparing or deciding it.
    pub deciding: bool,
    /// It is decided, and nobody waits for that to be durable: where the record that says so ends in the log.
    pub decided: Option<Lsn>,
    pub place: P,
}

/// The undecided transactions of a table, but for those that somebody is preparing or deciding.
pub(super) fn list<P>(table: &Table<P>) -> Vec<Prepared> {
    describe(table.iter().filter(|(_, entry)| !entry.deciding))
}

pub(super) fn list_all<P>(table: &Table<P>) -> Vec<Prepared> {
    describe(table.iter().filter(|(_, entry)| entry.decided.is_none()))
}

fn describe<'t, P: 't>(entries: impl Iterator<Item = (&'t Vec<u8>, &'t Entry<P>)>) -> Vec<Prepared> {
    let list = entries.map(|(id, entry)| Prepared {
        global_id: id.clone(),
        ranges: Ranges::of(&entry.body)
            .map(|r| (r.segment, r.offset..r.offset + r.bytes.len() as u64))
            .collect(),
        time: entry.time,
        recovered: entry.slot.is_none(),
    });
    list.collect()
}

/// Refuses an identifier that cannot be used.
pub(super) fn check<P>(table: &Table<P>, global_id: &[u8]) -> Result<(), CommitError> {
    let why = match global_id.len() {
        1..=GLOBAL_ID_MAX if table.get(global_id).is_none_or(|entry| entry.decided.is_some()) => {
            return Ok(());
        }
        1..=GLOBAL_ID_MAX => "a prepared transaction with this identifier is undecided",
        _ => "an identifier has 1 to 1024 bytes",
    };
    Err(CommitError::GlobalId { len: global_id.len(), why })
}

/// See [`Undecided::claim`](super::Undecided::claim).
pub(super) fn claim<P>(table: &mut Table<P>, global_id: &[u8]) -> Result<Claimed, CommitError> {
    let entry = table.get_mut(global_id).filter(|entry| !entry.deciding);
    let entry =
        entry.ok_or_else(|| CommitError::NotPrepared(String::from_utf8_lossy(global_id).into_owned()))?;
    entry.deciding = true;
    Ok(Claimed { body: entry.body.clone(), slot: entry.slot })
}

/// See [`Undecided::unclaim`](super::Undecided::unclaim).
pub(super) fn unclaim<P>(table: &mut Table<P>, global_id: &[u8]) {
    if let Some(entry) = table.get_mut(global_id) {
        entry.deciding = false;
    }
}

/// The segments that they change, some more than once.
pub(super) fn segments<P>(table: &Table<P>) -> impl Iterator<Item = SegmentId> {
    table.values().flat_map(|entry| Ranges::of(&entry.body)).map(|range| range.segment)
}
