//! Nothing of a nested transaction outlives it, and nothing of its parent is put into it.
use caliburn::prelude::*;
use caliburn::typed::Error;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    name: PString,
    names: PVec<PString>,
    others: PVec<PString>,
}

fn main() {
    let root: Objects<Root> = Objects::create("root").unwrap();
    root.update(|mut root| {
        let mut taken = None;
        let _ = root.nest(|mut child| {
            taken = child.fields().names.pop(); //~ E0521 escapes
            Ok::<_, Error>(())
        });
        let _ = root.nest(|mut child| {
            Ok::<_, Error>(child.fields().names.pop()) //~ - lifetime may not live long enough
        });
        let mut guard = None;
        let _ = root.nest(|child| {
            guard = Some(child); //~ E0521 escapes
            Ok::<_, Error>(())
        });
    })
    .unwrap();
    root.update(|mut root| {
        let mut fields = root.fields();
        let (names, others) = (&mut fields.names, &mut fields.others);
        let name = names.pop().unwrap();
        let _ = others.nest(|mut child| {
            child.push(name); //~ E0521 escapes
            Ok::<_, Error>(())
        });
    })
    .unwrap();
    root.update(|mut root| {
        let _ = root.nest(|_| { //~ E0499 more than once
            root.fields().names.clear();
            Ok::<_, Error>(())
        });
    })
    .unwrap();
}
