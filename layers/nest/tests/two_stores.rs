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

const THREADS: usize = 2;
/// Where each family of a thread writes its number, in both stores; those of the next thread lie behind.
const PLACES: [usize; 3] = [0, 5000, 40_960];
/// The identifiers are always the same: one is decided before the next is prepared.
const IDS: [&[u8]; THREADS] = [b"transfer", b"deposit"];

/// The directories of the two.
fn both(path: &Path) -> [PathBuf; 2] {
    let two = ["first", "second"].map(|name| path.join(name));
    two.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    two
}

fn places(thread: usize) -> [usize; 3] {
    PLACES.map(|at| at + thread * 8)
}

fn write<'t>(store: &'t Store, region: &'t Region, thread: usize, number: u64) -> Prepared<'t, ()> {
    let prepared = prepare(store, (), IDS[thread], |tx| {
        for at in places(thread) {
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
    settle(&path, policy);
    let [first, second] = both(&path);
    let ((a, in_a), (b, in_b)) = (open(&first, policy), open(&second, Policy::Undo));
    let live = |thread: usize| {
        let begun = in_a.load::<u64>(places(thread)[0]) + 1;
        for number in begun.. {
            // Some lives end by themselves, at each of these places.
            let may_die = |place: u64| {
                if number > begun && number % 20 == place + 1 {
                    std::process::abort();
                }
            };
            if number.is_multiple_of(3) {
                let first = write(&a, &in_a, thread, number);
                let second = write(&b, &in_b, thread, number);
                first.abort().unwrap();
                may_die(0);
                second.abort().unwrap();
            }
            let first = write(&a, &in_a, thread, number);
            may_die(4);
            let second = write(&b, &in_b, thread, number);
            may_die(9);
            first.commit().unwrap();
            may_die(13);
            second.commit().unwrap();
            may_die(18);
            lives::acknowledge(thread, number);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || live(thread)))));
}

/// Decides what is undecided: what the first store has not decided is aborted, and else it says what became of it.
fn settle(path: &Path, policy: Policy) -> [u64; THREADS] {
    let [first, second] = both(path);
    // What is undecided stays so, however often it is opened.
    drop(open(&second, Policy::Undo));
    let ((a, in_a), (b, in_b)) = (open(&first, policy), open(&second, Policy::Undo));
    let undecided = |store: &Store, id: &[u8]| store.prepared().into_iter().find(|one| one.global_id == id);
    let mut numbers = [0; THREADS];
    for (thread, id) in IDS.into_iter().enumerate() {
        let places = places(thread);
        if undecided(&a, id).is_some() {
            a.abort_prepared(id).unwrap();
        }
        let number = in_a.load::<u64>(places[0]);
        if let Some(one) = undecided(&b, id) {
            assert_eq!(one.ranges.len(), places.len(), "{:?}", one.ranges);
            // It writes its number: the one behind that of the second store, if the first one has committed it.
            let committed = number > in_b.load::<u64>(places[0]);
            if committed { b.commit_prepared(id) } else { b.abort_prepared(id) }.unwrap();
        }
        for region in [&in_a, &in_b] {
            assert_eq!(places.map(|at| region.load::<u64>(at)), [number; 3], "{policy:?}, {thread}");
        }
        numbers[thread] = number;
    }
    drop((in_a, in_b));
    if numbers[0].is_multiple_of(2) {
        a.close().unwrap();
        b.close().unwrap();
    }
    numbers
}

#[test]
fn two_stores_are_decided_in_the_same_way() {
    lives::all(settle);
}
