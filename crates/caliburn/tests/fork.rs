//! A child that is forked has its parent's handles, and may drop them: the store is the parent's and stays as it is.

use caliburn::{
    BeginError, Class, CommitError, Mode, OpenError, Options, Policy, RangeError, Region, SegmentError, Store,
};
use std::io::{Read, Write};
use std::path::Path;

const LEN: u64 = 64 * 1024;
const POLICIES: [Policy; 3] = [Policy::Redo, Policy::Undo, Policy::Shadow];

/// How a child is made: with the handlers of fork(2), or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fork,
    Clone,
}

/// Runs `work` in a child, which then ends as a program does that returns. The child's number.
fn child(way: Way, work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: no other thread of this test's process holds a lock that the child needs: the store's own threads take
    // none of those that dropping handles takes.
    let child = unsafe {
        match way {
            Way::Fork => libc::fork(),
            Way::Clone => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t,
        }
    };
    assert!(child >= 0);
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: the child ends here, without the parent's test harness.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    child
}

fn ended(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: it is our child, and `status` is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn in_a_child(work: impl FnOnce()) {
    assert_eq!(ended(child(Way::Fork, work)), 0, "the child failed");
}

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options
        .create(true)
        .policy(policy)
        .log_bytes(1 << 20)
        .stage_bytes(1 << 20)
        .copied(true)
        .memory_kept(true);
    options
}

/// The greatest class that commits of the tests have.
fn class(policy: Policy) -> Class {
    if policy == Policy::Undo { Class::Process } else { Class::Power }
}

fn made(path: &Path, policy: Policy) -> (Store, Region) {
    let store = options(policy).open(path).unwrap();
    let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
    (store, region)
}

fn commit(store: &Store, region: &Region, at: usize, value: u64, class: Class) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, at, &value).unwrap();
    tx.commit(class).unwrap();
}

#[test]
fn a_child_that_drops_what_it_was_forked_with_changes_nothing() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (class, options) = (class(policy), options(policy));
        let (store, region) = made(&path, policy);
        commit(&store, &region, 0, 1, class);

        let mut open = store.begin(Mode::Restore).unwrap();
        open.store(&region, 8, &2u64).unwrap();
        open.store(&region, 16, &3u64).unwrap();
        in_a_child(|| {
            // SAFETY: the child's memory is its own: the parent goes on with the handles, and the child ends.
            unsafe {
                drop(std::ptr::read(&raw const open));
                drop(std::ptr::read(&raw const region));
                drop(std::ptr::read(&raw const store));
            }
        });
        assert_eq!([8, 16].map(|at| region.load::<u64>(at)), [2, 3], "{policy:?}: the child undid a part");
        open.commit(class).unwrap();
        (1..200).for_each(|i| commit(&store, &region, 24, i, class));
        assert!(options.open(&path).is_err(), "{policy:?}: the child gave up the lock");
        drop(region);
        store.close().unwrap();
        assert!(options.check(&path).unwrap().is_clean());
        let store = Store::open(&path).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!([0, 8, 16, 24].map(|at| region.load::<u64>(at)), [1, 2, 3, 199], "{policy:?}");
    }
}

/// Each way in which the child could change the store of its parent is refused.
fn assert_refused(store: &Store, region: &Region) {
    assert!(store.is_inherited() && region.is_inherited());
    assert!(matches!(store.begin(Mode::Restore), Err(BeginError::Inherited(_))));
    let text = store.begin(Mode::NoRestore).unwrap_err().to_string();
    assert!(text.contains("opened by the parent process"), "{text}");
    assert!(matches!(store.segment("data"), Err(SegmentError::Inherited(_))));
    assert!(matches!(store.create_segment("other", LEN), Err(SegmentError::Inherited(_))));
    assert!(matches!(store.flush(), Err(CommitError::Inherited(_))));
    assert!(matches!(store.truncate(), Err(CommitError::Inherited(_))));
    assert!(matches!(store.commit_prepared(b"x"), Err(CommitError::Inherited(_))));
    assert!(store.dump(&caliburn::DumpOptions::new(), &mut Vec::new()).is_err());
    assert!(store.relocate_log(&options(Policy::Redo)).is_err());
    assert!(region.grow(2 * LEN as usize).is_err());
}

#[test]
fn a_child_that_goes_on_is_refused_and_its_parent_loses_nothing() {
    for (policy, way) in POLICIES.into_iter().flat_map(|policy| [(policy, Way::Fork), (policy, Way::Clone)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (store, region) = made(&path, policy);
        commit(&store, &region, 0, 1, class(policy));
        assert_eq!(ended(child(way, || assert_refused(&store, &region))), 0, "{policy:?}, {way:?}");
        (0..100).for_each(|i| commit(&store, &region, 8, i, class(policy)));
        let copy = dir.path().join("killed");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        drop(region);
        store.close().unwrap();
        assert!(options(policy).check(&path).unwrap().is_clean());
        if policy != Policy::Shadow {
            let (_store, region) = made(&copy, policy);
            assert_eq!([0, 8].map(|at| region.load::<u64>(at)), [1, 99], "{policy:?}, {way:?}");
        }
    }
}

#[test]
fn a_transaction_that_is_open_when_a_child_is_forked_is_refused_there() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (store, region) = made(&path, policy);
        commit(&store, &region, 0, 7, class(policy));
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &8u64).unwrap();
        in_a_child(|| {
            // SAFETY: the child's memory is its own, and it ends without dropping the original.
            let mut tx = unsafe { std::ptr::read(&raw const tx) };
            assert!(matches!(tx.set_range(&region, 0..8), Err(RangeError::Inherited(_))));
            assert!(matches!(tx.set_range(&region, 512..520), Err(RangeError::Inherited(_))));
            assert!(matches!(tx.commit(Class::Process), Err(CommitError::Inherited(_))));
        });
        assert_eq!(region.load::<u64>(0), 8);
        tx.abort();
        assert_eq!(region.load::<u64>(0), 7, "{policy:?}");
        drop(region);
        store.close().unwrap();
    }
}

/// With the undo policy a region's memory is the segment, in the parent and in the child.
#[test]
fn a_child_reads_memory_that_is_the_segment_and_cannot_store_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = made(&dir.path().join("s"), Policy::Undo);
    commit(&store, &region, 0, 7, Class::Process);
    for way in [Way::Fork, Way::Clone] {
        let reads = ended(child(way, || assert_eq!(region.load::<u64>(0), 7)));
        // Without handlers nothing is mapped there.
        assert_eq!(reads, if way == Way::Fork { 0 } else { libc::SIGSEGV }, "{way:?}");
        // SAFETY: the child's own end.
        let stores = ended(child(way, || unsafe { region.as_ptr().write(1) }));
        assert_eq!(stores, libc::SIGSEGV, "{way:?}");
        assert_eq!(region.load::<u64>(0), 7);
        // The parent's memory is as it was.
        commit(&store, &region, 0, 7, Class::Process);
    }
}

#[test]
fn heaps_and_typed_objects_of_the_parent_are_refused_in_a_child() {
    let dir = tempfile::tempdir().unwrap();
    let store = options(Policy::Redo).open(dir.path().join("s")).unwrap();
    let heap = caliburn::heap::Heap::open(&store, "heap").unwrap();
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(100).unwrap();
    in_a_child(|| {
        assert!(matches!(heap.begin(), Err(BeginError::Inherited(_))));
        // SAFETY: the child's memory is its own, and it ends without dropping the original.
        let mut tx = unsafe { std::ptr::read(&raw const tx) };
        let refused = [tx.allocate(16).map(drop), tx.free(place), tx.commit(Class::Process)];
        assert!(refused.into_iter().all(|done| done.unwrap_err().to_string().contains("parent process")));
    });
    tx.free(place).unwrap();
    tx.commit(Class::Power).unwrap();
}

/// A pipe: its reader and its writer.
fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

/// Process numbers repeat: process 1 of a namespace forks process 1 of another.
#[test]
fn a_child_with_the_number_of_its_parent_does_not_give_its_lock_away() {
    // SAFETY: it takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return println!("not run: namespaces are root's");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let enter = || {
        // SAFETY: it takes an integer; children of this thread are in another namespace from now on.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    };
    in_a_child(|| {
        enter();
        in_a_child(|| {
            assert_eq!(std::process::id(), 1);
            let store = options(Policy::Redo).background(false).open(&path).unwrap();
            let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
            commit(&store, &region, 0, 1, Class::Power);
            enter();
            in_a_child(|| {
                assert_eq!(std::process::id(), 1);
                assert!(matches!(store.begin(Mode::Restore), Err(BeginError::Inherited(_))));
                // SAFETY: the child's memory is its own, and it ends without dropping the original.
                drop(unsafe { std::ptr::read(&raw const store) });
            });
            let refused = options(Policy::Redo).background(false).open(&path).unwrap_err();
            assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
            commit(&store, &region, 0, 2, Class::Power);
        });
    });
}

#[test]
fn a_child_that_lives_on_keeps_the_lock_until_it_ends_and_the_message_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let ((mut says, mut tells), (mut orders, order)) = (pipe(), pipe());
    // The last copy of what gives orders goes with this process: then the one that waits for them ends.
    let mut order = Some(order);
    // SAFETY: it takes integers: what the processes here leave behind is waited for here.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let middle = child(Way::Fork, || {
        order = None;
        let (store, region) = made(&path, Policy::Redo);
        commit(&store, &region, 0, 1, Class::Power);
        let last = child(Way::Fork, || assert_eq!(orders.read(&mut [0]).unwrap(), 0));
        tells.write_all(&last.to_ne_bytes()).unwrap();
        // SAFETY: the process ends, as one that is killed.
        unsafe { libc::_exit(0) };
    });
    assert_eq!(ended(middle), 0);
    let refused = options(Policy::Redo).open(&path).unwrap_err().to_string();
    assert!(refused.contains(&format!("process {middle}")) && refused.contains("has ended"), "{refused}");
    drop(order);
    let mut last = [0; 4];
    says.read_exact(&mut last).unwrap();
    assert_eq!(ended(i32::from_ne_bytes(last)), 0);
    let (_store, region) = made(&path, Policy::Redo);
    assert_eq!(region.load::<u64>(0), 1);
}
