//! Real processes with transactions on cells, really killed: after each death no money is lost or made, and all
//! that was acknowledged is there.

use caliburn_engine::{Class, Policy, Store};
use caliburn_serial::{Cells, Error, Ptr};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const ACCOUNTS: usize = 8;
const THREADS: usize = 2;

/// Money in each account, then what each thread has done.
type Bank = [Ptr<u64>; ACCOUNTS + THREADS];

fn open(path: &Path, policy: Policy) -> (Store, Cells, Bank) {
    let store = Store::options().create(true).policy(policy).open(path).unwrap();
    let cells = Cells::open(&store, "bank").unwrap();
    let bank = cells.transact(Class::Process, |tx| {
        let mut bank: Bank = [Ptr::NONE; _];
        for (at, account) in bank.iter_mut().enumerate() {
            let name = format!("account {at}");
            *account = match tx.root(&name)? {
                Some(account) => account,
                None => {
                    let new = tx.insert(if at < ACCOUNTS { 1000u64 } else { 0 })?;
                    tx.set_root(&name, Some(&new))?;
                    new
                }
            };
        }
        Ok::<_, Error>(bank)
    });
    (store, cells, bank.unwrap())
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_CELLS_STORE") else { return };
    let policy = if std::env::var_os("CALIBURN_CELLS_UNDO").is_some() { Policy::Undo } else { Policy::Redo };
    let (_store, cells, bank) = open(Path::new(&path), policy);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cells, bank) = (&cells, &bank);
            scope.spawn(move || {
                for round in 0.. {
                    let (from, to) = (round * 7 % ACCOUNTS, (round * 5 + thread * 3 + 1) % ACCOUNTS);
                    let number = cells.transact(Class::Process, |tx| {
                        let amount = tx.read(&bank[from])?.min(round as u64 % 50);
                        *tx.write(&bank[from])? -= amount;
                        *tx.write(&bank[to])? += amount;
                        // By a child that aborts, and one that does not.
                        let aborted = tx.nest(|child| {
                            *child.write(&bank[to])? += 77;
                            child.insert([1u64; 5])?;
                            Err::<(), Error>(child.abort("as always"))
                        });
                        match aborted {
                            Err(Error::Aborted(_)) => {}
                            other => other?,
                        }
                        tx.nest(|child| {
                            let mut done = child.write(&bank[ACCOUNTS + thread])?;
                            *done += 1;
                            Ok::<_, Error>(*done)
                        })
                    });
                    let line = format!("ack {thread} {}\n", number.unwrap());
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn no_money_is_lost_or_made() {
    let kills = if cfg!(debug_assertions) { 20 } else { 100 };
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let mut acknowledged = [0; THREADS];
        for round in 0..kills {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--nocapture"]).env("CALIBURN_CELLS_STORE", dir.path());
            if policy == Policy::Undo {
                command.env("CALIBURN_CELLS_UNDO", "1");
            }
            let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
            let mut ack = |line: std::io::Result<String>| {
                let line = line.ok()?;
                let (thread, number) = line.strip_prefix("ack ")?.split_once(' ')?;
                let (thread, number): (usize, u64) = (thread.parse().ok()?, number.parse().ok()?);
                acknowledged[thread] = number;
                Some(())
            };
            // Some time after the first is acknowledged.
            lines.by_ref().find_map(&mut ack).unwrap();
            std::thread::sleep(Duration::from_micros(round * 331 % 9000));
            running.kill().unwrap();
            running.wait().unwrap();
            lines.for_each(|line| _ = ack(line));
            let (store, cells, bank) = open(dir.path(), policy);
            let all = |at: &Ptr<u64>| cells.read(|reader| reader.read(at)).unwrap();
            let values = bank.each_ref().map(all);
            assert_eq!(values[..ACCOUNTS].iter().sum::<u64>(), 1000 * ACCOUNTS as u64, "{policy:?}, {round}");
            for (done, acknowledged) in values[ACCOUNTS..].iter().zip(acknowledged) {
                assert!(
                    (acknowledged..=acknowledged + 1).contains(done),
                    "{done}, acknowledged {acknowledged}"
                );
            }
            drop((cells, store));
        }
        assert!(acknowledged.iter().sum::<u64>() > kills, "{acknowledged:?} in {kills} lives");
    }
}
