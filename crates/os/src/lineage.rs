//! Whether this process has made something, or a parent from which it was forked: a child has copies of its parent's
//! handles, descriptors and mappings, and must not use them as if they were its own.
//!
//! A process number does not tell: each namespace counts from 1, and process 1 of one forks process 1 of another. A
//! page that the kernel gives every child as zeros does (`MADV_WIPEONFORK`, since Linux 4.14), however the child was
//! made. Handlers of fork(2) do the rest, where they run: a child that was made by clone(2) has none.
//!
//! | in a child | by fork(2) | by clone(2) alone |
//! |---|---|---|
//! | [`Mark`]s | 0 | 0 |
//! | memory [shared](share) with a file | can be read, and not stored to | is not there (`MADV_DONTFORK`) |
//! | what [`Child`] was given | is called, by the only thread | is not called |
//!
//! Invariant: the handlers hold no lock of ours but the one here, and allocate nothing.

use crate::page_size;
use crate::simulated::planted;
use crate::sync;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::io;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// What a [`Mark`]'s word says beside its owner's bits, in the process that has made it; 0 in every child.
pub const OURS: u32 = 1 << 31;
/// Bytes from one mark to the next: a line of the cache, so that none waits for another's stores.
const LINE: usize = 64;

/// What the handlers look at, under [`Held`].
struct State {
    /// Pages of marks.
    pages: Vec<usize>,
    /// Words that are nobody's.
    free: Vec<usize>,
    /// Memory that is shared with a file: first byte, and end.
    shared: BTreeMap<usize, usize>,
    /// What is called in a child.
    children: Vec<(u64, InChild)>,
    next: u64,
}

type InChild = Box<dyn Fn() + Send>;

struct Guarded(UnsafeCell<State>);

// SAFETY: reached through `Held`, of which there is one at a time.
unsafe impl Sync for Guarded {}

static STATE: Guarded = Guarded(UnsafeCell::new(State {
    pages: Vec::new(),
    free: Vec::new(),
    shared: BTreeMap::new(),
    children: Vec::new(),
    next: 0,
}));
static BUSY: AtomicBool = AtomicBool::new(false);

/// The lock on [`STATE`]: one that a handler takes before a fork and gives back after it, on both sides.
struct Held;

impl Held {
    fn take() -> Held {
        while BUSY.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Held
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: there is one of these at a time.
        unsafe { &mut *STATE.0.get() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

extern "C" fn before_fork() {
    let mut held = Held::take();
    each_shared(held.state(), |start, len| {
        // SAFETY: it is memory of ours; the advice changes no content.
        _ = unsafe { madvise(start, len, Advice::LinuxDoFork) };
    });
    std::mem::forget(held);
}

extern "C" fn in_parent() {
    // Taken by `before_fork`.
    let mut held = Held;
    each_shared(held.state(), |start, len| {
        // SAFETY: as above.
        _ = unsafe { madvise(start, len, Advice::LinuxDontFork) };
    });
}

extern "C" fn in_child() {
    let mut held = Held;
    let state = held.state();
    for page in &state.pages {
        // Where the kernel did not.
        // SAFETY: the page is one of marks, which are words, and this is the only thread.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(*page).write_bytes(0, page_size()) };
    }
    if !planted("child-stores-to-the-parent") {
        each_shared(state, |start, len| {
            // SAFETY: it is memory of the parent's, of which nothing here stores to.
            _ = unsafe { mprotect(start, len, MprotectFlags::READ) };
        });
    }
    state.children.iter().for_each(|(_, called)| called());
}

fn each_shared(state: &State, with: impl Fn(*mut std::ffi::c_void, usize)) {
    for (start, end) in &state.shared {
        with(ptr::with_exposed_provenance_mut(*start), end - start);
    }
}

/// Has the handlers called from now on. Those that others install later come later in a child.
pub(crate) fn notice_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers do what may be done in a child: they make system calls and store to memory of ours.
        _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

/// A word that is 0 in every process that is forked from the one that has made it.
#[derive(Debug)]
pub struct Mark(&'static AtomicU32);

impl Mark {
    /// One that says [`OURS`].
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new() -> io::Result<Mark> {
        notice_forks();
        let mut held = Held::take();
        let state = held.state();
        if state.free.is_empty() {
            let (flags, len) = (MapFlags::PRIVATE, page_size());
            // SAFETY: a new mapping, which stays.
            let page =
                unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
            if !planted("marks-inherited") {
                // Older kernels refuse; the handler is left then.
                // SAFETY: the whole of that mapping, which holds nothing.
                _ = unsafe { madvise(page, len, Advice::LinuxWipeOnFork) };
            }
            let start = page.expose_provenance();
            state.pages.push(start);
            state.free.extend((start..start + len).step_by(LINE));
        }
        let at = state.free.pop().expect("a page has several");
        // SAFETY: a word of a page that is never unmapped; zeros are a value of it.
        let word: &'static AtomicU32 = unsafe { &*ptr::with_exposed_provenance::<AtomicU32>(at) };
        word.store(OURS, Ordering::SeqCst);
        Ok(Mark(word))
    }

    /// Its word: never unmapped, and another mark's when this one is dropped.
    pub(crate) fn word(&self) -> &'static AtomicU32 {
        self.0
    }

    /// Whether this process has made it.
    pub fn is_ours(&self) -> bool {
        self.0.load(Ordering::Relaxed) & OURS != 0
    }
}

impl std::ops::Deref for Mark {
    type Target = sync::atomic::AtomicU32;

    #[inline(always)]
    fn deref(&self) -> &sync::atomic::AtomicU32 {
        // SAFETY: it is the same type, or one that has it as its only field.
        unsafe { &*ptr::from_ref(self.0).cast() }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        Held::take().state().free.push(ptr::from_ref(self.0).addr());
    }
}

/// Which process this is: a number that no parent or child of it has. In one process it stays the same.
pub fn generation() -> u32 {
    static MARK: AtomicPtr<Mark> = AtomicPtr::new(ptr::null_mut());
    static LAST: AtomicU32 = AtomicU32::new(0);
    let mut mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        let made = Box::into_raw(Box::new(Mark::new().expect("there is memory for a page")));
        // SAFETY: it was just made, and its word is not this one's until the number is in it.
        unsafe { (*made).0.store(0, Ordering::SeqCst) };
        let placed = MARK.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        mark = placed.map_or_else(|there| there, |_| made);
    }
    // SAFETY: once it is there it is never dropped.
    let word: &AtomicU32 = unsafe { (*mark).0 };
    match word.load(Ordering::SeqCst) {
        0 => {
            let number = LAST.fetch_add(1, Ordering::SeqCst) + 1;
            let set = word.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
            set.map_or_else(|there| there, |_| number)
        }
        number => number,
    }
}

/// Memory of a range is shared with a file from now on. The caller unmaps it, or maps something else over it, after
/// [`unshare`].
pub(crate) fn share(start: usize, len: usize) {
    notice_forks();
    let mut held = Held::take();
    let shared = &mut held.state().shared;
    // SAFETY: the caller has mapped it; the advice changes no content.
    _ = unsafe { madvise(ptr::with_exposed_provenance_mut(start), len, Advice::LinuxDontFork) };
    let (mut from, mut end) = (start, start + len);
    if let Some((before, to)) = shared.range(..start).next_back().filter(|(_, to)| **to >= start) {
        (from, end) = (*before, end.max(*to));
    }
    while let Some((next, to)) = shared.range(from..=end).next().map(|(next, to)| (*next, *to)) {
        shared.remove(&next);
        end = end.max(to);
    }
    shared.insert(from, end);
}

/// Memory of a range is shared with no file any more.
pub(crate) fn unshare(start: usize, len: usize) {
    let (mut held, end) = (Held::take(), start + len);
    let shared = &mut held.state().shared;
    while let Some((from, to)) = shared.range(..end).next_back().map(|(from, to)| (*from, *to)) {
        if to <= start {
            return;
        }
        shared.remove(&from);
        if to > end {
            shared.insert(end, to);
        }
        if from < start {
            shared.insert(from, start);
            return;
        }
    }
}

/// Something that is done first in every child that fork(2) makes, as long as this lives: it must neither allocate
/// nor wait.
#[derive(Debug)]
pub struct Child(u64);

impl Child {
    /// Has a function called.
    pub fn will(called: impl Fn() + Send + 'static) -> Child {
        notice_forks();
        let called: InChild = Box::new(called);
        let mut held = Held::take();
        let state = held.state();
        state.next += 1;
        state.children.push((state.next, called));
        Child(state.next)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut held = Held::take();
        let children = &mut held.state().children;
        let taken =
            children.iter().position(|(number, _)| *number == self.0).map(|at| children.swap_remove(at));
        drop(held);
        // It may end what has forks noticed itself.
        drop(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Forks with the handlers, and without.
    const WAYS: [fn() -> libc::c_long; 2] = [
        // SAFETY: the child makes system calls and ends.
        || unsafe { libc::fork().into() },
        // SAFETY: as above.
        || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) },
    ];
    /// A fork is not to meet the others' changes.
    static ALONE: Mutex<()> = Mutex::new(());

    /// What a check returned in a child.
    fn in_child(fork: fn() -> libc::c_long, check: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            let done = check();
            // SAFETY: the child ends.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = 0;
        // SAFETY: it is our child, and `status` is ours.
        assert_eq!(i64::from(unsafe { libc::waitpid(child as i32, &raw mut status, 0) }), child);
        status == 0
    }

    #[test]
    fn every_child_and_its_children_know_that_they_are_others() {
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for fork in WAYS {
            let (mark, own) = (Mark::new().unwrap(), generation());
            assert!(in_child(fork, || {
                let child = generation();
                let others = Mark::new().unwrap();
                let changed = !mark.is_ours() && others.is_ours() && child != own && child == generation();
                changed && in_child(fork, || !others.is_ours() && ![own, child].contains(&generation()))
            }));
            assert!(mark.is_ours() && generation() == own);
        }
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Nothing is mapped there.
        let at = |page: usize| 0x3000_0000_0000 + page * page_size();
        let of = |from: usize, to: usize| (at(from), at(to) - at(from));
        let now = || {
            let mut held = Held::take();
            let ours = held.state().shared.range(at(0)..at(1000));
            ours.map(|(from, to)| ((from - at(0)) / page_size(), (to - at(0)) / page_size()))
                .collect::<Vec<_>>()
        };
        for (from, to) in [(10, 20), (30, 40), (20, 25), (5, 10), (32, 35)] {
            share(of(from, to).0, of(from, to).1);
        }
        assert_eq!(now(), [(5, 25), (30, 40)]);
        share(of(24, 31).0, of(24, 31).1);
        assert_eq!(now(), [(5, 40)]);
        for (from, to) in [(0, 6), (10, 11), (39, 50), (20, 30)] {
            unshare(of(from, to).0, of(from, to).1);
        }
        assert_eq!(now(), [(6, 10), (11, 20), (30, 39)]);
        unshare(of(0, 100).0, of(0, 100).1);
        assert_eq!(now(), []);
    }
}
