//! Bytes that pad values in volatile memory do not reach a store: they may hold anything that was there before.

mod support;

use caliburn::{Objects, Policy, Recoverable};
use std::mem::MaybeUninit;
use support::{objects, store};

#[derive(Recoverable, Debug, Clone, Copy)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u64,
    odd: u16,
}

#[derive(Recoverable, Debug, Clone, Copy)]
#[repr(u8)]
enum Choice {
    Nothing,
    Large(u64),
    Small(u8, u16),
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    padded: Option<Padded>,
    tuple: Option<(u8, u32)>,
    array: Option<[Padded; 2]>,
    choice: Option<Choice>,
    other: Option<Choice>,
}

const SECRET: u8 = 0xA5;

/// A value whose padding holds a secret.
fn with_secret<T: Recoverable>(value: T) -> T {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: all bytes are written, then those of the value.
    unsafe {
        place.as_mut_ptr().cast::<u8>().write_bytes(SECRET, size_of::<T>());
        T::store(&value, place.as_mut_ptr());
        std::mem::forget(value);
        place.assume_init()
    }
}

#[test]
fn no_padding_is_stored() {
    let (_dir, store) = store(Policy::Redo);
    let root: Objects<Root> = objects(&store);
    root.update(|mut root| {
        let mut root = root.fields();
        let padded = with_secret(Padded { small: 1, large: 2, odd: 3 });
        root.padded.set(with_secret(Some(padded)));
        root.tuple.set(with_secret(Some(with_secret((1, 2)))));
        root.array.set(with_secret(Some([padded; 2])));
        root.choice.set(with_secret(Some(with_secret(Choice::Small(1, 2)))));
        root.other.set(with_secret(Some(with_secret(Choice::Nothing))));
    })
    .unwrap();
    let view = root.read();
    assert!(matches!(view.choice, Some(Choice::Small(1, 2))) && matches!(view.other, Some(Choice::Nothing)));
    assert_eq!(view.padded.map(|padded| (padded.small, padded.large, padded.odd)), Some((1, 2, 3)));
    let heap = root.heap();
    let mut bytes = vec![0; heap.region().len()];
    heap.region().read(0, &mut bytes);
    let found = bytes.iter().filter(|byte| **byte == SECRET).count();
    assert_eq!(found, 0, "bytes of a value's padding are in the store");
    let _ = Choice::Large(1);
}
