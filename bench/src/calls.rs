//! `calls`: what the C interface costs over Rust's, per call: a transaction of one range of eight bytes that
//! begins, declares at an address and commits, three calls, in either language's way.

use crate::Arguments;
use crate::report::{self, Line, Random};
use crate::target::{Failure, options};
// The functions below.
use caliburn::{Class, Mode, Policy};
use caliburn_c as _;
use serde_json::json;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

#[repr(C)]
struct Tx([u64; 32]);

unsafe extern "C" {
    fn caliburn_open(path: *const c_char, options: *const c_void, store: *mut *mut c_void) -> c_int;
    fn caliburn_close(store: *mut c_void) -> c_int;
    fn caliburn_segment_open(store: *mut c_void, name: *const c_char, segment: *mut *mut c_void) -> c_int;
    fn caliburn_map(segment: *mut c_void, offset: u64, len: u64, region: *mut *mut c_void) -> c_int;
    fn caliburn_unmap(region: *mut c_void) -> c_int;
    fn caliburn_region_address(region: *const c_void) -> *mut c_void;
    fn caliburn_begin(store: *mut c_void, mode: c_int, tx: *mut Tx) -> c_int;
    fn caliburn_set_range(tx: *mut Tx, address: *const c_void, len: usize) -> c_int;
    fn caliburn_commit(tx: *mut Tx, class: c_int) -> c_int;
}

/// Calls per transaction.
const CALLS: f64 = 3.0;
const BYTES: usize = 1 << 20;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (policy, name) in [(Policy::Redo, "redo"), (Policy::Undo, "undo")] {
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        let (of_rust, of_c) = (dir.path().join("rust"), dir.path().join("c"));
        let mut with = options(arguments.log_mb, arguments.stage_mb);
        with.policy(policy);
        let store = with.open(&of_rust)?;
        let region = store.create_segment("data", BYTES as u64)?.map_all()?;
        with.open(&of_c)?.create_segment("data", BYTES as u64)?;
        let mut through = Through::open(&of_c)?;
        let mut randoms = [Random(0x9E37_79B9_7F4A_7C15), Random(0x9E37_79B9_7F4A_7C15)];
        let line = |system| Line::new(system, name, "process", 1, json!({"bytes": 8}));
        let mut lines = [line("caliburn, Rust"), line("caliburn, C")];
        report::interleave(arguments.rounds, &mut lines, || {
            let rust = report::measure(arguments.seconds, 64, || {
                let at = region.as_ptr().wrapping_add(randoms[0].below(BYTES / 8) * 8);
                let mut tx = store.begin(Mode::Restore).expect("the store is sound");
                // SAFETY: the bytes are the region's, which stays mapped, and this thread's alone.
                unsafe {
                    tx.set_range_at(at, 8).expect("it is mapped");
                    at.cast::<u64>().write(7);
                }
                tx.commit(Class::Process).expect("the store is sound");
            });
            let c = report::measure(arguments.seconds, 64, || {
                through.transaction(randoms[1].below(BYTES / 8) * 8)
            });
            vec![rust, c]
        });
        report::print("calls", arguments.json, &lines, 0);
        if !arguments.json {
            let per_call = (lines[1].ns_per_tx() - lines[0].ns_per_tx()) / CALLS;
            println!("  the C interface takes {per_call:.1} ns more per call ({name})");
        }
    }
    Ok(())
}

/// A store opened through the C interface.
struct Through {
    store: *mut c_void,
    region: *mut c_void,
    start: *mut u8,
    tx: Tx,
}

impl Through {
    fn open(path: &std::path::Path) -> Result<Through, Failure> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let mut through = Through {
            store: ptr::null_mut(),
            region: ptr::null_mut(),
            start: ptr::null_mut(),
            tx: Tx([0; 32]),
        };
        let mut segment = ptr::null_mut();
        // SAFETY: each pointer is valid for what the header says.
        let code = unsafe {
            caliburn_open(path.as_ptr(), ptr::null(), &mut through.store)
                | caliburn_segment_open(through.store, c"data".as_ptr(), &mut segment)
                | caliburn_map(segment, 0, 0, &mut through.region)
        };
        // SAFETY: as above.
        through.start = unsafe { caliburn_region_address(through.region) }.cast();
        if code == 0 { Ok(through) } else { Err(format!("the C interface said {code}").into()) }
    }

    #[inline]
    fn transaction(&mut self, offset: usize) {
        // SAFETY: the offset is within the region; the transaction's memory stays where it is.
        let code = unsafe {
            let at = self.start.add(offset);
            let begun = caliburn_begin(self.store, 0, &mut self.tx);
            let declared = caliburn_set_range(&mut self.tx, at.cast(), 8);
            at.cast::<u64>().write(7);
            begun | declared | caliburn_commit(&mut self.tx, 0)
        };
        assert_eq!(code, 0);
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        // SAFETY: the handles are given back once.
        unsafe {
            caliburn_unmap(self.region);
            caliburn_close(self.store);
        }
    }
}
