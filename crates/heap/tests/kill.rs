//! Real processes with a heap, really killed: each commit puts new objects into a table and frees those that they
//! replace. After each death every object of the table is there, with its content, and nothing else is.

use caliburn_engine::{Class, Options, Policy, Store};
use caliburn_heap::{Heap, Place};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const THREADS: u64 = 2;
/// Objects of each thread.
const SLOTS: usize = 300;

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(1 << 20).stage_bytes(1 << 20).reserve_bytes(1 << 30);
    options
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn len(number: u64) -> usize {
    let random = mix(number) as usize;
    if random.is_multiple_of(50) { 65_000 + random / 64 % 100_000 } else { 16 + random / 64 % 900 }
}

/// Number, and what follows from it, to the object's end.
fn content(number: u64) -> Vec<u8> {
    (0..len(number) as u64 / 8)
        .flat_map(|i| mix(number * 1000 + i * u64::from(i > 0)).to_ne_bytes())
        .collect()
}

/// The table: a thread's last number, and its places, plus one.
fn table(heap: &Heap, thread: u64) -> Place {
    let name = format!("table {thread}");
    if let Some(place) = heap.root(&name) {
        return place;
    }
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(8 + SLOTS * 8).unwrap();
    tx.write(place, 0, &vec![0; 8 + SLOTS * 8]).unwrap();
    tx.set_root(&name, Some(place)).unwrap();
    tx.commit(Class::Process).unwrap();
    place
}

fn load(heap: &Heap, place: Place, offset: usize) -> u64 {
    heap.region().load(place.0 as usize + offset)
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_HEAP_STORE") else { return };
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::exit(1);
    }));
    let policy = if std::env::var_os("CALIBURN_HEAP_UNDO").is_some() { Policy::Undo } else { Policy::Redo };
    let store = options(policy).open(Path::new(&path)).unwrap();
    let heap = &Heap::open(&store, "h").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let table = table(heap, thread);
                for number in load(heap, table, 0) + 1.. {
                    let mut tx = heap.begin().unwrap();
                    for i in 0..1 + mix(number) % 4 {
                        let slot = 8 + (mix(number * 8 + i) as usize) % SLOTS * 8;
                        // Read before it is written again in this transaction.
                        let old = load(heap, table, slot);
                        let id = number * 16 + i;
                        let new = tx.allocate(len(id)).unwrap();
                        let mut bytes = content(id);
                        bytes[..8].copy_from_slice(&id.to_ne_bytes());
                        tx.write(new, 0, &bytes).unwrap();
                        if old != 0 {
                            tx.free(Place(old - 1)).unwrap();
                        }
                        tx.store(table, slot, &(new.0 + 1)).unwrap();
                    }
                    tx.store(table, 0, &number).unwrap();
                    if mix(number * 3).is_multiple_of(5) {
                        tx.abort();
                        continue;
                    }
                    tx.commit(Class::Process).unwrap();
                    std::io::stdout()
                        .lock()
                        .write_all(format!("ack {thread} {number}\n").as_bytes())
                        .unwrap();
                }
            });
        }
    });
}

fn verify(path: &Path, policy: Policy, acknowledged: &[u64]) {
    let store = options(policy).open(path).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    heap.check().unwrap();
    let mut objects = 0;
    for (thread, acknowledged) in acknowledged.iter().enumerate() {
        let Some(table) = heap.root(&format!("table {thread}")) else {
            assert_eq!(*acknowledged, 0);
            continue;
        };
        objects += 1;
        let last = load(&heap, table, 0);
        assert!(last >= *acknowledged, "thread {thread} acknowledged {acknowledged} and has {last}");
        for slot in (0..SLOTS).map(|slot| 8 + slot * 8) {
            let place = load(&heap, table, slot);
            if place == 0 {
                continue;
            }
            objects += 1;
            let place = Place(place - 1);
            let id = load(&heap, place, 0);
            let mut there = vec![0; content(id).len()];
            assert!(heap.usable_len(place).unwrap() >= there.len());
            heap.region().read(place.0 as usize, &mut there);
            assert!(id / 16 <= last && there[8..] == content(id)[8..], "object {id} was overwritten");
        }
    }
    let statistics = heap.statistics();
    let there: u64 = statistics.classes.iter().map(|class| class.objects).sum();
    assert_eq!(there + statistics.large_objects, objects, "objects were lost, or leaked");
    drop(heap);
    store.close().unwrap();
    assert!(options(policy).check(path).unwrap().is_clean());
}

fn kill_again_and_again(policy: Policy) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    options(policy).open(&path).unwrap().close().unwrap();
    let mut acknowledged = [0; THREADS as usize];
    for kill in 0..60 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "child", "--nocapture"])
            .env("CALIBURN_HEAP_STORE", &path)
            .stdout(Stdio::piped());
        if policy == Policy::Undo {
            child.env("CALIBURN_HEAP_UNDO", "1");
        }
        let mut child = child.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let mut last = [0u64; THREADS as usize];
            for line in output.lines().map_while(Result::ok) {
                let words: Vec<&str> = line.rsplit("ack ").next().unwrap_or_default().split(' ').collect();
                if let [thread, number] = words[..]
                    && let (Ok(thread), Ok(number)) = (thread.parse::<usize>(), number.parse::<u64>())
                    && line.contains("ack ")
                {
                    // A number that was cut off is smaller than the newest.
                    last[thread] = last[thread].max(number);
                }
            }
            last
        });
        std::thread::sleep(Duration::from_micros(mix(kill) % 60_000));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "the child died by itself");
        for (newest, last) in acknowledged.iter_mut().zip(reader.join().unwrap()) {
            *newest = (*newest).max(last);
        }
        if kill % 3 == 0 {
            verify(&path, policy, &acknowledged);
        }
    }
    verify(&path, policy, &acknowledged);
    assert!(acknowledged.iter().all(|n| *n > 100), "hardly anything was committed: {acknowledged:?}");
}

#[test]
fn killed_at_any_moment_a_heap_holds_what_was_committed() {
    kill_again_and_again(Policy::Redo);
}

#[test]
fn the_same_with_the_undo_policy() {
    kill_again_and_again(Policy::Undo);
}
