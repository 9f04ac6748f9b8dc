//! Write protection of mapped memory, and a message for a store that is made all the same (Rio, section 2: a wild
//! store must not reach what is to survive).
//!
//! By pages: `mprotect` around each use, two system calls. By keys, where the processor has them: the pages
//! carry a key, and each thread says in a register whether it may store to pages with that key.

use crate::faults;
use crate::rescue;
use crate::simulated::unless;
use rustix::mm::{MprotectFlags, mprotect};
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// How memory is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `mprotect`: when nobody needs to store, nobody can; when somebody does, everybody can.
    Pages,
    /// The process's protection key: each thread by itself.
    Key,
}

/// Lets every thread store to whole pages, or none.
///
/// # Safety
/// The range must be mapped, and nobody may rely on storing to it if `write` is false.
pub unsafe fn protect(start: *mut u8, len: usize, write: bool) -> io::Result<()> {
    let flags = if write { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    let _steady = unless("opened-while-detached", write).then(rescue::steady);
    // SAFETY: passed on from the caller.
    unsafe { mprotect(start.cast(), len, flags)? };
    Ok(())
}

/// The process's key, if processor and kernel have them. The calling thread may not store to what carries it, nor
/// may threads that it starts from now on; older threads may not even read it.
pub fn key() -> Option<u32> {
    *KEY.get_or_init(|| {
        const DISABLE_WRITE: libc::c_ulong = 2;
        // SAFETY: takes two integers; a failure allocates nothing.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, DISABLE_WRITE) };
        u32::try_from(key).ok().filter(|_| cfg!(target_arch = "x86_64"))
    })
}

static KEY: OnceLock<Option<u32>> = OnceLock::new();

/// Gives whole mapped pages the process's key.
///
/// # Safety
/// The range must be mapped, and those who store to it must be permitted by then.
pub unsafe fn carry_key(start: *mut u8, len: usize) -> io::Result<()> {
    let key = key().ok_or(io::ErrorKind::Unsupported)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: passed on from the caller; the key was allocated.
    match unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, len, protection, key) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the process's key off.
///
/// # Safety
/// As for [`carry_key`].
pub unsafe fn drop_key(start: *mut u8, len: usize) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: passed on from the caller; key 0 is everybody's.
    match unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, len, protection, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

thread_local! {
    /// How many want this thread to be permitted.
    static PERMITS: Cell<u32> = const { Cell::new(0) };
    /// A number that no other thread ever has.
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// A thread's permission to store to what carries the key. Given back on another thread, it stays with the
/// thread that had it: less is protected, and nothing fails that should not.
#[derive(Debug)]
pub struct Permit {
    thread: u64,
}

impl Permit {
    /// Permits the calling thread.
    pub fn new() -> Permit {
        let permits = PERMITS.get();
        PERMITS.set(permits + 1);
        if permits == 0 {
            set_right(true);
        }
        Permit { thread: THREAD.with(|number| *number) }
    }
}

impl Default for Permit {
    fn default() -> Permit {
        Permit::new()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A thread that is ending has no right to take back.
        if THREAD.try_with(|number| *number) == Ok(self.thread) {
            let permits = PERMITS.get().saturating_sub(1);
            PERMITS.set(permits);
            if permits == 0 {
                set_right(false);
            }
        }
    }
}

/// Says in the register of the calling thread whether it may store.
fn set_right(write: bool) {
    let Some(key) = key() else { return };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the key was allocated, so the processor has the register; only this key's bits are changed.
    unsafe {
        let mut rights: u32;
        std::arch::asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nostack));
        rights &= !(3 << (2 * key));
        if !write {
            rights |= 2 << (2 * key);
        }
        std::arch::asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (key, write);
}

/// Protected stretches that the handler knows by name.
const KNOWN: usize = 256;
const NAME_MAX: usize = 64;

struct Known {
    base: AtomicUsize,
    len: AtomicUsize,
    /// Offset in the segment of the first byte.
    start: AtomicU64,
    name: [AtomicU8; NAME_MAX],
}

static LIST: [Known; KNOWN] = [const {
    Known {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        start: AtomicU64::new(0),
        name: [const { AtomicU8::new(0) }; NAME_MAX],
    }
}; KNOWN];

/// An address that nothing is mapped at: the entry is being filled.
const FILLING: usize = 1;

/// While it lives, a fault in that stretch is told of by name.
#[derive(Debug)]
pub struct Named(Option<usize>);

impl Named {
    /// `len` bytes at `base` show the segment `name` from its byte `start` on. Beyond a few hundred stretches,
    /// faults are not told of.
    pub fn new(base: usize, len: usize, start: u64, name: &str) -> Named {
        install();
        let free = |known: &Known| {
            known.base.compare_exchange(0, FILLING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let Some(number) = LIST.iter().position(free) else { return Named(None) };
        let known = &LIST[number];
        known.len.store(len, Ordering::SeqCst);
        known.start.store(start, Ordering::SeqCst);
        let bytes = name.bytes().chain(std::iter::repeat(0));
        known.name.iter().zip(bytes).for_each(|(place, byte)| place.store(byte, Ordering::SeqCst));
        known.base.store(base, Ordering::SeqCst);
        Named(Some(number))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            LIST[number].base.store(0, Ordering::SeqCst);
        }
    }
}

/// A store that a protection forbids, and an access to what a file has no more.
const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

static BEFORE: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];

/// Takes the signals over, for good; what is not ours goes to the handlers that had them.
fn install() {
    BEFORE.iter().zip(SIGNALS).for_each(|(before, signal)| _ = before.get_or_init(|| take(signal)));
}

/// Handlers that were in place of ours when threads had to wait in ours.
struct Replaced(UnsafeCell<[MaybeUninit<libc::sigaction>; 8]>);

// SAFETY: each place is written once, by the call that drew its number, before its address is published.
unsafe impl Sync for Replaced {}

static REPLACED: Replaced = Replaced(UnsafeCell::new([const { MaybeUninit::uninit() }; 8]));
static REPLACED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// In a handler: takes over the first of them alone, also from a handler that came after ours. Whether that is done.
fn hear_of_protection() -> bool {
    if BEFORE[0].get().is_none() {
        BEFORE[0].get_or_init(|| take(SIGNALS[0]));
        return true;
    }
    let now = now(SIGNALS[0]);
    if now.sa_sigaction == on_fault as *const () as usize {
        return true;
    }
    let number = REPLACED_COUNT.fetch_add(1, Ordering::SeqCst);
    if number >= 8 {
        return false;
    }
    // SAFETY: the place is this call's alone, and is never written again.
    let place = unsafe { REPLACED.0.get().cast::<libc::sigaction>().add(number) };
    // SAFETY: as above.
    unsafe { place.write(now) };
    LATER[0].store(place, Ordering::SeqCst);
    take(SIGNALS[0]);
    true
}

/// What handles a signal now.
fn now(signal: libc::c_int) -> libc::sigaction {
    // SAFETY: as in `take`; nothing is set.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now);
        now
    }
}

/// Takes over the second of them alone: for memory that has to be [rescued](rescue).
pub fn hear_of_lost_memory() {
    BEFORE[1].get_or_init(|| take(SIGNALS[1]));
}

fn take(signal: libc::c_int) -> libc::sigaction {
    // SAFETY: both structures are plain integers, zero is valid for them; the handler does only what a handler
    // may: it reads and writes atomics, waits for one, writes to a descriptor, and sets an action.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &action, &mut before);
        before
    }
}

/// Handlers that were put in place of ours later, and that ours has come before again: the last of each signal.
static LATER: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// Comes before the handlers that others have put in place of ours since. They get what is not ours, as before, and
/// may hand it on to ours. Whether there were some.
pub fn come_first() -> bool {
    let mut replaced = false;
    for (number, signal) in SIGNALS.into_iter().enumerate() {
        if BEFORE[number].get().is_none() {
            continue;
        }
        let now = now(signal);
        if now.sa_sigaction != on_fault as *const () as usize {
            // Never freed: a handler may be reading what was there.
            let put = |action| LATER[number].store(Box::into_raw(Box::new(action)), Ordering::SeqCst);
            put(now);
            let was = take(signal);
            // Another one may have come in between.
            if was.sa_sigaction != now.sa_sigaction && was.sa_sigaction != on_fault as *const () as usize {
                put(was);
            }
            replaced = true;
        }
    }
    replaced
}

thread_local! {
    /// What a call of ours was about that called another's handler, which may call ours, about the same; and where
    /// on the stack it is: further up. It may have left without returning.
    static HANDED_ON: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid structure, with an address for this signal.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    const ACCESS: libc::c_int = 2;
    const KEY_CODE: libc::c_int = 4;
    let ours = || KEY.get().copied().flatten();
    let (stored, gone) = match signal {
        libc::SIGBUS => (false, code == libc::BUS_ADRERR),
        // A key of the program's own is its own handler's business.
        // SAFETY: as above, and with this code there is a key.
        _ => (code == ACCESS || code == KEY_CODE && ours() == Some(unsafe { key_of(info) }), false),
    };
    if stored && rescue::waited(address) {
        return;
    }
    if signal == libc::SIGSEGV
        && code == ACCESS
        && let Some(stored) = is_store(context)
        && faults::opened(address, stored) == Some(true)
    {
        return;
    }
    if gone && rescue::detached(address, hear_of_protection) {
        return;
    }
    if stored || gone {
        for known in &LIST {
            let (base, len) = (known.base.load(Ordering::SeqCst), known.len.load(Ordering::SeqCst));
            if base > FILLING && address >= base && address - base < len {
                tell(known, address, known.start.load(Ordering::SeqCst) + (address - base) as u64, gone);
                restore_default(signal);
                return;
            }
        }
    }
    let number = usize::from(signal == libc::SIGBUS);
    let Some(before) = BEFORE[number].get() else { return restore_default(signal) };
    let later = LATER[number].load(Ordering::SeqCst);
    // SAFETY: it was put there whole, and is never freed.
    let later = unsafe { later.as_ref() };
    let (here, about) = ((&raw const later).addr(), context.addr());
    let (before_this, above) = HANDED_ON.get();
    let nested = about == before_this && here < above;
    HANDED_ON.set(if nested { (0, 0) } else { (about, here) });
    hand_on(later.filter(|_| !nested).unwrap_or(before), signal, info, context);
    HANDED_ON.set((0, 0));
}

/// The protection key that forbids, which `libc` has no name for.
///
/// # Safety
/// It must be what the kernel says of a fault that a key has caused.
unsafe fn key_of(info: *const libc::siginfo_t) -> u32 {
    // Behind three numbers, the address, and room as an address is aligned.
    const OFFSET: usize = 16 + 2 * size_of::<usize>();
    // SAFETY: within the structure, in the caller's word.
    unsafe { info.cast::<u8>().add(OFFSET).cast::<u32>().read() }
}

/// Whether the fault is that of a store. None: that of a jump to what is no code.
#[cfg(target_arch = "x86_64")]
fn is_store(context: *mut libc::c_void) -> Option<bool> {
    const WRITE: i64 = 2;
    const FETCH: i64 = 16;
    // SAFETY: the kernel hands over a valid structure of this type.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    (error & FETCH == 0).then_some(error & WRITE != 0)
}

/// The same: a record among those that follow the registers says so. Where there is none, as some emulators have
/// it, every fault is taken for that of a store.
#[cfg(target_arch = "aarch64")]
fn is_store(context: *mut libc::c_void) -> Option<bool> {
    const ESR_MAGIC: u32 = 0x4553_5201;
    const RECORDS: usize = 4096;
    const JUMPS: [u64; 2] = [0x20, 0x21];
    const WRITE: u64 = 1 << 6;
    // SAFETY: the kernel hands over a valid structure of this type, whose last bytes are records: each begins with
    // its kind and its length, and one of kind zero ends them.
    unsafe {
        let machine = &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let records = machine.cast::<u8>().add(size_of::<libc::mcontext_t>() - RECORDS);
        let mut at = 0;
        while at + 16 <= RECORDS {
            let record = records.add(at);
            let (kind, len) = (record.cast::<u32>().read(), record.cast::<u32>().add(1).read() as usize);
            if kind == ESR_MAGIC {
                let syndrome = record.cast::<u64>().add(1).read();
                return (!JUMPS.contains(&(syndrome >> 26 & 0x3F))).then_some(syndrome & WRITE != 0);
            }
            if kind == 0 || len == 0 {
                break;
            }
            at += len;
        }
    }
    Some(true)
}

/// The same, where nothing tells.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_store(_: *mut libc::c_void) -> Option<bool> {
    Some(true)
}

/// Calls another's handler.
fn hand_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => restore_default(signal),
        // SAFETY: this is the handler that was there, called as the kernel would have called it.
        handler => unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        },
    }
}

/// The store is tried again when the handler returns, and ends the process.
fn restore_default(signal: libc::c_int) {
    // SAFETY: sets an action; allowed in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// A line on standard error, without allocating.
fn tell(known: &Known, address: usize, offset: u64, gone: bool) {
    let mut line = [0u8; 256];
    let mut len = 0;
    let mut put = |text: &[u8]| {
        let room = line.len() - len;
        let part = &text[..text.len().min(room)];
        line[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    };
    put(match gone {
        true => &b"caliburn: memory that its file does not have any more: segment \""[..],
        false => &b"caliburn: store outside of a transaction's declared ranges: segment \""[..],
    });
    for place in &known.name {
        match place.load(Ordering::SeqCst) {
            0 => break,
            byte => put(&[byte]),
        }
    }
    put(b"\", byte ");
    let mut digits = [0; 20];
    put(number(offset, 10, &mut digits));
    put(b" (address 0x");
    put(number(address as u64, 16, &mut digits));
    put(match gone {
        true => &b"): the file was cut off, or its medium has failed\n"[..],
        false => &b"): protected (Options::guard, Options::tracking)\n"[..],
    });
    // SAFETY: the bytes are ours; a failure is of no consequence.
    unsafe { libc::write(2, line.as_ptr().cast(), len) };
}

fn number(mut value: u64, base: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(value % base) as usize];
        value /= base;
        if value == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_allocating() {
        let mut digits = [0; 20];
        assert_eq!(number(0, 10, &mut digits), b"0");
        assert_eq!(number(u64::MAX, 10, &mut digits), b"18446744073709551615");
        assert_eq!(number(0xDEAD_BEEF, 16, &mut digits), b"deadbeef");
    }
}
