//! Nothing is read while a guard changes it, and nothing is changed by two guards.
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
            let first: &str = &root.names[0];
            root.fields().names.push("another"); //~ E0502 borrowed as immutable
            println!("{first}");

            let mut fields = root.fields();
            let mut a = fields.names.at(0);
            let mut b = fields.names.at(1); //~ E0499 more than once
            a.swap_with(&mut b);

            let count = &root.count;
            root.set(Root::default()); //~ E0502 borrowed as immutable
            println!("{count}");
        })
        .unwrap();
}
