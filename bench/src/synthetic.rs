//! `synthetic` (Vista, Figure 5a): each transaction changes one range of a given size at a random place.

use crate::Arguments;
use crate::report::Random;
use crate::target::{Declare, Failure, Target};
use crate::work::{Work, side_by_side};
use serde_json::json;

/// A stream of transactions.
pub struct Ranges {
    random: Random,
    size: usize,
    places: usize,
    /// What the last one stored, and where.
    last: Option<(usize, u8)>,
}

impl Ranges {
    /// Of `size` bytes each, within so many.
    pub fn new(size: usize, bytes: usize) -> Ranges {
        Ranges { random: Random(0x9E37_79B9_7F4A_7C15), size, places: bytes / size, last: None }
    }
}

impl Work for Ranges {
    const BATCH: u64 = 64;

    #[inline]
    fn step<T: Target>(&mut self, target: &mut T) {
        let (offset, size) = (self.random.below(self.places) * self.size, self.size);
        let value = self.last.map_or(1, |(_, value)| value.wrapping_add(1));
        self.last = Some((offset, value));
        target.transaction(|tx| {
            let at = tx.declare(offset, size);
            // SAFETY: the range was declared, which checked its bounds; this thread alone uses it.
            unsafe { at.write_bytes(value, size) };
        });
    }

    fn check<T: Target>(&self, target: &T) -> Result<(), Failure> {
        let Some((offset, value)) = self.last else { return Ok(()) };
        let mut there = vec![0; self.size];
        target.read(offset, &mut there);
        match there.iter().position(|byte| *byte != value) {
            None => Ok(()),
            Some(at) => {
                Err(format!("{}: byte {} is {}, not {value}", T::NAME, offset + at, there[at]).into())
            }
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bytes = arguments.data_mb.unwrap_or(50) << 20;
    arguments.sizes.iter().try_for_each(|&size| {
        let params = json!({"bytes": size, "data_mb": bytes >> 20});
        side_by_side("synthetic", arguments, bytes, params, || Ranges::new(size, bytes))
    })
}
