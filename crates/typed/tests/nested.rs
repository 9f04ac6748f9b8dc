//! Transactions within transactions: what they undo, and attempts to carry something out of them.

mod support;

use caliburn::typed::Error;
use caliburn::{Objects, Owned, PBox, PHashMap, PRc, PString, PVec, Policy, Recoverable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, objects, store_with};

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    names: PVec<PString>,
    map: PHashMap<u64, PString>,
    first: Option<PBox<u64>>,
    shared: Option<PRc<PString>>,
}

fn refused<T>() -> Result<T, Error> {
    Err(Error::Interrupted)
}

fn with_root(test: impl Fn(&Objects<Root>)) {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store_with(policy, true);
        test(&objects(&store));
    }
}

#[test]
fn a_child_is_undone_and_its_parent_goes_on() {
    with_root(|root| {
        root.update(|mut root| {
            root.fields().names.push("kept");
            // So that there is a table.
            root.fields().map.insert(0, "gone");
            root.fields().map.clear();
        })
        .unwrap();
        let before = allocated(root);
        root.update(|mut root| {
            root.fields().map.insert(1, "parent's");
            let undone = root.nest(|mut child| {
                let mut child = child.fields();
                // What the parent has made, what was there, and what is new.
                child.map.remove(&1);
                child.names.clear();
                child.first.set(Some(PBox::new(7)));
                refused::<()>()
            });
            assert!(matches!(undone, Err(Error::Interrupted)));
            assert_eq!((root.names.len(), root.map.len(), root.first.is_none()), (1, 1, true));
            // The child of a child stays with its parent, which commits.
            root.nest(|mut child| {
                child
                    .nest(|mut inner| {
                        drop(inner.fields().map.insert(2, "grandchild's"));
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                child.nest(|mut inner| refused::<()>().inspect(|()| inner.fields().map.clear())).unwrap_err();
                Ok::<_, Error>(())
            })
            .unwrap();
            assert_eq!(root.map.get(&2).map(|name| &name[..]), Some("grandchild's"));
            root.fields().map.clear();
        })
        .unwrap();
        assert_eq!(root.read().names.len(), 1);
        assert_eq!(allocated(root), before);
    });
}

#[test]
fn the_parent_changes_nothing_while_a_child_is_open() {
    with_root(|root| {
        root.update(|mut root| {
            let mut fields = root.fields();
            let (names, map) = (&mut fields.names, &mut fields.map);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                names.nest(|mut child| {
                    child.push("child's");
                    map.insert(1, "parent's");
                    Ok::<_, Error>(())
                })
            }));
            let text = *caught.unwrap_err().downcast::<&str>().unwrap();
            assert!(text.contains("use the child's"), "{text}");
            assert!(names.is_empty() && map.is_empty());
            map.insert(2, "parent's");
            names.push("parent's");
        })
        .unwrap();
        assert_eq!((root.read().names.len(), root.read().map.len()), (1, 1));
    });
}

/// What is half made for the parent stays what must not be built on, also if a child was open then.
#[test]
fn what_a_child_leaves_half_made_of_its_parents_is_not_committed() {
    with_root(|root| {
        let done = root.transact::<_, Error>(|mut root| {
            let mut fields = root.fields();
            let tx = fields.first.tx();
            let names = &mut fields.names;
            let caught = catch_unwind(AssertUnwindSafe(|| {
                names.nest(|_| {
                    drop(Owned::<PBox<u64>>::new(PBox::new(1), tx));
                    Ok::<_, Error>(())
                })
            }));
            assert!(caught.is_err());
            Ok(())
        });
        assert!(done.is_err());
    });
}

#[test]
fn a_child_without_room_is_undone_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = caliburn::Store::options();
    let store =
        options.create(true).log_bytes(1 << 20).large_transactions(false).open(dir.path().join("s")).unwrap();
    let root: Objects<Root> = objects(&store);
    root.update(|mut root| {
        root.fields().names.push("parent's");
        let full = root.nest(|mut child| {
            let long = "x".repeat(1 << 12);
            (0..10_000).for_each(|_| child.fields().names.push(&*long));
            Ok::<_, Error>(())
        });
        let text = full.unwrap_err().to_string();
        assert!(text.contains("log") || text.contains("record"), "{text}");
        // What was caught in the child is not built on.
        let caught = root.nest(|mut child| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let values = (0..3).map(|at| if at < 2 { "made" } else { panic!("as planned") });
                child.fields().names.extend(values);
            }));
            assert!(panicked.is_err());
            Ok::<_, Error>(())
        });
        caught.unwrap();
        assert_eq!(root.names.len(), 3, "what was whole when the iterator panicked");
        root.fields().names.truncate(1);
        root.fields().names.push("the parent's as well");
    })
    .unwrap();
    assert_eq!(root.read().names.len(), 2);
}

#[test]
fn counts_of_owners_are_undone() {
    with_root(|root| {
        root.update(|mut root| root.fields().shared.set(Some(PRc::new("shared")))).unwrap();
        root.update(|mut root| {
            let undone = root.nest(|mut child| {
                let mut fields = child.fields();
                drop(fields.shared.take());
                fields.names.push("in its place?");
                refused::<()>()
            });
            assert!(undone.is_err());
        })
        .unwrap();
        assert_eq!(root.read().shared.as_ref().map(|shared| &shared[..]), Some("shared"));
        let with = allocated(root);
        root.update(|mut root| drop(root.fields().shared.take())).unwrap();
        assert!(allocated(root) < with);
    });
}

/// Deeper than programs nest, on a stack of so many closures; each level's changes are its own.
#[test]
fn children_are_ten_thousand_deep() {
    fn deeper(mut names: caliburn::Mut<'_, '_, PVec<PString>>, depth: u64) -> Result<(), Error> {
        names.push("another");
        if depth > 0 {
            let done = names.nest(|names| deeper(names, depth - 1));
            assert_eq!(done.is_err(), depth % 2 == 1);
        }
        if depth.is_multiple_of(2) { refused() } else { Ok(()) }
    }
    with_root(|root| {
        let nest = || root.transact::<_, Error>(|mut root| deeper(root.fields().names, 10_001));
        std::thread::scope(|scope| {
            let large = std::thread::Builder::new().stack_size(256 << 20);
            large.spawn_scoped(scope, nest).unwrap().join().unwrap().unwrap();
        });
        assert_eq!(root.read().names.len(), 1);
    });
}

/// A value that was taken out of its place is in no heap: it is as before as well, and leads to what is its own.
#[test]
fn values_on_their_way_are_undone() {
    with_root(|root| {
        let before = allocated(root);
        let first = root.transact::<_, Error>(|mut root| {
            let mut list = Owned::<PVec<PString>>::new(PVec::new(), root.tx());
            let undone = list.as_mut().nest(|mut list| {
                list.extend(["one", "two", "three"]);
                refused::<()>()
            });
            assert!(undone.is_err() && list.is_empty());
            // Has the same memory, perhaps.
            root.fields().names.extend(["seven", "eight", "nine"]);
            list.as_mut().extend(["four"]);
            let mut name = root.fields().names.pop().expect("three");
            let undone = name.as_mut().nest(|mut name| {
                name.clear();
                name.shrink_to_fit();
                name.push_str("another text, and a longer one than there was before");
                refused::<()>()
            });
            assert!(undone.is_err() && &name[..] == "nine");
            list.as_mut()
                .nest(|mut list| {
                    list.push("five");
                    Ok::<_, Error>(())
                })
                .unwrap();
            assert_eq!(list.iter().map(|name| &name[..]).collect::<Vec<_>>(), ["four", "five"]);
            Ok(root.names[0].to_string())
        });
        assert_eq!(first.unwrap(), "seven");
        // Nothing is left of what was made and undone.
        root.update(|mut root| {
            root.fields().names.clear();
            root.fields().names.shrink_to_fit();
        })
        .unwrap();
        assert_eq!(allocated(root), before);
    });
}
