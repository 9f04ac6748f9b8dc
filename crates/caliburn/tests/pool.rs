//! Regions that a buffer pool shows (`Options::buffer_pool`).

mod support;

use caliburn::{
    BufferPool, Class, Mode, OpenError, Options, Policy, PoolCounts, Region, Replacement, Store, Tracking,
    check,
};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use support::{copy_store, limit_files, set};

const PAGE: usize = 4096;
const PAGES: usize = 512;
/// Far fewer than there are pages.
const FRAMES: usize = 24;

const ALL: [Replacement; 3] = [Replacement::Random, Replacement::Fifo, Replacement::SecondChance];

fn pool(page_bytes: usize, replacement: Replacement) -> BufferPool {
    BufferPool { bytes: (FRAMES * page_bytes) as u64, page_bytes, replacement }
}

fn options(pool: BufferPool) -> Options {
    let mut options = support::options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).buffer_pool(pool);
    options
}

fn opened_with(path: &Path, pool: BufferPool) -> (Store, Region) {
    let store = options(pool).open(path).unwrap();
    let region = store.segment_or_create("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    (store, region)
}

fn opened(path: &Path) -> (Store, Region) {
    opened_with(path, pool(PAGE, Replacement::Random))
}

fn counts(store: &Store) -> PoolCounts {
    store.buffer_pool().unwrap()
}

#[track_caller]
fn all(region: &Region, expected: impl Fn(usize) -> u64) {
    for page in 0..PAGES {
        assert_eq!(region.load::<u64>(page * PAGE + 8), expected(page), "page {page}");
    }
}

#[test]
fn data_that_does_not_fit_the_pool_is_changed_in_one_transaction() {
    for (page, replacement) in ALL.map(|how| (PAGE, how)).into_iter().chain([(4 * PAGE, ALL[0])]) {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
        let (store, region) = opened_with(&path, pool(page, replacement));
        for turn in 1..=4u64 {
            let before = if turn == 4 { 2 } else { turn - 1 };
            let tx = store.begin(Mode::Restore).unwrap();
            for i in 0..PAGES {
                // In order, then scattered; and again what has left its frame.
                let number = if turn < 3 { i } else { i * 37 % PAGES };
                assert_eq!(region.load::<u64>(number * PAGE + 8), before, "{replacement:?}");
                set(&region, number * PAGE + 8, turn);
                set(&region, i / 2 * PAGE + 16, turn);
            }
            all(&region, |_| turn);
            if turn == 3 {
                // Killed here, nothing of it is left.
                copy_store(&path, &copy);
                tx.abort();
                // What was read again last is in the frames first.
                (0..PAGES).rev().for_each(|page| assert_eq!(region.load::<u64>(page * PAGE + 8), 2));
            } else {
                tx.commit(Class::Power).unwrap();
                all(&region, |_| turn);
            }
        }
        let counts = counts(&store);
        assert_eq!((counts.frames, counts.used), (FRAMES, FRAMES));
        assert!(counts.written > PAGES as u64 * PAGE as u64 / page as u64, "{counts:?}");
        assert!(counts.misses > counts.evictions && counts.evictions > counts.written, "{counts:?}");
        let (second, restored) = opened(&copy);
        all(&restored, |_| 2);
        drop(restored);
        second.close().unwrap();
        assert_eq!(check(&copy).unwrap().problems, []);
        // Memory shows what was committed, also of a store that is closed.
        store.close().unwrap();
        all(&region, |_| 4);
        drop(region);
        let (_store, region) = opened(&path);
        all(&region, |_| 4);
    }
}

#[test]
fn what_is_touched_while_it_is_hidden_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened_with(&dir.path().join("s"), pool(PAGE, Replacement::SecondChance));
    let touch = |page: usize| region.load::<u64>(page * PAGE);
    for page in 0..PAGES {
        // These come in first, and are touched all the time.
        (0..4).for_each(|page| _ = touch(page));
        touch(page);
    }
    let counted = counts(&store);
    assert_eq!(counted.misses, PAGES as u64);
    assert!(counted.second_chances > 40, "{counted:?}");
}

#[test]
fn declared_ranges_and_found_pages_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for kept in [4, 16] {
        let (store, region) = opened_with(&path, pool(kept * PAGE, Replacement::Fifo));
        for turn in 1..=3u64 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.set_range(&region, 0..PAGES * PAGE / 2).unwrap();
            (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, turn));
            (0..PAGES).step_by(7).for_each(|page| tx.store(&region, page * PAGE + 16, &turn).unwrap());
            if turn == 2 {
                tx.abort()
            } else {
                tx.commit(Class::Process).unwrap()
            }
            let there = if turn == 2 { 1 } else { turn };
            all(&region, |_| there);
            assert!((0..PAGES).step_by(7).all(|page| region.load::<u64>(page * PAGE + 16) == there));
        }
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &vec![0; PAGES * PAGE]).unwrap();
        tx.commit(Class::Process).unwrap();
        all(&region, |_| 0);
        drop(region);
        store.close().unwrap();
        assert_eq!(check(&path).unwrap().problems, []);
    }
}

#[test]
fn many_threads_store_at_once() {
    for how in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened_with(&dir.path().join("s"), pool(PAGE, how));
        support::many_threads_store(&store, &region);
    }
}

/// What a thread stores to a page that leaves its frame meanwhile is not lost.
#[test]
fn threads_store_to_pages_that_leave_their_frames() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened_with(&dir.path().join("s"), pool(PAGE, Replacement::Fifo));
    let tx = store.begin(Mode::Restore).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u64;
            while !done.load(SeqCst) {
                for page in 0..4 {
                    assert!(n == 0 || region.load::<u64>(page * PAGE + 64) == n, "page {page}, store {n}");
                    set(&region, page * PAGE + 64, n + 1);
                }
                n += 1;
            }
        });
        for _ in 0..4 {
            (16..PAGES).for_each(|page| set(&region, page * PAGE + 8, 1));
        }
        done.store(true, SeqCst);
    });
    tx.commit(Class::Process).unwrap();
    all(&region, |page| u64::from(page >= 16));
}

/// Who loads while a transaction is undone has pages leave their frames: not over what was put back.
#[test]
fn threads_load_while_a_transaction_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened_with(&path, pool(PAGE, Replacement::Fifo));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in (0..PAGES).cycle().take_while(|_| !done.load(SeqCst)) {
                region.load::<u64>(page * PAGE + 8);
            }
        });
        /// Also when something is not as it must be.
        struct End<'d>(&'d AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _end = End(&done);
        for turn in 1..=40u64 {
            let tx = store.begin(Mode::Restore).unwrap();
            (0..PAGES).step_by(3).for_each(|page| set(&region, page * PAGE + 8, turn));
            // What is put back first is dirty again.
            (0..FRAMES).for_each(|i| set(&region, 3 * i * PAGE + 8, turn));
            tx.abort();
            all(&region, |_| 0);
        }
    });
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(&path);
    all(&region, |_| 0);
}

/// Regions of a closed store can be read, by whoever was about to when it was closed, and where they grow later; and
/// those of other stores are caught as before.
#[test]
fn threads_load_while_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = dir.path().join(round.to_string());
        let store = options(pool(PAGE, Replacement::Random)).open(&path).unwrap();
        let segment = store.create_segment("data", (PAGES * PAGE) as u64).unwrap();
        let region = segment.map(0..(PAGES * PAGE / 2) as u64).unwrap();
        let tx = store.begin(Mode::Restore).unwrap();
        (0..PAGES / 2).for_each(|page| set(&region, page * PAGE + 8, 1));
        tx.commit(Class::Power).unwrap();
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (region, closed) = (&region, &closed);
                scope.spawn(move || {
                    let mut page = thread;
                    while !closed.load(SeqCst) {
                        assert_eq!(region.load::<u64>(page % (PAGES / 2) * PAGE + 8), 1);
                        page += 31;
                    }
                });
            }
            store.close().unwrap();
            closed.store(true, SeqCst);
        });
        assert!((0..PAGES / 2).all(|page| region.load::<u64>(page * PAGE + 8) == 1));
        if region.grow(PAGES * PAGE).is_ok() {
            assert_eq!(region.load::<u64>((PAGES - 1) * PAGE), 0);
        }
    }
    let (store, region) = opened(&dir.path().join("other"));
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 0, 1);
    tx.commit(Class::Power).unwrap();
}

#[test]
fn loads_need_no_transaction_and_no_other_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let region = &region;
            scope.spawn(move || {
                (0..4 * PAGES)
                    .for_each(|i| assert_eq!(region.load::<u64>((i * 31 + thread) % PAGES * PAGE), 0));
            });
        }
    });
    assert!(counts(&store).evictions > 0);
}

#[test]
fn a_region_grows_and_is_mapped_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(pool(16 * PAGE, Replacement::Random)).open(&path).unwrap();
    let segment = store.create_segment("data", 64 << 10).unwrap();
    let mut region = segment.map_all().unwrap();
    for turn in 1..=6usize {
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..region.len()).step_by(PAGE).for_each(|at| set(&region, at, turn as u64));
        tx.store(&region, 8, &(turn as u64)).unwrap();
        if turn == 3 {
            // A region whose last page is cut off, in the middle of a transaction: its page is in a frame.
            assert!(region.load::<u64>(region.len() - PAGE) == 3);
        }
        tx.commit(Class::Process).unwrap();
        // By less than a page of the pool.
        let len = region.len() + 5 * PAGE;
        if segment.len() < len as u64 {
            segment.grow(len as u64).unwrap();
        }
        region.grow(len).unwrap();
        assert!((0..len - 5 * PAGE).step_by(PAGE).all(|at| region.load::<u64>(at) == turn as u64));
        assert!((len - 5 * PAGE..len).step_by(PAGE).all(|at| region.load::<u64>(at) == 0));
    }
    let len = region.len();
    region.unmap().unwrap();
    region = segment.map(0..len as u64).unwrap();
    assert!((0..len - 5 * PAGE).step_by(PAGE).all(|at| region.load::<u64>(at) == 6));
}

/// A file that was adopted, its last page cut off: what a frame held before does not show behind its end.
#[test]
fn a_page_that_is_cut_off_has_zeros_behind_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (dir.path().join("data"), dir.path().join("s"));
    std::fs::write(&data, [7; 3 * PAGE + 512]).unwrap();
    let store = options(pool(PAGE, Replacement::Fifo)).outside(dir.path()).open(&path).unwrap();
    let other = store.create_segment("other", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    for turn in 1..=3 {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..PAGES).for_each(|page| support::just_store(&other, page * PAGE, &[9; PAGE]));
        set(&region, 3 * PAGE + 504, turn);
        // SAFETY: the whole page is mapped.
        let behind = unsafe { region.as_ptr().add(3 * PAGE + 512).cast::<u64>().read_volatile() };
        assert_eq!(behind, 0);
        (0..PAGES).for_each(|page| assert_eq!(other.load::<u8>(page * PAGE + 100), 9));
        tx.commit(Class::Power).unwrap();
        let file = std::fs::read(&data).unwrap();
        assert_eq!(
            (file.len(), file[3 * PAGE + 504..].to_vec()),
            (3 * PAGE + 512, turn.to_ne_bytes().to_vec())
        );
    }
}

/// What the memory held before does not show.
#[test]
fn a_region_comes_in_place_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    region.unmap().unwrap();
    // SAFETY: a new mapping, which is given up below.
    let memory = unsafe {
        let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, kind, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the memory is this thread's alone.
    unsafe { memory.cast::<u8>().write_bytes(3, PAGES * PAGE) };
    let at = memory.expose_provenance();
    // SAFETY: nothing refers to that memory.
    let region = unsafe { store.segment("data").unwrap().map_over(0..(PAGES * PAGE) as u64, at) }.unwrap();
    all(&region, |_| 0);
    let tx = store.begin(Mode::Restore).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 5));
    tx.commit(Class::Power).unwrap();
    all(&region, |_| 5);
    assert!(region.leave().is_err());
    store.close().unwrap();
}

#[test]
fn what_cannot_be_had_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |options: &Options| match options.open(dir.path().join("s")).unwrap_err() {
        OpenError::Option { name, .. } => name,
        other => panic!("{other}"),
    };
    let good = pool(PAGE, Replacement::Fifo);
    for (page_bytes, bytes, name) in [
        (2048, 1 << 20, "buffer_pool.page_bytes"),
        (3 * PAGE, 1 << 20, "buffer_pool.page_bytes"),
        (32 << 20, 1 << 30, "buffer_pool.page_bytes"),
        (PAGE, 7 * PAGE as u64, "buffer_pool.bytes"),
        (PAGE, 1 << 40, "buffer_pool.bytes"),
    ] {
        assert_eq!(refused(&options(BufferPool { bytes, page_bytes, ..good })), name);
    }
    assert_eq!(refused(options(good).tracking(Tracking::Declared)), "buffer_pool");
    assert_eq!(refused(options(good).policy(Policy::Redo)), "buffer_pool");
    assert_eq!(refused(options(good).create(false).read_only(true)), "buffer_pool");
    assert!(!dir.path().join("s").exists());
    drop(opened(&dir.path().join("s")));
}

/// Neither can the log of before-images become longer: the transaction is lost, and nothing else.
fn on_a_full_disk(path: &Path) {
    let (store, region) = opened(path);
    for part in 0..8 {
        let tx = store.begin(Mode::Restore).unwrap();
        (part * PAGES / 8..(part + 1) * PAGES / 8).for_each(|page| set(&region, page * PAGE + 8, 1));
        tx.commit(Class::Power).unwrap();
    }
    limit_files((PAGES * PAGE) as u64);
    for commits in [true, false] {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 2));
        all(&region, |_| 2);
        if commits {
            let lost = tx.commit(Class::Power).unwrap_err().to_string();
            assert!(lost.contains("old values could not be kept"), "{lost}");
        } else {
            tx.abort();
        }
        all(&region, |_| 1);
    }
    // Room comes back in the middle: what was lost is lost.
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 2));
    limit_files(libc::RLIM_INFINITY);
    tx.set_range(&region, 0..PAGES * PAGE).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 2));
    assert!(tx.commit(Class::Power).is_err());
    all(&region, |_| 1);
    let tx = store.begin(Mode::Restore).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE + 8, 3));
    tx.commit(Class::Power).unwrap();
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(path);
    all(&region, |_| 3);
    std::process::exit(55);
}

/// The child has nothing there, and the parent goes on; also one that is made past the C library.
fn in_a_child(path: &Path, forks: bool) {
    let (store, region) = opened(path);
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 8, 1);
    // SAFETY: the child does nothing but touch memory, and end.
    let child = unsafe {
        if forks { libc::fork() } else { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    };
    if child == 0 {
        // Nothing of its own can come to lie there.
        // SAFETY: it changes nothing, and fails where nothing is mapped.
        if forks && unsafe { libc::msync(region.as_ptr().cast(), region.len(), libc::MS_ASYNC) } != 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(9) };
        }
        region.load::<u64>(8);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    tx.commit(Class::Power).unwrap();
    assert_eq!(region.load::<u64>(8), 1);
    let ended =
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 100 + libc::WTERMSIG(status) };
    std::process::exit(ended);
}

#[test]
fn what_ends_a_process_and_what_does_not() {
    const KIND: &str = "CALIBURN_POOL_KIND";
    if let Some(kind) = std::env::var_os(KIND) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        match kind.to_str().unwrap() {
            "full" => on_a_full_disk(&path),
            "forked" => in_a_child(&path, true),
            "cloned" => in_a_child(&path, false),
            "outside" => {
                let (_store, region) = opened(&path);
                set(&region, 12_345, 1);
            }
            "jump" => {
                let (store, region) = opened(&path);
                let _tx = store.begin(Mode::Restore).unwrap();
                set(&region, 12_345, 1);
                // SAFETY: there is no code, which is what it is for.
                let jump: extern "C" fn() = unsafe { std::mem::transmute(region.as_ptr()) };
                jump();
            }
            _ => unreachable!(),
        }
        std::process::exit(3);
    }
    let run = |kind: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "what_ends_a_process_and_what_does_not", "--nocapture"]).env(KIND, kind);
        let output = command.output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    use std::os::unix::process::ExitStatusExt;
    let (status, text) = run("full");
    assert_eq!(status.code(), Some(55), "{text}");
    for kind in ["forked", "cloned"] {
        let (status, text) = run(kind);
        assert_eq!(status.code(), Some(100 + libc::SIGSEGV), "{kind}: {text}");
    }
    let (status, text) = run("outside");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(text.contains("segment \"data\", byte 12345"), "{text}");
    if cfg!(target_arch = "x86_64") {
        let (status, text) = run("jump");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{text}");
    }
}
