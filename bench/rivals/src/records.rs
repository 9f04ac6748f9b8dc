//! What a rival is: records under 64-bit keys, changed in transactions; and how the benchmarks' work is done on
//! it.

use caliburn_bench::target::{Declare, Failure, Target};
use std::cell::RefCell;

/// A database that several threads may use, each in a session of its own.
pub trait Database: Sync {
    /// A thread's way to it.
    fn session(&self) -> Box<dyn Session + Send + '_>;
}

/// What one thread does, one transaction after the other.
pub trait Session {
    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Copies a record out; whether it is there.
    fn get(&mut self, key: u64, value: &mut [u8]) -> Result<bool, Failure>;
    /// Where bytes are, declared to be changed in place, if the records are memory.
    fn declare(&mut self, key: u64, len: usize) -> Option<Result<*mut u8, Failure>> {
        let _ = (key, len);
        None
    }
    /// Stores a record.
    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Failure>;
    /// Takes a record out that is there.
    fn remove(&mut self, key: u64) -> Result<(), Failure>;
    /// Copies at most so many records out, from a key on in the order of keys, each to the same place; how many.
    fn scan(&mut self, from: u64, count: u64, value: &mut [u8]) -> Result<u64, Failure>;
    /// Commits.
    fn commit(&mut self) -> Result<(), Failure>;
}

/// First byte and length of the record that bytes are in.
pub type Shape = fn(context: usize, offset: usize, len: usize) -> (usize, usize);

/// Memory whose records are in a database: what is declared is read into a buffer, and stored at the commit.
pub struct Keyed<'d> {
    session: RefCell<Box<dyn Session + Send + 'd>>,
    shape: (Shape, usize),
    base: u64,
    buffers: Vec<Buffer>,
    used: usize,
}

struct Buffer {
    key: u64,
    // Words, so that the work finds its numbers aligned.
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    fn bytes(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: the words are there, and any bytes make words.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), len) }
    }
}

impl<'d> Keyed<'d> {
    /// The part of a database whose keys begin at `base`.
    pub fn new(database: &'d dyn Database, shape: (Shape, usize), base: u64) -> Keyed<'d> {
        Keyed { session: RefCell::new(database.session()), shape, base, buffers: Vec::new(), used: 0 }
    }

    /// Stores zeros in every record up to an offset, many in a transaction.
    pub fn fill(&mut self, end: usize) -> Result<(), Failure> {
        let session = self.session.get_mut();
        let (mut offset, mut zeros) = (0, vec![0; 1 << 20]);
        // A database that is memory has them.
        let len = (self.shape.0)(self.shape.1, 0, 1).1;
        session.begin()?;
        let there = session.get(self.base, &mut zeros[..len])?;
        session.commit()?;
        if there {
            return Ok(());
        }
        while offset < end {
            session.begin()?;
            let batch = (offset + (1 << 20)).min(end);
            while offset < batch {
                let (start, len) = (self.shape.0)(self.shape.1, offset, 1);
                session.put(self.base + start as u64, &zeros[..len])?;
                offset = start + len;
            }
            session.commit()?;
        }
        Ok(())
    }
}

/// Its transaction.
pub struct KeyedTx<'a, 'd>(&'a mut Keyed<'d>);

impl Declare for KeyedTx<'_, '_> {
    fn declare(&mut self, offset: usize, len: usize) -> *mut u8 {
        let keyed = &mut *self.0;
        let session = keyed.session.get_mut();
        if let Some(at) = session.declare(keyed.base + offset as u64, len) {
            return at.expect("the memory can be changed");
        }
        let (start, whole) = (keyed.shape.0)(keyed.shape.1, offset, len);
        assert!(offset >= start && offset + len <= start + whole, "a range is within a record");
        let key = keyed.base + start as u64;
        let known = keyed.buffers[..keyed.used].iter().position(|buffer| buffer.key == key);
        let at = known.unwrap_or_else(|| {
            if keyed.used == keyed.buffers.len() {
                keyed.buffers.push(Buffer { key: 0, words: Vec::new(), len: 0 });
            }
            let buffer = &mut keyed.buffers[keyed.used];
            (buffer.key, buffer.len) = (key, whole);
            buffer.words.resize(buffer.words.len().max(whole.div_ceil(8)), 0);
            // A record of which all is declared is stored anew.
            let anew = (start, whole) == (offset, len);
            if !anew && !session.get(key, buffer.bytes()).expect("the database can be read") {
                buffer.bytes().fill(0);
            }
            keyed.used += 1;
            keyed.used - 1
        });
        keyed.buffers[at].bytes()[offset - start..].as_mut_ptr()
    }
}

impl<'d> Target for Keyed<'d> {
    const NAME: &'static str = "a rival";
    const POLICY: &'static str = "its own";

    type Tx<'a>
        = KeyedTx<'a, 'd>
    where
        Self: 'a;

    fn transaction(&mut self, change: impl FnOnce(&mut KeyedTx<'_, 'd>)) {
        self.session.get_mut().begin().expect("a transaction begins");
        self.used = 0;
        change(&mut KeyedTx(self));
        let session = self.session.get_mut();
        for buffer in &mut self.buffers[..self.used] {
            let key = buffer.key;
            session.put(key, buffer.bytes()).expect("the database can be changed");
        }
        session.commit().expect("a transaction commits");
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        let (start, len) = (self.shape.0)(self.shape.1, offset, target.len());
        let mut session = self.session.borrow_mut();
        let mut record = vec![0; len];
        session.begin().expect("a transaction begins");
        let found = session.get(self.base + start as u64, &mut record).expect("the database can be read");
        assert!(found, "the record at {start} is not there");
        session.commit().expect("a transaction commits");
        target.copy_from_slice(&record[offset - start..][..target.len()]);
    }
}
