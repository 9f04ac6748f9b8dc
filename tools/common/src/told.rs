//! What a store in use tells of itself.

use crate::Failure;
use caliburn::{Told, watch};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a store tells, which may take a second if nobody has asked it before.
pub fn told(store: &Path) -> Result<Told, Failure> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let begun = Instant::now();
    loop {
        let told = watch(store)?;
        if let Some(told) = told {
            return Ok(told);
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("store {}: nobody has it open who tells anything", store.display()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
