//! A cache that is warm after a restart: the entries least recently used go first. Entries are linked by keys
//! of a slot map, as programs build lists and graphs in a store.
//!
//! `cargo run --release -p caliburn --example lru -- STORE KEY [VALUE]`

use caliburn::prelude::*;

/// An entry, between its neighbours in the order of use.
#[derive(Recoverable)]
#[repr(C)]
pub struct Entry {
    key: PString,
    value: PString,
    newer: Option<SlotKey<Entry>>,
    older: Option<SlotKey<Entry>>,
}

/// The cache.
#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Cache {
    by_key: PHashMap<PString, SlotKey<Entry>>,
    entries: PSlotMap<Entry>,
    newest: Option<SlotKey<Entry>>,
    oldest: Option<SlotKey<Entry>>,
}

/// Takes an entry out of the order.
fn unlink(cache: &mut CacheFields<'_, '_>, at: SlotKey<Entry>) {
    let (newer, older) = (cache.entries[at].newer, cache.entries[at].older);
    match newer {
        Some(newer) => cache.entries.get_mut(newer).expect("linked").fields().older.set(older),
        None => cache.newest.set(older),
    }
    match older {
        Some(older) => cache.entries.get_mut(older).expect("linked").fields().newer.set(newer),
        None => cache.oldest.set(newer),
    }
}

/// Makes an entry the newest.
fn link(cache: &mut CacheFields<'_, '_>, at: SlotKey<Entry>) {
    let before = *cache.newest;
    let mut entry = cache.entries.get_mut(at).expect("there");
    let mut entry = entry.fields();
    entry.newer.set(None::<SlotKey<Entry>>);
    entry.older.set(before);
    match before {
        Some(before) => cache.entries.get_mut(before).expect("linked").fields().newer.set(Some(at)),
        None => cache.oldest.set(Some(at)),
    }
    cache.newest.set(Some(at));
}

/// Keeps a value; of more than `most` the one least recently used goes.
pub fn put(cache: &Objects<Cache>, key: &str, value: &str, most: usize) -> Result<(), caliburn::Error> {
    // A cache may lose its newest entries to a power cut.
    cache.transact_in(Class::Process, |mut cache| {
        let mut cache = cache.fields();
        if let Some(at) = cache.by_key.get(key).copied() {
            cache.entries.get_mut(at).expect("there").fields().value.assign(value);
            unlink(&mut cache, at);
            link(&mut cache, at);
            return Ok(());
        }
        let none = None::<SlotKey<Entry>>;
        let at = cache.entries.insert(EntryInit { key, value, newer: none, older: none });
        cache.by_key.insert(key, at);
        link(&mut cache, at);
        if cache.entries.len() > most
            && let Some(oldest) = *cache.oldest
        {
            unlink(&mut cache, oldest);
            let gone = cache.entries.remove(oldest).expect("there");
            cache.by_key.remove(gone.key.as_str());
        }
        Ok(())
    })
}

/// The value of a key, which becomes the newest.
pub fn get(cache: &Objects<Cache>, key: &str) -> Result<Option<String>, caliburn::Error> {
    let Some(at) = cache.read().by_key.get(key).copied() else { return Ok(None) };
    cache.transact_in(Class::Process, |mut cache| {
        let mut cache = cache.fields();
        // It may have gone meanwhile.
        let Some(value) = cache.entries.get(at).map(|entry| entry.value.to_string()) else { return Ok(None) };
        unlink(&mut cache, at);
        link(&mut cache, at);
        Ok(Some(value))
    })
}

/// The keys, the newest first.
pub fn keys(cache: &Objects<Cache>) -> Vec<String> {
    let view = cache.read();
    let (mut keys, mut next) = (Vec::new(), view.newest);
    while let Some(at) = next {
        keys.push(view.entries[at].key.to_string());
        next = view.entries[at].older;
    }
    keys
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, key, value @ ..] = &arguments[..] else { return Err("usage: lru STORE KEY [VALUE]".into()) };
    let cache = Objects::<Cache>::create(store)?;
    match value {
        [value, ..] => put(&cache, key, value, 1000)?,
        [] => println!("{}", get(&cache, key)?.as_deref().unwrap_or("not there")),
    }
    Ok(())
}
