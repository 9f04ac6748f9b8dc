//! Copies that are summed on their way, so that the sum costs next to nothing: while bytes are on their way to
//! memory the processor has nothing else to do.
//!
//! The sum of some bytes is the CRC-32C of the CRC-32Cs of their four quarters: four chains of instructions that do
//! not wait for each other.

use crate::persist::Flush;
use crate::span;
#[cfg(target_arch = "x86_64")]
use crate::{persist::stream, simulated};

/// What lengths are a multiple of: a line for each quarter.
pub const SUMMED: usize = 4 * LINE;
const LINE: usize = 64;

/// The sum of some bytes.
pub fn sum_of(bytes: &[u8]) -> u32 {
    assert!(bytes.len().is_multiple_of(SUMMED), "four quarters of whole lines");
    let quarter = bytes.len() / 4;
    of_quarters([0, 1, 2, 3].map(|i| crc32c::crc32c(&bytes[i * quarter..][..quarter])))
}

fn of_quarters(sums: [u32; 4]) -> u32 {
    let mut bytes = [0; 16];
    bytes.chunks_exact_mut(4).zip(sums).for_each(|(part, sum)| part.copy_from_slice(&sum.to_le_bytes()));
    crc32c::crc32c(&bytes)
}

/// Copies as [`Flush::copy`] does, and sums what it has copied.
///
/// # Safety
/// As for [`Flush::copy`], with a target that is aligned to a line; nobody may store to the source meanwhile.
#[inline]
pub unsafe fn store(flush: Flush, source: *const u8, target: *mut u8, len: usize) -> u32 {
    assert!(len.is_multiple_of(SUMMED) && target.addr().is_multiple_of(LINE), "whole lines");
    #[cfg(target_arch = "x86_64")]
    if matches!(flush, Flush::Lines(_)) && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions; the rest is passed on from the caller.
        let sum = unsafe { fused::<true>(source, target, len) };
        simulated::stored(target, len);
        simulated::flushed(target, len);
        return sum;
    }
    // SAFETY: passed on from the caller.
    unsafe {
        flush.copy(source, target, len);
        sum_of(std::slice::from_raw_parts(source, len))
    }
}

/// Copies to memory of the caller's own, and sums what it has copied.
///
/// # Safety
/// `len` bytes must be readable at `source`, where others may be storing, and writable at `target`, where nobody is.
#[inline]
pub unsafe fn load(source: *const u8, target: *mut u8, len: usize) -> u32 {
    assert!(len.is_multiple_of(SUMMED), "whole lines");
    // A copy in one go comes faster from memory than lines of four quarters in turn: by a quarter.
    // SAFETY: passed on from the caller.
    unsafe { span::copy(source, target, len) };
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions, and nobody else stores to what was just written.
        return unsafe { fused::<false>(target, target, len) };
    }
    // SAFETY: so many bytes are there, and nobody else stores to them.
    sum_of(unsafe { std::slice::from_raw_parts(target, len) })
}

/// Sums a line of each quarter in turn, and if it is to `COPY` stores it past the caches first.
///
/// # Safety
/// `len`, a multiple of [`SUMMED`], must be readable at `source`, where nobody stores, and to `COPY` writable at
/// `target`, which is aligned to lines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn fused<const COPY: bool>(source: *const u8, target: *mut u8, len: usize) -> u32 {
    use std::arch::x86_64::_mm_crc32_u64;
    let quarter = len / 4;
    let mut sums = [u64::from(u32::MAX); 4];
    for at in (0..quarter).step_by(LINE) {
        // SAFETY: lines within what the caller vouches for.
        unsafe {
            if COPY {
                (0..4).for_each(|i| stream(source.add(i * quarter + at), target.add(i * quarter + at), LINE));
            }
            for word in (at..at + LINE).step_by(8) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm_crc32_u64(*sum, source.add(i * quarter + word).cast::<u64>().read_unaligned());
                }
            }
        }
    }
    // As `of_quarters`, in the registers.
    let [one, two, three, four] = sums.map(|sum| u64::from(!(sum as u32)));
    let sum = _mm_crc32_u64(u64::from(u32::MAX), one | two << 32);
    !(_mm_crc32_u64(sum, three | four << 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 8192]);

    #[test]
    fn every_way_gives_the_same_sum_and_the_same_bytes() {
        let source: Vec<u8> = (0..8192u32).map(|i| (i * 31 + i / 256) as u8).collect();
        for len in [0, 256, 512, 4096, 8192] {
            let sum = sum_of(&source[..len]);
            for flush in [Flush::Nothing, Flush::Fence, Flush::of_this_processor()] {
                let mut target = Aligned([0; 8192]);
                // SAFETY: within both.
                assert_eq!(unsafe { store(flush, source.as_ptr(), target.0.as_mut_ptr(), len) }, sum);
                flush.fence();
                assert!(target.0[..len] == source[..len] && target.0[len..].iter().all(|byte| *byte == 0));
            }
            let mut target = vec![0; len + 1];
            // SAFETY: within both.
            assert_eq!(unsafe { load(source.as_ptr(), target.as_mut_ptr().add(1), len) }, sum);
            assert!(target[1..] == source[..len]);
        }
    }

    #[test]
    fn a_bit_that_is_flipped_and_quarters_that_are_exchanged_change_the_sum() {
        let bytes: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
        let sum = sum_of(&bytes);
        for bit in (0..8192).step_by(13) {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum_of(&other), sum, "{bit}");
        }
        let mut other = bytes.clone();
        other[3] ^= 1;
        other.rotate_left(256);
        assert_ne!(sum_of(&other), sum);
    }
}
