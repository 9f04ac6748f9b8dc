//! Rows as they were committed, taken up by the process: all of a small heap's when it is opened, others when they
//! are needed.
//!
//! ```text
//!   0 .. next       looked at in turn: free, or of a kind
//!   next .. end     unknown, but for those of which an object was asked for
//!   end ..          the heap has grown since it was opened: free, or of a kind
//! ```
//!
//! Invariant: the row of an unknown span before `end` is as it was when the heap was opened: nobody changes one that
//! was not looked at. Spans that are free for the taking are known, or behind `end`; and those behind a large
//! object's first are known when it is. So a row is taken up once, under the lock of the free spans.

use crate::heap::{FreeSpans, Heap, HeapError};
use crate::meta::{self, Kind, PER_WORD};
use caliburn_os::simulated::unless;

impl Heap {
    /// Takes up rows in turn, at least so many if there are. Whether there were any.
    pub(crate) fn take_up(&self, spans: &mut FreeSpans, least: u32) -> Result<bool, HeapError> {
        let until = spans.next.saturating_add(least).min(spans.end);
        let any = spans.next < until;
        while spans.next < until {
            let number = spans.next;
            let span = self.spans.get(number);
            let kind = if span.is_unknown() { self.read_row(number, spans.end)? } else { span.kind() };
            if span.is_unknown() {
                span.set_kind(Kind::Free);
                spans.put(number as usize..number as usize + 1);
            }
            // What follows a large object's first span is no span of its own.
            spans.next += if let Kind::Large(count) = kind { count } else { 1 };
        }
        Ok(any)
    }

    /// Takes up all rows.
    pub(crate) fn take_up_all(&self) -> Result<(), HeapError> {
        self.take_up(&mut self.free_spans(), u32::MAX).map(|_| ())
    }

    /// Takes up the row of a span that seemed free, if it is unknown, since an object of it is asked for. Whether
    /// something is in it.
    #[cold]
    pub(crate) fn take_up_one(&self, number: u32) -> Result<bool, HeapError> {
        let spans = self.free_spans();
        let span = self.spans.get(number);
        if unless("rows-taken-up-twice", span.is_unknown()) && number < spans.end {
            self.read_row(number, spans.end)?;
        }
        // If it is free, or behind a large object's first span, is for those to find out who come in turn. It may
        // have been taken up since it seemed free.
        Ok(span.kind() != Kind::Free)
    }

    /// Reads the row of an unknown span, and makes it what it was committed as; what that is.
    fn read_row(&self, number: u32, end: u32) -> Result<Kind, HeapError> {
        let (span, offset) = (self.spans.get(number), meta::word_at(number, 0));
        let kind =
            Kind::decode(self.word(offset)?).ok_or_else(|| self.damaged(offset, "a span of no kind"))?;
        match kind {
            Kind::Free => {}
            Kind::Large(count) => {
                if count > end - number {
                    let text = format!("an object of {count} spans, which the heap does not have");
                    return Err(self.damaged(offset, text));
                }
                // Those behind the first are free when the object was freed, and not before: nobody is to ask their
                // rows, which say so already.
                (number + 1..number + count)
                    .filter(|_| unless("spans-behind-unknown", true))
                    .for_each(|behind| self.spans.get(behind).make_known());
                span.make(kind, |_| true);
            }
            Kind::Small(class) => {
                let words = crate::class::objects(class).div_ceil(PER_WORD);
                let read = |word| self.word(meta::word_at(number, 1 + word));
                let words = (0..words).map(read).collect::<Result<Vec<u64>, _>>()?;
                if words.iter().all(|bits| *bits == 0) {
                    // It was emptied.
                    return Ok(Kind::Free);
                }
                span.make(kind, |object| words[(object / PER_WORD) as usize] >> (object % PER_WORD) & 1 == 1);
                self.list(number, class);
            }
        }
        Ok(kind)
    }
}
