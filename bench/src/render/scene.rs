//! The scene: hills of stones in an octree (Chamberlain et al., 1996), whose cells have the colour of what is in
//! them, in words that refer to each other by their numbers.

use crate::report::Random;

/// Words of a cell, and of a stone.
pub const CELL: usize = 7;
pub const STONE: usize = 3;
/// Most stones of a cell that is not divided.
pub const FEW: usize = 24;

/// What is drawn.
#[derive(Clone, Copy)]
pub struct Stone {
    pub at: [f32; 3],
    pub radius: f32,
    pub colour: [u8; 3],
}

/// A cube, with what is in it.
#[derive(Clone, Copy)]
pub struct Cell {
    pub centre: [f32; 3],
    /// Half the length of an edge.
    pub half: f32,
    pub colour: [u8; 3],
    /// Stones, or 0: it is divided.
    pub stones: u32,
    /// The parts of it that are not empty, 0 for others; or the first stone.
    pub parts: [u32; 8],
}

fn pair(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

fn halves(word: u64) -> [f32; 2] {
    [f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)]
}

fn of_colour(colour: [u8; 3]) -> u64 {
    u64::from(u32::from_le_bytes([colour[0], colour[1], colour[2], 0]))
}

fn colour(word: u64) -> [u8; 3] {
    let [red, green, blue, ..] = word.to_le_bytes();
    [red, green, blue]
}

impl Stone {
    pub fn of(words: [u64; STONE]) -> Stone {
        let ([x, y], [z, radius]) = (halves(words[0]), halves(words[1]));
        Stone { at: [x, y, z], radius, colour: colour(words[2]) }
    }

    fn words(&self) -> [u64; STONE] {
        [pair(self.at[0], self.at[1]), pair(self.at[2], self.radius), of_colour(self.colour)]
    }
}

impl Cell {
    pub fn of(words: [u64; CELL]) -> Cell {
        let ([x, y], [z, half]) = (halves(words[0]), halves(words[1]));
        let parts = std::array::from_fn(|i| (words[3 + i / 2] >> (32 * (i % 2))) as u32);
        Cell { centre: [x, y, z], half, colour: colour(words[2]), stones: (words[2] >> 32) as u32, parts }
    }

    fn words(&self) -> [u64; CELL] {
        let part = |i: usize| u64::from(self.parts[2 * i]) | u64::from(self.parts[2 * i + 1]) << 32;
        let about = of_colour(self.colour) | u64::from(self.stones) << 32;
        let [x, y, z] = self.centre;
        [pair(x, y), pair(z, self.half), about, part(0), part(1), part(2), part(3)]
    }
}

/// The height of the hills there.
pub fn height(x: f32, z: f32) -> f32 {
    let wave = |scale: f32, turn: f32| ((x * scale + turn).sin() * (z * scale - turn).cos() + 1.0) / 2.0;
    0.25 * wave(5.0, 0.3) + 0.08 * wave(17.0, 1.1) + 0.02 * wave(61.0, 2.3)
}

/// A scene of so many bytes, in the unit cube. The first cell is word 0.
pub fn build(bytes: usize) -> Vec<u64> {
    // With its share of cells a stone takes about one word more than its own.
    let mut count = bytes / 8 / (STONE + 1);
    loop {
        let mut words = of_stones(count);
        if words.len() <= bytes / 8 {
            words.resize(bytes / 8, 0);
            return words;
        }
        count -= count / 32;
    }
}

fn of_stones(count: usize) -> Vec<u64> {
    let mut random = Random(7);
    let mut fraction = || (random.below(1 << 24) as f32) / (1 << 24) as f32;
    let mut stones: Vec<Stone> = (0..count)
        .map(|_| {
            let (x, z, lift) = (fraction(), fraction(), fraction());
            let y = height(x, z) + 0.004 * lift;
            let snow = ((y - 0.2) * 6.0).clamp(0.0, 1.0);
            let mix = |low: f32, high: f32| {
                (low + (high - low) * snow + 40.0 * (lift - 0.5)).clamp(0.0, 255.0) as u8
            };
            Stone {
                at: [x, y, z],
                radius: 0.0006 + 0.0006 * fraction(),
                colour: [mix(70.0, 230.0), mix(110.0, 230.0), mix(50.0, 240.0)],
            }
        })
        .collect();
    let mut words = Vec::new();
    grow(&mut stones, [0.5; 3], 0.5, &mut words);
    words
}

/// Puts a cell and what is in it behind the words, depth first. Its number.
fn grow(stones: &mut [Stone], centre: [f32; 3], half: f32, words: &mut Vec<u64>) -> u32 {
    let number = words.len();
    words.resize(number + CELL, 0);
    let mean = |i: usize| {
        (stones.iter().map(|s| u64::from(s.colour[i])).sum::<u64>() / stones.len().max(1) as u64) as u8
    };
    let mut cell = Cell { centre, half, colour: [mean(0), mean(1), mean(2)], stones: 0, parts: [0; 8] };
    if stones.len() <= FEW || half < 1e-4 {
        (cell.stones, cell.parts[0]) = (stones.len() as u32, words.len() as u32);
        stones.iter().for_each(|stone| words.extend(stone.words()));
    } else {
        let octant = |s: &Stone| (0..3).map(|i| usize::from(s.at[i] >= centre[i]) << i).sum::<usize>();
        stones.sort_by_key(octant);
        let mut rest = stones;
        for part in 0..8 {
            let (own, others) = rest.split_at_mut(rest.partition_point(|s| octant(s) == part));
            rest = others;
            if !own.is_empty() {
                let shift = |i: usize| if part >> i & 1 == 1 { half / 2.0 } else { -half / 2.0 };
                let middle = std::array::from_fn(|i| centre[i] + shift(i));
                cell.parts[part] = grow(own, middle, half / 2.0, words);
            }
        }
    }
    words[number..number + CELL].copy_from_slice(&cell.words());
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stone_is_in_its_cell() {
        fn count(words: &[u64], number: usize, within: Option<Cell>) -> usize {
            let cell = Cell::of(words[number..][..CELL].try_into().unwrap());
            if let Some(outer) = within {
                assert!((0..3).all(|i| (cell.centre[i] - outer.centre[i]).abs() < outer.half));
            }
            if cell.stones > 0 {
                for i in 0..cell.stones as usize {
                    let stone =
                        Stone::of(words[cell.parts[0] as usize + i * STONE..][..STONE].try_into().unwrap());
                    assert!((0..3).all(|i| (stone.at[i] - cell.centre[i]).abs() <= cell.half * 1.001));
                }
                return cell.stones as usize;
            }
            cell.parts
                .iter()
                .filter(|part| **part > 0)
                .map(|part| count(words, *part as usize, Some(cell)))
                .sum()
        }
        let words = build(1 << 20);
        let most = (1 << 20) / 8 / (STONE + 1);
        assert!((most * 3 / 4..=most).contains(&count(&words, 0, None)));
    }
}
