//! A way to an address that can be cut, as a network between two machines can: for tests, and for the demonstration.
//!
//! ```text
//!   node 1 --> link --> node 2        cut: what is sent is held up, and so is what would connect, or end;
//!                                     whole: all of it goes on, as what TCP sends again
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A way to an address. It ends when all of its clones are dropped.
#[derive(Debug, Clone)]
pub struct Link {
    address: SocketAddr,
    whole: Arc<watch::Sender<bool>>,
}

impl Link {
    /// One that is whole, with an address of its own on loopback.
    ///
    /// # Errors
    /// When loopback has no address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn to(target: SocketAddr) -> io::Result<Link> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (listener, address) = (TcpListener::from_std(listener.try_clone()?)?, listener.local_addr()?);
        let whole = Arc::new(watch::Sender::new(true));
        let state = whole.subscribe();
        let mut alive = whole.subscribe();
        tokio::spawn(async move {
            let accepting = async {
                loop {
                    let Ok((from, _)) = listener.accept().await else { continue };
                    tokio::spawn(carry(from, target, state.clone()));
                }
            };
            tokio::select! {
                () = accepting => {}
                // Fails when nobody has the link any more.
                () = async { while alive.changed().await.is_ok() {} } => {}
            }
        });
        Ok(Link { address, whole })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it, or makes it whole.
    pub fn set_whole(&self, whole: bool) {
        self.whole.send_replace(whole);
    }
}

/// A connection.
async fn carry(from: TcpStream, target: SocketAddr, mut whole: watch::Receiver<bool>) {
    if whole.wait_for(|whole| *whole).await.is_err() {
        return;
    }
    let Ok(to) = TcpStream::connect(target).await else { return };
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    let ((from, back), (there, to)) = (from.into_split(), to.into_split());
    tokio::join!(pump(from, to, whole.clone()), pump(there, back, whole));
}

/// One of its directions.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut whole: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        // Also its end.
        if whole.wait_for(|whole| *whole).await.is_err() || read == 0 {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn what_is_sent_while_it_is_cut_comes_when_it_is_whole() {
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::to(there.local_addr().unwrap()).unwrap();
        let mut here = TcpStream::connect(link.address()).await.unwrap();
        let (mut come, _) = there.accept().await.unwrap();
        let mut bytes = [0; 2];
        here.write_all(b"ab").await.unwrap();
        come.read_exact(&mut bytes).await.unwrap();
        link.set_whole(false);
        here.write_all(b"cd").await.unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(100), come.read_exact(&mut bytes)).await;
        assert!(nothing.is_err());
        link.set_whole(true);
        come.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"cd");
        drop(here);
        assert_eq!(come.read(&mut bytes).await.unwrap(), 0);
    }
}
