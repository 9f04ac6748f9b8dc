//! Walks through a world of names, on the files of the running system: stores are opened, changed, renamed, linked,
//! copied, replaced by others of the same name, and forked with, in any order. A store is the directory that was
//! opened, whatever it is called; one process has it, once, by whatever name; and a child that is forked with its
//! handles leaves it as it is.

use crate::random::Random;
use caliburn::{Class, Mode, OpenError, Options, Policy, Region, Store, Transaction};
use std::collections::BTreeMap;
use std::fs;
use std::mem::ManuallyDrop;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CELLS: usize = 512;
const LEN: u64 = 64 << 10;

/// What a store must hold, by when its directory was made.
#[derive(Debug, Clone, Default)]
struct Model {
    cells: BTreeMap<usize, u64>,
    /// Bytes of its segments besides the first.
    more: BTreeMap<String, u64>,
    len: u64,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq)]
enum Name {
    Directory(usize),
    Link(&'static str),
}

/// A store that is open.
struct Open {
    number: usize,
    // Dropped in this order.
    region: Region,
    store: Store,
}

struct World {
    root: PathBuf,
    random: Random,
    policy: Policy,
    names: BTreeMap<&'static str, Name>,
    models: Vec<Model>,
    open: Vec<Open>,
    trace: Vec<String>,
}

/// Walks so many steps, in the order of a seed, in a directory that is empty.
///
/// # Errors
/// What is wrong, and the steps that led to it.
pub fn walk(root: &Path, seed: u64, steps: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let policy = if random.chance(1, 2) { Policy::Undo } else { Policy::Redo };
    let (names, models, open) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut world = World { root: root.to_owned(), random, policy, names, models, open, trace: Vec::new() };
    let done = (0..steps).try_for_each(|_| world.step()).and_then(|()| world.end());
    done.map_err(|why| format!("names, seed {seed}, {policy:?}: {}: {why}", world.trace.join(", ")))
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl World {
    fn options(&self) -> Options {
        let mut options = Store::options();
        options.create(true).policy(self.policy).log_bytes(1 << 18).stage_bytes(1 << 17);
        options.reserve_bytes(1 << 30);
        options
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(12) {
            0 | 1 => self.open(),
            2..=4 => self.commit(),
            5 => self.grow(),
            6 => self.rename(),
            7 => self.link(),
            8 => self.go(),
            9 => self.fork(),
            10 => self.copy(),
            _ => self.close(),
        }?;
        self.compare()
    }

    /// The directory behind a name.
    fn leads_to(&self, name: &str) -> Option<usize> {
        match self.names.get(name)? {
            Name::Directory(number) => Some(*number),
            Name::Link(other) => match self.names.get(other)? {
                Name::Directory(number) => Some(*number),
                Name::Link(_) => None,
            },
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn free_name(&mut self) -> Option<&'static str> {
        let free: Vec<&'static str> =
            NAMES.iter().copied().filter(|name| !self.names.contains_key(name)).collect();
        (!free.is_empty()).then(|| *self.random.pick(&free))
    }

    fn directory(&mut self) -> Option<(&'static str, usize)> {
        let all = self.names.iter().filter_map(|(name, what)| match what {
            Name::Directory(number) => Some((*name, *number)),
            Name::Link(_) => None,
        });
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    /// Opens by any name, from wherever the process is.
    fn open(&mut self) -> Result<(), String> {
        let name = *self.random.pick(&NAMES);
        // A link that leads nowhere is no place for a store.
        if matches!(self.names.get(name), Some(Name::Link(_))) && self.leads_to(name).is_none() {
            return Ok(());
        }
        let relative = self.random.chance(1, 2);
        let path = if relative { Path::new("..").join(name) } else { self.path(name) };
        self.trace.push(format!("open {}", path.display()));
        let there = self.leads_to(name);
        let held = there.is_some_and(|number| self.open.iter().any(|open| open.number == number));
        let store = match (self.options().open(&path), held) {
            (Err(OpenError::InUse { .. }), true) => return Ok(()),
            (Ok(_), true) => return Err("it was opened twice".into()),
            (other, _) => other.map_err(said)?,
        };
        let number = there.unwrap_or(self.models.len());
        if there.is_none() {
            self.names.insert(name, Name::Directory(number));
            self.models.push(Model { len: LEN, ..Model::default() });
        }
        let segment = store.segment_or_create("data", LEN).map_err(said)?;
        let region = segment.map_all().map_err(said)?;
        self.open.push(Open { number, region, store });
        Ok(())
    }

    fn any_open(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.random.below(self.open.len() as u64) as usize)
    }

    fn commit(&mut self) -> Result<(), String> {
        let Some(at) = self.any_open() else { return Ok(()) };
        let (cell, value) = (self.random.below(CELLS as u64) as usize, self.random.bits());
        let lazy = self.random.chance(1, 2);
        let Open { number, region, store } = &self.open[at];
        self.trace.push(format!("commit {number}"));
        let mut tx = store.begin(Mode::Restore).map_err(said)?;
        tx.store(region, cell * 8, &value).map_err(said)?;
        tx.commit(if lazy { Class::Process } else { store.reach() }).map_err(said)?;
        self.models[*number].cells.insert(cell, value);
        Ok(())
    }

    /// Makes a segment longer, or another one.
    fn grow(&mut self) -> Result<(), String> {
        let Some(at) = self.any_open() else { return Ok(()) };
        let Open { number, store, .. } = &self.open[at];
        let model = &mut self.models[*number];
        self.trace.push(format!("grow {number}"));
        if self.random.chance(1, 2) {
            model.len += LEN;
            return store.segment("data").and_then(|data| data.grow(model.len)).map_err(said);
        }
        let name = format!("more{}", model.more.len());
        store.create_segment(&name, LEN).map_err(said)?;
        model.more.insert(name, LEN);
        Ok(())
    }

    /// Another name for a directory; what was called so may be made anew.
    fn rename(&mut self) -> Result<(), String> {
        let (Some((from, number)), Some(to)) = (self.directory(), self.free_name()) else { return Ok(()) };
        self.trace.push(format!("rename {from} {to}"));
        fs::rename(self.path(from), self.path(to)).map_err(said)?;
        self.names.remove(from);
        self.names.insert(to, Name::Directory(number));
        Ok(())
    }

    /// A link, or an end of one.
    fn link(&mut self) -> Result<(), String> {
        let links = self.names.iter().find(|(_, what)| matches!(what, Name::Link(_)));
        if let Some(link) = links.map(|(name, _)| *name).filter(|_| self.random.chance(1, 2)) {
            self.trace.push(format!("unlink {link}"));
            self.names.remove(link);
            return fs::remove_file(self.path(link)).map_err(said);
        }
        let (Some((target, _)), Some(link)) = (self.directory(), self.free_name()) else { return Ok(()) };
        self.trace.push(format!("link {link} to {target}"));
        symlink(target, self.path(link)).map_err(said)?;
        self.names.insert(link, Name::Link(target));
        Ok(())
    }

    /// Another working directory, beside the stores.
    fn go(&mut self) -> Result<(), String> {
        let place = if self.random.chance(1, 2) { "here" } else { "there" };
        self.trace.push(format!("go {place}"));
        std::env::set_current_dir(self.root.join(place)).map_err(said)
    }

    /// A child that drops some of its handles, and ends; in the parent a transaction goes on meanwhile.
    fn fork(&mut self) -> Result<(), String> {
        let Some(at) = self.any_open() else { return Ok(()) };
        let (drops, value) = (self.random.bits(), self.random.bits());
        let Open { number, region, store } = &self.open[at];
        self.trace.push(format!("fork with {number}"));
        let mut tx = store.begin(Mode::Restore).map_err(said)?;
        tx.store(region, 0, &value).map_err(said)?;
        in_a_child(|| self.drop_some(&tx, drops))?;
        tx.commit(store.reach()).map_err(said)?;
        self.models[*number].cells.insert(0, value);
        Ok(())
    }

    /// In the child: whatever is dropped here is the parent's, who goes on with it.
    fn drop_some(&self, tx: &Transaction<'_>, which: u64) {
        // SAFETY: the child's memory is its own, and it ends without touching any of this again.
        unsafe {
            if which & 1 != 0 {
                drop(std::ptr::read(tx));
            }
            for (i, open) in self.open.iter().enumerate() {
                let open = ManuallyDrop::new(std::ptr::read(open));
                if which >> (2 * i + 1) & 1 != 0 {
                    drop(std::ptr::read(&raw const open.region));
                }
                if which >> (2 * i + 2) & 1 != 0 {
                    drop(std::ptr::read(&raw const open.store));
                }
            }
        }
    }

    /// Copies a directory, or its names alone, and opens the copy: refused if the store is open.
    fn copy(&mut self) -> Result<(), String> {
        let Some((from, number)) = self.directory() else { return Ok(()) };
        let hard = self.random.chance(1, 2);
        self.trace.push(format!("{} {from}", if hard { "hard links of" } else { "copy" }));
        let (from, to) = (self.path(from), self.root.join("copy"));
        fs::create_dir(&to).map_err(said)?;
        for entry in fs::read_dir(&from).map_err(said)? {
            let name = entry.map_err(said)?.file_name();
            let (from, to) = (from.join(&name), to.join(&name));
            match hard {
                // The lock is what a copy would be kept out by.
                true if name == "lock" => {}
                true => fs::hard_link(from, to).map_err(said)?,
                false => drop(fs::copy(from, to).map_err(said)?),
            }
        }
        let held = self.open.iter().any(|open| open.number == number);
        let opened = self.options().open(&to);
        match (opened, held, hard) {
            (Err(OpenError::Copied { .. }), true, false) | (Err(_), true, true) => {}
            (Ok(_), true, _) => return Err("a copy of a store in use was opened".into()),
            (Ok(copy), false, _) => {
                let region = copy.segment("data").map(|data| data.map_all());
                same(&self.models[number], &region.map_err(said)?.map_err(said)?, "the copy")?;
            }
            (Err(error), ..) => return Err(said(error)),
        }
        fs::remove_dir_all(&to).map_err(said)
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(at) = self.any_open() else { return Ok(()) };
        let Open { number, region, store } = self.open.swap_remove(at);
        self.trace.push(format!("close {number}"));
        drop(region);
        store.close().map_err(said)
    }

    /// Whether all that is open shows what was committed.
    fn compare(&self) -> Result<(), String> {
        let each = |open: &Open| same(&self.models[open.number], &open.region, &open.number.to_string());
        self.open.iter().try_for_each(each)
    }

    /// Whether everything is where it belongs, when nothing is open any more.
    fn end(&mut self) -> Result<(), String> {
        while !self.open.is_empty() {
            self.close()?;
        }
        let mut found = 0;
        for (name, what) in &self.names {
            let Name::Directory(number) = what else { continue };
            let report = caliburn::check(self.path(name)).map_err(said)?;
            if !report.is_clean() {
                return Err(format!("{name}: {:?}", report.problems));
            }
            let (store, model) = (self.options().open(self.path(name)).map_err(said)?, &self.models[*number]);
            let mut more: BTreeMap<String, u64> =
                store.segments().iter().map(|segment| (segment.name().to_owned(), segment.len())).collect();
            if more.remove("data") != Some(model.len) || more != model.more {
                return Err(format!("{name} has the segments {more:?}, and must have {model:?}"));
            }
            let region = store.segment("data").map_err(said)?.map_all().map_err(said)?;
            same(model, &region, name)?;
            found += 1;
        }
        if found != self.models.len() {
            return Err(format!("{found} of {} stores are there", self.models.len()));
        }
        Ok(())
    }
}

fn same(model: &Model, region: &Region, what: &str) -> Result<(), String> {
    let wrong =
        (0..CELLS).find(|cell| region.load::<u64>(cell * 8) != model.cells.get(cell).copied().unwrap_or(0));
    wrong.map_or(Ok(()), |cell| Err(format!("{what}: cell {cell} is not what was committed")))
}

/// Runs `work` in a child, which then ends at once.
fn in_a_child(work: impl FnOnce()) -> Result<(), String> {
    // SAFETY: the walk is this process's only thread but for the stores' own, which hold no lock that dropping
    // handles takes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: the child ends here.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: it is our child, and `status` is ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited == child && status == 0 { Ok(()) } else { Err("the child failed".into()) }
}
