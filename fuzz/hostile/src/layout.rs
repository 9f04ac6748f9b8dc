//! Where the structures of a store stand, as docs/format.md has it: what is worth changing, and what carries a
//! checksum that is to be mended.

use crate::sample::Files;
use std::ops::Range;

/// Part of a file.
#[derive(Debug, Clone)]
pub struct Part {
    pub file: String,
    pub range: Range<usize>,
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("four bytes")))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
}

fn status(bytes: &[u8]) -> usize {
    if u64_at(bytes, 32) >= u64_at(bytes, 4096 + 32) { 0 } else { 4096 }
}

/// The records of a log that is sound: where each begins on the medium. None of a small log has wrapped.
pub fn records(log: &[u8]) -> Vec<Range<usize>> {
    let (head, capacity) = (u64_at(log, status(log) + 48), u64_at(log, status(log) + 40));
    let mut found = Vec::new();
    let mut lsn = head;
    loop {
        let at = 65536 + (lsn % capacity) as usize;
        let len = u32_at(log, at + 8) as usize * 8;
        if u64_at(log, at + 16) != lsn || len < 40 || at + len > log.len() {
            return found;
        }
        found.push(at..at + len);
        lsn += len as u64;
    }
}

/// The chunks of the stage that hold something, with how much.
fn staged(stage: &[u8]) -> Vec<Range<usize>> {
    let (chunk_bytes, chunks) = (u64_at(stage, 48) as usize, u64_at(stage, 56) as usize);
    let start = |chunk: usize| 4096 + chunk * chunk_bytes;
    let filled = (0..chunks).map(|chunk| (start(chunk), u64_at(stage, start(chunk)) as usize));
    filled.filter(|(_, len)| *len > 0).map(|(at, len)| at..at + 64 + len).collect()
}

/// The chunks of undo logs that a process has used.
pub fn undo_chunks(undo: &[u8]) -> Vec<usize> {
    let chunk_bytes = u32_at(undo, status(undo) + 56) as usize;
    let made = u64_at(undo, 8192).min(64) as usize;
    let all = (0..made).map(|chunk| chunk_bytes.saturating_mul(chunk).saturating_add(65536));
    all.filter(|at| undo.get(*at..at.saturating_add(128)).is_some_and(|head| head.iter().any(|b| *b != 0)))
        .collect()
}

/// What is worth changing word by word.
pub fn parts(files: &Files) -> Vec<Part> {
    let mut parts = Vec::new();
    for (file, bytes) in files {
        let mut add = |range: Range<usize>| {
            let range = range.start..range.end.min(bytes.len());
            if range.start + 8 <= range.end {
                parts.push(Part { file: file.clone(), range });
            }
        };
        match file.as_str() {
            "prepared" => add(0..bytes.len()),
            "catalog" => (0..4).for_each(|_| add(0..bytes.len())),
            "log" => {
                add(status(bytes)..status(bytes) + 104);
                add(4096 - status(bytes)..4096 - status(bytes) + 104);
                for record in records(bytes).into_iter().rev().take(12) {
                    add(record.start..record.end.min(record.start + 160));
                    add(record.end - 8..record.end);
                }
            }
            "stage" => {
                add(0..64);
                add(128..136);
                add(256..312);
                add(2048..2064);
                for chunk in staged(bytes) {
                    add(chunk.start..chunk.start + 8);
                    add(chunk.start + 64..chunk.end.min(chunk.start + 400));
                }
            }
            "undo" => {
                add(status(bytes)..status(bytes) + 96);
                add(4096 - status(bytes)..4096 - status(bytes) + 96);
                add(8192..8200);
                for chunk in undo_chunks(bytes) {
                    add(chunk..chunk + 24);
                    add(chunk + 64..chunk + 400);
                }
            }
            "generations" => {
                add(status(bytes)..status(bytes) + 128);
                add(4096 - status(bytes)..4096 - status(bytes) + 128);
                add(8192..8192 + 128);
            }
            _ if file.ends_with(".heap.segment") => {
                add(0..48);
                add(4096..4144);
                add(65536..65536 + 24);
                add(65536 + 4096..65536 + 4096 + 512);
                add(65536 + 32768..65536 + 32768 + 5 * 88 * 8);
            }
            _ if file.ends_with(".segment") => {
                add(0..48);
                add(4096..4144);
            }
            _ if file.ends_with(".sums") => {
                add(0..128);
                add(512..560);
            }
            _ => {}
        }
    }
    parts
}

/// Blocks that carry a checksum over themselves.
pub fn sealed(files: &Files) -> Vec<Part> {
    let mut parts = Vec::new();
    for (file, bytes) in files {
        let blocks: &[(usize, usize)] = match file.as_str() {
            "catalog" | "prepared" => &[(0, bytes.len())],
            "log" | "undo" | "generations" => &[(0, 4096), (4096, 8192)],
            "stage" => &[(0, 64)],
            _ if file.ends_with(".segment") => &[(0, 4096), (4096, 4144), (4608, 4656)],
            _ if file.ends_with(".sums") => &[(0, 40), (512, 560), (1024, 1072)],
            _ => &[],
        };
        let blocks = blocks.iter().map(|(start, end)| *start..*end);
        let whole = blocks.filter(|block| block.end <= bytes.len() && block.len() >= 16);
        parts.extend(whole.map(|range| Part { file: file.clone(), range }));
    }
    parts
}
