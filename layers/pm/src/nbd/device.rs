//! An export as a block device of this machine, `/dev/nbd0`, without a program between.

use super::negotiation;
use super::requests::transmit;
use super::socket::Socket;
use crate::export::Export;
use caliburn_os::descriptors;
use caliburn_os::nbd_device::NbdDevice;
use caliburn_os::page_size;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two looks whether the device can be used.
const PAUSE: Duration = Duration::from_millis(2);

/// An export that is a block device.
#[derive(Debug)]
pub struct Device {
    device: Arc<NbdDevice>,
    sockets: Vec<Socket>,
    export: Export,
}

/// Ends the device, from another thread. Whoever has it open, or mounted, sees errors from then on.
#[derive(Debug, Clone)]
pub struct Disconnect(Weak<NbdDevice>);

impl Device {
    /// Makes an export the block device at a path, with so many connections that are served side by side. Nobody can
    /// read from it before [`Device::run`].
    pub fn new(path: &Path, export: Export, connections: usize) -> io::Result<Device> {
        let device = Arc::new(NbdDevice::open(path)?);
        let block = (export.blocks.block_bytes()).min(page_size());
        let blocks = export.blocks.bytes() / block as u64;
        device.describe(block as u32, blocks, negotiation::flags(&export))?;
        let mut sockets = Vec::new();
        for _ in 0..connections.max(1) {
            descriptors::occupy();
            let (ours, kernels) = UnixStream::pair()?;
            device.add(kernels.as_fd())?;
            sockets.push(Socket::Unix(ours));
        }
        Ok(Device { device, sockets, export })
    }

    /// What ends it.
    pub fn disconnect(&self) -> Disconnect {
        Disconnect(Arc::downgrade(&self.device))
    }

    /// Serves it until it is disconnected, and gives the export back. `ready` is called when the device can be used.
    pub fn run(self, ready: impl FnOnce() + Send) -> io::Result<Export> {
        let Device { device, sockets, export } = self;
        let has_ended = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            // Nothing of the kernel's says so: it has its length then.
            scope.spawn(|| {
                while !has_ended.load(Ordering::SeqCst) {
                    match device.is_running() {
                        Ok(false) => std::thread::sleep(PAUSE),
                        Ok(true) => return ready(),
                        Err(error) => {
                            return tracing::warn!(%error, "it is not known when the device can be used");
                        }
                    }
                }
            });
            for socket in sockets {
                let export = &export;
                scope.spawn(move || {
                    if let Err(error) = transmit(export, socket) {
                        tracing::warn!(%error, "a connection of the device has ended");
                    }
                });
            }
            let ended = device.run();
            has_ended.store(true, Ordering::SeqCst);
            ended
        });
        ended.map(|()| export)
    }
}

impl Disconnect {
    /// Ends the device.
    pub fn disconnect(&self) -> io::Result<()> {
        self.0.upgrade().map_or(Ok(()), |device| device.disconnect())
    }
}
