//! How a store is made, and taken up again after a crash on the way.

use crate::disk::Disk;
use crate::life::Flavour;
use crate::media::Machine;
use std::sync::Arc;

/// Something that is made on a machine, and what must be there of it after a crash.
pub struct Making {
    /// Makes it; every step that was acknowledged is marked by its number.
    pub make: fn(&Arc<Machine<usize>>, Flavour) -> Result<(), String>,
    /// Opens, in that boot, what is left on a disk when so many steps were acknowledged.
    pub take_up: fn(Disk, u8, usize, Flavour) -> Result<(), String>,
}
