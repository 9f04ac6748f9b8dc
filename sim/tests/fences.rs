//! How many fences a commit in persistent memory takes.
#![cfg(caliburn_sim)]

use caliburn::{Class, Mode};
use caliburn_sim::disk::Act;
use caliburn_sim::life::{Flavour, STORE, default_start, machine, options};
use caliburn_sim::media::Entry;

#[test]
fn a_commit_in_persistent_memory_takes_two_fences_and_one_for_each_range() {
    let start = default_start(Flavour::Persistent);
    let machine = machine(&start, None);
    machine.run(|| {
        let store = options(&machine, 50, Flavour::Persistent).open(STORE).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        // The first takes a chunk. Simulated runs have four numbers: after the fourth what was sealed is erased.
        for (nth, ranges) in [1, 1, 2, 7, 40].into_iter().enumerate() {
            let mut tx = store.begin(Mode::Restore).unwrap();
            machine.take_journal();
            for range in 0..ranges {
                tx.write(&region, range * 200, &[7; 90]).unwrap();
            }
            tx.commit(Class::Power).unwrap();
            let journal = machine.take_journal();
            let fences = journal.iter().filter(|entry| matches!(entry, Entry::Act(Act::Fence))).count();
            let first = ranges == 1 && journal.iter().any(|e| matches!(e, Entry::Act(Act::Extend(..))));
            assert_eq!(fences, ranges + 2 + usize::from(first) + usize::from(nth == 3), "{ranges} ranges");
        }
    });
}
