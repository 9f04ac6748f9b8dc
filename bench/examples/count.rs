//! The hot path and nothing else, for counting its instructions under callgrind.

use caliburn::{Class, Mode, Store};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: count DIR RANGES BYTES COUNT");
    let [ranges, bytes, count] =
        [(); 3].map(|()| arguments.next().and_then(|a| a.parse::<usize>().ok()).expect("a number"));
    let store =
        Store::options().create(true).log_bytes(1 << 20).stage_bytes(32 << 20).open(path).expect("opens");
    let region =
        store.segment_or_create("data", 1 << 20).map(|s| s.map_all().expect("maps")).expect("creates");
    let value = vec![1u8; bytes];
    for _ in 0..count {
        let mut tx = store.begin(Mode::Restore).expect("begins");
        for i in 0..ranges {
            tx.write(&region, i * 8192, &value).expect("fits");
        }
        tx.commit(Class::Process).expect("commits");
    }
    std::mem::forget(store);
    std::process::exit(0);
}
