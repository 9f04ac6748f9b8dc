//! Counters of typed objects at their ends.

mod support;

use caliburn::typed::Format;
use caliburn::{Error, Objects, PSlotMap, Policy};
use std::ops::ControlFlow;
use support::store;

const ON: fn(u64) -> ControlFlow<()> = |_| ControlFlow::Continue(());

/// The last generations that a place has, an even and an odd one.
#[test]
fn a_place_whose_generations_are_used_up_is_given_out_no_more() {
    let (_dir, store) = store(Policy::Undo);
    let text =
        "{'caliburn':1}\n{'key':'0v4294967294','value':0}\n{'key':'1v4294967295','value':7}\n{'end':2}\n";
    let text = text.replace('\'', "\"");
    let map =
        Objects::<PSlotMap<u64>>::import(&store, "map", Format::JsonLines, text.as_bytes(), ON).unwrap();
    let keys = |map: &Objects<PSlotMap<u64>>| -> Vec<String> {
        map.read().iter().map(|(key, value)| format!("{key:?}={value}")).collect()
    };
    assert_eq!(keys(&map), ["SlotKey(1v4294967295)=7"]);
    let change = |change: &mut dyn FnMut(caliburn::Mut<'_, '_, PSlotMap<u64>>)| {
        map.transact(|root| {
            change(root);
            Ok::<(), Error>(())
        })
        .unwrap();
    };
    change(&mut |mut root| _ = root.insert(8));
    assert_eq!(keys(&map), ["SlotKey(0v4294967295)=8", "SlotKey(1v4294967295)=7"]);
    change(&mut |mut root| root.clear());
    change(&mut |mut root| (0..3).for_each(|value| _ = root.insert(value)));
    assert_eq!(keys(&map), ["SlotKey(2v1)=0", "SlotKey(3v1)=1", "SlotKey(4v1)=2"]);
    // Nor after it was written down.
    let mut out = Vec::new();
    map.export(Format::Cbor, &mut out, ON).unwrap();
    let again = Objects::<PSlotMap<u64>>::import(&store, "again", Format::Cbor, &out[..], ON).unwrap();
    again.update(|mut root| _ = root.insert(9)).unwrap();
    assert_eq!(keys(&again).last().unwrap(), "SlotKey(5v1)=9");
}
