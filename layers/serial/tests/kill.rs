//! Real processes with transactions on cells, really killed: after each death no money is lost or made, and all
//! that was acknowledged is there.

#[path = "../../nest/tests/support/lives.rs"]
mod lives;

use caliburn_engine::{Class, Policy, Store};
use caliburn_serial::{Cells, Error, Ptr};
use std::path::Path;

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
    let Some((path, policy)) = lives::own() else { return };
    let (_store, cells, bank) = open(&path, policy);
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
                    lives::acknowledge(thread, number.unwrap());
                }
            });
        }
    });
}

#[test]
fn no_money_is_lost_or_made() {
    lives::all::<THREADS>(|path, policy| {
        let (_store, cells, bank) = open(path, policy);
        let values = bank.each_ref().map(|at| cells.read(|reader| reader.read(at)).unwrap());
        assert_eq!(values[..ACCOUNTS].iter().sum::<u64>(), 1000 * ACCOUNTS as u64, "{policy:?}");
        std::array::from_fn(|thread| values[ACCOUNTS + thread])
    });
}
