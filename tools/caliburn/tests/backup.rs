//! Dumps, archives and restoring by the command, beside a program that uses the store.

use caliburn::{Class, Mode, Region, Store};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caliburn")).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn failure(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn put(store: &Store, region: &Region, value: u64) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, 0, &value).unwrap();
    tx.store(region, 8 + value as usize % 8000 * 8, &value).unwrap();
    tx.commit(Class::Power).unwrap();
}

fn value(path: &Path) -> u64 {
    let store = Store::open(path).unwrap();
    store.segment("data").unwrap().map_all().unwrap().load::<u64>(0)
}

#[test]
fn a_store_in_use_is_dumped_archived_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (path, dumps, archive) = (at("s"), at("dumps"), at("archive"));
    fs::create_dir(&dumps).unwrap();
    let store = Store::options().create(true).log_bytes(1 << 20).open(&path).unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    (1..=10).for_each(|value| put(&store, &region, value));
    let archive_now = ["archive", &path, "--to", &archive, "--now", "--json", "--part-bytes", "4K"];
    caliburn(&archive_now);
    let first = json(&caliburn(&["dump", &path, &dumps, "--json", "--verify"])).remove(0);
    assert_eq!((&first["verified"], &first["segments"]), (&Value::Bool(true), &1.into()));
    (11..=20).for_each(|value| put(&store, &region, value));
    let second = json(&caliburn(&["dump", &path, &dumps, "--json", "--rate", "100M"])).remove(0);
    (21..=200).for_each(|value| put(&store, &region, value));
    let parts = json(&caliburn(&archive_now));
    assert!(parts.len() > 3, "{parts:?}");
    (201..=210).for_each(|value| put(&store, &region, value));
    // Who changed these bytes: the archive has what the log has no more.
    let asked = ["log", &path, "--archive", &archive, "--segment", "data", "--range", "0..8", "--json"];
    let events = json(&caliburn(&asked));
    let transactions: u64 = events.iter().map(|event| event["transactions"].as_u64().unwrap()).sum();
    assert_eq!(transactions, 210, "{} records", events.len());
    drop(region);
    store.close().unwrap();

    let info = json(&caliburn(&["info", &path, "--json"])).remove(0);
    assert_eq!(info["log"]["archived"]["lsn"], parts.last().unwrap()["to"]);
    let info = String::from_utf8(caliburn(&["info", &path]).stdout).unwrap();
    assert!(info.contains("until it is archived"), "{info}");

    let restored = |to: &str, more: &[&str]| {
        let to = at(to);
        let output = caliburn(&[&["restore", &dumps, &to, "--json", "--log-bytes", "1M"], more].concat());
        (json(&output).remove(0), value(Path::new(&to)))
    };
    let (told, found) = restored("newest dump", &[]);
    assert_eq!((found, &told["lsn"], &told["checked"]), (20, &second["lsn"], &Value::Bool(true)));
    assert_eq!(restored("archive too", &["--archive", &archive]).1, 200);
    assert_eq!(restored("and what is left", &["--archive", &archive, "--left", &path]).1, 210);
    let lsn = format!("lsn:{}", first["lsn"]);
    assert_eq!(restored("as of the first dump", &["--archive", &archive, "--to", &lsn]).1, 10);
    let time = first["time_ns"].as_u64().unwrap();
    let found =
        restored("by its time", &["--archive", &archive, "--to", &format!("{}", time as f64 / 1e9)]).1;
    assert!((9..=11).contains(&found), "{found}");
    let late = failure(&caliburn(&["restore", &dumps, &at("r"), "--to", "2001-01-01T00:00:00Z"]));
    assert!(late.contains("later than what is wanted"), "{late}");

    let list = json(&caliburn(&["restore", &dumps, "--list", "--archive", &archive, "--json"])).remove(0);
    assert_eq!((list["dumps"].as_array().unwrap().len(), &list["holes"]), (2, &Value::Array(Vec::new())));
    let part = parts[1]["part"].as_str().unwrap();
    fs::remove_file(Path::new(&archive).join(part)).unwrap();
    let list = json(&caliburn(&["restore", &dumps, "--list", "--archive", &archive, "--json"])).remove(0);
    assert_eq!(list["holes"][0], Value::Array(vec![parts[1]["from"].clone(), parts[1]["to"].clone()]));
    let text =
        String::from_utf8(caliburn(&["restore", &dumps, "--list", "--archive", &archive]).stdout).unwrap();
    assert!(text.contains("MISSING"), "{text}");
    let hole = failure(&caliburn(&["restore", &dumps, &at("h"), "--archive", &archive]));
    assert!(hole.contains("is missing") && hole.contains(&parts[1]["from"].to_string()), "{hole}");
}

#[test]
fn a_dump_goes_through_a_pipe_and_over_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let path = at("s");
    let store = Store::options().create(true).log_bytes(1 << 20).open(&path).unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    put(&store, &region, 7);
    let mut dumping = Command::new(env!("CARGO_BIN_EXE_caliburn"))
        .args(["dump", &path, "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let restoring = Command::new(env!("CARGO_BIN_EXE_caliburn"))
        .args(["restore", "-", &at("r")])
        .stdin(dumping.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(dumping.wait().unwrap().success() && restoring.status.success(), "{restoring:?}");
    assert_eq!(value(Path::new(&at("r"))), 7);
    fs::write(dir.path().join("letter"), "dear").unwrap();
    let there = failure(&caliburn(&["dump", &path, &at("letter")]));
    assert!(there.contains("it exists already"), "{there}");
    let cut = failure(&caliburn(&["restore", &at("letter"), &at("r2")]));
    assert!(cut.contains("cut off"), "{cut}");
    assert!(failure(&caliburn(&["dump", &at("none"), &at("d")])).contains("not a store"));
    drop((region, store));
    let undo = Store::options().create(true).policy(caliburn::Policy::Undo).open(at("undo")).unwrap();
    assert!(failure(&caliburn(&["dump", &at("undo"), &at("d")])).contains("undo policy"));
    drop(undo);
    fs::create_dir(at("undo-dumps")).unwrap();
    let dump = || json(&caliburn(&["dump", &at("undo"), &at("undo-dumps"), "--verify", "--json"])).remove(0);
    assert_ne!(dump()["dump"], dump()["dump"], "they are called by their time");
    let restored = caliburn(&["restore", &at("undo-dumps"), &at("undo-again")]);
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(Store::open(at("undo-again")).unwrap().policy(), caliburn::Policy::Undo);
}

#[test]
fn what_was_written_since_a_dump_is_laid_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (path, dumps) = (at("s"), at("dumps"));
    fs::create_dir(&dumps).unwrap();
    let store = Store::options().create(true).log_bytes(8 << 20).open(&path).unwrap();
    let region = store.create_segment("data", 16 << 20).unwrap().map_all().unwrap();
    let mut lsns = Vec::new();
    let mut files = Vec::new();
    for number in 0..4 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, number << 20, &vec![number as u8 + 1; 2 << 20]).unwrap();
        tx.commit(Class::Process).unwrap();
        put(&store, &region, number as u64);
        store.truncate().unwrap();
        let dumped =
            json(&caliburn(&["dump", &path, &dumps, "--incremental", "--verify", "--json"])).remove(0);
        assert_eq!(dumped["base"].is_null(), number == 0, "{dumped}");
        assert_eq!(dumped["verified"], true);
        lsns.push(dumped["lsn"].as_u64().unwrap());
        files.push(dumped["dump"].as_str().unwrap().to_owned());
    }
    // All of them, and as of each.
    for (number, lsn) in lsns.iter().enumerate() {
        let to = at(&format!("r{number}"));
        let made = caliburn(&["restore", &dumps, &to, "--to", &format!("lsn:{lsn}")]);
        assert!(made.status.success(), "{made:?}");
        assert_eq!(value(Path::new(&to)), number as u64);
    }
    // A stream, and what is in it, after those that it is laid over.
    let stream = caliburn(&["dump", &path, "-", "--since", &files[3]]);
    let chain: Vec<u8> = files.iter().flat_map(|file| fs::read(file).unwrap()).chain(stream.stdout).collect();
    let mut restoring = Command::new(env!("CARGO_BIN_EXE_caliburn"))
        .args(["restore", "-", &at("streamed")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut restoring.stdin.take().unwrap(), &chain).unwrap();
    assert!(restoring.wait().unwrap().success());
    assert_eq!(value(Path::new(&at("streamed"))), 3);
    // One of the middle is lost: what is laid over it is of no use.
    fs::remove_file(&files[2]).unwrap();
    let earlier = caliburn(&["restore", &dumps, &at("earlier")]);
    assert!(
        String::from_utf8_lossy(&earlier.stderr).contains("is missing; an earlier one is taken"),
        "{earlier:?}"
    );
    assert_eq!(value(Path::new(&at("earlier"))), 1);
    let alone = failure(&caliburn(&["restore", &files[3], &at("never")]));
    assert!(alone.contains("is missing"), "{alone}");
    // Of a store that does not know the newest one, all is dumped.
    drop((region, store));
    fs::remove_file(dir.path().join("s/dumped")).unwrap();
    let output = caliburn(&["dump", &path, &dumps, "--incremental", "--json"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("this is one"), "{output:?}");
    assert!(json(&output).remove(0)["base"].is_null());
    let refused = failure(&caliburn(&["dump", &path, &at("d"), "--since", &files[0]]));
    assert!(refused.contains("Make a whole dump"), "{refused}");
}

#[test]
fn what_bytes_were_is_told_and_damaged_pages_are_mended() {
    use std::os::unix::fs::FileExt;

    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (path, dumps) = (at("s"), at("dumps"));
    fs::create_dir(&dumps).unwrap();
    let store = Store::options().create(true).log_bytes(1 << 20).open(&path).unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    put(&store, &region, 1);
    let first = json(&caliburn(&["dump", &path, &dumps, "--json"])).remove(0);
    for value in 2..5 {
        put(&store, &region, value);
        store.flush().unwrap();
    }
    let base = ["log", &path, "--dumps", &dumps, "--segment", "data", "--range", "0..8", "--json"];
    let log = |more: &[&str]| json(&caliburn(&[&base[..], more].concat()));
    let bytes = |value: u64| value.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let changes = log(&["--old"]);
    let told: Vec<_> = changes.iter().map(|change| (change["old"].clone(), change["new"].clone())).collect();
    assert_eq!(told, [1, 2, 3].map(|old| (bytes(old).into(), bytes(old + 1).into())));
    let then = format!("lsn:{}", changes[1]["lsn"]);
    assert_eq!(log(&["--replay-to", &then])[0]["bytes"], bytes(2));
    assert_eq!(log(&["--replay-to", "latest"])[0]["bytes"], bytes(4));
    let as_dumped = format!("lsn:{}", first["lsn"]);
    assert_eq!(log(&["--replay-to", &as_dumped])[0]["bytes"], bytes(1));
    let text = caliburn(&[
        "log",
        &path,
        "--dumps",
        &dumps,
        "--segment",
        "data",
        "--range",
        "0..4096",
        "--replay-to",
        "-0",
    ]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("data as of LSN") && text.contains("04000000") && text.contains('*'), "{text}");
    drop((region, store));

    let file = fs::OpenOptions::new().write(true).open(dir.path().join("s/data.segment")).unwrap();
    file.write_all_at(&[0xff; 4], 65536 + 8192).unwrap();
    let listed = caliburn(&["mend", &path, "--list", "--json"]);
    assert_eq!(listed.status.code(), Some(1));
    let page: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(page["offset"], 8192);
    let mended = caliburn(&["mend", &path, "--dumps", &dumps]);
    assert!(mended.status.success(), "{mended:?}");
    assert!(String::from_utf8_lossy(&mended.stdout).contains("1 damaged page(s), all mended"), "{mended:?}");
    assert!(caliburn(&["check", &path]).status.success());
    assert!(caliburn(&["mend", &path, "--list"]).status.success());
}

#[test]
fn a_directory_of_dumps_outlives_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let dumps = at("dumps");
    fs::create_dir(&dumps).unwrap();
    let dump = |store: &str| json(&caliburn(&["dump", store, &dumps, "--incremental", "--json"])).remove(0);
    let change = |path: &str, value: u64| {
        let store = Store::options().create(true).log_bytes(1 << 20).open(path).unwrap();
        let region = store.segment_or_create("data", 1 << 20).unwrap().map_all().unwrap();
        put(&store, &region, value);
        drop(region);
        store.close().unwrap();
    };
    for value in 1..40 {
        change(&at("s"), value);
    }
    dump(&at("s"));
    fs::write(dir.path().join("dumps/broken.dump"), b"").unwrap();
    let restored = caliburn(&["restore", &dumps, &at("again")]);
    assert!(restored.status.success(), "{restored:?}");
    assert!(String::from_utf8_lossy(&restored.stderr).contains("it is passed over"), "{restored:?}");
    // The restored store's log begins anew, and its dumps are the later ones all the same.
    change(&at("again"), 100);
    assert!(dump(&at("again"))["base"].is_null());
    change(&at("again"), 101);
    assert!(!dump(&at("again"))["base"].is_null());
    let restored = caliburn(&["restore", &dumps, &at("third")]);
    assert!(String::from_utf8_lossy(&restored.stderr).contains("dumps of several stores"), "{restored:?}");
    assert_eq!(value(Path::new(&at("third"))), 101);
    // Two dumps at one place of two logs.
    for name in ["one", "two"] {
        Store::options().create(true).open(at(name)).unwrap().close().unwrap();
        dump(&at(name));
    }
    let count = fs::read_dir(&dumps).unwrap().count();
    assert_eq!(count, 6, "one went over another");
}
