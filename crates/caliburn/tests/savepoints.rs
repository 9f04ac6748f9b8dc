//! Savepoints, and branches: parts of a transaction with runs of their own.

use caliburn::{
    Branch, Class, Guard, Mode, Policy, RangeError, Region, Savepoint, SavepointError, Store, Transaction,
};
use proptest::prelude::*;

const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

fn store(policy: Policy) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(4 << 20);
    let store = options.open(dir.path().join("store")).unwrap();
    store.create_segment("data", 1 << 20).unwrap();
    (dir, store)
}

fn region(store: &Store) -> Region {
    store.segment("data").unwrap().map_all().unwrap()
}

/// What is there when the store was closed and opened again.
fn after_reopening(dir: &tempfile::TempDir, store: Store, region: Region, len: usize) -> Vec<u8> {
    drop(region);
    store.close().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    bytes(&store.segment("data").unwrap().map_all().unwrap(), len)
}

fn bytes(region: &Region, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes);
    bytes
}

#[test]
fn a_rollback_restores_what_came_after_the_savepoint_and_nothing_else() {
    for policy in POLICIES {
        let (dir, store) = store(policy);
        let data = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&data, 0, b"before..").unwrap();
        let savepoint = tx.savepoint().unwrap();
        // The range declared last is declared again: it has another old value now.
        tx.write(&data, 0, b"later...").unwrap();
        tx.write(&data, 100, &[7; 5000]).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        assert_eq!(bytes(&data, 8), b"before..");
        assert_eq!(bytes(&data, 6000)[100..], [0; 5900]);
        tx.write(&data, 8, b"after").unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.write(&data, 16, b"again").unwrap();
        let log_before = store.statistics().committed_log_bytes;
        tx.commit(Class::Process).unwrap();
        if policy == Policy::Redo {
            let logged = store.statistics().committed_log_bytes - log_before;
            assert_eq!(logged, 16 + 8 + 16 + 8, "what was rolled back reached the log");
        }
        let mut expected = vec![0; 200];
        expected[..8].copy_from_slice(b"before..");
        expected[16..21].copy_from_slice(b"again");
        assert_eq!(after_reopening(&dir, store, data, 200), expected);
    }
}

#[test]
fn an_abort_after_rollbacks_restores_everything() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let data = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&data, 0, &[1; 1000]).unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.write(&data, 500, &[2; 1000]).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.write(&data, 900, &[3; 1000]).unwrap();
        tx.abort();
        assert_eq!(bytes(&data, 4096), [0; 4096]);
    }
}

#[test]
fn savepoints_that_are_gone_are_refused() {
    let (_dir, store) = store(Policy::Redo);
    let data = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    let mut other = store.begin(Mode::Restore).unwrap();
    let first = tx.savepoint().unwrap();
    let second = tx.savepoint().unwrap();
    assert_eq!(other.rollback_to(&first), Err(SavepointError::Gone));
    tx.rollback_to(&first).unwrap();
    assert_eq!(tx.rollback_to(&second), Err(SavepointError::Gone));
    tx.release(&first).unwrap();
    assert_eq!(tx.release(&first), Err(SavepointError::Gone));
    tx.store(&data, 0, &1u64).unwrap();
    tx.commit(Class::Process).unwrap();
    // The slot's next transaction has none of them.
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.savepoint().unwrap();
    assert_eq!(tx.rollback_to(&first), Err(SavepointError::Gone));
    let mut unrestored = store.begin(Mode::NoRestore).unwrap();
    assert_eq!(unrestored.savepoint(), Err(SavepointError::NoOldValues));
    unrestored.commit(Class::Process).unwrap();
    drop(other);
}

#[test]
fn ten_thousand_savepoints_within_each_other() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let data = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        let mut savepoints: Vec<Savepoint> = Vec::new();
        for i in 0..10_000u64 {
            savepoints.push(tx.savepoint().unwrap());
            tx.store(&data, i as usize % 100 * 8, &(i + 1)).unwrap();
        }
        for (i, savepoint) in savepoints.iter().enumerate().rev().step_by(7) {
            tx.rollback_to(savepoint).unwrap();
            let last = i.checked_sub(1).map_or(0, |last| last as u64 + 1);
            let at = i.checked_sub(1).map_or(0, |last| last % 100 * 8);
            assert_eq!(data.load::<u64>(at), last, "rolled back to {i}");
        }
        tx.rollback_to(&savepoints[0]).unwrap();
        tx.commit(Class::Process).unwrap();
        assert_eq!(bytes(&data, 800), [0; 800]);
    }
}

#[test]
fn children_one_after_the_other_take_room_for_what_they_change_only() {
    let (_dir, store) = store(Policy::Redo);
    let data = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    // More than the log could take, were each of them kept.
    for i in 0..1_000_000u64 {
        let savepoint = tx.savepoint().unwrap();
        tx.store(&data, i as usize % 2 * 64, &i).unwrap();
        tx.release(&savepoint).unwrap();
    }
    tx.commit(Class::Process).unwrap();
    assert_eq!((data.load::<u64>(0), data.load::<u64>(64)), (999_998, 999_999));
}

#[test]
fn two_words_declared_in_turns_a_million_times_take_the_room_of_two() {
    for mode in [Mode::Restore, Mode::NoRestore] {
        let (_dir, store) = store(Policy::Redo);
        let data = region(&store);
        let before = store.statistics().committed_log_bytes;
        let mut tx = store.begin(mode).unwrap();
        for i in 0..1_000_000u64 {
            tx.store(&data, i as usize % 2 * 64, &i).unwrap();
        }
        tx.commit(Class::Process).unwrap();
        assert_eq!(store.statistics().committed_log_bytes - before, 2 * 24);
        assert_eq!((data.load::<u64>(0), data.load::<u64>(64)), (999_998, 999_999));
    }
}

#[test]
fn what_is_compacted_is_undone_all_the_same() {
    let (_dir, store) = store(Policy::Redo);
    let data = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    for i in 0..100_000usize {
        tx.store(&data, i % 1000 * 8, &(i as u64 + 1)).unwrap();
    }
    let savepoint = tx.savepoint().unwrap();
    let there = bytes(&data, 8000);
    for i in 0..100_000usize {
        tx.store(&data, i % 777 * 8, &(i as u64 + 9)).unwrap();
    }
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(bytes(&data, 8000), there);
    tx.abort();
    assert_eq!(bytes(&data, 8000), [0; 8000]);
}

#[test]
fn several_threads_declare_in_one_transaction() {
    for policy in POLICIES {
        for commit in [true, false] {
            let (dir, store) = store(policy);
            let data = region(&store);
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&data, 0, &77u64).unwrap();
            let mut branches: Vec<Branch<'_>> = (0..4).map(|_| tx.branch().unwrap()).collect();
            std::thread::scope(|scope| {
                for (i, branch) in branches.iter_mut().enumerate() {
                    let data = &data;
                    scope.spawn(move || {
                        for at in (0..4000).step_by(8) {
                            branch.store(data, 4096 * (i + 1) + at, &(at as u64 + i as u64)).unwrap();
                        }
                    });
                }
            });
            let undone = branches.pop().unwrap();
            for branch in branches {
                tx.adopt(branch).unwrap();
            }
            drop(undone);
            assert_eq!(bytes(&data, 20_480)[16_384..], [0; 4096], "a dropped branch was not undone");
            if commit {
                tx.commit(Class::Process).unwrap();
            } else {
                tx.abort();
            }
            let found = after_reopening(&dir, store, data, 16_384);
            let mut expected = vec![0; 16_384];
            if commit {
                expected[..8].copy_from_slice(&77u64.to_ne_bytes());
                for i in 0..3usize {
                    for at in (0..4000).step_by(8) {
                        expected[4096 * (i + 1) + at..][..8]
                            .copy_from_slice(&(at as u64 + i as u64).to_ne_bytes());
                    }
                }
            }
            assert!(found == expected, "{policy:?}, committed: {commit}");
        }
    }
}

#[test]
fn branches_change_what_their_transaction_and_each_other_changed() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let data = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&data, 0, &1u64).unwrap();
        let (mut first, mut second) = (tx.branch().unwrap(), tx.branch().unwrap());
        second.store(&data, 64, &2u64).unwrap();
        first.store(&data, 0, &3u64).unwrap();
        tx.adopt(first).unwrap();
        second.store(&data, 0, &4u64).unwrap();
        let mut within = second.branch().unwrap();
        within.store(&data, 64, &5u64).unwrap();
        second.adopt(within).unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.adopt(second).unwrap();
        assert_eq!((data.load::<u64>(0), data.load::<u64>(64)), (4, 5));
        tx.rollback_to(&savepoint).unwrap();
        assert_eq!((data.load::<u64>(0), data.load::<u64>(64)), (3, 0));
        tx.abort();
        assert_eq!((data.load::<u64>(0), data.load::<u64>(64)), (0, 0));
    }
}

#[test]
fn a_transaction_with_open_branches_does_not_end() {
    let (_dir, store) = store(Policy::Undo);
    let data = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    let mut branch = tx.branch().unwrap();
    branch.store(&data, 0, &1u64).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tx.commit(Class::Process)));
    let text = *ended.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("1 branch(es)"), "{text}");
    drop(branch);
    assert_eq!(data.load::<u64>(0), 0);
}

#[test]
fn a_branch_that_would_make_the_transaction_too_large_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Store::options();
    options.create(true).log_bytes(256 << 10).large_transactions(false);
    let store = options.open(dir.path().join("store")).unwrap();
    let data = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&data, 0, &[1; 80_000]).unwrap();
    let mut branch = tx.branch().unwrap();
    branch.write(&data, 100_000, &[2; 80_000]).unwrap();
    assert!(matches!(tx.adopt(branch), Err(RangeError::LogTooSmall { .. })));
    tx.commit(Class::Process).unwrap();
    let found = bytes(&data, 200_000);
    assert!(found[..80_000].iter().all(|b| *b == 1) && found[80_000..].iter().all(|b| *b == 0));
}

#[test]
fn what_a_branch_declared_can_be_stored_to_by_the_abort_of_its_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Store::options();
    options.create(true).guard(Guard::Pages);
    let store = options.open(dir.path().join("store")).unwrap();
    let data = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    let mut branch = tx.branch().unwrap();
    branch.store(&data, 40_960, &1u64).unwrap();
    tx.adopt(branch).unwrap();
    tx.abort();
    assert_eq!(data.load::<u64>(40_960), 0);
}

#[test]
fn a_rollback_does_not_pull_the_ground_from_under_a_branch() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let data = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.store(&data, 0, &1u64).unwrap();
        let mut branch = tx.branch().unwrap();
        branch.store(&data, 0, &2u64).unwrap();
        assert_eq!(tx.rollback_to(&savepoint), Err(SavepointError::Branches));
        drop(branch);
        tx.rollback_to(&savepoint).unwrap();
        tx.commit(Class::Process).unwrap();
        assert_eq!(data.load::<u64>(0), 0);
    }
}

#[test]
fn a_rollback_takes_back_what_was_counted_and_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Store::options();
    options.create(true).log_bytes(256 << 10).large_transactions(false);
    let store = options.open(dir.path().join("store")).unwrap();
    let data = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    // Half of the log, without the frame.
    let most = (128 << 10) - 64;
    let mut tx = store.begin(Mode::Restore).unwrap();
    let apart = most / 26;
    (0..apart).for_each(|i| tx.write(&data, 2 * i, &[1]).unwrap());
    let savepoint = tx.savepoint().unwrap();
    tx.write(&data, 0, &vec![2; 2 * apart]).unwrap();
    // Counted exactly, all of them are one range.
    tx.write(&data, 500_000, &[3; 50_000]).unwrap();
    tx.rollback_to(&savepoint).unwrap();
    let refused = tx.write(&data, 500_000, &[3; 100_000]);
    assert!(matches!(refused, Err(RangeError::LogTooSmall { .. })), "{refused:?}");
    tx.rollback_to(&savepoint).unwrap();
    (0..100).for_each(|i| tx.write(&data, 600_000 + 16 * i, &[4; 8]).unwrap());
    tx.commit(Class::Process).unwrap();
    let found = bytes(&data, 1 << 20);
    assert!(found[..2 * apart].iter().enumerate().all(|(i, byte)| *byte == u8::from(i % 2 == 0)));
    assert!(found[500_000..600_000].iter().all(|byte| *byte == 0));
}

#[test]
fn a_region_grows_while_transactions_use_it() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let segment = store.segment("data").unwrap();
        let data = segment.map_all().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..200u64 {
                    let len = (1 << 20) + i * (64 << 10);
                    segment.grow(len).unwrap();
                    data.grow(len as usize).unwrap();
                }
            });
            for i in 0..20_000u64 {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(&data, i as usize % 1000 * 8, &i).unwrap();
                tx.store(&data, data.len() - 8, &i).unwrap();
                if i % 3 == 0 { tx.abort() } else { tx.commit(Class::Process).unwrap() }
            }
        });
    }
}

/// What was rolled back is nobody's any more: another transaction may change it and commit, and a crash of the
/// first must not bring back what was there before.
#[test]
fn what_was_rolled_back_is_not_restored_over_a_later_commit() {
    for survives in [Class::Process, Class::Power] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Store::options();
        options.copied(true).memory_kept(true);
        options.create(true).policy(Policy::Undo);
        if survives > Class::Process {
            options.memory_survives(survives);
        }
        let store = options.open(dir.path().join("store")).unwrap();
        let data = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.store(&data, 0, &1u64).unwrap();
        tx.store(&data, 64, &2u64).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        let mut other = store.begin(Mode::Restore).unwrap();
        other.store(&data, 64, &3u64).unwrap();
        other.commit(survives).unwrap();
        // Takes the place of the first range in the run; the second stands behind it.
        tx.store(&data, 128, &4u64).unwrap();
        let copy = dir.path().join("killed");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(store.path()).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
        let killed = options.open(&copy).unwrap();
        let found = killed.segment("data").unwrap().map_all().unwrap();
        assert_eq!((found.load::<u64>(0), found.load::<u64>(64), found.load::<u64>(128)), (0, 3, 0));
        tx.abort();
    }
}

/// What a transaction does, and a model of it.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write(usize, usize, u8),
    Save,
    Back(usize),
    Release(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0usize..3000, 1usize..700, any::<u8>()).prop_map(|(at, len, byte)| Act::Write(at, len, byte)),
        2 => Just(Act::Save),
        1 => (0usize..8).prop_map(Act::Back),
        1 => (0usize..8).prop_map(Act::Release),
    ]
}

fn run<'t>(tx: &mut Transaction<'t>, data: &'t Region, acts: &[Act], memory: &mut Vec<u8>) {
    let mut savepoints: Vec<(Savepoint, Vec<u8>)> = Vec::new();
    for act in acts {
        match *act {
            Act::Write(at, len, byte) => {
                tx.write(data, at, &vec![byte; len]).unwrap();
                memory[at..at + len].fill(byte);
            }
            Act::Save => savepoints.push((tx.savepoint().unwrap(), memory.clone())),
            Act::Back(which) if which < savepoints.len() => {
                tx.rollback_to(&savepoints[which].0).unwrap();
                savepoints.truncate(which + 1);
                memory.clone_from(&savepoints[which].1);
            }
            Act::Release(which) if which < savepoints.len() => {
                tx.release(&savepoints[which].0).unwrap();
                savepoints.truncate(which);
            }
            Act::Back(_) | Act::Release(_) => {}
        }
        assert!(bytes(data, memory.len()) == *memory, "after {act:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_transaction_with_savepoints_is_what_a_model_says(
        acts in prop::collection::vec(act(), 1..60),
        commit in any::<bool>(),
        redo in any::<bool>(),
    ) {
        let (dir, store) = store(if redo { Policy::Redo } else { Policy::Undo });
        let data = region(&store);
        let mut memory = vec![0; 4096];
        let mut tx = store.begin(Mode::Restore).unwrap();
        run(&mut tx, &data, &acts, &mut memory);
        if commit {
            tx.commit(Class::Process).unwrap();
        } else {
            tx.abort();
            memory.fill(0);
        }
        prop_assert!(bytes(&data, 4096) == memory);
        prop_assert!(after_reopening(&dir, store, data, 4096) == memory);
    }
}

#[test]
fn a_rollback_is_not_taken_for_an_undeclared_store() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::options().create(true).policy(policy).verify(true).open(dir.path().join("s")).unwrap();
        let region = store.create_segment("data", 65_536).unwrap().map_all().unwrap();
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| {
                for number in 0..5000u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    tx.store(&region, 60_000, &number).unwrap();
                    tx.commit(Class::Process).unwrap();
                }
            });
            let mut tx = store.begin(Mode::Restore).unwrap();
            let mut number = 0u64;
            while !commits.is_finished() {
                let savepoint = tx.savepoint().unwrap();
                (0..8).for_each(|page| tx.store(&region, page * 4096, &(number + 1)).unwrap());
                tx.rollback_to(&savepoint).unwrap();
                tx.release(&savepoint).unwrap();
                number += 1;
            }
            tx.commit(Class::Process).unwrap();
        });
    }
}
