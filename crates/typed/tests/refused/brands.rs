//! What breaks a brand if it is not one (GhostCell, Yanovski et al., 2021): to make two equal, to shorten or
//! lengthen one, to copy its permission, to share it between threads.
use caliburn::prelude::*;
use caliburn::typed::Tx;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
    name: PString,
    names: PVec<PString>,
}

fn of_one_brand<'a, 'id>(one: Mut<'a, 'id, Root>, other: Mut<'a, 'id, Root>) {
    _ = (one, other);
}

fn shorter<'long: 'short, 'short>(tx: Tx<'long>) -> Tx<'short> {
    tx //~ - lifetime may not live
}

fn longer<'long: 'short, 'short>(tx: Tx<'short>) -> Tx<'long> {
    tx //~ - lifetime may not live
}

fn shorter_guard<'a, 'long: 'short, 'short>(guard: Mut<'a, 'long, Root>) -> Mut<'a, 'short, Root> {
    guard //~ - lifetime may not live
}

fn main() {
    let one: Objects<Root> = Objects::create("one").unwrap();
    let other: Objects<Root> = Objects::create("other").unwrap();
    one.update(|one| other.update(|other| of_one_brand(one, other)).unwrap()).unwrap(); //~ E0521 escapes
    one.update(|mut root| {
        let moved = root;
        *root.fields().count += 1; //~ E0382 moved value
        _ = moved;
    })
    .unwrap();
    one.update(|mut root| {
        let mut names = root.fields().names;
        for mut name in names.iter_mut() {
            names.push("another"); //~ E0499 more than once
            name.push('.');
        }
    })
    .unwrap();
}
