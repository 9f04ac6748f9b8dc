//! Objects that a program in C++ uses too (bindings/c/tests/typed.cpp), one after the other: what each leaves, the
//! other finds, and both change it.
//!
//! ```text
//! with_cpp DIRECTORY make      makes them, and writes down what they are
//! with_cpp DIRECTORY check     compares them with what C++ has written down, and changes them again
//! ```

use caliburn::prelude::*;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[derive(Recoverable, Default)]
#[repr(C)]
struct World {
    accounts: PBTreeMap<PString, Account>,
    numbers: PBTreeMap<u64, i32>,
    names: PVec<PString>,
    chain: Option<PBox<Node>>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Account {
    balance: i64,
    history: PVec<u32>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Node {
    number: u64,
    next: Option<PBox<Node>>,
}

/// As the other program writes it down.
fn text(world: &World) -> String {
    let mut out = String::new();
    for (name, account) in &world.accounts {
        write!(out, "account {name} {}", account.balance).expect("a string takes all");
        account.history.iter().for_each(|amount| write!(out, " {amount}").expect("a string takes all"));
        out.push('\n');
    }
    for (key, value) in &world.numbers {
        writeln!(out, "number {key} {value}").expect("a string takes all");
    }
    for name in &world.names {
        writeln!(out, "name {name}").expect("a string takes all");
    }
    let mut next = &world.chain;
    while let Some(node) = next {
        writeln!(out, "link {}", node.number).expect("a string takes all");
        next = &node.next;
    }
    out
}

fn change(mut world: Mut<'_, '_, World>, from: u64) {
    let mut world = world.fields();
    for i in from..from + 400 {
        let name = format!("account_{}", i * 7 % 500);
        world
            .accounts
            .entry(name.as_str())
            .or_insert(AccountInit { balance: 0, history: Vec::<u32>::new() })
            .into_fields()
            .history
            .push(i as u32);
        world.numbers.insert(i * 11 % 600, i as i32 - 200);
        world.numbers.remove(&(i * 5 % 600));
        if i % 10 == 0 {
            world.names.push(name);
            let next = world.chain.take();
            world.chain.set(Some(PBox::new(NodeInit { number: i, next })));
        }
        if i % 3 == 0 {
            world.accounts.remove(format!("account_{}", i * 13 % 500).as_str());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, what] = &words[..] else { return Err("with_cpp DIRECTORY make|check".into()) };
    let (dir, expected) = (Path::new(dir), Path::new(dir).join("expected"));
    let store = Store::options().create(what == "make").open(dir.join("store"))?;
    let world = Objects::<World>::open(&store, "world")?;
    if what == "check" {
        if text(&world.read()) != fs::read_to_string(&expected)? {
            return Err("the objects are not what the other program says".into());
        }
        let found = world.unreached()?;
        if !found.is_empty() {
            return Err(format!("the other program has left what nothing reaches: {found:?}").into());
        }
    }
    world.update(|root| change(root, if what == "make" { 0 } else { 1000 }))?;
    fs::write(expected, text(&world.read()))?;
    println!("{} accounts, {} numbers", world.read().accounts.len(), world.read().numbers.len());
    Ok(())
}
