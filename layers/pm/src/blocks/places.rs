//! Free places: each lane has some, so that writers need not share them.

use super::Blocks;
use super::lane::Lane;
use caliburn_os::simulated::planted;
use caliburn_os::sync::MutexGuard;

impl Blocks {
    /// A free place; there are more than writers can take at once.
    #[inline]
    pub(super) fn take_place(&self, number: usize, lane: &mut Lane) -> u32 {
        if planted("place-in-use-taken") {
            return (lane.number % self.geometry.places()) as u32;
        }
        lane.free.pop().unwrap_or_else(|| self.take_place_of_others(number, lane))
    }

    #[cold]
    fn take_place_of_others(&self, number: usize, lane: &mut Lane) -> u32 {
        loop {
            if let Some(place) = lane.free.pop() {
                return place;
            }
            lane.free.append(&mut self.set_aside());
            for other in (0..self.lanes.len()).filter(|other| *other != number) {
                if !lane.free.is_empty() {
                    break;
                }
                if let Ok(mut other) = self.lanes[other].try_lock() {
                    let half = other.free.len().div_ceil(2);
                    let from = other.free.len() - half;
                    lane.free.extend(other.free.drain(from..));
                }
            }
            if lane.free.is_empty() {
                // Others end their writes soon.
                std::thread::yield_now();
            }
        }
    }

    /// Free places that are of no lane.
    pub(super) fn set_aside(&self) -> MutexGuard<'_, Vec<u32>> {
        self.set_aside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
