//! Fields that mean nothing in another process, each named.
use caliburn::prelude::*;

#[derive(Recoverable)]
#[repr(C)]
struct Bad {
    size: usize,
    text: String,
    list: Vec<u64>,
    boxed: Box<u64>,
    pointer: *const u64,
    function: fn(),
    file: std::fs::File,
    instant: std::time::Instant,
    reference: &'static str,
    counter: std::sync::atomic::AtomicU64,
    cell: std::cell::Cell<u64>,
}

fn main() {}
