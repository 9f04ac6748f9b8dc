//! Cells: what transactions and their children undo, pointers that lead nowhere any more, deadlocks.

use caliburn_engine::{Class, Policy, Store};
use caliburn_serial::{Cells, Error, Ptr, Tx, serializable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, mpsc};

fn with_cells(test: impl Fn(&Store, &Cells)) {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
        test(&store, &Cells::open(&store, "cells").unwrap());
    }
}

fn insert(cells: &Cells, value: u64) -> Ptr<u64> {
    cells.transact(Class::Process, |tx| tx.insert(value)).unwrap()
}

fn add(tx: &mut Tx<'_>, cell: &Ptr<u64>) -> Result<(), Error> {
    *tx.write(cell)? += 1;
    Ok(())
}

fn value(cells: &Cells, cell: &Ptr<u64>) -> Result<u64, Error> {
    cells.read(|reader| reader.read(cell))
}

#[test]
fn what_does_not_commit_is_undone() {
    with_cells(|_, cells| {
        let (a, b) = (insert(cells, 1), insert(cells, 2));
        let refused = serializable(cells, |tx| {
            *tx.write(&a)? += 10;
            tx.remove(&b)?;
            tx.set_root("a", Some(&a))?;
            Err::<(), _>(tx.abort("as planned"))
        });
        assert_eq!(refused.unwrap_err().to_string(), "aborted: as planned");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            serializable(cells, |tx| {
                *tx.write(&a)? += 10;
                if tx.read(&a)? == 11 { panic!("as planned") } else { Ok::<_, Error>(()) }
            })
        }));
        assert!(panicked.is_err());
        assert_eq!((value(cells, &a).unwrap(), value(cells, &b).unwrap()), (1, 2));
        let root = cells.read(|reader| reader.root::<u64>("a")).unwrap();
        assert_eq!((root, cells.statistics().locked), (None, 0));
    });
}

#[test]
fn a_child_is_undone_alone_and_what_it_has_locked_stays_so() {
    with_cells(|_, cells| {
        let (a, b) = (insert(cells, 1), insert(cells, 2));
        serializable(cells, |tx| {
            *tx.write(&a)? = 10;
            let undone = tx.nest(|child| {
                *child.write(&a)? = 100;
                *child.write(&b)? = 100;
                child.insert(3u64)?;
                child.set_root("b", Some(&b))?;
                Err::<(), _>(child.abort("as planned"))
            });
            assert!(matches!(undone, Err(Error::Aborted(_))));
            assert_eq!((tx.read(&a)?, tx.root::<u64>("b")?), (10, None));
            assert_eq!(cells.statistics().locked, 5, "both cells, the new one, the name and its cell");
            tx.nest(|child| add(child, &b))
        })
        .unwrap();
        assert_eq!((value(cells, &a).unwrap(), value(cells, &b).unwrap()), (10, 3));
    });
}

#[test]
fn pointers_of_removed_cells_lead_nowhere() {
    with_cells(|_, cells| {
        let cell = insert(cells, 7);
        cells.transact(Class::Process, |tx| tx.set_root("cell", Some(&cell))).unwrap();
        let removed = cells.transact(Class::Process, |tx| {
            let value = tx.remove(&cell)?;
            assert!(matches!(tx.read(&cell), Err(Error::Gone { .. })));
            assert!(matches!(tx.remove(&cell), Err(Error::Gone { .. })));
            Ok::<_, Error>(value)
        });
        assert_eq!(removed.unwrap(), 7);
        // Others are where it was.
        let others: Vec<Ptr<u64>> = (0..200).map(|_| insert(cells, 8)).collect();
        assert!(others.iter().any(|other| other.place() == cell.place()));
        assert!(matches!(value(cells, &cell), Err(Error::Gone { .. })));
        let root = cells.read(|reader| reader.root::<u64>("cell")).unwrap().unwrap();
        assert!(matches!(value(cells, &root), Err(Error::Gone { .. })));
        assert!(matches!(value(cells, &Ptr::NONE), Err(Error::Gone { .. })));
        // Of another type.
        cells.transact(Class::Process, |tx| tx.set_root("cell", Some(&others[0]))).unwrap();
        let wrong = cells.read(|reader| {
            let root = reader.root::<[u64; 3]>("cell")?.expect("it is named");
            reader.read(&root)
        });
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("8 bytes, and its type 24"), "{text}");
    });
}

#[test]
fn cells_and_names_are_there_when_the_store_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::options().create(true).open(dir.path().join("s")).unwrap();
    let cell = {
        let store = open();
        let cells = Cells::open(&store, "cells").unwrap();
        assert!(Cells::open(&store, "cells").is_err(), "two tables of locks would not know of each other");
        let cell = insert(&cells, 5);
        serializable(&cells, |tx| tx.set_root("five", Some(&cell))).unwrap();
        cell
    };
    let store = open();
    let cells = Cells::open(&store, "cells").unwrap();
    let found = cells.read(|reader| reader.root("five")).unwrap().unwrap();
    assert_eq!((found, value(&cells, &found).unwrap()), (cell, 5));
    serializable(&cells, |tx| tx.set_root::<u64>("five", None)).unwrap();
    assert_eq!(cells.read(|reader| reader.root::<u64>("five")).unwrap(), None);
}

/// Two that read a cell, and then change it: one of them is run again.
#[test]
fn a_transaction_in_a_deadlock_is_run_again() {
    with_cells(|_, cells| {
        let cell = insert(cells, 0);
        let both_have_read = Barrier::new(2);
        let act = |tx: &mut Tx<'_>| {
            let value = tx.read(&cell)?;
            if tx.tries() == 1 {
                both_have_read.wait();
            }
            *tx.write(&cell)? = value + 1;
            Ok::<_, Error>(tx.tries())
        };
        let tries = std::thread::scope(|scope| {
            let two = [(); 2].map(|()| scope.spawn(|| cells.transact(Class::Process, act).unwrap()));
            two.map(|thread| thread.join().unwrap())
        });
        let statistics = cells.statistics();
        assert_eq!(value(cells, &cell).unwrap(), 2);
        assert_eq!(tries.iter().sum::<u64>(), 3, "{tries:?}");
        assert_eq!((statistics.retried, statistics.most_tries), (1, 2));
    });
}

/// A reader, and a writer that changes what it has read and has changed what it reads next.
#[test]
fn who_only_reads_is_never_run_again() {
    with_cells(|_, cells| {
        for round in 0..20 {
            let (a, b) = (insert(cells, 1), insert(cells, 1));
            let (read, has_read) = mpsc::channel();
            let (changed, has_changed) = mpsc::channel();
            std::thread::scope(|scope| {
                let writer = scope.spawn(move || {
                    let act = |tx: &mut Tx<'_>| {
                        *tx.write(&b)? += 1;
                        if tx.tries() == 1 {
                            changed.send(()).unwrap();
                            has_read.recv().unwrap();
                        }
                        *tx.write(&a)? += 1;
                        Ok::<_, Error>(())
                    };
                    cells.transact(Class::Process, act).unwrap();
                });
                // Older or younger than the writer.
                let mut runs = 0;
                let reads = |reader: &mut caliburn_serial::Reader<'_>| {
                    runs += 1;
                    if round % 2 == 0 {
                        has_changed.recv().unwrap();
                    }
                    let first = reader.read(&a)?;
                    read.send(()).unwrap();
                    Ok::<_, Error>((first, reader.read(&b)?))
                };
                if round % 2 == 1 {
                    has_changed.recv().unwrap();
                }
                let seen = cells.read(reads).unwrap();
                assert!(seen == (1, 1) || seen == (2, 2), "{seen:?}");
                assert_eq!(runs, 1);
                writer.join().unwrap();
            });
        }
        assert!(cells.statistics().retried > 0);
    });
}

/// Who is the oldest gets through, however many younger ones there always are.
#[test]
fn who_is_tried_again_keeps_its_age() {
    with_cells(|_, cells| {
        let all: Vec<Ptr<u64>> = (0..4).map(|_| insert(cells, 0)).collect();
        let rounds = if cfg!(debug_assertions) { 150 } else { 1000 };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let all = &all;
                scope.spawn(move || {
                    for round in 0..rounds {
                        cells
                            .transact(Class::Process, |tx| {
                                for at in 0..4 {
                                    // Each in an order of its own.
                                    let cell = &all[(at * (1 + 2 * (thread % 2)) + thread + round) % 4];
                                    let value = tx.read(cell)?;
                                    *tx.write(cell)? = value + 1;
                                }
                                Ok::<_, Error>(())
                            })
                            .unwrap();
                    }
                });
            }
        });
        all.iter().for_each(|cell| assert_eq!(value(cells, cell).unwrap(), 4 * rounds as u64));
    });
}

#[test]
fn a_transaction_within_another_is_told_so() {
    with_cells(|_, cells| {
        let cell = insert(cells, 1);
        let within = catch_unwind(AssertUnwindSafe(|| {
            serializable(cells, |tx| {
                tx.read(&cell)?;
                value(cells, &cell)
            })
        }));
        let text = *within.unwrap_err().downcast::<&str>().unwrap();
        assert!(text.contains("wait for ever"), "{text}");
        assert_eq!((value(cells, &cell).unwrap(), cells.statistics().locked), (1, 0));
    });
}

/// A transaction that is too large for the log says so, and leaves nothing.
#[test]
fn a_transaction_that_is_too_large_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .open(dir.path().join("s"))
        .unwrap();
    let cells = Cells::open(&store, "cells").unwrap();
    let cell = insert(&cells, 1);
    let large = serializable(&cells, |tx| {
        *tx.write(&cell)? = 2;
        (0..10_000).try_for_each(|_| tx.insert([0u64; 60]).map(drop))
    });
    assert!(matches!(large, Err(Error::Heap(_))), "{large:?}");
    assert_eq!(value(&cells, &cell).unwrap(), 1);
}

/// What a child has read its parent may know, though the child was undone: two that do so and write what the other
/// has read are not both as if alone.
#[test]
fn what_an_undone_child_has_read_is_not_changed() {
    with_cells(|_, cells| {
        let (x, y) = (insert(cells, 0), insert(cells, 0));
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for (from, to) in [(x, y), (y, x)] {
                let both = &both;
                scope.spawn(move || {
                    let act = |tx: &mut Tx<'_>| {
                        let mut seen = 0;
                        let undone = tx.nest(|child| {
                            seen = child.read(&from)?;
                            Err::<(), _>(child.abort("as planned"))
                        });
                        assert!(undone.is_err());
                        if tx.tries() == 1 {
                            both.wait();
                        }
                        *tx.write(&to)? = seen + 1;
                        Ok::<_, Error>(())
                    };
                    cells.transact(Class::Process, act).unwrap();
                });
            }
        });
        let mut values = [x, y].map(|cell| value(cells, &cell).unwrap());
        values.sort_unstable();
        assert_eq!(values, [1, 2], "one after the other");
    });
}

/// A pointer may be told to others before its cell is committed.
#[test]
fn a_new_cell_is_nobody_elses_before_it_is_committed() {
    with_cells(|_, cells| {
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let cell: Ptr<u64> = told.recv().unwrap();
                value(cells, &cell)
            });
            let aborted = cells.transact(Class::Process, |tx| {
                tell.send(tx.insert(42u64)?).unwrap();
                // It looks for it meanwhile, and waits.
                while cells.waiting() == 0 {
                    assert!(!other.is_finished());
                    std::thread::yield_now();
                }
                Err::<(), _>(tx.abort("never was"))
            });
            assert!(aborted.is_err());
            assert!(matches!(other.join().unwrap(), Err(Error::Gone { .. })));
        });
    });
}

/// One that is run again and again, among others that are for ever in its way, gets through.
#[test]
fn nobody_is_run_again_for_ever() {
    with_cells(|_, cells| {
        let (x, y) = (insert(cells, 0), insert(cells, 0));
        let starving = |act: &(dyn Fn() + Sync), victim: &dyn Fn(&mut Tx<'_>) -> Result<(), Error>| {
            let stop = AtomicBool::new(false);
            let tries = std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !stop.load(SeqCst) {
                            act();
                        }
                    });
                }
                // Else it would end only when the others do.
                let tries = cells.transact(Class::Process, |tx| match tx.tries() {
                    tries if tries > 200 => Ok::<_, Error>(tries),
                    tries => victim(tx).map(|()| tries),
                });
                stop.store(true, SeqCst);
                tries.unwrap()
            });
            assert!(tries < 100, "{tries}");
        };
        let soon = std::time::Duration::from_millis(1);
        let readers = || {
            let read = |reader: &mut caliburn_serial::Reader<'_>| {
                let value = reader.read(&y)?;
                std::thread::sleep(2 * soon);
                Ok::<_, Error>(value + reader.read(&x)?)
            };
            cells.read(read).unwrap();
        };
        starving(&readers, &|tx| {
            add(tx, &x)?;
            std::thread::sleep(soon);
            add(tx, &y)
        });
        let writers = || {
            let write = |tx: &mut Tx<'_>| {
                add(tx, &y)?;
                std::thread::sleep(soon);
                add(tx, &x)
            };
            cells.transact(Class::Process, write).unwrap();
        };
        // Its child is younger than all of them.
        starving(&writers, &|tx| {
            tx.nest(|child| {
                add(child, &x)?;
                std::thread::sleep(soon);
                add(child, &y)
            })
        });
    });
}

/// Two threads with a transaction on each of two cells would wait for each other, and nobody would know.
#[test]
fn a_transaction_on_other_cells_within_one_is_told_so() {
    with_cells(|store, cells| {
        let others = Cells::open(store, "others").unwrap();
        let within =
            catch_unwind(AssertUnwindSafe(|| serializable(cells, |_| Ok::<_, Error>(insert(&others, 1)))));
        assert!(within.is_err());
        insert(&others, 1);
        cells.read(|_| Ok::<_, Error>(())).unwrap();
    });
}

/// What failed, though the transaction went on, has left nothing allocated.
#[test]
fn what_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .open(dir.path().join("s"))
        .unwrap();
    {
        let cells = Cells::open(&store, "cells").unwrap();
        let cell = insert(&cells, 1);
        for _ in 0..3 {
            let done = cells.transact(Class::Process, |tx| {
                assert!(tx.set_root("", Some(&cell)).is_err());
                assert!(tx.insert([0u8; 1 << 20]).is_err());
                Ok::<_, Error>(())
            });
            done.unwrap();
        }
    }
    let heap = caliburn_heap::Heap::open(&store, "cells").unwrap();
    let statistics = heap.statistics();
    assert_eq!(
        statistics.large_objects + statistics.classes.iter().map(|class| class.objects).sum::<u64>(),
        1
    );
}

#[test]
fn who_holds_others_up_for_too_long_is_aborted() {
    with_cells(|_, cells| {
        let cell = insert(cells, 1);
        cells.set_limit(Some(std::time::Duration::from_millis(20)));
        let aborted = std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            scope.spawn(move || {
                told.recv().unwrap();
                cells.transact(Class::Process, |tx| add(tx, &cell)).unwrap();
            });
            cells.transact(Class::Process, |tx| {
                add(tx, &cell)?;
                tell.send(()).unwrap();
                // Until it learns it.
                while tx.read(&cell).is_ok() {
                    std::thread::yield_now();
                }
                Ok::<_, Error>(())
            })
        });
        assert!(
            matches!(&aborted, Err(Error::Lock(error)) if error.to_string().contains("took too long")),
            "{aborted:?}"
        );
        assert_eq!(value(cells, &cell).unwrap(), 2);
    });
}
