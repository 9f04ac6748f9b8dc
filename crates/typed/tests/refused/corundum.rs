//! What Corundum's paper (Hoseinzadeh and Swanson, 2021) wants kept out of programs, of which the borrow checker
//! knows.
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    names: PVec<PString>,
    next: Option<PBox<u64>>,
}

fn main() {
    let objects: Objects<Root> = Objects::create("store").unwrap();
    // Mutability only in transactions.
    objects.read().count += 1; //~ E0594 cannot assign
    // No pointer into a pool that was closed.
    let view = objects.read();
    drop(objects); //~ E0505 cannot move out
    println!("{}", view.count);
}
