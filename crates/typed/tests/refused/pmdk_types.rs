//! What PMDK's manuals warn of, and its compilers let through: copies of objects with pointers in them, objects made
//! outside of a pool, changes outside of a transaction, tables of virtual functions.
use caliburn::prelude::*;

#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
struct Copied { //~ E0204 cannot be implemented
    name: PString, //~ E0277 Clone` is not
}

trait Shape {
    fn area(&self) -> f64;
}

#[derive(Recoverable)]
#[repr(C)]
struct Drawing {
    shapes: PVec<PBox<dyn Shape>>, //~ E0277 size for values
}

fn main() {
    let outside: PBox<u64> = PBox::new(5); //~ E0308 mismatched types
    let objects: Objects<Drawing> = Objects::create("store").unwrap();
    objects.update(|root| {
        let copied = root.clone(); //~ E0599 `clone`
    })
    .unwrap();
}
