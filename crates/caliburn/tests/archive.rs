//! Logs that are archived while they grow: by commands that fail, hang and lie, by processes that are killed.

#[path = "support/backup.rs"]
mod support;

use caliburn::{ArchiveOptions, DumpOptions, Options, RestoreOptions, Store};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
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
    let command = |text: &str| {
        let mut to = ArchiveOptions::command(text.to_owned(), Duration::from_millis(300));
        to.part_bytes(16 << 10);
        Options::new().archiver(&path, &to).unwrap()
    };
    let mut dump = Vec::new();
    command("true");
    store.dump(&DumpOptions::new(), &mut dump).unwrap();
    (1..=400).for_each(|number| transact(&store, &region, number));
    store.flush().unwrap();
    for (text, told) in
        [("exit 3", "exit status: 3"), ("sleep 100 & wait", "killed"), ("kill -9 $$", "signal")]
    {
        for _ in 0..3 {
            let error = command(text).flush().unwrap_err().to_string();
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
        let kept = store.query().log_used;
        assert!(kept > 0, "round {round}: the log was truncated, and nothing is archived");
        if round == 3 {
            let mut archiver = Options::new().archiver(&path, &to).unwrap();
            archiver.flush().unwrap();
            store.truncate().unwrap();
            assert_eq!(store.query().log_used, 0, "all is archived");
        }
        drop(region);
        store.close().unwrap();
    }
    // A program that commits more than the log holds waits for the archive.
    let archiver = Options::new().archiver(&path, &to).unwrap();
    let stop = AtomicBool::new(false);
    let last = beside(&path, |store, done| {
        let stuck = loop {
            let (before, used) = (done.load(SeqCst), store.query());
            std::thread::sleep(Duration::from_millis(300));
            if done.load(SeqCst) == before && used.log_used > used.log_bytes / 2 {
                break before;
            }
        };
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
            store.flush().unwrap();
            let last = done.load(SeqCst);
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
    assert_eq!(store.query().log_used, 0, "nobody keeps it any more");
}

/// The process that is killed: it commits and archives, until it is.
#[test]
fn child() {
    let Ok(path) = std::env::var("CALIBURN_BACKUP_CHILD") else { return };
    let path = Path::new(&path);
    beside(path, |store, _| {
        let mut to = ArchiveOptions::directory(path.with_file_name("archive"));
        to.part_bytes(8 << 10);
        let mut archiver = Options::new().archiver(path, &to).unwrap();
        loop {
            archiver.step().unwrap();
            if store.query().failed {
                return;
            }
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
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env("CALIBURN_BACKUP_CHILD", &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20 + round * 13 % 170));
        child.kill().unwrap();
        child.wait().unwrap();
        // What is left of it, without a recovery: as if all but its log and stage were lost.
        let to = dir.path().join(format!("r{round}"));
        let mut how = RestoreOptions::new();
        how.archive(&archive).left(&path);
        restore(&dump, &how, &to).unwrap();
        let restored = assert_is(&mut model, &words(&to), &format!("round {round}"));
        let store = options().open(&path).unwrap();
        let number = store.segment("data").unwrap().map_all().unwrap().load::<u64>(0);
        assert_eq!(restored, number, "round {round}: recovery and restoring do not agree");
        assert!(number >= before, "round {round}");
        before = number;
        store.close().unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
    assert!(before > 0);
}
