//! `debit-credit` (Vista, Figure 5b; TPC-B): each transaction changes an account, its teller and branch, and
//! appends to a circular history: four ranges of 24 bytes.

use crate::Arguments;
use crate::floor::ForcedWrite;
use crate::report::{self, Line, Random};
use crate::target::{Declare, Failure, Redo, Target, options};
use crate::work::{Workload, side_by_side};
use caliburn::Class;
use serde_json::json;

const RECORD: usize = 128;
const TELLERS_PER_BRANCH: usize = 10;
const ACCOUNTS_PER_BRANCH: usize = 100_000;
const HISTORY: usize = 2 << 20;
/// Of the streams of one thread.
pub const SEED: u64 = 0x1234_5678_9ABC_DEF1;

/// Where the tables are.
#[derive(Clone, Copy)]
pub struct Layout {
    accounts: usize,
    branches: usize,
}

impl Layout {
    /// For so many accounts.
    pub fn new(accounts: usize) -> Layout {
        Layout { accounts, branches: accounts.div_ceil(ACCOUNTS_PER_BRANCH) }
    }

    fn teller(self, i: usize) -> usize {
        (self.accounts + i) * RECORD
    }

    fn branch(self, i: usize) -> usize {
        self.teller(self.branches * TELLERS_PER_BRANCH + i)
    }

    /// Where the tables of records of 128 bytes end and the history begins.
    pub fn history(self) -> usize {
        self.branch(self.branches).next_multiple_of(4096)
    }

    /// First byte and length of the record that bytes are in: what a system without memory stores as one.
    pub fn record(history: usize, offset: usize, len: usize) -> (usize, usize) {
        if offset < history { (offset / RECORD * RECORD, RECORD) } else { (offset, len) }
    }

    /// What the balances of accounts (0), tellers (1) or branches (2) add up to.
    pub fn balance<T: Target>(self, target: &T, table: usize) -> i64 {
        let (from, count) = match table {
            0 => (0, self.accounts),
            1 => (self.teller(0), self.branches * TELLERS_PER_BRANCH),
            _ => (self.branch(0), self.branches),
        };
        let one = |i| {
            let mut bytes = [0; 8];
            target.read(from + i * RECORD, &mut bytes);
            i64::from_ne_bytes(bytes)
        };
        (0..count).map(one).sum()
    }

    /// Bytes of all tables.
    pub fn bytes(self) -> usize {
        self.history() + HISTORY
    }
}

/// A stream of transactions.
pub struct Stream {
    layout: Layout,
    random: Random,
    count: u64,
    /// Sum of all amounts, to compare with the balances.
    pub total: i64,
}

impl Stream {
    /// A stream that begins with that seed.
    pub fn new(layout: Layout, seed: u64) -> Stream {
        Stream { layout, random: Random(seed), count: 0, total: 0 }
    }
}

impl Workload for Stream {
    const BATCH: u64 = 64;

    #[inline]
    fn step<T: Target>(&mut self, target: &mut T) {
        let layout = self.layout;
        let account = self.random.below(layout.accounts);
        let branch = account / ACCOUNTS_PER_BRANCH;
        let teller = branch * TELLERS_PER_BRANCH + (self.random.bits() >> 40) as usize % TELLERS_PER_BRANCH;
        let amount = (self.random.bits() >> 50) as i64 - 8000;
        self.total += amount;
        let count = self.count;
        self.count += 1;
        let slot = layout.history() + (count as usize * 24) % (HISTORY / 24 * 24);
        target.transaction(|tx| {
            for offset in [account * RECORD, layout.teller(teller), layout.branch(branch)] {
                let at = tx.declare(offset, 24).cast::<i64>();
                // SAFETY: 24 declared bytes, aligned to 8, used by this thread alone.
                unsafe {
                    *at += amount;
                    *at.add(1) = amount;
                    *at.add(2) = count as i64;
                }
            }
            let at = tx.declare(slot, 24).cast::<i64>();
            // SAFETY: as above.
            unsafe {
                *at = account as i64;
                *at.add(1) = amount;
                *at.add(2) = count as i64;
            }
        });
    }

    /// Balances of accounts, tellers and branches must each add up to all amounts.
    fn check<T: Target>(&self, target: &T) -> Result<(), Failure> {
        let [accounts, tellers, branches] = [0, 1, 2].map(|table| self.layout.balance(target, table));
        if [accounts, tellers, branches] == [self.total; 3] {
            Ok(())
        } else {
            let found = [accounts, tellers, branches];
            Err(format!("{}: balances {found:?}, expected {}", T::NAME, self.total).into())
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let layout = Layout::new(arguments.accounts);
    let params = json!({"accounts": arguments.accounts});
    let work = || Stream::new(layout, SEED);
    side_by_side("debit-credit", arguments, layout.bytes(), params.clone(), work)?;

    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut force = ForcedWrite::new(&dir.path().join("forced"), 200)?;
    let options = options(arguments.log_mb, arguments.stage_mb);
    let mut redo = Redo::new(&dir.path().join("power"), &options, layout.bytes(), Class::Power)?;
    let mut stream = work();
    let line = |system, policy| Line::new(system, policy, "power", 1, params.clone());
    let mut lines = [line("bare forced write", "none"), line(Redo::NAME, Redo::POLICY)];
    report::interleave(arguments.rounds, &mut lines, || {
        vec![
            report::measure(arguments.seconds, 1, || force.force().expect("the disk works")),
            report::measure(arguments.seconds, 1, || stream.step(&mut redo)),
        ]
    });
    stream.check(&redo.reopened()?)?;
    report::print("debit-credit", arguments.json, &lines, 0);
    Ok(())
}
