//! Real processes with families, really killed: after each death all of a family is there, or nothing of it, and all
//! that was acknowledged; nothing of a child that aborted.

mod support;

use caliburn_engine::{Class, Policy};
use caliburn_nest::{Error, transact};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::open;

/// Where a family writes its number: itself, a child, that one's child, and two children side by side.
const PLACES: [usize; 5] = [0, 4096, 8192, 12_288, 16_384];
/// Where children write that abort.
const ABORTED: usize = 20_480;

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_NEST_STORE") else { return };
    let policy = if std::env::var_os("CALIBURN_NEST_UNDO").is_some() { Policy::Undo } else { Policy::Redo };
    let (store, region) = open(Path::new(&path), policy);
    for number in region.load::<u64>(0) + 1.. {
        transact(&store, Class::Process, |tx| {
            tx.store(&region, PLACES[0], &number)?;
            tx.nest(|child| {
                child.store(&region, PLACES[1], &99u64)?;
                let aborted = child.nest(|inner| {
                    inner.store(&region, PLACES[1], &77u64)?;
                    inner.store(&region, ABORTED, &number)?;
                    Err::<(), _>(inner.abort("as always"))
                });
                assert!(aborted.is_err());
                child.nest(|inner| inner.store(&region, PLACES[2], &number))?;
                child.store(&region, PLACES[1], &number)
            })?;
            let children = tx.cofor(3, |at, child| {
                child.store(&region, PLACES.get(3 + at).copied().unwrap_or(ABORTED), &number)?;
                if at == 2 { Err(child.abort("as always")) } else { Ok(()) }
            });
            assert_eq!(children.iter().filter(|child| child.is_ok()).count(), 2);
            Ok::<_, Error>(())
        })
        .unwrap();
        std::io::stdout().lock().write_all(format!("ack {number}\n").as_bytes()).unwrap();
    }
}

#[test]
fn a_family_is_there_wholly_or_not() {
    let kills = if cfg!(debug_assertions) { 20 } else { 100 };
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let mut families = 0;
        for round in 0..kills {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--nocapture"]).env("CALIBURN_NEST_STORE", dir.path());
            if policy == Policy::Undo {
                command.env("CALIBURN_NEST_UNDO", "1");
            }
            let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
            // Some time after the first is acknowledged.
            let acks = |line: std::io::Result<String>| {
                Some(line.ok()?.strip_prefix("ack ")?.parse::<u64>().unwrap())
            };
            let mut acknowledged = lines.by_ref().find_map(acks).unwrap();
            std::thread::sleep(Duration::from_micros(round * 331 % 9000));
            running.kill().unwrap();
            running.wait().unwrap();
            acknowledged = lines.filter_map(acks).last().unwrap_or(acknowledged);
            let (store, region) = open(dir.path(), policy);
            let numbers = PLACES.map(|at| region.load::<u64>(at));
            assert!(numbers.iter().all(|number| *number == numbers[0]), "{policy:?}, {round}: {numbers:?}");
            assert!((acknowledged..=acknowledged + 1).contains(&numbers[0]), "{acknowledged}: {numbers:?}");
            assert_eq!(region.load::<u64>(ABORTED), 0);
            families = numbers[0];
            drop((region, store));
        }
        assert!(families > kills, "{families} families in {kills} lives");
    }
}
