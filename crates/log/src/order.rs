//! The order in which a program touches what is mapped: gathered, written down, and read back at the next opening.

use crate::format::{self, Defect, ORDER_MAGIC, ORDER_MAX, ORDER_UNIT, OrderHeader, OrderRun, SegmentId};
use caliburn_os::host::Id;
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Units of a segment beyond these are not noted: sixteen tebibytes.
const UNITS_MAX: u64 = 1 << 28;

/// Units in the order in which each was touched first.
#[derive(Debug, Default)]
pub struct Order {
    runs: Vec<OrderRun>,
    /// Of each segment a bit for each unit.
    known: BTreeMap<SegmentId, Vec<u64>>,
}

impl Order {
    /// A unit of a segment was touched. Whether it was new.
    pub fn touch(&mut self, segment: SegmentId, unit: u64) -> bool {
        if self.runs.len() == ORDER_MAX || unit >= UNITS_MAX || !self.is_new(segment, unit) {
            return false;
        }
        if let Some(last) = self.runs.last_mut()
            && last.segment.get() == segment.0
            && last.first.get() + u64::from(last.count.get()) == unit
            && last.count.get() < u32::MAX
        {
            last.count += 1;
            return true;
        }
        self.runs.push(OrderRun { segment: segment.0.into(), count: 1.into(), first: unit.into() });
        true
    }

    fn is_new(&mut self, segment: SegmentId, unit: u64) -> bool {
        let bits = self.known.entry(segment).or_default();
        let (word, bit) = ((unit / 64) as usize, 1 << (unit % 64));
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        let new = bits[word] & bit == 0;
        bits[word] |= bit;
        new
    }

    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The content of the file.
    pub fn encode(&self, store: Id) -> Vec<u8> {
        let header =
            OrderHeader { count: (self.runs.len() as u32).into(), ..zerocopy::FromZeros::new_zeroed() };
        let mut out = [header.as_bytes(), self.runs.as_bytes()].concat();
        format::seal(&mut out, ORDER_MAGIC, store);
        out
    }
}

/// Bytes of segments, in the order in which they were touched.
///
/// # Errors
/// What is wrong with the content of the file.
pub fn decode(bytes: &[u8], store: &Id) -> Result<Vec<(SegmentId, Range<u64>)>, Defect> {
    format::unseal(bytes, ORDER_MAGIC, "order", Some(store))?;
    let bad = |what: &str| Defect::Value(what.to_owned());
    let (header, rest) = OrderHeader::read_from_prefix(bytes).map_err(|_| bad("the file is cut off"))?;
    let count = header.count.get() as usize;
    if count > ORDER_MAX || rest.len() != count * size_of::<OrderRun>() {
        return Err(bad("it is of another length than it says"));
    }
    let range = |run: &[u8]| {
        let run = OrderRun::read_from_bytes(run).expect("the size is right");
        let end = run.first.get().checked_add(run.count.get().into())?.checked_mul(ORDER_UNIT)?;
        (end <= i64::MAX as u64).then(|| (SegmentId(run.segment.get()), run.first.get() * ORDER_UNIT..end))
    };
    rest.chunks_exact(size_of::<OrderRun>())
        .map(|run| range(run).ok_or_else(|| bad("it names what no segment can have")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Id = [7; 16];

    fn sample() -> Order {
        let mut order = Order::default();
        for (segment, unit) in [(1, 5), (1, 6), (2, 7), (1, 0), (1, 5), (1, 1)] {
            order.touch(SegmentId(segment), unit);
        }
        order
    }

    #[test]
    fn what_was_touched_comes_back_in_order_and_once() {
        let units = |units: Range<u64>| units.start * ORDER_UNIT..units.end * ORDER_UNIT;
        assert_eq!(
            decode(&sample().encode(STORE), &STORE).unwrap(),
            [(SegmentId(1), units(5..7)), (SegmentId(2), units(7..8)), (SegmentId(1), units(0..2))]
        );
    }

    #[test]
    fn what_was_damaged_is_none() {
        let good = sample().encode(STORE);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad, &STORE).is_err(), "bit {bit}");
        }
        (0..good.len()).for_each(|len| assert!(decode(&good[..len], &STORE).is_err(), "{len}"));
        assert!(decode(&good, &[8; 16]).is_err(), "another store's");
        let mut far = sample();
        far.runs[1].first = u64::MAX.into();
        assert!(decode(&far.encode(STORE), &STORE).is_err(), "out of every segment");
    }
}
