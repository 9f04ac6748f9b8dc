//! Stores to protected memory, caught (McNamee, section 5.2.2): the thread that stores waits in a signal handler
//! until another one has done what must come first, and has let the page be stored to; then its store goes on. Where
//! memory is hidden, those who load from it are caught as well.
//!
//! ```text
//!   who stores:   fault - handler: leave the address on the desk - wait - store again
//!   who serves:   wait for an address - save what the page holds, force, unprotect - say so
//! ```
//!
//! The handler itself only reads and writes atomics and makes system calls, so that it does not matter what the
//! thread was doing when it stored.

use crate::lineage::{generation, notice_forks};
use crate::page_size;
use crate::simulated::planted;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{futex, gettid};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

/// Where those who store and the one who serves them meet. Never freed, since a handler may be there, but used
/// again.
#[derive(Debug, Default)]
pub struct Desk {
    used: AtomicBool,
    /// Whether somebody is being served: a lock, 2 if others wait.
    taken: AtomicU32,
    state: AtomicU32,
    address: AtomicUsize,
    stored: AtomicBool,
    /// The process of the server, and its thread.
    generation: AtomicU32,
    thread: AtomicU32,
}

/// Values of [`Desk::state`].
mod state {
    /// Nobody has left anything.
    pub const IDLE: u32 = 0;
    /// An address was left.
    pub const ASKED: u32 = 1;
    /// The access can be made again.
    pub const OPENED: u32 = 2;
    /// It must not be.
    pub const REFUSED: u32 = 3;
    /// Nobody serves any more.
    pub const CLOSED: u32 = 4;
    /// Nor does anybody need to be, who loads: all can be.
    pub const SHOWN: u32 = 5;
}

/// Sleeps until the word is not `seen` any more. Who is woken for another reason looks again.
fn sleep(word: &AtomicU32, seen: u32) {
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, u32::MAX >> 1);
}

impl Desk {
    /// One at which nobody serves yet: whoever stores waits.
    pub fn new() -> &'static Desk {
        static ALL: Mutex<Vec<&'static Desk>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let free = all.iter().find(|desk| !desk.used.swap(true, Ordering::SeqCst)).copied();
        let desk = free.unwrap_or_else(|| {
            let made: &'static Desk = Box::leak(Box::new(Desk { used: true.into(), ..Desk::default() }));
            all.push(made);
            made
        });
        desk.thread.store(0, Ordering::SeqCst);
        desk.generation.store(generation(), Ordering::SeqCst);
        // Whoever waited for the last one who served has been refused, or asks the next one, who knows no such
        // address.
        desk.state.store(state::IDLE, Ordering::SeqCst);
        desk
    }

    /// It may serve another store: nothing that is caught comes here any more.
    pub fn give_back(&self) {
        self.close();
        self.used.store(false, Ordering::SeqCst);
    }

    /// Calls `open` with each address that is caught, and whether it is stored to, until the desk is closed. What
    /// it returns: whether the access can be made now.
    pub fn serve(&self, mut open: impl FnMut(usize, bool) -> bool) {
        /// Who waits must not wait for a thread that has panicked.
        struct Close<'d>(&'d Desk);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        let _close = Close(self);
        self.thread.store(gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
        loop {
            match self.state.load(Ordering::SeqCst) {
                state::ASKED => {
                    let opened =
                        open(self.address.load(Ordering::SeqCst), self.stored.load(Ordering::SeqCst));
                    let answer = if opened { state::OPENED } else { state::REFUSED };
                    // It may have been closed meanwhile.
                    self.change(state::ASKED, answer);
                    wake(&self.state);
                }
                state::CLOSED | state::SHOWN => return,
                seen => sleep(&self.state, seen),
            }
        }
    }

    /// Goes from one state to another, if it is in that.
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Nobody serves any more: what is caught is refused.
    pub fn close(&self) {
        let shut = |seen| (seen != state::SHOWN).then_some(state::CLOSED);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, shut);
        wake(&self.state);
    }

    /// The same, and all that was hidden is shown: who was caught loading goes on.
    pub fn close_shown(&self) {
        self.state.store(state::SHOWN, Ordering::SeqCst);
        wake(&self.state);
    }

    /// In a handler: has the page opened. False if the access must not be made.
    fn ask(&self, address: usize, stored: bool) -> bool {
        let of_this = self.generation.load(Ordering::SeqCst) == generation();
        // A child has no server, and a server that stores would wait for itself.
        if !of_this || self.thread.load(Ordering::SeqCst) == gettid().as_raw_nonzero().get() as u32 {
            return false;
        }
        let mut free = self.taken.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        while !free {
            free = self.taken.swap(2, Ordering::SeqCst) == 0;
            if !free {
                sleep(&self.taken, 2);
            }
        }
        self.address.store(address, Ordering::SeqCst);
        self.stored.store(stored, Ordering::SeqCst);
        if self.change(state::IDLE, state::ASKED) {
            wake(&self.state);
        }
        while self.state.load(Ordering::SeqCst) == state::ASKED {
            sleep(&self.state, state::ASKED);
        }
        let opened = match self.state.load(Ordering::SeqCst) {
            state::SHOWN => !stored,
            answer => answer == state::OPENED,
        };
        for answer in [state::OPENED, state::REFUSED] {
            self.change(answer, state::IDLE);
        }
        if self.taken.swap(0, Ordering::SeqCst) == 2 {
            wake(&self.taken);
        }
        opened
    }
}

/// What is caught of a stretch of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Catch {
    /// Stores.
    Stores,
    /// Loads too.
    All,
}

/// Stretches of memory whose stores can be caught, in a process.
const KNOWN: usize = 1024;

struct Known {
    base: AtomicUsize,
    len: AtomicUsize,
    loads: AtomicBool,
    desk: AtomicPtr<Desk>,
}

static LIST: [Known; KNOWN] = [const {
    Known {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        loads: AtomicBool::new(false),
        desk: AtomicPtr::new(std::ptr::null_mut()),
    }
}; KNOWN];

/// An address that nothing is mapped at: the entry is being filled.
const FILLING: usize = 1;

/// While it lives, accesses to that stretch which its protection forbids are caught.
#[derive(Debug)]
pub struct Caught(usize);

impl Caught {
    /// Has accesses to `len` bytes at `base` brought before a desk, by the handler that
    /// [`Named`](crate::guard::Named) installs. None if there are too many such stretches.
    pub fn new(base: usize, len: usize, what: Catch, desk: &'static Desk) -> Option<Caught> {
        if what == Catch::All && !planted("children-have-holes") {
            static ONCE: Once = Once::new();
            // Theirs come first: what they let a child read is taken away again here.
            notice_forks();
            // SAFETY: the handler does what may be done in a child: it reads atomics and maps memory. If it cannot
            // be had, children have holes there.
            ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(leave_nothing)) });
        }
        let free = |known: &Known| {
            known.base.compare_exchange(0, FILLING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let number = LIST.iter().position(free)?;
        let known = &LIST[number];
        known.len.store(len, Ordering::SeqCst);
        known.loads.store(what == Catch::All, Ordering::SeqCst);
        known.desk.store(std::ptr::from_ref(desk).cast_mut(), Ordering::SeqCst);
        known.base.store(base, Ordering::SeqCst);
        Some(Caught(number))
    }

    /// The stretch is so long now.
    pub fn extend(&self, len: usize) {
        LIST[self.0].len.store(len, Ordering::SeqCst);
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        LIST[self.0].base.store(0, Ordering::SeqCst);
    }
}

/// In a forked child, where loads are caught: what is mapped there is not inherited, or is not to be used, and
/// nobody serves. Nothing else must come to lie there, since who unmaps the region unmaps it.
extern "C" fn leave_nothing() {
    for known in &LIST {
        let (base, len) = (known.base.load(Ordering::SeqCst), known.len.load(Ordering::SeqCst));
        if base > FILLING && len > 0 && known.loads.load(Ordering::SeqCst) {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let start = ptr::with_exposed_provenance_mut(base);
            // SAFETY: the stretch is one of ours, and the only thread of this process does not use it.
            let _ = unsafe {
                mmap_anonymous(start, len.next_multiple_of(page_size()), ProtFlags::empty(), flags)
            };
        }
    }
}

/// In a handler, for an access that a protection forbids: whether it can be made now. None if nobody wants to know.
pub(crate) fn opened(address: usize, stored: bool) -> Option<bool> {
    let known = LIST.iter().find(|known| {
        let (base, len) = (known.base.load(Ordering::SeqCst), known.len.load(Ordering::SeqCst));
        base > FILLING && address >= base && address - base < len
    })?;
    if !stored && !known.loads.load(Ordering::SeqCst) {
        return None;
    }
    // SAFETY: a desk was put there before the base, and is never freed.
    Some(unsafe { &*known.desk.load(Ordering::SeqCst) }.ask(address, stored))
}
