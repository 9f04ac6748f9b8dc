//! What a million children take, in a process in which nothing else takes memory.

mod support;

use caliburn_engine::{Class, Policy};
use caliburn_nest::{Error, transact};
use support::open;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_million_children_take_what_they_change() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        transact(&store, Class::Process, |tx| {
            let mut before = 0;
            for number in 0..1_000_000usize {
                let done = tx.nest(|child| {
                    child.store(&region, number % 512 * 8, &number)?;
                    if number.is_multiple_of(10) { Err(child.abort("each tenth")) } else { Ok(()) }
                });
                assert_eq!(done.is_ok(), !number.is_multiple_of(10));
                if number == 100_000 {
                    before = resident();
                }
            }
            let grown = resident().saturating_sub(before);
            assert!(grown < 2 << 20, "{grown} bytes for 900,000 children that change 4 KiB, {policy:?}");
            Ok::<_, Error>(())
        })
        .unwrap();
        assert_eq!(region.load::<usize>(999_999 % 512 * 8), 999_999);
    }
}
