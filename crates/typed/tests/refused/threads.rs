//! Guards belong to the thread of their transaction.
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
            std::thread::scope(|scope| {
                scope.spawn(|| root.fields().names.push("name")); //~ E0277 cannot be sent between threads
            });
        })
        .unwrap();
}
