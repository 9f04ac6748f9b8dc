//! What a migration by the names of fields would lose: refused with a list, unless it is declared gone.

mod support;

use caliburn::typed::{Fate, Format};
use caliburn::{
    Error, Objects, PBTreeMap, PBox, PHashMap, PRc, PSlotMap, PString, PVec, PWeak, Policy, Recoverable,
    SlotKey, Store,
};
use std::ops::ControlFlow;
use support::{allocated, store};

const ON: fn(u64) -> ControlFlow<()> = |_| ControlFlow::Continue(());

mod old {
    use super::*;

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Shop {
        pub items: PVec<Item>,
        pub by_name: PHashMap<PString, PBox<Item>>,
        pub inner: Inner,
        pub kinds: PSlotMap<Kind>,
        pub shared: PVec<PRc<Kind>>,
        pub weak: PVec<PWeak<Kind>>,
        pub keys: PVec<SlotKey<Kind>>,
        pub pair: (u8, PString),
    }
    #[derive(Recoverable)]
    #[repr(C)]
    pub struct Item {
        pub price: u64,
        pub label: Option<PString>,
        pub kind: Option<Kind>,
    }
    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Inner {
        pub opened: u32,
        pub closed: u32,
    }
    #[derive(Recoverable)]
    #[repr(u8)]
    pub enum Kind {
        Plain,
        Sized { width: u32, height: u32 },
        Rare(u64),
    }
}

const ITEMS: u64 = 1000;

fn fill(store: &Store) {
    let shop = Objects::<old::Shop>::open(store, "shop").unwrap();
    shop.update(|mut shop| {
        let tx = shop.tx();
        let mut shop = shop.fields();
        for i in 0..ITEMS {
            let kind = [None, Some(old::Kind::Plain), Some(old::Kind::Rare(i))][i as usize % 3].take();
            shop.items.push(old::ItemInit { price: i, label: Some("label"), kind });
        }
        let kind = Some(old::Kind::Sized { width: 2, height: 3 });
        shop.by_name.insert("one", PBox::new(old::ItemInit { price: 7, label: None::<&str>, kind }));
        (*shop.inner.fields().opened, *shop.inner.fields().closed) = (8, 9);
        let plain = shop.kinds.insert(old::Kind::Plain);
        let rare = shop.kinds.insert(old::Kind::Rare(1));
        shop.keys.extend([plain, rare]);
        for kind in [old::Kind::Rare(5), old::Kind::Plain] {
            shop.shared.push(PRc::new(kind));
        }
        let (again, weak) = (PRc::share(&shop.shared[0], tx), PRc::downgrade(&shop.shared[0], tx));
        shop.shared.push(again);
        shop.weak.push(weak);
        shop.pair.set((1, "second"));
    })
    .unwrap();
}

/// A program's version of the shop: what differs from the old one is given.
macro_rules! shop {
    ($module:ident { $($shop:tt)* } { $($item:tt)* } { $($inner:tt)* } { $($kind:tt)* }) => {
        mod $module {
            use super::*;

            #[derive(Recoverable, Default)]
            #[repr(C)]
            $($shop)*
            #[derive(Recoverable)]
            #[repr(C)]
            $($item)*
            #[derive(Recoverable, Default)]
            #[repr(C)]
            $($inner)*
            #[derive(Recoverable)]
            #[repr(u8)]
            #[allow(dead_code, reason = "made of what older ones were")]
            $($kind)*
        }
    };
}

// Nothing is said: a field was renamed, others went.
shop! { forgetful {
    pub struct Shop {
        pub items: PVec<Item>,
        pub by_name: PBTreeMap<PString, Item>,
        pub inner: Inner,
        pub kinds: PSlotMap<Kind>,
        pub shared: PVec<PRc<Kind>>,
        pub weak: PVec<PWeak<Kind>>,
        pub slots: PVec<SlotKey<Kind>>,
        pub pair: (u8,),
    }
} {
    pub struct Item { #[recoverable(default)] pub cost: u64, pub label: Option<PString>, pub kind: Option<Kind> }
} {
    pub struct Inner { pub opened: u32 }
} {
    pub enum Kind { Plain, Sized { width: u32 } }
} }

// All of that is said.
shop! { said {
    #[recoverable(gone("pair"))]
    pub struct Shop {
        pub items: PVec<Item>,
        pub by_name: PBTreeMap<PString, Item>,
        pub inner: Inner,
        pub kinds: PSlotMap<Kind>,
        pub shared: PVec<PRc<Kind>>,
        pub weak: PVec<PWeak<Kind>>,
        #[recoverable(was = "keys")]
        pub slots: PVec<SlotKey<Kind>>,
    }
} {
    #[recoverable(gone("label"))]
    pub struct Item { #[recoverable(was = "price")] pub cost: u64, pub kind: Option<Kind>, #[recoverable(default = 3)] pub grade: u8 }
} {
    #[recoverable(gone("closed"))]
    pub struct Inner { pub opened: u32 }
} {
    #[recoverable(gone("Rare"))]
    pub enum Kind { Plain, #[recoverable(gone("height"))] Sized { width: u32 } }
} }

// A variant is gone whose values stand where a value must be.
shop! { held {
    #[recoverable(gone("by_name", "inner", "kinds", "shared", "weak", "keys", "pair"))]
    pub struct Shop { pub items: PVec<Item> }
} {
    #[recoverable(gone("label", "price"))]
    pub struct Item { pub kind: PBox<Kind> }
} {
    pub struct Inner { pub nothing: u8 }
} {
    #[recoverable(gone("Rare", "Sized"))]
    pub enum Kind { Plain }
} }

// Another variant takes the values of one that went.
shop! { taking {
    #[recoverable(gone("by_name", "inner", "kinds", "shared", "weak", "keys", "pair"))]
    pub struct Shop { pub items: PVec<Item> }
} {
    #[recoverable(gone("label", "price"))]
    pub struct Item { pub kind: Option<Kind> }
} {
    pub struct Inner { pub nothing: u8 }
} {
    #[recoverable(gone("Sized"))]
    pub enum Kind { Plain, #[recoverable(was = "Rare")] Scarce(u64) }
} }

fn still_old(store: &Store, objects: u64) {
    let shop = Objects::<old::Shop>::open(store, "shop").unwrap();
    assert_eq!(shop.read().items.iter().map(|item| item.price).sum::<u64>(), ITEMS * (ITEMS - 1) / 2);
    assert_eq!((allocated(&shop), shop.unreached().unwrap().is_empty()), (objects, true));
}

#[test]
fn what_nothing_takes_is_listed_and_nothing_changes() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store(policy);
        fill(&store);
        let objects = allocated(&Objects::<old::Shop>::open(&store, "shop").unwrap());
        let Err(Error::WouldLose { lost, .. }) =
            Objects::<forgetful::Shop>::migrate_fields(&store, "shop", ON).map(drop)
        else {
            panic!("accepted")
        };
        let lines: Vec<&str> = lost.lines().map(str::trim).collect();
        let wanted = [
            "lost       items[].price: u64 of Item",
            "lost       items[].kind::Sized.height: u32 of Kind::Sized",
            "lost       items[].kind::Rare of Kind, 335 values",
            "lost       inner.closed: u32 of Inner",
            "lost       pair.1: PString of (u8, PString)",
            "lost       keys: PVec<SlotKey<Kind>> of Shop",
        ];
        assert!(wanted.iter().all(|line| lines.contains(line)) && lines.len() == wanted.len(), "{lost}");
        still_old(&store, objects);
        // Told beforehand as well, with what becomes of the rest.
        assert!(Objects::<forgetful::Shop>::plan_fields(&store, "shpo").is_err());
        assert!(store.segment("shpo").is_err(), "it was made to be planned");
        let plan = Objects::<forgetful::Shop>::plan_fields(&store, "shop").unwrap();
        assert_eq!(plan.lost().count(), wanted.len());
        let text = plan.to_string();
        for line in [
            "moved      by_name: PHashMap<PString, PBox<Item>> of Shop -> by_name: PBTreeMap<PString, Item>",
            "by default items[].cost: u64 of Item",
            "by default slots: PVec<SlotKey<Kind>> of Shop",
        ] {
            assert!(text.lines().any(|other| other == line), "{text}");
        }
        still_old(&store, objects);
    }
}

#[test]
fn what_is_declared_gone_is_dropped_and_told() {
    let (_dir, store) = store(Policy::Undo);
    fill(&store);
    let plan = Objects::<said::Shop>::plan_fields(&store, "shop").unwrap();
    assert_eq!(plan.lost().count(), 0);
    let dropped = plan.parts().iter().filter(|part| part.fate == Fate::Dropped);
    let dropped: Vec<(&str, Option<u64>)> = dropped.map(|part| (&*part.path, part.values)).collect();
    let wanted = [
        ("items[].kind::Sized.height", None),
        ("items[].kind::Rare", Some(335)),
        ("items[].label", None),
        ("inner.closed", None),
        ("pair", None),
    ];
    assert!(wanted.iter().all(|part| dropped.contains(part)) && dropped.len() == wanted.len(), "{dropped:?}");
    let shop = Objects::<said::Shop>::migrate_fields(&store, "shop", ON).unwrap();
    let view = shop.read();
    for (i, item) in view.items.iter().enumerate() {
        assert_eq!((item.cost, item.grade, item.kind.is_some()), (i as u64, 3, i % 3 == 1));
    }
    assert_eq!((view.items.len() as u64, view.inner.opened), (ITEMS, 8));
    assert!(matches!(view.by_name["one"].kind, Some(said::Kind::Sized { width: 2 })));
    // The values of the variant have gone out of the collections that they were in, and no key leads to another.
    assert_eq!((view.kinds.len(), view.shared.len(), view.slots.len()), (1, 1, 2));
    assert!(view.kinds.contains_key(view.slots[0]) && !view.kinds.contains_key(view.slots[1]));
    assert!(view.weak(&view.weak[0]).is_none());
    drop(view);
    assert!(shop.unreached().unwrap().is_empty());
    let after = Objects::<said::Shop>::plan_fields(&store, "shop");
    assert!(after.is_err(), "the heap is open");
}

#[test]
fn a_value_that_must_be_is_not_dropped_with_its_variant() {
    let (_dir, store) = store(Policy::Undo);
    fill(&store);
    let objects = allocated(&Objects::<old::Shop>::open(&store, "shop").unwrap());
    let refused = Objects::<held::Shop>::migrate_fields(&store, "shop", ON).map(drop).unwrap_err();
    assert!(matches!(refused, Error::NotMade { .. }), "{refused}");
    still_old(&store, objects);
    let shop = Objects::<taking::Shop>::migrate_fields(&store, "shop", ON).unwrap();
    assert!(matches!(shop.read().items[5].kind, Some(taking::Kind::Scarce(5))));
}

/// What is imported is made by the same rules.
#[test]
fn an_import_loses_nothing_either() {
    let (_dir, store) = store(Policy::Undo);
    fill(&store);
    let shop = Objects::<old::Shop>::open(&store, "shop").unwrap();
    let mut text = Vec::new();
    shop.export(Format::JsonLines, &mut text, ON).unwrap();
    let import = Objects::<forgetful::Shop>::import(&store, "copy", Format::JsonLines, &text[..], ON);
    let refused = import.map(drop).unwrap_err().to_string();
    assert!(refused.contains("nothing takes the field price of Item"), "{refused}");
    let lines = |lines: &str| format!("{{'caliburn':1}}\n{lines}").replace('\'', "\"").into_bytes();
    // Two that are one; a value without a place.
    type Words = PBTreeMap<PString, u64>;
    let twice = lines("{'key':'a','value':1}\n{'key':'a','value':2}\n{'end':2}\n");
    let refused = Objects::<Words>::import(&store, "words", Format::JsonLines, &twice[..], ON);
    assert!(refused.map(drop).unwrap_err().to_string().contains("a key is there twice"));
    for (value, why) in [("[1,2]", "nothing takes the field 1 of a tuple"), ("7", "where a struct should be")]
    {
        let one = lines(&format!("{{'item':{value}}}\n{{'end':1}}\n"));
        let refused = Objects::<PVec<(u64,)>>::import(&store, "one", Format::JsonLines, &one[..], ON);
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let nothing = lines("{'item':7}\n{'end':1}\n");
    let refused = Objects::<PVec<((), u8)>>::import(&store, "two", Format::JsonLines, &nothing[..], ON);
    assert!(refused.is_err());
    let weak = lines("{'item':{'#':1,'=':7}}\n{'end':1}\n");
    let refused = Objects::<PVec<PWeak<u64>>>::import(&store, "weak", Format::JsonLines, &weak[..], ON);
    assert!(refused.map(drop).unwrap_err().to_string().contains("where a weak pointer is"));
}

/// Free places of a slot map are no entries, and a number is not rounded to the nearest float.
#[test]
fn nothing_is_made_up_where_kinds_change() {
    type Slots = PSlotMap<Option<u64>>;
    type Words = PHashMap<PString, Option<u64>>;
    let (_dir, store) = store(Policy::Redo);
    let slots = Objects::<Slots>::open(&store, "slots").unwrap();
    let filled = slots.update(|mut map| {
        let first = map.insert(None::<u64>);
        map.insert(Some(5u64));
        map.remove(first);
    });
    filled.unwrap();
    drop(slots);
    let words = Objects::<Words>::migrate_fields(&store, "slots", ON).unwrap();
    let words = words.read();
    let found: Vec<(&str, &Option<u64>)> = words.iter().map(|(key, value)| (&**key, value)).collect();
    assert_eq!(found, [("1v1", &Some(5))]);
    for (number, fits) in [(1u64 << 53, true), ((1 << 53) + 1, false)] {
        let name = number.to_string();
        Objects::<PVec<u64>>::open(&store, &name).unwrap().update(|mut all| all.push(number)).unwrap();
        let floats = Objects::<PVec<f64>>::migrate_fields(&store, &name, ON);
        assert_eq!(floats.is_ok(), fits, "{:?}", floats.map(drop));
    }
}
