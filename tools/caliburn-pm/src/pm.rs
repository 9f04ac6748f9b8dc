//! `pm`: memory that outlives the system.

use crate::serve::{Serve, serve};
use caliburn_pm::{Error, Region, RegionOptions, SegmentInfo, SegmentKind, SegmentOptions, Survives};
use caliburn_tools::Failure;
use caliburn_tools::size;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IsTerminal, Read, Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// What can be done.
#[derive(Subcommand, Debug)]
pub enum Act {
    /// Make a region on a device, or in a file.
    Create {
        /// The device or file; a file is made if it is missing.
        region: PathBuf,
        /// Bytes of it, as 64M; of what is there, all of it.
        #[arg(long, value_parser = size::parse)]
        bytes: Option<u64>,
        /// Bytes in which memory is given to segments: a power of two, 64K to 1G.
        #[arg(long, value_parser = size::parse)]
        unit: Option<u64>,
        /// Make it where there is one already: that one is lost.
        #[arg(long)]
        force: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List a region's segments: how they are, when and by whom they were last written.
    List(One),
    /// Make a segment.
    Add {
        /// The region.
        region: PathBuf,
        /// The segment's name.
        name: String,
        /// Bytes of it, as 64M.
        #[arg(value_parser = size::parse)]
        bytes: u64,
        /// Of blocks of so many bytes with checksums, 512 to 65536; else of bytes, to be mapped.
        #[arg(long, value_name = "BYTES")]
        blocks: Option<u32>,
        /// Writers of blocks that go along side by side.
        #[arg(long, default_value_t = 8)]
        lanes: u32,
        /// Who may read and write it, as for chmod.
        #[arg(long, default_value = "600", value_parser = mode)]
        mode: u32,
        /// Where it is mapped each time, as 0x300000000000, so that pointers in it hold.
        #[arg(long, value_parser = address)]
        address: Option<u64>,
    },
    /// Destroy a segment that nobody has attached.
    Destroy(Segment),
    /// Give a segment of bytes another length; what comes is zeros.
    Resize {
        #[command(flatten)]
        segment: Segment,
        /// Bytes that it is to have.
        #[arg(value_parser = size::parse)]
        bytes: u64,
    },
    /// Make a region larger, while it is used.
    Grow {
        /// The region.
        region: PathBuf,
        /// Bytes that it is to have.
        #[arg(value_parser = size::parse)]
        bytes: u64,
    },
    /// Make a region smaller, while it is used, down to where its segments end.
    Shrink {
        /// The region.
        region: PathBuf,
        /// Bytes that it is to have.
        #[arg(value_parser = size::parse)]
        bytes: u64,
    },
    /// Forbid everybody to write to a segment.
    Protect {
        #[command(flatten)]
        segment: Segment,
        /// Allow it again.
        #[arg(long)]
        off: bool,
    },
    /// Change who may read and write a segment, and whose it is.
    Own {
        #[command(flatten)]
        segment: Segment,
        /// As for chmod.
        #[arg(long, value_parser = mode)]
        mode: Option<u32>,
        /// Number of the user.
        #[arg(long)]
        uid: Option<u32>,
        /// Number of the group.
        #[arg(long)]
        gid: Option<u32>,
    },
    /// Look whether a region is whole, all blocks of it included: exit 0 clean, 1 damaged, 2 could not look.
    #[command(visible_alias = "scrub")]
    Check(One),
    /// Write the bytes of a segment to a file, or with - to the standard output.
    Dump {
        #[command(flatten)]
        segment: Segment,
        /// The file.
        to: PathBuf,
    },
    /// Write a file, or with - the standard input, to a segment.
    Restore {
        #[command(flatten)]
        segment: Segment,
        /// The file.
        from: PathBuf,
    },
    /// Serve a segment of blocks as a disk (NBD, or a file through FUSE), until interrupted. At SIGUSR1 it prints
    /// what was done so far.
    Serve(Serve),
}

#[derive(Args, Debug)]
pub struct One {
    /// The region.
    region: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct Segment {
    /// The region.
    pub region: PathBuf,
    /// The segment.
    pub name: String,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
    if mode <= 0o777 { Ok(mode) } else { Err("three octal digits".into()) }
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").ok_or("a hexadecimal number, as 0x300000000000")?;
    u64::from_str_radix(digits, 16).map_err(|error| error.to_string())
}

/// Does one thing with a region.
pub fn run(act: &Act) -> Result<ExitCode, Failure> {
    match act {
        Act::Create { region, bytes, unit, force, json } => {
            let unit = unit.map(u32::try_from).transpose().map_err(|_| "a unit has at most 1G")?;
            Region::create(region, &RegionOptions { len: *bytes, unit, force: *force })?;
            list(region, *json)?;
        }
        Act::List(one) => list(&one.region, one.json)?,
        Act::Add { region, name, bytes, blocks, lanes, mode, address } => {
            let kind = blocks.map_or(SegmentKind::Plain, |block_bytes| SegmentKind::Blocks { block_bytes });
            let options = SegmentOptions { kind, mode: *mode, address: *address, lanes: *lanes };
            let bar = bar(*bytes, "filling with zeros");
            Region::open(region)?.create_segment(name, *bytes, &options, |done| bar.inc(done))?;
        }
        Act::Destroy(Segment { region, name }) => Region::open(region)?.destroy(name)?,
        Act::Resize { segment, bytes } => {
            let bar = bar(*bytes, "filling with zeros");
            Region::open(&segment.region)?.resize(&segment.name, *bytes, |done| bar.inc(done))?;
        }
        Act::Grow { region, bytes } => Region::open(region)?.grow(*bytes)?,
        Act::Shrink { region, bytes } => Region::open(region)?.shrink(*bytes)?,
        Act::Protect { segment, off } => Region::open(&segment.region)?.protect(&segment.name, !off)?,
        Act::Own { segment, mode, uid, gid } => {
            Region::open(&segment.region)?.own(&segment.name, *mode, *uid, *gid)?;
        }
        Act::Check(one) => return check(one),
        Act::Dump { segment, to } => dump(segment, to)?,
        Act::Restore { segment, from } => restore(segment, from)?,
        Act::Serve(how) => serve(how)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar, if somebody is there to see it.
fn bar(bytes: u64, what: &'static str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg}  [{bar:30}] {bytes} of {total_bytes}, {eta}");
    let style = style.expect("the template is well-formed");
    ProgressBar::new(bytes).with_message(what).with_style(style)
}

fn survives(what: Survives) -> &'static str {
    match what {
        Survives::Process => "process",
        Survives::Os => "os",
        Survives::Power => "power",
    }
}

fn kind(segment: &SegmentInfo) -> (&'static str, Option<u32>) {
    match segment.kind {
        SegmentKind::Blocks { block_bytes } => ("blocks", Some(block_bytes)),
        _ => ("bytes", None),
    }
}

fn about(segment: &SegmentInfo) -> Value {
    let (kind, block_bytes) = kind(segment);
    json!({
        "name": segment.name, "kind": kind, "block_bytes": block_bytes, "bytes": segment.len,
        "taken_bytes": segment.taken, "mode": format!("{:o}", segment.mode), "uid": segment.uid, "gid": segment.gid,
        "protected": segment.protected, "address": segment.address, "created_ns": segment.created,
        "written_ns": segment.written, "writer": segment.writer, "writing": segment.writing,
        "from_before": segment.from_before,
    })
}

fn list(path: &Path, json: bool) -> Result<(), Failure> {
    let region = Region::open_to_read(path)?;
    let (info, segments) = (region.info()?, region.segments()?);
    if json {
        let all: Vec<Value> = segments.iter().map(about).collect();
        let id: String = info.id.iter().map(|byte| format!("{byte:02x}")).collect();
        println!(
            "{}",
            json!({
                "region": path, "id": id, "bytes": info.len, "medium_bytes": info.medium_len, "unit": info.unit,
                "free_bytes": info.free, "written_survives": survives(info.kind.survives()),
                "flushed_survives": survives(info.kind.survives_flushed()), "damage": info.damage, "segments": all,
            })
        );
        return Ok(());
    }
    println!("{}: {}, {} free", path.display(), size::show(info.len), size::show(info.free));
    println!("on {}", info.kind);
    for (number, why) in info.damage.iter().enumerate().filter_map(|(n, why)| Some((n + 1, why.as_ref()?))) {
        println!("copy {number} of the base segment does not count: {why}; the next change makes it again");
    }
    for segment in &segments {
        let (what, block) = kind(segment);
        let what = block.map_or(what.to_owned(), |block| format!("{what} of {block}"));
        let flags = [
            (segment.protected, ", protected"),
            (segment.writing, ", attached for writing, or was when its writer died"),
            (segment.from_before, ", written before the system was started"),
        ];
        let flags: String = flags.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        println!(
            "{:<20} {:>12}  {what}, mode {:o} of {}:{}{flags}",
            segment.name,
            size::show(segment.len),
            segment.mode,
            segment.uid,
            segment.gid
        );
        if segment.written > 0 {
            let when = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(segment.written);
            println!(
                "{:20} last written {} by {}",
                "",
                humantime::format_rfc3339_seconds(when),
                segment.writer
            );
        }
    }
    Ok(())
}

/// Blocks that are looked at between two looks at the bar.
const STEP: u64 = 1024;

fn check(one: &One) -> Result<ExitCode, Failure> {
    let region = Arc::new(Region::open_to_read(&one.region)?);
    let damage = region.info()?.damage;
    let (mut clean, mut found) = (damage == [None, None], Vec::new());
    for segment in region.segments()? {
        let (_, Some(block_bytes)) = kind(&segment) else { continue };
        let blocks = match region.attach_blocks(&segment.name, false) {
            Ok(blocks) => blocks,
            Err(Error::Busy { name, how }) => {
                found.push(json!({"segment": name, "looked": false, "why": format!("it is attached {how}")}));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let bar = bar(segment.len, "looking at blocks");
        let (mut damaged, mut unread) = (Vec::new(), Vec::new());
        for from in (0..blocks.len()).step_by(STEP as usize) {
            let part = from..(from + STEP).min(blocks.len());
            bar.inc((part.end - part.start) * u64::from(block_bytes));
            unread.append(&mut blocks.unread_by_older(part.clone())?);
            damaged.append(&mut blocks.scrub(part)?);
        }
        clean &= damaged.is_empty();
        let undone = blocks.counts().undone;
        found.push(json!({"segment": segment.name, "looked": true, "blocks": blocks.len(), "damaged": damaged, "undone": undone, "unread_by_older": unread}));
    }
    let all = found.iter().all(|segment| segment["looked"] == true);
    if one.json {
        println!(
            "{}",
            json!({"region": one.region, "clean": clean, "all": all, "base": damage, "segments": found})
        );
    } else {
        for (number, why) in damage.iter().enumerate().filter_map(|(n, why)| Some((n + 1, why.as_ref()?))) {
            println!("copy {number} of the base segment does not count: {why}");
        }
        for segment in &found {
            let name = &segment["segment"];
            match segment["damaged"].as_array() {
                None => println!("{name}: not looked at, {}", segment["why"]),
                Some(none) if none.is_empty() => {
                    println!("{name}: {} blocks, all as they were written", segment["blocks"])
                }
                Some(all) => println!(
                    "{name}: {} of {} blocks are damaged: {}",
                    all.len(),
                    segment["blocks"],
                    segment["damaged"]
                ),
            }
            if let Some(unread) = segment["unread_by_older"].as_array().filter(|unread| !unread.is_empty()) {
                println!(
                    "{name}: older programs cannot read these blocks, and may lose them: {}. Write each of them \
                     again: what it holds, or a copy from elsewhere where it is damaged",
                    Value::from(unread.clone())
                );
            }
        }
        println!(
            "{}",
            if !clean {
                "damaged"
            } else if all {
                "clean"
            } else {
                "clean, as far as it was looked at"
            }
        );
    }
    Ok(match (clean, all) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(2),
    })
}

/// Reads bytes of a segment, from an offset on.
type Reads = dyn Fn(u64, &mut [u8]) -> caliburn_pm::Result<()>;

/// Bytes that are copied at once.
const PART: usize = 1 << 20;

fn dump(segment: &Segment, to: &Path) -> Result<(), Failure> {
    let region = Arc::new(Region::open_to_read(&segment.region)?);
    let info = region.segment(&segment.name)?;
    let read: Box<Reads> = match info.kind {
        SegmentKind::Plain => {
            let segment = region.attach(&segment.name, false)?;
            Box::new(move |at, part| segment.read(at, part))
        }
        _ => {
            let blocks = region.attach_blocks(&segment.name, false)?;
            Box::new(move |at, part| blocks.read_bytes(at, part))
        }
    };
    let made = |error| format!("cannot write {}: {error}", to.display());
    let copy = |target: &mut dyn Write| -> Result<(), Failure> {
        let (bar, mut part) = (bar(info.len, "reading"), vec![0; PART]);
        for at in (0..info.len).step_by(PART) {
            let part = &mut part[..PART.min((info.len - at) as usize)];
            read(at, part)?;
            target.write_all(part).map_err(made)?;
            bar.inc(part.len() as u64);
        }
        Ok(target.flush().map_err(made)?)
    };
    if to == Path::new("-") {
        return copy(&mut stdout().lock());
    }
    let same = |path: &Path| std::fs::canonicalize(path).ok();
    if same(to).is_some() && same(to) == same(&segment.region) {
        return Err(format!("{} is the region itself", to.display()).into());
    }
    // What is there stays until all of it is read. A device is written in place.
    if std::fs::metadata(to).is_ok_and(|about| !about.is_file()) {
        return copy(&mut File::options().write(true).open(to).map_err(made)?);
    }
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let mut file = File::create(&part).map_err(made)?;
    let done = copy(&mut file).and_then(|()| Ok(file.sync_all().map_err(made)?));
    let done = done.and_then(|()| Ok(std::fs::rename(&part, to).map_err(made)?));
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done
}

fn restore(segment: &Segment, from: &Path) -> Result<(), Failure> {
    let region = Arc::new(Region::open(&segment.region)?);
    let info = region.segment(&segment.name)?;
    let mut source: Box<dyn Read> = match from == Path::new("-") {
        true => Box::new(stdin().lock()),
        false => {
            let failed = |error| format!("cannot open {}: {error}", from.display());
            let file = File::open(from).map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.is_file() && about.len() > info.len {
                let (has, room) = (about.len(), info.len);
                return Err(format!("{} has {has} bytes, and the segment {room}", from.display()).into());
            }
            Box::new(file)
        }
    };
    let bar = bar(info.len, "writing");
    let mut fill = |write: &dyn Fn(u64, &[u8]) -> caliburn_pm::Result<()>| -> Result<(), Failure> {
        let (mut part, mut at) = (Vec::with_capacity(PART), 0);
        loop {
            part.clear();
            source.by_ref().take(PART as u64).read_to_end(&mut part)?;
            if part.is_empty() {
                return Ok(());
            }
            write(at, &part)?;
            at += part.len() as u64;
            bar.inc(part.len() as u64);
        }
    };
    match info.kind {
        SegmentKind::Plain => {
            let segment = region.attach(&segment.name, true)?;
            fill(&|at, part| segment.write(at, part))?;
            segment.flush()?;
        }
        _ => {
            let blocks = region.attach_blocks(&segment.name, true)?;
            fill(&|at, part| blocks.write_bytes(at, part, false))?;
            blocks.flush()?;
        }
    }
    Ok(())
}
