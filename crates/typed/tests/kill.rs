//! Real processes with typed objects, really killed: random transactions on every collection, which also abort
//! and panic. After each death the objects are those of one number of whole transactions, none fewer than were
//! acknowledged; they can be emptied, and then nothing is left in the heap.

use caliburn::typed::Error;
use caliburn::{Class, Objects, Options, Policy, Store};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use workload::{Expected, Root, mix, of_root, step, steps};

#[path = "support/workload.rs"]
mod workload;

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(4 << 20).stage_bytes(2 << 20).reserve_bytes(1 << 30);
    options
}

fn open(path: &Path, policy: Policy) -> Objects<Root> {
    Objects::open(&options(policy).open(path).unwrap(), "objects").unwrap()
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_TYPED_STORE") else { return };
    let policy = if std::env::var_os("CALIBURN_TYPED_UNDO").is_some() { Policy::Undo } else { Policy::Redo };
    let objects = open(Path::new(&path), policy);
    let done = objects.read().done;
    for number in done.. {
        // Before it is done it is tried, and undone, in either way.
        let undone = |end: fn() -> Result<(), Error>| {
            catch_unwind(AssertUnwindSafe(|| {
                objects.transact_in(Class::Process, |mut root| {
                    steps(mix(number) & 0xFFFF).chain(steps(number)).for_each(|s| step(&mut root, s));
                    end()
                })
            }))
        };
        match mix(number * 5) % 4 {
            0 => assert!(undone(|| Err(Error::Unwound)).unwrap().is_err()),
            1 => assert!(undone(|| resume_unwind(Box::new(()))).is_err()),
            _ => {}
        }
        objects
            .transact_in::<_, Error>(Class::Process, |mut root| {
                steps(number).for_each(|s| step(&mut root, s));
                *root.fields().done = number + 1;
                Ok(())
            })
            .unwrap();
        std::io::stdout().lock().write_all(format!("ack {}\n", number + 1).as_bytes()).unwrap();
    }
}

fn kills(policy: Policy, kills: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut expected = Expected::default();
    let mut acknowledged = 0;
    for kill in 0..kills {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture"]).env("CALIBURN_TYPED_STORE", &path);
        if policy == Policy::Undo {
            command.env("CALIBURN_TYPED_UNDO", "1");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut left = 1 + mix(kill * 77 + u64::from(policy == Policy::Undo)) % 400;
        for line in out.lines().map_while(Result::ok) {
            let Some(number) = line.strip_prefix("ack ").and_then(|n| n.parse::<u64>().ok()) else {
                continue;
            };
            acknowledged = number;
            left -= 1;
            if left == 0 {
                // At any moment of the next ones.
                std::thread::sleep(Duration::from_micros(mix(kill) % 3000));
                child.kill().unwrap();
                left = u64::MAX;
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9), "the child ended by itself");
        let objects = open(&path, policy);
        let view = objects.read();
        assert!(
            view.done >= acknowledged,
            "{} of {acknowledged} acknowledged transactions are there",
            view.done
        );
        assert!(
            of_root(&view) == *expected.advance(view.done),
            "not the state after {} transactions",
            view.done
        );
    }
    let objects = open(&path, policy);
    assert!(objects.read().done > 100);
    objects.update(|mut root| root.set(Root::default())).unwrap();
    let statistics = objects.statistics();
    let left = statistics.large_objects + statistics.classes.iter().map(|class| class.objects).sum::<u64>();
    assert_eq!(left, 2, "objects beside the root and the record of its types");
}

#[test]
fn objects_survive_kills_with_the_redo_policy() {
    kills(Policy::Redo, 25);
}

#[test]
fn objects_survive_kills_with_the_undo_policy() {
    kills(Policy::Undo, 25);
}
