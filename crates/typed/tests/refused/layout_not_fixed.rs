//! The compiler may lay these out anew.
use caliburn::prelude::*;

#[derive(Recoverable)]
struct Plain { //~ - add #[repr(C)]
    count: u64,
}

#[derive(Recoverable)]
enum Choice { //~ - add #[repr(u8)]
    One,
    Two(u64),
}

#[derive(Recoverable)]
#[repr(C, u8)] //~ E0566 conflicting
enum Both { //~ - leave C out
    One,
}

#[derive(Recoverable)]
#[repr(C, packed)]
struct Packed { //~ - a packed type
    small: u8,
    large: u64,
}

#[derive(Recoverable)]
#[repr(C)]
union Either { //~ - a union cannot
    a: u64,
    b: i64,
}

#[derive(Recoverable)]
#[repr(u8)] //~ E0084 zero-variant
enum Never {} //~ - without variants

/// Objects would not tell which of the two they had.
#[derive(Recoverable)]
#[repr(C)]
struct Renamed {
    money: u64,
    #[recoverable(was = "money")]
    balance: u64, //~ - the name of a field
}

fn main() {}
