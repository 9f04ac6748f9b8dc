//! What a disk would have held: a virtual machine logs every write to its disk (dm-log-writes), and here the
//! log is played back. At each flush, the image of the disk is mounted and the store on it verified: it must
//! hold what was acknowledged before.

use crate::vm;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const LOG: &str = "target/vm/writes";
/// The disk before the machine was started.
pub const BASE: &str = "target/vm/base";
const CRASHED: &str = "target/vm/crashed";
const MOUNT: &str = "target/vm/mnt";

/// The kernel's format (Documentation/admin-guide/device-mapper/log-writes.rst): a super block, then entries of a
/// sector each, with their data behind them.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

struct Entry {
    sector: u64,
    flags: u64,
    /// Data of a write, or the text of a mark.
    data: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn entries() -> Result<Vec<Entry>, String> {
    let log = File::open(LOG).map_err(|e| format!("{LOG}: {e}"))?;
    let read = |offset: u64, len: usize| {
        let mut bytes = vec![0; len];
        log.read_exact_at(&mut bytes, offset)
            .map_err(|e| format!("{LOG}, offset {offset}: {e}"))
            .map(|()| bytes)
    };
    let head = read(0, 64)?;
    if word(&head, 0) != MAGIC {
        return Err(format!("{LOG}: no log of writes: {:x}", word(&head, 0)));
    }
    let (count, sector_bytes) = (word(&head, 16), word(&head, 24) & 0xFFFF_FFFF);
    let mut at = sector_bytes;
    let mut entries = Vec::new();
    for _ in 0..count {
        let head = read(at, sector_bytes as usize)?;
        let [sector, sectors, flags, text] = [0, 8, 16, 24].map(|i| word(&head, i));
        at += sector_bytes;
        let data = if flags & MARK != 0 {
            head[32..][..text as usize].to_vec()
        } else if flags & DISCARD != 0 {
            Vec::new()
        } else {
            let data = read(at, (sectors * sector_bytes) as usize)?;
            at += sectors * sector_bytes;
            data
        };
        entries.push(Entry { sector: sector * sector_bytes / 512, flags, data });
    }
    Ok(entries)
}

/// Logs a machine's writes, and verifies what they leave at so many of its flushes, evenly spread.
pub fn run(most: usize) -> Result<(), String> {
    let start = Instant::now();
    vm::log_writes(LOG)?;
    let entries = entries()?;
    let flush = |entry: &&Entry| entry.flags & (FLUSH | FUA) != 0;
    let flushes = entries.iter().filter(flush).count();
    let step = flushes.div_ceil(most.max(1)).max(1);
    let fail = |e: std::io::Error| format!("{BASE}: {e}");
    let disk = File::options().write(true).open(BASE).map_err(fail)?;
    let (mut seen, mut verified) = (0, 0);
    let mut acknowledged = ["0".to_owned(), "0".to_owned()];
    for entry in &entries {
        if entry.flags & MARK != 0 {
            let text = String::from_utf8_lossy(&entry.data);
            let words: Vec<&str> = text.trim_end_matches('\0').split('.').collect();
            if let ["ack", a, b] = words[..] {
                acknowledged = [a, b].map(str::to_owned);
            }
            continue;
        }
        disk.write_all_at(&entry.data, entry.sector * 512).map_err(fail)?;
        if flush(&entry) {
            seen += 1;
            if seen % step == 0 || seen == flushes {
                fs::copy(BASE, CRASHED).map_err(|e| format!("{CRASHED}: {e}"))?;
                verify(&acknowledged).map_err(|e| format!("flush {seen} of {flushes}: {e}"))?;
                verified += 1;
            }
        }
    }
    if acknowledged.iter().any(|n| n == "0") {
        return Err(format!("nothing was acknowledged in {} writes", entries.len()));
    }
    println!(
        "{verified} of {flushes} flushes of a disk replayed from {} writes, every acknowledged commit was there, {:.0} s",
        entries.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Verifies the store on the crashed disk.
fn verify(acknowledged: &[String; 2]) -> Result<(), String> {
    fs::create_dir_all(MOUNT).map_err(|e| format!("{MOUNT}: {e}"))?;
    vm::output("mount", &["-o", "loop", CRASHED, MOUNT])?;
    let store = Path::new(MOUNT).join("store");
    let guest =
        Command::new(vm::guest()).arg(store).args(["-", "v", "0"]).args(acknowledged).args(["0"; 2]).output();
    let unmounted = vm::output("umount", &[MOUNT]);
    let guest = guest.map_err(|e| format!("guest: {e}"))?;
    if !guest.status.success() {
        return Err(format!("{acknowledged:?}: {}", String::from_utf8_lossy(&guest.stderr)));
    }
    unmounted.map(drop)
}
