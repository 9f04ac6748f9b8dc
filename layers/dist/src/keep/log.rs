//! The log of a node's store in etcd (Camelot, section 4.4): what a node is made again of, on another machine.
//!
//! ```text
//!   <cluster>/log-of/<node>                        the store whose log it is
//!   <cluster>/log/<node>/<store>/head              where the log goes on
//!   <cluster>/log/<node>/<store>/part/<from>-<to>/<number>   pieces of parts
//! ```
//!
//! Every `Txn` compares the epoch of the node's life, so that who was replaced writes nothing, and where the log
//! goes on, so that nothing is written twice. The last piece of a part comes with the head behind it: a part
//! counts when it is whole. Pieces have checksums; one that is damaged is read again, of another member.

use crate::commit::word::{Incarnation, Node};
use crate::keep::etcd::{Etcd, KeepError, READS, behind, damaged, get, put, value};
use crate::proto::etcd::{
    Compare, DeleteRangeRequest, KeyValue, RangeRequest, RequestOp, TxnRequest, compare, request_op,
    response_op,
};
use caliburn_engine::{Replica, ReplicaError, ReplicaPart};
use caliburn_os::simulated::planted;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use tokio::runtime::Handle;

/// Bytes of a piece: etcd takes one and a half mebibytes at a time.
const PIECE: usize = 512 << 10;
/// Pieces that are read at a time.
const AT_A_TIME: i64 = 4;

/// A store's identity.
type Id = [u8; 16];

fn hex(id: &Id) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A node's log, in one life of the node.
#[derive(Debug)]
pub(crate) struct NodeLog {
    etcd: Etcd,
    node: Node,
    life: Incarnation,
    runtime: Handle,
    store: OnceLock<Id>,
    /// Bytes that are kept.
    bytes: AtomicU64,
}

/// Bytes with their checksum.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    sealed.extend(crc32c::crc32c(bytes).to_le_bytes());
    sealed
}

fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (bytes, sum) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(bytes) == u32::from_le_bytes(*sum)).then_some(bytes)
}

/// Version and position.
fn head(lsn: u64) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(lsn.to_le_bytes());
    sealed(&bytes)
}

fn head_of(bytes: &[u8]) -> Option<u64> {
    let [1, lsn @ ..] = unsealed(bytes)? else { return None };
    Some(u64::from_le_bytes(lsn.try_into().ok()?))
}

fn named(etcd: &Etcd, node: Node) -> Vec<u8> {
    etcd.key(&format!("log-of/{:016x}", node.0))
}

fn of_node(etcd: &Etcd, node: Node) -> Vec<u8> {
    etcd.key(&format!("log/{:016x}/", node.0))
}

fn of_store(etcd: &Etcd, node: Node, store: &str, rest: &str) -> Vec<u8> {
    etcd.key(&format!("log/{:016x}/{store}/{rest}", node.0))
}

fn equal(key: Vec<u8>, value: Vec<u8>) -> Compare {
    Compare {
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Value as i32,
        key,
        target_union: Some(compare::TargetUnion::Value(value)),
    }
}

fn delete(key: Vec<u8>, range_end: Vec<u8>) -> RequestOp {
    RequestOp {
        request: Some(request_op::Request::RequestDeleteRange(DeleteRangeRequest { key, range_end })),
    }
}

/// From where to where a part is, and the number of the piece, by its key.
fn place(key: &[u8]) -> Option<(u64, u64, u32)> {
    let key = std::str::from_utf8(key).ok()?;
    let (rest, number) = key.rsplit_once('/')?;
    let (from, to) = rest.rsplit_once('/')?.1.split_once('-')?;
    let lsn = |text| u64::from_str_radix(text, 16).ok();
    Some((lsn(from)?, lsn(to)?, number.parse().ok()?))
}

/// The store whose log a node's is, in hexadecimal: the one that it is made again of.
pub(crate) async fn store_of(etcd: &Etcd, node: Node) -> Result<Option<String>, KeepError> {
    let key = named(etcd, node);
    for _ in 0..READS {
        let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let Some(bytes) = value(etcd.range(range).await?) else { return Ok(None) };
        if let Some(store) = unsealed(&bytes).and_then(|bytes| String::from_utf8(bytes.to_vec()).ok()) {
            return Ok(Some(store));
        }
    }
    Err(damaged(&key, "name of a store", Vec::new()))
}

/// Calls `each` with the parts of a store's log that are kept, as files of an archive: names, and bytes.
pub(crate) async fn each_part(
    etcd: &Etcd,
    node: Node,
    store: &str,
    mut each: impl FnMut(String, Vec<u8>) -> std::io::Result<()>,
) -> Result<std::io::Result<()>, KeepError> {
    let prefix = of_store(etcd, node, store, "part/");
    let (mut key, range_end, mut tries) = (prefix.clone(), behind(&prefix), 0);
    // Whole ones only are handed on: pieces of one that came to nothing may lie there.
    let mut part: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut at = (0, 0);
    let mut hand_on = |at: (u64, u64), part: &mut BTreeMap<u32, Vec<u8>>| {
        let bytes: Vec<u8> = std::mem::take(part).into_values().flatten().collect();
        if is_whole(&bytes) { each(format!("{:020}-{:020}.log", at.0, at.1), bytes) } else { Ok(()) }
    };
    loop {
        let range = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: AT_A_TIME,
            ..Default::default()
        };
        let found = etcd.range(range).await?;
        let mut again = false;
        for KeyValue { key: of, value, .. } in found.kvs {
            let Some(((from, to, number), bytes)) = place(&of).zip(unsealed(&value)) else {
                (again, tries) = (true, tries + 1);
                if tries >= READS {
                    return Err(damaged(&of, "piece of a log", value));
                }
                break;
            };
            if at != (from, to)
                && let Err(error) = hand_on(std::mem::replace(&mut at, (from, to)), &mut part)
            {
                return Ok(Err(error));
            }
            part.insert(number, bytes.to_vec());
            key = of.into_iter().chain([0]).collect();
            tries = 0;
        }
        if !again && !found.more {
            return Ok(hand_on(at, &mut part));
        }
    }
}

/// Whether a part has as many bytes as its header says. What they are, whoever reads the archive verifies.
fn is_whole(bytes: &[u8]) -> bool {
    caliburn_engine::archive_part_len(bytes).is_some_and(|len| len == bytes.len() as u64)
}

impl NodeLog {
    /// Of a node in this life.
    pub fn new(etcd: Etcd, node: Node, life: Incarnation) -> NodeLog {
        let runtime = Handle::current();
        NodeLog { etcd, node, life, runtime, store: OnceLock::new(), bytes: AtomicU64::new(0) }
    }

    /// The store's identity, when it was opened.
    pub fn store(&self) -> String {
        self.store.get().map(hex).unwrap_or_default()
    }

    /// Bytes of log that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        of_store(&self.etcd, self.node, &self.store(), rest)
    }

    /// What must hold for anything to be written.
    fn lives(&self) -> Vec<Compare> {
        if planted("log-not-fenced") { Vec::new() } else { vec![self.etcd.lives(self.node, self.life)] }
    }

    /// Waits, as the engine's threads do, which are no threads of a runtime.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ReplicaError>> + Send + 'static,
    ) -> Result<T, ReplicaError> {
        let (done, is_done) = mpsc::channel();
        self.runtime.spawn(async move { _ = done.send(work.await) });
        is_done.recv().unwrap_or_else(|_| Err(ReplicaError::Unavailable("the program ends".into())))
    }

    /// Does what is asked for if nobody has taken over and the head has a value, or is missing. Else, where it is.
    async fn if_head(
        etcd: &Etcd,
        (node, life): (Node, Incarnation),
        txn: TxnRequest,
        head_key: &[u8],
    ) -> Result<Option<u64>, ReplicaError> {
        let unavailable = |error: KeepError| ReplicaError::Unavailable(error.to_string());
        for _ in 0..READS {
            let answer = etcd.txn(&txn).await.map_err(unavailable)?;
            if answer.succeeded {
                return Ok(None);
            }
            let mut found = answer.responses.into_iter().map(|response| match response.response {
                Some(response_op::Response::ResponseRange(range)) => value(range),
                _ => None,
            });
            let (epoch, head) = (found.next().flatten(), found.next().flatten());
            if epoch.is_some_and(|epoch| epoch != life.0.to_be_bytes()) {
                let why = format!("node {} lives another life, here or on another machine", node.0);
                return Err(ReplicaError::Refused(why));
            }
            if let Some(lsn) = head.as_deref().and_then(head_of) {
                return Ok(Some(lsn));
            }
        }
        Err(ReplicaError::Unavailable(damaged(head_key, "end of a log", Vec::new()).to_string()))
    }

    /// It is this store's log from now on, and of it nothing is needed before a position: a dump has that, durably.
    pub fn settle(&self, lsn: u64) -> Result<(), ReplicaError> {
        let (etcd, node, lives, store) = (self.etcd.clone(), self.node, self.lives(), self.store());
        let bytes = self.wait(async move {
            let unavailable = |error: KeepError| ReplicaError::Unavailable(error.to_string());
            let parts = of_store(&etcd, node, &store, "part/");
            let end = behind(&parts);
            let range = RangeRequest {
                key: parts.clone(),
                range_end: end.clone(),
                keys_only: true,
                ..Default::default()
            };
            let found = etcd.range(range).await.map_err(unavailable)?;
            let kept = |kv: &&KeyValue| place(&kv.key).is_some_and(|(_, to, _)| to > lsn);
            let first = found.kvs.iter().find(kept).map_or_else(|| end.clone(), |kv| kv.key.clone());
            let places = found.kvs.iter().filter(kept).filter_map(|kv| place(&kv.key));
            let bytes = places.map(|(from, to, _)| to - from).sum();
            let (all, own) = (of_node(&etcd, node), of_store(&etcd, node, &store, ""));
            let success = vec![
                put(named(&etcd, node), sealed(store.as_bytes())),
                delete(all.clone(), own.clone()),
                delete(behind(&own), behind(&all)),
                delete(parts, first),
            ];
            let txn = TxnRequest { compare: lives, success, failure: Vec::new() };
            match etcd.txn(&txn).await.map_err(unavailable)?.succeeded {
                true => Ok(bytes),
                false => Err(ReplicaError::Refused("the node lives another life".into())),
            }
        });
        self.bytes.store(bytes?, Ordering::Relaxed);
        Ok(())
    }
}

impl Replica for NodeLog {
    fn begin(&self, store: Id, end: u64) -> Result<u64, ReplicaError> {
        self.store.set(store).map_err(|_| ReplicaError::Refused("it is of one store".into()))?;
        let head_key = self.key("head");
        let absent = Compare {
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Create as i32,
            key: head_key.clone(),
            target_union: Some(compare::TargetUnion::CreateRevision(0)),
        };
        let txn = TxnRequest {
            compare: self.lives().into_iter().chain([absent]).collect(),
            success: vec![put(head_key.clone(), head(end))],
            failure: vec![get(self.etcd.epoch_key(self.node)), get(head_key.clone())],
        };
        let (etcd, of) = (self.etcd.clone(), (self.node, self.life));
        let there = self.wait(async move { NodeLog::if_head(&etcd, of, txn, &head_key).await })?;
        Ok(there.unwrap_or(end))
    }

    fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError> {
        let (from, to, head_key) = (part.from, part.to, self.key("head"));
        let pieces: Vec<(Vec<u8>, Vec<u8>)> = part
            .bytes
            .chunks(PIECE)
            .enumerate()
            .map(|(number, piece)| {
                (self.key(&format!("part/{from:016x}-{to:016x}/{number:08}")), sealed(piece))
            })
            .collect();
        let lives = self.lives();
        let (etcd, of) = (self.etcd.clone(), (self.node, self.life));
        let there = self.wait(async move {
            let count = pieces.len();
            for (number, (key, piece)) in pieces.into_iter().enumerate() {
                let mut success = vec![put(key, piece)];
                if number + 1 == count || planted("head-before-pieces") {
                    success.push(put(head_key.clone(), head(to)));
                }
                let at = equal(head_key.clone(), head(from));
                let txn = TxnRequest {
                    compare: lives
                        .iter()
                        .cloned()
                        .chain((!planted("log-head-not-compared")).then_some(at))
                        .collect(),
                    success,
                    failure: vec![get(etcd.epoch_key(of.0)), get(head_key.clone())],
                };
                // One whose answer was lost.
                if let Some(there) = NodeLog::if_head(&etcd, of, txn, &head_key).await? {
                    return Ok(there);
                }
            }
            Ok(to)
        })?;
        self.bytes.fetch_add(there.saturating_sub(from), Ordering::Relaxed);
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::members::{Members, MembersError};
    use caliburn_engine::{Class, DumpOptions, Mode, Options, RestoreOptions, Store};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const NODE: Node = Node(7);

    fn started(dir: &Path) -> Option<(Members, Etcd)> {
        match Members::start(1, dir.join("etcd")) {
            Ok(members) => {
                let addresses = members.addresses();
                let etcd = Etcd::new(addresses.iter().map(String::as_str), "test").unwrap();
                Some((members, etcd))
            }
            Err(error @ MembersError::NotInstalled) => {
                println!("not run: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn living(etcd: &Etcd) -> NodeLog {
        let life = etcd.begin_life(NODE, Incarnation(0)).await.unwrap();
        NodeLog::new(etcd.clone(), NODE, life)
    }

    /// Off the runtime's threads, as the engine calls.
    async fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        tokio::task::spawn_blocking(act).await.unwrap()
    }

    fn part(from: u64, to: u64) -> ReplicaPart {
        ReplicaPart { from, to, name: String::new(), bytes: vec![1; 100] }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_part_is_kept_once_and_by_who_lives() {
        let dir = tempfile::tempdir().unwrap();
        let Some((_members, etcd)) = started(dir.path()) else { return };
        let one = Arc::new(living(&etcd).await);
        let log = one.clone();
        aside(move || {
            assert_eq!(log.begin([1; 16], 100), Ok(100));
            assert_eq!(log.append(&part(100, 200)), Ok(200));
            // Its answer was lost, and more has come.
            assert_eq!(log.append(&part(100, 300)), Ok(200));
            assert_eq!(log.append(&part(200, 300)), Ok(300));
            // One that was on its way for long.
            assert_eq!(log.append(&part(100, 200)), Ok(300));
            log.settle(200).unwrap();
            assert_eq!(log.bytes(), 100);
        })
        .await;
        assert_eq!(store_of(&etcd, NODE).await.unwrap().unwrap(), "01".repeat(16));
        let two = Arc::new(living(&etcd).await);
        let (log, other) = (two.clone(), living(&etcd).await);
        aside(move || {
            for old in [&one, &log] {
                assert!(matches!(old.append(&part(300, 400)), Err(ReplicaError::Refused(_))));
                assert!(matches!(old.settle(300), Err(ReplicaError::Refused(_))));
            }
            assert_eq!(other.begin([1; 16], 999), Ok(300));
            assert_eq!(other.append(&part(300, 400)), Ok(400));
        })
        .await;
    }

    /// Loses the answer to each other part.
    #[derive(Debug)]
    struct Losing(NodeLog, AtomicBool);

    impl Replica for Losing {
        fn begin(&self, store: Id, end: u64) -> Result<u64, ReplicaError> {
            self.0.begin(store, end)
        }

        fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError> {
            let there = self.0.append(part)?;
            match self.1.fetch_xor(true, Ordering::Relaxed) {
                true => Ok(there),
                false => Err(ReplicaError::Unavailable("its answer was lost".into())),
            }
        }
    }

    /// Parts of several pieces, and answers that are lost: the store is made again of them.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_is_made_again_of_its_parts() {
        let dir = tempfile::tempdir().unwrap();
        let Some((_members, etcd)) = started(dir.path()) else { return };
        let losing = Losing(living(&etcd).await, AtomicBool::new(false));
        let (path, parts, to) = (dir.path().join("s"), dir.path().join("parts"), dir.path().join("to"));
        let (dump, name) = aside(move || {
            let store = Store::options().create(true).replica(Arc::new(losing)).open(&path).unwrap();
            let region = store.create_segment("data", 2 << 20).unwrap().map_all().unwrap();
            let mut dump = Vec::new();
            store.dump(&DumpOptions::new(), &mut dump).unwrap();
            for number in 1..=6u8 {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.write(&region, 0, &vec![number; 300_000 * usize::from(number)]).unwrap();
                tx.commit(Class::Quorum).unwrap();
            }
            drop(region);
            store.close().unwrap();
            (dump, caliburn_engine::info(&path).unwrap().id)
        })
        .await;
        std::fs::create_dir(&parts).unwrap();
        let mut count = 0;
        let fetched = each_part(&etcd, NODE, &name, |name, bytes| {
            count += 1;
            std::fs::write(parts.join(name), bytes)
        });
        fetched.await.unwrap().unwrap();
        assert!(count >= 6, "{count}");
        aside(move || {
            let mut how = RestoreOptions::new();
            how.archive(parts);
            Options::new().restore(&mut &dump[..], &how, &to).unwrap();
            let store = Store::open(&to).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            assert_eq!(
                (region.load::<u8>(0), region.load::<u8>(1_799_999), region.load::<u8>(1_800_000)),
                (6, 6, 0)
            );
        })
        .await;
        // A piece that is damaged in all members.
        let key = of_store(&etcd, NODE, &name, "part/0000000000000000-0000000000000001/00000000");
        let txn = TxnRequest { success: vec![put(key, vec![0; 8])], ..TxnRequest::default() };
        assert!(etcd.txn(&txn).await.unwrap().succeeded);
        let error = each_part(&etcd, NODE, &name, |_, _| Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("piece of a log") && error.contains("0000000000000001"), "{error}");
    }
}
