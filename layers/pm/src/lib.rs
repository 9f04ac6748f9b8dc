//! Memory that outlives the system, as segments and as transactional blocks (*Persistent Memory for HP-UX*, sections
//! 3 and 4).
//!
//! ```
//! use caliburn_pm::{Region, RegionOptions, SegmentKind, SegmentOptions};
//! use std::sync::Arc;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("region");
//! let region = Arc::new(Region::create(&path, &RegionOptions { len: Some(16 << 20), ..Default::default() })?);
//! let kind = SegmentKind::Blocks { block_bytes: 4096 };
//! region.create_segment("disk", 4 << 20, &SegmentOptions { kind, ..Default::default() }, |_| {})?;
//!
//! let disk = region.attach_blocks("disk", true)?;
//! disk.write(7, &[1; 4096])?;
//! let mut both = disk.transaction();
//! both.write(8, &[2; 4096])?;
//! both.write(100, &[3; 4096])?;
//! both.commit()?;
//! let mut block = [0; 4096];
//! disk.read(100, &mut block)?;
//! assert_eq!(block, [3; 4096]);
//! # Ok::<(), caliburn_pm::Error>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`region`](Region) | a region: memory that outlives the system, cut into segments |
//! | [`segment`](Segment) | a plain segment, attached |
//! | [`blocks`](Blocks) | blocks with checksums, written one or several at a time, wholly or not at all |
//! | [`nbd`] | blocks as a disk for other systems |
//! | [`fuse`](Mounted) | blocks as the one file of a file system |
//! | `export` | what of a region is shown so |
//! | [`kind`](Kind) | what a region is on, and what that survives |
//! | `about` | what regions and segments are to be, and are |
//! | `attach`, `attached` | how a segment comes to be attached, and that it is |
//! | `base` | the base segment: which segments there are and where, twice |
//! | `space` | which units are nobody's |
//! | `claim` | who uses what |
//! | `geometry` | where blocks stand in their segment |
//! | `memory` | extents of a medium, mapped |
//! | `format` | what stands in a region, byte by byte |
//! | `error` | why something could not be done |

mod about;
mod attach;
mod attached;
mod base;
mod blocks;
mod claim;
mod error;
mod export;
mod format;
#[cfg(feature = "fuse")]
mod fuse;
mod geometry;
mod kind;
mod memory;
pub mod nbd;
mod region;
mod segment;
mod space;

pub use about::{RegionInfo, RegionOptions, SegmentInfo, SegmentKind, SegmentOptions};
pub use blocks::{BlockCounts, Blocks, Transaction};
pub use caliburn_os::medium::Survives;
pub use error::{Error, Result};
pub use export::Export;
#[cfg(feature = "fuse")]
pub use fuse::{Mounted, Unmount};
pub use kind::Kind;
pub use region::Region;
pub use segment::Segment;
