//! OO7's T1 and T2b (McNamee, chapter 6) on rivals: each object is a record under its offset, in memory that is
//! scarce. Each runs once, in a process of its own within a control group, on files that are not in memory, in one
//! transaction; beside a mapped file, and Caliburn, whose stores are caught. PMDK, whose records are memory, changes
//! them in place. The traversals' code is the same for all.

use crate::records::Session;
use crate::{Arguments, open};
use caliburn::{Class, Guard, Mode, Policy, Region, Store, Tracking};
use caliburn_bench::floor::Mapped;
use caliburn_bench::oo7::database::{
    Assembly, Atomic, Composite, Connection, LEVELS, MODULE, Module, Ref, Shape,
};
use caliburn_bench::oo7::{bytes, fill};
use caliburn_bench::report::{median, rounded};
use caliburn_bench::restart::{self, die_with_parent};
use caliburn_bench::target::{Failure, options};
use caliburn_cgroup::Group;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Memory of the group.
const LIMIT_MB: u64 = 128;
const MMAP: &str = "mmap";
const CALIBURN: &str = "caliburn";

/// The objects, in a transaction.
trait Objects {
    /// Copies one out.
    fn read(&mut self, at: Ref, bytes: &mut [u8]) -> Result<(), Failure>;
    /// Changes a part of an object that was read.
    fn write(&mut self, object: (Ref, &mut [u8]), offset: usize, bytes: &[u8]) -> Result<(), Failure>;
}

/// What is mapped.
struct Memory(*mut u8);

impl Objects for Memory {
    fn read(&mut self, at: Ref, bytes: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: references are of objects in the memory, which this thread alone uses.
        unsafe { self.0.add(at as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&mut self, (at, _): (Ref, &mut [u8]), offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        let target = self.0.wrapping_add(at as usize + offset);
        // SAFETY: as above; the memory is mapped to be written.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// What has records.
struct Records<'s>(&'s mut dyn Session);

impl Objects for Records<'_> {
    fn read(&mut self, at: Ref, bytes: &mut [u8]) -> Result<(), Failure> {
        match self.0.get(at, bytes)? {
            true => Ok(()),
            false => Err(format!("object {at} is not there").into()),
        }
    }

    fn write(&mut self, (at, object): (Ref, &mut [u8]), offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        if let Some(place) = self.0.declare(at + offset as Ref, bytes.len()) {
            // SAFETY: so many bytes were declared there.
            unsafe { place?.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            return Ok(());
        }
        object[offset..][..bytes.len()].copy_from_slice(bytes);
        self.0.put(at, object)
    }
}

/// An object, as bytes.
struct Object<T>(MaybeUninit<T>);

impl<T: Copy> Object<T> {
    fn read(objects: &mut dyn Objects, at: Ref) -> Result<Object<T>, Failure> {
        let mut object = Object(MaybeUninit::zeroed());
        objects.read(at, object.bytes())?;
        Ok(object)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: they are initialized, with zeros at least.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of::<T>()) }
    }

    fn value(&self) -> T {
        // SAFETY: the database's types are numbers, of which all bytes are some.
        unsafe { self.0.assume_init() }
    }
}

/// One of the two traversals.
struct Visit<'o> {
    objects: &'o mut dyn Objects,
    changes: bool,
    /// The number of the visit in which each atomic part of a composite one was seen last.
    seen: Vec<u32>,
    number: u32,
}

impl Visit<'_> {
    fn run(objects: &mut dyn Objects, parts: usize, changes: bool) -> Result<u64, Failure> {
        let Module { root, .. } = Object::read(objects, MODULE)?.value();
        Visit { objects, changes, seen: vec![0; parts], number: 0 }.assembly(root)
    }

    fn assembly(&mut self, at: Ref) -> Result<u64, Failure> {
        let Assembly { level, parts, .. } = Object::read(self.objects, at)?.value();
        parts.into_iter().try_fold(0, |sum: u64, part| {
            let found = if level == LEVELS { self.composite(part) } else { self.assembly(part) };
            Ok(sum.wrapping_add(found?))
        })
    }

    fn composite(&mut self, at: Ref) -> Result<u64, Failure> {
        let Composite { root, .. } = Object::read(self.objects, at)?.value();
        self.number += 1;
        let (mut stack, mut sum) = (vec![root], 0u64);
        while let Some(at) = stack.pop() {
            let index = (at - root) as usize / size_of::<Atomic>();
            if std::mem::replace(&mut self.seen[index], self.number) == self.number {
                continue;
            }
            let mut part: Object<Atomic> = Object::read(self.objects, at)?;
            let Atomic { x, y, to, .. } = part.value();
            sum = sum.wrapping_add(x as u64);
            if self.changes {
                let swapped = [y, x.wrapping_add(1)].map(i32::to_le_bytes).concat();
                self.objects.write((at, part.bytes()), offset_of!(Atomic, x), &swapped)?;
            }
            for connection in to.into_iter().rev() {
                stack.push(Object::<Connection>::read(self.objects, connection)?.value().to);
            }
        }
        Ok(sum)
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(group) = &arguments.inside {
        return inside(arguments, group);
    }
    if let Err(why) = Group::new("probe", 1 << 30) {
        eprintln!("oo7: not run: {why}");
        return Ok(());
    }
    let sizes = arguments.data_mb.map_or(vec![24, 72, 192], |one| vec![one]);
    for megabytes in sizes {
        let shape = Shape::of(megabytes << 20);
        let mut model = shape.build();
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        // T2b reads what it has changed, which with two of them these benchmarks keep until the commit. PMDK is for
        // data that fit memory.
        let fits = megabytes * 2 < LIMIT_MB as usize;
        let rivals = arguments.names().into_iter().filter(|name| match *name {
            "Berkeley DB" | "fjall" => false,
            "PMDK" => fits,
            _ => true,
        });
        let names: Vec<&str> = [MMAP, CALIBURN].into_iter().chain(rivals).collect();
        for name in &names {
            let dir = dir.path().join(name);
            fs::create_dir(&dir)?;
            make(name, &dir, shape, &model).map_err(|e| format!("{name}: {e}"))?;
        }
        for changes in [false, true] {
            let mut results: Vec<Vec<Value>> = vec![Vec::new(); names.len()];
            for _ in 0..arguments.rounds {
                let visited = Visit::run(&mut Memory(model.as_mut_ptr().cast()), shape.parts, changes)?;
                for (name, results) in names.iter().zip(&mut results) {
                    let result = in_group((name, megabytes, changes), &dir.path().join(name))?;
                    if result["refused"].is_null() && result["visited"] != visited {
                        return Err(format!("{name} has visited something else: {result}").into());
                    }
                    results.push(result);
                }
            }
            print(arguments, megabytes, changes, &names, &results);
            for (name, results) in names.iter().zip(&results) {
                if results.iter().all(|result| result["refused"].is_null()) {
                    let dir = dir.path().join(name);
                    check(name, &dir, shape, &model).map_err(|e| format!("{name}: {e}"))?;
                }
            }
        }
    }
    Ok(())
}

fn store(dir: &Path, len: usize) -> Result<(Store, Region), Failure> {
    let mut options = options(1024, 8);
    options.policy(Policy::Shadow).tracking(Tracking::Fault).guard(Guard::Off);
    let store = options.open(dir.join("store"))?;
    let region = store.segment_or_create("data", len as u64)?.map_all()?;
    Ok((store, region))
}

fn make(name: &str, dir: &Path, shape: Shape, model: &[u64]) -> Result<(), Failure> {
    let data = bytes(model);
    match name {
        MMAP => Ok(fs::write(dir.join("data"), data)?),
        CALIBURN => {
            let (store, region) = store(dir, data.len())?;
            fill(&store, &region, data)?;
            drop(region);
            Ok(store.close()?)
        }
        _ => {
            let (database, _) = open(name, &dir.join("database"), true, data.len())?;
            let mut session = database.session();
            let objects: Vec<(Ref, usize)> = shape.objects().collect();
            for some in objects.chunks(2000) {
                session.begin()?;
                for &(at, len) in some {
                    let object = &data[at as usize..][..len];
                    match session.declare(at, len) {
                        // SAFETY: so many bytes were declared there.
                        Some(place) => unsafe { place?.copy_from_nonoverlapping(object.as_ptr(), len) },
                        None => session.put(at, object)?,
                    }
                }
                session.commit()?;
            }
            Ok(())
        }
    }
}

/// All objects are what the model says.
fn check(name: &str, dir: &Path, shape: Shape, model: &[u64]) -> Result<(), Failure> {
    let compare = |objects: &mut dyn Objects| {
        let mut found = vec![0; size_of::<Module>()];
        for (at, len) in shape.objects() {
            objects.read(at, &mut found[..len])?;
            if found[..len] != bytes(model)[at as usize..][..len] {
                return Err(Failure::from(format!("object {at} is not what was done")));
            }
        }
        Ok(())
    };
    match name {
        MMAP => compare(&mut Memory(Mapped::of(&opened(dir)?)?.base())),
        CALIBURN => compare(&mut Memory(store(dir, model.len() * 8)?.1.as_ptr())),
        _ => {
            let (database, _) = open(name, &dir.join("database"), true, model.len() * 8)?;
            let mut session = database.session();
            session.begin()?;
            compare(&mut Records(&mut *session))?;
            session.commit()
        }
    }
}

fn opened(dir: &Path) -> Result<File, Failure> {
    Ok(File::options().read(true).write(true).open(dir.join("data"))?)
}

/// Has all files of a folder be on their medium alone.
fn forget(dir: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else {
            restart::forget(&File::open(path)?)?;
        }
    }
    Ok(())
}

fn in_group((name, megabytes, changes): (&str, usize, bool), dir: &Path) -> Result<Value, Failure> {
    forget(dir)?;
    let group = Group::new("oo7", LIMIT_MB << 20)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["oo7", "--only", name, "--data-mb", &megabytes.to_string()]);
    child.args(changes.then_some("--changes"));
    let output = child.arg("--dir").arg(dir).arg("--inside").arg(&group.path).output()?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout)?);
    }
    if group.oom_kills() == 0 {
        return Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(json!({ "refused": "killed for want of memory" }))
}

/// Within the group.
fn inside(arguments: &Arguments, group: &Path) -> Result<(), Failure> {
    Group::enter(group)?;
    die_with_parent()?;
    let only = arguments.only.as_deref().unwrap_or_default();
    let (Some(name), Some(megabytes)) = (only.first(), arguments.data_mb) else {
        return Err("a system and a size are wanted".into());
    };
    let (dir, changes, shape) = (&arguments.dir, arguments.changes, Shape::of(megabytes << 20));
    let parts = shape.parts;
    let (visited, seconds) = match &**name {
        MMAP => {
            let file = opened(dir)?;
            let mapped = Mapped::of(&file)?;
            let begun = Instant::now();
            let visited = Visit::run(&mut Memory(mapped.base()), parts, changes)?;
            if changes {
                file.sync_data()?;
            }
            (visited, begun.elapsed())
        }
        CALIBURN => {
            let (store, region) = store(dir, shape.bytes())?;
            let begun = Instant::now();
            let tx = store.begin(Mode::Restore)?;
            let visited = Visit::run(&mut Memory(region.as_ptr()), parts, changes)?;
            tx.commit(Class::Power)?;
            (visited, begun.elapsed())
        }
        _ => {
            let (database, _) = open(name, &dir.join("database"), true, shape.bytes())?;
            let mut session = database.session();
            let begun = Instant::now();
            session.begin()?;
            let visited = Visit::run(&mut Records(&mut *session), parts, changes)?;
            session.commit()?;
            (visited, begun.elapsed())
        }
    };
    println!("{}", json!({"visited": visited, "seconds": seconds.as_secs_f64()}));
    Ok(())
}

fn print(arguments: &Arguments, megabytes: usize, changes: bool, names: &[&str], results: &[Vec<Value>]) {
    let traversal = if changes { "t2b" } else { "t1" };
    let times = results.iter().map(|results| {
        let times: Vec<f64> = results.iter().filter_map(|result| result["seconds"].as_f64()).collect();
        (times.len() == results.len()).then(|| median(times))
    });
    let times: Vec<Option<f64>> = times.collect();
    for ((name, seconds), results) in names.iter().zip(&times).zip(results) {
        let refused = results.iter().find_map(|result| result["refused"].as_str());
        let ratio = seconds.zip(times[0]).map(|(seconds, floor)| rounded(seconds / floor, 3));
        if arguments.json {
            let params =
                json!({"system": name, "traversal": traversal, "data_mb": megabytes, "limit_mb": LIMIT_MB});
            println!(
                "{}",
                json!({"workload": "oo7", "system": name, "params": params, "seconds": seconds.map(|s| rounded(s, 3)),
                    "ratio_to_floor": ratio, "refused": refused})
            );
        } else {
            let told = match (seconds, refused) {
                (Some(seconds), _) => format!("{seconds:>8.3} s, {:>6.2} of mmap", ratio.unwrap_or(0.0)),
                (None, why) => format!("not done: {}", why.unwrap_or("?")),
            };
            println!("oo7    {traversal:4} {megabytes:>4} MB  {name:12} {told}");
        }
    }
}
