//! What the node server remembers, in recoverable memory: data servers and users.
//!
//! ```text
//!   record 0: bytes | of a message `Record` ...     record 1 ...     4 KiB each; no bytes: free
//! ```

use crate::credentials::is_label;
use crate::node::call::{Call, Mode};
use crate::proto::admin::record::Of;
use crate::proto::admin::{Record, Server, User};
use prost::Message;
use tonic::Status;

pub(super) const SEGMENT: &str = "node-server";
const RECORD: usize = 4096;
const RECORDS: usize = 1024;
pub(super) const SEGMENT_BYTES: u64 = (RECORD * RECORDS) as u64;

impl Of {
    fn name(&self) -> (&'static str, &str) {
        match self {
            Of::Server(server) => ("server", &server.name),
            Of::User(user) => ("user", &user.name),
        }
    }
}

/// Records with their numbers, and the first that is free.
type Records = (Vec<(usize, Of)>, Option<usize>);

/// All that is there.
fn records(call: &mut Call<'_, '_>) -> Result<Records, Status> {
    let region = call.region(SEGMENT)?;
    // All at once, so that two that look for a free one don't find the same.
    call.lock(region, 0..region.len(), Mode::Shared)?;
    let (mut all, mut free) = (Vec::new(), None);
    for number in 0..RECORDS {
        let at = number * RECORD;
        let mut len = [0; 4];
        region.read(at, &mut len);
        let len = u32::from_le_bytes(len) as usize;
        if len == 0 {
            free = free.or(Some(number));
            continue;
        }
        let mut bytes = vec![0; len.min(RECORD - 4)];
        region.read(at + 4, &mut bytes);
        let of = Record::decode(&bytes[..]).ok().filter(|_| bytes.len() == len).and_then(|record| record.of);
        let of = of.ok_or_else(|| {
            Status::data_loss(format!(
                "record {number} of the node server, at byte {at} of its segment, is none"
            ))
        })?;
        all.push((number, of));
    }
    Ok((all, free))
}

/// Holds others up that would change something: before it is read.
pub(super) fn lock(call: &mut Call<'_, '_>) -> Result<(), Status> {
    let region = call.region(SEGMENT)?;
    call.lock(region, 0..region.len(), Mode::Exclusive)
}

/// What there is.
pub(super) fn all(call: &mut Call<'_, '_>) -> Result<(Vec<Server>, Vec<User>), Status> {
    let (mut servers, mut users) = (Vec::new(), Vec::new());
    for (_, of) in records(call)?.0 {
        match of {
            Of::Server(server) => servers.push(server),
            Of::User(user) => users.push(user),
        }
    }
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    users.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((servers, users))
}

/// Puts something in the place of what is there of that name, or in a free one.
pub(super) fn put(call: &mut Call<'_, '_>, of: Of) -> Result<(), Status> {
    let (kind, name) = of.name();
    if !is_label(name) {
        let message =
            format!("{name:?} is no name of a {kind}: a-z, 0-9 and '-', at most 63, '-' not at an end");
        return Err(Status::invalid_argument(message));
    }
    let (all, free) = records(call)?;
    let same = all.iter().find(|(_, there)| there.name() == of.name()).map(|(number, _)| *number);
    let full = || Status::resource_exhausted(format!("there are {RECORDS} servers and users; remove some"));
    let number = same.or(free).ok_or_else(full)?;
    let bytes = Record { of: Some(of.clone()) }.encode_to_vec();
    if bytes.len() > RECORD - 4 {
        let (kind, name) = of.name();
        return Err(Status::invalid_argument(format!(
            "{kind} {name:?} takes {} bytes, of at most 4092",
            bytes.len()
        )));
    }
    let len = u32::try_from(bytes.len()).expect("it is short");
    let region = call.region(SEGMENT)?;
    call.write(region, number * RECORD, &[&len.to_le_bytes()[..], &bytes].concat())
}

/// Removes a server or a user. Whether there was one.
pub(super) fn remove(call: &mut Call<'_, '_>, kind: &str, name: &str) -> Result<bool, Status> {
    let found = records(call)?.0.into_iter().find(|(_, there)| there.name() == (kind, name));
    let Some((number, _)) = found else { return Ok(false) };
    let region = call.region(SEGMENT)?;
    call.store(region, number * RECORD, &0u32)?;
    Ok(true)
}
