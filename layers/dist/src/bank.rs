//! A bank: accounts with amounts, and a receipt for whatever was added. The server of the demo, of tests and of
//! measurements, and an example of one.
//!
//! ```text
//!   account:   amount | how many receipts | the place of these in the heap, and one
//!   receipts:  one after the other; when there is no room for another one, twice as much is allocated
//! ```

use crate::node::call::{Call, Mode};
use crate::node::{Builder, Node};
use crate::proto::bank::bank_client::BankClient;
use crate::proto::bank::bank_server::{Bank as BankService, BankServer};
use crate::proto::bank::{
    AddReply, AddRequest, MoveRequest, ShowReply, ShowRequest, TotalReply, TotalRequest,
};
use caliburn_engine::zerocopy::IntoBytes;
use caliburn_heap::Place;
use tonic::{Request, Response, Status};

/// Accounts of a bank.
pub const ACCOUNTS: u32 = 128;
/// What each has at first.
pub const FIRST: i64 = 1_000;

const ACCOUNT: usize = 32;
const SEGMENT: &str = "bank";
const HEAP: &str = "receipts";
/// Bytes of receipts, of all accounts.
const RECEIPTS: u64 = 64 << 20;

/// Adds what a bank needs to a node that is to run.
pub fn segment(node: Builder) -> Builder {
    node.segment(SEGMENT, u64::from(ACCOUNTS) * ACCOUNT as u64).heap(HEAP, RECEIPTS)
}

/// The service of a node that has a bank.
pub fn service(node: &Node) -> BankServer<impl BankService> {
    BankServer::new(Bank(node.clone()))
}

struct Bank(Node);

#[tonic::async_trait]
impl BankService for Bank {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddReply>, Status> {
        self.0.run(request, |call, request| add(call, &request)).await
    }

    async fn r#move(&self, request: Request<MoveRequest>) -> Result<Response<AddReply>, Status> {
        let moved = self.0.run(request, |call, MoveRequest { from, to, account }| {
            let AddRequest { amount, receipt, account: own } = from.unwrap_or_default();
            let left = call.nest(|call| add(call, &AddRequest { account: own, amount: -amount, receipt }))?;
            call.outward(async |tx| {
                let there = tx.to(&to).map_err(|error| Status::not_found(error.to_string()))?;
                BankClient::new(there).add(AddRequest { account, amount, receipt }).await
            })?;
            Ok(left)
        });
        moved.await
    }

    async fn show(&self, request: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        let shown = self.0.run(request, |call, ShowRequest { account }| {
            let (bank, at) = (call.region(SEGMENT)?, place(account)?);
            let balance = call.load::<i64>(bank, at)? + FIRST;
            Ok(ShowReply { balance, receipts: receipts(call, at)? })
        });
        shown.await
    }

    async fn total(&self, request: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        let total = self.0.run(request, |call, TotalRequest {}| {
            let bank = call.region(SEGMENT)?;
            let mut total = TotalReply::default();
            for account in 0..ACCOUNTS as usize {
                let at = account * ACCOUNT;
                total.amount += call.load::<i64>(bank, at)? + FIRST;
                total.receipts.extend(receipts(call, at)?);
            }
            Ok(total)
        });
        total.await
    }
}

/// Where an account is.
fn place(account: u32) -> Result<usize, Status> {
    match account < ACCOUNTS {
        true => Ok(account as usize * ACCOUNT),
        false => Err(Status::not_found(format!("accounts are 0 to {}", ACCOUNTS - 1))),
    }
}

/// The receipts of an account.
fn receipts(call: &mut Call<'_, '_>, at: usize) -> Result<Vec<u64>, Status> {
    let [count, place]: [u64; 2] = call.load(call.region(SEGMENT)?, at + 8)?;
    let start = place.saturating_sub(1) as usize;
    let bytes = call.read(call.heap(HEAP)?.region(), start..start + count as usize * 8)?;
    let receipt = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    Ok(bytes.chunks(8).map(receipt).collect())
}

/// Keeps a receipt.
fn keep(call: &mut Call<'_, '_>, at: usize, receipt: u64) -> Result<(), Status> {
    let (bank, heap) = (call.region(SEGMENT)?, call.heap(HEAP)?);
    let [count, place]: [u64; 2] = call.load(bank, at + 8)?;
    let used = count as usize * 8;
    let old = place.checked_sub(1).map(Place);
    let place = match old {
        Some(place) if heap.usable_len(place).is_ok_and(|len| len > used) => place,
        _ => {
            let new = call.allocate(heap, (2 * used).max(64))?;
            if let Some(old) = old {
                let before = receipts(call, at)?;
                call.write(heap.region(), new.0 as usize, before.as_bytes())?;
                call.free(heap, old)?;
            }
            new
        }
    };
    call.store(heap.region(), place.0 as usize + used, &receipt)?;
    call.store(bank, at + 8, &[count + 1, place.0 + 1])
}

/// Adds to an account.
fn add(call: &mut Call<'_, '_>, request: &AddRequest) -> Result<AddReply, Status> {
    let AddRequest { account, amount, receipt } = *request;
    let bank = call.region(SEGMENT)?;
    let at = place(account)?;
    // For changing at once: two that had read it would wait for each other.
    call.lock(bank, at..at + ACCOUNT, Mode::Exclusive)?;
    // Kept as what was added since the first day, so that a new segment of zeros is a bank.
    let balance = call.load::<i64>(bank, at)?.checked_add(amount);
    let balance = balance.filter(|balance| *balance >= -FIRST);
    let balance = balance.ok_or_else(|| Status::failed_precondition("there is not so much"))?;
    call.store(bank, at, &balance)?;
    if receipt != 0 {
        keep(call, at, receipt)?;
    }
    Ok(AddReply { balance: balance + FIRST })
}
