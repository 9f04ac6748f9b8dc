//! How families end: hooks, what is told of them, and those that are prepared.

mod support;

use caliburn_engine::{Class, CommitError, Policy};
use caliburn_nest::{Error, Hooks, Status, Tx, prepare, transact, transact_following};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use support::open;

/// What hooks say, in their order.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<&'static str>>>);

impl Said {
    fn say(&self, what: &'static str) -> impl FnOnce() + Send + 'static {
        let said = self.0.clone();
        move || said.lock().unwrap().push(what)
    }

    fn all(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn both<'t>(&self, tx: &mut Tx<'t, Hooks<'_>>, commit: &'static str, abort: &'static str) {
        tx.companion().on_commit(self.say(commit));
        tx.companion().on_abort(self.say(abort));
    }
}

#[test]
fn hooks_are_called_as_their_transactions_end() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let said = Said::default();
    let run = |fails: bool| {
        transact_following(&store, Hooks::new(), Class::Process, |tx| {
            said.both(tx, "top commits", "top aborts");
            tx.nest(|child| {
                said.both(child, "child commits", "child aborts");
                child.store(&region, 0, &1u64)
            })?;
            let aborted = tx.nest(|child| {
                said.both(child, "never", "other aborts");
                Err::<(), Error>(child.abort("as planned"))
            });
            assert!(aborted.is_err());
            assert_eq!(said.all(), ["other aborts"]);
            if fails { Err(tx.abort("as planned")) } else { Ok(()) }
        })
    };
    run(false).unwrap();
    assert_eq!(said.all(), ["top commits", "child commits"]);
    assert!(run(true).is_err());
    assert_eq!(said.all(), ["child aborts", "top aborts"], "the last first");
}

#[test]
fn a_hook_may_refuse_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Undo);
    let said = Said::default();
    let refused = transact_following(&store, Hooks::new(), Class::Process, |tx| {
        said.both(tx, "commits", "aborts");
        tx.store(&region, 0, &1u64)?;
        let child = tx.nest(|child| {
            child.store(&region, 8, &1u64)?;
            child.companion().on_vote(|| Err("the child may not".into()));
            Ok::<_, Error>(())
        });
        assert_eq!(child.unwrap_err().to_string(), "the child may not");
        assert_eq!(region.load::<u64>(8), 0);
        tx.companion().on_vote(|| Err("nor may the top".into()));
        Ok::<_, Error>(())
    });
    assert_eq!(refused.unwrap_err().to_string(), "nor may the top");
    assert_eq!((region.load::<u64>(0), said.all()), (0, vec!["aborts"]));
}

/// A hook that panics aborts what has not committed, and keeps nobody else from being told.
#[test]
fn a_hook_that_panics_is_not_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let said = Said::default();
    let run = |panics: usize| {
        catch_unwind(AssertUnwindSafe(|| {
            transact_following(&store, Hooks::new(), Class::Process, |tx| {
                tx.store(&region, 0, &(region.load::<u64>(0) + 1))?;
                said.both(tx, "first commits", "first aborts");
                match panics {
                    0 => tx.companion().on_vote(|| panic!("planned")),
                    1 => tx.companion().on_commit(|| panic!("planned")),
                    _ => tx.companion().on_abort(|| panic!("planned")),
                }
                said.both(tx, "last commits", "last aborts");
                if panics == 2 { Err(tx.abort("as planned")) } else { Ok(()) }
            })
        }))
    };
    assert!(run(0).is_err());
    assert_eq!((region.load::<u64>(0), said.all()), (0, vec!["last aborts", "first aborts"]));
    assert!(run(1).is_err());
    assert_eq!((region.load::<u64>(0), said.all()), (1, vec!["first commits", "last commits"]));
    assert!(run(2).is_err());
    assert_eq!((region.load::<u64>(0), said.all()), (1, vec!["last aborts", "first aborts"]));
    transact(&store, Class::Process, |tx| tx.store(&region, 0, &9u64)).unwrap();
}

#[test]
fn a_watch_tells_how_a_family_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let watched = |fails: bool| {
        let mut watch = None;
        let done = transact(&store, Class::Process, |tx| {
            watch = Some(tx.watch());
            tx.nest(|child| {
                assert_eq!(
                    (child.watch().family(), child.watch().status()),
                    (child.id().family, Status::Active)
                );
                child.store(&region, 0, &1u64)
            })?;
            if fails { Err(tx.abort("as planned")) } else { Ok(()) }
        });
        assert_eq!(done.is_err(), fails);
        watch.unwrap().status()
    };
    assert_eq!((watched(false), watched(true)), (Status::Committed, Status::Aborted));
    let mut watch = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        transact(&store, Class::Process, |tx| {
            watch = Some(tx.watch());
            if watch.is_some() { panic!("as planned") } else { Ok::<(), Error>(()) }
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(watch.unwrap().status(), Status::Aborted);
}

#[test]
fn a_family_that_is_prepared_keeps_what_follows_it() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let said = Said::default();
        {
            let (store, region) = open(dir.path(), policy);
            let one = |id: &[u8], at: usize| {
                prepare(&store, Hooks::new(), id, |tx| {
                    said.both(tx, "commits", "aborts");
                    let watch = tx.watch();
                    tx.nest(|child| child.store(&region, at, &7u64))?;
                    Ok::<_, Error>(watch)
                })
            };
            let (watch, prepared) = one(b"one", 0).unwrap();
            assert_eq!(
                (watch.status(), prepared.global_id(), said.all().len()),
                (Status::Prepared, &b"one"[..], 0)
            );
            let taken = one(b"one", 8).err().unwrap();
            assert!(matches!(taken, Error::Commit(CommitError::GlobalId { .. })), "{taken}");
            assert_eq!(said.all(), ["aborts"]);
            prepared.commit().unwrap();
            assert_eq!((region.load::<u64>(0), said.all()), (7, vec!["commits"]));
            one(b"two", 8).unwrap().1.abort().unwrap();
            assert_eq!((region.load::<u64>(8), said.all()), (0, vec!["aborts"]));
            // Nobody decides it: what follows it is told nothing, and the store knows it when it is opened again.
            drop(one(b"three", 16).unwrap().1);
            assert!(said.all().is_empty());
            assert_eq!(store.prepared().len(), 1);
            drop((region, store));
        }
        let (store, region) = open(dir.path(), policy);
        let undecided = store.prepared();
        assert_eq!((undecided.len(), &undecided[0].global_id[..]), (1, &b"three"[..]));
        assert_eq!(undecided[0].ranges[0].1, 16..24);
        assert_eq!(region.load::<u64>(16), 0);
        store.commit_prepared(b"three").unwrap();
        assert_eq!((region.load::<u64>(16), store.prepared().len()), (7, 0));
    }
}

/// What has not committed is not in the log, and keeps nothing of it: others commit many times what it holds
/// meanwhile.
#[test]
fn a_long_transaction_keeps_no_log_busy() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        caliburn_engine::Store::options().create(true).log_bytes(256 << 10).open(dir.path().join("s"));
    let store = store.unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    let done = transact(&store, Class::Process, |tx| {
        // In each page that the others change.
        (0..256).try_for_each(|page| tx.store(&region, page * 4096, &1u64))?;
        for round in 1..=3000usize {
            let mut other = store.begin(caliburn_engine::Mode::Restore).unwrap();
            other.write(&region, round % 256 * 4096 + 512, &[round as u8; 1024]).unwrap();
            other.commit(if round % 50 == 0 { Class::Power } else { Class::Process }).unwrap();
        }
        Ok::<_, Error>(())
    });
    done.unwrap();
    let query = store.query();
    assert!(store.statistics().log_bytes > 10 * query.log_bytes, "{query:?}");
}
