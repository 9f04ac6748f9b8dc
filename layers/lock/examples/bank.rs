//! A bank: transfers between accounts on several threads, and an audit that adds all accounts up meanwhile. With
//! locks on accounts, and intentions on the bank, each audit sees the same sum; a transfer that would overdraw an
//! account is undone by itself, and the family that it is part of tries another account.

use caliburn_engine::{Class, Region, Store};
use caliburn_lock::{Detector, LockError, Locks, Owner, Standard::*};
use caliburn_nest::{Error, Tx, transact_following};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

type Failure = Box<dyn std::error::Error>;

const ACCOUNTS: usize = 50;
const EACH: i64 = 1_000;
const TRANSFERS: usize = 2_000;

/// What is locked: all accounts, or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Bank,
    Account(usize),
}

struct Bank<'b> {
    store: &'b Store,
    accounts: &'b Region,
    detector: &'b Detector,
    locks: Locks<Name>,
}

impl<'b> Bank<'b> {
    fn balance(&self, account: usize) -> i64 {
        self.accounts.load(account * 8)
    }

    fn add(&self, tx: &mut Tx<'b, Owner>, account: usize, amount: i64) -> Result<(), Error> {
        self.locks.lock(tx.companion(), Name::Account(account), Exclusive)?;
        let balance = self.balance(account) + amount;
        tx.store(self.accounts, account * 8, &balance)?;
        if balance < 0 { Err(tx.abort(format!("account {account} would be overdrawn"))) } else { Ok(()) }
    }

    /// Moves money from the first of two accounts that has it. Which one that was.
    fn transfer(&self, from: [usize; 2], to: usize, amount: i64) -> Result<Option<usize>, Error> {
        transact_following(self.store, self.detector.owner(), Class::Process, |tx| {
            self.locks.lock(tx.companion(), Name::Bank, IntentExclusive)?;
            self.add(tx, to, amount)?;
            for account in from {
                match tx.nest(|child| self.add(child, account, -amount)) {
                    Ok(()) => return Ok(Some(account)),
                    // The child is undone; what the transfer did before it is not.
                    Err(Error::Aborted(_)) => {}
                    Err(other) => return Err(other),
                }
            }
            Err(tx.abort("neither account has so much"))
        })
        .or_else(|error| if matches!(error, Error::Aborted(_)) { Ok(None) } else { Err(error) })
    }

    /// The sum of all accounts, as of one moment.
    fn audit(&self) -> Result<i64, Error> {
        transact_following(self.store, self.detector.owner(), Class::Process, |tx| {
            self.locks.lock(tx.companion(), Name::Bank, Shared)?;
            Ok((0..ACCOUNTS).map(|account| self.balance(account)).sum())
        })
    }
}

/// Whether an error says that the transaction was the victim of a deadlock, and may be tried again.
fn is_victim(error: &Error) -> bool {
    let Error::Followed(error) = error else { return false };
    matches!(error.downcast_ref(), Some(LockError::Deadlock(_)))
}

/// How many transfers there were, and how often one was tried again.
pub fn run(dir: &Path) -> Result<(u64, u64), Failure> {
    let store = Store::options().create(true).open(dir)?;
    let accounts = store.segment_or_create("accounts", 65_536)?.map_all()?;
    let detector = Detector::new();
    let bank = Bank { store: &store, accounts: &accounts, detector: &detector, locks: detector.locks() };
    transact_following(&store, detector.owner(), Class::Power, |tx| {
        (0..ACCOUNTS).try_for_each(|account| tx.store(&accounts, account * 8, &EACH))
    })?;
    let (moved, again, left) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(2));
    let tried = |transfer: &dyn Fn() -> Result<Option<usize>, Error>| {
        loop {
            match transfer() {
                Err(error) if is_victim(&error) => _ = again.fetch_add(1, Ordering::Relaxed),
                done => return done,
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..2usize {
            let (bank, moved, left, tried) = (&bank, &moved, &left, &tried);
            scope.spawn(move || {
                for number in 0..TRANSFERS {
                    let from = [number * 7 % ACCOUNTS, (number * 3 + thread) % ACCOUNTS];
                    let (to, amount) = ((number * 11 + 5 * thread) % ACCOUNTS, 1 + number as i64 % 700);
                    let done = tried(&|| bank.transfer(from, to, amount)).expect("the store is sound");
                    moved.fetch_add(u64::from(done.is_some()), Ordering::Relaxed);
                }
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while left.load(Ordering::SeqCst) > 0 {
            let sum = bank.audit().expect("the store is sound");
            assert_eq!(sum, ACCOUNTS as i64 * EACH, "money came or went");
        }
    });
    assert!((0..ACCOUNTS).all(|account| bank.balance(account) >= 0));
    Ok((moved.into_inner(), again.into_inner()))
}

#[allow(dead_code, reason = "tests call run")]
fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).expect("name a directory for the store");
    let (moved, again) = run(Path::new(&dir))?;
    println!("{moved} transfers, {again} of them tried again; every audit saw the same sum");
    Ok(())
}
