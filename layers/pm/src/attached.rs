//! That a segment is attached, and by whom, which its region notes.

use crate::claim::Claim;
use crate::region::Region;
use caliburn_os::simulated::even_if;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// That a segment is attached.
#[derive(Debug)]
pub(crate) struct Attached {
    pub region: Arc<Region>,
    pub id: u64,
    pub name: String,
    pub write: bool,
    /// The last writer did not give it up.
    pub crashed: bool,
    /// This one may.
    pub clean: AtomicBool,
    pub _claim: Claim,
}

impl Attached {
    /// Everything is as the next one may find it: that is noted when this is dropped.
    pub fn is_clean(&self) {
        self.clean.store(true, Ordering::Relaxed);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.write
            && even_if("crash-forgotten", self.clean.load(Ordering::Relaxed))
            && let Err(error) = self.region.note_writer(self.id, false)
        {
            tracing::warn!(%error, segment = self.name, "that it is written to no more was not noted");
        }
    }
}
