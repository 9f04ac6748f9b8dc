//! `order-entry` (Vista, Figure 5c; TPC-C): a wholesale supplier's new orders, payments and deliveries, in the
//! shares of TPC-C without the two transactions that change nothing, one after the other as fast as can be.

use crate::Arguments;
use crate::report::Random;
use crate::target::{Declare, Failure, Target};
use crate::work::{Workload, side_by_side};
use serde_json::json;

const DISTRICTS: usize = 10;
/// Of a district; and its orders are a ring of as many.
const CUSTOMERS: usize = 3000;
const ITEMS: usize = 100_000;
const LINES_MAX: usize = 15;
/// Bytes of records.
const DISTRICT: usize = 128;
const CUSTOMER: usize = 640;
const STOCK: usize = 320;
const ORDER: usize = 64 + LINES_MAX * LINE;
const LINE: usize = 56;
const HISTORY: usize = 48;
const HISTORIES: usize = 40_000;

/// Where the tables are: the warehouse, then these.
const CUSTOMERS_AT: usize = DISTRICT * (1 + DISTRICTS);
const STOCK_AT: usize = CUSTOMERS_AT + DISTRICTS * CUSTOMERS * CUSTOMER;
const ORDERS_AT: usize = STOCK_AT + ITEMS * STOCK;
const HISTORY_AT: usize = ORDERS_AT + DISTRICTS * CUSTOMERS * ORDER;
const BYTES: usize = (HISTORY_AT + HISTORIES * HISTORY).next_multiple_of(4096);

/// Words of a district: what was paid, the next order's number, the next one to be delivered.
fn district(number: usize) -> usize {
    DISTRICT * (1 + number)
}

fn customer(district: usize, number: usize) -> usize {
    CUSTOMERS_AT + (district * CUSTOMERS + number) * CUSTOMER
}

fn stock(item: usize) -> usize {
    STOCK_AT + item * STOCK
}

fn order(district: usize, number: u64) -> usize {
    ORDERS_AT + (district * CUSTOMERS + number as usize % CUSTOMERS) * ORDER
}

/// A stream of transactions, and what they must add up to.
struct Stream {
    random: Random,
    count: u64,
    paid: i64,
    quantity: i64,
    /// Amounts of orders that were delivered.
    delivered: i64,
    orders: u64,
}

fn word<T: Target>(target: &T, offset: usize) -> i64 {
    let mut bytes = [0; 8];
    target.read(offset, &mut bytes);
    i64::from_ne_bytes(bytes)
}

/// Declares words and gives them as such.
#[inline]
fn words<'a>(tx: &mut impl Declare, offset: usize, count: usize) -> &'a mut [i64] {
    let at = tx.declare(offset, count * 8);
    // SAFETY: so many declared bytes, aligned to 8, used by this thread alone until the transaction ends.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), count) }
}

impl Stream {
    fn new() -> Stream {
        Stream {
            random: Random(0x1234_5678_9ABC_DEF1),
            count: 0,
            paid: 0,
            quantity: 0,
            delivered: 0,
            orders: 0,
        }
    }

    fn new_order<T: Target>(&mut self, target: &mut T) {
        let (d, c) = (self.random.below(DISTRICTS), self.random.below(CUSTOMERS));
        let number = word(target, district(d) + 8) as u64;
        if number - word(target, district(d) + 16) as u64 == CUSTOMERS as u64 {
            // Nothing more is ordered before something is delivered.
            return self.delivery(target);
        }
        let lines = 5 + self.random.below(LINES_MAX - 4);
        let (random, count) = (&mut self.random, self.count as i64);
        let mut quantity = 0;
        target.transaction(|tx| {
            words(tx, district(d) + 8, 1)[0] += 1;
            let mut amount = 0;
            let of_order = words(tx, order(d, number), 8 + lines * LINE / 8);
            for line in of_order[8..].chunks_mut(LINE / 8) {
                let (item, n) = (random.below(ITEMS), 1 + random.below(10) as i64);
                line.copy_from_slice(&[item as i64, n, n * (item as i64 % 100 + 1), 0, count, 0, 0]);
                (quantity, amount) = (quantity + n, amount + line[2]);
            }
            of_order[..8].copy_from_slice(&[number as i64, c as i64, lines as i64, amount, 0, count, 0, 0]);
            for line in of_order[8..].chunks(LINE / 8) {
                // Quantity, ordered in all, orders.
                let of_stock = words(tx, stock(line[0] as usize), 3);
                of_stock[0] += if of_stock[0] < 10 { 91 } else { 0 } - line[1];
                of_stock[1] += line[1];
                of_stock[2] += 1;
            }
        });
        (self.quantity, self.orders) = (self.quantity + quantity, self.orders + 1);
    }

    fn payment<T: Target>(&mut self, target: &mut T) {
        let (d, c) = (self.random.below(DISTRICTS), self.random.below(CUSTOMERS));
        let (amount, bad_credit) = (1 + self.random.below(5000) as i64, self.random.below(10) == 0);
        let (count, history) = (self.count as i64, HISTORY_AT + self.count as usize % HISTORIES * HISTORY);
        target.transaction(|tx| {
            words(tx, 0, 1)[0] += amount;
            words(tx, district(d), 1)[0] += amount;
            // Balance, payments, their number.
            let of_customer = words(tx, customer(d, c), 3);
            of_customer[0] -= amount;
            of_customer[1] += amount;
            of_customer[2] += 1;
            if bad_credit {
                let data = words(tx, customer(d, c) + 128, 60);
                data.copy_within(..55, 5);
                data[..5].copy_from_slice(&[d as i64, c as i64, amount, count, 0]);
            }
            words(tx, history, 6).copy_from_slice(&[d as i64, c as i64, amount, count, 0, 0]);
        });
        self.paid += amount;
    }

    fn delivery<T: Target>(&mut self, target: &mut T) {
        let oldest: [Option<u64>; DISTRICTS] = std::array::from_fn(|d| {
            let (next, oldest) = (word(target, district(d) + 8), word(target, district(d) + 16));
            (oldest < next).then_some(oldest as u64)
        });
        let heads = oldest.map(|number| number.map(|_| ()));
        let heads: [Option<[i64; 3]>; DISTRICTS] = std::array::from_fn(|d| {
            heads[d].map(|()| [1, 2, 3].map(|i| word(target, order(d, oldest[d].unwrap_or(0)) + i * 8)))
        });
        let count = self.count as i64;
        let mut delivered = 0;
        target.transaction(|tx| {
            for (d, head) in heads.iter().enumerate() {
                let (Some([c, lines, amount]), Some(number)) = (*head, oldest[d]) else { continue };
                words(tx, district(d) + 16, 1)[0] += 1;
                words(tx, order(d, number) + 32, 1)[0] = count;
                for line in words(tx, order(d, number) + 64, lines as usize * LINE / 8).chunks_mut(LINE / 8) {
                    line[3] = count;
                }
                words(tx, customer(d, c as usize), 1)[0] += amount;
                words(tx, customer(d, c as usize) + 24, 1)[0] += 1;
                delivered += amount;
            }
        });
        self.delivered += delivered;
    }
}

impl Workload for Stream {
    const BATCH: u64 = 16;

    fn step<T: Target>(&mut self, target: &mut T) {
        self.count += 1;
        match self.random.below(92) {
            0..45 => self.new_order(target),
            45..88 => self.payment(target),
            _ => self.delivery(target),
        }
    }

    /// Payments, quantities, orders and balances must add up.
    fn check<T: Target>(&self, target: &T) -> Result<(), Failure> {
        let districts =
            |offset: usize| (0..DISTRICTS).map(|d| word(target, district(d) + offset)).sum::<i64>();
        let all = (0..DISTRICTS).flat_map(|d| (0..CUSTOMERS).map(move |c| customer(d, c)));
        let balances: i64 = all.map(|at| word(target, at)).sum();
        let quantities: i64 = (0..ITEMS).map(|item| word(target, stock(item) + 8)).sum();
        let found = [word(target, 0), districts(0), districts(8), quantities, balances];
        let expected = [self.paid, self.paid, self.orders as i64, self.quantity, self.delivered - self.paid];
        if found == expected {
            return Ok(());
        }
        Err(format!("{}: sums {found:?}, expected {expected:?}", T::NAME).into())
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    side_by_side("order-entry", arguments, BYTES, json!({"data_mb": BYTES >> 20}), Stream::new)
}
