//! The default of a field is an expression in a safe function of its own, with nothing of ours in sight.
use caliburn::prelude::*;

unsafe fn beyond() -> u64 {
    0
}

#[derive(Recoverable)]
#[repr(C)]
struct Unsafe {
    #[recoverable(default = beyond())] //~ E0133 unsafe function `beyond`
    number: u64,
    #[recoverable(default = *std::ptr::null::<u64>())] //~ E0133 dereference of raw pointer
    pointed: u64,
}

#[derive(Recoverable)]
#[repr(C)]
struct Leaving {
    #[recoverable(default = if true { return } else { 7u64 })] //~ E0308 mismatched types
    returned: u64,
    #[recoverable(default = break)] //~ E0268 `break` outside of a loop
    broken: u64,
    #[recoverable(default = continue)] //~ E0268 `continue` outside of a loop
    continued: u64,
    #[recoverable(default = "7".parse::<u64>()?)] //~ E0277 the `?` operator can only be used
    failed: u64,
    #[recoverable(default = std::future::ready(7u64).await)] //~ E0728 `await` is only allowed
    awaited: u64,
}

#[derive(Recoverable)]
#[repr(C)]
struct Naming {
    #[recoverable(default = loader.tx())] //~ E0425 cannot find value `loader`
    loader: u64,
    #[recoverable(default = fields)] //~ E0425 cannot find value `fields`
    fields: u64,
    #[recoverable(default = to)] //~ E0425 cannot find value `to`
    to: u64,
    #[recoverable(default = __value0)] //~ E0425 cannot find value `__value0`
    value: u64,
}

#[derive(Recoverable)]
#[repr(u8)]
enum Variant {
    Of(#[recoverable(default = beyond())] u64), //~ E0133 unsafe function `beyond`
    With {
        #[recoverable(default = if true { return } else { 7u64 })] //~ E0308 mismatched types
        returned: u64,
    },
}

fn main() {}
