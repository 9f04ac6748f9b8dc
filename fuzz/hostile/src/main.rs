//! Stores as somebody hands them on who knows the formats: fields, records, names and lengths are changed, and the
//! checksums mended. Whatever is opened, checked or told of then: nothing panics, nothing outside of the directory
//! is touched, nothing takes more time or memory than what is there, and `check` calls nothing clean that an
//! opening refuses.
//!
//! The input is a list of [changes](mutation), eight bytes each; its length chooses the store.
#![no_main]

mod layout;
mod mutation;
mod sample;
mod trial;

use libfuzzer_sys::fuzz_target;
use sample::{Sample, Works};
use std::sync::OnceLock;

fuzz_target!(|input: &[u8]| {
    static SAMPLES: OnceLock<(Works, Vec<Sample>)> = OnceLock::new();
    let (works, samples) = SAMPLES.get_or_init(|| {
        let works = Works::new();
        let samples = sample::all(&works);
        (works, samples)
    });
    let sample = &samples[input.len() % 8 % samples.len()];
    let changed = mutation::apply(sample, works, input);
    trial::run(sample, works, &changed);
});
