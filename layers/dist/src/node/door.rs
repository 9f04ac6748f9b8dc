//! Connections: those that have proven nothing, and those that have shown a certificate.
//!
//! ```text
//!   accepted --> unproven   few, each for some seconds. Of too many, the oldest of the address
//!      |                    with the most is closed
//!      |
//!      | a certificate of the cluster's; without certificates, the first byte
//!      v
//!   proven                  counted in all, and by owner: a user gets a part, and nodes can use what users can't
//! ```
//!
//! Invariant: a connection that has proven nothing takes no place from one that has. A new connection is always
//! accepted, so a program whose handshake takes less time than a flood needs to fill the places gets through.

use crate::credentials::Peer;
use crate::node::notices::Notices;
use caliburn_os::simulated::{instead, planted, unless};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::transport::server::Connected;

/// How many connections a node has at one time.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// Those that have shown no certificate. Default 256.
    pub unproven: usize,
    /// How long one may take to show it. Default 5 s.
    pub handshake: Duration,
    /// Those that have, in all. Nodes may use all of them, and users three quarters. Default half of the descriptors
    /// that the process may have, at most 16,384.
    pub all: usize,
    /// Those of one node or one user. Default a quarter of all.
    pub of_one: usize,
}

impl Default for Connections {
    fn default() -> Connections {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let all = (descriptors / 2).clamp(64, 16_384) as usize;
        Connections { unproven: (all / 2).min(256), handshake: Duration::from_secs(5), all, of_one: all / 4 }
    }
}

/// As many descriptors as a server needs. Programs that it starts have them too, and some close all that there could
/// be, one by one.
const DESCRIPTORS: u64 = 65_536;

/// Gives the process as many descriptors as it needs, if the system lets it have them. Many systems allow 1,024, and
/// far more to those that ask.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if planted("descriptors-not-raised") || current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        tracing::warn!("the limit of open files stays {current:?}, and could be {wanted}: {error}");
    }
}

/// What connections come from.
pub(crate) trait Listen {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)>;
}

impl Listen for tokio::net::TcpListener {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        tokio::net::TcpListener::accept(self).await
    }
}

/// What a connection has proven: how it goes on, and whose it is.
pub(crate) trait Prove: Clone + Send + Sync + 'static {
    type Io: Send + 'static;

    fn prove(&self, stream: TcpStream) -> impl Future<Output = io::Result<(Self::Io, Whose)>> + Send;
}

/// Whose a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A program's of this machine: there are no certificates.
    Program,
    /// Of a certificate that names nobody of this cluster: each of its calls is refused.
    Stranger,
    Of(Peer),
}

/// Without certificates: the client speaks first.
#[derive(Clone)]
pub(crate) struct Speaks;

impl Prove for Speaks {
    type Io = TcpStream;

    async fn prove(&self, stream: TcpStream) -> io::Result<(TcpStream, Whose)> {
        match stream.peek(&mut [0]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok((stream, Whose::Program)),
        }
    }
}

/// Lets connections in.
#[derive(Clone)]
pub(crate) struct Door(Arc<Inner>);

struct Inner {
    limits: Connections,
    notices: Arc<Notices>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    unproven: BTreeMap<u64, (IpAddr, Option<AbortHandle>)>,
    proven: usize,
    of: HashMap<String, usize>,
    refused: Refused,
    /// When that was told last.
    told: Option<Instant>,
}

/// Connections that were closed, and why, since that was told last.
#[derive(Debug, Default)]
struct Refused {
    pushed_out: u64,
    late: u64,
    too_many: u64,
    short: u64,
}

/// Until other connections are accepted, after the system had too little of something.
const PAUSE: Duration = Duration::from_millis(50);
/// So often it is told at most that connections are refused.
const TELL: Duration = Duration::from_secs(60);

impl Door {
    pub fn new(limits: Connections, notices: Arc<Notices>) -> Door {
        Door(Arc::new(Inner { limits, notices, state: Mutex::default() }))
    }

    /// Accepts until nobody takes what comes in.
    pub async fn run<P: Prove>(&self, listener: impl Listen, by: P, inside: mpsc::Sender<Inside<P::Io>>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = inside.closed() => return,
            };
            match accepted {
                Ok((stream, address)) => self.begin(stream, address, &by, &inside),
                Err(error) if is_of_one(&error) => {}
                // The connection waits in the system's queue, and the error comes again at once.
                Err(error) => {
                    self.make_room(&error);
                    tokio::time::sleep(instead("accept-errors-spin", PAUSE, Duration::ZERO)).await;
                }
            }
        }
    }

    fn begin<P: Prove>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        by: &P,
        inside: &mpsc::Sender<Inside<P::Io>>,
    ) {
        let unproven = self.come(address.ip());
        let (door, by, inside, serial) = (self.clone(), by.clone(), inside.clone(), unproven.serial);
        let task = tokio::spawn(async move {
            _ = stream.set_nodelay(true);
            let proving = by.prove(stream);
            let limit =
                if planted("handshakes-wait-for-ever") { Duration::MAX } else { door.0.limits.handshake };
            let proven = tokio::time::timeout(limit, proving).await;
            drop(unproven);
            match proven {
                Ok(Ok((io, whose))) => {
                    if let Some(place) = door.enter(&whose) {
                        _ = inside.send(Inside { io, _place: place }).await;
                    }
                }
                Ok(Err(error)) => tracing::debug!("a connection of {address} has proven nothing: {error}"),
                Err(_) => door.refuse(address.ip(), |refused| &mut refused.late),
            }
        });
        if let Some(entry) = self.state().unproven.get_mut(&serial) {
            entry.1 = Some(task.abort_handle());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection comes. If there are too many that have proven nothing, one goes.
    fn come(&self, address: IpAddr) -> Unproven {
        let mut state = self.state();
        let serial = state.next;
        state.next += 1;
        let full = state.unproven.len() >= self.0.limits.unproven.max(1);
        let gone = unless("unproven-without-limit", full) && state.push_out();
        state.unproven.insert(serial, (address, None));
        drop(state);
        if gone {
            self.refuse(address, |refused| &mut refused.pushed_out);
        }
        Unproven { door: self.clone(), serial }
    }

    /// The system has too few descriptors, or too little memory.
    fn make_room(&self, error: &io::Error) {
        self.state().push_out();
        tracing::debug!("a connection cannot be accepted: {error}");
        self.refuse(IpAddr::from([0; 16]), |refused| &mut refused.short);
    }

    /// A place for one that has proven whose it is, if there is one.
    fn enter(&self, whose: &Whose) -> Option<Place> {
        let Connections { all, of_one, .. } = self.0.limits;
        let (name, all, of_one) = match whose {
            Whose::Program => (String::new(), all, all),
            Whose::Stranger => ("a certificate of another cluster".to_owned(), all - all / 4, of_one),
            Whose::Of(peer @ Peer::User(_)) => (peer.to_string(), all - all / 4, of_one),
            Whose::Of(peer @ Peer::Node(_)) => (peer.to_string(), all, of_one),
        };
        let mut state = self.state();
        let own = state.of.get(&name).copied().unwrap_or(0);
        if unless("proven-without-limit", state.proven >= all || own >= of_one) {
            drop(state);
            self.refuse_proven(&name);
            return None;
        }
        state.proven += 1;
        *state.of.entry(name.clone()).or_default() += 1;
        Some(Place { door: self.clone(), name })
    }

    fn refuse_proven(&self, name: &str) {
        let name = if name.is_empty() { "programs of this machine" } else { name };
        self.tell(name.to_owned(), |refused| &mut refused.too_many);
    }

    fn refuse(&self, address: IpAddr, which: impl FnOnce(&mut Refused) -> &mut u64) {
        self.tell(address.to_string(), which);
    }

    /// Counts it, and says so now and then.
    fn tell(&self, last: String, which: impl FnOnce(&mut Refused) -> &mut u64) {
        let mut state = self.state();
        *which(&mut state.refused) += 1;
        if state.told.is_some_and(|told| unless("refusals-told-each", told.elapsed() < TELL)) {
            return;
        }
        state.told = Some(Instant::now());
        let Refused { pushed_out, late, too_many, short } = std::mem::take(&mut state.refused);
        drop(state);
        let Connections { unproven, handshake, all, of_one } = self.0.limits;
        self.0.notices.once(format!(
            "connections were closed: {pushed_out} since more than {unproven} had shown no certificate, {late} that had \
             shown none within {handshake:?}, {too_many} beyond {all} in all or {of_one} of one peer; {short} times the \
             system had no descriptor or memory; the last one of {last}"
        ));
    }
}

/// Whether only the connection that was to be accepted is gone.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

impl State {
    /// Closes the oldest of the address that has most of those that have proven nothing. Whether there was one.
    fn push_out(&mut self) -> bool {
        let mut of: HashMap<IpAddr, usize> = HashMap::new();
        self.unproven.values().for_each(|(address, _)| *of.entry(*address).or_default() += 1);
        let Some(most) = of.values().max().copied() else { return false };
        let oldest = self.unproven.iter().find(|(_, (address, _))| of[address] == most);
        let serial = *oldest.expect("an address has them").0;
        if let Some((_, Some(task))) = self.unproven.remove(&serial) {
            task.abort();
        }
        true
    }
}

/// A connection that has proven nothing, until this is dropped.
struct Unproven {
    door: Door,
    serial: u64,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.door.state().unproven.remove(&self.serial);
    }
}

/// The place of one that has.
struct Place {
    door: Door,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.door.state();
        state.proven -= 1;
        if let Some(own) = state.of.get_mut(&self.name) {
            *own -= 1;
            if *own == 0 {
                state.of.remove(&self.name);
            }
        }
    }
}

/// A connection that has proven whose it is.
pub(crate) struct Inside<Io> {
    io: Io,
    _place: Place,
}

impl<Io: Connected> Connected for Inside<Io> {
    type ConnectInfo = Io::ConnectInfo;

    fn connect_info(&self) -> Io::ConnectInfo {
        self.io.connect_info()
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Inside<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Inside<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn door(unproven: usize, all: usize, of_one: usize) -> (Door, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let notices = Notices::new(Some(Box::new(move |text| tell.lock().unwrap().push(text.to_owned()))));
        let limits = Connections { unproven, handshake: Duration::from_millis(50), all, of_one };
        (Door::new(limits, Arc::new(notices)), told)
    }

    /// A process without a free descriptor.
    struct Short(Arc<AtomicUsize>);

    impl Listen for Short {
        async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(io::Error::from_raw_os_error(24))
        }
    }

    #[tokio::test]
    async fn without_descriptors_it_is_asked_now_and_then() {
        let (door, told) = door(4, 8, 8);
        let asked = Arc::new(AtomicUsize::new(0));
        let (inside, _taken) = mpsc::channel(1);
        let run = door.run(Short(asked.clone()), Speaks, inside);
        assert!(tokio::time::timeout(5 * PAUSE, run).await.is_err(), "it goes on");
        let asked = asked.load(Ordering::SeqCst);
        assert!((1..10).contains(&asked), "{asked} times");
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("1 times the system had no descriptor"), "{told:?}");
    }

    #[tokio::test]
    async fn the_address_with_the_most_loses_its_oldest() {
        let (door, told) = door(4, 8, 8);
        let (flood, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = door.come(other);
        let all: Vec<Unproven> = (0..300).map(|_| door.come(flood)).collect();
        let left: Vec<u64> = door.state().unproven.keys().copied().collect();
        assert_eq!(left, [first.serial, 298, 299, 300]);
        assert_eq!(told.lock().unwrap().len(), 1, "it is told now and then");
        drop((all, first));
        assert!(door.state().unproven.is_empty());
    }

    #[tokio::test]
    async fn users_leave_room_for_nodes_and_for_each_other() {
        let (door, told) = door(4, 16, 8);
        let user = |name: &str| door.enter(&Whose::Of(Peer::User(name.into())));
        let alice: Vec<_> = (0..20).filter_map(|_| user("alice")).collect();
        let bob: Vec<_> = (0..20).filter_map(|_| user("bob")).collect();
        assert_eq!((alice.len(), bob.len()), (8, 4));
        let nodes: Vec<_> = (0..20)
            .filter_map(|_| door.enter(&Whose::Of(Peer::Node(crate::commit::word::Node(2)))))
            .collect();
        assert_eq!(nodes.len(), 4);
        assert!(told.lock().unwrap()[0].contains("user \"alice\""), "{told:?}");
        drop(alice);
        assert!(user("bob").is_some());
        assert!(door.enter(&Whose::Program).is_some());
    }
}
