//! What transfers have done and what became of them, as their programs were told; and whether what is there in the
//! end fits that.

use caliburn_dist::bank::{ACCOUNTS, FIRST};
use caliburn_dist::client::Error;
use caliburn_history::{Anomaly, History, Op, check};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Accounts of each node that are used: few enough that transfers meet.
pub const USED: u64 = 64;

/// The receipts of an account, as a list of the history.
pub fn list(node: u64, account: u64) -> usize {
    ((node - 1) * USED + account) as usize
}

/// What a transfer has done, as far as it was answered.
#[derive(Debug, Default)]
pub struct Done {
    ops: Mutex<Vec<Op>>,
    /// What it has added to which lists' accounts.
    amounts: Mutex<Vec<(usize, i64)>>,
    /// Balances that it has read, of lists of so many receipts.
    balances: Mutex<Vec<(usize, usize, i64)>>,
    /// When it began, and had committed.
    time: (u64, Option<u64>),
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Done {
    /// It begins.
    pub fn begins(at: u64) -> Done {
        Done { time: (at, None), ..Done::default() }
    }

    pub fn appended(&self, list: usize, receipt: u64, amount: i64) {
        lock(&self.ops).push(Op::Append(list, receipt));
        lock(&self.amounts).push((list, amount));
    }

    pub fn read(&self, list: usize, balance: i64, receipts: Vec<u64>) {
        lock(&self.balances).push((list, receipts.len(), balance));
        lock(&self.ops).push(Op::Read(list, receipts));
    }
}

/// What became of the transfers, by their receipts.
#[derive(Default)]
pub struct Ledger {
    pub acknowledged: Vec<u64>,
    pub refused: Vec<u64>,
    pub unknown: Vec<u64>,
    /// Of what was undone within transactions that committed.
    undone: Vec<u64>,
    pub why: BTreeMap<String, u64>,
    done: BTreeMap<u64, Done>,
}

impl Ledger {
    pub fn add(&mut self, receipt: u64, done: &Result<(), Error>, at: u64, what: Done) {
        self.undone.push(receipt | 1 << 63);
        let end = done.is_ok().then_some(at);
        self.done.insert(receipt, Done { time: (what.time.0, end), ..what });
        let Err(error) = done else { return self.acknowledged.push(receipt) };
        let why = match error {
            Error::Unknown(..) => "Unknown".into(),
            Error::Call(status) => format!("call: {:?}", status.code()),
            Error::TimeOut(_) => "TimeOut".into(),
            Error::NotCommitted(_) => "NotCommitted".into(),
            _ => "Other".into(),
        };
        *self.why.entry(why).or_default() += 1;
        match error {
            Error::Unknown(..) => self.unknown.push(receipt),
            _ => self.refused.push(receipt),
        }
    }
}

/// What all banks have, and the receipts of each account.
#[derive(Default)]
pub struct Totals {
    pub amount: i64,
    pub lists: Vec<Vec<u64>>,
    /// What these accounts have.
    pub balances: Vec<i64>,
    /// Receipts of accounts that nobody uses.
    pub strays: Vec<u64>,
}

/// What is wrong.
pub fn compare(ledger: &Ledger, totals: &Totals, nodes: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let (amount, first) = (totals.amount, nodes as i64 * i64::from(ACCOUNTS) * FIRST);
    if amount != first {
        problems.push(format!("the banks have {amount} together, and had {first}"));
    }
    let mut there: HashMap<u64, u32> = HashMap::new();
    for receipt in totals.lists.iter().flatten().chain(&totals.strays) {
        *there.entry(*receipt).or_default() += 1;
    }
    if let Err(why) = explain(ledger, &totals.lists, &there) {
        problems.push(format!("no order of the transactions explains what they have seen: {why}"));
    }
    problems.extend(differing(ledger, totals, &there));
    let mut of = |receipt: &u64| there.remove(receipt).unwrap_or(0);
    let mut each = |receipts: &[u64], right: &[u32], what: &str| {
        let wrong: Vec<u64> =
            receipts.iter().filter(|receipt| !right.contains(&of(receipt))).copied().collect();
        if let Some(first) = wrong.first() {
            problems.push(format!("{} {what}, the first one {first}", wrong.len()));
        }
    };
    each(&ledger.acknowledged, &[2], "acknowledged transfers are not there, or in part");
    each(&ledger.unknown, &[0, 2], "transfers of which nobody was told are there in part");
    each(&ledger.refused, &[0], "transfers that were refused are there");
    each(&ledger.undone, &[0], "nested transactions that were undone are there");
    if !there.is_empty() {
        problems.push(format!("{} receipts are nobody's", there.len()));
    }
    problems
}

/// Whether some order of the transfers, which is that of time, explains what those have seen that are there.
fn explain(ledger: &Ledger, lists: &[Vec<u64>], there: &HashMap<u64, u32>) -> Result<(), String> {
    let (committed, aborted): (Vec<_>, Vec<_>) =
        ledger.done.iter().partition(|(receipt, _)| there.contains_key(receipt));
    let aborted = aborted.into_iter().map(|(receipt, _)| *receipt).chain(ledger.undone.iter().copied());
    let history = History {
        committed: committed.iter().map(|(_, done)| lock(&done.ops).clone()).collect(),
        times: committed.iter().map(|(_, done)| done.time).collect(),
        aborted: aborted.collect(),
    };
    check(&history, lists).map_err(|anomaly| match anomaly {
        Anomaly::Circle(kind, of) => {
            let receipts: Vec<u64> = of.into_iter().map(|at| *committed[at].0).collect();
            format!("the transfers with receipts {receipts:?} depend on each other in a circle ({kind})")
        }
        other => other.to_string(),
    })
}

/// Balances, read at any time, that are not what the receipts beside them say.
fn differing(ledger: &Ledger, totals: &Totals, there: &HashMap<u64, u32>) -> Vec<String> {
    // What an account had when it had so many receipts.
    let mut expected = Vec::new();
    for (list, receipts) in totals.lists.iter().enumerate() {
        let mut amounts: HashMap<u64, VecDeque<i64>> = HashMap::new();
        let (mut balance, mut all) = (FIRST, vec![FIRST]);
        for receipt in receipts {
            let of = amounts.entry(*receipt).or_insert_with(|| {
                let done = ledger.done.get(receipt).map(|done| lock(&done.amounts));
                let all = done.iter().flat_map(|all| all.iter()).filter(|(of, _)| *of == list);
                all.map(|(_, amount)| *amount).collect()
            });
            balance += of.pop_front().unwrap_or(0);
            all.push(balance);
        }
        expected.push(all);
    }
    let committed = ledger.done.iter().filter(|(receipt, _)| there.contains_key(receipt));
    let read = committed.flat_map(|(_, done)| lock(&done.balances).clone());
    let last =
        totals.balances.iter().enumerate().map(|(list, balance)| (list, totals.lists[list].len(), *balance));
    let wrong = read.chain(last).filter(|(list, len, balance)| expected[*list].get(*len) != Some(balance));
    let wrong: Vec<_> = wrong.collect();
    wrong
        .first()
        .map(|(list, len, balance)| {
            format!(
                "{} balances do not fit their receipts, the first one of list {list}: {balance} with {len} receipts",
                wrong.len()
            )
        })
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u64 = 2;

    /// Two transfers that have committed, each having read a list, and what its account had then.
    fn ledger(read: [&[u64]; 2]) -> Ledger {
        let mut ledger = Ledger::default();
        for (at, receipts) in read.into_iter().enumerate() {
            let done = Done::begins(0);
            done.read(5 - at, FIRST + 7 * receipts.len() as i64, receipts.to_vec());
            done.appended(4 + at, at as u64 + 1, 7);
            done.appended(8 + at, at as u64 + 1, -7);
            ledger.add(at as u64 + 1, &Ok(()), 10, done);
        }
        let undone = Done::begins(0);
        undone.appended(4, 3, 7);
        ledger.add(3, &Err(Error::Aborted("not wanted".into())), 10, undone);
        ledger
    }

    fn totals() -> Totals {
        let mut totals = Totals { amount: NODES as i64 * i64::from(ACCOUNTS) * FIRST, ..Totals::default() };
        totals.lists = vec![Vec::new(); (NODES * USED) as usize];
        totals.balances = vec![FIRST; (NODES * USED) as usize];
        for (list, receipt, amount) in [(4, 1, 7), (8, 1, -7), (5, 2, 7), (9, 2, -7)] {
            totals.lists[list].push(receipt);
            totals.balances[list] += amount;
        }
        totals
    }

    #[test]
    fn what_fits_is_right_and_nothing_else() {
        let sound = || ledger([&[2], &[]]);
        assert_eq!(compare(&sound(), &totals(), NODES), [""; 0]);
        let finds = |ledger: &Ledger, totals: &Totals, text: &str| {
            let problems = compare(ledger, totals, NODES);
            assert!(problems.iter().any(|problem| problem.contains(text)), "{text}: {problems:?}");
        };
        finds(&ledger([&[], &[]]), &totals(), "in a circle (G2)");
        finds(&ledger([&[2], &[1]]), &totals(), "in a circle (G1c)");
        finds(&sound(), &Totals { amount: 1, ..totals() }, "the banks have 1 together");
        let with = |list: usize, receipts: &[u64]| {
            let mut totals = totals();
            totals.lists[list] = receipts.to_vec();
            totals
        };
        finds(&sound(), &with(8, &[]), "1 acknowledged transfers are not there, or in part");
        finds(&sound(), &with(8, &[1, 3]), "1 transfers that were refused are there");
        finds(&sound(), &with(8, &[1, 1 << 63 | 1]), "1 nested transactions that were undone are there");
        finds(&sound(), &with(8, &[1, 77]), "1 receipts are nobody's");
        finds(&sound(), &Totals { strays: vec![78], ..totals() }, "1 receipts are nobody's");
        let mut lies = totals();
        lies.balances[8] += 1;
        finds(
            &sound(),
            &lies,
            "1 balances do not fit their receipts, the first one of list 8: 994 with 1 receipts",
        );
        let mut torn = sound();
        lock(&torn.done.get_mut(&1).unwrap().balances)[0].2 += 1;
        finds(&torn, &totals(), "1 balances do not fit their receipts, the first one of list 5");
        // It began when the other one had ended, and has not seen it.
        let mut stale = ledger([&[2], &[]]);
        stale.done.get_mut(&2).unwrap().time = (11, Some(12));
        stale.done.get_mut(&1).unwrap().time = (0, Some(10));
        finds(&stale, &totals(), "receipts [");
        let mut unknown = sound();
        unknown.unknown = std::mem::take(&mut unknown.acknowledged);
        finds(&unknown, &with(8, &[]), "1 transfers of which nobody was told are there in part");
    }
}
