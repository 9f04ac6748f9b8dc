//! Objects of older types, brought to new ones: wholly or not at all.

mod support;

use caliburn::{Error, Mut, Objects, PHashMap, PString, PVec, Policy, Recoverable, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, store};

mod old {
    use caliburn::{PHashMap, PString, PVec, Recoverable};

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Bank {
        pub accounts: PHashMap<PString, Account>,
        pub history: PVec<u32>,
        pub gone: PVec<PString>,
    }

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Account {
        pub balance: i32,
        pub tags: PVec<PString>,
    }
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Bank {
    name: PString,
    accounts: PHashMap<PString, Account>,
    history: PVec<u32>,
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Account {
    limit: u64,
    balance: i64,
    tags: PVec<PString>,
}

fn fill(store: &Store) {
    let bank = Objects::<old::Bank>::open(store, "bank").unwrap();
    bank.update(|mut bank| {
        let mut bank = bank.fields();
        for i in 0..500 {
            let tags = vec![format!("tag {i}"), "another".to_owned()];
            bank.accounts.insert(format!("account {i}"), old::AccountInit { balance: i, tags });
        }
        bank.history.extend(0..1000);
        bank.gone.extend(["one", "two"]);
    })
    .unwrap();
}

fn change<'id>(mut old: Mut<'_, 'id, old::Bank>, mut new: Mut<'_, 'id, Bank>) {
    let (mut old, mut new) = (old.fields(), new.fields());
    new.history.set(old.history.take());
    new.name.set("migrated");
    for (key, mut account) in old.accounts.drain() {
        let mut account = account.as_mut();
        let mut fields = account.fields();
        let (balance, tags) = (i64::from(*fields.balance), fields.tags.take());
        new.accounts.insert(key, AccountInit { limit: 7u64, balance, tags });
    }
}

#[test]
fn old_objects_become_new_ones_and_nothing_is_left() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store(policy);
        fill(&store);
        let Err(Error::Changed { difference, .. }) = Objects::<Bank>::open(&store, "bank") else {
            panic!("accepted")
        };
        for line in
            ["-   gone 64 PVec<PString>", "+   name 0 PString", "-   balance 0 i32", "+   balance 8 i64"]
        {
            assert!(difference.contains(line), "{difference}");
        }
        // Undone, when it fails.
        let failed = catch_unwind(AssertUnwindSafe(|| {
            Objects::<Bank>::migrate(&store, "bank", |old: Mut<'_, '_, old::Bank>, new| {
                change(old, new);
                panic!("as planned");
            })
        }));
        assert!(failed.is_err());
        let before = Objects::<old::Bank>::open(&store, "bank").unwrap();
        assert_eq!((before.read().accounts.len(), before.read().gone.len()), (500, 2));
        drop(before);
        let wrong = Objects::<Bank>::migrate(&store, "bank", |_: Mut<'_, '_, PVec<u8>>, _| ());
        assert!(matches!(wrong, Err(Error::Changed { .. })));

        for _ in 0..2 {
            // The second time it is done already.
            let bank =
                Objects::<Bank>::migrate(&store, "bank", |old: Mut<'_, '_, old::Bank>, new| change(old, new));
            let bank = bank.unwrap();
            let view = bank.read();
            assert_eq!(
                (view.name.as_str(), view.accounts.len(), view.history.len()),
                ("migrated", 500, 1000)
            );
            let account = &view.accounts["account 77"];
            assert_eq!((account.balance, account.limit, account.tags[0].as_str()), (77, 7, "tag 77"));
        }
        let bank = Objects::<Bank>::open(&store, "bank").unwrap();
        bank.update(|mut bank| bank.set(Bank::default())).unwrap();
        assert_eq!(allocated(&bank), 2, "the root and the record");
    }
}

#[test]
fn what_is_not_there_is_made() {
    let (_dir, store) = store(Policy::Redo);
    let bank =
        Objects::<Bank>::migrate(&store, "new", |_: Mut<'_, '_, old::Bank>, _| panic!("nothing to change"));
    assert!(bank.unwrap().read().accounts.is_empty());
}
