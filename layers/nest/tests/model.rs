//! Random families against a sequential model of nested transactions: a child works on a copy of what its parent
//! sees, which is the parent's when it commits.

mod support;

use caliburn_engine::{Class, Policy, Region, Store};
use caliburn_nest::{Error, Tx, transact};
use proptest::prelude::*;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{LEN, bytes, open};

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commit,
    Abort,
    Panic,
}

/// What a transaction does. Places are shares of its bytes, in 256ths.
#[derive(Debug, Clone)]
enum Act {
    Write(u8, u8, u8),
    Child(Vec<Act>, End),
    /// Children side by side, each with a part of the bytes.
    Parallel(Vec<(Vec<Act>, End)>),
    /// Acts that are rolled back to a savepoint, or stay.
    Savepoint(Vec<Act>, bool),
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![4 => Just(End::Commit), 2 => Just(End::Abort), 1 => Just(End::Panic)]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write = (any::<u8>(), 0..40u8, any::<u8>()).prop_map(|(at, len, value)| Act::Write(at, len, value));
    let leaf = prop::collection::vec(write.clone(), 0..4);
    leaf.prop_recursive(5, 60, 5, move |inner| {
        let act = prop_oneof![
            3 => write.clone(),
            3 => (inner.clone(), end()).prop_map(|(acts, end)| Act::Child(acts, end)),
            1 => prop::collection::vec((inner.clone(), end()), 1..4).prop_map(Act::Parallel),
            1 => (inner, any::<bool>()).prop_map(|(acts, undone)| Act::Savepoint(acts, undone)),
        ];
        prop::collection::vec(act, 0..6)
    })
}

/// The model. Whether it ended by a panic that its parent did not catch.
fn model(acts: &[Act], memory: &mut Vec<u8>, place: &Range<usize>) {
    for act in acts {
        match act {
            Act::Write(at, len, value) => memory[within(place, *at, *len)].fill(*value),
            Act::Child(acts, end) => {
                let mut child = memory.clone();
                model(acts, &mut child, place);
                if *end == End::Commit {
                    *memory = child;
                }
            }
            Act::Parallel(children) => {
                for (number, (acts, end)) in children.iter().enumerate() {
                    let mut child = memory.clone();
                    model(acts, &mut child, &part(place, number, children.len()));
                    if *end == End::Commit {
                        *memory = child;
                    }
                }
            }
            Act::Savepoint(acts, undone) => {
                let before = memory.clone();
                model(acts, memory, place);
                if *undone {
                    *memory = before;
                }
            }
        }
    }
}

fn within(place: &Range<usize>, at: u8, len: u8) -> Range<usize> {
    let start = place.start + place.len() * usize::from(at) / 256;
    start..(start + usize::from(len)).min(place.end)
}

fn part(place: &Range<usize>, number: usize, count: usize) -> Range<usize> {
    let len = place.len() / count;
    place.start + number * len..place.start + (number + 1) * len
}

fn run<'t>(tx: &mut Tx<'t>, region: &'t Region, acts: &[Act], place: &Range<usize>) -> Result<(), Error> {
    for act in acts {
        match act {
            Act::Write(at, len, value) => {
                let range = within(place, *at, *len);
                tx.write(region, range.start, &vec![*value; range.len()])?;
            }
            Act::Child(acts, end) => {
                let child = |tx: &mut Tx<'t>| ending(tx, region, acts, place, *end);
                let done = catch_unwind(AssertUnwindSafe(|| tx.nest(child)));
                assert_eq!(matches!(done, Ok(Ok(()))), *end == End::Commit);
            }
            Act::Parallel(children) => {
                let child = |number: usize, tx: &mut Tx<'t>| {
                    let (acts, end) = &children[number];
                    let place = part(place, number, children.len());
                    let caught = catch_unwind(AssertUnwindSafe(|| ending(tx, region, acts, &place, *end)));
                    caught.unwrap_or_else(|_| Err(tx.abort("it panicked")))
                };
                let outcomes = tx.cofor(children.len(), child);
                for (outcome, (_, end)) in outcomes.iter().zip(children) {
                    assert_eq!(outcome.is_ok(), *end == End::Commit, "{outcome:?}");
                }
            }
            Act::Savepoint(acts, undone) => {
                let savepoint = tx.savepoint()?;
                run(tx, region, acts, place)?;
                match undone {
                    true => tx.rollback_to(&savepoint)?,
                    false => tx.release(&savepoint)?,
                }
            }
        }
    }
    Ok(())
}

fn ending<'t>(
    tx: &mut Tx<'t>,
    region: &'t Region,
    acts: &[Act],
    place: &Range<usize>,
    end: End,
) -> Result<(), Error> {
    run(tx, region, acts, place)?;
    match end {
        End::Commit => Ok(()),
        End::Abort => Err(tx.abort("as the family says")),
        End::Panic => std::panic::panic_any("as the family says"),
    }
}

fn family(store: &Store, region: &Region, memory: &mut Vec<u8>, acts: &[Act], end: End) {
    let before = memory.clone();
    let done = catch_unwind(AssertUnwindSafe(|| {
        transact(store, Class::Process, |tx| ending(tx, region, acts, &(0..LEN), end))
    }));
    model(acts, memory, &(0..LEN));
    if end != End::Commit {
        *memory = before;
    }
    assert_eq!(matches!(done, Ok(Ok(()))), end == End::Commit, "{done:?}");
    assert!(bytes(region) == *memory, "the region does not hold what the model does");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 1500 }))]

    #[test]
    fn families_do_what_the_model_does(
        families in prop::collection::vec((acts(), end()), 1..4),
        undo in any::<bool>(),
    ) {
        std::panic::set_hook(Box::new(|info| {
            if info.payload_as_str() != Some("as the family says") {
                eprintln!("{info}");
            }
        }));
        let policy = if undo { Policy::Undo } else { Policy::Redo };
        let dir = tempfile::tempdir().unwrap();
        let mut memory = vec![0; LEN];
        {
            let (store, region) = open(dir.path(), policy);
            for (acts, end) in &families {
                family(&store, &region, &mut memory, acts, *end);
            }
        }
        let (_store, region) = open(dir.path(), policy);
        prop_assert!(bytes(&region) == memory, "what is opened again is not what the model has");
    }
}
