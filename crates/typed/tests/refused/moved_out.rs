//! Values with pointers are not moved out of a store, nor reached by `&mut`.
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
            let name: &mut PString = &mut *root.fields().name; //~ E0596 as mutable
            std::mem::take(name);
            let whole: &mut Root = &mut root; //~ E0596 as mutable
            std::mem::take(whole);
            let moved = root.name; //~ E0507 cannot move out
        })
        .unwrap();
    let moved = objects.read().name; //~ E0507 cannot move out
}
