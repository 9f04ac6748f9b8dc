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
    let guard = objects.update(|root| root).unwrap();
    let reference: &u64 = objects.update(|root| &root.into_ref().count).unwrap();
    let name = objects.update(|mut root| root.fields().names.pop()).unwrap();
    let mut kept = None;
    objects.update(|root| kept = Some(root)).unwrap();
    let mut tx = None;
    objects.update(|root| tx = Some(root.tx())).unwrap();
}
