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
#[inline]
pub fn class_of(len: u64, align: u64) -> Option<u8> {
    let last = len.max(1) - 1;
    let from = match last {
        0..128 => last / 16,
        // Below which power of two, and in which quarter before it.
        _ => {
            let power = u64::from(last.ilog2());
            8 + (power - 7) * 4 + (last >> (power - 2) & 3)
        }
    };
    let from = usize::try_from(from).ok().filter(|from| *from < CLASSES)?;
    if align <= 16 {
        return Some(from as u8);
    }
    (from..CLASSES).find(|class| u64::from(SIZES[*class]).is_multiple_of(align)).map(|class| class as u8)
}

/// Objects of a class in a span.
pub const fn objects(class: u8) -> u32 {
    OBJECTS[class as usize]
}

/// Which object of a class a byte of its span is in, and the object's first byte.
#[inline]
pub fn object_at(class: u8, inside: u32) -> (u32, u32) {
    // Divided by multiplying: exact, as both factors are below 2^16.
    let object = ((u64::from(inside) * RECIPROCALS[usize::from(class)]) >> 32) as u32;
    (object, object * SIZES[usize::from(class)])
}

/// 2^32 divided by the sizes, rounded up.
const RECIPROCALS: [u64; CLASSES] = {
    let mut reciprocals = [0; CLASSES];
    let mut i = 0;
    while i < CLASSES {
        reciprocals[i] = (1u64 << 32).div_ceil(SIZES[i] as u64);
        i += 1;
    }
    reciprocals
};

const OBJECTS: [u32; CLASSES] = {
    let mut objects = [0; CLASSES];
    let mut i = 0;
    while i < CLASSES {
        objects[i] = SPAN as u32 / SIZES[i];
        i += 1;
    }
    objects
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_its_object() {
        for class in 0..CLASSES as u8 {
            let size = SIZES[usize::from(class)];
            for inside in 0..SPAN as u32 {
                assert_eq!(object_at(class, inside), (inside / size, inside / size * size));
            }
        }
    }

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
        for len in 1..=32768u64 {
            let from = SIZES.partition_point(|size| u64::from(*size) < len);
            assert_eq!(class_of(len, 8), Some(from as u8));
        }
        for len in 65..32768u64 {
            let size = u64::from(SIZES[class_of(len, 1).unwrap() as usize]);
            assert!(size >= len && (size - len) * 4 <= size, "{len}: {size}");
        }
    }
}
