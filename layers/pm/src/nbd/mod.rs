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
    connections: Mutex<HashMap<u64, Socket>>,
    address: Address,
    /// Woken when it is stopped.
    woken: Woken,
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
        let woken = Woken::new()?;
        Ok(Server {
            shared: Arc::new(Shared { export, stopped, next, connections, address, woken }),
            listener,
        })
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

/// Most connections at a time.
const CONNECTIONS: usize = 64;
/// Until somebody else is accepted after there was too little of something.
const PAUSE: Duration = Duration::from_millis(50);
/// So long has a client that the server tells to go to take its answers.
const GRACE: Duration = Duration::from_secs(2);

/// Whether others may be accepted later.
fn is_passing(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ECONNABORTED, libc::EINTR];
    error.raw_os_error().is_some_and(|number| short.contains(&number))
}

impl Shared {
    /// Serves a connection in a thread of its own.
    fn admit<'s>(self: &'s Arc<Self>, scope: &'s Scope<'s, '_>, socket: Socket) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut connections = self.connections.lock().expect("no panic under this lock");
            if connections.len() == CONNECTIONS {
                return Err(io::Error::other(format!("there are {CONNECTIONS} already")));
            }
            connections.insert(number, socket.try_clone()?);
        }
        let gone = move |shared: &Shared| {
            shared.connections.lock().expect("no panic under this lock").remove(&number);
        };
        let serve = move || {
            if let Err(error) = requests::serve(&self.export, socket) {
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

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.woken.wake();
        self.end_connections();
    }

    /// Requests that are under way end; a client that does not take its answers goes without.
    fn end_connections(&self) {
        let each = |end: fn(&Socket)| {
            let connections = self.connections.lock().expect("no panic under this lock");
            connections.values().for_each(end);
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
    requests::serve(export, Socket::Unix(client))
}

impl Stop {
    /// Has the server serve nobody any more; requests that are under way end.
    pub fn stop(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.stop();
        }
    }
}
