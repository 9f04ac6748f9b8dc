//! A guard is one thread's, and nobody else has the right that it carries (GhostCell, Yanovski et al., 2021).
use caliburn::prelude::*;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    count: u64,
}

fn any<'id>(objects: &Objects<Root>, make: impl FnOnce(Mut<'_, 'id, Root>)) {
    objects.update(make).unwrap(); //~ E0277 expected a `FnOnce
}

fn main() {
    let one: Objects<Root> = Objects::create("one").unwrap();
    one.update(|root| {
        std::thread::scope(|scope| {
            scope.spawn(|| println!("{}", root.count)); //~ E0277 `*mut Root` cannot be shared //~ E0277 Core<'static>` cannot be shared
        });
    })
    .unwrap();
}
