//! Transactions as scopes, guards, and what is there after closing and opening.

mod support;

use caliburn::{Class, Policy};
use caliburn::{Error, Objects, PBox, PHashMap, PString, PVec, Recoverable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, objects, store};

#[derive(Recoverable, Debug, Default)]
#[repr(C)]
struct Bank {
    accounts: PHashMap<PString, Account>,
    transfers: u64,
    log: PVec<Event>,
    first: Option<PBox<Node>>,
}

#[derive(Recoverable, Debug, Default, PartialEq)]
#[repr(C)]
struct Account {
    owner: PString,
    balance: i64,
    kind: Kind,
}

#[derive(Recoverable, Debug, Default, PartialEq, Clone, Copy)]
#[repr(u8)]
enum Kind {
    #[default]
    Plain,
    Limited(u32) = 7,
    Joint {
        with: u64,
        since: u16,
    },
}

#[derive(Recoverable, Debug, PartialEq)]
#[repr(u8)]
enum Event {
    Opened(PString),
    Moved { amount: i64, note: PString },
    Nothing,
}

#[derive(Recoverable, Debug)]
#[repr(C)]
struct Node {
    value: u64,
    next: Option<PBox<Node>>,
}

#[derive(Debug)]
enum Refused {
    Poor,
    Store(#[expect(dead_code, reason = "printed")] Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error)
    }
}

fn transfer(bank: &Objects<Bank>, from: &str, to: &str, amount: i64) -> Result<i64, Refused> {
    bank.transact(|mut bank| {
        let mut bank = bank.fields();
        let mut source = bank.accounts.get_mut(from).ok_or(Refused::Poor)?;
        *source.fields().balance -= amount;
        let left = source.balance;
        *bank.accounts.get_mut(to).ok_or(Refused::Poor)?.fields().balance += amount;
        *bank.transfers += 1;
        bank.log.push(EventInit::moved(amount));
        if left < 0 { Err(Refused::Poor) } else { Ok(left) }
    })
}

/// An event is put in by its parts.
struct EventInit;

impl EventInit {
    fn moved(amount: i64) -> Event {
        Event::Moved { amount, note: PString::new() }
    }
}

#[test]
fn a_bank_is_what_its_transactions_made_of_it() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (dir, store) = store(policy);
        let bank = objects::<Bank>(&store);
        bank.update(|mut bank| {
            let mut fields = bank.fields();
            for (name, balance) in [("ann", 100), ("bob", 20)] {
                let account = AccountInit { owner: name, balance, kind: Kind::Limited(5) };
                assert!(fields.accounts.insert(name, account).is_none());
                fields.log.push(Event::Opened(PString::new()));
                match fields.log.last_mut().unwrap().into_fields() {
                    EventFields::Opened(mut text) => text.push_str(name),
                    _ => unreachable!(),
                }
            }
        })
        .unwrap();
        assert_eq!(transfer(&bank, "ann", "bob", 30).unwrap(), 70);
        assert!(matches!(transfer(&bank, "ann", "bob", 80), Err(Refused::Poor)));
        assert!(matches!(transfer(&bank, "ann", "nobody", 1), Err(Refused::Poor)));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            bank.update(|mut bank| {
                bank.fields().accounts.clear();
                *bank.fields().transfers = 77;
                panic!("as planned");
            })
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "as planned");

        let check = |bank: &Objects<Bank>| {
            let view = bank.read();
            assert_eq!((view.accounts["ann"].balance, view.accounts["bob"].balance), (70, 50));
            assert_eq!(view.accounts["bob"].owner, "bob");
            assert_eq!(view.accounts["bob"].kind, Kind::Limited(5));
            assert_eq!((view.transfers, view.log.len(), view.accounts.len()), (1, 3, 2));
            assert!(matches!(&view.log[0], Event::Opened(name) if name == "ann"));
            assert!(matches!(&view.log[2], Event::Moved { amount: 30, .. }));
            assert!(view.first.is_none());
        };
        check(&bank);
        drop(store);
        bank.close().unwrap();
        let store = caliburn::Store::open(dir.path().join("store")).unwrap();
        check(&objects::<Bank>(&store));
    }
}

#[test]
fn values_move_between_places_of_a_transaction() {
    let (_dir, store) = store(Policy::Redo);
    let bank = objects::<Bank>(&store);
    bank.update(|mut bank| {
        let mut fields = bank.fields();
        fields.log.push(Event::Opened(PString::new()));
        for (i, mut event) in fields.log.iter_mut().enumerate() {
            if let EventFields::Opened(mut text) = event.fields() {
                text.assign(&format!("event {i} in more than sixteen bytes"));
            }
        }
        let mut event = fields.log.pop().unwrap();
        assert!(matches!(&*event, Event::Opened(text) if text.starts_with("event 0")));
        if let EventFields::Opened(mut text) = event.as_mut().fields() {
            text.push_str("!");
        }
        fields.log.push(Event::Nothing);
        fields.log.insert(0, event);
        for value in 0..10 {
            let next = fields.first.take();
            fields.first.set(Some(PBox::new(NodeInit { value, next })));
        }
    })
    .unwrap();
    let view = bank.read();
    assert!(matches!(&view.log[0], Event::Opened(text) if *text == "event 0 in more than sixteen bytes!"));
    assert_eq!(view.log[1], Event::Nothing);
    let (mut values, mut next) = (Vec::new(), &view.first);
    while let Some(node) = next {
        values.push(node.value);
        next = &node.next;
    }
    assert_eq!(values, (0..10).rev().collect::<Vec<_>>());
}

#[test]
fn what_an_owner_held_is_freed_with_it_also_a_million_deep() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let options = caliburn::Store::options().create(true).policy(policy).log_bytes(1 << 30).clone();
        let store = options.open(dir.path().join("store")).unwrap();
        let bank = objects::<Bank>(&store);
        let before = allocated(&bank);
        const DEPTH: u64 = 1_000_000;
        bank.transact_in::<_, Error>(Class::Process, |mut bank| {
            let mut fields = bank.fields();
            for value in 0..DEPTH {
                let next = fields.first.take();
                fields.first.set(Some(PBox::new(NodeInit { value, next })));
            }
            let many = (0..1000)
                .map(|i| (format!("account {i}"), AccountInit { owner: "x", balance: i, kind: Kind::Plain }));
            fields.accounts.extend(many);
            Ok(())
        })
        .unwrap();
        assert!(allocated(&bank) > before + DEPTH);
        bank.transact_in::<_, Error>(Class::Process, |mut bank| {
            bank.set(Bank::default());
            Ok(())
        })
        .unwrap();
        assert_eq!(allocated(&bank), before);
    }
}

#[test]
fn a_transaction_that_finds_no_room_is_undone_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let options = caliburn::Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .stage_bytes(1 << 20)
        .clone();
    let store = options.open(dir.path().join("store")).unwrap();
    let bank = objects::<Bank>(&store);
    bank.update(|mut bank| {
        bank.fields().accounts.extend([("ann", AccountInit { owner: "ann", balance: 1, kind: Kind::Plain })])
    })
    .unwrap();
    let before = allocated(&bank);
    for caught in [false, true] {
        let error = bank
            .update(|mut bank| {
                let fill = |bank: &mut caliburn::Mut<'_, '_, Bank>| {
                    for i in 0..1_000_000 {
                        let account = AccountInit { owner: "somebody", balance: i, kind: Kind::Plain };
                        drop(bank.fields().accounts.insert(format!("account number {i}"), account));
                    }
                };
                if caught {
                    // Whoever catches what unwinds can look, and cannot commit.
                    assert!(catch_unwind(AssertUnwindSafe(|| fill(&mut bank))).is_err());
                    assert!(bank.accounts.len() > 1000);
                    assert!(bank.accounts.iter().count() > 1000);
                } else {
                    fill(&mut bank);
                }
            })
            .unwrap_err();
        assert!(matches!(error, Error::Range(_)), "{error}");
        assert_eq!(bank.read().accounts.len(), 1);
        assert_eq!(bank.read().accounts["ann"].balance, 1);
        assert_eq!(allocated(&bank), before);
    }
    bank.update(|mut bank| *bank.fields().transfers += 1).unwrap();
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Older {
    accounts: PHashMap<PString, u64>,
    transfers: u64,
}

#[test]
fn other_types_are_refused_with_what_differs() {
    let (_dir, store) = store(Policy::Redo);
    drop(objects::<Bank>(&store));
    let error = Objects::<Older>::open(&store, "objects").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Changed { .. }), "{text}");
    for line in
        ["- root Bank", "+ root Older", "-   accounts 0 PHashMap<PString, Account>", "+ struct Older 48 8"]
    {
        assert!(text.contains(line), "{text}");
    }

    let heap = caliburn::heap::Heap::open(&store, "plain").unwrap();
    let mut tx = heap.begin().unwrap();
    tx.allocate(8).unwrap();
    tx.commit(Class::Process).unwrap();
    drop(heap);
    let error = Objects::<Bank>::open(&store, "plain").unwrap_err();
    assert!(error.to_string().contains("another program has allocated its objects"), "{error}");
}

#[test]
fn the_record_names_types_fields_and_offsets() {
    let (_dir, store) = store(Policy::Redo);
    let bank = objects::<Bank>(&store);
    let text = bank.types().unwrap();
    let text = text.split_once("\nroot ").unwrap().1;
    let wanted = "Bank\nstruct Bank 80 8\n  accounts 0 PHashMap<PString, Account>\n  transfers 40 u64\n  log 48 PVec<Event>\n  \
                  first 72 Option<PBox<Node>>\nstruct Account 56 8\n  owner 0 PString\n  balance 24 i64\n  kind 32 Kind\n\
                  enum Kind 24 8 u8\n  Plain 0\n  Limited 7\n    0 4 u32\n  Joint 8\n    with 8 u64\n    since 16 u16\n";
    assert!(text.starts_with(wanted), "{text}");
}

#[test]
fn one_writes_while_others_wait_and_readers_see_whole_transactions() {
    let (_dir, store) = store(Policy::Redo);
    let bank = objects::<Bank>(&store);
    bank.update(|mut bank| {
        for name in ["a", "b"] {
            let account = AccountInit { owner: name, balance: 500, kind: Kind::Joint { with: 1, since: 2 } };
            bank.fields().accounts.insert(name, account);
        }
    })
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let writes = bank.clone();
            scope.spawn(move || {
                for i in 0..200 {
                    let (from, to) = if (i + thread) % 2 == 0 { ("a", "b") } else { ("b", "a") };
                    writes
                        .transact_in::<_, Error>(Class::Process, |mut bank| {
                            let mut fields = bank.fields();
                            *fields.accounts.get_mut(from).unwrap().fields().balance -= 1;
                            *fields.accounts.get_mut(to).unwrap().fields().balance += 1;
                            *fields.transfers += 1;
                            Ok(())
                        })
                        .unwrap();
                }
            });
            let bank = bank.clone();
            scope.spawn(move || {
                while bank.read().transfers < 400 {
                    let view = bank.read();
                    assert_eq!(view.accounts["a"].balance + view.accounts["b"].balance, 1000);
                }
            });
        }
    });
    assert_eq!(bank.read().transfers, 400);
}

#[test]
fn a_thread_that_would_wait_for_itself_is_told() {
    let (_dir, store) = store(Policy::Redo);
    let bank = objects::<Bank>(&store);
    let told = |what: &mut dyn FnMut()| {
        let panicked = catch_unwind(AssertUnwindSafe(what)).unwrap_err();
        panicked.downcast_ref::<&str>().map(|text| text.to_string()).unwrap_or_default()
    };
    let view = bank.read();
    assert!(told(&mut || drop(bank.write())).contains("holds a view"));
    let again = bank.read();
    assert_eq!(view.transfers, again.transfers);
    drop(view);
    assert!(told(&mut || drop(bank.write())).contains("holds a view"));
    drop(again);
    assert!(told(&mut || drop(bank.update(|_| drop(bank.read())))).contains("inside of a transaction"));
    assert!(told(&mut || drop(bank.update(|_| drop(bank.write())))).contains("inside of another"));
    bank.update(|mut bank| *bank.fields().transfers += 1).unwrap();
    // Opened twice, it would have two locks.
    assert!(matches!(Objects::<Bank>::open(&store, "objects"), Err(Error::Heap(_))));
}
