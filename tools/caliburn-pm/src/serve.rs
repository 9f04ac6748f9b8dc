//! `pm serve`: a segment of blocks as a disk for other systems.

use crate::pm::Segment;
use caliburn_pm::nbd::{Address, Device, Server};
use caliburn_pm::{BlockCounts, Blocks, Export, Mounted, Region};
use caliburn_tools::Failure;
use clap::Args;
use serde_json::json;
use std::fmt::Display;
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Place {
    /// On a socket in the file system.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// On an address of this machine's loopback, as 127.0.0.1:10809.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// As a block device of this machine, as /dev/nbd0, with the kernel's module nbd.
    #[arg(long)]
    device: Option<PathBuf>,
    /// As a file in this directory, called as the segment, through FUSE; losetup makes a block device of it.
    #[arg(long)]
    mount: Option<PathBuf>,
}

/// Connections of a device, which are served side by side.
const CONNECTIONS: usize = 4;

#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    segment: Segment,
    #[command(flatten)]
    place: Place,
    /// Writes of whole blocks, up to a mebibyte, happen wholly or not at all; else block by block.
    #[arg(long)]
    at_once: bool,
    /// Let nobody write.
    #[arg(long)]
    read_only: bool,
    /// Print what was done as JSON, at SIGUSR1 and in the end.
    #[arg(long)]
    json: bool,
}

pub fn serve(how: &Serve) -> Result<(), Failure> {
    let region = match how.read_only {
        true => Region::open_to_read(&how.segment.region)?,
        false => Region::open(&how.segment.region)?,
    };
    let name = how.segment.name.clone();
    let blocks = Arc::new(region).attach_blocks(&name, !how.read_only)?;
    let blocks = Arc::new(blocks);
    let _told = when_asked(Arc::downgrade(&blocks), how.json)?;
    let export = Export { name, blocks, at_once: how.at_once };
    let export = match &how.place {
        Place { device: Some(path), .. } => {
            let failed = |error| format!("{} cannot be the segment: {error}", path.display());
            let device = Device::new(path, export, CONNECTIONS).map_err(failed)?;
            let end = device.disconnect();
            let _runtime = when_interrupted(move || _ = end.disconnect())?;
            device.run(|| say(&path.display())).map_err(failed)?
        }
        Place { mount: Some(dir), .. } => {
            let file = dir.join(&export.name);
            let failed = |error| format!("{} cannot be mounted on: {error}", dir.display());
            let mounted = Mounted::new(dir, export).map_err(failed)?;
            let end = mounted.unmount();
            let _runtime = when_interrupted(move || {
                if let Err(error) = end.unmount() {
                    eprintln!("it is served further, since it cannot be unmounted: {error}");
                }
            })?;
            say(&file.display());
            mounted.run().map_err(failed)?
        }
        Place { socket: Some(path), .. } => listen(&Address::Unix(path.clone()), export)?,
        Place { listen: Some(socket), .. } => listen(&Address::Loopback(*socket), export)?,
        _ => unreachable!("one of them is required"),
    };
    tell(&export.blocks.counts(), how.json);
    if export.blocks.is_writable() {
        export.blocks.flush()?;
    }
    Ok(())
}

/// Where it is served. Who does not listen any more need not know.
fn say(place: &dyn Display) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{place}").and_then(|()| out.flush());
}

/// What was done with a segment that is served.
fn tell(counts: &BlockCounts, json: bool) {
    let BlockCounts { reads, writes, transactions, flushes, damaged, undone, free, .. } = *counts;
    if json {
        eprintln!(
            "{}",
            json!({
                "reads": reads, "writes": writes, "transactions": transactions, "flushes": flushes, "damaged": damaged,
                "undone": undone, "free_places": free,
            })
        );
    } else {
        eprintln!(
            "{reads} blocks read, {writes} written, {transactions} transactions, {flushes} flushes; {damaged} reads found \
             a block damaged, {undone} blocks were undone"
        );
    }
}

/// Tells at each SIGUSR1, as long as what is returned is there.
fn when_asked(blocks: Weak<Blocks>, json: bool) -> Result<Runtime, Failure> {
    let runtime = runtime()?;
    let mut asked = {
        let _inside = runtime.enter();
        signal(SignalKind::user_defined1())?
    };
    runtime.spawn(async move {
        while asked.recv().await.is_some()
            && let Some(blocks) = blocks.upgrade()
        {
            tell(&blocks.counts(), json);
        }
    });
    Ok(runtime)
}

fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Serves at an address until interrupted.
fn listen(address: &Address, export: Export) -> Result<Export, Failure> {
    let server =
        Server::bind(address, export).map_err(|error| format!("cannot listen at {address}: {error}"))?;
    let stop = server.stop();
    let _runtime = when_interrupted(move || stop.stop())?;
    say(server.address());
    Ok(server.run()?)
}

/// Does something at each SIGINT and SIGTERM from now on, as long as what is returned is there.
fn when_interrupted(mut act: impl FnMut() + Send + 'static) -> Result<Runtime, Failure> {
    let runtime = runtime()?;
    // Before anybody is told that there is something to end.
    let [mut interrupt, mut terminate] = {
        let _inside = runtime.enter();
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]
    };
    runtime.spawn(async move {
        loop {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
            act();
        }
    });
    Ok(runtime)
}
