//! A child that is forked has its parent's handles, and may drop them: the store is the parent's and stays as it is.

use caliburn::{Class, Mode, Policy, Region, Store};

const LEN: u64 = 64 * 1024;

/// Runs `work` in a child, which then ends as a program does that returns.
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: no other thread of this test's process holds a lock that the child needs: the store's own threads take
    // none of those that dropping handles takes.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: the child ends here, without the parent's test harness.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: it is our child, and `status` is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
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
        let class = if policy == Policy::Redo { Class::Power } else { Class::Process };
        let mut options = Store::options();
        options.create(true).policy(policy).log_bytes(1 << 20).stage_bytes(1 << 20);
        let store = options.open(&path).unwrap();
        let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
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
