//! Whether memory is short, for those who would take more of it than they need.

use caliburn_os::memory::Limits;
use std::time::{Duration, Instant};

/// How long what was found out about memory counts.
const FRESH: Duration = Duration::from_millis(5);

/// How long memory counts as short when it was.
const LASTING: Duration = Duration::from_secs(1);

/// Pages read again between two looks that tell that memory is short: what waits takes room from what is read.
const AGAIN: u64 = 32;

/// Whether memory is short, as it was seen last.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    seen: Option<Instant>,
    /// Pages that were read again until then.
    refaults: u64,
    short: Option<Instant>,
}

impl Pressure {
    /// Looks again if the last look is old.
    pub fn is_short(&mut self, limits: &Limits) -> bool {
        if self.seen.is_none_or(|seen| seen.elapsed() > FRESH) {
            let refaults = limits.refaults().unwrap_or(0);
            // What was read again in a pause says nothing of now.
            let lately = self.seen.is_some_and(|seen| seen.elapsed() < 4 * FRESH);
            let again = lately && refaults > self.refaults + AGAIN;
            self.refaults = refaults;
            if again || limits.short() {
                self.short = Some(Instant::now());
            }
            self.seen = Some(Instant::now());
        }
        self.short.is_some_and(|since| since.elapsed() < LASTING)
    }
}
