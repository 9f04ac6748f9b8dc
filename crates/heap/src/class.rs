//! Sizes of objects: multiples of 16 bytes up to 128, then four to each doubling. Objects larger than the largest
//! class take whole spans.

/// Bytes of a span.
pub const SPAN: u64 = 64 << 10;
/// Number of classes.
pub const CLASSES: usize = 40;

/// The sizes, smallest first.
pub const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut i = 0;
    while i < 8 {
        sizes[i] = 16 * (i as u32 + 1);
        i += 1;
    }
    let mut base = 128;
    while i < CLASSES {
        let mut quarter = 1;
        while quarter <= 4 {
            sizes[i] = base + base / 4 * quarter;
            i += 1;
            quarter += 1;
        }
        base *= 2;
    }
    sizes
};

const _: () = assert!(SIZES[CLASSES - 1] == 32768);

/// The smallest class for `len` bytes at a multiple of `align`, a power of two; none if they take whole spans.
pub fn class_of(len: u64, align: u64) -> Option<u8> {
    let from = SIZES.partition_point(|size| u64::from(*size) < len.max(1));
    (from..CLASSES).find(|class| u64::from(SIZES[*class]).is_multiple_of(align)).map(|class| class as u8)
}

/// Objects of a class in a span.
pub fn objects(class: u8) -> u32 {
    SPAN as u32 / SIZES[usize::from(class)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_the_smallest_that_fits_and_is_aligned() {
        assert!(SIZES.is_sorted());
        assert_eq!(SIZES[class_of(0, 1).unwrap() as usize], 16);
        assert_eq!(SIZES[class_of(129, 8).unwrap() as usize], 160);
        assert_eq!(SIZES[class_of(129, 64).unwrap() as usize], 192);
        assert_eq!(SIZES[class_of(17, 32).unwrap() as usize], 32);
        assert_eq!(SIZES[class_of(32768, 4096).unwrap() as usize], 32768);
        assert_eq!(class_of(32769, 1), None);
        assert_eq!(class_of(1, 1 << 16), None);
        // Waste is a quarter at most.
        for len in 65..32768u64 {
            let size = u64::from(SIZES[class_of(len, 1).unwrap() as usize]);
            assert!(size >= len && (size - len) * 4 <= size, "{len}: {size}");
        }
    }
}
