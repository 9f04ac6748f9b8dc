//! Stores.

use crate::error::{CALIBURN_BUSY, Done, Fault, call};
use crate::options::{
    self, CALIBURN_OS, CALIBURN_POWER, CALIBURN_PROCESS, CALIBURN_REDO, CALIBURN_SHADOW, CALIBURN_UNDO,
    caliburn_options, class,
};
use caliburn::{Class, Inherited, Policy, Store};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// An open store.
pub struct caliburn_store;

/// A store and what of it is out.
pub struct Open {
    pub store: Store,
    /// Heaps and tickets, which refer to the store.
    pub dependents: AtomicUsize,
    /// When lazy commits were forced last by caliburn_tend().
    tended: Mutex<Instant>,
}

impl Open {
    fn new(store: Store) -> Open {
        Open { store, dependents: AtomicUsize::new(0), tended: Mutex::new(Instant::now()) }
    }
}

pub static STORES: Table<Box<Open>> = Table::new(2);

/// The store of a handle.
#[inline]
pub fn open(handle: *const caliburn_store) -> Done<&'static Open> {
    let open = STORES.get(handle).ok_or_else(none)?;
    if open.store.is_inherited() { Err(Inherited.into()) } else { Ok(open) }
}

#[cold]
fn none() -> Fault {
    Fault::invalid("no such store: never opened, or closed already")
}

/// Opens the store in directory path, or creates it as the options say, and recovers it. Options may be null,
/// and may be freed afterwards. One process at a time has a store open for writing: CALIBURN_BUSY otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_open(
    path: *const c_char,
    options: *const caliburn_options,
    store: *mut *mut caliburn_store,
) -> c_int {
    call(|| {
        text::check("store", store)?;
        let opened = options::of(options)?.open(text::path("path", path)?)?;
        Ok(text::put("store", store, STORES.insert(Box::new(Open::new(opened))))?)
    })
}

/// Closes a store: makes every commit durable and gives the directory up. Regions stay mapped, and are to be
/// unmapped; no transaction can be begun any more. What was prepared and not decided is undecided when the store is
/// opened again. After CALIBURN_BUSY, with transactions, heaps or tickets still there, the store is as it was; after
/// any other code it is closed, and the next opening recovers it. In a process that was forked from the one that has
/// opened the store, the handle is given back, and nothing else is done.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_close(store: *mut caliburn_store) -> c_int {
    call(|| {
        if STORES.get(store).is_some_and(|open| open.store.is_inherited()) {
            // Heaps and tickets may refer to it.
            std::mem::forget(STORES.take(store).ok_or_else(none)?);
            return Ok(());
        }
        let now = open(store)?;
        let prepared = now.store.prepared().iter().filter(|prepared| !prepared.recovered).count();
        let transactions = now.store.query().uncommitted.saturating_sub(prepared);
        let dependents = now.dependents.load(Ordering::Acquire);
        if transactions > 0 || dependents > 0 {
            return Err(Fault::new(
                CALIBURN_BUSY,
                format!(
                    "the store has {transactions} open transaction(s) and {dependents} heap(s) or ticket(s): end them first"
                ),
            ));
        }
        Ok(STORES.take(store).ok_or_else(none)?.store.close()?)
    })
}

/// Makes every commit so far durable.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_flush(store: *mut caliburn_store) -> c_int {
    call(|| Ok(open(store)?.store.flush()?))
}

/// Brings every committed change so far to its segment, durably, and empties the log but for what prepared
/// transactions need.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_truncate(store: *mut caliburn_store) -> c_int {
    call(|| Ok(open(store)?.store.truncate()?))
}

/// Does what the background threads would, in a store opened without them: forces lazy commits that are due, and
/// truncates as needed.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_tend(store: *mut caliburn_store) -> c_int {
    call(|| {
        let open = open(store)?;
        let mut tended = open.tended.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let due = tended.elapsed() >= open.store.tuning().flush_interval;
        open.store.tend_flush(due)?;
        if due {
            *tended = Instant::now();
        }
        Ok(open.store.tend_truncation()?)
    })
}

/// Changes one of the options that can be changed later: CALIBURN_TRUNCATE_PERCENT to CALIBURN_MERGE_LAZY.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_tune(store: *mut caliburn_store, option: c_int, value: u64) -> c_int {
    call(|| {
        let store = &open(store)?.store;
        let mut tuning = store.tuning();
        if !options::tune(&mut tuning, option, value)? {
            return Err(Fault::invalid(&format!("{option} is no option that can be changed later")));
        }
        Ok(store.set_options(tuning)?)
    })
}

/// The recovery policy, CALIBURN_REDO, CALIBURN_UNDO or CALIBURN_SHADOW; -1 if there is no such store.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_policy(store: *const caliburn_store) -> c_int {
    open(store).map_or(-1, |open| match open.store.policy() {
        Policy::Undo => CALIBURN_UNDO,
        Policy::Shadow => CALIBURN_SHADOW,
        _ => CALIBURN_REDO,
    })
}

/// The most that a commit can survive: CALIBURN_PROCESS, _OS or _POWER; -1 if there is no such store.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_reach(store: *const caliburn_store) -> c_int {
    open(store).map_or(-1, |open| match open.store.reach() {
        Class::Process => CALIBURN_PROCESS,
        Class::Os => CALIBURN_OS,
        _ => CALIBURN_POWER,
    })
}

/// Something that caliburn_check() found.
#[repr(C)]
pub struct caliburn_problem {
    /// The file.
    pub path: *const c_char,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub text: *const c_char,
}

/// Called with each problem, whose strings are valid until it returns, and with what the caller passed along.
pub type caliburn_problem_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, problem: *const caliburn_problem)>;

/// Verifies a store that nobody has open for writing: every checksum, every record. CALIBURN_OK if it is sound,
/// CALIBURN_DAMAGED if not, and then each problem is passed to the function, which may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_check(
    path: *const c_char,
    found: caliburn_problem_fn,
    context: *mut c_void,
) -> c_int {
    // SAFETY: passed on from the caller.
    unsafe { caliburn_check_with(path, std::ptr::null(), found, context) }
}

/// caliburn_check() of a store that is to be opened with these options, which may be null: with what they list
/// outside of the store's directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_check_with(
    path: *const c_char,
    options: *const caliburn_options,
    found: caliburn_problem_fn,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let report = options::of(options)?.check(text::path("path", path)?)?;
        for problem in &report.problems {
            let string = |text: &[u8]| std::ffi::CString::new(text).unwrap_or_default();
            let of_file = string(problem.path.as_os_str().as_encoded_bytes());
            let text = string(problem.text.as_bytes());
            let problem =
                caliburn_problem { path: of_file.as_ptr(), offset: problem.offset, text: text.as_ptr() };
            // SAFETY: the function is the caller's word (convention 2).
            found.inspect(|found| unsafe { found(context, &problem) });
        }
        let Some(first) = report.problems.first() else { return Ok(()) };
        let code = crate::error::CALIBURN_DAMAGED;
        Err(Fault::new(code, format!("{}, offset {}: {}", first.path.display(), first.offset, first.text)))
    })
}

/// Says whether a failure class is one, for those who pass it on.
pub fn class_of(number: c_int) -> Done<Class> {
    class(u64::try_from(number).unwrap_or(u64::MAX))
}
