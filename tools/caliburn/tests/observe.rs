//! A store in use is looked at from outside: its metrics.

use caliburn::{Class, Mode, Options, Policy, Store, Value, watch};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caliburn")).args(arguments).output().unwrap()
}

/// A store that commits, forced and not, while `act` looks at it.
fn busy<T>(path: &Path, policy: Policy, act: impl FnOnce(&Store) -> T) -> T {
    let mut options = Store::options();
    let store = options.create(true).policy(policy).log_bytes(1 << 20).open(path).unwrap();
    let region = store.create_segment("data", 1 << 20).unwrap().map_all().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(&region, (number as usize * 8) % (1 << 20), &number).unwrap();
                let lasting = policy == Policy::Redo && number.is_multiple_of(10);
                tx.commit(if lasting { Class::Power } else { Class::Process }).unwrap();
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&store)));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The value of a line of metrics.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn another_process_sees_what_a_store_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s \"q\"");
    let name = path.to_str().unwrap();
    busy(&path, Policy::Redo, |store| {
        let first = caliburn(&["metrics", name]);
        assert!(first.status.success(), "{first:?}");
        let first = String::from_utf8(first.stdout).unwrap();
        let commits = |text: &str| value(text, "caliburn_commits_total");
        assert!(commits(&first) > 0.0 && value(&first, "caliburn_force_seconds_count") > 0.0, "{first}");
        assert!(first.contains("class=\"lasting\"") && first.contains("le=\"+Inf\""), "{first}");
        assert_eq!(value(&first, "caliburn_log_bytes"), f64::from(1 << 20));
        // What is told is renewed while somebody asks.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while commits(&watch(&path).unwrap().unwrap().prometheus) <= commits(&first) {
            assert!(std::time::Instant::now() < end, "it tells nothing new");
            std::thread::yield_now();
        }
        // From within, and in the other form.
        let metrics = store.metrics();
        let json: serde_json::Value = serde_json::from_str(&metrics.to_otlp_json()).unwrap();
        let scope = &json["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        assert_eq!(scope.as_array().unwrap().len(), metrics.iter().count());
        let force = metrics.iter().find(|metric| metric.name == "caliburn_force_seconds").unwrap();
        let Value::Histogram { classes, count, .. } = &force.value else { panic!("{force:?}") };
        assert!(classes.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert!(classes.last().unwrap().1 <= *count && *count > 0);
    });
    let gone = caliburn(&["metrics", dir.path().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("not a store"), "{gone:?}");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn several_stores_are_served_to_monitoring() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    busy(&at("redo"), Policy::Redo, |_| {
        busy(&at("undo"), Policy::Undo, |_| {
            let mut serving = Killed(
                Command::new(env!("CARGO_BIN_EXE_caliburn"))
                    .args(["metrics", at("redo").to_str().unwrap(), at("undo").to_str().unwrap()])
                    .args(["--serve", "127.0.0.1:0"])
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap(),
            );
            let mut line = String::new();
            let stderr = serving.0.stderr.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut line).unwrap();
            let address =
                line.trim().trim_start_matches("serving at http://").trim_end_matches("/metrics").to_owned();
            for _ in 0..3 {
                let mut stream = TcpStream::connect(&address).unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
                assert!(answer.contains("/redo\"") && answer.contains("/undo\""), "{answer}");
                assert_eq!(answer.matches("# TYPE caliburn_aborts_total").count(), 1, "{answer}");
            }
        });
    });
}

#[test]
fn whoever_does_not_want_to_be_watched_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = Options::new();
    let store = options.create(true).observable(false).open(&path).unwrap();
    let output = caliburn(&["metrics", path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody has it open who tells"), "{output:?}");
    drop(store);
}

/// Each user can look, whatever file another one has left; and the lock has the rights of the store's other files.
#[test]
fn users_of_one_directory_keep_each_other_out_of_nothing() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let rights = |name: &str| std::fs::metadata(path.join(name)).unwrap().mode() & 0o777;
    let store = Store::options().create(true).mode(0o664).open(&path).unwrap();
    assert_eq!(rights("lock"), rights("catalog"));
    if std::fs::metadata(&path).unwrap().uid() != 0 {
        eprintln!("not run: another user's file needs root");
        return;
    }
    assert!(caliburn(&["metrics", path.to_str().unwrap()]).status.success());
    assert_eq!(rights("watched"), 0o644);
    std::fs::set_permissions(path.join("watched"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for (open, mode) in [(dir.path(), 0o755), (&path, 0o777)] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let arguments = ["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_caliburn"), "metrics"];
    let other = Command::new("setpriv").args(arguments).arg(&path).output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    store.close().unwrap();
}
