//! A log that another machine has too: what is committed in class `Quorum` survives the loss of this one, whatever
//! becomes of either, and of what goes between them.

#[path = "support/cuts.rs"]
mod cuts;
#[path = "support/replica.rs"]
mod elsewhere;
#[path = "support/backup.rs"]
mod support;

use caliburn::{
    Class, CommitError, DumpOptions, Mode, OpenError, Options, Policy, Region, RestoreOptions, Store,
};
use cuts::{Random, RecordedMedia, Recorder};
use elsewhere::Elsewhere;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use support::{LEN, LOG, Model, assert_is, options, restore, transact, words};

fn replicated(path: &Path, replica: &Arc<Elsewhere>) -> Result<Store, OpenError> {
    options().replica(replica.clone()).open(path)
}

/// A store with a replica, its segment mapped, and a dump of it.
fn begun(path: &Path, replica: &Arc<Elsewhere>) -> (Store, Region, Vec<u8>) {
    let store = replicated(path, replica).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    (store, region, dump)
}

fn set(store: &Store, region: &Region, number: u64, class: Class) -> Result<(), CommitError> {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, 0, &number).unwrap();
    tx.commit(class)
}

/// The store that a dump and a replica make, on another machine.
fn elsewhere(dir: &Path, dump: &[u8], replica: &Elsewhere) -> Vec<u64> {
    let (archive, to) = (dir.join("parts"), dir.join("elsewhere"));
    _ = fs::remove_dir_all(&archive);
    _ = fs::remove_dir_all(&to);
    replica.archive(&archive);
    let mut how = RestoreOptions::new();
    how.archive(&archive);
    restore(dump, &how, &to).unwrap();
    words(&to)
}

#[test]
fn a_commit_waits_for_the_replica_if_its_class_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Arc::new(Elsewhere::default());
    let (store, region, dump) = begun(&dir.path().join("s"), &replica);
    assert_eq!(store.reach(), Class::Quorum);
    set(&store, &region, 1, Class::Quorum).unwrap();
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[0], 1);
    let asked = replica.kept().leave();
    // The others wait for nobody else.
    set(&store, &region, 2, Class::Power).unwrap();
    set(&store, &region, 3, Class::Process).unwrap();
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            set(&store, &region, 4, Class::Quorum).unwrap();
            returned.store(true, SeqCst);
        });
        replica.wait_asked(asked + 3);
        assert!(!returned.load(SeqCst) && store.query().log_unreplicated > 0);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 8, &5u64).unwrap();
        let ticket = tx.commit_ticket(Class::Quorum).unwrap();
        let limit = std::time::Duration::from_millis(1);
        assert!(!ticket.is_durable() && !ticket.wait_timeout(limit).unwrap());
        // What its answer is lost of is there, and comes again.
        replica.kept().lost = vec![true, false, true];
        replica.kept().away = false;
        waiting.join().unwrap();
        ticket.wait().unwrap();
    });
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[..2], [4, 5]);
    set(&store, &region, 6, Class::Process).unwrap();
    store.flush_as(Class::Quorum).unwrap();
    assert_eq!((store.query().log_unreplicated, elsewhere(dir.path(), &dump, &replica)[0]), (0, 6));
}

/// What is in no hurry is sent all the same.
#[test]
fn what_nobody_waits_for_is_sent_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Arc::new(Elsewhere::default());
    let (store, region, dump) = begun(&dir.path().join("s"), &replica);
    let asked = replica.kept().asked;
    set(&store, &region, 1, Class::Process).unwrap();
    replica.wait_asked(asked + 1);
    while store.query().log_unreplicated > 0 {
        std::thread::yield_now();
    }
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[0], 1);
}

/// A crash when the log is full of what the replica lacks: it is all there, for an opening with it or without.
#[test]
fn a_full_log_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, dump) = begun(&path, &replica);
    let change = |number: u64, class: Class| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 64, &[number as u8; 900]).unwrap();
        tx.store(&region, 0, &number).unwrap();
        tx.commit(class)
    };
    // So much that a file which is moved now and then lags behind.
    let mut number = 0;
    while replica.kept().reached < LOG / 16 - 8_000 {
        number += 1;
        change(number, Class::Quorum).unwrap();
    }
    replica.kept().leave();
    while store.query().log_bytes - store.query().log_kept - store.query().log_used > 8_000 {
        number += 1;
        change(number, Class::Power).unwrap();
    }
    // Nothing goes on while it is copied.
    store.truncate().unwrap();
    let crashed = [dir.path().join("with"), dir.path().join("without")];
    for copy in &crashed {
        fs::create_dir(copy).unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    drop(region);
    store.close().unwrap();
    replica.kept().away = false;
    let mut copied = options();
    copied.copied(true).memory_kept(true);
    // A log that is full takes nothing; a longer one does.
    copied.log_bytes(4 * LOG);
    copied.open(&crashed[1]).unwrap().close().unwrap();
    for path in &crashed {
        let store = copied.clone().replica(replica.clone()).open(path).unwrap();
        store.flush_as(Class::Quorum).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        let newest = region.load::<u64>(0);
        drop(region);
        store.close().unwrap();
        assert_eq!([newest, elsewhere(dir.path(), &dump, &replica)[0]], [number; 2]);
    }
}

/// What a killed process has left staged, and a log that is full: recovery sends what the replica lacks, for room.
#[test]
fn recovery_that_has_no_room_sends() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let replica = Arc::new(Elsewhere::default());
    let mut small = options();
    small.log_bytes(64 << 10).background(false).copied(true).memory_kept(true).replica(replica.clone());
    let store = small.open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    let put = |bytes: usize, value: u8| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &vec![value; bytes]).unwrap();
        tx.commit(Class::Process).unwrap();
    };
    replica.kept().leave();
    for value in 1..=2 {
        put(28_000, value);
        store.truncate().unwrap();
    }
    // Staged, and not in the log.
    put(28_000, 3);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let away = small.open(&copy).map(drop).map_err(|error| error.to_string());
    let mut without = options();
    let without =
        without.copied(true).memory_kept(true).open(&copy).map(drop).map_err(|error| error.to_string());
    replica.kept().away = false;
    let again = small.open(&copy).unwrap();
    let value: u8 = again.segment("data").unwrap().map_all().unwrap().load(1000);
    again.flush_as(Class::Quorum).unwrap();
    let there = elsewhere(dir.path(), &dump, &replica)[0];
    // What it has now the first one has not sent: it is not to wait for it.
    replica.kept().taken = true;
    drop(region);
    assert!(store.close().is_err());
    assert_eq!((value, there), (3, u64::from_le_bytes([3; 8])));
    assert!(away.unwrap_err().contains("it is away"));
    assert!(without.unwrap_err().contains("what its replica lacks"));
}

/// Whoever sends for all does so until what he waits for is there, and not for ever.
#[test]
fn a_commit_does_not_send_for_others_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Arc::new(Elsewhere::default());
    let mut alone = options();
    let store = alone.replica(replica.clone()).background(false).open(dir.path().join("s")).unwrap();
    let region = Arc::new(store.create_segment("data", LEN).unwrap().map_all().unwrap());
    // With each part that is sent, another one is forced.
    let (forcing, of, left) = (store.clone(), region.clone(), AtomicU64::new(1000));
    *replica.dead.lock().unwrap() = Some(Box::new(move || {
        if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            set(&forcing, &of, 2, Class::Power).unwrap();
        }
        false
    }));
    set(&store, &region, 1, Class::Quorum).unwrap();
    let asked = replica.kept().asked;
    assert!(asked < 10, "it has sent {asked} parts");
    *replica.dead.lock().unwrap() = None;
}

/// What is in the log when a store is closed is sent, if that can be; and nobody waits for ever.
#[test]
fn closing_sends_what_there_is_and_lets_nobody_wait() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Arc::new(Elsewhere::default());
    for (number, away) in [(1u64, false), (2, true), (3, false)] {
        let path = dir.path().join("s");
        let store = replicated(&path, &replica).unwrap();
        let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
        replica.kept().away = away;
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &number).unwrap();
        let ticket = tx.commit_ticket(Class::Quorum).unwrap();
        let waiting = std::thread::spawn({
            let ticket = ticket.clone();
            move || ticket.wait()
        });
        drop(region);
        store.close().unwrap();
        let (told, polled) = (waiting.join().unwrap(), ticket.wait_timeout(std::time::Duration::MAX));
        assert_eq!((told.is_ok(), polled.is_ok()), (!away, !away), "{told:?} {polled:?}");
        if away {
            assert!(told.unwrap_err().to_string().contains("was closed before"));
        }
        replica.kept().away = false;
    }
    let last = replica.kept().parts.values().next_back().unwrap().clone();
    assert!(last.to == replica.kept().reached);
}

/// Many threads, some of them in a hurry: each commit is there when it has returned.
#[test]
fn of_many_who_commit_side_by_side_nobody_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Arc::new(Elsewhere::default());
    let (store, region, _) = begun(&dir.path().join("s"), &replica);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (store, region, replica) = (&store, &region, &replica);
            scope.spawn(move || {
                for number in 1..=300u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    tx.store(region, thread as usize * 8, &number).unwrap();
                    match (thread + number) % 3 {
                        0 => tx.commit(Class::Quorum).unwrap(),
                        1 => tx.commit_ticket(Class::Quorum).unwrap().wait().unwrap(),
                        _ => tx.commit(Class::Power).unwrap(),
                    }
                    if number % 50 == 0 {
                        replica.kept().lost.extend([true, false]);
                    }
                }
            });
        }
    });
    store.flush_as(Class::Quorum).unwrap();
    let statistics = store.statistics();
    assert!(statistics.replicated_parts > 10 && statistics.replicated_bytes > 60_000, "{statistics:?}");
}

/// The log keeps what the replica has not, also for who opens the store without.
#[test]
fn nothing_is_let_go_that_the_replica_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, dump) = begun(&path, &replica);
    replica.kept().away = true;
    let mut number = 0;
    let mut half = |store: &Store, region: &Region| {
        let end = number + 1000;
        while number < end && store.query().log_used + store.query().log_kept < LOG / 2 {
            number += 1;
            transact(store, region, number);
        }
        store.truncate().unwrap();
        number
    };
    assert!(half(&store, &region) > 100);
    assert!(store.query().log_kept > LOG / 8, "{:?}", store.query());
    drop(region);
    store.close().unwrap();
    // Without, and more comes.
    let store = options().open(&path).unwrap();
    assert_eq!(store.reach(), Class::Power);
    let region = store.segment("data").unwrap().map_all().unwrap();
    transact(&store, &region, 10_000);
    store.truncate().unwrap();
    drop(region);
    store.close().unwrap();
    let error = replicated(&path, &replica).unwrap_err();
    assert!(error.to_string().contains("it is away"), "{error}");
    replica.kept().away = false;
    let store = replicated(&path, &replica).unwrap();
    store.flush_as(Class::Quorum).unwrap();
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[0], 10_000);
    // Full: whoever commits waits until the replica is back.
    let region = store.segment("data").unwrap().map_all().unwrap();
    let asked = replica.kept().leave();
    std::thread::scope(|scope| {
        let committing =
            scope.spawn(|| (10_001..18_000).for_each(|number| transact(&store, &region, number)));
        replica.wait_asked(asked + 2);
        while store.query().log_bytes - store.query().log_kept - store.query().log_used > LOG / 16 {
            assert!(!committing.is_finished());
            std::thread::yield_now();
        }
        replica.kept().away = false;
        committing.join().unwrap();
    });
    store.flush_as(Class::Quorum).unwrap();
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[0], 17_999);
    // Used without, by who does not know of it.
    drop(region);
    store.close().unwrap();
    fs::remove_file(path.join("replicated")).unwrap();
    let store = options().open(&path).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    (18_000..26_000).for_each(|number| transact(&store, &region, number));
    drop(region);
    store.close().unwrap();
    let error = replicated(&path, &replica).unwrap_err().to_string();
    assert!(error.contains("is gone") && error.contains("another dump"), "{error}");
}

#[test]
fn a_machine_that_was_replaced_fails_at_its_first_append() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, dump) = begun(&path, &replica);
    set(&store, &region, 1, Class::Quorum).unwrap();
    replica.kept().taken = true;
    let error = set(&store, &region, 2, Class::Quorum).unwrap_err().to_string();
    assert!(error.contains("another machine has taken over"), "{error}");
    assert!(store.begin(Mode::Restore).is_err() && store.flush().is_err());
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[0], 1);
}

/// What can't go on is refused, and says what to do.
#[test]
fn a_log_that_does_not_go_on_where_its_replica_ends_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, _) = begun(&path, &replica);
    set(&store, &region, 1, Class::Quorum).unwrap();
    drop(region);
    store.close().unwrap();
    let copy = dir.path().join("old");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let store = replicated(&path, &replica).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    set(&store, &region, 2, Class::Quorum).unwrap();
    drop(region);
    store.close().unwrap();
    let refused = |path: &Path| replicated(path, &replica).unwrap_err().to_string();
    assert!(refused(&copy).contains("not the store any more that was replicated"), "{}", refused(&copy));
    assert!(refused(&dir.path().join("another")).contains("another store's log"));
    let undo = options().policy(Policy::Undo).replica(replica.clone()).open(dir.path().join("undo"));
    assert!(matches!(undo, Err(OpenError::Policy { .. })), "{undo:?}");
    // Class Quorum is for those that have one.
    let store = options().open(&path).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    let wanted = Class::Quorum;
    assert!(matches!(set(&store, &region, 3, wanted), Err(CommitError::Class { wanted: Class::Quorum, .. })));
    let tx = store.begin(Mode::Restore).unwrap();
    assert!(matches!(tx.commit_ticket(wanted), Err(CommitError::Class { .. })));
    assert!(matches!(store.flush_as(wanted), Err(CommitError::Class { .. })));
    assert_eq!(region.load::<u64>(0), 2);
    drop(region);
    store.close().unwrap();
    let mut demanding = options();
    demanding.require(Class::Quorum);
    assert!(matches!(demanding.open(&path), Err(OpenError::Class { .. })));
    demanding.replica(replica).open(&path).unwrap();
}

/// What is prepared here is undecided there, and what was decided is decided.
#[test]
fn undecided_transactions_survive_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, dump) = begun(&path, &replica);
    for (number, id) in [&b"one"[..], b"two", b"six"].into_iter().enumerate() {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, number * 8, &(number as u64 + 1)).unwrap();
        tx.prepare(id).unwrap();
        elsewhere(dir.path(), &dump, &replica);
        let there = Store::open(dir.path().join("elsewhere")).unwrap();
        assert!(there.prepared().iter().any(|prepared| prepared.global_id == id));
    }
    store.commit_prepared(b"one").unwrap();
    store.abort_prepared(b"six").unwrap();
    assert_eq!(elsewhere(dir.path(), &dump, &replica)[..3], [1, 0, 0]);
    let there = Store::open(dir.path().join("elsewhere")).unwrap();
    let left: Vec<_> = there.prepared().into_iter().map(|prepared| prepared.global_id).collect();
    assert_eq!(left, [b"two"]);
}

/// Records that are larger than a part, and a log that moves meanwhile.
#[test]
fn large_records_and_logs_that_move_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (path, replica) = (dir.path().join("s"), Arc::new(Elsewhere::default()));
    let (store, region, dump) = begun(&path, &replica);
    store.relocate_log(options().log_bytes(16 * LOG)).unwrap();
    let large = vec![7; 900 << 10];
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=300).for_each(|number| transact(&store, &region, number)));
        for round in 0..4u64 {
            let log = dir.path().join(format!("log{round}"));
            store.relocate_log(options().log_bytes((20 + round) * LOG).log_path(log)).unwrap();
        }
    });
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 8, &large).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    tx.commit(Class::Quorum).unwrap();
    let words = elsewhere(dir.path(), &dump, &replica);
    assert_eq!(
        (words[0], words[1], words[large.len() / 8]),
        (1, 0x0707_0707_0707_0707, 0x0707_0707_0707_0707)
    );
}

/// The power fails anywhere, and then the machine is lost, or not: it has all that was acknowledged, in either case,
/// and the replica never has what the machine has not.
#[test]
fn a_power_cut_leaves_what_the_replica_has_and_the_replica_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for seed in 0..24u64 {
        let mut random = Random(seed);
        _ = fs::remove_dir_all(&path);
        let replica = Arc::new(Elsewhere::default());
        let mut small = options();
        small.log_bytes(64 << 10).stage_bytes(128 << 10).replica(replica.clone());
        let store = small.open(&path).unwrap();
        store.create_segment("data", LEN).unwrap();
        let mut dump = Vec::new();
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        store.close().unwrap();
        let (mut model, mut number) = (Model::new(), 0);
        for life in 0..3 {
            let recorder = Recorder::new(&path, 20 + random.below(300), seed * 10 + life);
            let mut life_options: Options = small.clone();
            // By itself, or with threads.
            life_options.media(Arc::new(RecordedMedia(recorder.clone()))).background(seed % 2 == 1);
            let store = life_options.open(&path).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            let over = || recorder.picture.lock().unwrap().is_some();
            let of = recorder.clone();
            *replica.dead.lock().unwrap() = Some(Box::new(move || of.picture.lock().unwrap().is_some()));
            let mut acknowledged = number;
            while !over() {
                number += 1;
                transact(&store, &region, number);
                match random.below(8) {
                    0 => {
                        store.flush_as(Class::Quorum).unwrap();
                        acknowledged = if over() { acknowledged } else { number };
                    }
                    1 => store.flush().unwrap(),
                    2 if seed % 2 == 0 => store.tend_flush(random.below(2) == 0).unwrap(),
                    3 if seed % 2 == 0 => store.tend_truncation().unwrap(),
                    4 if random.below(8) == 0 => replica.kept().lost.push(random.below(2) == 0),
                    _ => {}
                }
            }
            *replica.dead.lock().unwrap() = Some(Box::new(|| true));
            let picture = recorder.picture();
            drop(region);
            drop(store);
            picture.restore(&path);
            let what = format!("seed {seed}, life {life}");
            *replica.dead.lock().unwrap() = None;
            let there = assert_is(&mut model, &elsewhere(dir.path(), &dump, &replica), &what);
            let store = small.open(&path).unwrap();
            number = store.segment("data").unwrap().map_all().unwrap().load(0);
            drop(store);
            assert!(
                acknowledged <= there,
                "{what}: {acknowledged} was acknowledged, the replica has {there}"
            );
            assert!(there <= number, "{what}: the replica has {there}, the machine {number}");
        }
    }
}
