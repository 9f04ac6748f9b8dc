//! The catalog: which segments a store has, where they are, how long, and at which address the segment
//! loader maps them. One small file, replaced atomically and durably at every change.

use caliburn_log::SegmentId;
use caliburn_log::format::{self, CATALOG_MAGIC, CatalogEntry, CatalogHeader, Defect};
use caliburn_os::host::Id;
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
    pub next: u32,
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
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; size_of::<CatalogHeader>()];
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
            ..CatalogHeader::new_zeroed()
        };
        out[..size_of::<CatalogHeader>()].copy_from_slice(header.as_bytes());
        format::seal(&mut out, CATALOG_MAGIC, self.store);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Catalog, (u64, Defect)> {
        let short = |at: usize| {
            (at as u64, Defect::Value(format!("the file ends after {} bytes: it was cut off", bytes.len())))
        };
        let (header, _) = CatalogHeader::read_from_prefix(bytes).map_err(|_| short(0))?;
        let preamble = match format::unseal(bytes, CATALOG_MAGIC, "catalog", None) {
            Err(Defect::Checksum) if header.len.get() != bytes.len() as u64 => Err(short(0)),
            other => other.map_err(|defect| (0, defect)),
        }?;
        let mut at = size_of::<CatalogHeader>();
        let mut take = |len: usize| {
            let part = bytes.get(at..at + len).ok_or_else(|| short(at));
            at += len;
            part
        };
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
        Ok(Catalog { store: preamble.store, policy, log_path, next, segments })
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
            next: 9,
            segments: vec![entry(1, "a"), entry(8, "b.c")],
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Catalog::decode(&sample().encode()).unwrap(), sample());
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
