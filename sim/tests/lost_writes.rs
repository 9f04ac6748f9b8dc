//! A force of a segment fails because something written to it before was lost on its way to the medium: as it
//! grows, and the program goes on; or in truncation. The program is killed, and what was lost is not in the
//! page cache any more. Whoever opens the store then must not rely on what the segment showed.
#![cfg(caliburn_sim)]

use caliburn::{Class, Mode, Region, Store};
use caliburn_sim::disk::{Act, Disk, Loss};
use caliburn_sim::life::{Flavour, STORE, Start, default_start, machine, options};
use caliburn_sim::media::{Entry, Fault};
use std::path::Path;

const BYTES: usize = 3000;

/// Where a transaction has written which byte.
type Written = (usize, u8);

struct Outcome {
    disk: Disk,
    committed: Vec<Written>,
    /// Operations before the force.
    before: u64,
    /// The force failed.
    unforced: bool,
    /// The store took what came later.
    went_on: bool,
}

/// What forces a segment, and whether it was forced.
type Forces = fn(&Store) -> bool;

fn put(store: &Store, region: &Region, written: Written) -> Written {
    try_put(store, region, written).expect("the store has not failed")
}

/// None if the store has failed.
fn try_put(store: &Store, region: &Region, (at, byte): Written) -> Option<Written> {
    let mut tx = store.begin(Mode::Restore).ok()?;
    tx.write(region, at, &[byte; BYTES]).unwrap();
    tx.commit(Class::Power).unwrap();
    Some((at, byte))
}

/// More than a sixteenth of the log is committed, so that the segment is made to show it; then it is forced.
/// `later`: if that failed, as much again follows.
fn live(start: &Start, fault: Option<Fault>, forces: Forces, later: bool) -> Outcome {
    let machine = machine(start, fault);
    machine.run(|| {
        let store = options(&machine, 90, Flavour::Redo).open(STORE).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        let first = put(&store, &region, (20480, 5));
        // The segment's stamp is durable. One that is lost too would tell by itself.
        store.truncate().unwrap();
        let mut committed = vec![first, put(&store, &region, (0, 1)), put(&store, &region, (8192, 2))];
        store.tend_truncation().unwrap();
        let before = machine.operations();
        machine.take_journal();
        let forced = forces(&store);
        let dropped = machine.take_journal().iter().any(|e| matches!(e, Entry::Act(Act::Drop(_))));
        // A media error of another file than the segment may have failed the store.
        let more = [(16384, 3), (24576, 4)].into_iter().filter(|_| later && !forced);
        let done: Vec<Written> = more.filter_map(|written| try_put(&store, &region, written)).collect();
        let went_on = !done.is_empty();
        committed.extend(done);
        if went_on {
            store.tend_truncation().unwrap();
        }
        let disk = machine.disk();
        std::mem::forget((store, region));
        Outcome { disk, committed, before, unforced: !forced && dropped, went_on }
    })
}

/// Each of the first operations of what forces fails once.
fn is_replayed(forces: Forces, later: bool) {
    let start = default_start(Flavour::Redo);
    let first = live(&start, None, forces, false).before;
    let faults = (first..first + 8).map(|at| Fault { at, lasting: false, again: None, full: false, part: 0 });
    let failed: Vec<Outcome> =
        faults.map(|fault| live(&start, Some(fault), forces, later)).filter(|lived| lived.unforced).collect();
    assert!(!failed.is_empty(), "no force failed");
    assert!(!later || failed.iter().any(|lived| lived.went_on), "no store went on");
    // What was written later may all be there.
    for (Outcome { disk, committed, .. }, seed) in failed.iter().flat_map(|l| (0..16).map(move |s| (l, s))) {
        let disk = disk.after_lost_writes(".segment", Some(seed), false);
        let machine = machine(&Start { disk, ..start.clone() }, None);
        machine.run(|| {
            let store = options(&machine, 90, Flavour::Redo).open(STORE).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            for &(at, byte) in committed {
                let found: [u8; BYTES] = region.load(at);
                assert!(found.iter().all(|b| *b == byte), "{byte} is not at {at}");
            }
            std::mem::forget((store, region));
        });
    }
}

#[test]
fn what_a_failed_growth_has_lost_is_replayed() {
    let grow: Forces = |store| store.segment("data").unwrap().grow(128 << 10).is_ok();
    is_replayed(grow, false);
    is_replayed(grow, true);
}

/// A page that was taken to be written and could not be is in the log for good: whoever truncates next hears of
/// the failure.
#[test]
fn the_head_never_passes_a_page_that_could_not_be_written() {
    let start = default_start(Flavour::Redo);
    let all = |region: &Region| (0..8).all(|page| region.load::<[u8; BYTES]>(page * 4096) == [1; BYTES]);
    let mut failed = 0;
    for at in 0..200 {
        let machine = machine(&start, Some(Fault { at, lasting: false, again: None, full: false, part: 0 }));
        let committed = machine.run(|| {
            // Truncation begins at once.
            let store = options(&machine, 1, Flavour::Redo).open(STORE).ok()?;
            let region = store.segment("data").ok()?.map_all().ok()?;
            let before = machine.failed();
            for page in 0..8 {
                let mut tx = store.begin(Mode::Restore).ok()?;
                tx.write(&region, page * 4096, &[1; BYTES]).ok()?;
                tx.commit(Class::Power).ok()?;
            }
            let first = store.tend_truncation();
            if !before && machine.failed() && first.is_err() {
                failed += 1;
                assert!(store.tend_truncation().is_err(), "operation {at} failed and is forgotten");
                assert!(store.close().is_err());
            } else {
                std::mem::forget(store);
            }
            std::mem::forget(region);
            Some(())
        });
        let disk = machine.disk().after_power_cut(Loss::All);
        let machine = self::machine(&Start { disk, boot: [9; 16], ..start.clone() }, None);
        machine.run(|| {
            let store = options(&machine, 90, Flavour::Redo).open(STORE).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            assert!(committed.is_none() || all(&region), "lost, after {at}");
            std::mem::forget((store, region));
        });
    }
    assert!(failed > 3, "only {failed} truncations failed");
}

#[test]
fn what_a_failed_truncation_has_lost_is_replayed() {
    is_replayed(|store| store.truncate().is_ok(), false);
}

/// A power cut leaves what is said of a segment, once the log or the before-images have given up what the segment
/// got.
#[test]
fn how_old_a_segment_is_stays_known_when_its_changes_are_given_up() {
    for flavour in [Flavour::Redo, Flavour::Shadow] {
        let machine = machine(&default_start(flavour), None);
        machine.run(|| {
            let store = options(&machine, 90, flavour).open(STORE).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            put(&store, &region, (0, 1));
            store.truncate().unwrap();
            let disk = machine.disk().after_power_cut(Loss::All);
            let file = disk.lookup(&Path::new(STORE).join("generations")).unwrap();
            let word = |at| {
                let mut word = [0; 8];
                disk.content(file).read(at, &mut word).then_some(u64::from_le_bytes(word)).unwrap()
            };
            // The two pages say the store's generation, the second slot the segment's.
            let (present, segment) = (word(40).max(word(4096 + 40)), word(8192 + 16));
            assert_eq!(segment, present, "{flavour:?}");
            std::mem::forget((store, region));
        });
    }
}
