//! What Corundum's paper (Hoseinzadeh and Swanson, 2021) wants kept out: its goals, each tried.
use caliburn::prelude::*;
use std::cell::{RefCell, UnsafeCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

// Only persistent objects: nothing volatile, however it is wrapped.
#[derive(Recoverable)]
#[repr(C)]
struct Volatile {
    counted: Rc<u64>, //~ E0277 `Rc<u64>` cannot live in a store
    shared: Arc<u64>, //~ E0277 `Arc<u64>` cannot live in a store
    cell: RefCell<u64>, //~ E0277 `RefCell<u64>` cannot live in a store
    raw: UnsafeCell<u64>, //~ E0277 `UnsafeCell<u64>` cannot live in a store
    lock: Mutex<u64>, //~ E0277 cannot live in a store
    map: HashMap<u64, u64>, //~ E0277 `HashMap<u64, u64>` cannot live in a store
    inside: Option<Box<u64>>, //~ E0277 `Box<u64>` cannot live in a store
    owned: PBox<String>, //~ E0277 `String` cannot live in a store
    several: PVec<&'static str>, //~ E0277 `&'static str` cannot live in a store
    object: PBox<dyn Fn()>, //~ E0277 size for values
}

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
    objects.read().names.push("name"); //~ E0599 `push`
    // No pointer from a pool to what is volatile.
    let volatile = Box::new(5u64);
    objects.update(|mut root| root.fields().next.set(Some(volatile))).unwrap(); //~ E0277 cannot be made
}
