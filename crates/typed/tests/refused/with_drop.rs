//! A value in a store is not dropped: it is freed.
use caliburn::prelude::*;

#[derive(Recoverable)] //~ E0119 TypesInAStoreDoNotImplementDrop
#[repr(C)]
struct Noisy {
    count: u64,
}

impl Drop for Noisy {
    fn drop(&mut self) {}
}

fn main() {}
