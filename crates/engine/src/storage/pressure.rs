//! Whether memory is short, for those who would take more of it than they need.

use caliburn_os::memory::Limits;
use std::time::{Duration, Instant};

/// How long what was found out about memory counts.
const FRESH: Duration = Duration::from_millis(5);

/// How long memory counts as short when it was.
const LASTING: Duration = Duration::from_secs(1);

/// Pages that were read again within that time tell that memory is short: what waits takes room from what is read.
const AGAIN: u64 = 32;
const AGAIN_WITHIN: Duration = Duration::from_millis(20);

/// Whether memory is short, as it was seen last.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// If the look before is older, what was read again since says nothing of now.
    window: Duration,
    seen: Option<Instant>,
    /// Pages that were read again until then.
    refaults: u64,
    /// Pages that were read ahead again until then, and between the two looks before: counts come late.
    ahead: u64,
    lately: u64,
    short: Option<Instant>,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure::over(AGAIN_WITHIN)
    }
}

impl Pressure {
    /// For who asks at least that often.
    pub fn over(window: Duration) -> Pressure {
        Pressure { window, seen: None, refaults: 0, ahead: 0, lately: 0, short: None }
    }

    /// Looks again if the last look is old. So many pages were ever read again by the store's own reading ahead.
    pub fn is_short(&mut self, limits: &Limits, ahead: u64) -> bool {
        if self.seen.is_none_or(|seen| seen.elapsed() > FRESH) {
            let refaults = limits.refaults().unwrap_or(0);
            let since = self.seen.map(|seen| seen.elapsed()).filter(|since| *since < self.window);
            let again = since.is_some_and(|since| {
                let many = AGAIN * (since.as_millis() / AGAIN_WITHIN.as_millis()).max(1) as u64;
                refaults > self.refaults + (ahead - self.ahead) + self.lately + many
            });
            (self.refaults, self.ahead, self.lately) = (refaults, ahead, ahead - self.ahead);
            if again || limits.short() {
                self.short = Some(Instant::now());
            }
            self.seen = Some(Instant::now());
        }
        self.short.is_some_and(|since| since.elapsed() < LASTING)
    }
}
