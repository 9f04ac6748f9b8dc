//! The hash function of maps in a store. It is part of the format: what it gives for the same bytes and keys
//! never changes. Multiplication to 128 bits, both halves folded into one, as in wyhash, with keys that are
//! random for each heap.

use std::hash::{Hash, Hasher};

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Hashes with the keys of a map.
#[derive(Debug, Clone)]
pub(crate) struct StoreHasher {
    state: u64,
    key: u64,
}

impl StoreHasher {
    #[inline(always)]
    pub fn new(keys: [u64; 2]) -> StoreHasher {
        StoreHasher { state: keys[0], key: keys[1] }
    }

    /// The hash of a value.
    #[inline(always)]
    pub fn of<Q: Hash + ?Sized>(keys: [u64; 2], value: &Q) -> u64 {
        let mut hasher = StoreHasher::new(keys);
        value.hash(&mut hasher);
        hasher.finish()
    }

    #[inline(always)]
    fn word(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.key);
    }
}

impl Hasher for StoreHasher {
    #[inline(always)]
    fn finish(&self) -> u64 {
        fold(self.state, self.key.rotate_left(32))
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((words, behind)) = rest.split_first_chunk::<16>() {
            let [a, b] =
                [&words[..8], &words[8..]].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")));
            self.state = fold(self.state ^ a, self.key ^ b);
            rest = behind;
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        let words = u128::from_le_bytes(last);
        self.state = fold(self.state ^ words as u64, self.key ^ (words >> 64) as u64 ^ bytes.len() as u64);
    }

    #[inline(always)]
    fn write_u8(&mut self, word: u8) {
        self.word(word.into());
    }

    #[inline(always)]
    fn write_u16(&mut self, word: u16) {
        self.word(word.into());
    }

    #[inline(always)]
    fn write_u32(&mut self, word: u32) {
        self.word(word.into());
    }

    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }

    #[inline(always)]
    fn write_usize(&mut self, word: usize) {
        self.word(word as u64);
    }

    #[inline(always)]
    fn write_u128(&mut self, word: u128) {
        self.word(word as u64);
        self.word((word >> 64) as u64);
    }
}

/// Keys with bits all over, as random ones have.
const SAMPLE_KEYS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03];

/// What values of the standard library hash to, with fixed keys. How they feed a hasher is the standard library's
/// choice: should it ever change, maps in stores would no longer find their keys, and this tells.
pub(crate) fn fingerprint() -> u64 {
    type Sample =
        (u8, (i16, u32, u64), Option<i128>, [u16; 3], &'static str, char, bool, ((), std::cmp::Ordering));
    let sample: Sample =
        (1, (-2, 3, 4), Some(-5), [6, 7, 8], "nine", 'x', true, ((), std::cmp::Ordering::Greater));
    StoreHasher::of(SAMPLE_KEYS, &sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_never_changes() {
        // Part of the format: a store made with other values could not be read.
        assert_eq!(fingerprint(), FINGERPRINT);
        assert_eq!(StoreHasher::of(SAMPLE_KEYS, &7u64), SEVEN);
        assert_eq!(StoreHasher::of(SAMPLE_KEYS, "a text of more than sixteen bytes"), TEXT);
    }

    const FINGERPRINT: u64 = 8181704587496232567;
    const SEVEN: u64 = 2252425791040504073;
    const TEXT: u64 = 1527541817250404845;

    #[test]
    fn each_bit_of_a_key_changes_half_of_the_hash() {
        for bit in 0..64 {
            let changed: u32 = (0..256u64)
                .map(|x| x.wrapping_mul(SAMPLE_KEYS[0]))
                .map(|x| {
                    (StoreHasher::of(SAMPLE_KEYS, &x) ^ StoreHasher::of(SAMPLE_KEYS, &(x ^ 1 << bit)))
                        .count_ones()
                })
                .sum();
            let mean = f64::from(changed) / 256.0;
            assert!((29.0..35.0).contains(&mean), "bit {bit}: {mean} of 64 bits change");
        }
    }
}
