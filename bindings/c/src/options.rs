//! How a store is created and opened.

use crate::error::{Done, Fault, call};
use caliburn::{
    BeforeImages, BufferPool, Class, Guard, Options, Phase, Policy, Prefetch, Replacement, Tracking, Tuning,
};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// How a store is created and opened: made by caliburn_options_new(), changed by caliburn_options_set().
pub struct caliburn_options;

/// Creates the store if the directory holds none: 0 or 1. Default 0.
pub const CALIBURN_CREATE: c_int = 1;
/// Creates the store, and fails if one is there: 0 or 1. Default 0.
pub const CALIBURN_CREATE_NEW: c_int = 2;
/// Opens for reading; several readers may share: 0 or 1. Default 0.
pub const CALIBURN_OPEN_READ_ONLY: c_int = 3;
/// Opens a damaged store read-only and shows what precedes the damage: 0 or 1. Default 0.
pub const CALIBURN_SALVAGE: c_int = 4;
/// Recovery policy of a new store: CALIBURN_REDO (default), CALIBURN_UNDO or CALIBURN_SHADOW.
pub const CALIBURN_RECOVERY_POLICY: c_int = 5;
/// Bytes of a new store's log, a multiple of 4096. Default 64 MiB. A transaction takes half of it at most.
pub const CALIBURN_LOG_BYTES: c_int = 6;
/// Bytes of the stage, which holds commits until they are in the log. Default 32 MiB.
pub const CALIBURN_STAGE_BYTES: c_int = 7;
/// Address space kept free behind each region that reaches its segment's end, for growth. Default 64 GiB.
pub const CALIBURN_RESERVE_BYTES: c_int = 8;
/// The failure class that the memory of a store with the undo policy survives, where the system does not know.
pub const CALIBURN_MEMORY_SURVIVES: c_int = 9;
/// Refuses a store whose media cannot give this failure class. Default CALIBURN_PROCESS.
pub const CALIBURN_REQUIRE: c_int = 10;
/// Protection from stores outside of transactions: CALIBURN_GUARD_OFF (default in the library), _PAGES or _KEYS.
pub const CALIBURN_GUARD: c_int = 11;
/// Looks at every commit for bytes that were changed without being declared, which then fails with
/// CALIBURN_PANIC: 0 or
/// 1. Default 0. For tests: it takes as much memory again as the regions.
pub const CALIBURN_VERIFY: c_int = 12;
/// Lets nothing but declared bytes reach a segment, redo policy only: 0 or 1. Default 0.
pub const CALIBURN_DECLARED_ONLY: c_int = 13;
/// Threads that flush and truncate in the background: 0 or 1. Default 1. Without them only calls do.
pub const CALIBURN_BACKGROUND: c_int = 14;
/// Truncation begins when this share of the log is in use, 1 to 90 percent. Default 50. Can be changed later.
pub const CALIBURN_TRUNCATE_PERCENT: c_int = 15;
/// A lazy commit is forced within so many milliseconds. Default 100; UINT64_MAX: only when something else
/// forces. Can be changed later.
pub const CALIBURN_FLUSH_INTERVAL_MS: c_int = 16;
/// Bytes of private copies of pages that may be kept. Default: a third of what the process may use. Can be changed
/// later.
pub const CALIBURN_MEMORY_BUDGET: c_int = 17;
/// Drops superseded bytes of lazy commits: 0 or 1. Default 1. Can be changed later.
pub const CALIBURN_MERGE_LAZY: c_int = 18;
/// Who may read and write the files that are made, as for chmod: default 0600, the owner alone.
pub const CALIBURN_FILE_MODE: c_int = 19;
/// Opens for writing also a store that was copied, or restored, while it was in use, after all of it was verified as
/// far as it can be: 0 or 1. Default 0.
pub const CALIBURN_COPIED: c_int = 20;
/// How changes are found: CALIBURN_DECLARED (default), CALIBURN_FAULTS or CALIBURN_SCAN.
pub const CALIBURN_TRACKING: c_int = 21;
/// When what pages held is written, with CALIBURN_SHADOW and CALIBURN_FAULTS: CALIBURN_EAGER, CALIBURN_LAZY or
/// CALIBURN_ADAPTIVE (default).
pub const CALIBURN_BEFORE_IMAGES: c_int = 22;
/// What is read into memory before the program touches it: CALIBURN_ASKED (default), CALIBURN_REGIONS or
/// CALIBURN_RECORDED.
pub const CALIBURN_PREFETCH: c_int = 23;
/// Bytes a second that are read ahead at most; UINT64_MAX, the default: as fast as they come. Can be changed later.
pub const CALIBURN_PREFETCH_RATE: c_int = 24;
/// Bytes of a buffer pool that shows regions in place of the system, with CALIBURN_SHADOW and CALIBURN_FAULTS; 0,
/// the default: none. System calls that are given memory of a region fail with EFAULT where its page is not in a
/// frame, and a forked child has no memory there.
pub const CALIBURN_POOL_BYTES: c_int = 25;
/// Bytes of a page of that pool: a power of two, from the system's page to 16 MiB. Default 64 KiB.
pub const CALIBURN_POOL_PAGE_BYTES: c_int = 26;
/// Which page leaves it for another one: CALIBURN_RANDOM (default), CALIBURN_FIFO or CALIBURN_SECOND_CHANCE.
pub const CALIBURN_POOL_REPLACEMENT: c_int = 27;

/// Whether the log may grow for a transaction that outgrows it; 0 or 1 (default). Else what would be too much is
/// refused with CALIBURN_TOO_BIG. With CALIBURN_REDO.
pub const CALIBURN_LARGE_TRANSACTIONS: c_int = 28;
/// Whether a transaction may outgrow the memory budget: what it changes lies in files then; 0 (default) or 1. With
/// CALIBURN_REDO. What is known to be missing is in docs/memory.md.
pub const CALIBURN_OVERFLOW: c_int = 29;
/// Says that what a killed program had stored in memory is there, where no witness can tell it: 0 or 1. Default 0.
/// Only if the system did not go down since, and no other state of the file system was mounted.
pub const CALIBURN_MEMORY_KEPT: c_int = 30;

/// Any page.
pub const CALIBURN_RANDOM: c_int = 0;
/// The page that has been there for the longest time.
pub const CALIBURN_FIFO: c_int = 1;
/// The same, but what is touched while it is hidden stays.
pub const CALIBURN_SECOND_CHANCE: c_int = 2;

/// What caliburn_region_prefetch() asks for.
pub const CALIBURN_ASKED: c_int = 0;
/// All of a region when it is mapped, if there is memory for all that is mapped.
pub const CALIBURN_REGIONS: c_int = 1;
/// What the program touched when the store was open before, in that order; it is recorded again.
pub const CALIBURN_RECORDED: c_int = 2;

/// Before the page is stored to.
pub const CALIBURN_EAGER: c_int = 0;
/// As late as the memory budget lets it: with the commit, at the latest.
pub const CALIBURN_LAZY: c_int = 1;
/// Lazily as long as memory is plentiful.
pub const CALIBURN_ADAPTIVE: c_int = 2;

/// New values go to a log, and from there to the segments (RVM).
pub const CALIBURN_REDO: c_int = 0;
/// The segments are the store; old values are kept until the commit (Vista).
pub const CALIBURN_UNDO: c_int = 1;
/// The segments are the store; what pages held is on the medium before they are stored to (UMS). One transaction
/// at a time is open, as large as the disk.
pub const CALIBURN_SHADOW: c_int = 2;

/// The program declares what it is about to change.
pub const CALIBURN_DECLARED: c_int = 0;
/// The program just stores while a transaction is open, the only one: the first store to each page faults, and waits
/// until what the page holds is kept. System calls that store to a page which is not open fail with EFAULT, unless
/// the range was declared. Transactions have neither savepoints nor branches.
pub const CALIBURN_FAULTS: c_int = 1;
/// The program just stores while a transaction is open, the only one: the kernel notes the pages, and the commit
/// finds and logs the bytes that differ. With CALIBURN_REDO only; what system calls store is found, too. A page that
/// was changed takes twice its memory. Transactions have neither savepoints nor branches.
pub const CALIBURN_SCAN: c_int = 2;

/// A commit survives the death of the process.
pub const CALIBURN_PROCESS: c_int = 0;
/// A commit survives a crash of the system.
pub const CALIBURN_OS: c_int = 1;
/// A commit survives a power cut.
pub const CALIBURN_POWER: c_int = 2;

/// Regions are not protected.
pub const CALIBURN_GUARD_OFF: c_int = 0;
/// By the protection of their pages: two system calls per transaction and region.
pub const CALIBURN_GUARD_PAGES: c_int = 1;
/// By memory protection keys, where the processor has them.
pub const CALIBURN_GUARD_KEYS: c_int = 2;

/// Options, the part of them that can be changed later, and a buffer pool, of no bytes if there is to be none.
type Chosen = (Options, Tuning, BufferPool);

static OPTIONS: Table<Mutex<Chosen>> = Table::new(1);

/// The failure class of a number.
pub fn class(number: u64) -> Done<Class> {
    match c_int::try_from(number) {
        Ok(CALIBURN_PROCESS) => Ok(Class::Process),
        Ok(CALIBURN_OS) => Ok(Class::Os),
        Ok(CALIBURN_POWER) => Ok(Class::Power),
        _ => Err(Fault::invalid(&format!("{number} is no failure class: CALIBURN_PROCESS, _OS or _POWER"))),
    }
}

fn truth(number: u64) -> Done<bool> {
    match number {
        0 | 1 => Ok(number == 1),
        _ => Err(Fault::invalid(&format!("{number} is neither 0 nor 1"))),
    }
}

/// Sets what can also be changed later. False if that number names something else.
pub fn tune(tuning: &mut Tuning, option: c_int, value: u64) -> Done<bool> {
    match option {
        CALIBURN_TRUNCATE_PERCENT => tuning.truncate_percent = value.try_into().unwrap_or(u8::MAX),
        CALIBURN_FLUSH_INTERVAL_MS if value == u64::MAX => tuning.flush_interval = Duration::MAX,
        CALIBURN_FLUSH_INTERVAL_MS => tuning.flush_interval = Duration::from_millis(value),
        CALIBURN_MEMORY_BUDGET => tuning.memory_budget = Some(value),
        CALIBURN_MERGE_LAZY => tuning.merge_lazy = truth(value)?,
        CALIBURN_PREFETCH_RATE => tuning.prefetch_rate = Some(value).filter(|rate| *rate != u64::MAX),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets what a buffer pool is like. False if that number names something else.
fn pooled(pool: &mut BufferPool, option: c_int, value: u64) -> Done<bool> {
    match option {
        CALIBURN_POOL_BYTES => pool.bytes = value,
        CALIBURN_POOL_PAGE_BYTES => pool.page_bytes = value.try_into().unwrap_or(usize::MAX),
        CALIBURN_POOL_REPLACEMENT => {
            pool.replacement = match c_int::try_from(value) {
                Ok(CALIBURN_RANDOM) => Replacement::Random,
                Ok(CALIBURN_FIFO) => Replacement::Fifo,
                Ok(CALIBURN_SECOND_CHANCE) => Replacement::SecondChance,
                _ => {
                    return Err(Fault::invalid(
                        "pages are replaced by CALIBURN_RANDOM, CALIBURN_FIFO or CALIBURN_SECOND_CHANCE",
                    ));
                }
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Options as the library has them: without a guard, which C programs ask for.
fn fresh() -> Chosen {
    let mut options = Options::new();
    options.guard(Guard::Off);
    (options, Tuning::default(), BufferPool { bytes: 0, ..BufferPool::default() })
}

/// What a handle, or null, says.
pub fn of(handle: *const caliburn_options) -> Done<Options> {
    let (mut options, tuning, pool) = if handle.is_null() { fresh() } else { lock(handle)?.clone() };
    if pool.bytes > 0 {
        options.buffer_pool(pool);
    }
    options.tuning(tuning);
    Ok(options)
}

fn lock(handle: *const caliburn_options) -> Done<MutexGuard<'static, Chosen>> {
    let chosen = OPTIONS.get(handle);
    let chosen = chosen.ok_or_else(|| Fault::invalid("no such options: never made, or freed already"))?;
    Ok(chosen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Makes options with their defaults, to be freed with caliburn_options_free().
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_new() -> *mut caliburn_options {
    OPTIONS.insert(Mutex::new(fresh()))
}

/// Sets an option, one of the constants CALIBURN_CREATE to CALIBURN_OVERFLOW.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_set(options: *mut caliburn_options, option: c_int, value: u64) -> c_int {
    call(|| {
        let (options, tuning, pool) = &mut *lock(options)?;
        match option {
            CALIBURN_CREATE => options.create(truth(value)?),
            CALIBURN_CREATE_NEW => options.create_new(truth(value)?),
            CALIBURN_OPEN_READ_ONLY => options.read_only(truth(value)?),
            CALIBURN_SALVAGE => options.salvage(truth(value)?),
            CALIBURN_RECOVERY_POLICY => options.policy(match c_int::try_from(value) {
                Ok(CALIBURN_REDO) => Policy::Redo,
                Ok(CALIBURN_UNDO) => Policy::Undo,
                Ok(CALIBURN_SHADOW) => Policy::Shadow,
                _ => {
                    let text = "a recovery policy is CALIBURN_REDO, CALIBURN_UNDO or CALIBURN_SHADOW";
                    return Err(Fault::invalid(text));
                }
            }),
            CALIBURN_TRACKING => options.tracking(match c_int::try_from(value) {
                Ok(CALIBURN_DECLARED) => Tracking::Declared,
                Ok(CALIBURN_FAULTS) => Tracking::Fault,
                Ok(CALIBURN_SCAN) => Tracking::Scan,
                _ => {
                    return Err(Fault::invalid(
                        "changes are found by CALIBURN_DECLARED, CALIBURN_FAULTS or CALIBURN_SCAN",
                    ));
                }
            }),
            CALIBURN_BEFORE_IMAGES => options.before_images(match c_int::try_from(value) {
                Ok(CALIBURN_EAGER) => BeforeImages::Eager,
                Ok(CALIBURN_LAZY) => BeforeImages::Lazy,
                Ok(CALIBURN_ADAPTIVE) => BeforeImages::Adaptive,
                _ => {
                    return Err(Fault::invalid(
                        "before-images are CALIBURN_EAGER, CALIBURN_LAZY or CALIBURN_ADAPTIVE",
                    ));
                }
            }),
            CALIBURN_PREFETCH => options.prefetch(match c_int::try_from(value) {
                Ok(CALIBURN_ASKED) => Prefetch::Asked,
                Ok(CALIBURN_REGIONS) => Prefetch::Regions,
                Ok(CALIBURN_RECORDED) => Prefetch::Recorded,
                _ => {
                    return Err(Fault::invalid(
                        "what is read ahead is CALIBURN_ASKED, CALIBURN_REGIONS or CALIBURN_RECORDED",
                    ));
                }
            }),
            CALIBURN_LOG_BYTES => options.log_bytes(value),
            CALIBURN_STAGE_BYTES => options.stage_bytes(value),
            CALIBURN_RESERVE_BYTES => options.reserve_bytes(value),
            CALIBURN_MEMORY_SURVIVES => options.memory_survives(class(value)?),
            CALIBURN_REQUIRE => options.require(class(value)?),
            CALIBURN_GUARD => options.guard(match c_int::try_from(value) {
                Ok(CALIBURN_GUARD_OFF) => Guard::Off,
                Ok(CALIBURN_GUARD_PAGES) => Guard::Pages,
                Ok(CALIBURN_GUARD_KEYS) => Guard::Keys,
                _ => return Err(Fault::invalid("a guard is CALIBURN_GUARD_OFF, _PAGES or _KEYS")),
            }),
            CALIBURN_VERIFY => options.verify(truth(value)?),
            CALIBURN_DECLARED_ONLY => options.declared_only(truth(value)?),
            CALIBURN_LARGE_TRANSACTIONS => options.large_transactions(truth(value)?),
            CALIBURN_OVERFLOW => options.overflow(truth(value)?),
            CALIBURN_BACKGROUND => options.background(truth(value)?),
            CALIBURN_COPIED => options.copied(truth(value)?),
            CALIBURN_MEMORY_KEPT => options.memory_kept(truth(value)?),
            CALIBURN_FILE_MODE => options.mode(match u32::try_from(value) {
                Ok(mode) if mode & !0o666 == 0 => mode,
                _ => return Err(Fault::invalid(&format!("{value:#o} is no mode of a file: 0 to 0666"))),
            }),
            _ if tune(tuning, option, value)? || pooled(pool, option, value)? => options,
            _ => return Err(Fault::invalid(&format!("{option} is no option"))),
        };
        Ok(())
    })
}

/// Sets the file or block device for a new store's log. Default: a file in the store.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_set_log_path(
    options: *mut caliburn_options,
    path: *const c_char,
) -> c_int {
    call(|| {
        lock(options)?.0.log_path(text::path("path", path)?);
        Ok(())
    })
}

/// Has the log written to a second file or block device as well, which is not in the store's directory: either may
/// be lost, lag or lie. 0: the log has one copy again.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_set_duplex_log(
    options: *mut caliburn_options,
    path: *const c_char,
) -> c_int {
    call(|| {
        let options = &mut lock(options)?.0;
        match path.is_null() {
            true => options.simplex_log(),
            false => options.duplex_log(text::path("path", path)?),
        };
        Ok(())
    })
}

/// Lists a file, a block device, or a directory with all that is in it, that the store may name though it is not in
/// its directory: a log, a segment on a device, an adopted file. What is not listed is not touched, since a store
/// that came from elsewhere can name any file. Paths that calls are given are listed.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_add_outside(options: *mut caliburn_options, path: *const c_char) -> c_int {
    call(|| {
        lock(options)?.0.outside(text::path("path", path)?);
        Ok(())
    })
}

/// The log is read, and searched behind its end for what was lost; or the undo logs are.
pub const CALIBURN_READ_LOG: c_int = 0;
/// Segments are compared with their checksums.
pub const CALIBURN_VERIFY_SEGMENTS: c_int = 1;

/// Called while a store is opened or checked, at least with every mebibyte that is read, with what is done
/// (CALIBURN_READ_LOG, CALIBURN_VERIFY_SEGMENTS), how many bytes of it were read, and how many are at most; and with
/// what the caller passed along. Other than 0 ends it with CALIBURN_INTERRUPTED: nothing is lost.
pub type caliburn_progress_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, phase: c_int, done: u64, total: u64) -> c_int>;

/// Has a function told how far opening or checking a store is, on the thread that does so; null: none. Function and
/// context are kept until the options are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_options_set_progress(
    options: *mut caliburn_options,
    function: caliburn_progress_fn,
    context: *mut c_void,
) -> c_int {
    /// What the caller passed along: it goes back to the caller's function, and nowhere else.
    struct Context(*mut c_void);
    // SAFETY: the caller's function takes it from whatever thread opens a store with these options (convention 2).
    unsafe impl Send for Context {}
    // SAFETY: as above.
    unsafe impl Sync for Context {}
    impl Context {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    call(|| {
        let context = Context(context);
        lock(options)?.0.progress(move |progress| {
            let phase = match progress.phase {
                Phase::VerifySegments => CALIBURN_VERIFY_SEGMENTS,
                _ => CALIBURN_READ_LOG,
            };
            let Some(function) = function else { return ControlFlow::Continue(()) };
            // SAFETY: the function is the caller's word (convention 2).
            match unsafe { function(context.get(), phase, progress.done, progress.total) } {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        Ok(())
    })
}

/// Frees options. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_options_free(options: *mut caliburn_options) {
    OPTIONS.take(options);
}
