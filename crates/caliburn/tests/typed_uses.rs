//! The examples of typed objects: killed, copied and opened again, they keep what they promise.

#[path = "../examples/catalogue.rs"]
mod catalogue;
#[path = "../examples/game_world.rs"]
mod game_world;
#[path = "../examples/http_cache.rs"]
mod http_cache;
#[path = "../examples/jobs.rs"]
mod jobs;
#[path = "../examples/search.rs"]
mod search;

use caliburn::{Objects, Policy, Store};
use http_cache::lru;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Run in the child: brings a catalogue up to date, again and again; serves pages; plays.
#[test]
fn child() {
    if let Some(store) = std::env::var_os("CALIBURN_PAGES") {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("\nport {}", listener.local_addr().unwrap().port());
        http_cache::serve(&http_cache::open(Path::new(&store)).unwrap(), &listener).unwrap();
    }
    if let Some(path) = std::env::var_os("CALIBURN_WORLD") {
        let store = Store::options().create(true).log_bytes(8 << 20).open(path).unwrap();
        let world = game_world::World::open(&store).unwrap();
        println!("\nplaying");
        world.run(&AtomicBool::new(false)).unwrap();
    }
    let Some(store) = std::env::var_os("CALIBURN_CATALOGUE") else { return };
    let top = std::env::var_os("CALIBURN_CATALOGUE_OF").unwrap();
    let catalogue = Objects::<catalogue::Catalogue>::create(store).unwrap();
    loop {
        catalogue::scan(&catalogue, Path::new(&top)).unwrap();
    }
}

#[test]
fn a_catalogue_that_was_killed_goes_on_and_equals_a_fresh_walk() {
    let dir = tempfile::tempdir().unwrap();
    let (top, store) = (dir.path().join("tree"), dir.path().join("store"));
    let write = |at: String, text: String| {
        let path = top.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    (0..400).for_each(|i| write(format!("{}/{}/file {i}", i % 7, i % 20), format!("{i}").repeat(i)));
    for kill in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["child", "--exact"]).env("CALIBURN_CATALOGUE", &store).env("CALIBURN_CATALOGUE_OF", &top);
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + kill * 37 % 90));
        // While it looks, files change, come and go.
        write(format!("{kill}/new"), format!("number {kill}"));
        write(format!("1/1/file {}", kill * 7 % 20 * 20 + 1), "changed".to_owned());
        child.kill().unwrap();
        child.wait().unwrap();
        let _ = fs::remove_dir_all(top.join(format!("{}/3", kill % 7)));
    }
    let killed = Objects::<catalogue::Catalogue>::create(&store).unwrap();
    catalogue::scan(&killed, &top).unwrap();
    let fresh = Objects::<catalogue::Catalogue>::create(dir.path().join("fresh")).unwrap();
    catalogue::scan(&fresh, &top).unwrap();
    assert_eq!(catalogue::files(&killed), catalogue::files(&fresh));
    assert!(catalogue::files(&fresh).len() > 100);
    let read = killed.read().read;
    catalogue::scan(&killed, &top).unwrap();
    assert_eq!(killed.read().read, read, "what did not change is not read again");
}

#[test]
fn each_job_has_one_result_whoever_dies() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
        let queue = Objects::<jobs::Queue>::open(&store, "jobs").unwrap();
        let numbers: Vec<u64> = (0..40).map(|i| jobs::submit(&queue, &format!("job {i}")).unwrap()).collect();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let queue = queue.clone();
                scope.spawn(move || {
                    for turn in 0.. {
                        let Some((number, what)) = jobs::take(&queue).unwrap() else { break };
                        // This one is never heard of again.
                        if (turn + worker) % 4 == 0 {
                            continue;
                        }
                        assert!(jobs::finish(&queue, number, &format!("{what} done")).unwrap());
                        assert!(!jobs::finish(&queue, number, "twice").unwrap());
                    }
                });
            }
        });
        assert!(queue.read().results.len() < numbers.len());
        jobs::take_back(&queue).unwrap();
        while let Some((number, what)) = jobs::take(&queue).unwrap() {
            jobs::finish(&queue, number, &format!("{what} done")).unwrap();
        }
        let results: BTreeMap<u64, String> =
            queue.read().results.iter().map(|(number, result)| (*number, result.to_string())).collect();
        assert_eq!(results, numbers.iter().map(|n| (*n, format!("job {n} done"))).collect());
    }
}

#[test]
fn a_cache_keeps_what_was_used_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = Objects::<lru::Cache>::create(dir.path().join("s")).unwrap();
    let mut model: VecDeque<(String, String)> = VecDeque::new();
    let mut random = 7u64;
    for step in 0..2000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = format!("key {}", (random >> 33) % 40);
        let known = model.iter().position(|(known, _)| *known == key).map(|at| model.remove(at).unwrap());
        if step % 3 == 0 {
            let value = format!("value {step}");
            lru::put(&cache, &key, &value, 25).unwrap();
            model.push_front((key, value));
            model.truncate(25);
        } else {
            assert_eq!(lru::get(&cache, &key).unwrap().as_ref(), known.as_ref().map(|(_, value)| value));
            known.into_iter().for_each(|entry| model.push_front(entry));
        }
        assert!(lru::keys(&cache).iter().eq(model.iter().map(|(key, _)| key)));
        if step % 500 == 499 {
            // Still warm.
            cache.close().unwrap();
            cache = Objects::create(dir.path().join("s")).unwrap();
        }
    }
}

#[test]
fn the_index_of_this_repository_finds_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let index = Objects::<search::Index>::create(dir.path().join("s")).unwrap();
    let files = search::text_files(&top).unwrap();
    for path in files.iter().filter(|path| path.components().any(|part| part.as_os_str() == "typed")) {
        let text = fs::read_to_string(path).unwrap();
        assert!(search::add(&index, &path.to_string_lossy(), &text).unwrap());
        assert!(!search::add(&index, &path.to_string_lossy(), &text).unwrap());
    }
    index.close().unwrap();
    let index = Objects::<search::Index>::create(dir.path().join("s")).unwrap();
    let best = |query: &str| search::find(&index, query)[0].1.rsplit('/').next().unwrap().to_owned();
    assert_eq!(best("slotkey generation"), "slot_map.rs");
    assert_eq!(best("directory groups tags"), "table.rs");
    assert!(search::find(&index, "xyzzyplugh").is_empty());
}

/// The child with that variable, and the rest of the first line that begins so.
fn spawn(variable: &str, store: &Path, says: &str) -> (std::process::Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(variable, store).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = out.find_map(|line| Some(line.unwrap().strip_prefix(says)?.trim().to_owned()));
    (child, said.unwrap())
}

/// Asks for pages on a connection; which were there.
fn ask(client: &mut BufReader<TcpStream>, paths: &[String]) -> Vec<bool> {
    let mut hits = Vec::new();
    for path in paths {
        client.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).unwrap();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            match line.trim().split_once(": ") {
                Some((name, value)) => _ = headers.insert(name.to_owned(), value.to_owned()),
                None if line.trim().is_empty() => break,
                None => assert_eq!(line.trim(), "HTTP/1.1 200 OK"),
            }
        }
        let mut body = vec![0; headers["Content-Length"].parse().unwrap()];
        client.read_exact(&mut body).unwrap();
        assert_eq!(
            String::from_utf8(body).unwrap(),
            format!("<p>This is {path}, of {} letters.</p>\n", path.len())
        );
        hits.push(headers["X-Cache"] == "hit");
    }
    hits
}

#[test]
fn pages_are_cached_after_the_server_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let connect =
        |port: &str| BufReader::new(TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap());
    let mut last: Vec<String> = Vec::new();
    for kill in 0..4 {
        let (mut server, port) = spawn("CALIBURN_PAGES", &dir.path().join("pages"), "port ");
        // What was answered before the kill is there.
        assert!(ask(&mut connect(&port), &last).into_iter().all(|hit| hit), "after {kill} kills");
        last = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let mut connection = connect(&port);
                    scope.spawn(move || {
                        let paths: Vec<String> =
                            (0..100).map(|i| format!("/page/{kill}/{client}/{i}")).collect();
                        let misses = ask(&mut connection, &paths);
                        assert!(misses.into_iter().all(|hit| !hit));
                        assert!(ask(&mut connection, &paths).into_iter().all(|hit| hit));
                        paths
                    })
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn creatures_are_each_in_one_place_whenever_the_game_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("world");
    let mut ticks = 0;
    for kill in 0..12u64 {
        let (mut game, _) = spawn("CALIBURN_WORLD", &path, "playing");
        std::thread::sleep(Duration::from_millis(20 + kill * 13 % 90));
        game.kill().unwrap();
        game.wait().unwrap();
        let store = Store::options().open(&path).unwrap();
        let world = game_world::World::open(&store).unwrap();
        assert_eq!(world.count(), (1000, 100_000));
        assert_eq!(world.look().unwrap().len(), game_world::ZONES);
        ticks = world.ticks();
    }
    assert!(ticks > 50, "only {ticks} steps");
}
