//! Who uses what: locks on bytes of the region's file, so that they end with the process that has them.
//!
//! ```text
//!   BASE             the base is being read (shared) or changed
//!   SEGMENTS + id    the segment is attached to be read (shared), or to be written, made, changed or destroyed
//! ```
//!
//! The bytes are far behind the end of every region. One opening of a file does not lock itself out, so this
//! process's own claims are counted besides.

use crate::error::{Error, Result, medium_error};
use caliburn_os::host::ByteLock;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::even_if;
use caliburn_os::sync::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BASE: u64 = 1 << 62;
const SEGMENTS: u64 = BASE + 1;

/// The claims of one opening of a region.
#[derive(Debug)]
pub(crate) struct Claims {
    path: PathBuf,
    medium: Arc<dyn Medium>,
    /// By number of the segment: how many readers, or a writer.
    here: Mutex<HashMap<u64, Held>>,
}

#[derive(Debug)]
struct Held {
    readers: usize,
    _lock: ByteLock,
}

/// A claim on a segment.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    id: u64,
}

impl Claims {
    pub fn of(path: &Path, medium: Arc<dyn Medium>) -> Arc<Claims> {
        Arc::new(Claims { path: path.to_owned(), medium, here: Mutex::default() })
    }

    /// Waits until nobody changes the base. Who has it changes nothing.
    pub fn base_to_read(&self) -> Result<Option<ByteLock>> {
        loop {
            // A change takes a moment.
            let lock = ByteLock::try_take(self.medium.descriptor(), BASE, true);
            match lock.map_err(|source| medium_error("lock", &self.path, source))? {
                Some(lock) => return Ok(Some(lock)),
                None => caliburn_os::sync::sleep(std::time::Duration::from_micros(50)),
            }
        }
    }

    /// Waits until nobody else reads or changes the base.
    pub fn base_to_change(&self) -> Result<ByteLock> {
        ByteLock::take(self.medium.descriptor(), BASE)
            .map_err(|source| medium_error("lock", &self.path, source))
    }

    /// That nobody else uses the region at all: only then it is made anew. The lock of the base is given up last:
    /// a holder of it would find segments claimed.
    pub fn alone(&self) -> Result<(ByteLock, ByteLock)> {
        let lock = self.base_to_change()?;
        let all = ByteLock::try_take_from(self.medium.descriptor(), SEGMENTS)
            .map_err(|source| medium_error("lock", &self.path, source))?;
        let busy = || Error::Busy { name: "of the region".into(), how: "by another process".into() };
        Ok((all.ok_or_else(busy)?, lock))
    }

    /// Whether nobody else has claimed a segment.
    pub fn is_free(&self, id: u64) -> bool {
        let here = self.here.lock().expect("no panic under this lock");
        // What this opening has it would give up by asking.
        !here.contains_key(&id)
            && matches!(ByteLock::try_take(self.medium.descriptor(), SEGMENTS + id, false), Ok(Some(_)))
    }

    /// Claims a segment, at once: shared with others that only read it, or alone.
    pub fn take(self: &Arc<Self>, id: u64, name: &str, shared: bool) -> Result<Claim> {
        let busy = |how: &str| Error::Busy { name: name.to_owned(), how: how.to_owned() };
        let mut here = self.here.lock().expect("no panic under this lock");
        match here.get_mut(&id) {
            Some(held) if shared && held.readers > 0 => held.readers += 1,
            Some(_) => return Err(busy("by this process")),
            None => {
                let lock = ByteLock::try_take(self.medium.descriptor(), SEGMENTS + id, shared)
                    .map_err(|source| medium_error("lock", &self.path, source))?;
                let lock = match lock {
                    Some(lock) => lock,
                    None => {
                        return Err(busy(if shared {
                            "for writing by another process"
                        } else {
                            "by another process"
                        }));
                    }
                };
                let readers = usize::from(even_if("claims-all-shared", shared));
                here.insert(id, Held { readers, _lock: lock });
            }
        }
        Ok(Claim { claims: self.clone(), id })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut here = self.claims.here.lock().expect("no panic under this lock");
        let held = here.get_mut(&self.id).expect("claimed");
        held.readers = held.readers.saturating_sub(1);
        if held.readers == 0 {
            here.remove(&self.id);
        }
    }
}
