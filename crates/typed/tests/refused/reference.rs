//! A type with a lifetime holds references.
use caliburn::prelude::*;

#[derive(Recoverable)]
#[repr(C)]
struct Bad<'a> { //~ - holds no references
    text: &'a str,
}

fn main() {}
