//! Clients of the NBD server that send what they like. Nothing panics or waits for ever, no block is damaged, and
//! where the client keeps to the protocol, the answers are those of a disk.
//!
//! The first byte of the input chooses: what follows are bytes as they come, or requests, eight bytes each (kind and
//! flags, a quarter of a block's number twice, a length, a seed), some of them with a wrong header.
#![no_main]

use caliburn_pm::nbd::serve;
use caliburn_pm::{Export, Region, RegionOptions, SegmentKind, SegmentOptions};
use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

const BLOCK: usize = 512;
const LEN: usize = 64 * BLOCK;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

fn export() -> Export {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let options = RegionOptions { len: Some(4 << 20), ..RegionOptions::default() };
    let region = Arc::new(Region::create(dir.path().join("region"), &options).expect("a region"));
    let kind = SegmentKind::Blocks { block_bytes: BLOCK as u32 };
    let options = SegmentOptions { kind, ..SegmentOptions::default() };
    region.create_segment("disk", LEN as u64, &options, |_| {}).expect("a segment");
    let blocks = region.attach_blocks("disk", true).expect("nobody else has it");
    Export { name: "disk".into(), blocks: Arc::new(blocks), at_once: true }
}

/// What the server answers to a client that sends this, and goes.
fn answers(export: &Export, sent: &[u8]) -> Vec<u8> {
    let (mut client, server) = UnixStream::pair().expect("sockets");
    let mut listens = client.try_clone().expect("descriptors");
    let heard = std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = listens.read_to_end(&mut all);
        all
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The server may have gone already.
            let _ = client.write_all(sent).and_then(|()| client.shutdown(Shutdown::Write));
        });
        let _ = serve(export, server);
    });
    heard.join().expect("it listens to the end")
}

/// Asks for the export without a name.
fn greeting() -> Vec<u8> {
    [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat()
}

/// Bytes of the server's greeting, and of the export's.
const GREETED: usize = 18 + 10;

struct Request {
    kind: u16,
    flags: u16,
    offset: u64,
    len: u32,
    seed: u8,
}

impl Request {
    fn of(bytes: &[u8; 8]) -> Request {
        let [kind, flags, block, quarter, low, high, seed, odd] = *bytes;
        let kind = [READ, WRITE, FLUSH, TRIM, ZEROES, u16::from(kind)][usize::from(kind) % 6];
        let mut offset = u64::from(block % 80) * BLOCK as u64 + u64::from(quarter % 4) * 128;
        let mut len = (u32::from(low) | u32::from(high) << 8) % 4096;
        match odd {
            1 => offset = u64::MAX - u64::from(len),
            2 => len = u32::MAX,
            3 => len = 0,
            _ => {}
        }
        if kind == FLUSH {
            (offset, len) = (0, 0);
        }
        Request { kind, flags: u16::from(flags % 4), offset, len, seed }
    }

    /// The bytes of a write.
    fn bytes(&self) -> Vec<u8> {
        (0..self.len.min(4096)).map(|i| self.seed.wrapping_add((i / 7) as u8)).collect()
    }

    fn send(&self, cookie: u64, to: &mut Vec<u8>) {
        to.extend(0x2560_9513u32.to_be_bytes());
        to.extend(self.flags.to_be_bytes());
        to.extend(self.kind.to_be_bytes());
        to.extend(cookie.to_be_bytes());
        to.extend(self.offset.to_be_bytes());
        to.extend(self.len.to_be_bytes());
        if self.kind == WRITE {
            to.extend(self.bytes());
        }
    }

    fn is_within(&self) -> bool {
        self.offset.checked_add(u64::from(self.len)).is_some_and(|end| end <= LEN as u64)
    }

    /// Whether it keeps to the protocol.
    fn is_sound(&self) -> bool {
        let may = if self.kind == ZEROES { 3 } else { 1 };
        [READ, WRITE, FLUSH, TRIM, ZEROES].contains(&self.kind) && self.flags & !may == 0 && self.is_within()
    }

    /// Whether the server may end the connection at it: it wants to end, or what follows cannot be told.
    fn may_end(&self) -> bool {
        self.kind == DISCONNECT || self.len == u32::MAX
    }
}

/// Requests are sent, and the answers compared with a disk's.
fn client(export: &Export, input: &[u8]) {
    let requests: Vec<Request> =
        input.chunks_exact(8).map(|chunk| Request::of(chunk.try_into().expect("eight"))).collect();
    let mut sent = greeting();
    requests.iter().zip(0..).for_each(|(request, cookie)| request.send(cookie, &mut sent));
    let mut model = vec![0; LEN];
    export.blocks.clear(0..export.blocks.len()).expect("the disk is sound");
    let heard = answers(export, &sent);
    let mut rest = heard.get(GREETED..).expect("the server greets");
    for (cookie, request) in requests.iter().enumerate() {
        if request.may_end() {
            break;
        }
        let (reply, after) = rest.split_at_checked(16).expect("a request without an answer");
        rest = after;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(reply[8..], (cookie as u64).to_be_bytes(), "another request's answer");
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four"));
        assert_eq!(
            error == 0,
            request.is_sound(),
            "kind {}, {} bytes at {}: {error}",
            request.kind,
            request.len,
            request.offset
        );
        if error != 0 {
            continue;
        }
        let range = request.offset as usize..request.offset as usize + request.len as usize;
        match request.kind {
            READ => {
                let (found, after) = rest.split_at(range.len());
                assert!(found == &model[range], "what was read is not what was written");
                rest = after;
            }
            WRITE => model[range].copy_from_slice(&request.bytes()),
            TRIM | ZEROES => model[range].fill(0),
            FLUSH => {}
            other => panic!("kind {other} was done"),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    static EXPORT: OnceLock<Export> = OnceLock::new();
    let export = EXPORT.get_or_init(export);
    let Some((first, rest)) = input.split_first() else { return };
    match first % 4 {
        0 => drop(answers(export, rest)),
        1 => drop(answers(export, &[&greeting(), rest].concat())),
        _ => client(export, rest),
    }
    assert!(export.blocks.scrub(0..export.blocks.len()).expect("the disk is sound").is_empty());
});
