//! The catalog: which segments a store has, where they are, how long, and at which address the segment
//! loader maps them. One small file, replaced atomically and durably at every change.

use crate::storage::copies::LogCopy;
use crate::storage::directory::{LOG, OTHER_LOG, SHADOW};
use crate::storage::segment;
use caliburn_log::SegmentId;
use caliburn_log::format::{
    self, CATALOG_MAGIC, COUNT_MAX, COUNTED_CATALOG, CatalogEntry, CatalogHeader, Defect, FIRST_GENERATION,
    SEGMENT_DATA, VERSION,
};
use caliburn_os::host::Id;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What the catalog says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Catalog {
    pub store: Id,
    /// The number of its recovery policy.
    pub policy: u16,
    pub log_path: PathBuf,
    /// Where the log is instead, if it has, or had, two media: a file of its own says so.
    pub copies: Vec<LogCopy>,
    pub next: u32,
    /// How often it was changed, from 1; 0 in a store that has no [generations](super::generations).
    pub count: u64,
    /// With the shadow policy, whether segments have sums beside them.
    pub sums: bool,
    pub segments: Vec<Entry>,
}

/// One segment. Paths are relative to the store unless absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub id: SegmentId,
    pub name: String,
    pub path: PathBuf,
    pub len: u64,
    pub address: u64,
    /// Where its data begin in the file.
    pub data: u64,
}

impl Entry {
    /// Of a file that is nothing but data, named after it. Its length is not known yet.
    pub fn external(id: u32, path: PathBuf) -> Entry {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = file.chars().filter(|c| good(*c)).take(200).collect();
        let name = format!("adopted-{id}-{name}");
        Entry { id: SegmentId(id), name, path, len: 0, address: 0, data: 0 }
    }

    /// Whether its file is nothing but data: taken over as it was, by
    /// [`Store::adopt_segment`](crate::Store::adopt_segment).
    pub fn is_external(&self) -> bool {
        self.data == 0
    }
}

impl Catalog {
    /// The version of its format.
    pub fn version(&self) -> u32 {
        if self.count == 0 { VERSION } else { COUNTED_CATALOG }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; size_of::<CatalogHeader>()];
        if self.count > 0 {
            out.extend_from_slice(&self.count.to_le_bytes());
        }
        let log_path = self.log_path.as_os_str().as_bytes();
        out.extend_from_slice(log_path);
        for entry in &self.segments {
            let path = entry.path.as_os_str().as_bytes();
            let fixed = CatalogEntry {
                id: entry.id.0.into(),
                name: (entry.name.len() as u16).into(),
                path: (path.len() as u16).into(),
                len: entry.len.into(),
                address: entry.address.into(),
                data: entry.data.into(),
            };
            out.extend_from_slice(fixed.as_bytes());
            out.extend_from_slice(entry.name.as_bytes());
            out.extend_from_slice(path);
        }
        let header = CatalogHeader {
            len: (out.len() as u64).into(),
            count: (self.segments.len() as u32).into(),
            next: self.next.into(),
            log_path: (log_path.len() as u16).into(),
            policy: self.policy.into(),
            sums: u32::from(self.sums).into(),
            ..CatalogHeader::new_zeroed()
        };
        out[..size_of::<CatalogHeader>()].copy_from_slice(header.as_bytes());
        format::seal_as(&mut out, CATALOG_MAGIC, self.version(), self.store);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Catalog, (u64, Defect)> {
        let short = |at: usize| {
            (at as u64, Defect::Value(format!("the file ends after {} bytes: it was cut off", bytes.len())))
        };
        let (header, _) = CatalogHeader::read_from_prefix(bytes).map_err(|_| short(0))?;
        let versions = [VERSION, COUNTED_CATALOG];
        let preamble = match format::unseal_any(bytes, CATALOG_MAGIC, &versions, "catalog", None) {
            Err(Defect::Checksum) if header.len.get() != bytes.len() as u64 => Err(short(0)),
            other => other.map_err(|defect| (0, defect)),
        }?;
        let mut at = size_of::<CatalogHeader>();
        let mut take = |len: usize| {
            let part = bytes.get(at..at + len).ok_or_else(|| short(at));
            at += len;
            part
        };
        let count = match preamble.version.get() {
            COUNTED_CATALOG => u64::from_le_bytes(take(8)?.try_into().expect("eight bytes")),
            _ => 0,
        };
        let counted = preamble.version == COUNTED_CATALOG;
        if counted && !(FIRST_GENERATION..COUNT_MAX).contains(&count) {
            return Err((0, Defect::Value(format!("it is said to have been changed {count} times"))));
        }
        let log_path = PathBuf::from(OsStr::from_bytes(take(header.log_path.get().into())?));
        let mut segments = Vec::new();
        for _ in 0..header.count.get() {
            let fixed =
                CatalogEntry::read_from_bytes(take(size_of::<CatalogEntry>())?).expect("the size is right");
            let name = String::from_utf8_lossy(take(fixed.name.get().into())?).into_owned();
            let path = PathBuf::from(OsStr::from_bytes(take(fixed.path.get().into())?));
            segments.push(Entry {
                id: SegmentId(fixed.id.get()),
                name,
                path,
                len: fixed.len.get(),
                address: fixed.address.get(),
                data: fixed.data.get(),
            });
        }
        let (policy, next) = (header.policy.get(), header.next.get());
        let copies = Vec::new();
        let sums = match header.sums.get() {
            0 => false,
            1 => true,
            other => {
                return Err((
                    0,
                    Defect::Value(format!("its segments are said to have sums of kind {other}")),
                ));
            }
        };
        let catalog =
            Catalog { store: preamble.store, policy, log_path, copies, next, count, sums, segments };
        catalog.validate().map_err(|text| (0, Defect::Value(text)))?;
        Ok(catalog)
    }

    /// Refuses what this program never writes: its checksum is right, but somebody else made it.
    fn validate(&self) -> Result<(), String> {
        let log = &self.log_path;
        if !log.as_os_str().is_empty()
            && !log.is_absolute()
            && ![LOG, OTHER_LOG, SHADOW].map(Path::new).contains(&&**log)
        {
            return Err(format!("the log is said to be {log:?}, neither in the store nor an absolute path"));
        }
        let (mut ids, mut names, mut paths) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for entry in &self.segments {
            let of = |what: String| format!("segment {:?}: {what}", entry.name);
            if segment::check_name(&entry.name).is_err() {
                return Err(of("that is no name of a segment".into()));
            }
            if !names.insert(&*entry.name) || !ids.insert(entry.id.0) || !paths.insert(&*entry.path) {
                return Err(of("its name, its number or its file is another one's, too".into()));
            }
            if entry.id.0 >= self.next {
                return Err(of(format!("its number, {}, was not given out yet", entry.id.0)));
            }
            let own = entry.path == segment::default_path(&entry.name);
            if !entry.path.is_absolute() && (!own || entry.is_external()) {
                return Err(of(format!(
                    "its file, {:?}, is neither the store's nor an absolute path",
                    entry.path
                )));
            }
            if ![0, SEGMENT_DATA].contains(&entry.data) {
                return Err(of(format!("its data begin at {}, where none do", entry.data)));
            }
            if !segment::is_len(entry.len, entry.is_external()) {
                return Err(of(format!("it is said to have {} bytes", entry.len)));
            }
        }
        Ok(())
    }

    /// Where a path of the catalog is.
    pub fn resolve(store: &Path, path: &Path) -> PathBuf {
        store.join(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Catalog {
        let entry = |id, name: &str| Entry {
            id: SegmentId(id),
            name: name.into(),
            path: format!("{name}.segment").into(),
            len: 1 << 40,
            address: 77 << 20,
            data: 65536,
        };
        Catalog {
            store: [3; 16],
            policy: 1,
            log_path: "/dev/x".into(),
            copies: Vec::new(),
            next: 9,
            count: 5,
            sums: false,
            segments: vec![entry(1, "a"), entry(8, "b.c")],
        }
    }

    #[test]
    fn round_trip() {
        for count in [0, 1, 5, COUNT_MAX - 1] {
            for sums in [false, true] {
                let catalog = Catalog { count, sums, ..sample() };
                assert_eq!(Catalog::decode(&catalog.encode()).unwrap(), catalog);
            }
        }
    }

    #[test]
    fn every_corner_of_an_entry_comes_back() {
        let names = ["a".to_owned(), "z".repeat(200)];
        let paths = [String::new(), "/dev/x".to_owned(), format!("/{}", "p".repeat(4000))];
        for (log_path, policy) in
            paths.iter().flat_map(|path| [0, 1, 2, u16::MAX].map(|policy| (path, policy)))
        {
            for (id, name) in
                [0, 1, u32::MAX - 1].into_iter().flat_map(|id| names.each_ref().map(|name| (id, name)))
            {
                for (len, address, data) in [(65536, 0, 65536), (1 << 62, u64::MAX, 65536), (512, 0, 0)] {
                    let path = if data == 0 { "/x".into() } else { format!("{name}.segment").into() };
                    let entry = Entry { id: SegmentId(id), name: name.clone(), path, len, address, data };
                    let log_path = log_path.into();
                    let one = Catalog { next: id + 1, segments: vec![entry], policy, log_path, ..sample() };
                    assert_eq!(Catalog::decode(&one.encode()), Ok(one.clone()));
                    let none = Catalog { segments: Vec::new(), ..one };
                    assert_eq!(Catalog::decode(&none.encode()), Ok(none));
                }
            }
        }
    }

    #[test]
    fn what_no_program_of_ours_writes_is_refused_though_its_checksum_is_right() {
        let refused = |what: &str, change: &dyn Fn(&mut Catalog)| {
            let mut catalog = sample();
            change(&mut catalog);
            let error = Catalog::decode(&catalog.encode()).expect_err(what).1.to_string();
            println!("{what}: {error}");
        };
        for path in ["../a.segment", "stage", "log", "b.segment", "", "a.segment/.."] {
            refused(path, &|c| c.segments[0].path = path.into());
        }
        for path in ["../log", "stage", "catalog", "a.segment"] {
            refused(path, &|c| c.log_path = path.into());
        }
        for name in ["", "../a", "b.c", ".a", "\u{1b}[2J", "a/b"] {
            refused(name, &|c| {
                c.segments[0].name = name.into();
                c.segments[0].path = format!("{name}.segment").into();
            });
        }
        refused("an adopted file in the store", &|c| c.segments[0].data = 0);
        refused("data elsewhere", &|c| c.segments[0].data = u64::MAX - 5);
        refused("a number twice", &|c| c.segments[1].id = SegmentId(1));
        refused("a number not given out", &|c| c.next = 8);
        for count in [COUNT_MAX, u64::MAX] {
            refused("changed too often", &|c| c.count = count);
        }
        for len in [0, 1, 65536 + 512, u64::MAX, u64::MAX - 65535, i64::MAX as u64] {
            refused("a length", &|c| c.segments[0].len = len);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Catalog::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            let (_, defect) = Catalog::decode(&good[..len]).unwrap_err();
            assert!(defect.to_string().contains("cut off"), "{len}: {defect}");
        }
    }
}
