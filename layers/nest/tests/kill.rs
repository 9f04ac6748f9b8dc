//! Real processes with families, really killed: after each death all of a family is there, or nothing of it, and
//! all that was acknowledged; nothing of a child that aborted.

#[path = "support/lives.rs"]
mod lives;
mod support;

use caliburn_engine::Class;
use caliburn_nest::{Error, transact};
use support::open;

/// Where a family writes its number: itself, a child, that one's child, and two children side by side.
const PLACES: [usize; 5] = [0, 4096, 8192, 12_288, 16_384];
/// Where children write that abort.
const ABORTED: usize = 20_480;

/// Run in the child.
#[test]
fn child() {
    let Some((path, policy)) = lives::own() else { return };
    let (store, region) = open(&path, policy);
    for number in region.load::<u64>(0) + 1.. {
        transact(&store, Class::Process, |tx| {
            tx.store(&region, PLACES[0], &number)?;
            tx.nest(|child| {
                child.store(&region, PLACES[1], &99u64)?;
                let aborted = child.nest(|inner| {
                    inner.store(&region, PLACES[1], &77u64)?;
                    inner.store(&region, ABORTED, &number)?;
                    Err::<(), _>(inner.abort("as always"))
                });
                assert!(aborted.is_err());
                child.nest(|inner| inner.store(&region, PLACES[2], &number))?;
                child.store(&region, PLACES[1], &number)
            })?;
            let children = tx.cofor(3, |at, child| {
                child.store(&region, PLACES.get(3 + at).copied().unwrap_or(ABORTED), &number)?;
                if at == 2 { Err(child.abort("as always")) } else { Ok(()) }
            });
            assert_eq!(children.iter().filter(|child| child.is_ok()).count(), 2);
            Ok::<_, Error>(())
        })
        .unwrap();
        lives::acknowledge(0, number);
    }
}

#[test]
fn a_family_is_there_wholly_or_not() {
    lives::all(|path, policy| {
        let (_store, region) = open(path, policy);
        let numbers = PLACES.map(|at| region.load::<u64>(at));
        assert!(numbers.iter().all(|number| *number == numbers[0]), "{policy:?}: {numbers:?}");
        assert_eq!(region.load::<u64>(ABORTED), 0);
        [numbers[0]]
    });
}
