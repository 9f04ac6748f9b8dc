//! Vista's uses, the examples: crashed between any two of their steps, they keep what they promise.

mod support;

#[path = "../examples/outbox.rs"]
mod outbox;
#[path = "../examples/pointer_swap.rs"]
mod pointer_swap;
#[path = "../examples/token.rs"]
mod token;

use caliburn::heap::Heap;
use caliburn::{Policy, Store};
use std::path::{Path, PathBuf};

fn open(path: &Path, policy: Policy) -> Store {
    support::options().policy(policy).open(path).unwrap()
}

/// What a process that dies now leaves.
fn die(from: &Path, round: &mut u32) -> PathBuf {
    *round += 1;
    let to = from.with_file_name(format!(
        "{}-{round}",
        from.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap()
    ));
    support::copy_store(from, &to);
    to
}

const POLICIES: [Policy; 2] = [Policy::Undo, Policy::Redo];

#[test]
fn a_swapped_pointer_shows_one_version_or_the_other() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = open(&path, policy);
        let heap = Heap::open(&store, "texts").unwrap();
        for text in ["one", "another, longer", ""] {
            pointer_swap::publish(&heap, text).unwrap();
            assert_eq!(pointer_swap::current(&heap).as_deref(), Some(text));
        }
        let mut round = 0;
        pointer_swap::publish(&heap, "old").unwrap();
        // Half done.
        let mut tx = heap.begin().unwrap();
        let new = tx.allocate(30).unwrap();
        tx.write(new, 0, &[0xFF; 30]).unwrap();
        tx.free(heap.root("text").unwrap()).unwrap();
        tx.set_root("text", Some(new)).unwrap();
        let copy = die(&path, &mut round);
        tx.abort();
        let after = open(&copy, policy);
        let there = Heap::open(&after, "texts").unwrap();
        assert_eq!(pointer_swap::current(&there).as_deref(), Some("old"));
        let statistics = there.statistics();
        assert_eq!(statistics.classes.iter().map(|class| class.objects).sum::<u64>(), 1);
    }
}

#[test]
fn messages_arrive_exactly_once() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (mut from, mut to) = (dir.path().join("from"), dir.path().join("to"));
        let (mut round, mut step) = (0, 0);
        let mut sent = 0u64;
        // Either side dies after any step of a handing over.
        while sent < 40 {
            let (store, other) = (open(&from, policy), open(&to, policy));
            let (sender, receiver) =
                (outbox::Sender::open(&store).unwrap(), outbox::Receiver::open(&other).unwrap());
            let (mut next_from, mut next_to) = (None, None);
            let mut dies = |side: &mut Option<PathBuf>, path: &Path| {
                step += 1;
                let now = step % 7 == 0;
                if now {
                    *side = Some(die(path, &mut round));
                }
                now
            };
            'life: while sent < 40 {
                assert_eq!(sender.written(), sent);
                assert!(sender.put(sent + 1).unwrap());
                sent += 1;
                if dies(&mut next_from, &from) {
                    break;
                }
                for (number, message) in sender.pending() {
                    let known = receiver.take(number, message).unwrap();
                    if dies(&mut next_to, &to) {
                        break 'life;
                    }
                    sender.acknowledge(known).unwrap();
                    if dies(&mut next_from, &from) {
                        break 'life;
                    }
                }
            }
            drop((sender, receiver));
            drop((store, other));
            from = next_from.unwrap_or(from);
            to = next_to.unwrap_or(to);
        }
        let (store, other) = (open(&from, policy), open(&to, policy));
        let (sender, receiver) =
            (outbox::Sender::open(&store).unwrap(), outbox::Receiver::open(&other).unwrap());
        for (number, message) in sender.pending() {
            sender.acknowledge(receiver.take(number, message).unwrap()).unwrap();
        }
        assert_eq!(receiver.sum(), (1..=40).sum::<u64>());
        assert!(round > 5);
    }
}

#[test]
fn there_is_always_one_token() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = [dir.path().join("a"), dir.path().join("b")];
        let (mut round, mut step) = (0, 0u32);
        for _ in 0..12 {
            let stores = [open(&paths[0], policy), open(&paths[1], policy)];
            let holders = [
                token::Holder::open(&stores[0], true).unwrap(),
                token::Holder::open(&stores[1], false).unwrap(),
            ];
            let mut next = [None, None];
            'life: for _ in 0..5 {
                let count = |holders: &[token::Holder<'_>; 2]| {
                    let held = holders.iter().filter(|holder| holder.has()).count();
                    let way = |i: usize| holders[i].on_its_way().is_some_and(|n| n > holders[1 - i].number());
                    held + usize::from(way(0)) + usize::from(way(1))
                };
                assert_eq!(count(&holders), 1);
                let from = usize::from(
                    !(holders[0].has() || holders[0].on_its_way().is_some_and(|n| n > holders[1].number())),
                );
                if holders[from].has() {
                    holders[from].give().unwrap();
                }
                assert_eq!(count(&holders), 1);
                step += 1;
                if step % 4 == 0 {
                    next[from] = Some(die(&paths[from], &mut round));
                    break 'life;
                }
                let number = holders[from].on_its_way().unwrap();
                holders[1 - from].receive(number).unwrap();
                holders[1 - from].receive(number).unwrap();
                step += 1;
                if step % 4 == 0 {
                    next[1 - from] = Some(die(&paths[1 - from], &mut round));
                    break 'life;
                }
            }
            drop(holders);
            drop(stores);
            for (path, next) in paths.iter_mut().zip(next) {
                *path = next.unwrap_or_else(|| path.clone());
            }
        }
        assert!(round > 5);
    }
}
