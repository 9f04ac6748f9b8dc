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

use crate::blocks::Blocks;
pub use device::{Device, Disconnect};
pub use socket::Address;
use socket::{Listener, Socket};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// What a server shows.
#[derive(Debug)]
pub struct Export {
    /// Under which name; a client that asks for none gets it, too.
    pub name: String,
    /// The blocks.
    pub blocks: Blocks,
    /// Writes of up to a mebibyte happen wholly or not at all; others block by block.
    pub at_once: bool,
}

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
        Ok(Server { shared: Arc::new(Shared { export, stopped, next, connections, address }), listener })
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
        std::thread::scope(|scope| {
            loop {
                let socket = match listener.accept() {
                    Ok(socket) => socket,
                    Err(_) if shared.stopped.load(Ordering::SeqCst) => return Ok(()),
                    // A client that is gone already, or too many of them: others may be served.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(error) => {
                        shared.stop();
                        return Err(error);
                    }
                };
                let Some(number) = shared.admit(&socket)? else { return Ok(()) };
                let shared = &shared;
                scope.spawn(move || {
                    if let Err(error) = requests::serve(&shared.export, socket) {
                        tracing::warn!(connection = number, %error, "a connection has ended");
                    }
                    shared.connections.lock().expect("no panic under this lock").remove(&number);
                });
            }
        })?;
        drop(listener);
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

impl Shared {
    /// Notes a connection, to end it when the server stops; none if it has.
    fn admit(&self, socket: &Socket) -> io::Result<Option<u64>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections.lock().expect("no panic under this lock");
        connections.insert(number, socket.try_clone()?);
        Ok((!self.stopped.load(Ordering::SeqCst)).then_some(number))
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let connections = self.connections.lock().expect("no panic under this lock");
        connections.values().for_each(Socket::end);
        drop(connections);
        socket::wake(&self.address);
    }
}

impl Stop {
    /// Has the server serve nobody any more; requests that are under way end.
    pub fn stop(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.stop();
        }
    }
}
