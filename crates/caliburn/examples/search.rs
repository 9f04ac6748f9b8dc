//! A full-text index with ranked search. A document is one transaction: it is found by all of its words, or by
//! none.
//!
//! `cargo run --release -p caliburn --example search -- STORE index DIR`, then `search -- STORE find WORD...`

use caliburn::prelude::*;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A document that was indexed.
#[derive(Recoverable)]
#[repr(C)]
pub struct Document {
    path: PString,
    words: u64,
}

/// Where a word is.
#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
pub struct Posting {
    document: u32,
    count: u32,
}

/// The index.
#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Index {
    documents: PVec<Document>,
    /// Which documents there are already.
    paths: PHashMap<PString, u32>,
    words: PHashMap<PString, PVec<Posting>>,
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| word.len() > 1).map(str::to_lowercase)
}

/// Adds a document, unless it is there. Whether it was added.
pub fn add(index: &Objects<Index>, path: &str, text: &str) -> Result<bool, caliburn::Error> {
    if index.read().paths.contains_key(path) {
        return Ok(false);
    }
    let mut counts = HashMap::<String, u32>::new();
    words(text).for_each(|word| *counts.entry(word).or_default() += 1);
    let total: u64 = counts.values().copied().map(u64::from).sum();
    index.transact_in(Class::Process, |mut index| {
        let mut index = index.fields();
        let document = index.documents.len() as u32;
        index.documents.push(DocumentInit { path, words: total });
        index.paths.insert(path, document);
        for (word, count) in counts {
            index.words.entry(word).or_default().push(Posting { document, count });
        }
        Ok(true)
    })
}

/// The documents that have the words, the best first, with their scores (term frequency by inverse document
/// frequency).
pub fn find(index: &Objects<Index>, query: &str) -> Vec<(f64, String)> {
    let index = index.read();
    let mut scores = HashMap::<u32, f64>::new();
    for word in words(query) {
        let Some(postings) = index.words.get(word.as_str()) else { continue };
        let rarity = (1.0 + index.documents.len() as f64 / postings.len() as f64).ln();
        for posting in postings {
            let share = f64::from(posting.count) / index.documents[posting.document as usize].words as f64;
            *scores.entry(posting.document).or_default() += share * rarity;
        }
    }
    let named = |(document, score): (u32, f64)| (score, index.documents[document as usize].path.to_string());
    let mut found: Vec<_> = scores.into_iter().map(named).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found
}

/// Text files below a directory.
pub fn text_files(top: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut left, mut files) = (vec![top.to_owned()], Vec::new());
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let text =
                path.extension().is_some_and(|e| ["rs", "md", "c", "h", "txt"].iter().any(|t| e == *t));
            match kind.is_dir() {
                true if !hidden && path.file_name().is_some_and(|name| name != "target") => left.push(path),
                false if text => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [store, "index", top] => {
            let index = Objects::<Index>::create(store)?;
            for path in text_files(Path::new(top))? {
                if let Ok(text) = fs::read_to_string(&path) {
                    add(&index, &path.to_string_lossy(), &text)?;
                }
            }
            println!("{} documents, {} words", index.read().documents.len(), index.read().words.len());
        }
        [store, "find", query @ ..] => {
            let index = Objects::<Index>::create(store)?;
            find(&index, &query.join(" "))
                .iter()
                .take(10)
                .for_each(|(score, path)| println!("{score:.4} {path}"));
        }
        _ => return Err("usage: search STORE index DIR | search STORE find WORD...".into()),
    }
    Ok(())
}
