//! Properties of transactions on whole stores: any ranges, in any order, with truncation and reopening in between,
//! against a model memory.

mod support;

use caliburn::{Class, Mode, Policy, Store};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;
use support::clean;

const LEN: usize = 40_000;

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    /// Declares ranges and stores into them, then ends as the number says.
    Transaction {
        ranges: Vec<(usize, usize)>,
        end: u8,
        restore: bool,
    },
    /// The flusher's work.
    Tend,
    Flush,
    Truncate,
    /// The process dies and another one goes on.
    Die,
    Close,
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    // Close to each other and to the ends of pages, so that they touch, overlap and cross.
    let start = prop_oneof![0..LEN, 0..64usize, 4060..4130usize, LEN - 30..LEN];
    let len = prop_oneof![4 => 1..32usize, 2 => 1..600usize, 1 => 4000..9000usize, 1 => Just(0)];
    (start, len).prop_map(|(start, len)| (start, len.min(LEN - start)))
}

fn step() -> impl Strategy<Value = Step> {
    let transaction = (vec(range(), 0..40), 0..6u8, any::<bool>())
        .prop_map(|(ranges, end, restore)| Step::Transaction { ranges, end, restore });
    prop_oneof![
        12 => transaction,
        2 => Just(Step::Tend),
        1 => Just(Step::Flush),
        2 => Just(Step::Truncate),
        1 => Just(Step::Die),
        1 => Just(Step::Close),
    ]
}

/// Without threads of its own, so that its files can be copied as a dead process would leave them. Log and stage
/// hold all that a case commits.
fn open(path: &Path, policy: Policy) -> Store {
    let mut options = support::options();
    options.log_bytes(4 << 20).stage_bytes(8 << 20).background(false).policy(policy).open(path).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_that_of_the_committed_transactions(steps in vec(step(), 1..30), undo in any::<bool>()) {
        let policy = if undo { Policy::Undo } else { Policy::Redo };
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("0");
        let mut store = open(&path, policy);
        let mut region = store.create_segment("data", 65536).unwrap().map_all().unwrap();
        let mut model = vec![0u8; LEN];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Transaction { ranges, end, restore } => {
                    // Only a transaction that restores can be aborted.
                    let mode = if restore { Mode::Restore } else { Mode::NoRestore };
                    let mut tx = store.begin(mode).unwrap();
                    let mut after = model.clone();
                    for (i, (start, len)) in ranges.iter().enumerate() {
                        let bytes: Vec<u8> = (0..*len).map(|k| (number * 31 + i * 7 + k) as u8 | 1).collect();
                        tx.write(&region, *start, &bytes).unwrap();
                        after[*start..start + len].copy_from_slice(&bytes);
                    }
                    match end {
                        0 if restore => tx.abort(),
                        0 | 1 if !undo => tx.commit(Class::Power).unwrap(),
                        2 if !undo => drop(tx.commit_async().unwrap()),
                        _ => tx.commit(Class::Process).unwrap(),
                    }
                    if end != 0 || !restore {
                        model = after;
                    }
                }
                Step::Tend => store.tend_flush(false).unwrap(),
                Step::Flush => assert_eq!(store.flush().is_err(), undo),
                Step::Truncate => store.truncate().unwrap(),
                Step::Die => {
                    let next = dir.path().join(format!("{}", number + 1));
                    support::copy_store(&path, &next);
                    drop((region, store));
                    std::fs::remove_dir_all(&path).unwrap();
                    path = next;
                    clean(&path);
                    store = open(&path, policy);
                    region = store.segment("data").unwrap().map_all().unwrap();
                }
                Step::Close => {
                    drop(region);
                    store.close().unwrap();
                    clean(&path);
                    store = open(&path, policy);
                    region = store.segment("data").unwrap().map_all().unwrap();
                }
            }
            let mut there = vec![0; LEN];
            region.read(0, &mut there);
            prop_assert!(there == model, "after step {}", number);
        }
    }
}
