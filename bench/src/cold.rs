//! `cold`: a program's state made available to it after a restart (*Persistent Memory for HP-UX*, Table 1): 100 MB,
//! mapped and looked at, and read into memory of its own, from a disk whose page cache was emptied of it, and from a
//! segment of a region in memory.

use crate::Arguments;
use crate::report::{self, Line, Sample, median};
use crate::target::Failure;
use crate::wisconsin::memory;
use caliburn_os::map::Reservation;
use caliburn_pm::{Region, RegionOptions, SegmentOptions};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// User and system time of this process so far.
fn processor() -> [Duration; 2] {
    // SAFETY: zeros are a value of it, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    [usage.ru_utime, usage.ru_stime]
        .map(|time| Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64))
}

/// A word of each page, summed up.
fn look(bytes: &[u8]) -> u64 {
    bytes.chunks(4096).map(|page| u64::from(page[0]) + u64::from(page[page.len() - 1])).sum()
}

struct State {
    file: File,
    region: Arc<Region>,
    bytes: usize,
}

const NAME: &str = "state";

impl State {
    fn new(dir: &Path, memory: &Path, bytes: usize) -> Result<State, Failure> {
        let content: Vec<u8> = (0..bytes).map(|i| (i / 4096 * 7 + i) as u8).collect();
        let mut file = File::options().read(true).write(true).create_new(true).open(dir.join(NAME))?;
        file.write_all(&content)?;
        file.sync_all()?;
        let options = RegionOptions { len: Some((bytes + (8 << 20)) as u64), ..RegionOptions::default() };
        let region = Arc::new(Region::create(memory.join("region"), &options)?);
        region.create_segment(NAME, bytes as u64, &SegmentOptions::default(), |_| {})?;
        region.attach(NAME, true)?.write(0, &content)?;
        Ok(State { file, region, bytes })
    }

    /// The disk's cache is emptied of it.
    fn forget(&self) -> Result<(), Failure> {
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn mapped(&self) -> Result<u64, Failure> {
        let memory = Reservation::new(self.bytes, None)?;
        // SAFETY: the reservation is new, and nobody changes the file.
        unsafe { memory.map_shared(0, self.bytes, self.file.as_fd(), 0, false) }?;
        // SAFETY: all of it is mapped.
        Ok(look(unsafe { std::slice::from_raw_parts(memory.base().as_ptr(), self.bytes) }))
    }

    fn mapped_segment(&self) -> Result<u64, Failure> {
        let segment = self.region.attach(NAME, false)?;
        // SAFETY: nobody writes to the segment.
        Ok(look(unsafe { std::slice::from_raw_parts(segment.as_ptr(), self.bytes) }))
    }

    fn read(&self, mut from: impl FnMut(&mut [u8], usize) -> Result<(), Failure>) -> Result<u64, Failure> {
        let mut all = vec![0; self.bytes];
        for (number, part) in all.chunks_mut(1 << 20).enumerate() {
            from(part, number << 20)?;
        }
        Ok(look(&all))
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bytes = arguments.data_mb.unwrap_or(100) << 20;
    let (dir, memory) = (tempfile::tempdir_in(&arguments.dir)?, tempfile::tempdir_in(memory())?);
    let state = State::new(dir.path(), memory.path(), bytes)?;
    let names = ["mmap, disk", "mmap, PM", "read, disk", "read, PM"];
    let mut lines = names.map(|name| Line::new(name, "none", "none", 1, json!({"data_mb": bytes >> 20})));
    let mut times = names.map(|_| [Vec::new(), Vec::new()]);
    let mut expected = None;
    report::interleave(arguments.rounds, &mut lines, || {
        let mut samples = Vec::new();
        for (at, name) in names.into_iter().enumerate() {
            state.forget().expect("the cache can be emptied");
            let (before, start) = (processor(), Instant::now());
            let found = match name {
                "mmap, disk" => state.mapped(),
                "mmap, PM" => state.mapped_segment(),
                "read, disk" => {
                    let mut file = File::open(dir.path().join(NAME)).expect("it is there");
                    state.read(|part, _| Ok(file.read_exact(part)?))
                }
                _ => {
                    let segment = state.region.attach(NAME, false).expect("it is there");
                    state.read(|part, from| Ok(segment.read(from as u64, part)?))
                }
            };
            let ns_per_tx = start.elapsed().as_nanos() as f64;
            let found = black_box(found.expect("it can be read"));
            assert_eq!(*expected.get_or_insert(found), found, "{name}");
            let after = processor();
            for (which, times) in times[at].iter_mut().enumerate() {
                times.push((after[which] - before[which]).as_secs_f64());
            }
            samples.push(Sample { ns_per_tx, latencies: Vec::new() });
        }
        samples
    });
    for (line, [user, system]) in lines.iter_mut().zip(times) {
        // The first round warms up, here too.
        let [user, system] = [user, system].map(|times| times[1..].to_vec());
        line.params["user_s"] = json!(report::rounded(median(user), 4));
        line.params["system_s"] = json!(report::rounded(median(system), 4));
    }
    lines.chunks(2).for_each(|pair| report::print("cold", arguments.json, pair, 0));
    Ok(())
}
