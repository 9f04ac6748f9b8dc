//! A type with a lifetime holds references.
use caliburn::prelude::*;

#[derive(Recoverable)]
#[repr(C)]
struct Bad<'a> {
    text: &'a str,
}

fn main() {}
