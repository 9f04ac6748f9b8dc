//! No guard, reference or owned value outlives its transaction.
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
    let guard = objects.update(|root| root).unwrap(); //~ - lifetime may not live
    let reference: &u64 = objects.update(|root| &root.into_ref().count).unwrap(); //~ - lifetime may not live
    let name = objects.update(|mut root| root.fields().names.pop()).unwrap(); //~ - lifetime may not live
    let mut kept = None;
    objects.update(|root| kept = Some(root)).unwrap(); //~ E0521 escapes
    let mut tx = None;
    objects.update(|root| tx = Some(root.tx())).unwrap(); //~ E0521 escapes
}
