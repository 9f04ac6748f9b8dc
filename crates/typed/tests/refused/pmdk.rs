//! What PMDK's manuals warn of, and its compilers let through: copies of objects with pointers in them, changes
//! outside of a transaction.
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    parts: PVec<PString>,
    part: Option<PBox<u64>>,
}

fn main() {
    let objects: Objects<Root> = Objects::create("store").unwrap();
    objects
        .update(|mut root| {
            let copy: Root = *root; //~ E0507 cannot move out
            let name = std::mem::take(&mut *root.fields().name); //~ E0596 as mutable
            let mut fields = root.fields();
            std::mem::swap(&mut *fields.name, &mut *fields.parts.at(0)); //~ E0596 as mutable //~ E0596 as mutable
        })
        .unwrap();
    let view = objects.read();
    drop(view.name); //~ E0507 cannot move out
    let name: PString = view.parts[0]; //~ E0508 cannot move out
}
