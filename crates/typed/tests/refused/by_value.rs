//! What is taken out of a collection, if it holds pointers, is the transaction's; no copy of it can be made.
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    names: PVec<PString>,
}

fn main() {
    let objects: Objects<Root> = Objects::create("store").unwrap();
    objects
        .update(|mut root| {
            let name: PString = root.fields().names.pop().unwrap(); //~ E0308 mismatched types
            let copied = root.name.clone(); //~ E0599 `clone`
        })
        .unwrap();
}
