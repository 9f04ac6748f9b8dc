//! A segment of blocks, served as a disk.

mod support;

use caliburn_pm::nbd::{Address, Server, Stop};
use caliburn_pm::{Export, Region, RegionOptions, SegmentKind, SegmentOptions};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use support::{Client, FLUSH, FUA, READ, TRIM, WRITE, ZEROES};

const LEN: u64 = 1 << 20;

struct Served {
    socket: PathBuf,
    stop: Stop,
    running: Option<JoinHandle<Export>>,
    region: PathBuf,
    _dir: tempfile::TempDir,
}

fn region(path: &Path) -> Arc<Region> {
    let options = RegionOptions { len: Some(8 << 20), ..RegionOptions::default() };
    let region = Region::create(path, &options).unwrap();
    let kind = SegmentKind::Blocks { block_bytes: 4096 };
    region
        .create_segment("disk", LEN, &SegmentOptions { kind, ..SegmentOptions::default() }, |_| {})
        .unwrap();
    Arc::new(region)
}

fn served(write: bool) -> Served {
    served_in(write, Duration::from_secs(10))
}

/// Clients have so long to agree on the export.
fn served_in(write: bool, time: Duration) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().join("region"), dir.path().join("socket"));
    let blocks = region(&path).attach_blocks("disk", write).unwrap();
    let export = Export { name: "disk".into(), blocks: Arc::new(blocks), at_once: true };
    let server = Server::bind(&Address::Unix(socket.clone()), export).unwrap().negotiation(time);
    let stop = server.stop();
    let running = Some(std::thread::spawn(move || server.run().unwrap()));
    Served { socket, stop, running, region: path, _dir: dir }
}

impl Served {
    fn end(&mut self) -> Option<Export> {
        self.stop.stop();
        self.running.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn what_a_client_writes_is_there_for_others_and_afterwards() {
    let mut served = served(true);
    let mut one = Client::connect(&served.socket).unwrap();
    // Flags: flush, FUA, trim, zeros, several connections.
    assert_eq!((one.len, one.flags), (LEN, 1 | 4 | 8 | 32 | 64 | 256));
    let mut two = Client::connect(&served.socket).unwrap();
    let bytes: Vec<u8> = (0..50_000).map(|i| (i / 9) as u8).collect();
    assert_eq!(one.write(1000, &bytes, FUA).unwrap(), 0);
    assert!(two.read(1000, 50_000).unwrap() == bytes);
    assert_eq!(two.ask(ZEROES, 0, 5000, 10_000).unwrap(), 0);
    assert_eq!(two.ask(TRIM, 0, 40_000, 5000).unwrap(), 0);
    assert_eq!(two.ask(FLUSH, 0, 0, 0).unwrap(), 0);
    let mut expected = [vec![0; 1000], bytes, vec![0; 1000]].concat();
    expected[5000..15_000].fill(0);
    expected[40_000..45_000].fill(0);
    assert!(one.read(0, 52_000).unwrap() == expected);
    assert_eq!(one.ask(READ, 0, 0, 0).unwrap(), 0);
    drop((one, two));
    let export = served.end().unwrap();
    assert!(export.blocks.counts().flushes >= 2);
    drop(export);
    assert!(!served.socket.exists(), "the socket goes with the server");
    let region = Arc::new(Region::open(&served.region).unwrap());
    assert!(!region.segment("disk").unwrap().writing);
    let mut found = vec![0; 52_000];
    region.attach_blocks("disk", false).unwrap().read_bytes(0, &mut found).unwrap();
    assert!(found == expected);
}

#[test]
fn requests_that_cannot_be_are_refused_and_the_connection_goes_on() {
    let served = served(true);
    let mut client = Client::connect(&served.socket).unwrap();
    let (einval, enospc) = (22, 28);
    for (offset, len) in [(LEN, 1u32), (LEN - 1, 2), (u64::MAX, 2), (1 << 63, 4096)] {
        assert_eq!(client.ask(READ, 0, offset, len).unwrap(), einval);
        assert_eq!(client.ask(TRIM, 0, offset, len).unwrap(), enospc);
        assert_eq!(client.write(offset, &vec![1; len as usize], 0).unwrap(), enospc);
    }
    assert_eq!(client.ask(77, 0, 0, 0).unwrap(), einval);
    assert_eq!(client.ask(FLUSH, 0x80, 0, 0).unwrap(), einval);
    assert_eq!(client.write(0, &[1; 4096], 0x80).unwrap(), einval);
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096]);
    // What is longer than was offered is no request any more.
    let header = client.header(WRITE, 0, 0, (32 << 20) + 1);
    client.stream.write_all(&header).unwrap();
    assert!(client.answer().is_err());
    Client::connect(&served.socket).unwrap().read(0, 10).unwrap();
}

#[test]
fn nobody_writes_to_what_is_served_to_be_read() {
    let served = served(false);
    let mut client = Client::connect(&served.socket).unwrap();
    assert_eq!(client.flags, 1 | 2 | 256);
    assert_eq!(client.write(0, &[1; 4096], 0).unwrap(), 1);
    assert_eq!(client.ask(TRIM, 0, 0, 4096).unwrap(), 1);
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096]);
}

#[test]
fn a_client_that_vanishes_in_a_write_has_written_nothing() {
    let served = served(true);
    for sent in [0, 1, 27, 28, 29, 5000, 28 + 8191] {
        let mut client = Client::connect(&served.socket).unwrap();
        let request = [client.header(WRITE, 0, 0, 8192), vec![7; 8192]].concat();
        client.stream.write_all(&request[..sent]).unwrap();
        drop(client);
        assert!(Client::connect(&served.socket).unwrap().read(0, 8192).unwrap() == [0; 8192]);
    }
}

#[test]
fn an_address_is_one_server_s_and_a_dead_one_s_is_taken_over() {
    let served = served(true);
    let dir = tempfile::tempdir().unwrap();
    let export = |name: &str| {
        let blocks = region(&dir.path().join(name)).attach_blocks("disk", true).unwrap();
        Export { name: "other".into(), blocks: Arc::new(blocks), at_once: false }
    };
    let taken = Server::bind(&Address::Unix(served.socket.clone()), export("a")).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let left = dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    Server::bind(&Address::Unix(left), export("b")).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "somebody's").unwrap();
    Server::bind(&Address::Unix(file.clone()), export("c")).unwrap_err();
    assert_eq!(std::fs::read(&file).unwrap(), b"somebody's");
    let outside = Server::bind(&Address::Loopback("0.0.0.0:0".parse().unwrap()), export("d")).unwrap_err();
    assert!(outside.to_string().contains("loopback"), "{outside}");
    let found = Server::bind(&Address::Loopback("127.0.0.1:0".parse().unwrap()), export("e")).unwrap();
    assert!(matches!(found.address(), Address::Loopback(address) if address.port() != 0));
}

/// What a client may send: from the very beginning, or after it has agreed on the export.
fn sent() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let option = (any::<u32>(), 0u32..30, prop::collection::vec(any::<u8>(), 0..40)).prop_map(
        |(len, option, data)| {
            let len = if len % 3 == 0 { len } else { data.len() as u32 };
            [&b"IHAVEOPT"[..], &option.to_be_bytes(), &len.to_be_bytes(), &data].concat()
        },
    );
    let request =
        (any::<u16>(), 0u16..9, any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(flags, kind, offset, len, data)| {
                let (offset, len) =
                    if len % 3 == 0 { (offset, len) } else { (offset % (2 * LEN), len % 10_000) };
                let head: [&[u8]; 6] = [
                    &0x2560_9513u32.to_be_bytes(),
                    &(flags & 3).to_be_bytes(),
                    &kind.to_be_bytes(),
                    &7u64.to_be_bytes(),
                    &offset.to_be_bytes(),
                    &len.to_be_bytes(),
                ];
                [&head.concat()[..], &data].concat()
            });
    let garbage = prop::collection::vec(any::<u8>(), 0..100);
    prop_oneof![
        garbage.clone().prop_map(|bytes| (false, bytes)),
        prop::collection::vec(option, 1..4)
            .prop_map(|all| (false, [&3u32.to_be_bytes()[..], &all.concat()].concat())),
        prop::collection::vec(request, 1..4).prop_map(|all| (true, all.concat())),
        garbage.prop_map(|bytes| (true, bytes)),
    ]
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let served = served(true);
    proptest!(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }, |((agreed, bytes) in sent())| {
        let mut stream = match agreed {
            true => Client::connect(&served.socket).unwrap().stream,
            false => UnixStream::connect(&served.socket).unwrap(),
        };
        // The server may have ended it before all was sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        Client::connect(&served.socket).unwrap().read(0, 4096).unwrap();
    });
}

#[test]
fn a_server_is_stopped_whatever_its_clients_do_and_what_becomes_of_its_socket() {
    let mut served = served(true);
    let mut deaf = Client::connect(&served.socket).unwrap();
    for _ in 0..64 {
        let request = deaf.header(READ, 0, 0, LEN as u32);
        deaf.stream.write_all(&request).unwrap();
    }
    let mut silent = Client::connect(&served.socket).unwrap();
    let begun = silent.header(WRITE, 0, 0, 32 << 20);
    silent.stream.write_all(&begun).unwrap();
    std::fs::remove_file(&served.socket).unwrap();
    served.end().expect("it ends");
}

#[test]
fn a_client_too_many_is_turned_away_and_another_one_served_later() {
    let served = served(true);
    let mut clients: Vec<Client> = (0..64).map(|_| Client::connect(&served.socket).unwrap()).collect();
    assert!(Client::connect(&served.socket).is_err());
    clients[63].read(0, 10).unwrap();
    clients.pop();
    let mut tries = 0;
    while Client::connect(&served.socket).is_err() {
        tries += 1;
        assert!(tries < 1000, "nobody is served any more");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Whether the server has closed it. What it said in the beginning is read.
fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn come_to(open: usize, all: &[UnixStream]) {
    let begun = std::time::Instant::now();
    while all.iter().filter(|stream| !is_closed(stream)).count() > open {
        assert!(begun.elapsed() < Duration::from_secs(10), "they stay open");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let served = served(true);
    let mut working = Client::connect(&served.socket).unwrap();
    let silent: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&served.socket).unwrap()).collect();
    let mut late = Client::connect(&served.socket).unwrap();
    assert_eq!(late.write(0, &[7; 4096], 0).unwrap(), 0);
    assert_eq!(working.read(0, 4096).unwrap(), [7; 4096]);
    come_to(16, &silent);
}

#[test]
fn a_client_that_agrees_on_nothing_is_closed_after_a_while() {
    let served = served_in(true, Duration::from_millis(150));
    let mut working = Client::connect(&served.socket).unwrap();
    let silent: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&served.socket).unwrap()).collect();
    // A byte now and then is no reason to wait any longer.
    let slow = UnixStream::connect(&served.socket).unwrap();
    let begun = std::time::Instant::now();
    while !is_closed(&slow) && begun.elapsed() < Duration::from_secs(10) {
        let _ = (&slow).write(&[0]);
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(is_closed(&slow));
    come_to(0, &silent);
    assert_eq!(working.read(0, 4096).unwrap(), [0; 4096], "one that is served may say nothing for long");
}
