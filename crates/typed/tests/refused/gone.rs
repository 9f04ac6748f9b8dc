//! Of each part that an older type had, it must be plain what takes it.
use caliburn::prelude::*;

#[derive(Recoverable)]
#[repr(C)]
struct Twice {
    #[recoverable(was = "money")]
    balance: u64, //~ - had the name "money"
    #[recoverable(was = "money")]
    credit: u64,
}

#[derive(Recoverable)]
#[repr(C)]
#[recoverable(gone("money"))]
struct GoneAndTaken {
    #[recoverable(was = "money")]
    balance: u64, //~ - said to be gone
}

#[derive(Recoverable)]
#[repr(C)]
#[recoverable(gone("balance"))]
struct GoneAndThere {
    balance: u64, //~ - said to be gone
}

#[derive(Recoverable)]
#[repr(u8)]
enum Variants {
    Open,
    #[recoverable(was = "Open")]
    Closed, //~ - the name of a field or variant
}

#[derive(Recoverable)]
#[repr(C)]
#[recoverable(was = "Old")] //~ - of a type or a variant, `gone
struct NotKnown {
    count: u64,
}

fn main() {}
