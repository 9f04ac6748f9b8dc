//! What parts of a transaction allocate and free, where the transaction is in other hands.

mod support;

use caliburn_engine::{Class, Mode, Policy, Store};
use caliburn_heap::{Allocations, Heap, HeapError, Intended, Place, Taken};
use std::path::{Path, PathBuf};
use support::{POLICIES, copy, objects, options};

/// An object that stays.
fn allocated(heap: &Heap) -> Place {
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(40).unwrap();
    tx.commit(Class::Process).unwrap();
    place
}

#[test]
fn a_part_that_is_undone_leaves_what_its_parent_has_done() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store = options().policy(policy).open(dir.path().join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        let old = [allocated(&heap), allocated(&heap)];
        let mut tx = store.begin(Mode::Restore).unwrap();
        let taken = Taken::default();
        let mut all = Allocations::new(&heap, &taken);
        let (kept, dropped) = (all.allocate(40).unwrap(), all.allocate(40).unwrap());
        // A part frees what its parent has made, and what was there before, and is undone.
        let mut undone = Allocations::new(&heap, &taken);
        let lost = undone.allocate(40).unwrap();
        for place in [kept, old[0]] {
            undone.free(place).unwrap();
            assert!(matches!(undone.free(place), Err(HeapError::NotAllocated { .. })), "it is freed already");
        }
        drop(undone);
        // Another one does so, and goes well.
        let mut part = Allocations::new(&heap, &taken);
        part.free(dropped).unwrap();
        part.free(old[1]).unwrap();
        let mine = part.allocate(40).unwrap();
        assert_eq!(mine, lost, "it was given back");
        all.adopt(part);
        tx.store(heap.region(), mine.0 as usize, &7u64).unwrap();
        let (tx, intended) = all.intend(tx, b"").unwrap();
        tx.commit(Class::Process).unwrap();
        intended.settle(true);
        let mut expected = [old[0], kept, mine];
        expected.sort_unstable();
        assert_eq!(objects(&heap), expected);
        // What was allocated and freed, or freed, is anybody's.
        let mut again = Allocations::new(&heap, &Taken::default());
        let mut next = [again.allocate(40).unwrap(), again.allocate(40).unwrap()];
        next.sort_unstable();
        let mut free = [dropped, old[1]];
        free.sort_unstable();
        assert_eq!(next, free);
        drop(again);
        assert_eq!(objects(&heap), expected);
    }
}

/// Two heaps that change together, and a word that tells whether they have.
struct Both {
    path: PathBuf,
    store: Store,
    heaps: [Heap; 2],
    old: [Place; 2],
}

impl Both {
    fn new(path: &Path, policy: Policy) -> Both {
        let store = options().policy(policy).open(path).unwrap();
        let heaps = ["a", "b"].map(|name| Heap::open(&store, name).unwrap());
        store.create_segment("word", 4096).unwrap();
        let old = [0, 1].map(|at| allocated(&heaps[at]));
        Both { path: path.to_owned(), store, heaps, old }
    }

    /// Frees what was there, and allocates something, in each; how the process dies then.
    fn change(
        &self,
        ends: impl for<'h> FnOnce(&Both, caliburn_engine::Transaction<'h>, Vec<Intended<'h>>, &dyn Fn(bool)),
    ) {
        let copies = std::cell::Cell::new(0);
        let word = self.store.segment("word").unwrap().map_all().unwrap();
        // What a killed process would have left: all of it, or nothing.
        let dies = |perhaps: bool| {
            let to = self.path.with_extension(copies.replace(copies.get() + 1).to_string());
            let store = options().open(copy(&self.path, &to)).unwrap();
            let word = store.segment("word").unwrap().map_all().unwrap().load::<u64>(0);
            assert!(word == 0 || perhaps, "nothing has committed");
            if store.prepared().is_empty() {
                self.is(&store, word == 1);
            } else {
                let heaps = ["a", "b"].map(|name| Heap::open(&store, name).unwrap());
                for (heap, old) in heaps.iter().zip(self.old) {
                    let undecided = heap.undecided();
                    assert_eq!(undecided.len(), 1);
                    assert_eq!(undecided[0].objects.len(), 2);
                    assert!(undecided[0].objects.contains(&(old.0..old.0 + 48)), "{undecided:?}");
                }
            }
        };
        let mut tx = self.store.begin(Mode::Restore).unwrap();
        tx.store(&word, 0, &1u64).unwrap();
        let mut intended = Vec::new();
        for (heap, old) in self.heaps.iter().zip(self.old) {
            let mut all = Allocations::new(heap, &Taken::default());
            all.free(old).unwrap();
            let new = all.allocate(40).unwrap();
            tx.store(heap.region(), new.0 as usize, &5u64).unwrap();
            dies(false);
            let (same, list) = all.intend(tx, b"id").unwrap();
            tx = same;
            intended.push(list);
            dies(false);
        }
        ends(self, tx, intended, &dies);
        dies(true);
    }

    fn is(&self, store: &Store, committed: bool) {
        let heaps = ["a", "b"].map(|name| Heap::open(store, name).unwrap());
        self.are(&heaps, committed);
    }

    fn are(&self, heaps: &[Heap; 2], committed: bool) {
        for (heap, old) in heaps.iter().zip(self.old) {
            let there = objects(heap);
            assert_eq!(there.len(), 1);
            assert_eq!(there[0] != old, committed);
            if committed {
                assert_eq!(heap.load::<u64>(there[0], 0).unwrap(), 5);
            }
        }
    }
}

#[test]
fn heaps_change_together_or_not_at_all() {
    for policy in POLICIES {
        for commits in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let both = Both::new(&dir.path().join("s"), policy);
            both.change(|_, tx, intended, dies| {
                if commits {
                    tx.commit(Class::Process).unwrap();
                } else {
                    tx.abort();
                }
                for list in intended {
                    dies(commits);
                    list.settle(commits);
                }
            });
            both.are(&both.heaps, commits);
        }
    }
}

#[test]
fn undecided_heaps_are_decided_together() {
    for policy in POLICIES {
        for commits in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let both = Both::new(&dir.path().join("s"), policy);
            both.change(|both, tx, intended, dies| {
                tx.prepare(b"id").unwrap();
                drop(intended);
                dies(false);
                let mut all: Vec<_> = both.heaps.iter().map(|heap| heap.intended(b"id").unwrap()).collect();
                if commits {
                    both.store.commit_prepared(b"id").unwrap();
                } else {
                    both.store.abort_prepared(b"id").unwrap();
                }
                dies(commits);
                all.pop().unwrap().settle(commits);
                dies(commits);
                all.pop().unwrap().settle(commits);
            });
            both.are(&both.heaps, commits);
        }
    }
}

#[test]
fn a_heap_grows_no_further_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    heap.set_limit(1 << 20);
    let mut all = Allocations::new(&heap, &Taken::default());
    let full = loop {
        match all.allocate(60_000) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, HeapError::Full { limit: 0x10_0000, .. }), "{full}");
    assert_eq!(heap.region().len(), 1 << 20, "all that it may have");
    drop(all);
    // There is room again.
    Allocations::new(&heap, &Taken::default()).allocate(60_000).unwrap();
}

/// Whoever has an old place, and frees there what somebody else has just been given.
#[test]
fn what_another_transaction_has_allocated_is_not_there_to_be_freed() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    let (mine, others) = (Taken::default(), Taken::default());
    let mut all = Allocations::new(&heap, &mine);
    let places = [all.allocate(40).unwrap(), all.allocate(200_000).unwrap()];
    for place in places {
        let freed = Allocations::new(&heap, &others).free(place);
        assert!(matches!(freed, Err(HeapError::NotAllocated { .. })));
        let mut tx = heap.begin().unwrap();
        assert!(matches!(tx.free(place), Err(HeapError::NotAllocated { .. })));
    }
    // A part of its own may.
    let mut part = Allocations::new(&heap, &mine);
    part.free(places[0]).unwrap();
    drop(part);
    // What was undone is nobody's, and then somebody else's.
    let mut undone = Allocations::new(&heap, &mine);
    let gone = undone.allocate(40).unwrap();
    drop(undone);
    let mut other = Allocations::new(&heap, &others);
    assert_eq!(other.allocate(40).unwrap(), gone);
    assert!(matches!(all.free(gone), Err(HeapError::NotAllocated { .. })));
    drop((all, other));
    assert_eq!(objects(&heap), []);
}

#[test]
fn what_is_in_a_full_heap_can_be_freed() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    heap.set_limit(1 << 20);
    let mut tx = heap.begin().unwrap();
    let mut places = Vec::new();
    while let Ok(place) = tx.allocate(65_536) {
        places.push(place);
    }
    tx.commit(Class::Process).unwrap();
    assert_eq!(places.len(), 16, "nothing is left");
    // Again and again, also where somebody takes what was freed; lists of several sizes; and where it may have less
    // than it has.
    for round in 0..6 {
        let tx = store.begin(Mode::Restore).unwrap();
        let mut all = Allocations::new(&heap, &Taken::default());
        let freed = places.split_off(places.len() - 1 - round % 2);
        freed.iter().for_each(|place| all.free(*place).unwrap());
        let (tx, list) = all.intend(tx, &b"an identifier of some length"[..round * 5]).unwrap();
        assert_eq!(
            heap.prepared().len(),
            usize::from(round > 0),
            "one without an identifier commits at once"
        );
        tx.commit(Class::Process).unwrap();
        list.settle(true);
        assert_eq!(objects(&heap).len(), places.len());
        let mut tx = heap.begin().unwrap();
        let again = if round < 4 { freed.len() } else { 0 };
        (0..again).for_each(|_| places.push(tx.allocate(65_536).unwrap()));
        assert!(round == 5 || matches!(tx.allocate(65_536), Err(HeapError::Full { .. })), "{round}");
        tx.commit(Class::Process).unwrap();
        if round == 3 {
            heap.set_limit(1 << 19);
        }
    }
    heap.check().unwrap();
}
