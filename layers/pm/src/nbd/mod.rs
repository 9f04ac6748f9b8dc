//! A segment of blocks as a disk for other systems: an NBD server (the protocol is the Network Block Device
//! project's `proto.md`), on a Unix socket or on this machine's loopback. Any file system and any database runs on
//! it, unchanged.
//!
//! Requests of one connection are served one after the other, those of several side by side. A reply to a write, a
//! trim or a flush says that it lasts: a write where memory is mapped; where the medium must be forced, a flush, or
//! a write with FUA.
//!
//! | module | noun |
//! |---|---|
//! | `wire` | what is said, byte by byte, checked where it is read |
//! | `negotiation` | how a client and a server agree on an export |
//! | `requests` | reads, writes, flushes, trims |
//! | `socket` | connections, and who listens for them |
//! | `device` | a block device of this machine |

mod device;
mod negotiation;
mod requests;
mod socket;
mod wire;

use crate::export::Export;
use caliburn_os::simulated::{planted, unless};
pub use device::{Device, Disconnect};
pub use socket::Address;
use socket::{Listener, Socket, Woken};
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
}

#[derive(Debug)]
struct Shared {
    export: Export,
    stopped: AtomicBool,
    next: AtomicU64,
    /// By number: those that came first have the smaller ones.
    connections: Mutex<HashMap<u64, Connection>>,
    /// How long a client may take to agree on the export.
    negotiation: Duration,
    /// Connections that were closed so that others could come, and when that was told last.
    pushed_out: Mutex<(u64, Option<Instant>)>,
    address: Address,
    /// Woken when it is stopped.
    woken: Woken,
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// On the export: it is served.
    agreed: bool,
}

/// Stops a server, from another thread.
#[derive(Debug, Clone)]
pub struct Stop(Weak<Shared>);

impl Server {
    /// Listens, and serves nobody yet.
    ///
    /// # Errors
    /// Where something else listens there, or the address is not one of this machine's loopback: the protocol knows
    /// neither users nor secrets.
    pub fn bind(address: &Address, export: Export) -> io::Result<Server> {
        let (listener, address) = Listener::bind(address)?;
        let (stopped, next, connections) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
        let (woken, negotiation, pushed_out) = (Woken::new()?, NEGOTIATION, Mutex::default());
        let shared = Shared { export, stopped, next, connections, negotiation, pushed_out, address, woken };
        Ok(Server { shared: Arc::new(shared), listener })
    }

    /// How long a client may take to agree on the export, before it is served: 10 s unless told.
    pub fn negotiation(mut self, time: Duration) -> Server {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody stops it yet");
        shared.negotiation = time;
        self
    }

    /// Where it listens: with the port that was found, if none was asked for.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// What stops it.
    pub fn stop(&self) -> Stop {
        Stop(Arc::downgrade(&self.shared))
    }

    /// Serves until it is stopped, and gives the export back: nobody uses it any more.
    pub fn run(self) -> io::Result<Export> {
        let Server { mut shared, listener } = self;
        let ended = std::thread::scope(|scope| {
            while !shared.stopped.load(Ordering::SeqCst) {
                match listener.accept(&shared.woken) {
                    Ok(Some(socket)) => {
                        if let Err(error) = shared.admit(scope, socket) {
                            // Too many threads, or descriptors: those who are here are served.
                            tracing::warn!(%error, "a connection cannot be served");
                        }
                    }
                    Ok(None) => {}
                    // A client that is gone already, or for a moment too little of everything.
                    Err(error) if is_passing(&error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        std::thread::sleep(PAUSE);
                    }
                    Err(error) => {
                        shared.end_connections();
                        return Err(error);
                    }
                }
            }
            Ok(())
        });
        drop(listener);
        ended?;
        loop {
            match Arc::try_unwrap(shared) {
                Ok(shared) => return Ok(shared.export),
                // Who has stopped it is about to let go of it.
                Err(still) => shared = still,
            }
            std::thread::yield_now();
        }
    }
}

/// Most connections at a time that are served.
const CONNECTIONS: usize = 64;
/// Most that have not agreed on the export: of more, the oldest is closed.
const NEGOTIATING: usize = 16;
/// So long may a client take to agree.
const NEGOTIATION: Duration = Duration::from_secs(10);
/// So often it is told at most that connections were closed.
const TELL: Duration = Duration::from_secs(60);
/// Until somebody else is accepted after there was too little of something.
const PAUSE: Duration = Duration::from_millis(50);
/// So long has a client that the server tells to go to take its answers.
const GRACE: Duration = Duration::from_secs(2);

/// Whether others may be accepted later.
fn is_passing(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ECONNABORTED, libc::EINTR];
    error.raw_os_error().is_some_and(|number| short.contains(&number))
}

/// Whether one more can be served.
fn is_room(connections: &HashMap<u64, Connection>) -> io::Result<()> {
    match connections.values().filter(|connection| connection.agreed).count() >= CONNECTIONS {
        true => Err(io::Error::other(format!("there are {CONNECTIONS} already"))),
        false => Ok(()),
    }
}

impl Shared {
    /// Serves a connection in a thread of its own.
    fn admit<'s>(self: &'s Arc<Self>, scope: &'s Scope<'s, '_>, socket: Socket) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut connections = self.connections.lock().expect("no panic under this lock");
            is_room(&connections)?;
            let others = connections.iter().filter(|(_, other)| !other.agreed).map(|(number, _)| *number);
            let others: Vec<u64> = others.collect();
            if unless("silent-clients-stay", others.len() >= NEGOTIATING)
                && let Some(oldest) = others.iter().min().and_then(|oldest| connections.remove(oldest))
            {
                oldest.socket.end_at_once();
                self.has_pushed_out();
            }
            connections.insert(number, Connection { socket: socket.try_clone()?, agreed: false });
        }
        let gone = move |shared: &Shared| {
            shared.connections.lock().expect("no panic under this lock").remove(&number);
        };
        let serve = move || {
            let time = if planted("negotiations-wait-for-ever") { None } else { Some(self.negotiation) };
            if let Err(error) = requests::serve(&self.export, socket, time, || self.agree(number)) {
                tracing::warn!(connection = number, %error, "a connection has ended");
            }
            gone(self);
        };
        if self.stopped.load(Ordering::SeqCst) {
            gone(self);
            return Ok(());
        }
        std::thread::Builder::new().spawn_scoped(scope, serve).map(drop).inspect_err(|_| gone(self))
    }

    /// A client is to be served from now on, if there is room.
    fn agree(&self, number: u64) -> io::Result<()> {
        let mut connections = self.connections.lock().expect("no panic under this lock");
        is_room(&connections)?;
        let own = connections.get_mut(&number);
        own.ok_or_else(|| io::Error::other("it was closed so that others could come"))?.agreed = true;
        Ok(())
    }

    /// Says so now and then.
    fn has_pushed_out(&self) {
        let mut pushed_out = self.pushed_out.lock().expect("no panic under this lock");
        pushed_out.0 += 1;
        if pushed_out.1.is_none_or(|told| told.elapsed() >= TELL) {
            let closed = std::mem::take(&mut pushed_out.0);
            pushed_out.1 = Some(Instant::now());
            tracing::warn!(
                closed,
                "more than {NEGOTIATING} connections had not agreed on the export: the oldest were closed"
            );
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.woken.wake();
        self.end_connections();
    }

    /// Requests that are under way end; a client that does not take its answers goes without.
    fn end_connections(&self) {
        let each = |end: fn(&Socket)| {
            let connections = self.connections.lock().expect("no panic under this lock");
            connections.values().for_each(|connection| end(&connection.socket));
            connections.is_empty()
        };
        let begun = Instant::now();
        while !each(Socket::end) && begun.elapsed() < GRACE {
            std::thread::sleep(PAUSE / 10);
        }
        each(Socket::end_at_once);
    }
}

/// Serves one client, on a socket that somebody else has accepted, until it goes. An error: it did not go as it
/// should.
pub fn serve(export: &Export, client: UnixStream) -> io::Result<()> {
    requests::serve(export, Socket::Unix(client), None, || Ok(()))
}

impl Stop {
    /// Has the server serve nobody any more; requests that are under way end.
    pub fn stop(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.stop();
        }
    }
}
