//! A token that is handed between two stores, never lost and never doubled, whatever crashes.
//!
//! Who gives it away says so in one transaction: it has it no more, and it is on its way under a new number. Who
//! receives a number that it does not know has it from then on. A giver that does not know whether it arrived
//! sends it again.
//!
//! `cargo run --example token -- ONE OTHER` hands the token over and says where it is.

use caliburn::{Class, Mode, Policy, Region, Store};

type Failure = Box<dyn std::error::Error>;

/// One that may hold the token.
pub struct Holder<'s> {
    store: &'s Store,
    memory: Region,
}

const HAS: usize = 0;
/// Number of the last handing over that it has seen, given or received.
const NUMBER: usize = 8;
/// The number under which it gave the token away.
const GIVEN: usize = 16;

impl<'s> Holder<'s> {
    /// Opens a holder. One of the two that are made for the first time has the token.
    pub fn open(store: &'s Store, first: bool) -> Result<Holder<'s>, Failure> {
        let new = store.segment("token").is_err();
        let memory = store.segment_or_create("token", 24)?.map_all()?;
        let holder = Holder { store, memory };
        if (new || holder.number() == 0) && first {
            holder.set(1, 1, 0)?;
        }
        Ok(holder)
    }

    /// Whether the token is here.
    pub fn has(&self) -> bool {
        self.memory.load::<u64>(HAS) == 1
    }

    /// Number of the last handing over that was seen.
    pub fn number(&self) -> u64 {
        self.memory.load(NUMBER)
    }

    fn set(&self, has: u64, number: u64, given: u64) -> Result<(), Failure> {
        let mut tx = self.store.begin(Mode::Restore)?;
        tx.store(&self.memory, HAS, &has)?;
        tx.store(&self.memory, NUMBER, &number)?;
        tx.store(&self.memory, GIVEN, &given)?;
        Ok(tx.commit(Class::Process)?)
    }

    /// Gives the token away.
    pub fn give(&self) -> Result<(), Failure> {
        assert!(self.has(), "only who has it can give it away");
        let number = self.number() + 1;
        self.set(0, number, number)
    }

    /// The number under which it is on its way, if it may be.
    pub fn on_its_way(&self) -> Option<u64> {
        Some(self.memory.load::<u64>(GIVEN))
            .filter(|given| *given == self.number() && !self.has() && *given > 0)
    }

    /// Receives the token, unless it was received before.
    pub fn receive(&self, number: u64) -> Result<(), Failure> {
        if number > self.number() { self.set(1, number, 0) } else { Ok(()) }
    }
}

#[allow(dead_code, reason = "the test uses what is above")]
fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, one, other] = &arguments[..] else { return Err("usage: token ONE OTHER".into()) };
    let open = |path| Store::options().create(true).policy(Policy::Undo).open(path);
    let (one, other) = (open(one)?, open(other)?);
    let (a, b) = (Holder::open(&one, true)?, Holder::open(&other, false)?);
    let (from, to) =
        if a.has() || a.on_its_way().is_some_and(|n| n > b.number()) { (&a, &b) } else { (&b, &a) };
    if from.has() {
        from.give()?;
    }
    to.receive(from.on_its_way().ok_or("the token is lost")?)?;
    println!("one: {}, other: {}, handed over {} times", a.has(), b.has(), to.number() - 1);
    Ok(())
}
