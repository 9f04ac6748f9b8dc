//! The command as a user meets it: exit codes, output for people and as JSON.

use caliburn::{Class, Mode, Policy, Store};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caliburn")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A store with commits to two segments, and one undecided transaction; kept open by the caller.
fn sample(path: &Path) -> Store {
    let store = Store::options().create(true).log_bytes(1 << 20).open(path).unwrap();
    let a = store.create_segment("a", 1 << 16).unwrap().map_all().unwrap();
    let b = store.create_segment("b", 1 << 16).unwrap().map_all().unwrap();
    for i in 0..5u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&a, i as usize * 100, &i).unwrap();
        if i == 3 {
            tx.write(&b, 4000, b"hello").unwrap();
        }
        tx.commit(Class::Power).unwrap();
    }
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&a, 1000, b"undecided").unwrap();
    tx.prepare(b"order-66").unwrap();
    // What is still in the log is the point of the tests: the regions stay mapped, so nothing is truncated.
    std::mem::forget((a, b));
    store
}

/// `check` says what it does not look at.
#[test]
fn check_says_of_what_it_does_not_verify_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    let store = Store::options().create(true).policy(Policy::Undo).open(&path).unwrap();
    drop((store.create_segment("a", 1 << 16).unwrap(), store.create_segment("b", 1 << 17).unwrap()));
    store.close().unwrap();
    let said = "the content of 2 segments, \"a\" the first of them (196608 bytes) was not verified";
    let check = text(&caliburn(&["check", name]));
    assert!(
        check.contains(said) && check.contains("2 segments, 0 heaps in them, 0 B of data verified"),
        "{check}"
    );
    let check = json(&caliburn(&["check", name, "--json"])).remove(0);
    assert_eq!((&check["clean"], &check["data_bytes"]), (&true.into(), &0.into()));
    assert_eq!(check["unverified_bytes"], 3 << 16);
    assert!(check["notes"][0].as_str().unwrap().contains(said), "{check}");
    // Of a store that has checksums there is nothing to say.
    let summed = dir.path().join("redo");
    let store = Store::options().create(true).open(&summed).unwrap();
    drop(store.create_segment("a", 1 << 16).unwrap());
    store.close().unwrap();
    let check = json(&caliburn(&["check", summed.to_str().unwrap(), "--json"])).remove(0);
    assert_eq!((&check["data_bytes"], &check["unverified_bytes"]), (&(1 << 16).into(), &0.into()));
    assert_eq!(check["notes"], serde_json::json!([]));
}

#[test]
fn create_add_info_check_recover() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = path.to_str().unwrap();
    assert!(text(&caliburn(&["create", store, "--log-bytes", "1M"])).contains("log of 1 MiB"));
    assert_eq!(caliburn(&["create", store]).status.code(), Some(2), "a store is there already");
    assert_eq!(json(&caliburn(&["add-segment", store, "data", "100K", "--json"]))[0]["bytes"], 131_072);
    let info = json(&caliburn(&["info", store, "--json"])).remove(0);
    assert_eq!((&info["segments"][0]["name"], &info["log"]["bytes"]), (&"data".into(), &(1 << 20).into()));
    assert!(text(&caliburn(&["info", store])).contains("closed in good order"));
    assert!(text(&caliburn(&["recover", store])).contains("recovered in"));
    assert_eq!(json(&caliburn(&["check", store, "--json"]))[0]["clean"], true);

    let segment = path.join("data.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[70_000] = 1;
    std::fs::write(&segment, bytes).unwrap();
    let damaged = caliburn(&["check", store]);
    assert_eq!(damaged.status.code(), Some(1));
    assert!(
        text(&damaged).contains("DAMAGED") && text(&damaged).contains("offset 69632"),
        "{}",
        text(&damaged)
    );
    assert_eq!(caliburn(&["check", "/nonexistent"]).status.code(), Some(2));
    assert_eq!(caliburn(&["check"]).status.code(), Some(2));
    assert_eq!(caliburn(&["check", store, "--unknown"]).status.code(), Some(2));
    assert_eq!(caliburn(&["unknown"]).status.code(), Some(2));
}

#[test]
fn info_names_transactions_in_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    let store = Store::options().create(true).open(&path).unwrap();
    let region = store.create_segment("a", 1 << 16).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    tx.prepare(b"order-66").unwrap();
    let in_doubt = || json(&caliburn(&["info", name, "--json"])).remove(0)["in_doubt"].clone();
    assert_eq!(in_doubt(), Value::Null, "the program that uses it has them");
    drop(region);
    store.close().unwrap();
    assert_eq!(in_doubt()[0]["global_id"], "order-66");
    assert!(text(&caliburn(&["info", name])).contains("in doubt \"order-66\""));
    Store::open(&path).unwrap().abort_prepared(b"order-66").unwrap();
    assert_eq!(in_doubt(), Value::Array(Vec::new()));
}

/// A device that is always full, and a reader that has gone.
#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    let store = sample(&path);
    let made = dir.path().join("made");
    for arguments in [
        &["info", name][..],
        &["info", name, "--json"],
        &["check", name],
        &["log", name],
        &["log", name, "--json"],
        &["create", made.to_str().unwrap()],
        &["metrics", name],
        &["dump", name, "-"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended =
            Command::new(env!("CARGO_BIN_EXE_caliburn")).args(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains("No space left on device") && !said.contains("panicked"),
            "{arguments:?}: {said}"
        );
        let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut silent = Command::new(env!("CARGO_BIN_EXE_caliburn"));
        let ended = silent.args(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(ended.code(), Some(2), "{arguments:?}, and nothing can be said");
    }
    drop(store);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let check =
        Command::new(env!("CARGO_BIN_EXE_caliburn")).args(["check", name]).stdout(writer).output().unwrap();
    assert!(check.stderr.is_empty(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn log_searches_by_segment_range_time_record_and_identifier() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let name = path.to_str().unwrap();
    let store = sample(&path);
    let log = |more: &[&str]| json(&caliburn(&[&["log", name, "--json"], more].concat()));
    let all = log(&[]);
    assert_eq!(all.len(), 6);
    assert_eq!(
        all.iter().map(|e| e["kind"].as_str().unwrap()).collect::<Vec<_>>()[4..],
        ["commit", "prepare"]
    );
    let mut reversed = log(&["--reverse"]);
    reversed.reverse();
    assert_eq!(reversed, all, "the log reads the same in both directions");
    assert_eq!(log(&["--segment", "b"]), all[3..4]);
    assert_eq!(log(&["--segment", "a", "--range", "104..205"]), all[1..3]);
    assert!(log(&["--segment", "a", "--range", "108..200"]).is_empty());
    assert_eq!(log(&["--lsn", &all[2]["lsn"].to_string()]), all[2..3]);
    assert_eq!(log(&["--global-id", "order-66"]), all[5..]);
    assert_eq!(log(&["--since", "-3600"]), all);
    assert!(log(&["--until", "-3600"]).is_empty());
    let bytes = log(&["--segment", "b", "--bytes"]);
    assert_eq!(bytes[0]["changes"][1]["bytes"], "68656c6c6f");
    let people = text(&caliburn(&["log", name]));
    assert!(people.contains("b 4000..4005") && people.contains("\"order-66\""), "{people}");
    // Records that were truncated can still be found until they are overwritten.
    store.abort_prepared(b"order-66").unwrap();
    store.truncate().unwrap();
    assert!(log(&[]).is_empty());
    assert_eq!(log(&["--all"])[..6], all);
}

#[test]
fn log_follows_a_store_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = sample(&path);
    let mut follower = Command::new(env!("CARGO_BIN_EXE_caliburn"))
        .args(["log", path.to_str().unwrap(), "--json", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let seen: Vec<Value> = (0..6).map(|_| next()).collect();
    assert_eq!(seen[5]["kind"], "prepare");
    store.commit_prepared(b"order-66").unwrap();
    let event = next();
    assert_eq!((&event["kind"], &event["global_id"]), (&"resolve".into(), &"order-66".into()));
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn demo_counts_exactly_in_both_classes() {
    for class in ["process", "power"] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("demo");
        let arguments =
            ["demo", "--kills", "5", "--seed", "7", "--class", class, "--json", "--input", "src", "--store"];
        let result = json(&caliburn(&[&arguments[..], &[store.to_str().unwrap()]].concat())).remove(0);
        assert_eq!((&result["exact"], &result["kills"]), (&true.into(), &5.into()), "{result}");
        assert!(result["commits"].as_u64().unwrap() > 0 && result["rounds"].as_u64().unwrap() > 0);
    }
    let empty = tempfile::tempdir().unwrap();
    let none = caliburn(&["demo", "--input", empty.path().to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(2));
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("precious"), "x").unwrap();
    let refused = caliburn(&["demo", "--input", "src", "--store", other.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "other files are not removed");
    assert!(other.path().join("precious").exists());
}

#[test]
fn a_store_with_the_undo_policy_and_a_heap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = path.to_str().unwrap();
    let refused = caliburn(&["create", store, "--policy", "undo", "--require", "power"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("class Power was required") && !path.exists(), "{error}");
    assert_eq!(json(&caliburn(&["create", store, "--policy", "undo", "--json"]))[0]["policy"], "undo");
    let info = json(&caliburn(&["info", store, "--json"])).remove(0);
    assert_eq!(info["survives"], "a killed process");
    assert_eq!((&info["policy"], &info["log"], &info["clean"]), (&"undo".into(), &Value::Null, &true.into()));
    assert_eq!(caliburn(&["log", store]).status.code(), Some(2), "there is no log");
    {
        let store = Store::open(&path).unwrap();
        let heap = caliburn::heap::Heap::open(&store, "objects").unwrap();
        let mut tx = heap.begin().unwrap();
        let place = tx.allocate(100).unwrap();
        tx.set_root("it", Some(place)).unwrap();
        tx.commit(Class::Process).unwrap();
        drop(heap);
        store.close().unwrap();
    }
    let check = json(&caliburn(&["check", store, "--json"])).remove(0);
    assert_eq!((&check["clean"], &check["heaps"]), (&true.into(), &1.into()));

    let segment = path.join("objects.heap.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[65536 + 32768] ^= 4;
    std::fs::write(&segment, bytes).unwrap();
    let check = caliburn(&["check", store]);
    assert_eq!(check.status.code(), Some(1));
    assert!(text(&check).contains("objects.heap, offset 32768"), "{}", text(&check));
}

/// What a program keeps; the command knows nothing of it.
#[derive(caliburn::Recoverable, Default)]
#[repr(C)]
struct Shop {
    stock: caliburn::PHashMap<caliburn::PString, u32>,
    sold: caliburn::PVec<(u64, bool)>,
}

#[test]
fn export_writes_what_a_program_can_import() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| {
        let mut shop = shop.fields();
        shop.stock.insert("bread", 3);
        shop.sold.extend([(1, true), (2, false)]);
    })
    .unwrap();
    shop.close().unwrap();
    let store = path.to_str().unwrap();
    let lines = json(&caliburn(&["export", store, "objects"]));
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0]["root"], "Shop");
    assert_eq!(
        (&lines[1]["at"][0], &lines[1]["key"], &lines[1]["value"]),
        (&"stock".into(), &"bread".into(), &3.into())
    );
    assert_eq!(lines[4]["end"], 3);
    let out = dir.path().join("out");
    assert!(caliburn(&["export", store, "objects", "--cbor", "-o", out.to_str().unwrap()]).status.success());
    let again = caliburn(&["export", store, "objects", "-o", out.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2), "nothing is written over");
    assert_eq!(caliburn(&["export", store, "other"]).status.code(), Some(2), "no such heap");
    let store = caliburn::Store::options().create(true).open(dir.path().join("copy")).unwrap();
    let from = std::io::BufReader::new(std::fs::File::open(out).unwrap());
    let go_on = |_| std::ops::ControlFlow::Continue(());
    let copy = caliburn::Objects::<Shop>::import(&store, "shop", caliburn::typed::Format::Cbor, from, go_on)
        .unwrap();
    assert_eq!((copy.read().stock["bread"], copy.read().sold.to_vec()), (3, vec![(1, true), (2, false)]));
}

#[test]
fn leaks_are_listed_and_freed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| {
        let mut shop = shop.fields();
        shop.stock.insert("bread", 3);
        shop.sold.extend([(1, true), (2, false)]);
        std::mem::forget(shop.sold.take());
    })
    .unwrap();
    shop.close().unwrap();
    let store = path.to_str().unwrap();
    let listed = caliburn(&["leaks", store, "objects"]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(text(&listed).contains("1 objects, "), "{}", text(&listed));
    let freed = caliburn(&["leaks", store, "objects", "--free", "--json"]);
    assert_eq!(freed.status.code(), Some(0));
    assert_eq!(json(&freed)[0]["objects"].as_array().unwrap().len(), 1);
    let none = caliburn(&["leaks", store, "objects", "--json"]);
    assert_eq!((none.status.code(), &json(&none)[0]["bytes"]), (Some(0), &0.into()));
    assert_eq!(caliburn(&["leaks", store, "other"]).status.code(), Some(2), "no such heap");
}

#[test]
fn show_prints_typed_objects_without_their_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| {
        let mut shop = shop.fields();
        shop.stock.insert("bread\u{1b}[31m", 3);
        shop.sold.extend([(1, true), (2, false)]);
    })
    .unwrap();
    let heap = caliburn::heap::Heap::open(shop.store(), "plain").unwrap();
    drop(heap);
    shop.close().unwrap();
    let store = path.to_str().unwrap();
    let list = text(&caliburn(&["show", store]));
    assert!(
        list.contains("objects              Shop\n") && list.contains("plain                not typed\n"),
        "{list}"
    );
    assert_eq!(json(&caliburn(&["show", store, "--json"]))[0]["heaps"][0]["root"], "Shop");
    let whole = text(&caliburn(&["show", store, "objects"]));
    assert!(whole.contains("\"bread\\u{1b}[31m\": 3,"), "{whole}");
    assert_eq!(text(&caliburn(&["show", store, "objects", "sold", "1", "0"])), "2\n");
    let whole = json(&caliburn(&["show", store, "objects", "--json"])).remove(0);
    assert_eq!((&whole["stock"]["bread\u{1b}[31m"], &whole["sold"][1]["1"]), (&3.into(), &false.into()));
    let types = text(&caliburn(&["show", store, "objects", "--types"]));
    assert!(types.contains("  stock 0 PHashMap<PString, u32>\n"), "{types}");
    assert_eq!(caliburn(&["show", store, "objects", "sold", "2"]).status.code(), Some(1), "there are two");
    assert_eq!(caliburn(&["show", store, "other"]).status.code(), Some(2), "no such heap");
    assert_eq!(caliburn(&["show", store, "plain"]).status.code(), Some(2), "not typed");
}

#[test]
fn what_an_object_was_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| shop.fields().sold.extend([(1, true), (2, false)])).unwrap();
    shop.close().unwrap();
    let (store, dump) = (path.to_str().unwrap(), dir.path().join("first.dump"));
    assert!(caliburn(&["dump", store, dump.to_str().unwrap()]).status.success());
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    for number in [5u64, 9] {
        shop.update(|mut shop| shop.fields().sold.get_mut(1).unwrap().set((number, false))).unwrap();
        shop.store().flush().unwrap();
    }
    let log = |more: &[&str]| {
        let base = ["log", store, "--object", "objects", "sold", "1", "0", "--json"];
        json(&caliburn(&[&base[..], more].concat()))
    };

    let changes = log(&["--dumps", dump.to_str().unwrap(), "--old"]);
    let first_byte =
        |value: &serde_json::Value| u8::from_str_radix(&value.as_str().unwrap()[..2], 16).unwrap();
    let told: Vec<_> = changes.iter().map(|c| (first_byte(&c["old"]), first_byte(&c["new"]))).collect();
    assert_eq!(told, [(2, 5), (5, 9)]);
    let then = format!("lsn:{}", changes[1]["lsn"]);
    let was = log(&["--dumps", dump.to_str().unwrap(), "--replay-to", &then]);
    assert_eq!(first_byte(&was[0]["bytes"]), 5);
    let to_it = json(&caliburn(&["log", store, "--json", "--segment", "objects"]));
    shop.close().unwrap();
    let range = log(&["--all"]);
    assert!(range.len() >= 2 && to_it.len() >= 2, "who changed it: {range:?}");
    let no_such = caliburn(&["log", store, "--object", "objects", "sold", "7"]);
    assert_eq!(no_such.status.code(), Some(2));
}

#[test]
fn room_that_is_not_used_is_given_back() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| {
        let mut shop = shop.fields();
        shop.stock.insert("bread", 3);
        shop.sold.extend((0..200_000).map(|number| (number, true)));
    })
    .unwrap();
    shop.update(|mut shop| shop.fields().sold.clear()).unwrap();
    shop.update(|mut shop| shop.fields().sold.shrink_to_fit()).unwrap();
    shop.close().unwrap();
    let taken = || std::fs::metadata(path.join("objects.segment")).unwrap().blocks() * 512;
    let (store, before) = (path.to_str().unwrap(), taken());
    let done = json(&caliburn(&["compact", store, "--json"])).remove(0);
    assert!(done["cleared"].as_u64().unwrap() > 2 << 20, "{done}");
    assert!(taken() < before - (2 << 20), "{before} before, {} now", taken());
    assert!(caliburn(&["check", store]).status.success());
    let whole = json(&caliburn(&["show", store, "objects", "--json"])).remove(0);
    assert_eq!(whole["stock"]["bread"], 3);
    let again = json(&caliburn(&["compact", store, "--json"])).remove(0);
    assert_eq!((&again["cleared"], &again["holes"]), (&0.into(), &done["holes"]));
    // What has holes is written as before.
    let shop = caliburn::Objects::<Shop>::create(&path).unwrap();
    shop.update(|mut shop| shop.fields().sold.extend((0..100_000).map(|number| (number, true)))).unwrap();
    shop.close().unwrap();
    assert!(caliburn(&["check", store]).status.success());
    let undo = dir.path().join("undo");
    let options = Store::options().create(true).policy(caliburn::Policy::Undo).clone();
    options.open(&undo).unwrap().close().unwrap();
    let refused = caliburn(&["compact", undo.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a full disk would kill the program"));
}

/// What this command once did, and others do now.
#[test]
fn old_spellings_name_the_command_to_install() {
    let lines: [(&[&str], &str); 5] = [
        (&["node", "show", "--json"], "caliburn-node"),
        (&["pm", "list", "region"], "caliburn-pm"),
        (&["top", "store"], "caliburn-top"),
        (&["rvmutl", "--help"], "caliburn-rvm-tools"),
        (&["demo", "--nodes", "3"], "caliburn-node demo"),
    ];
    for (line, named) in lines {
        let told = caliburn(line);
        let error = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(2), "{line:?}");
        assert!(error.contains(named) && error.contains("cargo install"), "{line:?}: {error}");
    }
    assert!(text(&caliburn(&["--help"])).contains("caliburn-node"));
}
