//! `synthetic` (Vista, Figure 5a): each transaction changes one range of a given size at a random place.

use crate::Arguments;
use crate::report::Random;
use crate::target::{Declare, Failure, Target};
use crate::work::{Workload, side_by_side};
use serde_json::json;

/// A stream of transactions: the first fills its range with ones, the next with twos, and so on.
pub struct Ranges {
    random: Random,
    size: usize,
    places: usize,
    count: u64,
}

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
/// Places that are looked at in the end.
const LOOKED_AT: usize = 10_000;

impl Ranges {
    /// Of `size` bytes each, within so many.
    pub fn new(size: usize, bytes: usize) -> Ranges {
        Ranges { random: Random(SEED), size, places: bytes / size, count: 0 }
    }
}

impl Workload for Ranges {
    const BATCH: u64 = 64;

    #[inline]
    fn step<T: Target>(&mut self, target: &mut T) {
        let (offset, size) = (self.random.below(self.places) * self.size, self.size);
        self.count += 1;
        let value = self.count as u8;
        target.transaction(|tx| {
            let at = tx.declare(offset, size);
            // SAFETY: the range was declared, which checked its bounds; this thread alone uses it.
            unsafe { at.write_bytes(value, size) };
        });
    }

    /// Places from all over the data, against a model that the same transactions have gone over.
    fn check<T: Target>(&self, target: &T) -> Result<(), Failure> {
        let mut model = vec![0; self.places];
        let mut random = Random(SEED);
        (1..=self.count).for_each(|i| model[random.below(self.places)] = i as u8);
        let mut there = vec![0; self.size];
        for place in (0..self.places).step_by(self.places.div_ceil(LOOKED_AT)) {
            target.read(place * self.size, &mut there);
            if let Some(at) = there.iter().position(|byte| *byte != model[place]) {
                let (found, expected, at) = (there[at], model[place], place * self.size + at);
                return Err(format!("{}: byte {at} is {found}, not {expected}", T::NAME).into());
            }
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bytes = arguments.data_mb.unwrap_or(50) << 20;
    arguments.sizes.iter().try_for_each(|&size| {
        let params = json!({"bytes": size, "data_mb": bytes >> 20});
        side_by_side("synthetic", arguments, bytes, params, || Ranges::new(size, bytes))
    })
}
