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
    /// How many of them who asks has read since, and between the two looks before: counts come late.
    caused: [u64; 2],
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
        Pressure { window, seen: None, refaults: 0, caused: [0; 2], short: None }
    }

    /// Who asks reads so many pages again.
    pub fn caused(&mut self, pages: u64) {
        self.caused[0] += pages;
    }

    /// Looks again if the last look is old.
    pub fn is_short(&mut self, limits: &Limits) -> bool {
        if self.seen.is_none_or(|seen| seen.elapsed() > FRESH) {
            let refaults = limits.refaults().unwrap_or(0);
            let since = self.seen.map(|seen| seen.elapsed()).filter(|since| *since < self.window);
            let again = since.is_some_and(|since| {
                let many = AGAIN * (since.as_millis() / AGAIN_WITHIN.as_millis()).max(1) as u64;
                refaults > self.refaults + self.caused.iter().sum::<u64>() + many
            });
            (self.refaults, self.caused) = (refaults, [0, self.caused[0]]);
            if again || limits.short() {
                self.short = Some(Instant::now());
            }
            self.seen = Some(Instant::now());
        }
        self.short.is_some_and(|since| since.elapsed() < LASTING)
    }
}
