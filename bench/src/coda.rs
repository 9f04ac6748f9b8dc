//! `coda` (RVM, section 7.3; Table 2): what the two optimisations keep out of the log, for transactions like
//! those of Coda's file servers and of its clients.
//!
//! The traces of 1993 are gone; these are generated after what sections 5.2 and 7.3 say of them. Modular code
//! declares what it changes in each procedure, though its caller has done so (duplicates within a transaction).
//! Servers force every commit. Clients commit lazily and flush now and then, and `cp d1/* d2` changes the same
//! directory with every file (what a later transaction supersedes). Sizes of structures are ours.

use crate::Arguments;
use crate::report::{Random, rounded};
use crate::target::{Failure, options};
use caliburn::{Class, Mode, Region, Statistics, Store, Transaction, Tuning};
use serde_json::json;
use std::time::{Duration, Instant};

const DIRECTORIES: usize = 64;
const FILES: usize = 128;
const DIRECTORY: usize = 8192;
const ENTRY: usize = 48;
const VNODE: usize = 256;
const VOLUME: usize = 128;
const RECORD: usize = 160;
const RECORDS: usize = 4096;

const VNODES: usize = VOLUME;
const PAGES: usize = VNODES + DIRECTORIES * (1 + FILES) * VNODE;
const JOURNAL: usize = PAGES + DIRECTORIES * DIRECTORY;
const BYTES: usize = JOURNAL + RECORDS * RECORD;

/// Either kind of machine.
#[derive(Clone, Copy, PartialEq)]
enum Machine {
    Server,
    Client,
}

/// Its data, beside a model of what must be there in the end.
struct FileSystem<'s> {
    region: &'s Region,
    model: Vec<u8>,
    number: u64,
}

impl<'s> FileSystem<'s> {
    /// Declares bytes and changes them.
    fn change(&mut self, tx: &mut Transaction<'s>, offset: usize, len: usize) {
        self.number += 1;
        let value = ((self.number * 0x9E37) >> 3) as u8;
        self.model[offset..offset + len].fill(value);
        tx.write(self.region, offset, &self.model[offset..offset + len]).expect("within the data");
    }

    /// Declares bytes that a caller has declared, as a careful procedure does.
    fn declare(&self, tx: &mut Transaction<'s>, offset: usize, len: usize) {
        tx.set_range(self.region, offset..offset + len).expect("within the data");
    }

    fn vnode(directory: usize, file: Option<usize>) -> usize {
        VNODES + (directory * (1 + FILES) + file.map_or(0, |file| file + 1)) * VNODE
    }

    /// The directory package: counts in the header, and the entry.
    fn enter(&mut self, tx: &mut Transaction<'s>, directory: usize, file: usize) {
        let page = PAGES + directory * DIRECTORY;
        self.change(tx, page, 32);
        self.change(tx, page + 64 + file * ENTRY, ENTRY);
    }

    /// The vnode package: the caller has declared the vnode that it stores.
    fn put(&mut self, tx: &mut Transaction<'s>, vnode: usize) {
        self.declare(tx, vnode, VNODE / 2);
        self.change(tx, vnode, 64);
    }

    /// An entry of the resolution log of a server, of the modify log of a client.
    fn journal(&mut self, tx: &mut Transaction<'s>) {
        let at = JOURNAL + self.number as usize % RECORDS * RECORD;
        self.change(tx, at, RECORD);
    }

    /// A file is made in a directory or stored anew: what the server does.
    fn serve(&mut self, tx: &mut Transaction<'s>, directory: usize, file: usize, made: bool) {
        let (parent, child) = (Self::vnode(directory, None), Self::vnode(directory, Some(file)));
        if made {
            self.change(tx, parent, VNODE / 2);
            self.enter(tx, directory, file);
            self.put(tx, parent);
        }
        self.change(tx, child, VNODE);
        self.put(tx, child);
        self.change(tx, 0, VOLUME);
        self.journal(tx);
    }

    /// The same on a client, in two transactions: the cached directory changes with every file, the cached
    /// file's status with each of its own.
    fn cache(&mut self, tx: &mut Transaction<'s>, directory: usize, file: usize, made: bool) {
        let (parent, child) = (Self::vnode(directory, None), Self::vnode(directory, Some(file)));
        if made {
            self.change(tx, parent, VNODE);
            self.enter(tx, directory, file);
            // The whole of the directory's first page, which its package hands out.
            self.declare(tx, PAGES + directory * DIRECTORY, 256);
            self.put(tx, parent);
            self.change(tx, child, VNODE);
            self.journal(tx);
        } else {
            self.change(tx, child, VNODE);
            self.journal(tx);
        }
        self.put(tx, child);
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (machine, name, flush) in
        [(Machine::Server, "server", 1), (Machine::Client, "client", 20), (Machine::Client, "client", 200)]
    {
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        let path = dir.path().join("store");
        let mut options = options(64, 16);
        // The flusher shall not interfere: the trace says when it is flushed.
        options.tuning(Tuning { flush_interval: Duration::from_secs(3600), ..Tuning::default() });
        let store = options.open(&path)?;
        let region = store.create_segment("data", BYTES as u64)?.map_all()?;
        let budget = Duration::from_secs_f64(arguments.seconds * arguments.rounds as f64);
        let (transactions, elapsed, model) = trace(&store, &region, machine, flush, budget)?;
        let statistics = store.statistics();
        drop(region);
        store.close()?;
        let store = options.open(&path)?;
        let region = store.segment("data")?.map_all()?;
        let mut found = vec![0; BYTES];
        region.read(0, &mut found);
        if found != model {
            return Err(format!("coda, {name}: the data are not those of the trace").into());
        }
        print(arguments, machine, name, flush, transactions, elapsed, &statistics);
    }
    Ok(())
}

/// Files are copied into one directory after the other: each is made, then stored.
fn trace(
    store: &Store,
    region: &Region,
    machine: Machine,
    flush: u64,
    budget: Duration,
) -> Result<(u64, Duration, Vec<u8>), Failure> {
    let mut system = FileSystem { region, model: vec![0; BYTES], number: 0 };
    let mut random = Random(0xC0DA_C0DA_C0DA_C0DA);
    let (start, mut transactions) = (Instant::now(), 0);
    while start.elapsed() < budget {
        let (directory, files) = (random.below(DIRECTORIES), 1 + random.below(40));
        let first = random.below(FILES - files);
        for file in first..first + files {
            for made in [true, false] {
                let mut tx = store.begin(Mode::Restore)?;
                match machine {
                    Machine::Server => system.serve(&mut tx, directory, file, made),
                    Machine::Client => system.cache(&mut tx, directory, file, made),
                }
                tx.commit(if machine == Machine::Server { Class::Power } else { Class::Process })?;
                transactions += 1;
                if machine == Machine::Client && transactions % flush == 0 {
                    store.flush()?;
                }
            }
        }
    }
    store.flush()?;
    Ok((transactions, start.elapsed(), system.model))
}

fn print(
    arguments: &Arguments,
    machine: Machine,
    name: &str,
    flush: u64,
    transactions: u64,
    elapsed: Duration,
    statistics: &Statistics,
) {
    let Statistics { log_bytes, duplicate_bytes, merged_bytes, .. } = *statistics;
    let whole = (log_bytes + duplicate_bytes + merged_bytes) as f64;
    let share = |bytes: u64| rounded(bytes as f64 / whole, 4);
    let (intra, inter) = (share(duplicate_bytes), share(merged_bytes));
    let class = if machine == Machine::Server { "power" } else { "process" };
    let ns = elapsed.as_nanos() as f64 / transactions as f64;
    if arguments.json {
        let params = json!({"machine": name, "flush_every": flush, "transactions": transactions, "log_bytes": log_bytes,
            "intra_saved": intra, "inter_saved": inter, "total_saved": rounded(intra + inter, 4)});
        println!(
            "{}",
            json!({"workload": "coda", "system": "caliburn", "policy": "redo", "class": class, "threads": 1,
                "params": params, "ns_per_tx": rounded(ns, 1)})
        );
    } else {
        println!(
            "coda          {name}, flushed every {flush:>3}: {transactions:>8} transactions, {log_bytes:>11} bytes written to the log, saved within transactions {:.1} %, between them {:.1} %, together {:.1} %",
            intra * 100.0,
            inter * 100.0,
            (intra + inter) * 100.0
        );
    }
}
