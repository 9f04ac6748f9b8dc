//! What belongs to one transaction is not put into the objects of another.
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    names: PVec<PString>,
}

fn main() {
    let one: Objects<Root> = Objects::create("one").unwrap();
    let other: Objects<Root> = Objects::create("other").unwrap();
    one.update(|mut one| {
        other
            .update(|mut other| {
                let name = one.fields().names.pop().unwrap();
                other.fields().names.push(name);
                one.fields().names.append(&mut other.fields().names); //~ E0521 escapes
                one.fields().name.swap_with(&mut other.fields().name);
            })
            .unwrap();
    })
    .unwrap();
}
