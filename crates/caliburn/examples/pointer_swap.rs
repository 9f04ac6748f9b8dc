//! Atomic pointer swap (Vista, section 3.2): a new version of an object is built beside the old one, and a root is
//! moved to it. Whoever looks, after whatever crash, finds one version or the other, whole.
//!
//! `cargo run --example pointer_swap -- STORE TEXT` publishes a text and prints what was there before.

use caliburn::heap::{Heap, HeapError, Place};
use caliburn::{Class, Policy, Store};

/// The text that is published.
pub fn current(heap: &Heap) -> Option<String> {
    let place = heap.root("text")?;
    let len: u64 = heap.region().load(place.0 as usize);
    let mut bytes = vec![0; len as usize];
    heap.region().read(place.0 as usize + 8, &mut bytes);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Publishes another.
pub fn publish(heap: &Heap, text: &str) -> Result<(), HeapError> {
    // A transaction for the new version alone: the old one is not touched, however long this takes.
    let mut tx = heap.begin()?;
    let new = tx.allocate(8 + text.len())?;
    tx.store(new, 0, &(text.len() as u64))?;
    tx.write(new, 8, text.as_bytes())?;
    // The swap, and the end of the old version, are one thing.
    if let Some(old) = heap.root("text") {
        tx.free(old)?;
    }
    tx.set_root("text", Some(new))?;
    tx.commit(Class::Process)
}

#[allow(dead_code, reason = "the test uses the functions above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: pointer_swap STORE TEXT".into());
    };
    let store = Store::options().create(true).policy(Policy::Undo).open(path)?;
    let heap = Heap::open(&store, "texts")?;
    println!("before: {:?}", current(&heap));
    publish(&heap, &text)?;
    println!("now:    {:?}", current(&heap));
    let _: Option<Place> = heap.root("text");
    drop(heap);
    Ok(store.close()?)
}
