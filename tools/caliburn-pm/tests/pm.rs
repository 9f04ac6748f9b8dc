//! Memory that outlives the system, by the command: made, cut, looked at, served, and killed while it is served.

#[path = "../../../layers/pm/tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use support::{Client, FLUSH};

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caliburn-pm")).args(arguments).output().unwrap()
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
    // What was done so far, and in the end.
    let mut client = Client::connect(&socket).unwrap();
    assert_eq!(client.write(0, &content[..3 * BLOCK], 0).unwrap(), 0);
    let mut server = server;
    let mut told = BufReader::new(server.0.stderr.take().unwrap());
    let mut counts = |signal: &str| {
        let pid = server.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        json(&line)
    };
    assert_eq!(counts("-USR1")["writes"], 3);
    assert_eq!(client.write(0, &content[..BLOCK], 0).unwrap(), 0);
    assert_eq!(counts("-USR1")["writes"], 4);
    assert_eq!(counts("-TERM")["writes"], 4);
    assert!(server.0.wait().unwrap().success());
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

/// `clean` and `reused` are regions of an older program: block 0 of the first is there, that of the second is lost.
#[test]
fn check_names_blocks_that_older_programs_cannot_read() {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat/pm/6d922c4.tar.gz");
    let dir = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(unpacked.success());
    for (name, code, damaged) in [("clean", 0, vec![]), ("killed", 0, vec![]), ("reused", 1, vec![0])] {
        let path = dir.path().join(name);
        let region = path.to_str().unwrap();
        let checked = caliburn(&["check", region, "--json"]);
        assert_eq!(checked.status.code(), Some(code), "{name}");
        let segment = json(std::str::from_utf8(&checked.stdout).unwrap())["segments"][0].clone();
        assert_eq!(
            (&segment["unread_by_older"], &segment["damaged"]),
            (&serde_json::json!([0]), &serde_json::json!(damaged)),
            "{name}"
        );
        let told = String::from_utf8(caliburn(&["check", region]).stdout).unwrap();
        assert!(told.contains("older programs cannot read these blocks, and may lose them: [0]."), "{told}");
    }
}

struct Server(Child);

impl Server {
    fn start(region: &Path, socket: &Path) -> Server {
        Server::start_at(region, "--socket", socket, "nbd+unix://")
    }

    /// At a place of some kind, of which it says when it is there.
    fn start_at(region: &Path, kind: &str, place: &Path, says: &str) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_caliburn-pm"))
            .args(["serve", region.to_str().unwrap(), "disk", "--at-once", "--json", kind])
            .arg(place)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(says), "{line}");
        Server(process)
    }

    /// Ends it as a user would.
    fn interrupt(mut self) {
        let interrupted = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(interrupted.success() && self.0.wait().unwrap().success());
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

/// As `head` does.
#[test]
fn who_reads_no_further_ends_it_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let region = dir.path().join("region").to_str().unwrap().to_owned();
    done(&["create", &region, "--bytes", "4M"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_caliburn-pm"));
    let ended = command.args(["list", &region]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((ended.status.code(), &*String::from_utf8_lossy(&ended.stderr)), (Some(141), ""));
}

fn content(number: u64, block: usize) -> Vec<u8> {
    if number == 0 { vec![0; BLOCK] } else { (number << 8 | block as u64).to_le_bytes().repeat(BLOCK / 8) }
}

/// How a disk is served, and used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Socket,
    Mount,
}

enum Disk {
    Client(Client),
    File(File),
}

impl Way {
    fn serve(self, region: &Path, place: &Path) -> Server {
        match self {
            Way::Socket => Server::start(region, place),
            Way::Mount => Server::start_at(region, "--mount", place, place.to_str().unwrap()),
        }
    }

    fn open(self, place: &Path) -> io::Result<Disk> {
        Ok(match self {
            Way::Socket => Disk::Client(Client::connect(place)?),
            Way::Mount => Disk::File(File::options().read(true).write(true).open(place.join("disk"))?),
        })
    }
}

impl Disk {
    /// Whether it was written, and forced where that is asked for.
    fn write(&mut self, offset: u64, bytes: &[u8], force: bool) -> bool {
        match self {
            Disk::Client(client) => matches!(client.write(offset, bytes, u16::from(force)), Ok(0)),
            Disk::File(file) => {
                let written = file.write_at(bytes, offset).is_ok_and(|len| len == bytes.len());
                written && (!force || self.force())
            }
        }
    }

    fn force(&mut self) -> bool {
        match self {
            Disk::Client(client) => matches!(client.ask(FLUSH, 0, 0, 0), Ok(0)),
            Disk::File(file) => file.sync_all().is_ok(),
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        match self {
            Disk::Client(client) => client.read(offset, len).unwrap(),
            Disk::File(file) => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset).unwrap();
                bytes
            }
        }
    }
}

/// Writes groups of its blocks at random until the server is gone.
fn work(way: Way, place: &Path, client: usize, seed: u64, known: &Mutex<Vec<Known>>) {
    let Ok(mut disk) = way.open(place) else { return };
    let mut random = seed | 1;
    for number in seed.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let group = random as usize % (BLOCKS / GROUP);
        let first = client * BLOCKS + group * GROUP;
        known.lock().unwrap()[group].begun = number;
        let bytes: Vec<u8> = (first..first + GROUP).flat_map(|block| content(number, block)).collect();
        if !disk.write((first * BLOCK) as u64, &bytes, number % 64 == 0) {
            return;
        }
        known.lock().unwrap()[group].acknowledged = number;
        if number % 100 == 0 && !disk.force() {
            return;
        }
    }
}

#[test]
fn a_killed_server_has_what_it_acknowledged_and_no_part_of_a_write() {
    killed(Way::Socket);
}

#[test]
fn a_killed_file_has_what_it_acknowledged_and_no_part_of_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let (path, place) = (dir.path().join("region"), dir.path().join("place"));
    let (region, at) = (path.to_str().unwrap(), place.to_str().unwrap());
    std::fs::create_dir(&place).unwrap();
    done(&["create", region, "--bytes", "16M"]);
    done(&["add", region, "disk", "1M", "--blocks", "4096"]);
    let mut probe = Command::new(env!("CARGO_BIN_EXE_caliburn-pm"))
        .args(["serve", region, "disk", "--mount", at])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut line, mut why) = (String::new(), String::new());
    BufReader::new(probe.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        probe.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert!(why.contains("cannot be mounted on"), "{why}");
        println!("did not run: {why}");
        let _ = probe.wait();
        return;
    }
    Server(probe).interrupt();
    killed(Way::Mount);
}

fn killed(way: Way) {
    let kills: u64 = std::env::var("CALIBURN_KILLS").map_or(20, |text| text.parse().unwrap());
    // In memory, where a write lasts at once, and on a disk's file.
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let (path, place) = (dir.path().join("region"), dir.path().join("place"));
        if way == Way::Mount {
            std::fs::create_dir(&place).unwrap();
        }
        let region = path.to_str().unwrap();
        done(&["create", region, "--bytes", "16M"]);
        done(&["add", region, "disk", "1M", "--blocks", "4096"]);
        let known: Vec<Mutex<Vec<Known>>> =
            (0..3).map(|_| Mutex::new(vec![Known::default(); BLOCKS / GROUP])).collect();
        let (mut writes, mut kill) = (0, 0);
        // More of them where the machine is too busy for many writes between two kills.
        while kill < kills || writes <= kills && kill < 20 * kills {
            let server = way.serve(&path, &place);
            std::thread::scope(|scope| {
                for (client, known) in known.iter().enumerate() {
                    let place = &place;
                    scope.spawn(move || work(way, place, client, (kill + 1) * 1_000_000, known));
                }
                // Long enough for some writes, and never at the same moment of one.
                std::thread::sleep(std::time::Duration::from_micros(20_000 + kill * 1777 % 9000));
                server.kill();
            });
            let server = way.serve(&path, &place);
            let mut disk = way.open(&place).unwrap();
            for (client, known) in known.iter().enumerate() {
                for (group, known) in known.lock().unwrap().iter_mut().enumerate() {
                    let first = client * BLOCKS + group * GROUP;
                    let found = disk.read((first * BLOCK) as u64, GROUP * BLOCK);
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
            drop(disk);
            server.kill();
            kill += 1;
        }
        if way == Way::Mount {
            // What a killed server leaves is unmounted by the next one, which is not killed.
            let server = way.serve(&path, &place);
            server.interrupt();
        }
        assert!(writes > kills, "only {writes} groups were written");
        assert!(done(&["check", region]).contains("clean"));
    }
}
