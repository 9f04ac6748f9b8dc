//! Changes to a sound store, eight bytes each, and the mending of its checksums.

use crate::layout::{self, Part, u32_at, u64_at};
use crate::sample::{ADOPTED, Files, Kind, Sample, VICTIM, Works};
use std::collections::BTreeMap;

/// What a store is made of after the changes.
pub struct Changed {
    pub files: Files,
    /// Files that are longer than what is written of them: the rest is a hole.
    pub lengths: BTreeMap<String, u64>,
}

/// Values that formats trip over.
const VALUES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    24,
    32,
    40,
    56,
    63,
    64,
    65,
    88,
    128,
    255,
    256,
    512,
    1000,
    4095,
    4096,
    4097,
    8192,
    16384,
    32768,
    65535,
    65536,
    65537,
    131_072,
    262_144,
    1 << 20,
    1 << 24,
    (1 << 28) - 8,
    1 << 28,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64 - 7,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 47,
    1 << 52,
    1 << 62,
    i64::MAX as u64 - 131_072,
    i64::MAX as u64 - 65_535,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 65_535,
    u64::MAX - 4095,
    u64::MAX - 7,
    u64::MAX,
];

/// Lengths of files that are mostly holes. Opening a store makes room for its segments' holes: there is room for the
/// shorter ones, and for the last no medium has any.
const LENGTHS: &[u64] = &[1 << 17, 1 << 19, 1 << 21, 1 << 23, (1 << 24) + 1, 1 << 25, 1 << 40, 1 << 46];

struct Change {
    kind: u8,
    a: usize,
    b: usize,
    value: u32,
}

pub fn apply(sample: &Sample, works: &Works, input: &[u8]) -> Changed {
    let mut changed = Changed { files: sample.files.clone(), lengths: BTreeMap::new() };
    let parts = layout::parts(&sample.files);
    let records: Vec<_> = sample.files.get("log").map(|log| layout::records(log)).unwrap_or_default();
    let mut starts: Vec<(usize, usize)> = records.iter().map(|range| (range.start, range.len())).collect();
    for bytes in input.chunks_exact(8).take(24) {
        let change = Change {
            kind: bytes[0],
            a: bytes[1].into(),
            b: u16::from_le_bytes([bytes[2], bytes[3]]).into(),
            value: u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")),
        };
        changed.apply(&change, &parts, works, &mut starts);
    }
    // Mostly; what is refused for its checksum is tried elsewhere.
    if input.first().is_none_or(|first| first & 0x80 == 0) {
        mend(sample, &mut changed.files, &starts, !input.len().is_multiple_of(3));
    }
    changed
}

impl Changed {
    /// Bytes of the holes that opening may fill: of files for which no medium has room it fills none.
    pub fn holes(&self) -> u64 {
        self.lengths.values().filter(|len| **len < 1 << 40).sum()
    }

    fn apply(&mut self, change: &Change, parts: &[Part], works: &Works, starts: &mut Vec<(usize, usize)>) {
        let Change { kind, a, b, value } = *change;
        let nth = |files: &Files, n: usize| files.keys().nth(n % files.len()).cloned().expect("some file");
        match kind & 0x0F {
            0..=8 => self.field(&parts[(a + (b >> 8 << 8)) % parts.len()], kind, b & 0xFF, value),
            9 => {
                let file = self.files.get_mut(&nth(&self.files, a)).expect("it is there");
                let at = (b * 37 + value as usize % 64) % file.len().max(1);
                file.iter_mut().skip(at).zip(value.to_le_bytes()).for_each(|(byte, new)| *byte = new);
            }
            10 | 14 => self.catalog(works, a, b, value),
            11 => {
                let name = nth(&self.files, a);
                let file = self.files.get_mut(&name).expect("it is there");
                file.truncate(file.len() * (value as usize & 0xFFF) / 0x1000);
            }
            12 => _ = self.lengths.insert(nth(&self.files, a), LENGTHS[b % LENGTHS.len()]),
            13 if a % 4 == 0 && self.files.len() > 2 => {
                self.files.remove(&nth(&self.files, b));
            }
            13 => {
                let from = self.files[&nth(&self.files, a)].clone();
                self.files.insert(nth(&self.files, b), from);
            }
            _ => self.record(a, b, starts),
        }
    }

    /// Puts another value into a word.
    fn field(&mut self, part: &Part, kind: u8, slot: usize, value: u32) {
        let words = (part.range.len() / 4).max(1);
        let at = part.range.start + slot % words * 4;
        let Some(file) = self.files.get_mut(&part.file) else { return };
        let (old, len) = (u64_at(file, at), file.len() as u64);
        let chosen = value as usize >> 8;
        let new = match value & 7 {
            0 => old.wrapping_add(u64::from(value >> 8 & 0xFF)),
            1 => old.wrapping_sub(u64::from(value >> 8 & 0xFF)),
            2 => u64::from(value >> 8),
            3 => len.wrapping_sub(u64::from(value >> 8 & 0xFF) * 8),
            4 => old ^ 1 << (value >> 8 & 63),
            5 => u64_at(file, part.range.start + chosen % words * 4),
            _ => VALUES[chosen % VALUES.len()],
        };
        let wide = kind & 0x10 == 0;
        let bytes = new.to_le_bytes();
        let bytes = if wide { &bytes[..] } else { &bytes[..4] };
        file.iter_mut().skip(at).zip(bytes).for_each(|(byte, new)| *byte = *new);
    }

    /// Puts a copy of a record behind the last one.
    fn record(&mut self, a: usize, b: usize, starts: &mut Vec<(usize, usize)>) {
        let Some(log) = self.files.get_mut("log").filter(|_| !starts.is_empty()) else { return };
        let (from, len) = starts[a % starts.len()];
        let (last, last_len) = starts[starts.len() - 1];
        let to = last + last_len;
        if to + len > log.len() || from + len > log.len() {
            return;
        }
        let lsn = u64_at(log, last + 16) + last_len as u64;
        log.copy_within(from..from + len, to);
        log[to + 16..to + 24].copy_from_slice(&lsn.to_le_bytes());
        if b & 1 == 1 {
            log[to + 4] = (b >> 1) as u8 % 7;
        }
        starts.push((to, len));
    }

    /// Changes names and paths, which have lengths of their own.
    fn catalog(&mut self, works: &Works, a: usize, b: usize, value: u32) {
        let Some(mut catalog) = self.files.get("catalog").and_then(|bytes| Catalog::parse(bytes)) else {
            return;
        };
        let absolute = |name: &str| works.path(name).into_os_string().into_string().expect("ours");
        let paths = [
            absolute(VICTIM),
            absolute("s/stage"),
            absolute("s/log"),
            absolute("s/undo"),
            absolute("s/catalog"),
            absolute("s/../victim"),
            absolute("s/data.segment"),
            absolute(ADOPTED),
            absolute("nothing"),
            "../victim".into(),
            "stage".into(),
            "undo".into(),
            "log".into(),
            "lock".into(),
            "catalog".into(),
            "data.segment".into(),
            "data.sums".into(),
            "h.segment".into(),
            ".".into(),
            String::new(),
            "/dev/zero".into(),
            "/dev/full".into(),
            "/proc/self/mem".into(),
            "x".repeat(value as usize % 3000),
        ];
        let path = paths[value as usize % paths.len()].clone();
        let count = catalog.entries.len().max(1);
        match b % 8 {
            0 => catalog.log = path,
            1 | 2 => catalog.entries.iter_mut().skip(a % count).take(1).for_each(|e| e.path = path.clone()),
            3 => catalog.entries.iter_mut().skip(a % count).take(1).for_each(|e| {
                e.path = path.clone();
                e.fixed[24..32].fill(0);
            }),
            4 => catalog.entries.iter_mut().skip(a % count).take(1).for_each(|e| e.name = path.clone()),
            5 => {
                let twin = catalog.entries.get(a % count).cloned();
                catalog.entries.extend(twin);
            }
            6 => {
                let (mut added, next) = (catalog.entries.get(a % count).cloned(), catalog.next());
                added.iter_mut().for_each(|e| {
                    e.path = path.clone();
                    e.name.push('x');
                    e.fixed[..4].copy_from_slice(&next.to_le_bytes());
                });
                catalog.entries.extend(added);
                catalog.head[44..48].copy_from_slice(&next.wrapping_add(1).to_le_bytes());
            }
            _ => drop(catalog.entries.drain(..a % count)),
        }
        self.files.insert("catalog".into(), catalog.encode());
    }
}

/// A catalog as it stands in its file.
struct Catalog {
    head: [u8; 56],
    /// How often it was changed, in version 2.
    count: Vec<u8>,
    log: String,
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    fixed: [u8; 32],
    name: String,
    path: String,
}

impl Catalog {
    fn parse(bytes: &[u8]) -> Option<Catalog> {
        let text = |at: usize, len: usize| String::from_utf8(bytes.get(at..at + len)?.into()).ok();
        let u16_at = |at: usize| bytes.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
        let head = bytes.get(..56)?.try_into().ok()?;
        let counted = if u32_at(bytes, 8) == 2 { 8 } else { 0 };
        let count = bytes.get(56..56 + counted)?.to_vec();
        let mut at = 56 + counted + u16_at(48)?;
        let log = text(56 + counted, u16_at(48)?)?;
        let mut entries = Vec::new();
        for _ in 0..u32_at(bytes, 40).min(64) {
            let fixed = bytes.get(at..at + 32)?.try_into().ok()?;
            let (name, path) = (u16_at(at + 4)?, u16_at(at + 6)?);
            entries.push(Entry { fixed, name: text(at + 32, name)?, path: text(at + 32 + name, path)? });
            at += 32 + name + path;
        }
        Some(Catalog { head, count, log, entries })
    }

    fn next(&self) -> u32 {
        u32_at(&self.head, 44)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = [&self.head[..], &self.count, self.log.as_bytes()].concat();
        bytes[48..50].copy_from_slice(&(self.log.len() as u16).to_le_bytes());
        for entry in &self.entries {
            let at = bytes.len();
            bytes.extend([&entry.fixed[..], entry.name.as_bytes(), entry.path.as_bytes()].concat());
            bytes[at + 4..at + 6].copy_from_slice(&(entry.name.len() as u16).to_le_bytes());
            bytes[at + 6..at + 8].copy_from_slice(&(entry.path.len() as u16).to_le_bytes());
        }
        let (len, count) = (bytes.len() as u64, self.entries.len() as u32);
        bytes[32..40].copy_from_slice(&len.to_le_bytes());
        bytes[40..44].copy_from_slice(&count.to_le_bytes());
        bytes
    }
}

/// Makes every checksum right.
fn mend(sample: &Sample, files: &mut Files, records: &[(usize, usize)], trailers: bool) {
    for part in layout::sealed(files) {
        let bytes = &mut files.get_mut(&part.file).expect("it is there")[part.range];
        bytes[12..16].fill(0);
        let sum = crc32c::crc32c(bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    if let Some(log) = files.get_mut("log") {
        for (start, sound) in records {
            let claimed = (u32_at(log, start + 8) as usize).saturating_mul(8);
            let fits = claimed >= 40 && start + claimed <= log.len();
            let end = start + if fits { claimed } else { *sound };
            if end > log.len() {
                continue;
            }
            if trailers {
                log.copy_within(start + 8..start + 12, end - 8);
            }
            let sum = crc32c::crc32c(&log[start + 4..end]);
            log[*start..start + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    if let Some(undo) = files.get_mut("undo").filter(|_| sample.kind == Kind::Sealed) {
        mend_seals(undo);
    }
    for (name, bytes) in files.iter_mut() {
        if name.ends_with(".heap.segment") {
            mend_heap(bytes.get_mut(65536..).unwrap_or_default());
        }
    }
}

fn mend_seals(undo: &mut [u8]) {
    let generation = u64_at(undo, 32).max(u64_at(undo, 4096 + 32));
    let chunk_bytes = u32_at(undo, 56) as usize;
    for (number, start) in layout::undo_chunks(undo).into_iter().enumerate() {
        let owner = u64_at(undo, start + 8);
        let (first, ordinal, turn) = match owner >> 32 {
            0 => (number as u32, 0, (u64_at(undo, start) >> 32) as u32),
            one => ((one - 1) as u32, (u64_at(undo, start + 16) >> 32) as u32, owner as u32),
        };
        let words = [
            &generation.to_le_bytes()[..],
            &first.to_le_bytes(),
            &ordinal.to_le_bytes(),
            &turn.to_le_bytes(),
        ];
        let seed = crc32c::crc32c(&words.concat());
        let (mut at, end) = (start + 64, (start + chunk_bytes).min(undo.len()));
        while at + 24 <= end {
            let len = u32_at(undo, at + 4) as usize;
            let total = 16 + len.next_multiple_of(8);
            if len == 0 || at + total + 8 > end {
                break;
            }
            let sum = crc32c::crc32c_append(seed, &undo[at..at + total]);
            let seal = u64::from(turn) << 32 | u64::from(sum);
            undo[at + total..at + total + 8].copy_from_slice(&seal.to_le_bytes());
            at += total + 8;
        }
    }
}

fn check_of(values: impl IntoIterator<Item = u64>) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    values.into_iter().fold(u64::from_le_bytes(*b"CALI-HEA"), |check, value| mix(check ^ value))
}

fn mend_heap(meta: &mut [u8]) {
    if meta.len() < 65536 {
        return;
    }
    for root in 0..16 {
        let at = 4096 + root * 64;
        let words: Vec<u64> = (0..7).map(|word| u64_at(meta, at + word * 8)).collect();
        if words.iter().any(|word| *word != 0) {
            let check = check_of(words.into_iter().chain([at as u64]));
            meta[at + 56..at + 64].copy_from_slice(&check.to_le_bytes());
        }
    }
    for word in 0..5 * 88 {
        let at = 32768 + word * 8;
        let bits = u64_at(meta, at) & ((1 << 48) - 1);
        let sealed = if bits == 0 { 0 } else { bits | check_of([bits, at as u64]) << 48 };
        meta[at..at + 8].copy_from_slice(&sealed.to_le_bytes());
    }
}
