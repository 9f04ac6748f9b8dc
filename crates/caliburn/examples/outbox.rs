//! An outbox (Vista, section 3.2: transactions that communicate): messages that arrive exactly once, whatever
//! crashes. The sender puts a message into its outbox in the transaction that causes it, and sends what is
//! there again and again until it is acknowledged; the receiver takes a message and notes its number in one
//! transaction, and ignores numbers that it knows.
//!
//! `cargo run --example outbox -- SENDER RECEIVER COUNT` sends so many messages from one store to another.

use caliburn::{Class, Mode, Policy, Region, Store};

type Failure = Box<dyn std::error::Error>;

/// Messages that fit the outbox.
const ROOM: u64 = 64;

/// The sending side: how many messages there were, how many of them were acknowledged, and those in between.
pub struct Sender<'s> {
    store: &'s Store,
    memory: Region,
}

impl<'s> Sender<'s> {
    /// Opens the outbox of a store.
    pub fn open(store: &'s Store) -> Result<Sender<'s>, Failure> {
        Ok(Sender { store, memory: store.segment_or_create("outbox", 16 + ROOM * 8)?.map_all()? })
    }

    /// Messages so far.
    pub fn written(&self) -> u64 {
        self.memory.load(0)
    }

    fn acknowledged(&self) -> u64 {
        self.memory.load(8)
    }

    fn slot(number: u64) -> usize {
        16 + (number % ROOM) as usize * 8
    }

    /// Puts a message into the outbox; false if it is full.
    pub fn put(&self, message: u64) -> Result<bool, Failure> {
        let number = self.written();
        if number - self.acknowledged() == ROOM {
            return Ok(false);
        }
        let mut tx = self.store.begin(Mode::Restore)?;
        tx.store(&self.memory, Sender::slot(number), &message)?;
        tx.store(&self.memory, 0, &(number + 1))?;
        tx.commit(Class::Process)?;
        Ok(true)
    }

    /// What is to be sent, with numbers from 1.
    pub fn pending(&self) -> Vec<(u64, u64)> {
        (self.acknowledged()..self.written()).map(|n| (n + 1, self.memory.load(Sender::slot(n)))).collect()
    }

    /// The receiver has all up to a number.
    pub fn acknowledge(&self, number: u64) -> Result<(), Failure> {
        let mut tx = self.store.begin(Mode::Restore)?;
        tx.store(&self.memory, 8, &number.max(self.acknowledged()))?;
        Ok(tx.commit(Class::Process)?)
    }
}

/// The receiving side: the number of the last message, and here the sum of all.
pub struct Receiver<'s> {
    store: &'s Store,
    memory: Region,
}

impl<'s> Receiver<'s> {
    /// Opens the inbox of a store.
    pub fn open(store: &'s Store) -> Result<Receiver<'s>, Failure> {
        Ok(Receiver { store, memory: store.segment_or_create("inbox", 16)?.map_all()? })
    }

    /// Sum of all messages.
    pub fn sum(&self) -> u64 {
        self.memory.load(8)
    }

    /// Takes a message, unless it came before; the number to be acknowledged.
    pub fn take(&self, number: u64, message: u64) -> Result<u64, Failure> {
        let last: u64 = self.memory.load(0);
        if number != last + 1 {
            return Ok(last);
        }
        let mut tx = self.store.begin(Mode::Restore)?;
        tx.store(&self.memory, 0, &number)?;
        tx.store(&self.memory, 8, &(self.sum() + message))?;
        tx.commit(Class::Process)?;
        Ok(number)
    }
}

#[allow(dead_code, reason = "the test uses what is above")]
fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, from, to, count] = &arguments[..] else {
        return Err("usage: outbox SENDER RECEIVER COUNT".into());
    };
    let open = |path| Store::options().create(true).policy(Policy::Undo).open(path);
    let (from, to) = (open(from)?, open(to)?);
    let (sender, receiver) = (Sender::open(&from)?, Receiver::open(&to)?);
    for message in 1..=count.parse()? {
        while !sender.put(message)? {
            for (number, message) in sender.pending() {
                sender.acknowledge(receiver.take(number, message)?)?;
            }
        }
    }
    for (number, message) in sender.pending() {
        sender.acknowledge(receiver.take(number, message)?)?;
    }
    println!(
        "{} messages were sent since the stores were made; the receiver's sum is {}",
        sender.written(),
        receiver.sum()
    );
    Ok(())
}
