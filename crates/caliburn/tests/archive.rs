//! Logs that are archived while they grow: by commands that fail, hang and lie, by processes that are killed.

#[path = "support/backup.rs"]
mod support;

use caliburn::{ArchiveOptions, BackupError, DumpOptions, Options, RestoreOptions, Store};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{LEN, Model, assert_is, beside, options, restore, transact, wait_until, words};

/// Whoever archives may fail, hang, or say nothing: the log waits, and nothing is lost.
#[test]
fn a_command_that_does_not_say_that_it_has_a_part_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    fs::create_dir(&archive).unwrap();
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    // One that ends may take as long as a busy machine takes.
    let limited = |text: &str, limit: Duration| {
        let mut to = ArchiveOptions::command(text.to_owned(), limit);
        to.part_bytes(16 << 10);
        Options::new().archiver(&path, &to).unwrap()
    };
    let mut dump = Vec::new();
    let command = |text: &str| limited(text, Duration::from_secs(100));
    command("true");
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    (1..=400).for_each(|number| transact(&store, &region, number));
    store.flush().unwrap();
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(100));
    for (text, limit, told) in [
        ("exit 3", long, "exit status: 3"),
        ("sleep 1000 & wait", short, "killed"),
        ("kill -9 $$", long, "signal"),
    ] {
        for _ in 0..3 {
            let error = limited(text, limit).flush().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
    let place = archive.display();
    // The first half of them fail, after they have stored it or before.
    let text = format!(
        "n=$(ls {place} | wc -l); if [ ! -e {place}/../odd ]; then touch {place}/../odd; cp %p {place}/%f; exit 1; fi; rm {place}/../odd; cp %p {place}/%f"
    );
    let mut archiver = command(&text);
    let mut failures = 0;
    loop {
        match archiver.flush() {
            Ok(_) => break,
            Err(error) => assert!(error.to_string().contains("exit status: 1"), "{error}"),
        }
        failures += 1;
    }
    assert!(failures > 3, "{failures}");
    let to = dir.path().join("r");
    restore(&dump, RestoreOptions::new().archive(&archive), &to).unwrap();
    assert_eq!(assert_is(&mut Model::new(), &words(&to), "after the failures"), 400);
}

/// The log is not truncated beyond its archive, whoever opens and closes the store; commits wait when it is full.
#[test]
fn the_log_is_kept_until_it_is_archived() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let mut dump = Vec::new();
    {
        let store = options().open(&path).unwrap();
        store.create_segment("data", LEN).unwrap();
        let mut to = ArchiveOptions::directory(&archive);
        to.part_bytes(32 << 10);
        drop(Options::new().archiver(&path, &to).unwrap());
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        store.close().unwrap();
    }
    let mut to = ArchiveOptions::directory(&archive);
    to.part_bytes(32 << 10);
    let mut number = 0;
    for round in 0..6 {
        let store = options().background(round % 2 == 0).open(&path).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        for _ in 0..300 {
            number += 1;
            transact(&store, &region, number);
        }
        store.truncate().unwrap();
        let kept = store.query().log_kept;
        assert!(
            kept > 0 && store.query().log_used == 0,
            "round {round}: the log was truncated, and nothing is archived"
        );
        if round == 3 {
            let mut archiver = Options::new().archiver(&path, &to).unwrap();
            archiver.flush().unwrap();
            store.truncate().unwrap();
            assert_eq!(store.query().log_kept, 0, "all is archived");
        }
        drop(region);
        store.close().unwrap();
        // Closed is closed, whatever is not archived yet.
        assert!(caliburn::info(&path).unwrap().clean);
    }
    // A program that commits more than the log holds waits for the archive.
    let archiver = Options::new().archiver(&path, &to).unwrap();
    let stop = AtomicBool::new(false);
    let last = beside(&path, |store, done| {
        let stuck = wait_until_stuck(store, done);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut archiver = archiver;
                while !stop.load(SeqCst) {
                    if archiver.step().unwrap().is_none() {
                        std::thread::yield_now();
                    }
                }
                archiver.flush().unwrap();
            });
            wait_until(done, stuck + 3000);
            let last = done.load(SeqCst);
            store.flush().unwrap();
            stop.store(true, SeqCst);
            last
        })
    });
    let to = dir.path().join("r");
    restore(&dump, RestoreOptions::new().archive(&archive), &to).unwrap();
    assert!(assert_is(&mut Model::new(), &words(&to), "at last") >= last);
    Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap().stop().unwrap();
    let store = Store::open(&path).unwrap();
    store.truncate().unwrap();
    assert_eq!(store.query().log_kept, 0, "nobody keeps it any more");
}

/// One archiver at a time: another one could bring the log's hold back to where it is not there any more.
#[test]
fn a_second_archiver_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(options().open(&path).unwrap());
    let to = ArchiveOptions::directory(dir.path().join("archive"));
    let first = Options::new().archiver(&path, &to).unwrap();
    let refused = Options::new().archiver(&path, &to).unwrap_err();
    assert!(matches!(refused, BackupError::BeingArchived { .. }), "{refused}");
    drop(first);
    Options::new().archiver(&path, &to).unwrap().stop().unwrap();
    // A mark that is damaged is refused when the store is opened, not when it truncates.
    drop(Options::new().archiver(&path, &to).unwrap());
    let mut mark = fs::read(path.join("archived")).unwrap();
    mark[33] ^= 1;
    fs::write(path.join("archived"), &mark).unwrap();
    let refused = Store::open(&path).unwrap_err().to_string();
    assert!(refused.contains("archived") && refused.contains("Move the file away"), "{refused}");
    fs::remove_file(path.join("archived")).unwrap();
    Store::open(&path).unwrap();
}

/// Equal positions of two logs are not the same part.
#[test]
fn two_stores_of_one_process_are_archived_by_commands_apart() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 1..3u64 {
            let (dir, at) = (dir.path(), dir.path().join(format!("archive{number}")));
            fs::create_dir(&at).unwrap();
            scope.spawn(move || {
                let path = dir.join(format!("s{number}"));
                let store = options().open(&path).unwrap();
                let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
                let text = format!("sleep 0.01; cp %p {}/%f", at.display());
                let mut to = ArchiveOptions::command(text, Duration::from_secs(9));
                to.part_bytes(2 << 10);
                let mut archiver = Options::new().archiver(&path, &to).unwrap();
                let mut dump = Vec::new();
                store.dump(&DumpOptions::new(), &mut dump).unwrap();
                (1..=100).for_each(|i| transact(&store, &region, i));
                store.flush().unwrap();
                archiver.flush().unwrap();
                let to = dir.join(format!("r{number}"));
                restore(&dump, RestoreOptions::new().archive(&at), &to).unwrap();
                assert_eq!(assert_is(&mut Model::new(), &words(&to), "apart"), 100);
            });
        }
    });
}

/// Beside a program that goes on committing it ends with what was there when it began.
#[test]
fn archiving_what_is_there_comes_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    fs::create_dir(&archive).unwrap();
    drop(options().open(&path).unwrap());
    let text = format!("sleep 0.05; cp %p {}/%f", archive.display());
    let mut archiver =
        Options::new().archiver(&path, &ArchiveOptions::command(text, Duration::from_secs(9))).unwrap();
    beside(&path, |_, done| {
        wait_until(done, 300);
        let parts = archiver.flush().unwrap();
        assert!((1..100).contains(&parts.len()), "{}", parts.len());
    });
}

/// What a killed process has left in its stage, for which the log has no room before it is archived.
#[test]
fn recovery_that_has_no_room_for_want_of_the_archive_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let mut small = options();
    small.log_bytes(64 << 10).background(false).copied(true).memory_kept(true);
    let store = small.open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let to = ArchiveOptions::directory(&archive);
    drop(Options::new().archiver(&path, &to).unwrap());
    let put = |bytes: usize, value: u8| {
        let mut tx = store.begin(caliburn::Mode::Restore).unwrap();
        tx.write(&region, 64, &vec![value; bytes]).unwrap();
        tx.commit(caliburn::Class::Process).unwrap();
    };
    put(28_000, 1);
    store.truncate().unwrap();
    put(28_000, 2);
    store.truncate().unwrap();
    // Staged, and not in the log.
    put(28_000, 3);
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let full = small.open(&copy).unwrap_err().to_string();
    assert!(full.contains("what its archive has not got fills the log"), "{full}");
    Options::new()
        .archiver(&copy, &ArchiveOptions::directory(dir.path().join("other")))
        .unwrap()
        .flush()
        .unwrap();
    let again = small.open(&copy).unwrap();
    let value: u8 = again.segment("data").unwrap().map_all().unwrap().load(1000);
    assert_eq!(value, 3);
    // Closing waits for it as committing does.
    Options::new().archiver(&path, &to).unwrap().flush().unwrap();
}

/// A program without threads of the store's waits, too, and goes on when the archiver has made room.
#[test]
fn a_store_without_threads_waits_for_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let store = options().log_bytes(64 << 10).background(false).open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut to = ArchiveOptions::directory(&archive);
    to.part_bytes(4 << 10).age(Duration::ZERO);
    let mut archiver = Options::new().archiver(&path, &to).unwrap();
    let mut dump = Vec::new();
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                archiver.step().unwrap();
            }
            archiver.flush().unwrap();
        });
        (1..=3000).for_each(|number| transact(&store, &region, number));
        store.flush().unwrap();
        stop.store(true, SeqCst);
    });
    let to = dir.path().join("r");
    restore(&dump, RestoreOptions::new().archive(&archive), &to).unwrap();
    assert_eq!(assert_is(&mut Model::new(), &words(&to), "without threads"), 3000);
}

/// Of a copy that was brought back, or of a program that knew of no archives: what is to be archived next is gone.
#[test]
fn a_mark_that_is_older_than_the_log_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mark) = (dir.path().join("s"), dir.path().join("s/archived"));
    let to = ArchiveOptions::directory(dir.path().join("archive"));
    let mut small = options();
    small.log_bytes(64 << 10);
    let open = || {
        let store = small.open(&path).unwrap();
        let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
        (store, region)
    };
    let (store, region) = open();
    let archiver = Options::new().archiver(&path, &to).unwrap();
    let old = fs::read(&mark).unwrap();
    archiver.stop().unwrap();
    (1..=500).for_each(|number| transact(&store, &region, number));
    drop(region);
    store.close().unwrap();
    fs::write(&mark, old).unwrap();
    let (store, region) = open();
    (501..=1000).for_each(|number| transact(&store, &region, number));
    let mut archiver = Options::new().archiver(&path, &to).unwrap();
    assert!(matches!(archiver.flush(), Err(BackupError::Overtaken { .. })));
    archiver.stop().unwrap();
    drop(region);
    store.close().unwrap();
}

/// Truncation that is on its way when an archive begins does not pass it.
#[test]
fn an_archive_that_begins_beside_truncation_has_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().log_bytes(64 << 10).open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if stop.load(SeqCst) {
                    return;
                }
                transact(&store, &region, number);
            }
        });
        for round in 0..80 {
            let to = ArchiveOptions::directory(dir.path().join(format!("archive{round}")));
            let mut archiver = Options::new().archiver(&path, &to).unwrap();
            let archived = archiver.flush().and_then(|_| archiver.flush());
            archiver.stop().unwrap();
            if let Err(error) = archived {
                stop.store(true, SeqCst);
                panic!("round {round}: {error}");
            }
        }
        stop.store(true, SeqCst);
    });
}

/// Until commits wait for the archive; the last that did not.
fn wait_until_stuck(store: &Store, done: &AtomicU64) -> u64 {
    loop {
        let (before, used) = (done.load(SeqCst), store.query());
        std::thread::sleep(Duration::from_millis(300));
        if done.load(SeqCst) == before && used.log_used + used.log_kept > used.log_bytes / 2 {
            return before;
        }
    }
}

/// The process that is killed: it commits and archives, until it is. Or it archives nothing, and ends when its
/// commits wait for that.
#[test]
fn child() {
    let Ok(path) = std::env::var("CALIBURN_BACKUP_CHILD") else { return };
    let path = Path::new(&path);
    beside(path, |store, done| {
        let mut to = ArchiveOptions::directory(path.with_file_name("archive"));
        to.part_bytes(8 << 10);
        let mut archiver = Options::new().archiver(path, &to).unwrap();
        if std::env::var("CALIBURN_BACKUP_LATE").is_ok() {
            wait_until_stuck(store, done);
            std::process::abort();
        }
        while !store.query().failed {
            archiver.step().unwrap();
        }
    });
}

#[test]
fn killed_at_any_moment_the_archive_goes_on_without_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let mut dump = Vec::new();
    {
        let store = options().open(&path).unwrap();
        store.create_segment("data", LEN).unwrap();
        drop(Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap());
        store.dump(&DumpOptions::new(), &mut dump).unwrap();
        store.close().unwrap();
    }
    let mut model = Model::new();
    let mut before = 0;
    for round in 0..20u64 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child"]).env("CALIBURN_BACKUP_CHILD", &path);
        let late = round % 4 == 3;
        if late {
            command.env("CALIBURN_BACKUP_LATE", "");
        }
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        if !late {
            std::thread::sleep(Duration::from_millis(20 + round * 13 % 170));
            child.kill().unwrap();
        }
        child.wait().unwrap();
        // What is left of it, without a recovery: as if all but its log and stage were lost.
        let to = dir.path().join(format!("r{round}"));
        let mut how = RestoreOptions::new();
        how.archive(&archive).left(&path);
        restore(&dump, &how, &to).unwrap();
        let restored = assert_is(&mut model, &words(&to), &format!("round {round}"));
        // What the stage had left over may find no room before the log is archived: surely so if commits waited.
        let opened = options().open(&path);
        assert!(!late || opened.is_err(), "round {round}");
        let store = opened.unwrap_or_else(|refused| {
            let text = refused.to_string();
            assert!(text.contains("archive it"), "round {round}: {text}");
            let to = ArchiveOptions::directory(&archive);
            Options::new().archiver(&path, &to).unwrap().flush().unwrap();
            options().open(&path).unwrap()
        });
        let number = store.segment("data").unwrap().map_all().unwrap().load::<u64>(0);
        assert_eq!(restored, number, "round {round}: recovery and restoring do not agree");
        assert!(number >= before, "round {round}");
        before = number;
        store.close().unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
    assert!(before > 0);
}
