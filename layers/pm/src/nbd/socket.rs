//! Connections, and who listens for them.

use caliburn_os::descriptors::above;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::fmt;
use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system, which only its owner may connect to.
    Unix(PathBuf),
    /// A port of this machine's loopback.
    Loopback(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Address::Loopback(address) => write!(f, "nbd://{address}"),
        }
    }
}

#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    /// Listens; the address has the port that was found.
    pub fn bind(address: &Address) -> io::Result<(Listener, Address)> {
        match address {
            Address::Unix(path) => {
                let left = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
                let answered = above(|| UnixStream::connect(path)).map_err(|error| error.kind());
                if left && matches!(answered, Err(io::ErrorKind::ConnectionRefused)) {
                    // Of a server that was killed.
                    fs::remove_file(path)?;
                }
                let listener = above(|| UnixListener::bind(path))?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok((Listener::Unix(listener, path.clone()), address.clone()))
            }
            Address::Loopback(socket) if !socket.ip().is_loopback() => {
                let text = format!(
                    "{socket} is not on this machine's loopback; NBD knows neither users nor secrets"
                );
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            Address::Loopback(socket) => {
                let listener = above(|| TcpListener::bind(socket))?;
                let address = Address::Loopback(listener.local_addr()?);
                Ok((Listener::Tcp(listener), address))
            }
        }
    }

    /// Waits for a connection, or to be woken.
    pub fn accept(&self, woken: &Woken) -> io::Result<Option<Socket>> {
        let own = match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let mut events = [PollFd::new(&own, PollFlags::IN), PollFd::new(&woken.0, PollFlags::IN)];
        poll(&mut events, None)?;
        if !events[1].revents().is_empty() {
            return Ok(None);
        }
        Ok(Some(match self {
            Listener::Unix(listener, _) => Socket::Unix(above(|| Ok(listener.accept()?.0))?),
            Listener::Tcp(listener) => {
                let stream = above(|| Ok(listener.accept()?.0))?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        }))
    }
}

/// What wakes who waits for connections.
#[derive(Debug)]
pub(super) struct Woken(OwnedFd);

impl Woken {
    pub fn new() -> io::Result<Woken> {
        Ok(Woken(above(|| Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))?))
    }

    pub fn wake(&self) {
        // It is woken already if this fails.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
        })
    }

    fn set_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(time).and(stream.set_write_timeout(time)),
            Socket::Tcp(stream) => stream.set_read_timeout(time).and(stream.set_write_timeout(time)),
        }
    }

    /// Nothing more is read from it.
    pub fn end(&self) {
        self.shut(Shutdown::Read);
    }

    /// Nothing more is written to it either.
    pub fn end_at_once(&self) {
        self.shut(Shutdown::Both);
    }

    fn shut(&self, how: Shutdown) {
        // It may have ended itself.
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Tcp(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write_vectored(parts),
            Socket::Tcp(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that has until a moment to get somewhere, however many bytes come one by one.
pub(super) struct Hurried {
    socket: Socket,
    until: Option<Instant>,
}

impl Hurried {
    pub fn new(socket: Socket, time: Option<Duration>) -> Hurried {
        Hurried { socket, until: time.map(|time| Instant::now() + time) }
    }

    /// It has got there.
    pub fn into_inner(self) -> io::Result<Socket> {
        if self.until.is_some() {
            self.socket.set_timeout(None)?;
        }
        Ok(self.socket)
    }

    fn hurry(&self) -> io::Result<()> {
        let Some(until) = self.until else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client has not agreed on an export in time",
            ));
        }
        self.socket.set_timeout(Some(left))
    }
}

impl Read for Hurried {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.socket.read(buffer)
    }
}

impl Write for Hurried {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
