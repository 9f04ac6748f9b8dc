//! How a segment comes to be attached.

use crate::attached::Attached;
use crate::base::SegmentState;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::format::{BLOCKS, DATA, HEAD, PLAIN, PROTECTED, WRITING};
use crate::geometry::Geometry;
use crate::memory::Memory;
use crate::region::{Region, permits, protected};
use crate::segment::Segment;
use caliburn_os::simulated::unless;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Region {
    /// Attaches a plain segment: to read it, with others; to write it, alone.
    pub fn attach(self: &Arc<Self>, name: &str, write: bool) -> Result<Segment> {
        let (attached, segment) = self.attach_as(name, PLAIN, write)?;
        // Nothing need be recovered of bytes.
        attached.is_clean();
        let extents = self.base()?.bytes_of(segment.id, DATA);
        let address = (segment.address != 0).then_some(segment.address);
        let memory = Memory::map(&self.source, &extents, address, write)?;
        Ok(Segment::new(attached, memory, segment.len))
    }

    /// Attaches a segment of blocks: to read it, with others; to write it, alone. What was being written when the
    /// last writer died is there wholly, or not at all.
    pub fn attach_blocks(self: &Arc<Self>, name: &str, write: bool) -> Result<Blocks> {
        let (attached, segment) = self.attach_as(name, BLOCKS, write)?;
        let geometry = Geometry::of(segment.block_bytes, segment.lanes, segment.len)?;
        let base = self.base()?;
        let map = |part| Memory::map(&self.source, &base.bytes_of(segment.id, part), None, write);
        Blocks::attach(attached, geometry, map(HEAD)?, map(DATA)?)
    }

    fn attach_as(self: &Arc<Self>, name: &str, kind: u32, write: bool) -> Result<(Attached, SegmentState)> {
        let (claim, segment) = self.attachable(name, !write)?;
        if segment.kind != kind {
            let made_of = if segment.kind == PLAIN { "bytes" } else { "blocks" };
            let why = format!("it is made of {made_of}, and was to be attached as something else");
            return Err(Error::invalid("segment", format!("{name:?}"), why));
        }
        permits(&segment, write)?;
        if write && segment.flags & PROTECTED != 0 {
            return Err(protected(name));
        }
        if write {
            self.note_writer(segment.id, true)?;
        }
        let crashed = unless("crash-not-noticed", segment.flags & WRITING != 0);
        let (region, id, name) = (self.clone(), segment.id, name.to_owned());
        Ok((
            Attached { region, id, name, write, crashed, clean: AtomicBool::new(false), _claim: claim },
            segment,
        ))
    }
}
