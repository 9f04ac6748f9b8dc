//! A store with one region.
#![allow(dead_code, reason = "each test uses some of it")]

use caliburn_engine::{Policy, Region, Store};
use std::path::Path;

pub const LEN: usize = 65_536;

pub fn open(dir: &Path, policy: Policy) -> (Store, Region) {
    let store = Store::options().create(true).policy(policy).open(dir.join("s")).unwrap();
    let region = store.segment_or_create("data", LEN as u64).unwrap().map_all().unwrap();
    (store, region)
}

pub fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}
