//! Handles own what they need: a struct holds a store and its heap, a ticket outlives both, and can be awaited.

use caliburn::heap::Heap;
use caliburn::{Class, CloseError, Mode, Policy, Region, Store, Ticket};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// What programs could not have: all handles of a store in one value, sent to another thread.
struct Bank {
    accounts: Region,
    objects: Heap,
    store: Store,
    last: Option<Ticket>,
}

fn bank(policy: Policy, background: bool) -> (tempfile::TempDir, Bank) {
    let dir = tempfile::tempdir().unwrap();
    let options = Store::options().create(true).policy(policy).background(background).clone();
    let store = options.open(dir.path().join("bank")).unwrap();
    let accounts = store.segment_or_create("accounts", 1 << 16).unwrap().map_all().unwrap();
    let objects = Heap::open(&store, "objects").unwrap();
    (dir, Bank { accounts, objects, store, last: None })
}

fn commit(bank: &Bank, value: u64) -> Ticket {
    let mut tx = bank.store.begin(Mode::Restore).unwrap();
    tx.store(&bank.accounts, 0, &value).unwrap();
    tx.commit_async().unwrap()
}

#[test]
fn a_struct_holds_a_store_with_its_heap_and_regions() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (dir, mut bank) = bank(policy, true);
        let reach = bank.store.reach();
        let bank = std::thread::spawn(move || {
            let mut tx = bank.objects.begin().unwrap();
            let place = tx.allocate(64).unwrap();
            tx.set_root("first", Some(place)).unwrap();
            tx.commit(Class::Process).unwrap();
            if reach >= Class::Power {
                bank.last = Some(commit(&bank, 7));
            }
            bank
        })
        .join()
        .unwrap();
        let Bank { accounts, objects, store, last } = bank;
        // The last of the handles closes it; one that is not says so and leaves it open.
        assert!(matches!(store.clone().close(), Err(CloseError::Shared)));
        let error = store.close().unwrap_err();
        assert!(error.to_string().contains("other handles"), "{error}");
        drop((accounts, objects));
        if let Some(last) = last {
            assert!(last.is_durable(), "closing forces");
            last.wait().unwrap();
        }
        let store = Store::open(dir.path().join("bank")).unwrap();
        assert!(Heap::open(&store, "objects").unwrap().root("first").is_some());
    }
}

/// Counts how often it was called.
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_ticket_is_a_future_that_is_woken_by_the_force() {
    let (_dir, bank) = bank(Policy::Redo, false);
    let ticket = commit(&bank, 1);
    let calls = Arc::new(Calls(AtomicUsize::new(0)));
    let waker = Waker::from(calls.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(ticket.clone());
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert_eq!(calls.0.load(Ordering::SeqCst), 0);
    assert!(!ticket.wait_timeout(Duration::ZERO).unwrap());
    bank.store.flush().unwrap();
    assert_eq!(calls.0.load(Ordering::SeqCst), 1, "once, though it asked twice");
    assert!(matches!(future.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    assert!(ticket.wait_timeout(Duration::ZERO).unwrap());
}

#[test]
fn waiting_ends_when_the_commit_is_durable_or_the_time_is_over() {
    let (_dir, quiet) = bank(Policy::Redo, false);
    let ticket = commit(&quiet, 1);
    assert!(!ticket.wait_timeout(Duration::from_millis(5)).unwrap(), "nobody forces");

    let (_dir, busy) = bank(Policy::Redo, true);
    for value in 0..100 {
        // By the flusher; the time is for a disk that is stuck.
        assert!(commit(&busy, value).wait_timeout(Duration::from_secs(60)).unwrap());
    }
}
