//! Copies between ordinary memory and memory that other threads may be storing to at the same moment.
//!
//! Recoverable memory is shared by all threads of a program, and the engine copies from it (old values,
//! new values, pages for truncation) while the program runs. A plain `memcpy` that races with a store is
//! undefined behaviour; these copies go through inline assembly, which the compiler must treat as an
//! access by the machine: a race yields old or new bytes, word by word, and nothing worse. On
//! architectures without an assembly body here, volatile byte accesses stand in.

use crate::sync::{SCHEDULED, choice};

/// Longest copy done in 16-byte steps; beyond it the string instruction of the machine is faster.
#[cfg(target_arch = "x86_64")]
const STEPS_MAX: usize = 2048;

#[inline(always)]
unsafe fn move1(source: *const u8, target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for a readable and a writable byte.
    unsafe {
        std::arch::asm!("mov {0}, byte ptr [{1}]", "mov byte ptr [{2}], {0}",
            out(reg_byte) _, in(reg) source, in(reg) target, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for a readable and a writable byte.
    unsafe {
        target.write_volatile(source.read_volatile());
    }
}

/// Moves 8 bytes at offset `AT` of both pointers.
#[inline(always)]
unsafe fn move8<const AT: usize>(source: *const u8, target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for 8 readable and writable bytes; `mov` needs no alignment.
    unsafe {
        std::arch::asm!("mov {0}, qword ptr [{1} + {at}]", "mov qword ptr [{2} + {at}], {0}",
            out(reg) _, in(reg) source, in(reg) target, at = const AT, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller vouches for 8 readable and writable bytes; ordinary memory takes them unaligned.
    unsafe {
        std::arch::asm!("ldr {0}, [{1}, #{at}]", "str {0}, [{2}, #{at}]",
            out(reg) _, in(reg) source, in(reg) target, at = const AT, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller vouches for 8 readable and writable bytes.
    unsafe {
        (AT..AT + 8).for_each(|i| target.add(i).write_volatile(source.add(i).read_volatile()));
    }
}

/// Moves 16 bytes, loaded in two halves and stored at once: a store in flight is forwarded to a load that it
/// covers, and a processor has fewer places for stores in flight than for loads.
#[inline(always)]
unsafe fn move8x2(source: *const u8, target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for 16 readable and writable bytes; these need no alignment.
    unsafe {
        std::arch::asm!("movq {0}, qword ptr [{1}]", "movhps {0}, qword ptr [{1} + 8]", "movups xmmword ptr [{2}], {0}",
            out(xmm_reg) _, in(reg) source, in(reg) target, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for 16 readable and writable bytes.
    unsafe {
        move8::<0>(source, target);
        move8::<8>(source, target);
    }
}

#[inline(always)]
unsafe fn move16(source: *const u8, target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for 16 readable and writable bytes; `movups` needs no alignment.
    unsafe {
        std::arch::asm!("movups {0}, xmmword ptr [{1}]", "movups xmmword ptr [{2}], {0}",
            out(xmm_reg) _, in(reg) source, in(reg) target, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for 16 readable and writable bytes.
    unsafe {
        move8::<0>(source, target);
        move8::<8>(source, target);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn bulk(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller vouches for `len` readable and writable bytes; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") source => _,
            inout("rdi") target => _, options(nostack, preserves_flags));
    }
}

/// Copies in steps, the last overlapping the one before it. Short ranges were often stored a moment ago, word
/// by word; a wider load would have to wait for those stores.
#[inline(always)]
unsafe fn steps(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: every access below lies within `len` bytes of both pointers, which the caller vouches for.
    unsafe {
        // The short ones first, which are most.
        if len <= 32 {
            if len >= 16 {
                move8x2(source, target);
                match len {
                    16 => {}
                    24 => move8::<16>(source, target),
                    17..24 => move8::<0>(source.add(len - 8), target.add(len - 8)),
                    _ => move8x2(source.add(len - 16), target.add(len - 16)),
                }
            } else if len >= 8 {
                move8::<0>(source, target);
                if len > 8 {
                    move8::<0>(source.add(len - 8), target.add(len - 8));
                }
            } else {
                (0..len).for_each(|i| move1(source.add(i), target.add(i)));
            }
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if len > STEPS_MAX {
            return bulk(source, target, len);
        }
        let mut at = 0;
        if len <= 64 {
            while at + 16 < len {
                move8x2(source.add(at), target.add(at));
                at += 16;
            }
            move8x2(source.add(len - 16), target.add(len - 16));
        } else {
            while at + 16 < len {
                move16(source.add(at), target.add(at));
                at += 16;
            }
            move16(source.add(len - 16), target.add(len - 16));
        }
    }
}

/// Tells the processor that the bytes there are wanted soon. Any address will do.
#[inline(always)]
pub fn soon(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads and writes nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies `len` bytes where either side may be recoverable memory in use by other threads.
///
/// Racing stores may be seen in part, in units of at most eight bytes.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes, and the two must not overlap.
#[inline(always)]
pub unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    if SCHEDULED {
        // SAFETY: each piece lies within the caller's `len` bytes.
        (0..len).step_by(256).for_each(|at| unsafe {
            choice();
            steps(source.add(at), target.add(at), (len - at).min(256));
        });
        return;
    }
    // SAFETY: passed on from the caller.
    unsafe { steps(source, target, len) }
}

/// Whether `len` bytes at `source`, possibly in use by other threads, equal `bytes` at the moment of reading.
///
/// # Safety
/// `source` must be readable for `bytes.len()` bytes.
pub unsafe fn equals(source: *const u8, bytes: &[u8]) -> bool {
    let mut chunk = [0u8; 512];
    bytes.chunks(chunk.len()).enumerate().all(|(i, part)| {
        // SAFETY: part `i` lies within the caller's `bytes.len()` readable bytes.
        unsafe { copy(source.add(i * 512), chunk.as_mut_ptr(), part.len()) };
        &chunk[..part.len()] == part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_and_alignment_exactly() {
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in (0..80).chain([511, 512, 513, 520, 1000, 2047, 2048, 2049, 3000]) {
            for shift in 0..9 {
                let mut target = vec![0xAAu8; len + 32];
                // SAFETY: both sides have room for `len` bytes at their offsets.
                unsafe { copy(source.as_ptr().add(shift), target.as_mut_ptr().add(8 + shift), len) };
                assert_eq!(&target[8 + shift..8 + shift + len], &source[shift..shift + len]);
                assert!(target[..8 + shift].iter().all(|&b| b == 0xAA));
                assert!(target[8 + shift + len..].iter().all(|&b| b == 0xAA));
            }
        }
    }

    #[test]
    fn equality_sees_a_difference_in_any_byte() {
        let mut bytes = vec![5u8; 1500];
        let copy_of = bytes.clone();
        for at in [0, 7, 511, 512, 1024, 1499] {
            bytes[at] ^= 1;
            // SAFETY: `bytes` is readable for its own length.
            assert!(!unsafe { equals(bytes.as_ptr(), &copy_of) });
            bytes[at] ^= 1;
        }
        // SAFETY: as above.
        assert!(unsafe { equals(bytes.as_ptr(), &copy_of) });
    }
}
