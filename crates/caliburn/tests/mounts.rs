//! Real processes, really killed, and found again under another boot id, without one, and in a snapshot of the
//! device that is mounted in place of the original. Needs root.

mod support;

use caliburn::{Class, Mode, Options, Policy, Store};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use support::run;

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(1 << 20);
    options
}

/// Run in the child: commits and dies, or opens and says what it finds.
#[test]
fn child() {
    let Ok(what) = std::env::var("CALIBURN_CHILD") else { return };
    let path = std::env::var("CALIBURN_CHILD_STORE").unwrap();
    let policy = if path.ends_with("undo") { Policy::Undo } else { Policy::Redo };
    let store = match options(policy).open(&path) {
        Ok(store) => store,
        Err(error) => return println!("refused: {error}"),
    };
    let region = support::region(&store);
    println!("found {}, dropped {}", region.load::<u64>(0), store.open_report().dropped_commits);
    if what == "die" {
        (1..=100).for_each(|value| support::put(&store, &region, 0, value, Class::Process));
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &999u64).unwrap();
        run("kill", &["-KILL", &std::process::id().to_string()]);
    }
}

/// What a child says, run by a shell after it has done something; it dies if it is to.
fn child_says(before: &str, what: &str, store: &Path) -> String {
    let test = std::env::current_exe().unwrap();
    let script = format!("{before} exec {} --exact child --nocapture", test.display());
    // A namespace of its own would keep the file system mounted a moment longer than the child lives.
    let around: &[&str] = if before.is_empty() { &["sh"] } else { &["unshare", "-m", "sh"] };
    let output = Command::new(around[0])
        .args(&around[1..])
        .args(["-c", &script])
        .env("CALIBURN_CHILD", what)
        .env("CALIBURN_CHILD_STORE", store)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let died = output.status.signal() == Some(9);
    assert_eq!(died, what == "die", "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn nothing_is_lost_under_another_boot_id_or_without_one() {
    if !support::root() {
        return eprintln!("not run: another boot id needs root");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let id = dir.path().join("id");
    std::fs::write(&id, "11111111-2222-4333-8444-555555555555\n").unwrap();
    let other = format!("mount --bind {} /proc/sys/kernel/random/boot_id;", id.display());
    let none = "mount -t tmpfs none /proc/sys/kernel/random;";
    for name in ["redo", "undo"] {
        let store = dir.path().join(name);
        child_says("", "die", &store);
        for before in [&other, none] {
            let text = child_says(before, "open", &store);
            assert!(text.contains("found 100, dropped 0"), "{name}, {before}: {text}");
            child_says("", "die", &store);
        }
        // Made there, too.
        let text = child_says(none, "open", &dir.path().join("made").join(name));
        assert!(text.contains("found 0"), "{text}");
    }
}

/// Namespaces of mounts that another test makes keep a file system in memory that is unmounted here.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_snapshot_that_is_mounted_in_place_of_the_original_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mount) = support::mount_loop("ext4", 48) else { return };
    let (image, mounted) = (mount.path.with_file_name("image"), mount.path.to_str().unwrap());
    let store = mount.path.join("undo");
    let redo = mount.path.join("redo");
    child_says("", "die", &store);
    child_says("", "die", &redo);
    run("umount", &[mounted]);
    run("mount", &["-o", "loop", image.to_str().unwrap(), mounted]);
    let report = options(Policy::Undo).check(&store).unwrap();
    assert!(report.problems[0].text.contains("another mount"), "{report:?}");
    let text = child_says("", "open", &store);
    assert!(text.contains("refused") && text.contains("--memory-kept"), "{text}");
    let text = child_says("", "open", &redo);
    // Some may be in the log; the others are counted.
    let numbers = text.split_once("found ").unwrap().1.split(['\n', ' ', ',']);
    assert_eq!(numbers.filter_map(|word| word.parse::<u64>().ok()).take(2).sum::<u64>(), 100, "{text}");
    // This one was unmounted in good order, which its operator knows.
    let opened = options(Policy::Undo).memory_kept(true).open(&store).unwrap();
    assert_eq!(support::region(&opened).load::<u64>(0), 100);
}
