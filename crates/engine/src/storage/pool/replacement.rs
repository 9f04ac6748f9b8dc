//! Which page leaves a pool for another one.

use crate::storage::settings::Replacement;
use std::collections::VecDeque;

/// Of the frames of a pool, who is to be emptied next.
pub(super) enum Order {
    /// Any: the state of a generator of random numbers (Marsaglia's xorshift).
    Random(u64),
    Fifo(Line),
    /// The hidden ones last.
    SecondChance(Line, Line),
}

impl Order {
    pub fn new(how: Replacement) -> Order {
        match how {
            Replacement::Random => Order::Random(0x9E37_79B9_7F4A_7C15),
            Replacement::Fifo => Order::Fifo(Line::default()),
            Replacement::SecondChance => Order::SecondChance(Line::default(), Line::default()),
        }
    }

    /// A frame has got a page, or a hidden one is shown again.
    pub fn young(&mut self, frame: usize) {
        match self {
            Order::Random(_) => {}
            Order::Fifo(line) => line.join(frame),
            Order::SecondChance(active, hidden) => {
                hidden.leave(frame);
                active.join(frame);
            }
        }
    }

    /// A frame has lost its page.
    pub fn empty(&mut self, frame: usize) {
        match self {
            Order::Random(_) => {}
            Order::Fifo(line) => line.leave(frame),
            Order::SecondChance(active, hidden) => {
                active.leave(frame);
                hidden.leave(frame);
            }
        }
    }

    /// Has a quarter of the frames be hidden, or have no page: so that each is hidden for a while before it is
    /// emptied. `hide` says whether it could be done.
    pub fn age(&mut self, frames: usize, free: usize, mut hide: impl FnMut(usize) -> bool) {
        let Order::SecondChance(active, hidden) = self else { return };
        while hidden.len + free < frames / 4
            && let Some(frame) = active.first()
        {
            active.leave(frame);
            hidden.join(frame);
            if !hide(frame) {
                break;
            }
        }
    }

    /// The frame to be emptied, when all `frames` of them have pages.
    pub fn victim(&mut self, frames: usize) -> usize {
        match self {
            Order::Random(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                (*state % frames as u64) as usize
            }
            Order::Fifo(line) => line.first().expect("all frames have pages"),
            Order::SecondChance(active, hidden) => {
                hidden.first().or_else(|| active.first()).expect("all frames have pages")
            }
        }
    }
}

/// Frames that wait in line.
#[derive(Default)]
pub(super) struct Line {
    /// With the number of the joining: who has left, or joined again, is passed over.
    places: VecDeque<(usize, u64)>,
    /// By frame: the number of its joining.
    joined: Vec<Option<u64>>,
    next: u64,
    len: usize,
}

impl Line {
    fn join(&mut self, frame: usize) {
        self.leave(frame);
        if self.joined.len() <= frame {
            self.joined.resize(frame + 1, None);
        }
        self.joined[frame] = Some(self.next);
        self.places.push_back((frame, self.next));
        self.next += 1;
        self.len += 1;
    }

    fn leave(&mut self, frame: usize) {
        let was = self.joined.get_mut(frame).and_then(Option::take);
        self.len -= usize::from(was.is_some());
    }

    /// The first in line.
    fn first(&mut self) -> Option<usize> {
        while let Some((frame, number)) = self.places.front().copied() {
            if self.joined[frame] == Some(number) {
                return Some(frame);
            }
            self.places.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(how: Replacement, frames: usize) -> Order {
        let mut order = Order::new(how);
        (0..frames).for_each(|frame| order.young(frame));
        order
    }

    #[test]
    fn who_came_first_goes_first() {
        let mut order = filled(Replacement::Fifo, 8);
        order.empty(0);
        for expected in [1, 2, 3] {
            let frame = order.victim(8);
            assert_eq!(frame, expected);
            order.empty(frame);
            order.young(frame);
        }
    }

    #[test]
    fn who_is_touched_while_hidden_gets_a_second_chance() {
        let mut order = filled(Replacement::SecondChance, 8);
        let aged = |order: &mut Order, free| {
            let mut hidden = Vec::new();
            order.age(8, free, |frame| {
                hidden.push(frame);
                true
            });
            hidden
        };
        assert_eq!((aged(&mut order, 1), aged(&mut order, 0)), (vec![0], vec![1]));
        order.young(0);
        assert_eq!((order.victim(8), aged(&mut order, 0)), (1, vec![2]));
        order.empty(1);
        order.young(1);
        assert_eq!((order.victim(8), aged(&mut order, 0)), (2, vec![3]));
    }

    #[test]
    fn every_frame_is_any() {
        let mut order = filled(Replacement::Random, 8);
        let mut counts = [0; 8];
        (0..8000).for_each(|_| counts[order.victim(8)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
