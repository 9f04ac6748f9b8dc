//! `faults`: what stores that are caught cost, piece by piece (McNamee, Table 7.1): a system call, a page fault, a
//! signal, a protected page that a handler opens, a change of threads and back; then whole ones, with the undo
//! policy, in a buffer pool, and in a view whose hook does nothing.

use crate::Arguments;
use crate::report::{median, rounded};
use crate::target::{Failure, options};
use caliburn::{BufferPool, Guard, Mode, Options, Policy, Region, Replacement, Store, Tracking};
use caliburn_os::event::Event;
use caliburn_os::{guard, map};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

/// How often each is done in a round.
const TIMES: usize = 2048;
/// So far from each other that no fault opens two.
const STRIDE: usize = 64 << 10;

/// Something, done so often: the seconds that it took.
type Piece<'p> = (&'static str, Box<dyn FnMut() -> f64 + 'p>);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let bytes = TIMES * STRIDE;
    let open = |name: &str, with: &mut Options| -> Result<(Store, Region), Failure> {
        let store = with.guard(Guard::Off).open(dir.path().join(name))?;
        let region = store.create_segment("data", bytes as u64)?.map_all()?;
        warm(&dir.path().join(name).join("data.segment"))?;
        Ok((store, region))
    };
    let memory = map::Buffer::new(bytes)?;
    let base = memory.as_ptr().cast_mut();
    // Before a store takes the signal.
    let opened_by_handler = median((0..arguments.rounds).map(|_| with_handler(base)).collect());
    let mut with = options(64, 16);
    let caught = open("caught", with.policy(Policy::Undo).tracking(Tracking::Fault))?;
    let plain = open("plain", options(64, 16).policy(Policy::Undo))?;
    let (frames, page_bytes, replacement) = (64 << 20, 64 << 10, Replacement::Random);
    let pool = BufferPool { bytes: frames, page_bytes, replacement };
    let mut with = options(64, 16);
    let pooled = open("pooled", with.policy(Policy::Shadow).tracking(Tracking::Fault).buffer_pool(pool))?;
    let view = plain.1.view(|_, _| Ok(()))?;
    let other = Other::start();
    let mut pieces: Vec<Piece<'_>> = vec![
        ("system call", Box::new(|| timed(|_| _ = rustix::process::getppid()))),
        ("mprotect of a page", Box::new(|| timed(|i| protect(base, i / 2, i % 2 == 0)))),
        ("page fault, no signal", Box::new(|| timed(|i| zero(base, i)))),
        ("signal to oneself", Box::new(signals)),
        ("change of threads and back", Box::new(|| timed(|_| other.round()))),
        (
            "caught store, undo policy",
            Box::new(|| {
                let tx = caught.0.begin(Mode::Restore).expect("the store is sound");
                let took = timed(|i| store(caught.1.as_ptr(), i));
                tx.abort();
                took
            }),
        ),
        ("load that misses a buffer pool", Box::new(|| timed(|i| load(pooled.1.as_ptr(), i)))),
        (
            "load in a view",
            Box::new(|| {
                let mut inside = view.enter(plain.0.begin(Mode::Restore).expect("the store is sound"));
                let base = inside.as_ptr();
                let took = timed(|i| load(base, i));
                inside.leave().0.abort();
                took
            }),
        ),
    ];
    let mut samples = vec![Vec::new(); pieces.len()];
    for round in 0..=arguments.rounds {
        for ((_, piece), samples) in pieces.iter_mut().zip(&mut samples) {
            let took = piece();
            // The first round warms up.
            if round > 0 {
                samples.push(took);
            }
        }
    }
    other.ended.store(true, SeqCst);
    other.asked.signal();
    let names = pieces.iter().map(|(name, _)| *name);
    let medians: Vec<_> = names.zip(samples.into_iter().map(median)).collect();
    for (name, seconds) in [("store that a handler opens", opened_by_handler)].into_iter().chain(medians) {
        let us = seconds / TIMES as f64 * 1e6;
        match arguments.json {
            true => println!("{}", json!({"workload": "faults", "system": name, "us": rounded(us, 3)})),
            false => println!("faults  {name:32} {us:>8.2} us"),
        }
    }
    Ok(())
}

/// Has a file be in memory.
fn warm(path: &Path) -> Result<(), Failure> {
    std::fs::read(path)?;
    Ok(())
}

fn timed(mut piece: impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    (0..TIMES).for_each(&mut piece);
    begun.elapsed().as_secs_f64()
}

fn store(base: *mut u8, number: usize) {
    // SAFETY: so many strides are mapped, and this thread's alone.
    unsafe { base.add(number * STRIDE).write_volatile(1) };
}

fn load(base: *mut u8, number: usize) {
    // SAFETY: as above.
    unsafe { base.add(number * STRIDE).read_volatile() };
}

fn protect(base: *mut u8, number: usize, write: bool) {
    // SAFETY: as above; it is let be stored to again, or is touched no more.
    unsafe { guard::protect(base.add(number * STRIDE), caliburn_os::page_size(), write) }
        .expect("it is mapped");
}

/// Gives a page back and touches it.
fn zero(base: *mut u8, number: usize) {
    // SAFETY: as above; nobody misses what it held.
    unsafe { map::discard(base.add(number * STRIDE), caliburn_os::page_size()) }.expect("it is mapped");
    protect(base, number, true);
    store(base, number);
}

static OPENED: AtomicUsize = AtomicUsize::new(0);

/// Stores to protected pages, each of which a handler opens.
fn with_handler(base: *mut u8) -> f64 {
    extern "C" fn open(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let page = caliburn_os::page_size();
        // SAFETY: the kernel hands over a valid structure; the page is one of those below.
        let opened = unsafe {
            let at = (*info).si_addr().addr() / page * page;
            guard::protect(std::ptr::with_exposed_provenance_mut(at), page, true)
        };
        OPENED.fetch_add(usize::from(opened.is_ok()), SeqCst);
    }
    base.expose_provenance();
    (0..TIMES).for_each(|number| protect(base, number, true));
    (0..TIMES).for_each(|number| store(base, number));
    (0..TIMES).for_each(|number| protect(base, number, false));
    let before = OPENED.load(SeqCst);
    // SAFETY: plain integers; the handler does what a handler may, and the one before comes back.
    let took = unsafe {
        let (mut was, mut action): (libc::sigaction, libc::sigaction) =
            (std::mem::zeroed(), std::mem::zeroed());
        action.sa_sigaction = open as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut was);
        let took = timed(|number| store(base, number));
        libc::sigaction(libc::SIGSEGV, &raw const was, std::ptr::null_mut());
        took
    };
    assert_eq!(OPENED.load(SeqCst) - before, TIMES, "not every store was caught");
    took
}

/// Signals whose handler does nothing.
fn signals() -> f64 {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, and stays.
    unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
    // SAFETY: it has a handler.
    timed(|_| _ = unsafe { libc::raise(libc::SIGUSR1) })
}

/// A thread that answers.
struct Other {
    asked: Event,
    answered: Event,
    ended: AtomicBool,
}

impl Other {
    fn start() -> Arc<Other> {
        let other =
            Arc::new(Other { asked: Event::default(), answered: Event::default(), ended: false.into() });
        let serving = other.clone();
        std::thread::spawn(move || {
            let mut seen = 0;
            while !serving.ended.load(SeqCst) {
                serving.asked.wait(seen, None);
                if serving.asked.count() != seen {
                    seen = serving.asked.count();
                    serving.answered.signal();
                }
            }
        });
        other
    }

    fn round(&self) {
        let seen = self.answered.count();
        self.asked.signal();
        while self.answered.count() == seen {
            self.answered.wait(seen, None);
        }
    }
}
