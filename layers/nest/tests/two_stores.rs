//! Two stores that commit together, in processes that are killed: each family is prepared in both, and what the
//! first one decides the second one does. After each death both are decided in the same way, whenever it came. The
//! second one has the undo policy, the first one either.

#[path = "support/lives.rs"]
mod lives;
mod support;

use caliburn_engine::{Policy, Region, Store};
use caliburn_nest::{Error, Prepared, prepare};
use std::path::{Path, PathBuf};
use support::open;

/// Where each family writes its number, in both stores.
const PLACES: [usize; 3] = [0, 5000, 40_960];
/// The identifier is always the same: one is decided before the next is prepared.
const ID: &[u8] = b"transfer";

/// The directories of the two.
fn both(path: &Path) -> [PathBuf; 2] {
    let two = ["first", "second"].map(|name| path.join(name));
    two.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    two
}

fn write<'t>(store: &'t Store, region: &'t Region, number: u64) -> Prepared<'t, ()> {
    let prepared = prepare(store, (), ID, |tx| {
        for at in PLACES {
            tx.nest(|child| child.store(region, at, &number))?;
        }
        Ok::<_, Error>(())
    });
    prepared.unwrap().1
}

/// Run in the child.
#[test]
fn child() {
    let Some((path, policy)) = lives::own() else { return };
    let [first, second] = both(&path);
    settle(&path, policy);
    let ((a, in_a), (b, in_b)) = (open(&first, policy), open(&second, Policy::Undo));
    let begun = in_a.load::<u64>(0) + 1;
    for number in begun.. {
        // Some lives end by themselves, at each of these places.
        let may_die = |place: u64| {
            if number > begun && number % 20 == place + 1 {
                std::process::abort();
            }
        };
        if number.is_multiple_of(3) {
            let (first, second) = (write(&a, &in_a, number), write(&b, &in_b, number));
            first.abort().unwrap();
            may_die(0);
            second.abort().unwrap();
        }
        let first = write(&a, &in_a, number);
        may_die(4);
        let second = write(&b, &in_b, number);
        may_die(9);
        first.commit().unwrap();
        may_die(13);
        second.commit().unwrap();
        may_die(18);
        lives::acknowledge(0, number);
    }
}

/// Decides what is undecided: what the first store has not decided is aborted, and else it says what became of it.
fn settle(path: &Path, policy: Policy) -> u64 {
    let [first, second] = both(path);
    // What is undecided stays so, however often it is opened.
    drop(open(&second, Policy::Undo));
    let ((a, in_a), (b, in_b)) = (open(&first, policy), open(&second, Policy::Undo));
    let undecided = |store: &Store| store.prepared().iter().any(|prepared| prepared.global_id == ID);
    if undecided(&a) {
        a.abort_prepared(ID).unwrap();
    }
    let number = in_a.load::<u64>(0);
    if undecided(&b) {
        let ranges = &b.prepared()[0].ranges;
        assert_eq!(ranges.len(), PLACES.len(), "{ranges:?}");
        // It writes its number: the one behind that of the second store, if the first one has committed it.
        if number > in_b.load::<u64>(0) { b.commit_prepared(ID) } else { b.abort_prepared(ID) }.unwrap();
    }
    for region in [&in_a, &in_b] {
        assert_eq!(PLACES.map(|at| region.load::<u64>(at)), [number; 3], "{policy:?}");
    }
    drop((in_a, in_b));
    if number.is_multiple_of(2) {
        a.close().unwrap();
        b.close().unwrap();
    }
    number
}

#[test]
fn two_stores_are_decided_in_the_same_way() {
    lives::all(|path, policy| [settle(path, policy)]);
}
