//! Zeros where nothing is, so that its room can be given back to the file system.

use crate::class::SPAN;
use crate::heap::{Heap, HeapError};
use caliburn_engine::{Class, Mode};
use caliburn_os::simulated::planted;

impl Heap {
    /// Makes zeros of what is in spans of 64 KiB in which there is no object, in transactions of up to 1 MiB, while
    /// other threads allocate: they do not get a span that is being cleared. How many bytes were not zeros before.
    /// [`Options::compact`](caliburn_engine::Options::compact) gives their room back.
    ///
    /// # Errors
    /// When the store has failed, or has no room for a transaction.
    pub fn clear_free(&self) -> Result<u64, HeapError> {
        const MOST: usize = 16;
        self.take_up_all()?;
        self.reclaim(&mut self.free_spans());
        let (mut next, mut cleared) = (0, 0);
        loop {
            let range = {
                let mut spans = self.free_spans();
                let Some(first) = (next..spans.free.len()).find(|number| spans.free[*number]) else {
                    return Ok(cleared);
                };
                let end = (first..spans.free.len()).take(MOST).take_while(|number| spans.free[*number]);
                let range = first..end.last().map_or(first, |last| last + 1);
                spans.free[range.clone()].fill(false);
                range
            };
            next = range.end;
            let (from, len) = (range.start as u64 * SPAN, range.len() as u64 * SPAN);
            let put = || self.free_spans().put(range);
            if planted("cleared-spans-given-out") {
                put();
                cleared += self.clear(from, len)?;
                continue;
            }
            let done = self.clear(from, len);
            put();
            cleared += done?;
        }
    }

    fn clear(&self, from: u64, len: u64) -> Result<u64, HeapError> {
        let mut bytes = vec![0; len as usize];
        self.data.read(from as usize, &mut bytes);
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        bytes.fill(0);
        let mut tx = self.store.begin(Mode::NoRestore)?;
        tx.write(&self.data, from as usize, &bytes)?;
        tx.commit(Class::Process)?;
        Ok(len)
    }
}
