//! A store in use is looked at from outside, from second to second.

use caliburn::{Class, Mode, Store};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn lines_say_how_much_a_store_commits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::options().create(true).log_bytes(1 << 20).open(&path).unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    let stop = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(&region, 0, &7u64).unwrap();
                tx.commit(Class::Process).unwrap();
            }
        });
        let mut top = Command::new(env!("CARGO_BIN_EXE_caliburn-top"));
        let output = top.arg(&path).args(["--every", "0.3", "--lines", "2"]).output();
        stop.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("commits/s ") && !lines.starts_with("commits/s 0 "), "{lines}");
}
