//! A region: memory that outlives the system, cut into segments.

use crate::about::{RegionInfo, RegionOptions, SegmentInfo, SegmentKind, SegmentOptions, info_of};
use crate::base::{Base, Copies, Found, SegmentState, check_name};
use crate::claim::{Claim, Claims};
use crate::error::{Error, Result, medium_error};
use crate::format::{
    BLOCKS, COPY, DATA, HEAD, MAGIC, MAKING, PLAIN, PROTECTED, SEGMENTS, UNIT_MAX, UNIT_MIN, WRITING,
};
use crate::geometry::Geometry;
use crate::kind::Kind;
use crate::memory::{Memory, Source};
use crate::space;
use caliburn_os::clock::wall_ns;
use caliburn_os::descriptors;
use caliburn_os::host;
use caliburn_os::mapped::MappedFiles;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::unless;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory that outlives the system, cut into segments.
#[derive(Debug)]
pub struct Region {
    path: PathBuf,
    pub(crate) source: Source,
    write: bool,
    /// Read and changed by one thread at a time; by one process at a time, the [`Claims`] see to that.
    copies: Mutex<Copies>,
    claims: Arc<Claims>,
}

impl Region {
    /// Makes a region on a device, or in a file, which is made if it is missing.
    ///
    /// # Errors
    /// Where there is a region already, unless `force` says that it may go.
    pub fn create(path: impl AsRef<Path>, options: &RegionOptions) -> Result<Region> {
        Region::create_on(&MappedFiles, path.as_ref(), options)
    }

    /// The same, on media that may be simulated.
    pub fn create_on(media: &dyn Media, path: &Path, options: &RegionOptions) -> Result<Region> {
        let fail = |action| move |source| medium_error(action, path, source);
        let found = match media.exists(path) {
            true => Some(media.open(path, true).map_err(fail("open"))?),
            false => None,
        };
        let there =
            found.as_ref().map_or(Ok(0), |medium| medium.len()).map_err(fail("find the length of"))?;
        let len = match options.len {
            Some(len) => len,
            None if there > 0 => there,
            None => return Err(Error::invalid("a length of", 0, "say how many bytes the region is to have")),
        };
        let unit = options.unit.unwrap_or(if len < 1 << 30 { UNIT_MIN } else { 2 << 20 });
        check_region(len, unit)?;
        let (is_new, medium) = match found {
            Some(medium) => (false, medium),
            None => (true, media.create(path).map_err(fail("create"))?),
        };
        // Which memory it is, is known when it is open.
        let unit = options.unit.unwrap_or(unit.max(grain_of(&*medium)));
        check_region(len, unit)?;
        check_grain(&*medium, unit)?;
        // Who else makes one there has looked before, or sees it.
        let _alone = Claims::of(path, medium.clone()).alone()?;
        check_empty(&*medium, options.force)?;
        make_room(&*medium, len)?;
        // Before the base says how long it is.
        medium.sync().map_err(fail("force"))?;
        if is_new {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            media.sync_directory(above).map_err(fail("force the directory of"))?;
        }
        let region = Region::on(path, medium, true)?;
        let base = Base {
            region: host::random_id().map_err(fail("find an identity for"))?,
            sequence: 1,
            unit,
            len,
            next_id: 1,
            segments: Vec::new(),
            extents: Vec::new(),
        };
        region.copies().forget_second()?;
        region.copies().write(&base, &[None, None])?;
        Ok(region)
    }

    /// Opens a region.
    pub fn open(path: impl AsRef<Path>) -> Result<Region> {
        Region::open_on(&MappedFiles, path.as_ref(), true)
    }

    /// Opens a region to look at it.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Region> {
        Region::open_on(&MappedFiles, path.as_ref(), false)
    }

    /// The same, on media that may be simulated.
    pub fn open_on(media: &dyn Media, path: &Path, write: bool) -> Result<Region> {
        let medium = media.open(path, write).map_err(|source| medium_error("open", path, source))?;
        let region = Region::on(path, medium, write)?;
        let found = region.settled()?;
        check_grain(&*region.source.medium, found.base.unit)?;
        for (number, why) in found.damage.iter().enumerate().filter_map(|(n, why)| Some((n, why.as_ref()?))) {
            tracing::warn!(path = %path.display(), copy = number, why, "a copy of the base segment does not count");
        }
        if write {
            region.tidy()?;
        }
        Ok(region)
    }

    fn on(path: &Path, medium: Arc<dyn Medium>, write: bool) -> Result<Region> {
        let len = medium.len().map_err(|source| medium_error("find the length of", path, source))?;
        if len < (2 * COPY as u64).max(medium.grain() as u64) {
            let why = format!("it has {len} bytes, too few for a region");
            return Err(Error::NotARegion { path: path.to_owned(), why });
        }
        let source = Source::new(medium.clone());
        let memory = Memory::map(&source, std::slice::from_ref(&(0..2 * COPY as u64)), None, write)?;
        let claims = Claims::of(path, medium.clone());
        let (path, copies) = (path.to_owned(), Mutex::new(Copies::new(memory, medium)));
        Ok(Region { path, source, write, copies, claims })
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The base as it is now.
    pub(crate) fn base(&self) -> Result<Base> {
        Ok(self.settled()?.base)
    }

    /// The base as it is now, and what is wrong with its copies, if nobody is changing it.
    fn settled(&self) -> Result<Found> {
        let copies = self.copies();
        for _ in 0..8 {
            // Who reads does not keep others from changing it: one of the copies is whole all the time.
            match copies.read(&self.path) {
                Ok(found) if found.damage == [None, None] => return Ok(found),
                _ => std::thread::yield_now(),
            }
        }
        let _shared = self.claims.base_to_read()?;
        copies.read(&self.path)
    }

    /// Changes the base: wholly, or not at all.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Base) -> Result<T>) -> Result<T> {
        if !self.write {
            return Err(Error::ReadOnly(format!("the region {}", self.path.display())));
        }
        let copies = self.copies();
        let _alone = self.claims.base_to_change()?;
        let Found { mut base, damage } = copies.read(&self.path)?;
        let done = change(&mut base)?;
        base.sequence += 1;
        copies.write(&base, &damage)?;
        Ok(done)
    }

    /// What a crash has left: copies that differ, segments that were being made, or getting longer.
    fn tidy(&self) -> Result<()> {
        let copies = self.copies();
        let _alone = self.claims.base_to_change()?;
        let Found { mut base, damage } = copies.read(&self.path)?;
        let left = |s: &SegmentState| s.flags & MAKING != 0 && self.claims.is_free(s.id);
        let gone: Vec<u64> = base.segments.iter().filter(|s| left(s)).map(|s| s.id).collect();
        let grew = |s: &SegmentState| {
            unless("killed-growth-kept", space::has_surplus(&base, s)) && self.claims.is_free(s.id)
        };
        let grew: Vec<u64> = base.segments.iter().filter(|s| grew(s)).map(|s| s.id).collect();
        if gone.is_empty() && grew.is_empty() && damage == [None, None] {
            return Ok(());
        }
        grew.into_iter().for_each(|id| space::take_back_surplus(&mut base, id));
        base.segments.retain(|s| !gone.contains(&s.id));
        base.extents.retain(|e| !gone.contains(&e.segment));
        base.sequence += 1;
        copies.write(&base, &damage)
    }

    /// What the region is.
    pub fn info(&self) -> Result<RegionInfo> {
        let found = self.settled()?;
        let medium_len = self
            .source
            .medium
            .len()
            .map_err(|source| medium_error("find the length of", &self.path, source))?;
        Ok(RegionInfo {
            id: found.base.region,
            len: found.base.len,
            medium_len,
            unit: found.base.unit,
            free: space::free_bytes(&found.base),
            kind: Kind::of(&*self.source.medium),
            damage: found.damage,
        })
    }

    /// All segments, in the order in which they were made.
    pub fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let base = self.base()?;
        let boot = host::boot_id().unwrap_or_default();
        let there = base.segments.iter().filter(|segment| segment.flags & MAKING == 0);
        Ok(there.map(|segment| info_of(&base, segment, boot)).collect())
    }

    /// What is known of a segment.
    pub fn segment(&self, name: &str) -> Result<SegmentInfo> {
        let found = self.segments()?.into_iter().find(|segment| segment.name == name);
        found.ok_or_else(|| Error::NoSegment(name.to_owned()))
    }

    /// Makes a segment of zeros. `each` is told how many bytes were filled with them since it was told last.
    pub fn create_segment(
        &self,
        name: &str,
        len: u64,
        options: &SegmentOptions,
        mut each: impl FnMut(u64),
    ) -> Result<()> {
        check_name(name)?;
        let plain = options.kind == SegmentKind::Plain;
        let geometry = match options.kind {
            SegmentKind::Blocks { block_bytes } => Some(Geometry::of(block_bytes, options.lanes, len)?),
            SegmentKind::Plain => None,
        };
        let (head, data) = geometry.map_or((0, len), |g| (g.head_bytes(), g.data_bytes()));
        check_len(len, head, data)?;
        self.check_address(options.address, data, plain)?;
        let (claim, segment) = self.change(|base| {
            if let Some(old) = base.find(name) {
                // One that was being made when its process died is nobody's.
                if old.flags & MAKING == 0 || !self.claims.is_free(old.id) {
                    return Err(Error::Exists(name.to_owned()));
                }
                let id = old.id;
                remove(base, id);
            }
            if base.segments.len() == SEGMENTS {
                return Err(Error::invalid("segments", SEGMENTS, "a region has no more"));
            }
            let id = base.next_id;
            base.next_id += 1;
            let segment = SegmentState {
                id,
                name: name.to_owned(),
                kind: if plain { PLAIN } else { BLOCKS },
                mode: options.mode & 0o777,
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                flags: MAKING,
                block_bytes: geometry.map_or(0, |g| g.block_bytes as u32),
                lanes: geometry.map_or(0, |g| g.lanes),
                len,
                address: options.address.unwrap_or(0),
                created: wall_ns(),
                written: 0,
                writer: String::new(),
                boot: [0; 16],
            };
            let claim = self.claims.take(id, name, false)?;
            base.segments.push(segment.clone());
            space::give(base, id, HEAD, head)?;
            space::give(base, id, DATA, data)?;
            Ok((claim, segment))
        })?;
        // Of blocks, entries say that nothing was written.
        let (part, end) = if plain { (DATA, data) } else { (HEAD, head) };
        let filled = self.clear(&segment, part, 0..end, &mut each).and_then(|()| match geometry {
            Some(geometry) => self.make_head(segment.id, geometry),
            None => Ok(()),
        });
        let ended = self.change(|base| {
            match &filled {
                Ok(()) => {
                    let segment = base.find_mut(segment.id).expect("it is being made here");
                    segment.flags &= !MAKING;
                }
                Err(_) => remove(base, segment.id),
            }
            Ok(())
        });
        drop(claim);
        filled.and(ended)
    }

    /// Makes lanes and entries of blocks that were never written.
    fn make_head(&self, id: u64, geometry: Geometry) -> Result<()> {
        let memory = Memory::map(&self.source, &self.base()?.bytes_of(id, HEAD), None, true)?;
        geometry.make_head(&memory);
        memory.force()
    }

    /// Fills bytes of a part of a segment with zeros.
    fn clear(
        &self,
        segment: &SegmentState,
        part: u32,
        bytes: Range<u64>,
        each: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let extents = self.base()?.bytes_of(segment.id, part);
        let memory = Memory::map(&self.source, &extents, None, true)?;
        memory.zero(bytes.start as usize..bytes.end as usize, each);
        memory.force()
    }

    /// Destroys a segment that nobody has attached.
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.with_claim(name, |base, segment| {
            if segment.flags & PROTECTED != 0 {
                return Err(protected(name));
            }
            remove(base, segment.id);
            Ok(())
        })
    }

    /// Gives a plain segment that nobody has attached another length; what comes is zeros.
    pub fn resize(&self, name: &str, len: u64, mut each: impl FnMut(u64)) -> Result<()> {
        check_len(len, 0, len)?;
        let (claim, segment) = self.attachable(name, false)?;
        if segment.kind != PLAIN {
            let why = "blocks stay as many as they are: make a new segment, and copy them".to_owned();
            return Err(Error::Permission { name: name.to_owned(), why });
        }
        permits(&segment, true)?;
        if segment.flags & PROTECTED != 0 {
            return Err(protected(name));
        }
        self.check_address((segment.address != 0).then_some(segment.address), len, true)?;
        if len > segment.len {
            // What is behind its end may be anything; and what comes is its own before it is part of it.
            self.change(|base| {
                space::give(base, segment.id, DATA, len.saturating_sub(space::data_bytes(base, segment.id)))
            })?;
            if unless("grown-segment-not-cleared", true)
                && let Err(error) = self.clear(&segment, DATA, segment.len..len, &mut each)
            {
                if unless("failed-growth-kept", true) {
                    self.change(|base| {
                        space::take_back_surplus(base, segment.id);
                        Ok(())
                    })?;
                }
                return Err(error);
            }
        }
        self.change(|base| {
            base.find_mut(segment.id).expect("it is claimed here").len = len;
            space::take_back_surplus(base, segment.id);
            Ok(())
        })?;
        drop(claim);
        Ok(())
    }

    /// Forbids everybody to write to a segment, or allows it again.
    pub fn protect(&self, name: &str, protected: bool) -> Result<()> {
        self.with_claim(name, |base, segment| {
            let state = base.find_mut(segment.id).expect("it was just found");
            state.flags = if protected { state.flags | PROTECTED } else { state.flags & !PROTECTED };
            Ok(())
        })
    }

    /// Changes who may read and write a segment, and whose it is.
    pub fn own(&self, name: &str, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.with_claim(name, |base, segment| {
            let me = rustix::process::geteuid().as_raw();
            if me != 0 && me != segment.uid {
                return Err(Error::Permission { name: name.to_owned(), why: "is another user's".into() });
            }
            let state = base.find_mut(segment.id).expect("it was just found");
            state.mode = mode.map_or(state.mode, |mode| mode & 0o777);
            state.uid = uid.unwrap_or(state.uid);
            state.gid = gid.unwrap_or(state.gid);
            Ok(())
        })
    }

    /// Makes the region larger, while it is used: a file grows; of a device it takes more.
    pub fn grow(&self, len: u64) -> Result<()> {
        let found = self.base()?;
        if len < found.len {
            return Err(Error::invalid(
                "a length of",
                len,
                format!("the region has {} bytes already", found.len),
            ));
        }
        let most = Base::before_units(found.unit) + u64::from(found.unit) * u64::from(u32::MAX);
        if len > most {
            return Err(Error::invalid(
                "a length of",
                len,
                format!("with its units the region has at most {most} bytes"),
            ));
        }
        self.change(|base| {
            // Of several that do this one at a time: if it fails, the file is as long as it was.
            make_room(&*self.source.medium, len)?;
            self.source.force()?;
            base.len = base.len.max(len);
            Ok(())
        })
    }

    /// Makes the region smaller, while it is used, down to where its segments end. A file stays as long as it is.
    pub fn shrink(&self, len: u64) -> Result<()> {
        self.change(|base| {
            let least = Base::before_units(base.unit) + u64::from(base.unit);
            if len > base.len || len < least {
                let why = format!("the region has {} bytes, and never fewer than {least}", base.len);
                return Err(Error::invalid("a length of", len, why));
            }
            let all =
                base.segments.iter().flat_map(|s| [HEAD, DATA].map(|part| (s, base.bytes_of(s.id, part))));
            let ends = all.flat_map(|(s, extents)| extents.into_iter().map(move |extent| (extent.end, s)));
            if let Some((end, segment)) = ends.max_by_key(|(end, _)| *end).filter(|(end, _)| *end > len) {
                return Err(Error::Shrink { name: segment.name.clone(), end });
            }
            base.len = len;
            Ok(())
        })
    }

    /// Notes by whom and when a segment is written to.
    pub(crate) fn note_writer(&self, id: u64, writing: bool) -> Result<()> {
        self.change(|base| {
            let Some(segment) = base.find_mut(id) else { return Ok(()) };
            segment.flags = if writing { segment.flags | WRITING } else { segment.flags & !WRITING };
            segment.written = wall_ns();
            segment.boot = host::boot_id().unwrap_or_default();
            let program = descriptors::read_text("/proc/self/comm").unwrap_or_default();
            segment.writer = format!("process {} ({})", std::process::id(), program.trim());
            Ok(())
        })
    }

    /// Claims a segment, and finds it as it is then.
    pub(crate) fn attachable(&self, name: &str, shared: bool) -> Result<(Claim, SegmentState)> {
        let none = || Error::NoSegment(name.to_owned());
        let found = |base: &Base| base.find(name).filter(|s| s.flags & MAKING == 0).cloned().ok_or_else(none);
        let id = found(&self.base()?)?.id;
        let claim = self.claims.take(id, name, shared || !self.write)?;
        if !shared && !self.write {
            return Err(Error::ReadOnly(format!("the region {}", self.path.display())));
        }
        let segment = found(&self.base()?)?;
        // It may have been destroyed, and made anew, before it was claimed.
        if segment.id != id { Err(none()) } else { Ok((claim, segment)) }
    }

    fn check_address(&self, address: Option<u64>, len: u64, plain: bool) -> Result<()> {
        let Some(address) = address else { return Ok(()) };
        let grain = self.source.medium.grain() as u64;
        let ends = address.checked_add(len.next_multiple_of(grain)).is_some_and(|end| end < 1 << 47);
        if !plain || address == 0 || !address.is_multiple_of(grain) || !ends {
            let why = format!("a plain segment may lie at a multiple of {grain} below 2^47");
            return Err(Error::invalid("the address", format!("{address:#x}"), why));
        }
        Ok(())
    }

    fn with_claim<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut Base, &SegmentState) -> Result<T>,
    ) -> Result<T> {
        let (_claim, segment) = self.attachable(name, false)?;
        permits(&segment, true)?;
        self.change(|base| change(base, &segment))
    }
}

fn remove(base: &mut Base, id: u64) {
    base.segments.retain(|segment| segment.id != id);
    base.extents.retain(|extent| extent.segment != id);
}

pub(crate) fn protected(name: &str) -> Error {
    let why = "is protected: `caliburn-pm protect --off` lets it be written to again".to_owned();
    Error::Permission { name: name.to_owned(), why }
}

/// Whether the mode of a segment lets this process read or write it. What protects it from a program that opens the
/// region itself is the file's, or the device's, mode.
pub(crate) fn permits(segment: &SegmentState, write: bool) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    let of_group = rustix::process::getegid().as_raw() == segment.gid
        || rustix::process::getgroups().is_ok_and(|groups| groups.iter().any(|g| g.as_raw() == segment.gid));
    let shift = if me == segment.uid {
        6
    } else if of_group {
        3
    } else {
        0
    };
    let wanted = if write { 0o6 } else { 0o4 };
    if me == 0 || segment.mode >> shift & wanted == wanted {
        return Ok(());
    }
    let why = format!(
        "has mode {:o}, which does not let user {me} {}",
        segment.mode,
        if write { "write it" } else { "read it" }
    );
    Err(Error::Permission { name: segment.name.clone(), why })
}

/// Whether a region may be made where there is something.
fn check_empty(medium: &dyn Medium, force: bool) -> Result<()> {
    let fail = |source| medium_error("read", medium.path(), source);
    let len = medium.len().map_err(fail)?;
    let (mut at, mut part) = (0, vec![0; 1 << 20]);
    while !force && let Some(from) = medium.next_data(at).filter(|from| *from < len) {
        let part = &mut part[..(1 << 20).min(len - from) as usize];
        medium.read_at(part, from).map_err(fail)?;
        if part.iter().any(|byte| *byte != 0) {
            let is_region = from < 2 * COPY as u64 && part.windows(8).any(|bytes| *bytes == MAGIC);
            let what = if is_region { "there is a region already" } else { "it holds something else" };
            let why = format!("{what}; `caliburn-pm create --force` makes a new one in its place");
            return Err(Error::NotARegion { path: medium.path().to_owned(), why });
        }
        at = from + part.len() as u64;
    }
    Ok(())
}

/// Who was killed in the middle of this, or somebody else, may have left a file that is long and has holes.
fn make_room(medium: &dyn Medium, len: u64) -> Result<()> {
    let fill = || if unless("holes-stay", true) { medium.fill_holes() } else { Ok(()) };
    let made = medium.set_len(len).and_then(|()| fill());
    made.map_err(|source| medium_error("make room in", medium.path(), source))
}

/// Bytes of the least unit that can be mapped by itself.
fn grain_of(medium: &dyn Medium) -> u32 {
    u32::try_from(medium.grain()).unwrap_or(u32::MAX)
}

fn check_grain(medium: &dyn Medium, unit: u32) -> Result<()> {
    let grain = medium.grain() as u64;
    if u64::from(unit).is_multiple_of(grain) {
        return Ok(());
    }
    let why =
        format!("{} can be mapped by {grain} bytes only, or multiples of them", medium.path().display());
    Err(Error::invalid("units of", unit, why))
}

fn check_region(len: u64, unit: u32) -> Result<()> {
    if !unit.is_power_of_two() || !(UNIT_MIN..=UNIT_MAX).contains(&unit) {
        return Err(Error::invalid("units of", unit, "a power of two, from 64 KiB to 1 GiB"));
    }
    let least = Base::before_units(unit) + u64::from(unit);
    let most = Base::before_units(unit) + u64::from(unit) * u64::from(u32::MAX);
    if (least..=most).contains(&len) {
        return Ok(());
    }
    Err(Error::invalid("a length of", len, format!("a region has {least} to {most} bytes")))
}

fn check_len(len: u64, head: u64, data: u64) -> Result<()> {
    let most = i64::MAX as u64 / 4;
    if len == 0 || len > most || head > most || data > most {
        return Err(Error::invalid(
            "a length of",
            len,
            "a segment has at least one byte, and fewer than 2^61",
        ));
    }
    Ok(())
}
