//! What a node compares when it asks etcd: that it is the etcd which the node knows, with all that it has put
//! there.

use crate::commit::word::{Incarnation, Node, Slot};
use crate::keep::claim::{Claim, Kept, Met, Newcomer};
use crate::keep::etcd::{Etcd, KeepError, READS, damaged, decode, encode, epoch_of, get, put};
use crate::keep::known::{Identity, Known, Looked};
use crate::proto::etcd::{
    Compare, KeyValue, RequestOp, ResponseHeader, TxnRequest, TxnResponse, compare, response_op,
};
use caliburn_os::simulated::planted;

/// What etcd has of a node.
struct Found {
    known: Known,
    epoch: u64,
    /// The slot that was asked for.
    slot: Option<Vec<u8>>,
}

fn compares(
    key: Vec<u8>,
    result: compare::CompareResult,
    target: compare::CompareTarget,
    union: compare::TargetUnion,
) -> Compare {
    Compare { result: result as i32, target: target as i32, key, target_union: Some(union) }
}

fn absent(key: Vec<u8>) -> Compare {
    let none = compare::TargetUnion::CreateRevision(0);
    compares(key, compare::CompareResult::Equal, compare::CompareTarget::Create, none)
}

/// The first of what each range has found.
fn each(response: &TxnResponse) -> impl Iterator<Item = Option<&KeyValue>> {
    response.responses.iter().filter_map(|response| match &response.response {
        Some(response_op::Response::ResponseRange(range)) => Some(range.kvs.first()),
        _ => None,
    })
}

fn head(header: Option<&ResponseHeader>) -> Known {
    let revision = header.map_or(0, |header| header.revision.unsigned_abs());
    Known { etcd: header.map_or(0, |header| header.cluster_id), revision, ..Known::default() }
}

impl Etcd {
    fn identity_key(&self) -> Vec<u8> {
        self.key("identity")
    }

    fn mark_key(&self, node: Node) -> Vec<u8> {
        self.key(&format!("mark/{:016x}", node.0))
    }

    /// Version, identity, checksum.
    fn identity_of(&self, kv: &KeyValue) -> Result<Identity, KeepError> {
        let body = kv.value.split_last_chunk::<4>();
        let body = body.filter(|(body, sum)| crc32c::crc32c(body) == u32::from_le_bytes(**sum));
        match body.map(|(body, _)| body) {
            Some([1, identity @ ..]) if identity.len() == 16 => {
                Ok(identity.try_into().expect("sixteen bytes"))
            }
            _ => Err(damaged(&kv.key, "identity", kv.value.clone())),
        }
    }

    /// Reads what is compared.
    fn asks(&self, node: Node) -> [RequestOp; 3] {
        [get(self.identity_key()), get(self.epoch_key(node)), get(self.mark_key(node))]
    }

    fn found(&self, node: Node, response: &TxnResponse) -> Result<Found, KeepError> {
        let mut all = each(response);
        let identity = all.next().flatten().map(|kv| self.identity_of(kv)).transpose()?;
        let key = self.epoch_key(node);
        let epoch = all.next().flatten().map_or(Ok(0), |kv| epoch_of(&key, &kv.value))?;
        let mark = all.next().flatten().map_or(0, |kv| kv.version.unsigned_abs());
        let slot = all.next().flatten().map(|kv| kv.value.clone());
        Ok(Found { known: Known { identity, mark, ..head(response.header.as_ref()) }, epoch, slot })
    }

    /// That the identity is this one, and the node's puts are there.
    fn is_known(&self, node: Node, known: &Known) -> Vec<Compare> {
        let Some(identity) = known.identity else { return Vec::new() };
        let value = encode_identity(identity);
        let identity = compares(
            self.identity_key(),
            compare::CompareResult::Equal,
            compare::CompareTarget::Value,
            compare::TargetUnion::Value(value),
        );
        let mark = compares(
            self.mark_key(node),
            compare::CompareResult::Greater,
            compare::CompareTarget::Version,
            compare::TargetUnion::Version(known.mark as i64 - 1),
        );
        if planted("marks-not-compared") { Vec::new() } else { vec![identity, mark] }
    }

    /// A node begins a life, unless this is not the etcd that it knows. One that knows none learns what is there,
    /// and makes the cluster's identity if there is none.
    ///
    /// # Errors
    /// When etcd does not answer; when the system has no randomness.
    pub async fn meet(&self, newcomer: &Newcomer) -> Result<Met, KeepError> {
        let Newcomer { node, behind, begun, known } = *newcomer;
        loop {
            let ask = TxnRequest { success: self.asks(node).into(), ..TxnRequest::default() };
            let found = self.found(node, &self.txn(&ask).await?)?;
            if known.identity.is_none() && found.known.identity.is_none() {
                let new = caliburn_os::host::random_id().map_err(KeepError::Random)?;
                let put = put(self.identity_key(), encode_identity(new));
                let absent = vec![absent(self.identity_key())];
                self.txn(&TxnRequest { compare: absent, success: vec![put], failure: Vec::new() }).await?;
                continue;
            }
            if let Some(doubt) = known.doubt(&found.known, (found.epoch, behind.0)) {
                let life = begun.unwrap_or(Incarnation(behind.0 + 1));
                return Ok(Met { life, known, doubt: Some(doubt) });
            }
            let life = match begun {
                Some(life) => Some(life),
                None => {
                    let compared = self.is_known(node, &found.known);
                    self.begin_life_if(node, behind, &compared).await?
                }
            };
            // Else something has come between.
            if let Some(life) = life {
                return Ok(Met { life, known: found.known, doubt: None });
            }
        }
    }

    /// Whether etcd has what a node knows, and the node its life. Nothing is written.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn look(&self, node: Node, life: Incarnation, known: &Known) -> Result<Looked, KeepError> {
        let ask = TxnRequest { success: self.asks(node).into(), ..TxnRequest::default() };
        let found = self.found(node, &self.txn(&ask).await?)?;
        Ok(match known.doubt(&found.known, (found.epoch, life.0)) {
            Some(doubt) if !planted("marks-not-compared") => Looked::Forgot(doubt),
            _ if found.epoch != life.0 => Looked::Fenced,
            _ => Looked::Well(found.known),
        })
    }

    /// Puts a value into a slot if it is empty, or looks what is there; and what is known then. Identity, life and
    /// mark are compared in the same step, the revision afterwards: etcd has no comparison of it, and a read as of
    /// that revision in the same step is left out by those members that answer nobody (etcd 3.4), which then
    /// differ.
    ///
    /// # Errors
    /// When etcd does not answer: the value may be there all the same. It can be put again.
    pub async fn put(&self, claim: &Claim, known: &Known) -> Result<(Kept, Known), KeepError> {
        let (node, slot_key) = (claim.by, self.slot_key(claim.tid, claim.of));
        let mut compare = self.is_known(node, known);
        compare.push(match claim.slot {
            // Never so: what is there is read below.
            Slot::Empty => compares(
                slot_key.clone(),
                compare::CompareResult::Less,
                compare::CompareTarget::Version,
                compare::TargetUnion::Version(0),
            ),
            _ => absent(slot_key.clone()),
        });
        if !planted("fence-left-out") {
            compare.push(self.lives(node, claim.life));
        }
        let life = claim.life.0.to_be_bytes().to_vec();
        let asks: Vec<RequestOp> = self.asks(node).into_iter().chain([get(slot_key.clone())]).collect();
        let puts = vec![
            put(slot_key.clone(), encode(claim.slot, &claim.participants)),
            put(self.mark_key(node), life),
        ];
        let txn = TxnRequest { compare, success: [puts, asks.clone()].concat(), failure: asks };
        for _ in 0..READS {
            let answer = self.txn(&txn).await?;
            let found = self.found(node, &answer)?;
            if let Some(doubt) = known.doubt(&found.known, (found.epoch, claim.life.0))
                && !planted("marks-not-compared")
            {
                return Ok((Kept::Forgot(doubt), *known));
            }
            if found.epoch != claim.life.0 && !answer.succeeded {
                return Ok((Kept::Fenced, *known));
            }
            match found.slot.as_deref().map(decode) {
                Some(Some((slot, _))) if claim.relies_on(slot) && !answer.succeeded => {
                    return self.mark(claim, slot, &found.known).await;
                }
                Some(Some((slot, _))) => return Ok((Kept::Slot(slot), found.known)),
                None if claim.slot == Slot::Empty => return Ok((Kept::Slot(Slot::Empty), found.known)),
                // Damaged in this member; or deleted since.
                _ => {}
            }
        }
        Err(damaged(&slot_key, "slot", Vec::new()))
    }

    /// Leaves a mark of what was seen in a slot, so that the node notices if an etcd lacks it.
    async fn mark(&self, claim: &Claim, slot: Slot, known: &Known) -> Result<(Kept, Known), KeepError> {
        let node = claim.by;
        let compare = [self.is_known(node, known), vec![self.lives(node, claim.life)]].concat();
        let life = claim.life.0.to_be_bytes().to_vec();
        let asks = self.asks(node).to_vec();
        let success = [vec![put(self.mark_key(node), life)], asks.clone()].concat();
        let answer = self.txn(&TxnRequest { compare, success, failure: asks }).await?;
        let found = self.found(node, &answer)?;
        Ok(match (answer.succeeded, known.doubt(&found.known, (found.epoch, claim.life.0))) {
            (_, Some(doubt)) => (Kept::Forgot(doubt), *known),
            (true, None) => (Kept::Slot(slot), found.known),
            (false, None) => (Kept::Fenced, *known),
        })
    }
}

fn encode_identity(identity: Identity) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(identity);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}
