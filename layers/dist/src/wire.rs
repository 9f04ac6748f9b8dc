//! Words as they travel: into the messages of `proto/caliburn.proto`, and back. What comes is checked here, once.

use crate::chase::LONGEST;
use crate::commit::word::{Message, Node, Outcome, Participants, Stay, Vote};
use crate::id::{News, Path, Tid};
use crate::letter::{Brief, Letter, Word};
use crate::proto::caliburn as proto;
use crate::proto::caliburn::letter::Word as ProtoWord;
use crate::scope::Report;
use caliburn_nest::Timestamp;
use caliburn_os::simulated::planted;
use prost::Message as _;
use std::collections::BTreeMap;
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::metadata::{MetadataMap, MetadataValue};

/// The version of the protocol that this is.
pub const VERSION: u32 = 1;

/// The version that must be known to understand what there has been from the first on, which is all: a message that
/// has something later in it says so instead, and no other.
pub const NEEDS: u32 = 1;

/// # Errors
/// `FAILED_PRECONDITION` when a message says what this version does not know.
pub(crate) fn is_known(needs: u32) -> Result<(), Status> {
    match needs {
        0..=VERSION => Ok(()),
        _ if planted("versions-not-compared") => Ok(()),
        _ => Err(Status::failed_precondition(format!(
            "the peer speaks version {needs} of the protocol, and this node none after {VERSION}: update it first"
        ))),
    }
}

/// Where a context, or a report, is in a call's metadata.
pub const KEY: &str = "caliburn-bin";

/// What travels with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Nodes of one cluster call each other.
    pub cluster: String,
    /// The transaction.
    pub tid: Tid,
    /// The call's place in its family.
    pub path: Path,
    /// What the node must hear before it begins.
    pub news: News,
    /// Milliseconds until nobody waits for it any more.
    pub remaining: u64,
    /// The family has called before, this node or another.
    pub again: bool,
    /// What other nodes have not heard.
    pub untold: BTreeMap<Node, News>,
    /// Milliseconds until the family has ended, if nothing is heard of it.
    pub family: u64,
    /// The last timestamp that its caller has heard of.
    pub clock: Timestamp,
}

fn wrong(what: &str) -> Status {
    Status::invalid_argument(format!("{what}: the peer is of another version, or its message is damaged"))
}

/// An identity that came.
pub(crate) fn tid(bytes: &[u8]) -> Result<Tid, Status> {
    Tid::from_bytes(bytes).ok_or_else(|| wrong("no identity of a transaction"))
}

pub(crate) fn outcome_to(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::Committed => proto::Outcome::Committed as i32,
        Outcome::Aborted => proto::Outcome::Aborted as i32,
    }
}

pub(crate) fn outcome_from(outcome: i32) -> Result<Outcome, Status> {
    match proto::Outcome::try_from(outcome) {
        Ok(proto::Outcome::Committed) => Ok(Outcome::Committed),
        Ok(proto::Outcome::Aborted) => Ok(Outcome::Aborted),
        _ => Err(wrong("no outcome")),
    }
}

/// Transactions may be nested so deep, calls counted.
pub const DEEPEST: usize = 64;

fn path_from(path: Vec<u32>) -> Result<Path, Status> {
    match path.len() {
        0..=DEEPEST => Ok(Path(path)),
        deep => Err(Status::invalid_argument(format!("a transaction {deep} deep; {DEEPEST} is the deepest"))),
    }
}

pub(crate) fn news_to(news: &News) -> Vec<proto::News> {
    let one = |(path, outcome): &(Path, Outcome)| proto::News {
        path: path.0.clone(),
        outcome: outcome_to(*outcome),
    };
    news.iter().map(one).collect()
}

pub(crate) fn news_from(news: Vec<proto::News>) -> Result<News, Status> {
    news.into_iter().map(|one| Ok((path_from(one.path)?, outcome_from(one.outcome)?))).collect()
}

fn untold_to(untold: &BTreeMap<Node, News>) -> Vec<proto::Untold> {
    untold.iter().map(|(node, news)| proto::Untold { node: node.0, news: news_to(news) }).collect()
}

fn untold_from(untold: Vec<proto::Untold>) -> Result<BTreeMap<Node, News>, Status> {
    untold.into_iter().map(|one| Ok((Node(one.node), news_from(one.news)?))).collect()
}

fn participants_to(participants: &Participants) -> Vec<proto::Participant> {
    participants.iter().map(|(node, stay)| proto::Participant { node: node.0, stay: stay.0 }).collect()
}

/// Nodes that one transaction may name: more than can take part in one.
const NODES: usize = 1024;

fn participants_from(participants: Vec<proto::Participant>) -> Result<Participants, Status> {
    is_few(participants.len())?;
    Ok(participants.into_iter().map(|one| (Node(one.node), Stay(one.stay))).collect())
}

/// What comes from outside must not take the memory of a node.
fn is_few(nodes: usize) -> Result<(), Status> {
    match nodes <= NODES {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "a transaction at {nodes} nodes, where {NODES} are the most"
        ))),
    }
}

/// Letters that travel together: not so many bytes that the other end refuses them.
pub(crate) fn batches(letters: impl Iterator<Item = Letter>) -> Vec<Vec<proto::Letter>> {
    const BYTES: usize = 1 << 20;
    let (mut all, mut bytes) = (vec![Vec::new()], 0);
    for letter in letters {
        let letter = letter_to(&letter);
        bytes += letter.encoded_len();
        if bytes > BYTES {
            all.push(Vec::new());
            bytes = letter.encoded_len();
        }
        all.last_mut().expect("there is one").push(letter);
    }
    all
}

/// A letter, without whose it is.
pub(crate) fn letter_to(letter: &Letter) -> proto::Letter {
    let plain = |word: proto::Word| ProtoWord::Plain(word as i32);
    let word = match &letter.word {
        Word::Commit(Message::Prepare(participants), Brief { news, at }) => {
            ProtoWord::Prepare(proto::Prepare {
                participants: participants_to(participants),
                news: news_to(news),
                at: at.0,
            })
        }
        Word::Commit(Message::Vote(vote), _) => ProtoWord::Vote(match vote {
            Vote::Yes => proto::Vote::Yes as i32,
            Vote::No => proto::Vote::No as i32,
            Vote::ReadOnly => proto::Vote::ReadOnly as i32,
        }),
        Word::Commit(Message::Outcome(outcome), _) => ProtoWord::Outcome(outcome_to(*outcome)),
        Word::Commit(Message::Ack, _) => plain(proto::Word::Ack),
        Word::Commit(Message::Inquiry, _) => plain(proto::Word::Inquiry),
        Word::Probe => plain(proto::Word::Probe),
        Word::Lives => plain(proto::Word::Lives),
        Word::Gone => plain(proto::Word::Gone),
        Word::Victim => plain(proto::Word::Victim),
        Word::Chase(chase) => {
            ProtoWord::Chase(proto::Chase { tids: chase.iter().map(|tid| tid.to_bytes().to_vec()).collect() })
        }
    };
    proto::Letter { tid: letter.tid.to_bytes().to_vec(), word: Some(word) }
}

/// A letter that came.
pub(crate) fn letter_from(letter: proto::Letter, from: Node, to: Node) -> Result<Letter, Status> {
    let commit = |message| Word::Commit(message, Brief::default());
    let word = match letter.word.ok_or_else(|| wrong("an empty letter"))? {
        ProtoWord::Prepare(prepare) => {
            let participants = participants_from(prepare.participants)?;
            let brief = Brief { news: news_from(prepare.news)?, at: Timestamp(prepare.at) };
            Word::Commit(Message::Prepare(participants), brief)
        }
        ProtoWord::Vote(vote) => commit(Message::Vote(match proto::Vote::try_from(vote) {
            Ok(proto::Vote::Yes) => Vote::Yes,
            Ok(proto::Vote::No) => Vote::No,
            Ok(proto::Vote::ReadOnly) => Vote::ReadOnly,
            _ => return Err(wrong("no vote")),
        })),
        ProtoWord::Outcome(outcome) => commit(Message::Outcome(outcome_from(outcome)?)),
        ProtoWord::Chase(chase) if chase.tids.len() > LONGEST => {
            return Err(wrong("a chase that is too long"));
        }
        ProtoWord::Chase(chase) => {
            Word::Chase(chase.tids.iter().map(|bytes| tid(bytes)).collect::<Result<_, Status>>()?)
        }
        ProtoWord::Plain(word) => match proto::Word::try_from(word) {
            Ok(proto::Word::Ack) => commit(Message::Ack),
            Ok(proto::Word::Inquiry) => commit(Message::Inquiry),
            Ok(proto::Word::Probe) => Word::Probe,
            Ok(proto::Word::Lives) => Word::Lives,
            Ok(proto::Word::Gone) => Word::Gone,
            Ok(proto::Word::Victim) => Word::Victim,
            _ => return Err(wrong("an unknown word")),
        },
    };
    Ok(Letter { from, to, tid: tid(&letter.tid)?, word })
}

/// A report, as it goes with an answer.
pub(crate) fn report_to(report: &Report) -> proto::Report {
    proto::Report {
        used: participants_to(&report.used),
        touched: report.touched.iter().map(|node| node.0).collect(),
        untold: untold_to(&report.untold),
        clock: report.clock.0,
    }
}

/// A report that came.
pub(crate) fn report_from(report: proto::Report) -> Result<Report, Status> {
    is_few(report.touched.len())?;
    Ok(Report {
        used: participants_from(report.used)?,
        touched: report.touched.into_iter().map(Node).collect(),
        untold: untold_from(report.untold)?,
        clock: Timestamp(report.clock),
    })
}

/// A context, as it goes with a call.
pub(crate) fn context_to(context: &Context) -> MetadataValue<tonic::metadata::Binary> {
    let context = proto::Context {
        cluster: context.cluster.clone(),
        tid: context.tid.to_bytes().to_vec(),
        path: context.path.0.clone(),
        news: news_to(&context.news),
        remaining: context.remaining,
        again: context.again,
        untold: untold_to(&context.untold),
        family: context.family,
        clock: context.clock.0,
        needs: NEEDS,
    };
    MetadataValue::from_bytes(&context.encode_to_vec())
}

/// The context of a call that came; none of one outside of transactions.
pub(crate) fn context_from(metadata: &MetadataMap) -> Result<Option<Context>, Status> {
    let Some(value) = metadata.get_bin(KEY) else { return Ok(None) };
    let bytes = value.to_bytes().map_err(|_| wrong("no context"))?;
    let context = proto::Context::decode(bytes).map_err(|_| wrong("no context"))?;
    is_known(context.needs)?;
    Ok(Some(Context {
        cluster: context.cluster,
        tid: tid(&context.tid)?,
        path: path_from(context.path)?,
        news: news_from(context.news)?,
        remaining: context.remaining,
        again: context.again,
        untold: untold_from(context.untold)?,
        family: context.family,
        clock: Timestamp(context.clock),
    }))
}

/// Puts a report into the metadata of an answer.
pub(crate) fn put_report(metadata: &mut MetadataMap, report: &Report) {
    metadata.insert_bin(KEY, MetadataValue::from_bytes(&report_to(report).encode_to_vec()));
}

/// The report of an answer, if there is one that can be read.
pub(crate) fn take_report(headers: &HeaderMap) -> Option<Report> {
    let metadata = MetadataMap::from_headers(headers.clone());
    let bytes = metadata.get_bin(KEY)?.to_bytes().ok()?;
    report_from(proto::Report::decode(bytes).ok()?).ok()
}
