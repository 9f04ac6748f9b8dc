//! The compiler may lay these out anew.
use caliburn::prelude::*;

#[derive(Recoverable)]
struct Plain {
    count: u64,
}

#[derive(Recoverable)]
enum Choice {
    One,
    Two(u64),
}

#[derive(Recoverable)]
#[repr(C, u8)]
enum Both {
    One,
}

#[derive(Recoverable)]
#[repr(C, packed)]
struct Packed {
    small: u8,
    large: u64,
}

#[derive(Recoverable)]
#[repr(C)]
union Either {
    a: u64,
    b: i64,
}

#[derive(Recoverable)]
#[repr(u8)]
enum Never {}

fn main() {}
