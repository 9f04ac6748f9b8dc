//! Fields that mean nothing in another process, each named.
use caliburn::prelude::*;

#[derive(Recoverable)]
#[repr(C)]
struct Bad {
    size: usize, //~ E0277 `usize` cannot live in a store
    text: String, //~ E0277 `String` cannot live in a store
    list: Vec<u64>, //~ E0277 `Vec<u64>` cannot live in a store
    boxed: Box<u64>, //~ E0277 `Box<u64>` cannot live in a store
    pointer: *const u64, //~ E0277 `*const u64` cannot live in a store
    function: fn(), //~ E0277 `fn()` cannot live in a store
    file: std::fs::File, //~ E0277 `File` cannot live in a store
    instant: std::time::Instant, //~ E0277 `Instant` cannot live in a store
    reference: &'static str, //~ E0277 `&'static str` cannot live in a store
    counter: std::sync::atomic::AtomicU64, //~ E0277 `AtomicU64` cannot live in a store
    cell: std::cell::Cell<u64>, //~ E0277 `Cell<u64>` cannot live in a store
}

fn main() {}
