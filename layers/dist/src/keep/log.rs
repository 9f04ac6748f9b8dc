//! The log of a node's store in etcd (Camelot, section 4.4): what a node is made again of, on another machine.
//!
//! ```text
//!   <cluster>/log-of/<node>                        the store whose log it is
//!   <cluster>/log/<node>/<store>/head              where the log goes on
//!   <cluster>/log/<node>/<store>/part/<from>-<to>-<count>/<number>   one of so many pieces of a part
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
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use tokio::runtime::Handle;

/// Bytes of a piece: etcd takes one and a half mebibytes at a time.
const PIECE: usize = 512 << 10;
/// Pieces that are read at a time, and keys.
const AT_A_TIME: i64 = 4;
const KEYS_AT_A_TIME: i64 = 1000;
/// What a part takes beside its bytes: its key, and what etcd adds.
const BESIDE: u64 = 300;

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
    /// Bytes that etcd holds of it, nearly.
    bytes: AtomicU64,
    /// Nobody waits for etcd any more.
    ends: AtomicBool,
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

/// One of so many pieces of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    from: u64,
    to: u64,
    count: u32,
    number: u32,
}

impl Place {
    fn of(key: &[u8]) -> Option<Place> {
        let key = std::str::from_utf8(key).ok()?;
        let (rest, number) = key.rsplit_once('/')?;
        let mut words = rest.rsplit_once('/')?.1.split('-');
        let mut lsn = || u64::from_str_radix(words.next()?, 16).ok();
        let (from, to) = (lsn()?, lsn()?);
        Some(Place { from, to, count: words.next()?.parse().ok()?, number: number.parse().ok()? })
    }

    fn key(&self) -> String {
        format!("part/{:016x}-{:016x}-{}/{:08}", self.from, self.to, self.count, self.number)
    }

    /// What pieces of one part have in common.
    fn key_of_part(&self) -> (u64, u64, u32) {
        (self.from, self.to, self.count)
    }
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

/// Where the log of a store goes on.
pub(crate) async fn head_of_store(etcd: &Etcd, node: Node, store: &str) -> Result<u64, KeepError> {
    let key = of_store(etcd, node, store, "head");
    for _ in 0..READS {
        let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        if let Some(lsn) = value(etcd.range(range).await?).as_deref().and_then(head_of) {
            return Ok(lsn);
        }
    }
    Err(damaged(&key, "end of a log", Vec::new()))
}

/// Calls `each` with the parts of a store's log that are kept, as files of an archive: names, and bytes. Of an
/// attempt that came to nothing there may be pieces, which are none.
pub(crate) async fn each_part(
    etcd: &Etcd,
    node: Node,
    store: &str,
    mut each: impl FnMut(String, Vec<u8>) -> std::io::Result<()>,
) -> Result<std::io::Result<()>, KeepError> {
    let prefix = of_store(etcd, node, store, "part/");
    let (mut key, range_end, mut tries) = (prefix.clone(), behind(&prefix), 0);
    let mut pieces: Vec<(Place, Vec<u8>)> = Vec::new();
    loop {
        let (from, range_end) = (key.clone(), range_end.clone());
        let found =
            etcd.range(RangeRequest { key: from, range_end, limit: AT_A_TIME, ..Default::default() }).await?;
        let mut again = false;
        for KeyValue { key: of, value, .. } in found.kvs {
            let Some((place, bytes)) = Place::of(&of).zip(unsealed(&value)) else {
                (again, tries) = (true, tries + 1);
                if tries >= READS {
                    return Err(damaged(&of, "piece of a log", value));
                }
                break;
            };
            if place.number as usize != pieces.len()
                || pieces.iter().any(|(of, _)| of.key_of_part() != place.key_of_part())
            {
                pieces.clear();
            }
            if place.number as usize == pieces.len() {
                pieces.push((place, bytes.to_vec()));
            }
            if pieces.len() == place.count as usize {
                let bytes = pieces.drain(..).flat_map(|(_, bytes)| bytes).collect();
                if let Err(error) = each(format!("{:020}-{:020}.log", place.from, place.to), bytes) {
                    return Ok(Err(error));
                }
            }
            key = of.into_iter().chain([0]).collect();
            tries = 0;
        }
        if !again && !found.more {
            return Ok(Ok(()));
        }
    }
}

impl NodeLog {
    /// Of a node in this life.
    pub fn new(etcd: Etcd, node: Node, life: Incarnation) -> NodeLog {
        let runtime = Handle::current();
        let (bytes, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        NodeLog { etcd, node, life, runtime, store: OnceLock::new(), bytes, ends }
    }

    /// The store's identity, when it was opened.
    pub fn store(&self) -> String {
        self.store.get().map(hex).unwrap_or_default()
    }

    /// From now on what can't be written is refused: the node ends, and nobody is to wait until etcd is back.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Bytes that etcd holds of it, nearly.
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
        match is_done.recv().unwrap_or_else(|_| Err(ReplicaError::Refused("the program ends".into()))) {
            Err(ReplicaError::Unavailable(why)) if self.ends.load(Ordering::Acquire) => {
                Err(ReplicaError::Refused(format!("the node ends, and {why}")))
            }
            done => done,
        }
    }

    /// Bytes of the parts that are there from a position on, and the key of the first one that goes beyond it.
    async fn count(etcd: &Etcd, parts: &[u8], lsn: u64) -> Result<(u64, Option<Vec<u8>>), KeepError> {
        let (mut key, range_end, mut bytes, mut first) = (parts.to_vec(), behind(parts), 0, None);
        loop {
            let (from, range_end) = (key.clone(), range_end.clone());
            let keys = RangeRequest { key: from, range_end, limit: KEYS_AT_A_TIME, keys_only: true };
            let found = etcd.range(keys).await?;
            for kv in found.kvs {
                let place = Place::of(&kv.key).filter(|place| place.to > lsn);
                if let Some(Place { from, to, count, .. }) = place {
                    bytes += (to - from) / u64::from(count.max(1)) + BESIDE;
                    first = first.or_else(|| Some(kv.key.clone()));
                }
                key = kv.key.into_iter().chain([0]).collect();
            }
            if !found.more {
                // What is not there yet is not deleted.
                return Ok((bytes, first.or((key != parts).then_some(key))));
            }
        }
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
            let (bytes, first) = NodeLog::count(&etcd, &parts, lsn).await.map_err(unavailable)?;
            let first = if planted("settled-too-much") { Some(behind(&parts)) } else { first };
            let (all, own) = (of_node(&etcd, node), of_store(&etcd, node, &store, ""));
            let success = [
                put(named(&etcd, node), sealed(store.as_bytes())),
                delete(all.clone(), own.clone()),
                delete(behind(&own), behind(&all)),
            ];
            let success = success.into_iter().chain(first.map(|first| delete(parts, first))).collect();
            let txn = TxnRequest { compare: lives, success, failure: Vec::new() };
            match etcd.txn(&txn).await.map_err(unavailable)?.succeeded {
                true => Ok(bytes),
                false => Err(ReplicaError::Refused("the node lives another life".into())),
            }
        });
        // What has come meanwhile is counted when the next dump is made.
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
        let (etcd, of, parts) = (self.etcd.clone(), (self.node, self.life), self.key("part/"));
        let (there, bytes) = self.wait(async move {
            let there = NodeLog::if_head(&etcd, of, txn, &head_key).await?;
            let counted = NodeLog::count(&etcd, &parts, 0).await;
            Ok((there, counted.map_err(|error| ReplicaError::Unavailable(error.to_string()))?.0))
        })?;
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(there.unwrap_or(end))
    }

    fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError> {
        let (from, to, head_key) = (part.from, part.to, self.key("head"));
        let count = part.bytes.len().div_ceil(PIECE) as u32;
        let key = |number| self.key(&Place { from, to, count, number }.key());
        let pieces = (0..).zip(part.bytes.chunks(PIECE)).map(|(number, piece)| (key(number), sealed(piece)));
        let pieces: Vec<(Vec<u8>, Vec<u8>)> = pieces.collect();
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
        self.bytes.fetch_add(part.bytes.len() as u64 + BESIDE, Ordering::Relaxed);
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

    const NODE: Node = Node(7);

    /// One member of etcd, where it is installed.
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

    /// The last piece of a store's log is gone.
    async fn lose_last(etcd: &Etcd, node: Node, store: &str) {
        let parts = of_store(etcd, node, store, "part/");
        let range = RangeRequest { range_end: behind(&parts), key: parts, keys_only: true, limit: 0 };
        let last = etcd.range(range).await.unwrap().kvs.pop().unwrap().key;
        let next = last.iter().copied().chain([0]).collect();
        let txn = TxnRequest { success: vec![delete(last, next)], ..TxnRequest::default() };
        assert!(etcd.txn(&txn).await.unwrap().succeeded);
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
            assert!((100..1000).contains(&log.bytes()), "{}", log.bytes());
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
            // What it has found is counted.
            assert!(other.bytes() > 100);
            assert_eq!(other.append(&part(300, 400)), Ok(400));
            // What comes while all is let go stays.
            for at in (400..8_400).step_by(100) {
                std::thread::scope(|scope| {
                    let settling = scope.spawn(|| other.settle(at).unwrap());
                    assert_eq!(other.append(&part(at, at + 100)), Ok(at + 100));
                    settling.join().unwrap();
                });
                let key = other.key(&Place { from: at, to: at + 100, count: 1, number: 0 }.key());
                let (etcd, range) = (other.etcd.clone(), RangeRequest { key, ..RangeRequest::default() });
                let found = other.wait(async move { Ok(etcd.range(range).await.unwrap().kvs.len()) });
                assert_eq!(found, Ok(1), "the part from {at} on is gone");
            }
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
        let key = of_store(&etcd, NODE, &name, "part/0000000000000000-0000000000000001-1/00000000");
        let txn = TxnRequest { success: vec![put(key, vec![0; 8])], ..TxnRequest::default() };
        assert!(etcd.txn(&txn).await.unwrap().succeeded);
        let error = each_part(&etcd, NODE, &name, |_, _| Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("piece of a log") && error.contains("0000000000000001"), "{error}");
    }

    /// The end of a log that is missing is no end.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_without_its_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let Some((_members, etcd)) = started(dir.path()) else { return };
        let build = |machine: &str| {
            let node =
                crate::node::Node::builder(crate::cluster::Cluster::new("test"), 1, dir.path().join(machine));
            node.keeper(crate::keep::keeper::Keeper::Etcd(etcd.clone())).replicated(dir.path().join("dumps"))
        };
        for _ in 0..2 {
            // What it remembers of its life is the last that is in the log.
            build("a").start().await.unwrap().stop().await;
        }
        let named = store_of(&etcd, Node(1)).await.unwrap().unwrap();
        let end = head_of_store(&etcd, Node(1), &named).await.unwrap();
        lose_last(&etcd, Node(1), &named).await;
        let error = build("b").take_over(true).start().await.unwrap_err().to_string();
        assert!(error.contains("commits are missing") && error.contains(&end.to_string()), "{error}");
        assert_eq!(store_of(&etcd, Node(1)).await.unwrap(), Some(named));
    }
}
