//! Cells: what transactions and their children undo, pointers that lead nowhere any more, deadlocks.

use caliburn_engine::{Class, Policy, Store};
use caliburn_serial::{Cells, Error, Ptr, Tx, serializable};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
fn a_child_is_undone_alone_and_lets_its_locks_go() {
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
            // Another may have it, though the parent goes on.
            std::thread::scope(|scope| {
                scope.spawn(|| cells.transact(Class::Process, |tx| add(tx, &b)).unwrap());
            });
            tx.nest(|child| add(child, &b))
        })
        .unwrap();
        assert_eq!((value(cells, &a).unwrap(), value(cells, &b).unwrap()), (10, 4));
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
        assert!(text.contains("which would wait for itself"), "{text}");
        assert_eq!((value(cells, &cell).unwrap(), cells.statistics().locked), (1, 0));
    });
}

/// A transaction that is too large for the log says so, and leaves nothing.
#[test]
fn a_transaction_that_is_too_large_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options().create(true).log_bytes(1 << 20).open(dir.path().join("s")).unwrap();
    let cells = Cells::open(&store, "cells").unwrap();
    let cell = insert(&cells, 1);
    let large = serializable(&cells, |tx| {
        *tx.write(&cell)? = 2;
        (0..10_000).try_for_each(|_| tx.insert([0u64; 60]).map(drop))
    });
    assert!(matches!(large, Err(Error::Heap(_))), "{large:?}");
    assert_eq!(value(&cells, &cell).unwrap(), 1);
}
