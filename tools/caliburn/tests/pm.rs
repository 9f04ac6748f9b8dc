//! Memory that outlives the system, by the command: made, cut, looked at, served, and killed while it is served.

#[path = "../../../layers/pm/tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use support::{Client, FLUSH};

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caliburn")).arg("pm").args(arguments).output().unwrap()
}

#[track_caller]
fn done(arguments: &[&str]) -> String {
    let output = caliburn(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let output = caliburn(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_region_is_made_cut_and_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let (region, file) = (path.to_str().unwrap(), dir.path().join("file"));
    let file = file.to_str().unwrap();
    assert!(refused(&["create", region]).contains("how many bytes"));
    assert!(refused(&["list", region]).contains("No such file"));
    done(&["create", region, "--bytes", "16M"]);
    done(&["add", region, "disk", "4M", "--blocks", "4096"]);
    done(&["add", region, "memory", "100000", "--mode", "640", "--address", "0x300000000000"]);
    let text = done(&["list", region]);
    assert!(text.contains("blocks of 4096, mode 600") && text.contains("bytes, mode 640"), "{text}");
    let listed = json(&done(&["list", region, "--json"]));
    assert_eq!(listed["segments"][1]["name"], "memory");
    assert_eq!(listed["segments"][1]["address"], 0x3000_0000_0000_u64);
    assert_eq!(listed["segments"][0]["block_bytes"], 4096);
    let content: Vec<u8> = (0..100_000u32).map(|i| (i / 7) as u8).collect();
    for name in ["disk", "memory"] {
        std::fs::write(file, &content).unwrap();
        done(&["restore", region, name, file]);
        done(&["dump", region, name, file]);
        assert!(std::fs::read(file).unwrap()[..content.len()] == content, "{name}");
    }
    done(&["protect", region, "memory"]);
    assert!(refused(&["restore", region, "memory", file]).contains("is protected"));
    assert!(refused(&["destroy", region, "memory"]).contains("is protected"));
    done(&["protect", region, "memory", "--off"]);
    done(&["resize", region, "memory", "200000"]);
    done(&["own", region, "memory", "--mode", "600"]);
    done(&["destroy", region, "memory"]);
    done(&["grow", region, "32M"]);
    assert!(refused(&["shrink", region, "1M"]).contains("\"disk\" lies up to"));
    done(&["shrink", region, "16M"]);
    assert!(done(&["check", region]).contains("clean"));
    assert!(refused(&["serve", region, "disk", "--listen", "0.0.0.0:0"]).contains("loopback"));
    // What is there stays until something else is.
    assert!(refused(&["dump", region, "disk", region]).contains("is the region itself"));
    std::fs::write(file, "old").unwrap();
    let socket = dir.path().join("socket");
    let server = Server::start(&path, &socket);
    assert!(refused(&["dump", region, "disk", file]).contains("is attached"));
    let looked = caliburn(&["check", region]);
    assert_eq!(looked.status.code(), Some(2), "{looked:?}");
    server.kill();
    assert_eq!(std::fs::read(file).unwrap(), b"old");
    std::fs::write(file, vec![1; 5 << 20]).unwrap();
    assert!(refused(&["restore", region, "disk", file]).contains("has 5242880 bytes"));
    // A bit of a block that is in use.
    let mut bytes = std::fs::read(&path).unwrap();
    let at =
        (1 << 20..bytes.len() - 4096).find(|at| bytes[*at..at + 4096] == content[40_960..45_056]).unwrap();
    bytes[at + 100] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let checked = caliburn(&["check", region, "--json"]);
    assert_eq!(checked.status.code(), Some(1));
    let checked = json(std::str::from_utf8(&checked.stdout).unwrap());
    assert_eq!(
        (&checked["clean"], &checked["segments"][0]["damaged"]),
        (&false.into(), &serde_json::json!([10]))
    );
    assert!(refused(&["dump", region, "disk", file]).contains("block 10 of segment \"disk\" is damaged"));
    assert_eq!(caliburn(&["scrub", region]).status.code(), Some(1));
}

struct Server(Child);

impl Server {
    fn start(region: &Path, socket: &Path) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_caliburn"))
            .args([
                "pm",
                "serve",
                region.to_str().unwrap(),
                "disk",
                "--at-once",
                "--socket",
                socket.to_str().unwrap(),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("nbd+unix://"), "{line}");
        Server(process)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const BLOCK: usize = 4096;
/// Blocks of each client.
const BLOCKS: usize = 40;
/// Blocks that are written at once.
const GROUP: usize = 4;

/// What a client knows of its blocks: the number that was acknowledged last, and the one that was under way.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    begun: u64,
}

fn content(number: u64, block: usize) -> Vec<u8> {
    if number == 0 { vec![0; BLOCK] } else { (number << 8 | block as u64).to_le_bytes().repeat(BLOCK / 8) }
}

/// Writes groups of its blocks at random until the server is gone.
fn work(socket: &Path, client: usize, seed: u64, known: &Mutex<Vec<Known>>) {
    let Ok(mut connection) = Client::connect(socket) else { return };
    let mut random = seed | 1;
    for number in seed.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let group = random as usize % (BLOCKS / GROUP);
        let first = client * BLOCKS + group * GROUP;
        known.lock().unwrap()[group].begun = number;
        let bytes: Vec<u8> = (first..first + GROUP).flat_map(|block| content(number, block)).collect();
        let flush = number % 64 == 0;
        let written = connection.write((first * BLOCK) as u64, &bytes, u16::from(flush));
        let Ok(0) = written else { return };
        known.lock().unwrap()[group].acknowledged = number;
        if number % 100 == 0 && connection.ask(FLUSH, 0, 0, 0).is_err() {
            return;
        }
    }
}

#[test]
fn a_killed_server_has_what_it_acknowledged_and_no_part_of_a_write() {
    let kills: u64 = std::env::var("CALIBURN_KILLS").map_or(20, |text| text.parse().unwrap());
    // In memory, where a write lasts at once, and on a disk's file.
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let (path, socket) = (dir.path().join("region"), dir.path().join("socket"));
        let region = path.to_str().unwrap();
        done(&["create", region, "--bytes", "16M"]);
        done(&["add", region, "disk", "1M", "--blocks", "4096"]);
        let known: Vec<Mutex<Vec<Known>>> =
            (0..3).map(|_| Mutex::new(vec![Known::default(); BLOCKS / GROUP])).collect();
        let mut writes = 0;
        for kill in 0..kills {
            let server = Server::start(&path, &socket);
            std::thread::scope(|scope| {
                for (client, known) in known.iter().enumerate() {
                    let socket = &socket;
                    scope.spawn(move || work(socket, client, (kill + 1) * 1_000_000, known));
                }
                // Long enough for some writes, and never at the same moment of one.
                std::thread::sleep(std::time::Duration::from_micros(20_000 + kill * 1777 % 9000));
                server.kill();
            });
            let server = Server::start(&path, &socket);
            let mut connection = Client::connect(&socket).unwrap();
            for (client, known) in known.iter().enumerate() {
                for (group, known) in known.lock().unwrap().iter_mut().enumerate() {
                    let first = client * BLOCKS + group * GROUP;
                    let found = connection.read((first * BLOCK) as u64, GROUP * BLOCK).unwrap();
                    let shows = |number: u64| {
                        let blocks = first..first + GROUP;
                        found == blocks.flat_map(|block| content(number, block)).collect::<Vec<u8>>()
                    };
                    writes += u64::from(known.acknowledged > kill * 1_000_000);
                    assert!(
                        shows(known.acknowledged) || shows(known.begun),
                        "kill {kill}, blocks from {first}: neither {} nor {}",
                        known.acknowledged,
                        known.begun
                    );
                    known.acknowledged = if shows(known.begun) { known.begun } else { known.acknowledged };
                }
            }
            drop(connection);
            server.kill();
        }
        assert!(writes > kills, "only {writes} groups were written");
        assert!(done(&["check", region]).contains("clean"));
    }
}
