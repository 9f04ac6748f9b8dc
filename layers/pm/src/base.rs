//! The base segment: which segments there are and where, twice (*Persistent Memory for HP-UX*, section 3).
//!
//! Invariant: a change writes one copy, forces it, then writes the other one. At any moment one of the two is whole;
//! if both are and differ, the one with the greater sequence counts. A copy that does not count is written first;
//! and before that, what is seen of the other one is forced, since who wrote it may have died before it was.
//!
//! Invariant: what was read is checked once, in [`Base::decode`]: names are unique and short, extents lie in the
//! region and meet no others, and segments are as long as their extents allow.

use crate::error::{Error, Result, medium_error};
use crate::format::{
    BLOCKS, BaseHeader, COPY, DATA, EXTENTS, ExtentRecord, HEAD, MAGIC, NAME, PLAIN, SEGMENTS, SegmentRecord,
    UNIT_MAX, UNIT_MIN, VERSION,
};
use crate::geometry::Geometry;
use crate::memory::Memory;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::unless;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Units of a part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub segment: u64,
    pub part: u32,
    pub start: u32,
    pub units: u32,
}

/// A segment, as the base has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentState {
    pub id: u64,
    pub name: String,
    pub kind: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub flags: u32,
    pub block_bytes: u32,
    pub lanes: u32,
    pub len: u64,
    pub address: u64,
    pub created: u64,
    pub written: u64,
    pub writer: String,
    pub boot: Id,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub region: Id,
    pub sequence: u64,
    pub unit: u32,
    pub len: u64,
    pub next_id: u64,
    pub segments: Vec<SegmentState>,
    pub extents: Vec<Extent>,
}

/// Text in a field of so many bytes, with zeros behind it.
fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut len = text.len().min(N);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// The text in a field.
fn text(field: &[u8]) -> Option<String> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    Some(std::str::from_utf8(&field[..len]).ok()?.to_owned())
}

/// Whether a segment may be called so.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let why = match name {
        "" => "a name has at least one character",
        _ if name.len() > NAME => "a name has at most 64 bytes",
        _ if name.chars().any(|c| c.is_control() || c == '/') => {
            "a name has neither control characters nor slashes"
        }
        _ => return Ok(()),
    };
    Err(Error::invalid("the name", format!("{name:?}"), why))
}

impl Base {
    /// Bytes before the first unit.
    pub fn before_units(unit: u32) -> u64 {
        (2 * COPY as u64).next_multiple_of(u64::from(unit))
    }

    /// How many units there are.
    pub fn units(&self) -> u32 {
        units(self.len, self.unit)
    }

    /// Units of parts, one after the other, in bytes of the medium.
    pub fn bytes_of(&self, segment: u64, part: u32) -> Vec<Range<u64>> {
        let (before, unit) = (Base::before_units(self.unit), u64::from(self.unit));
        let of = self.extents.iter().filter(|extent| extent.segment == segment && extent.part == part);
        of.map(|extent| {
            let start = before + u64::from(extent.start) * unit;
            start..start + u64::from(extent.units) * unit
        })
        .collect()
    }

    pub fn find(&self, name: &str) -> Option<&SegmentState> {
        self.segments.iter().find(|segment| segment.name == name)
    }

    pub fn find_mut(&mut self, id: u64) -> Option<&mut SegmentState> {
        self.segments.iter_mut().find(|segment| segment.id == id)
    }

    /// A copy, as it stands in the region.
    pub fn encode(&self) -> Vec<u8> {
        let records: Vec<SegmentRecord> = self.segments.iter().map(SegmentState::record).collect();
        let extents: Vec<ExtentRecord> = self.extents.iter().map(Extent::record).collect();
        let mut header = BaseHeader {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            bytes: 0.into(),
            unit: self.unit.into(),
            sequence: self.sequence.into(),
            region: self.region,
            len: self.len.into(),
            next_id: self.next_id.into(),
            segments: (records.len() as u32).into(),
            extents: (extents.len() as u32).into(),
            reserved: [0; 56],
        };
        let body = [records.as_bytes(), extents.as_bytes()].concat();
        header.bytes = ((size_of::<BaseHeader>() + body.len()) as u32).into();
        let sum = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), &body);
        header.checksum = sum.into();
        [header.as_bytes(), &body].concat()
    }

    /// What a copy says, if it can be believed.
    pub fn decode(copy: &[u8], medium_len: u64) -> Result<Base, String> {
        let (header, _) = BaseHeader::read_from_prefix(copy).map_err(|_| "cut short".to_owned())?;
        if header.magic != MAGIC {
            return Err("no base segment".into());
        }
        if header.version.get() != VERSION {
            return Err(format!("of version {}, and this program knows {VERSION}", header.version));
        }
        let (bytes, head) = (header.bytes.get() as usize, size_of::<BaseHeader>());
        let (segments, extents) = (header.segments.get() as usize, header.extents.get() as usize);
        let wanted = segments
            .checked_mul(size_of::<SegmentRecord>())
            .and_then(|s| extents.checked_mul(size_of::<ExtentRecord>())?.checked_add(s)?.checked_add(head));
        if wanted != Some(bytes) || bytes > copy.len() || segments > SEGMENTS || extents > EXTENTS {
            return Err(format!("{bytes} bytes, with {segments} segments and {extents} extents"));
        }
        let mut plain = header;
        plain.checksum = 0.into();
        let sum = crc32c::crc32c_append(crc32c::crc32c(plain.as_bytes()), &copy[head..bytes]);
        if unless("base-sum-not-checked", sum != header.checksum.get()) {
            return Err("its checksum does not match".into());
        }
        let middle = head + segments * size_of::<SegmentRecord>();
        let records =
            <[SegmentRecord]>::ref_from_bytes(&copy[head..middle]).map_err(|_| "cut short".to_owned())?;
        let lies =
            <[ExtentRecord]>::ref_from_bytes(&copy[middle..bytes]).map_err(|_| "cut short".to_owned())?;
        let base = Base {
            region: header.region,
            sequence: header.sequence.get(),
            unit: header.unit.get(),
            len: header.len.get(),
            next_id: header.next_id.get(),
            segments: records.iter().map(SegmentState::of).collect::<Result<_, String>>()?,
            extents: lies.iter().map(Extent::of).collect(),
        };
        base.check(medium_len)?;
        Ok(base)
    }

    /// Whether it is one that this program would have written.
    fn check(&self, medium_len: u64) -> Result<(), String> {
        if !self.unit.is_power_of_two() || !(UNIT_MIN..=UNIT_MAX).contains(&self.unit) {
            return Err(format!("units of {} bytes", self.unit));
        }
        if self.len > medium_len || self.len < Base::before_units(self.unit) {
            return Err(format!("a region of {} bytes, and the medium has {medium_len}", self.len));
        }
        let mut taken: Vec<(u32, u32)> = Vec::with_capacity(self.extents.len());
        for Extent { segment, part, start, units, .. } in &self.extents {
            let end = start.checked_add(*units).filter(|end| *end <= self.units() && *units > 0);
            let owner = self.segments.iter().any(|s| s.id == *segment);
            let (Some(end), true, DATA | HEAD) = (end, owner, *part) else {
                return Err(format!("units {start} and {units} more of segment number {segment}"));
            };
            taken.push((*start, end));
        }
        taken.sort_unstable();
        if let Some([_, second]) = taken.array_windows().find(|[first, second]| first.1 > second.0) {
            return Err(format!("two segments with unit {}", second.0));
        }
        for (i, segment) in self.segments.iter().enumerate() {
            let again = self.segments[..i].iter().any(|s| s.name == segment.name || s.id == segment.id);
            if again || segment.id >= self.next_id || check_name(&segment.name).is_err() {
                return Err(format!("a segment named {:?}, number {}", segment.name, segment.id));
            }
            self.check_segment(segment)?;
        }
        Ok(())
    }

    fn check_segment(&self, segment: &SegmentState) -> Result<(), String> {
        let bytes =
            |part| self.bytes_of(segment.id, part).iter().map(|part| part.end - part.start).sum::<u64>();
        let (data, head) = (bytes(DATA), bytes(HEAD));
        let fits = match segment.kind {
            PLAIN => segment.len <= data && head == 0 && segment.len > 0,
            BLOCKS => Geometry::of(segment.block_bytes, segment.lanes, segment.len)
                .is_ok_and(|geometry| geometry.head_bytes() <= head && geometry.data_bytes() <= data),
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(format!("segment {:?} of {} bytes, which it does not have", segment.name, segment.len))
        }
    }
}

/// How many units a region of so many bytes has.
pub(crate) fn units(len: u64, unit: u32) -> u32 {
    (len.saturating_sub(Base::before_units(unit)) / u64::from(unit)).min(u64::from(u32::MAX)) as u32
}

impl Extent {
    fn record(&self) -> ExtentRecord {
        ExtentRecord {
            segment: self.segment.into(),
            part: self.part.into(),
            start: self.start.into(),
            units: self.units.into(),
            reserved: 0.into(),
        }
    }

    fn of(record: &ExtentRecord) -> Extent {
        Extent {
            segment: record.segment.get(),
            part: record.part.get(),
            start: record.start.get(),
            units: record.units.get(),
        }
    }
}

impl SegmentState {
    fn record(&self) -> SegmentRecord {
        SegmentRecord {
            id: self.id.into(),
            name: field(&self.name),
            kind: self.kind.into(),
            mode: self.mode.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            flags: self.flags.into(),
            block_bytes: self.block_bytes.into(),
            len: self.len.into(),
            lanes: self.lanes.into(),
            reserved: 0.into(),
            address: self.address.into(),
            created: self.created.into(),
            written: self.written.into(),
            writer: field(&self.writer),
            boot: self.boot,
        }
    }

    fn of(record: &SegmentRecord) -> Result<SegmentState, String> {
        let name = text(&record.name).ok_or("a name that is not UTF-8")?;
        Ok(SegmentState {
            id: record.id.get(),
            name,
            kind: record.kind.get(),
            mode: record.mode.get(),
            uid: record.uid.get(),
            gid: record.gid.get(),
            flags: record.flags.get(),
            block_bytes: record.block_bytes.get(),
            lanes: record.lanes.get(),
            len: record.len.get(),
            address: record.address.get(),
            created: record.created.get(),
            written: record.written.get(),
            writer: text(&record.writer).unwrap_or_default(),
            boot: record.boot,
        })
    }
}

/// The two copies.
#[derive(Debug)]
pub(crate) struct Copies {
    memory: Memory,
    medium: Arc<dyn Medium>,
}

/// What the copies say.
pub(crate) struct Found {
    pub base: Base,
    /// Of each, why it does not count.
    pub damage: [Option<String>; 2],
}

impl Copies {
    pub fn new(memory: Memory, medium: Arc<dyn Medium>) -> Copies {
        Copies { memory, medium }
    }

    /// A copy, as far as it says that it goes.
    fn copy(&self, at: usize) -> Vec<u8> {
        let mut header = BaseHeader::new_zeroed();
        self.memory.read(at, header.as_mut_bytes());
        let mut copy = vec![0; (header.bytes.get() as usize).clamp(size_of::<BaseHeader>(), COPY)];
        self.memory.read(at, &mut copy);
        copy
    }

    /// Has the second copy not count any more: the region is about to be made anew.
    pub fn forget_second(&self) -> Result<()> {
        self.memory.write(COPY, &[0; size_of::<BaseHeader>()]);
        self.memory.force()
    }

    /// What counts.
    pub fn read(&self, path: &Path) -> Result<Found> {
        // Another process may have made it longer.
        let len = self.medium.len().map_err(|source| medium_error("find the length of", path, source))?;
        match [0, COPY].map(|at| Base::decode(&self.copy(at), len)) {
            [Ok(one), Ok(two)] if one == two => Ok(Found { base: one, damage: [None, None] }),
            [Ok(one), Ok(two)] if one.sequence == two.sequence || one.region != two.region => {
                let why = || "both copies are whole, and they differ".to_owned();
                Err(Error::Damaged { path: path.to_owned(), first: why(), second: why() })
            }
            [Ok(one), Ok(two)] => {
                let newer = one.sequence > two.sequence;
                let old = || Some("it is older than the other one".to_owned());
                Ok(match newer {
                    true => Found { base: one, damage: [None, old()] },
                    false => Found { base: two, damage: [old(), None] },
                })
            }
            [Ok(one), Err(why)] => Ok(Found { base: one, damage: [None, Some(why)] }),
            [Err(why), Ok(two)] => Ok(Found { base: two, damage: [Some(why), None] }),
            [Err(first), Err(second)] if first == second && first.starts_with("no base") => {
                Err(Error::NotARegion {
                    path: path.to_owned(),
                    why: format!("{first}; `caliburn-pm create` makes one"),
                })
            }
            [Err(first), Err(_)] if first.starts_with("of version") => {
                Err(Error::NotARegion { path: path.to_owned(), why: first })
            }
            [Err(first), Err(second)] => Err(Error::Damaged { path: path.to_owned(), first, second }),
        }
    }

    /// Writes a base that counts from now on, whatever happens meanwhile. Of what was found, one copy may not count.
    pub fn write(&self, base: &Base, damage: &[Option<String>; 2]) -> Result<()> {
        let copy = base.encode();
        let second_is_bad = unless("bad-copy-written-last", damage[1].is_some());
        let (first, second) = if second_is_bad { (COPY, 0) } else { (0, COPY) };
        if unless("second-base-not-forced", true) {
            self.memory.seen(second, COPY);
            self.memory.force()?;
        }
        self.memory.write(first, &copy);
        if unless("second-base-at-once", true) {
            self.memory.force()?;
        }
        self.memory.write(second, &copy);
        self.memory.force()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every corner of a base: what has no segment, segments with the longest names and writers, the last numbers.
    #[test]
    fn what_was_written_is_read_at_every_corner() {
        let names = ["a".to_owned(), "z".repeat(NAME), "\u{fc}".repeat(NAME / 2)];
        for (unit, sequence) in
            [UNIT_MIN, UNIT_MAX].into_iter().flat_map(|unit| [0, 1, u64::MAX - 1].map(|s| (unit, s)))
        {
            let len = Base::before_units(unit) + 8 * u64::from(unit);
            for (id, address, mode) in [(0, 0, 0), (1, 1 << 46, 0o777), (u64::MAX - 9, u64::MAX, u32::MAX)] {
                let segment = |i: usize| SegmentState {
                    id: id + i as u64,
                    name: names[i].clone(),
                    kind: PLAIN,
                    mode,
                    uid: mode,
                    gid: mode,
                    flags: mode,
                    block_bytes: 0,
                    lanes: 0,
                    len: if i == 0 { 1 } else { u64::from(unit) },
                    address,
                    created: address,
                    written: address,
                    writer: "w".repeat(if mode == 0 { 0 } else { 40 }),
                    boot: [mode as u8; 16],
                };
                let extent =
                    |i: usize| Extent { segment: id + i as u64, part: DATA, start: [0, 7, 3][i], units: 1 };
                let base = Base {
                    region: [mode as u8; 16],
                    sequence,
                    unit,
                    len,
                    next_id: id + 3,
                    segments: (0..3).map(segment).collect(),
                    extents: (0..3).map(extent).collect(),
                };
                assert_eq!(Base::decode(&base.encode(), len).unwrap(), base);
                let none = Base { segments: Vec::new(), extents: Vec::new(), ..base };
                assert_eq!(Base::decode(&none.encode(), len).unwrap(), none);
            }
        }
        assert!(
            Base::decode(&[0; COPY], u64::MAX).is_err() && Base::decode(&[0xFF; COPY], u64::MAX).is_err()
        );
    }

    #[test]
    fn texts_end_where_their_fields_do() {
        for name in ["", "a", "\u{1f5e1}"] {
            assert_eq!(text(&field::<NAME>(name)).as_deref(), Some(name));
        }
        assert_eq!(text(&field::<4>("abc\u{fc}")).as_deref(), Some("abc"));
        assert!(
            check_name("a\0").is_err()
                && check_name("").is_err()
                && check_name(&"n".repeat(NAME + 1)).is_err()
        );
    }
}
