//! Connections, and who listens for them.

use std::fmt;
use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

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
                if left && UnixStream::connect(path).is_err() {
                    // Of a server that was killed.
                    fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
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
                let listener = TcpListener::bind(socket)?;
                let address = Address::Loopback(listener.local_addr()?);
                Ok((Listener::Tcp(listener), address))
            }
        }
    }

    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener, _) => Ok(Socket::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Connects, so that a server that waits for somebody looks whether it was stopped.
pub(super) fn wake(address: &Address) {
    let _ = match address {
        Address::Unix(path) => UnixStream::connect(path).map(drop),
        Address::Loopback(socket) => TcpStream::connect(socket).map(drop),
    };
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
        })
    }

    /// Nothing more is read from it.
    pub fn end(&self) {
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Read),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Read),
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
