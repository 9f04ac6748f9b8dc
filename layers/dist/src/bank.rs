//! A bank: accounts with amounts, and a receipt for whatever was added. The server of the demo, of tests and of
//! measurements, and an example of one.
//!
//! ```text
//!   account:  amount | receipts, how many | receipt | receipt | ...      16 KiB each
//! ```

use crate::node::call::{Call, Mode};
use crate::node::{Builder, Node};
use crate::proto::bank::bank_client::BankClient;
use crate::proto::bank::bank_server::{Bank as BankService, BankServer};
use crate::proto::bank::{AddReply, AddRequest, MoveRequest, TotalReply, TotalRequest};
use tonic::{Request, Response, Status};

/// Accounts of a bank.
pub const ACCOUNTS: u32 = 128;
/// What each has at first.
pub const FIRST: i64 = 1_000;

const ACCOUNT: usize = 16_384;
const RECEIPTS: u64 = (ACCOUNT as u64 - 16) / 8;
const SEGMENT: &str = "bank";

/// Adds what a bank needs to a node that is to run.
pub fn segment(node: Builder) -> Builder {
    node.segment(SEGMENT, u64::from(ACCOUNTS) * ACCOUNT as u64)
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

    async fn total(&self, request: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        let total = self.0.run(request, |call, TotalRequest {}| {
            let bank = call.region(SEGMENT)?;
            let mut total = TotalReply::default();
            for account in 0..ACCOUNTS as usize {
                let at = account * ACCOUNT;
                total.amount += call.load::<i64>(bank, at)? + FIRST;
                let count: u64 = call.load(bank, at + 8)?;
                let receipts = call.read(bank, at + 16..at + 16 + count as usize * 8)?;
                let receipt = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                total.receipts.extend(receipts.chunks(8).map(receipt));
            }
            Ok(total)
        });
        total.await
    }
}

/// Adds to an account.
fn add(call: &mut Call<'_, '_>, request: &AddRequest) -> Result<AddReply, Status> {
    let AddRequest { account, amount, receipt } = *request;
    let bank = call.region(SEGMENT)?;
    if account >= ACCOUNTS {
        return Err(Status::not_found(format!("accounts are 0 to {}", ACCOUNTS - 1)));
    }
    let at = account as usize * ACCOUNT;
    // For changing at once: two that had read it would wait for each other.
    call.lock(bank, at..at + ACCOUNT, Mode::Exclusive)?;
    // Kept as what was added since the first day, so that a new segment of zeros is a bank.
    let balance = call.load::<i64>(bank, at)?.checked_add(amount);
    let balance = balance.filter(|balance| *balance >= -FIRST);
    let balance = balance.ok_or_else(|| Status::failed_precondition("there is not so much"))?;
    call.store(bank, at, &balance)?;
    if receipt != 0 {
        let count: u64 = call.load(bank, at + 8)?;
        if count == RECEIPTS {
            return Err(Status::resource_exhausted("the account has no room for receipts"));
        }
        call.store(bank, at + 16 + count as usize * 8, &receipt)?;
        call.store(bank, at + 8, &(count + 1))?;
    }
    Ok(AddReply { balance: balance + FIRST })
}
