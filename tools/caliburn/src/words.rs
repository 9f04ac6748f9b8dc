//! The demonstration's data: a table of word counts that lives in recoverable memory in native form.
//!
//! ```text
//!   segment "table": | files | capacity | letters used | - | slot | slot | ...    slot: | hash | count | at | len |
//!   segment "letters": the words, one after the other; grows as needed
//! ```
//!
//! One transaction per file adds all its words and moves `files` on, so the table always shows a whole
//! number of files.

use caliburn::{Class, Mode, Region, Segment, Store, Transaction};
use caliburn_tools::Failure;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const FILES: usize = 0;
const CAPACITY: usize = 8;
const LETTERS: usize = 16;
const SLOTS: usize = 64;
const SLOT: usize = 32;
const LETTERS_STEP: u64 = 1 << 20;

/// The words of a text: letters and digits, in lower case.
pub fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase)
}

/// The text files under a directory, sorted: valid UTF-8 without zero bytes. Hidden entries, build
/// products and stores are left out.
pub fn text_files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        let store = folder.join("catalog").exists() && folder.join("stage").exists();
        for entry in std::fs::read_dir(&folder)?.filter(|_| !store) {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if kind.is_dir() && !hidden && entry.file_name() != "target" {
                folders.push(path);
            } else if kind.is_file() && !hidden && read_text(&path).is_some() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A file's text, if it is one.
pub fn read_text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok().filter(|b| b.len() < 16 << 20 && !b.contains(&0))?;
    String::from_utf8(bytes).ok()
}

fn hash(word: &str) -> u64 {
    // FNV-1a; any hash does that stays the same from run to run.
    word.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The table, mapped.
pub struct Table {
    table: Region,
    letters: Region,
    segment: Segment,
}

impl Table {
    /// Opens the table of a store, or makes one for `text_bytes` of text.
    pub fn open(store: &Store, text_bytes: u64) -> Result<Table, Failure> {
        let capacity = (text_bytes / 4).max(1024).next_power_of_two();
        let segment = store.segment_or_create("letters", LETTERS_STEP)?;
        let table = store.segment_or_create("table", SLOTS as u64 + capacity * SLOT as u64)?.map_all()?;
        if table.load::<u64>(CAPACITY) == 0 {
            let mut tx = store.begin(Mode::Restore)?;
            tx.store(&table, CAPACITY, &capacity)?;
            tx.commit(Class::Power)?;
        }
        Ok(Table { table, letters: segment.map_all()?, segment })
    }

    /// Files counted so far.
    pub fn files(&self) -> u64 {
        self.table.load(FILES)
    }

    /// Adds the words of one more file in one transaction.
    pub fn add(&self, store: &Store, text: &str, class: Class) -> Result<(), Failure> {
        let mut new = HashMap::<String, u64>::new();
        for word in words(text) {
            *new.entry(word).or_default() += 1;
        }
        let mut tx = store.begin(Mode::Restore)?;
        for (word, count) in &new {
            self.count(&mut tx, word, *count)?;
        }
        tx.store(&self.table, FILES, &(self.files() + 1))?;
        Ok(tx.commit(class)?)
    }

    fn count<'t>(&'t self, tx: &mut Transaction<'t>, word: &str, more: u64) -> Result<(), Failure> {
        let (capacity, hash) = (self.table.load::<u64>(CAPACITY), hash(word));
        for probe in 0..capacity {
            let slot = SLOTS + ((hash + probe) % capacity) as usize * SLOT;
            let [found, count, at, len] = self.table.load::<[u64; 4]>(slot);
            if count == 0 {
                let at = self.put_letters(tx, word)?;
                return Ok(tx.store(&self.table, slot, &[hash, more, at, word.len() as u64])?);
            }
            if found == hash && self.word(at, len) == word.as_bytes() {
                return Ok(tx.store(&self.table, slot + 8, &(count + more))?);
            }
        }
        Err("the word table is full".into())
    }

    fn put_letters<'t>(&'t self, tx: &mut Transaction<'t>, word: &str) -> Result<u64, Failure> {
        let at: u64 = self.table.load(LETTERS);
        let end = at + word.len() as u64;
        if end > self.letters.len() as u64 {
            // Growth is durable by itself; whether the transaction commits does not matter to it.
            self.segment.grow(end + LETTERS_STEP)?;
            self.letters.grow(self.segment.len() as usize)?;
        }
        tx.write(&self.letters, at as usize, word.as_bytes())?;
        tx.store(&self.table, LETTERS, &end)?;
        Ok(at)
    }

    fn word(&self, at: u64, len: u64) -> Vec<u8> {
        let mut word = vec![0; len as usize];
        self.letters.read(at as usize, &mut word);
        word
    }

    /// Every word with its count.
    pub fn counts(&self) -> HashMap<String, u64> {
        let capacity: u64 = self.table.load(CAPACITY);
        let slots = (0..capacity as usize).map(|i| self.table.load::<[u64; 4]>(SLOTS + i * SLOT));
        let used = slots.filter(|[_, count, ..]| *count > 0);
        used.map(|[_, count, at, len]| (String::from_utf8_lossy(&self.word(at, len)).into_owned(), count))
            .collect()
    }
}
