//! `oo7` (McNamee, chapter 6): traversals of a database of objects under a memory limit, which a second process may
//! compete for; and `render`, one frame of a scene. Each runs once, in a process of its own within a control group,
//! on files that are not in memory; in one transaction where it changes something. The floor is the same on a file
//! mapped shared, with a force at the end if there is something to force.

pub mod database;
mod traversals;

use crate::floor::Mapped;
use crate::render::scene;
use crate::render::{self, Words};
use crate::report::{median, rounded};
use crate::restart::{die_with_parent, forget};
use crate::target::{Failure, options};
use crate::{Arguments, Workload};
use caliburn::{
    BeforeImages, BufferPool, Class, Extent, Guard, Mode, Options, Policy, Prefetch, Region, Replacement,
    Store, Tracking,
};
use caliburn_cgroup::Group;
use caliburn_lock::{Detector, PageLocks};
use clap::ValueEnum;
use database::Shape;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use traversals::Memory;
pub use traversals::Traversal;

const PAGE: usize = 4096;

/// What holds the database.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum System {
    /// A file mapped shared: no transactions.
    Mmap,
    /// The shadow policy; stores are caught, and images written at once (UMS).
    Eager,
    /// The same, with images written as late as the memory budget lets them (RPVM).
    Lazy,
    /// The same, as memory is found to be short or not.
    Adaptive,
    /// The shadow policy; changes are declared.
    Declared,
    /// As adaptive, and transactions say that they change many pages.
    Many,
    /// As adaptive, and all is read ahead when it is mapped.
    Ahead,
    /// As adaptive, and what was touched the time before is read ahead in that order.
    Recorded,
    /// The redo policy; changes are found when they are committed.
    Scan,
    /// The redo policy with a log of 64 MB; changes are declared, and may outgrow the log and the memory budget.
    Redo,
    /// The undo policy; pages are locked when they are touched.
    Locked,
    /// A buffer pool of pages of 64 KiB, replaced at random.
    Pool,
    /// The same, of pages of 8 KiB.
    Pool8k,
    /// A buffer pool of pages of 64 KiB; who came first goes first.
    PoolFifo,
    /// The same, with a second chance.
    PoolSecond,
}

impl System {
    fn options(self, arguments: &Arguments) -> Option<Options> {
        let (policy, tracking, before) = match self {
            System::Mmap => return None,
            System::Eager => (Policy::Shadow, Tracking::Fault, BeforeImages::Eager),
            System::Lazy => (Policy::Shadow, Tracking::Fault, BeforeImages::Lazy),
            System::Adaptive | System::Many | System::Ahead | System::Recorded => {
                (Policy::Shadow, Tracking::Fault, BeforeImages::Adaptive)
            }
            System::Declared => (Policy::Shadow, Tracking::Declared, BeforeImages::Eager),
            System::Scan => (Policy::Redo, Tracking::Scan, BeforeImages::Eager),
            System::Redo => (Policy::Redo, Tracking::Declared, BeforeImages::Eager),
            System::Locked => (Policy::Undo, Tracking::Declared, BeforeImages::Eager),
            System::Pool | System::Pool8k | System::PoolFifo | System::PoolSecond => {
                (Policy::Shadow, Tracking::Fault, BeforeImages::Eager)
            }
        };
        let pool = |page_bytes, replacement| {
            let bytes = (arguments.pool_mb.unwrap_or(POOL_MB) as u64) << 20;
            BufferPool { bytes, page_bytes, replacement }
        };
        let mut with = options(if self == System::Redo { 64 } else { 1024 }, 8);
        match self {
            System::Ahead => with.prefetch(Prefetch::Regions),
            System::Recorded => with.prefetch(Prefetch::Recorded),
            System::Pool => with.buffer_pool(pool(64 << 10, Replacement::Random)),
            System::Pool8k => with.buffer_pool(pool(8 << 10, Replacement::Random)),
            System::PoolFifo => with.buffer_pool(pool(64 << 10, Replacement::Fifo)),
            System::PoolSecond => with.buffer_pool(pool(64 << 10, Replacement::SecondChance)),
            _ => &mut with,
        };
        with.policy(policy).tracking(tracking).before_images(before).guard(Guard::Off);
        with.overflow(self == System::Redo);
        Some(with)
    }

    fn file(self, dir: &Path) -> PathBuf {
        if self == System::Mmap { dir.join("data") } else { dir.join("data.segment") }
    }
}

fn name<T: ValueEnum>(of: &T) -> String {
    of.to_possible_value().expect("all have names").get_name().to_owned()
}

/// Every size, system, traversal and share of competition that was asked for.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(megabytes) = arguments.compete {
        return compete(arguments, megabytes);
    }
    if arguments.inside.is_some() {
        return inside(arguments);
    }
    if let Err(why) = Group::new("probe", 1 << 30) {
        eprintln!("oo7: not run: {why}");
        return Ok(());
    }
    let renders = arguments.workload == Workload::Render;
    let sizes = if renders { vec![50, 200] } else { vec![24, 72, 120, 192] };
    let sizes = arguments.data_mb.map_or(sizes, |one| vec![one]);
    let systems = match &arguments.system[..] {
        [] => vec![System::Mmap, System::Eager, System::Lazy, System::Adaptive],
        some => some.to_vec(),
    };
    let traversals = match &arguments.traversal[..] {
        _ if renders => vec![Traversal::Frame],
        [] => vec![Traversal::T1, Traversal::T2b],
        some => some.to_vec(),
    };
    if !renders && traversals.contains(&Traversal::Frame) {
        return Err("a frame is what render draws".into());
    }
    for megabytes in sizes {
        let mut model = match renders {
            true => scene::build(megabytes << 20),
            false => Shape::of(megabytes << 20).build(),
        };
        // Drawn without a store.
        let picture = renders.then(|| render::draw(Words { base: model.as_ptr(), len: model.len() }));
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        for system in &systems {
            make(arguments, *system, &dir.path().join(name(system)), bytes(&model))?;
        }
        // What could not be done by one has changed nothing there: it does not hold what the model does any more.
        let mut behind = vec![false; systems.len()];
        for traversal in &traversals {
            for competition in &arguments.competition {
                let mut results: Vec<Vec<Value>> = vec![Vec::new(); systems.len()];
                if systems.contains(&System::Recorded) && !traversal.changes() {
                    // So that there is a time before.
                    let dir = dir.path().join(name(&System::Recorded));
                    in_group(arguments, System::Recorded, *traversal, *competition, &dir)?;
                }
                for _ in 0..arguments.rounds {
                    for (system, results) in systems.iter().zip(&mut results) {
                        let dir = dir.path().join(name(system));
                        results.push(in_group(arguments, *system, *traversal, *competition, &dir)?);
                        if let Some(picture) = &picture
                            && results.last().is_some_and(|result| result["refused"].is_null())
                            && render::read(&pictured(arguments, &dir))? != picture.bytes
                        {
                            return Err(format!("{system:?} has drawn another picture").into());
                        }
                    }
                    if !renders {
                        Memory { base: model.as_mut_ptr().cast() }.traverse(*traversal, &mut |_, _| {});
                    }
                    for ((system, results), behind) in systems.iter().zip(&results).zip(&mut behind) {
                        *behind |= results.iter().any(|result| !result["refused"].is_null());
                        if !*behind {
                            check(arguments, *system, &dir.path().join(name(system)), bytes(&model))?;
                        }
                    }
                }
                print(arguments, (megabytes, *competition), *traversal, &systems, &results);
            }
        }
    }
    Ok(())
}

/// Words as bytes.
pub fn bytes(model: &[u64]) -> &[u8] {
    // SAFETY: whole words are bytes.
    unsafe { std::slice::from_raw_parts(model.as_ptr().cast(), model.len() * 8) }
}

fn make(arguments: &Arguments, system: System, dir: &Path, data: &[u8]) -> Result<(), Failure> {
    let Some(mut with) = system.options(arguments) else {
        std::fs::create_dir(dir)?;
        std::fs::write(system.file(dir), data)?;
        return Ok(());
    };
    let store = with.prefetch(Prefetch::Asked).open(dir)?;
    let region = store.create_segment("data", data.len() as u64)?.map_all()?;
    fill(&store, &region, data)?;
    drop(region);
    Ok(store.close()?)
}

/// Stores a database in a region.
///
/// # Errors
/// When the store fails.
pub fn fill(store: &Store, region: &Region, data: &[u8]) -> Result<(), Failure> {
    for (i, part) in data.chunks(1 << 20).enumerate() {
        let mut tx = store.begin(Mode::NoRestore)?;
        tx.write(region, i << 20, part)?;
        tx.commit(Class::Process)?;
    }
    Ok(())
}

/// What is there is what the model says.
fn check(arguments: &Arguments, system: System, dir: &Path, model: &[u8]) -> Result<(), Failure> {
    let same = |at: *const u8| {
        // SAFETY: so many bytes are mapped.
        unsafe { std::slice::from_raw_parts(at, model.len()) == model }
    };
    let right = match system.options(arguments) {
        None => std::fs::read(system.file(dir))? == model,
        Some(mut with) => {
            // What is recorded is what the traversals touch.
            let store = with.prefetch(Prefetch::Asked).open(dir)?;
            let region = store.segment("data")?.map_all()?;
            let right = same(region.as_ptr());
            drop(region);
            store.close()?;
            right
        }
    };
    if right { Ok(()) } else { Err(format!("{system:?} does not hold what was done").into()) }
}

/// A process that holds so many megabytes of a group's memory, its own or of a file.
struct Competitor(Child);

impl Competitor {
    fn start(
        arguments: &Arguments,
        group: &Path,
        megabytes: usize,
        of_file: bool,
    ) -> Result<Competitor, Failure> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["oo7", "--compete", &megabytes.to_string()]).arg("--inside").arg(group);
        child.args(of_file.then_some("--of-file"));
        child.arg("--dir").arg(&arguments.dir).stdout(Stdio::piped());
        let mut child = Competitor(child.spawn()?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().expect("piped")).read_line(&mut line)?;
        if line.trim() == "ready" { Ok(child) } else { Err("the competitor did not get its memory".into()) }
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compete(arguments: &Arguments, megabytes: usize) -> Result<(), Failure> {
    Group::enter(arguments.inside.as_deref().ok_or("a group is wanted")?)?;
    die_with_parent()?;
    let len = megabytes << 20;
    let mut touch: Box<dyn FnMut(u8)> = if arguments.of_file {
        let file = tempfile::tempfile_in(&arguments.dir)?;
        std::io::copy(&mut std::io::repeat(7).take(len as u64), &mut &file)?;
        file.sync_all()?;
        let mapped = Mapped::of(&file)?;
        Box::new(move |_| {
            for at in (0..len).step_by(PAGE) {
                // SAFETY: so many bytes of the file are mapped, and nobody changes them.
                unsafe { mapped.base().add(at).read_volatile() };
            }
        })
    } else {
        let mut own = vec![0u8; len];
        Box::new(move |value| {
            own.iter_mut().step_by(PAGE).for_each(|byte| *byte = std::hint::black_box(value))
        })
    };
    for round in 0u64.. {
        touch(round as u8);
        if round == 0 {
            println!("ready");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn in_group(
    arguments: &Arguments,
    system: System,
    traversal: Traversal,
    competition: usize,
    dir: &Path,
) -> Result<Value, Failure> {
    for entry in std::fs::read_dir(dir)? {
        forget(&File::open(entry?.path())?)?;
    }
    let limit = arguments.limit_mb.unwrap_or(LIMIT_MB);
    let group = Group::new("oo7", (limit as u64) << 20)?;
    let ours = group.part("ours")?;
    let mut neighbour = None;
    if let Some(megabytes) = arguments.neighbour_mb {
        let beside = group.part("beside")?;
        let process = Competitor::start(arguments, &beside.path, megabytes, true)?;
        let read = faults(process.0.id())[1];
        neighbour = Some((process, read, beside));
    }
    let competing = limit * competition / 100;
    let _competitor =
        (competing > 0).then(|| Competitor::start(arguments, &ours.path, competing, false)).transpose()?;
    let mut child = Command::new(std::env::current_exe()?);
    let workload = name(&arguments.workload);
    child.arg("--picture").arg(pictured(arguments, dir));
    child.args([&workload, "--system", &name(&system), "--traversal", &name(&traversal)]);
    if let Some(megabytes) = arguments.pool_mb {
        child.args(["--pool-mb", &megabytes.to_string()]);
    }
    let output = child.arg("--dir").arg(dir).arg("--inside").arg(&ours.path).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let kills = group.oom_kills() + ours.oom_kills();
        if kills == 0 {
            return Err(format!("{system:?}: {}: {text}", output.status).into());
        }
        return Ok(json!({"refused": "killed for want of memory"}));
    }
    let mut result: Value = serde_json::from_slice(&output.stdout)?;
    result["peak_mb"] = json!(group.peak().map(|bytes| bytes as f64 / 1e6));
    if let Some((process, before, _)) = &mut neighbour {
        if let Some(status) = process.0.try_wait()? {
            return Err(format!("the neighbour has ended: {status}").into());
        }
        result["neighbour"] = json!(faults(process.0.id())[1] - *before);
    }
    Ok(result)
}

/// Where a picture is drawn to.
fn pictured(arguments: &Arguments, dir: &Path) -> PathBuf {
    arguments.picture.clone().unwrap_or_else(|| dir.with_extension("png"))
}

/// Does to memory what is to be done. What was visited.
fn done(
    arguments: &Arguments,
    (base, len): (*mut u8, usize),
    traversal: Traversal,
    declare: &mut dyn FnMut(u64, usize),
) -> Result<u64, Failure> {
    if traversal != Traversal::Frame {
        return Ok(Memory { base }.traverse(traversal, declare));
    }
    let picture = render::draw(Words { base: base.cast(), len: len / 8 });
    picture.write(&pictured(arguments, &arguments.dir))?;
    Ok(picture.visited)
}

const LIMIT_MB: usize = 128;

/// Of which the pool takes so much.
const POOL_MB: usize = 96;

/// Memory that the database is in.
enum Opened {
    Mapped(Mapped, File),
    Store(Store, Region),
}

/// Within the group.
fn inside(arguments: &Arguments) -> Result<(), Failure> {
    Group::enter(arguments.inside.as_deref().expect("it was looked at"))?;
    die_with_parent()?;
    let (&[system], &[traversal]) = (&arguments.system[..], &arguments.traversal[..]) else {
        return Err("one system and one traversal are wanted".into());
    };
    let dir = &arguments.dir;
    let begun = Instant::now();
    let opened = match system.options(arguments) {
        None => {
            let file = File::options().read(true).write(true).open(system.file(dir))?;
            Opened::Mapped(Mapped::of(&file)?, file)
        }
        Some(with) => {
            let store = with.open(dir)?;
            let region = store.segment("data")?.map_all()?;
            Opened::Store(store, region)
        }
    };
    let open = begun.elapsed().as_secs_f64();
    let (before, written_before, begun) = (faults(std::process::id()), written(), Instant::now());
    let (visited, refused) = match &opened {
        Opened::Mapped(memory, file) => {
            let len = file.metadata()?.len() as usize;
            let visited = done(arguments, (memory.base(), len), traversal, &mut |_, _| {})?;
            if traversal.changes() {
                file.sync_data()?;
            }
            (visited, None)
        }
        Opened::Store(store, region) if system == System::Locked => {
            let detector = Detector::new();
            let mut pages = PageLocks::new(store, region, &detector, &detector.range_locks())?;
            let visited = pages.transact(Class::Process, |tx| {
                Ok(done(arguments, (tx.as_ptr(), region.len()), traversal, &mut |_, _| {}))
            });
            (visited??, None)
        }
        Opened::Store(store, region) => {
            let mut tx = store.begin(Mode::Restore)?;
            if system == System::Many {
                tx.will_change(Extent::Many);
            }
            let mut refused = None;
            let memory = (region.as_ptr(), region.len());
            let visited = done(arguments, memory, traversal, &mut |at, len| {
                if matches!(system, System::Declared | System::Redo) && refused.is_none() {
                    refused =
                        tx.set_range(region, at as usize..at as usize + len).err().map(|e| e.to_string());
                }
            })?;
            let done = tx.commit(Class::Power);
            (visited, refused.or(done.err().map(|error| error.to_string())))
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    let written_mb = (written() - written_before) as f64 / 1e6;
    let [minor, major] = [0, 1].map(|i| faults(std::process::id())[i] - before[i]);
    drop(opened);
    println!(
        "{}",
        json!({"seconds": seconds, "open": open, "visited": visited, "refused": refused, "minor": minor, "major": major, "written_mb": written_mb})
    );
    Ok(())
}

/// Bytes that this process has made the system write, or will have.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}

/// Page faults of a process: those for which nothing was read, and those for which something was.
fn faults(process: u32) -> [i64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let behind = text.rsplit(')').next().unwrap_or_default();
    let field = |i: usize| behind.split_whitespace().nth(i).and_then(|word| word.parse().ok()).unwrap_or(0);
    [field(7), field(9)]
}

fn print(
    arguments: &Arguments,
    (megabytes, competition): (usize, usize),
    traversal: Traversal,
    systems: &[System],
    results: &[Vec<Value>],
) {
    let of = |results: &[Value], field: &str| {
        let values: Vec<f64> = results.iter().filter_map(|result| result[field].as_f64()).collect();
        (!values.is_empty()).then(|| median(values))
    };
    let floor = systems
        .iter()
        .position(|system| *system == System::Mmap)
        .and_then(|floor| of(&results[floor], "seconds"));
    for (system, results) in systems.iter().zip(results) {
        let refused = results.iter().find_map(|result| result["refused"].as_str());
        let seconds = of(results, "seconds");
        let ratio = seconds.zip(floor).map(|(seconds, floor)| rounded(seconds / floor, 3));
        if arguments.json {
            let params = json!({"system": name(system), "traversal": name(&traversal), "data_mb": megabytes,
                "limit_mb": arguments.limit_mb.unwrap_or(LIMIT_MB), "competition": competition,
                "neighbour_mb": arguments.neighbour_mb, "pool_mb": arguments.pool_mb.unwrap_or(POOL_MB)});
            println!(
                "{}",
                json!({"workload": name(&arguments.workload), "system": "caliburn", "params": params, "seconds": seconds.map(|s| rounded(s, 3)),
                    "ratio_to_floor": ratio, "refused": refused, "major_faults": of(results, "major"), "neighbour_major_faults": of(results, "neighbour"), "minor_faults": of(results, "minor"), "written_mb": of(results, "written_mb"), "peak_mb": of(results, "peak_mb")})
            );
            continue;
        }
        let told = match (refused, seconds) {
            (Some(why), _) => format!("not done: {why}"),
            (None, seconds) => format!(
                "{:>8.3} s, {:>6.2} of mmap; {} faults, {} of them read; {:.0} MB written",
                seconds.unwrap_or(0.0),
                ratio.unwrap_or(0.0),
                of(results, "minor").unwrap_or(0.0) + of(results, "major").unwrap_or(0.0),
                of(results, "major").unwrap_or(0.0),
                of(results, "written_mb").unwrap_or(0.0)
            ),
        };
        let beside =
            of(results, "neighbour").map_or(String::new(), |n| format!("; the neighbour read {n} again"));
        println!(
            "{:6} {:4} {megabytes:>4} MB, {competition:>2} % taken  {:9} {told}{beside}",
            name(&arguments.workload),
            name(&traversal),
            name(system)
        );
    }
}
