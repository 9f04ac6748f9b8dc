//! A view does not change, nor is it left behind.
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    names: PVec<PString>,
}

fn name(objects: &Objects<Root>) -> &str {
    objects.read().name.as_str() //~ E0515 temporary value
}

fn main() {
    let objects: Objects<Root> = Objects::create("store").unwrap();
    let view = objects.read();
    view.count = 1; //~ E0594 cannot assign
    let text = name(&objects);
    let mut writer = objects.write();
    let before = writer.root();
    writer.update(|mut root| *root.fields().count += 1).unwrap(); //~ E0502 borrowed as immutable
    println!("{text} {}", before.count);
}
