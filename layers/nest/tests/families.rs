//! What a family may do, and what it may not.

mod support;

use caliburn_engine::{Class, Policy, SavepointError, Transaction};
use caliburn_nest::{Error, Follow, Threads, Tx, child, cobegin, cofor, transact, transact_following};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use support::open;

const BOTH: [Policy; 2] = [Policy::Redo, Policy::Undo];

#[test]
fn a_family_is_ten_thousand_deep() {
    fn deeper<'t>(tx: &mut Tx<'t>, region: &'t caliburn_engine::Region, left: usize) -> Result<(), Error> {
        tx.store(region, left % 1000 * 8, &left)?;
        if left > 0 {
            let done = tx.nest(|child| {
                deeper(child, region, left - 1)?;
                if left == 5000 { Err(child.abort("half of it")) } else { Ok(()) }
            });
            assert_eq!(done.is_ok(), left != 5000);
        }
        Ok(())
    }
    for policy in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        let deep = || {
            transact(&store, Class::Process, |tx| {
                deeper(tx, &region, 10_000)?;
                assert_eq!(tx.depth(), 0);
                Ok::<_, Error>(())
            })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(64 << 20);
            thread.spawn_scoped(scope, deep).unwrap().join().unwrap().unwrap();
        });
        // Those below 5,000 are undone.
        assert_eq!(region.load::<usize>(0), 5000);
        assert_eq!(region.load::<usize>(999 * 8), 5999);
    }
}

#[test]
fn what_a_child_changed_again_is_undone_with_its_parent() {
    for policy in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        transact(&store, Class::Process, |tx| {
            // So much that what ranges cover is looked at.
            (0..8192).try_for_each(|at| tx.store(&region, at * 8, &1u64))?;
            let done = tx.nest(|child| {
                for round in 0..3u64 {
                    child.nest(|inner| {
                        (0..100).try_for_each(|at| inner.store(&region, at * 8, &(2 + round)))
                    })?;
                }
                child.store(&region, 808, &9u64)?;
                let inner = child.nest(|inner| {
                    inner.store(&region, 0, &7u64)?;
                    inner.store(&region, 808, &7u64)?;
                    Err::<(), _>(inner.abort("it restores what its parent had"))
                });
                assert!(inner.is_err());
                assert_eq!([0, 99, 101].map(|at| region.load::<u64>(at * 8)), [4, 4, 9]);
                Err::<(), _>(child.abort("all of it"))
            });
            assert!(done.is_err());
            assert!((0..8192).all(|at| region.load::<u64>(at * 8) == 1), "{policy:?}");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

#[test]
fn a_panic_undoes_the_child_alone_if_it_is_caught() {
    for policy in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        transact(&store, Class::Process, |tx| {
            tx.store(&region, 0, &1u64)?;
            let caught = catch_unwind(AssertUnwindSafe(|| {
                tx.nest(|child| {
                    child.store(&region, 0, &2u64)?;
                    child.nest(|inner| {
                        inner.store(&region, 8, &3u64)?;
                        if inner.depth() == 2 {
                            panic!("on purpose")
                        }
                        Ok::<_, Error>(())
                    })
                })
            }));
            assert!(caught.is_err());
            assert_eq!(tx.depth(), 0);
            tx.store(&region, 16, &4u64)
        })
        .unwrap();
        assert_eq!([0, 8, 16].map(|at| region.load::<u64>(at)), [1, 0, 4]);
        let uncaught = catch_unwind(AssertUnwindSafe(|| {
            transact(&store, Class::Process, |tx| {
                tx.store(&region, 0, &9u64)?;
                if tx.depth() == 0 {
                    panic!("on purpose")
                }
                Ok::<_, Error>(())
            })
        }));
        assert!(uncaught.is_err());
        assert_eq!(region.load::<u64>(0), 1);
    }
}

#[test]
fn the_parents_savepoint_is_not_the_childs() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    transact(&store, Class::Process, |tx| {
        let parents = tx.savepoint()?;
        tx.store(&region, 0, &1u64)?;
        let mut childs = None;
        tx.nest(|child| {
            let refused = child.rollback_to(&parents);
            assert!(matches!(refused, Err(Error::Savepoint(SavepointError::Gone))), "{refused:?}");
            childs = Some(child.savepoint()?);
            Ok::<_, Error>(())
        })?;
        assert!(tx.rollback_to(&childs.unwrap()).is_err(), "the child has ended");
        // Another child, as deep.
        tx.nest(|child| {
            assert!(child.rollback_to(&childs.unwrap()).is_err());
            Ok::<_, Error>(())
        })?;
        tx.rollback_to(&parents)
    })
    .unwrap();
    assert_eq!(region.load::<u64>(0), 0);
}

#[test]
fn a_family_is_aborted_from_anywhere_in_it() {
    for policy in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        let (begun, aborted) = (Barrier::new(2), Barrier::new(2));
        let done = transact(&store, Class::Process, |tx| {
            tx.store(&region, 0, &1u64)?;
            let outcomes = tx.cobegin([
                child(|child| {
                    child.store(&region, 8, &1u64)?;
                    begun.wait();
                    aborted.wait();
                    // A sibling that goes on learns it at its next call.
                    let next = child.store(&region, 8, &2u64);
                    assert!(matches!(&next, Err(Error::Family(why)) if why == "enough"), "{next:?}");
                    Ok(())
                }),
                child(|child| {
                    begun.wait();
                    let error = child.nest(|inner| {
                        inner.store(&region, 16, &1u64)?;
                        Err::<(), _>(inner.abort_family("enough"))
                    });
                    aborted.wait();
                    error
                }),
            ]);
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Family(_)))), "{outcomes:?}");
            // Who ignores it does not commit either.
            Ok::<_, Error>(())
        });
        assert!(matches!(&done, Err(Error::Family(why)) if why == "enough"), "{done:?}");
        assert_eq!([0, 8, 16].map(|at| region.load::<u64>(at)), [0; 3]);
    }
}

#[test]
fn an_independent_transaction_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let done = transact(&store, Class::Process, |tx| {
        tx.store(&region, 0, &1u64)?;
        let own = tx.id();
        tx.nest(|child| {
            assert_ne!(child.id(), own);
            assert_eq!(child.id(), child.id());
            child.independent(Class::Power, |top| {
                assert_ne!(top.id().family, own.family);
                top.store(&region, 8, &2u64)
            })
        })?;
        Err::<(), _>(tx.abort("after all"))
    });
    assert!(matches!(&done, Err(Error::Aborted(why)) if why == "after all"), "{done:?}");
    assert_eq!((region.load::<u64>(0), region.load::<u64>(8)), (0, 2));
}

#[test]
fn threads_in_one_transaction_lose_and_double_nothing() {
    for policy in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        transact(&store, Class::Process, |tx| {
            tx.threads(4, |thread, shared| {
                for number in 0..500u64 {
                    // Bytes of its own, and bytes of all.
                    shared.store(&region, 4096 * (thread + 1) + number as usize * 8, &number).unwrap();
                    let mut own = shared.lock();
                    let sum: u64 = region.load(0);
                    own.store(&region, 0, &(sum + number)).unwrap();
                }
            });
            assert_eq!(region.load::<u64>(0), 4 * (499 * 500 / 2));
            Ok::<_, Error>(())
        })
        .unwrap();
        drop((store, region));
        let (store, region) = open(dir.path(), policy);
        assert_eq!(region.load::<u64>(0), 4 * (499 * 500 / 2));
        for thread in 1..5 {
            assert!((0..500).all(|number| region.load::<u64>(4096 * thread + number as usize * 8) == number));
        }
        // All of it is undone.
        let done = transact(&store, Class::Process, |tx| {
            tx.threads(4, |thread, shared| shared.store(&region, thread * 8, &77u64).unwrap());
            Err::<(), _>(tx.abort("on purpose"))
        });
        assert!(done.is_err());
        assert_eq!(region.load::<u64>(0), 4 * (499 * 500 / 2));
    }
}

#[test]
fn a_thousand_children_run_on_few_threads_and_nothing_is_started_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let here = std::thread::current().id();
    transact(&store, Class::Process, |tx| {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = tx.cofor_on(&Threads, 1000, |number, child| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            child.store(&region, number * 8, &number)?;
            running.fetch_sub(1, Ordering::SeqCst);
            if number % 2 == 1 { Err(child.abort("it is odd")) } else { Ok(number) }
        });
        let processors = std::thread::available_parallelism().unwrap().get().max(2);
        assert!(most.into_inner() <= processors);
        for (number, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.is_ok(), number % 2 == 0);
            assert_eq!(region.load::<usize>(number * 8), if number % 2 == 0 { number } else { 0 });
        }
        let alone = tx.cofor(1, |_, _| Ok::<_, Error>(std::thread::current().id()));
        assert_eq!(*alone[0].as_ref().unwrap(), here);
        assert!(tx.cofor(0, |_, _| Ok::<_, Error>(())).is_empty());
        Ok::<_, Error>(())
    })
    .unwrap();
    // Outside of a transaction each is one of its own.
    let outcomes = cofor(&store, Class::Process, 10, |number, tx| {
        tx.store(&region, number * 8, &(100 + number))?;
        if number == 3 { Err(tx.abort("on purpose")) } else { Ok(tx.id().family) }
    });
    let families: std::collections::HashSet<_> = outcomes.iter().flatten().collect();
    assert_eq!((families.len(), outcomes[3].is_err()), (9, true));
    assert_eq!([2, 3, 4].map(|number| region.load::<usize>(number * 8)), [102, 0, 104]);
    let both = Barrier::new(2);
    let meet = |tx: &mut Tx<'_>| {
        both.wait();
        Ok::<_, Error>(tx.id())
    };
    let outcomes = cobegin(&store, Class::Process, [child(meet), child(meet)]);
    assert_ne!(outcomes[0].as_ref().unwrap().family, outcomes[1].as_ref().unwrap().family);
}

#[test]
fn a_parallel_child_that_panics_is_undone_and_the_others_are_not_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Undo);
    transact(&store, Class::Process, |tx| {
        let panicked = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            tx.cobegin([
                child(|child| {
                    child.store(&region, 0, &1u64)?;
                    while panicked.load(Ordering::SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    child.store(&region, 8, &1u64)
                }),
                child(|child| {
                    child.store(&region, 16, &1u64)?;
                    panicked.store(1, Ordering::SeqCst);
                    panic!("on purpose")
                }),
            ])
        }));
        assert!(caught.is_err());
        assert_eq!([0, 8, 16].map(|at| region.load::<u64>(at)), [1, 1, 0]);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_child_that_makes_its_parent_too_large_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let store = caliburn_engine::Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .open(dir.path().join("s"))
        .unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    transact(&store, Class::Process, |tx| {
        let outcomes = tx.cofor(8, |number, child| child.write(&region, number << 17, &[1; 100_000]));
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!((1..8).contains(&done), "{outcomes:?}");
        for (number, outcome) in outcomes.iter().enumerate() {
            assert_eq!(region.load::<u8>(number << 17), u8::from(outcome.is_ok()));
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// What a companion was told.
struct Told<'a>(&'a Mutex<Vec<&'static str>>, &'static str);

impl<'t> Follow<'t> for Told<'_> {
    fn child(&mut self) -> Self {
        Told(self.0, self.1)
    }

    fn independent(&mut self) -> Self {
        self.child()
    }

    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.1 == "panics at the vote" { panic!("on purpose") } else { Ok(()) }
    }

    fn apply(&mut self, _: &mut Transaction<'t>) -> Result<(), Error> {
        if self.1 == "panics as it applies" { panic!("on purpose") } else { Ok(()) }
    }

    fn committed(&mut self) {
        self.0.lock().unwrap().push("committed");
    }

    fn commit(self, _: &mut Self) {
        self.0.lock().unwrap().push("commit");
    }

    fn end(self) {
        self.0.lock().unwrap().push("end");
    }

    fn abort(self) {
        self.0.lock().unwrap().push("abort");
    }
}

#[test]
fn what_follows_a_family_is_told_how_each_has_ended_whatever_panics() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let expected: [(&str, &[&str]); 3] = [
        ("goes well", &["abort", "commit", "commit", "committed", "end"]),
        ("panics at the vote", &["abort"]),
        ("panics as it applies", &["abort", "commit", "commit", "abort"]),
    ];
    for (how, told) in expected {
        for class in [Class::Process, Class::Power] {
            let (events, before) = (Mutex::default(), region.load::<u64>(0));
            let done = catch_unwind(AssertUnwindSafe(|| {
                transact_following(&store, Told(&events, how), class, |tx| {
                    if how != "panics at the vote" {
                        let aborted = tx.nest(|child| {
                            child.companion();
                            Err::<(), _>(child.abort("as it should"))
                        });
                        assert!(aborted.is_err());
                        tx.nest(|child| {
                            child.companion();
                            Ok::<_, Error>(())
                        })?;
                        // Who does not ask for it has none.
                        tx.nest(|_| Ok::<_, Error>(()))?;
                        tx.cofor(1, |_, _| Ok::<_, Error>(())).into_iter().collect::<Result<Vec<_>, _>>()?;
                    }
                    tx.store(&region, 0, &(before + 1))
                })
            }));
            assert_eq!(*events.lock().unwrap(), told, "{how}, {class:?}");
            assert_eq!(region.load::<u64>(0), before + u64::from(done.is_ok()));
        }
    }
}

/// Children of children on the same pool: its threads run others while they wait.
#[test]
fn children_run_on_rayons_pool() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        let (store, region, pool) = (&store, &region, &pool);
        transact(store, Class::Process, |tx| {
            let outcomes = tx.cofor_on(pool, 200, |number, child| {
                assert!(pool.current_thread_index().is_some(), "it runs on another thread");
                child.store(region, number * 64, &number)?;
                let inner = child.cofor_on(pool, 4, |at, inner| {
                    inner.store(region, number * 64 + 8 + at * 8, &(at + 1))?;
                    if at == 2 { Err(inner.abort("the third")) } else { Ok(()) }
                });
                assert_eq!(inner.iter().filter(|inner| inner.is_ok()).count(), 3);
                if number % 7 == 3 { Err(child.abort("one of seven")) } else { Ok(()) }
            });
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 29);
            Ok::<_, Error>(())
        })
        .unwrap();
        for number in 0..200 {
            let found = [0, 8, 16, 24, 32].map(|at| region.load::<usize>(number * 64 + at));
            let wanted = if number % 7 == 3 { [0; 5] } else { [number, 1, 2, 0, 4] };
            assert_eq!(found, wanted, "{policy:?}: {number}");
        }
    }
}
