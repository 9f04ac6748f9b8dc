//! Bytes of a file, in pages that clones share: thousands of pictures of a disk cost little more than one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// Bytes of a page; a file's pages that are all zero are not kept.
pub const PAGE: usize = 4096;

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE],
    hash: OnceLock<u64>,
}

impl Clone for Page {
    /// Made to be changed: the hash is forgotten.
    fn clone(&self) -> Page {
        Page { bytes: self.bytes, hash: OnceLock::new() }
    }
}

/// A file's bytes.
#[derive(Debug, Clone, Default)]
pub struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// A file that holds `bytes`.
    pub fn of(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Makes it `len` bytes long if it is shorter.
    pub fn extend(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Overwrites, extending where needed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.extend(offset + bytes.len() as u64);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, within) = (at / PAGE as u64, at as usize % PAGE);
            let (now, later) = rest.split_at(rest.len().min(PAGE - within));
            let zeros = now.iter().all(|b| *b == 0);
            if !zeros || self.pages.contains_key(&number) {
                let empty = || Arc::new(Page { bytes: [0; PAGE], hash: OnceLock::new() });
                let page = Arc::make_mut(self.pages.entry(number).or_insert_with(empty));
                page.hash = OnceLock::new();
                page.bytes[within..within + now.len()].copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Copies what stands at `offset`; false if it ends before the buffer does.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if offset + buffer.len() as u64 > self.len {
            return false;
        }
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let (number, within) = (at / PAGE as u64, at as usize % PAGE);
            let (now, later) = rest.split_at_mut(rest.len().min(PAGE - within));
            match self.pages.get(&number) {
                Some(page) => now.copy_from_slice(&page.bytes[within..within + now.len()]),
                None => now.fill(0),
            }
            at += now.len() as u64;
            rest = later;
        }
        true
    }

    /// Copies what stands at `offset`; zeros beyond the end.
    pub fn clone_range(&self, offset: u64, buffer: &mut [u8]) {
        let inside = self.len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (known, beyond) = buffer.split_at_mut(inside);
        beyond.fill(0);
        self.read(offset, known);
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// The pages that are kept, with their offsets.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(number, page)| (number * PAGE as u64, &page.bytes[..]))
    }

    /// The first byte at which `memory` differs, which may be longer only by zeros.
    pub fn differs(&self, memory: &[u8]) -> Option<usize> {
        memory.chunks(PAGE).enumerate().find_map(|(number, part)| {
            let zeros = [0; PAGE];
            let page = self.pages.get(&(number as u64)).map_or(&zeros, |page| &page.bytes);
            if part == &page[..part.len()] {
                return None;
            }
            Some(number * PAGE + part.iter().zip(page).position(|(a, b)| a != b)?)
        })
    }
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        for (number, page) in &self.pages {
            let hash = page.hash.get_or_init(|| {
                let mut hasher = DefaultHasher::new();
                page.bytes.hash(&mut hasher);
                hasher.finish()
            });
            if page.bytes.iter().any(|b| *b != 0) {
                (number, hash).hash(state);
            }
        }
    }
}
