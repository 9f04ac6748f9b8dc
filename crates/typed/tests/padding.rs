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

/// Whether storing a value whose padding is a secret stores the secret. `parts` are the bytes that are part of it.
fn leaks<T: Recoverable>(value: T, parts: &[std::ops::Range<usize>]) -> bool {
    let (mut from, mut to) = (MaybeUninit::<T>::uninit(), MaybeUninit::<T>::uninit());
    let bytes = size_of::<T>();
    // SAFETY: all bytes of both are written before they are read.
    unsafe {
        from.as_mut_ptr().write(value);
        for at in (0..bytes).filter(|at| !parts.iter().any(|part| part.contains(at))) {
            from.as_mut_ptr().cast::<u8>().add(at).write(SECRET);
        }
        to.as_mut_ptr().cast::<u8>().write_bytes(0, bytes);
        T::store(from.as_ptr(), to.as_mut_ptr());
        (0..bytes).any(|at| to.as_ptr().cast::<u8>().add(at).read() == SECRET)
    }
}

/// All of so many bytes.
fn whole(bytes: usize) -> Vec<std::ops::Range<usize>> {
    std::iter::once(0..bytes).collect()
}

#[test]
fn no_padding_is_stored() {
    let padded = Padded { small: 1, large: 2, odd: 3 };
    let parts = [0..1, 8..16, 16..18];
    assert!(!leaks(padded, &parts));
    assert!(!leaks((1u8, Some(2u64)), &whole(24)), "no padding was looked for");
    let in_array = parts.iter().chain(&[24..25, 32..40, 40..42]).cloned().collect::<Vec<_>>();
    assert!(!leaks([padded; 2], &in_array));
    // An option's tag is in front, as long as what comes first.
    let behind = |by: usize| parts.iter().map(|part| part.start + by..part.end + by).collect::<Vec<_>>();
    let tag = size_of::<Option<Padded>>() - size_of::<Padded>();
    assert!(!leaks(Some(padded), &[whole(tag), behind(tag)].concat()));
    assert!(!leaks(Choice::Small(1, 2), &[0..1, 1..2, 2..4]));
    assert!(!leaks(Choice::Nothing, &whole(1)));
    assert!(!leaks(Choice::Large(1), &[0..1, 8..16]));
}

#[test]
fn values_with_padding_are_stored_whole() {
    let (_dir, store) = store(Policy::Redo);
    let root: Objects<Root> = objects(&store);
    let padded = Padded { small: 1, large: 2, odd: 3 };
    root.update(|mut root| {
        let mut root = root.fields();
        root.padded.set(Some(padded));
        root.tuple.set(Some((1, 2)));
        root.array.set(Some([padded; 2]));
        root.choice.set(Some(Choice::Small(1, 2)));
        root.other.set(Some(Choice::Large(3)));
    })
    .unwrap();
    let view = root.read();
    assert!(matches!(view.choice, Some(Choice::Small(1, 2))) && matches!(view.other, Some(Choice::Large(3))));
    let same = |found: &Padded| (found.small, found.large, found.odd) == (1, 2, 3);
    assert!(view.padded.iter().all(same) && view.array.iter().flatten().all(same));
    assert_eq!(view.tuple, Some((1, 2)));
}
