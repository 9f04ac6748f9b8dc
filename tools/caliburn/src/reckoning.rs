//! What transfers have done and what became of them, as their programs were told; and whether what is there in the
//! end fits that.

use caliburn_dist::bank::{ACCOUNTS, FIRST};
use caliburn_dist::client::Error;
use caliburn_history::{Anomaly, History, Op, check};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

/// Accounts of each node that are used: few enough that transfers meet.
pub const USED: u64 = 64;

/// The receipts of an account, as a list of the history.
pub fn list(node: u64, account: u64) -> usize {
    ((node - 1) * USED + account) as usize
}

/// What a transfer has done.
pub type Ops = Mutex<Vec<Op>>;

pub fn note(ops: &Ops, op: Op) {
    ops.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(op);
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
    /// What each of them has done, as far as it was answered.
    done: BTreeMap<u64, Vec<Op>>,
}

impl Ledger {
    pub fn add(&mut self, receipt: u64, done: &Result<(), Error>, ops: Vec<Op>) {
        self.undone.push(receipt | 1 << 63);
        self.done.insert(receipt, ops);
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
}

/// What is wrong.
pub fn compare(ledger: &Ledger, totals: &Totals, nodes: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let (amount, first) = (totals.amount, nodes as i64 * i64::from(ACCOUNTS) * FIRST);
    if amount != first {
        problems.push(format!("the banks have {amount} together, and had {first}"));
    }
    let mut there: HashMap<u64, u32> = HashMap::new();
    for receipt in totals.lists.iter().flatten() {
        *there.entry(*receipt).or_default() += 1;
    }
    if let Err(anomaly) = explain(ledger, &totals.lists, &there) {
        problems.push(format!("no order of the transactions explains what they have seen: {anomaly}"));
    }
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

/// Whether some order of the transfers explains what those have seen that are there.
fn explain(ledger: &Ledger, lists: &[Vec<u64>], there: &HashMap<u64, u32>) -> Result<(), Anomaly> {
    let (committed, aborted): (Vec<_>, Vec<_>) =
        ledger.done.iter().partition(|(receipt, _)| there.contains_key(receipt));
    let aborted = aborted.into_iter().map(|(receipt, _)| *receipt).chain(ledger.undone.iter().copied());
    let history = History {
        committed: committed.into_iter().map(|(_, ops)| ops.clone()).collect(),
        aborted: aborted.collect(),
    };
    check(&history, lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u64 = 2;

    /// Two transfers that have committed, each having read a list before the other one has appended to it, or not.
    fn ledger(read: [&[u64]; 2]) -> Ledger {
        let mut ledger = Ledger::default();
        let [one, two] = read.map(<[u64]>::to_vec);
        ledger.add(1, &Ok(()), vec![Op::Read(5, one), Op::Append(4, 1), Op::Append(8, 1)]);
        ledger.add(2, &Ok(()), vec![Op::Read(4, two), Op::Append(5, 2), Op::Append(9, 2)]);
        ledger.add(3, &Err(Error::Aborted("not wanted".into())), vec![Op::Append(4, 3)]);
        ledger
    }

    fn totals() -> Totals {
        let mut lists = vec![Vec::new(); (NODES * USED) as usize];
        for (list, receipt) in [(4, 1), (8, 1), (5, 2), (9, 2)] {
            lists[list].push(receipt);
        }
        Totals { amount: NODES as i64 * i64::from(ACCOUNTS) * FIRST, lists }
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
        let mut unknown = sound();
        unknown.unknown = std::mem::take(&mut unknown.acknowledged);
        finds(&unknown, &with(8, &[]), "1 transfers of which nobody was told are there in part");
    }
}
