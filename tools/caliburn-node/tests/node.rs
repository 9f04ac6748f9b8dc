//! `caliburn-node` as an administrator meets it: processes, certificates, kills.

#[path = "../../../layers/dist/tests/support/authority.rs"]
mod authority;

use authority::Authority;
use caliburn_dist::bank::FIRST;
use caliburn_dist::client::{Application, Error, Options};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::credentials::{node_name, user_name};
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::members::{Members, free_addresses};
use caliburn_dist::keep::names::Names;
use caliburn_dist::proto::bank::AddRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

const CALIBURN: &str = env!("CARGO_BIN_EXE_caliburn-node");

/// A daemon, in a directory.
struct Daemon {
    dir: PathBuf,
    child: Child,
    /// What a user shows, if anything.
    shows: Vec<String>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(dir: &Path, told: &[&str]) -> Child {
    let mut command = Command::new(CALIBURN);
    command.args(["run"]).arg(dir).args(told).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

impl Daemon {
    fn new(dir: &Path, told: &[&str], shows: &[String]) -> Daemon {
        let daemon = Daemon { dir: dir.to_owned(), child: run(dir, told), shows: shows.to_vec() };
        daemon.is_there();
        daemon
    }

    fn is_there(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.node(&["show"]).status.success() {
            assert!(Instant::now() < until, "{:?}", self.node(&["show"]));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Says something to it, as its administrator.
    fn node(&self, arguments: &[&str]) -> Output {
        self.node_as(&self.shows, arguments)
    }

    fn node_as(&self, shows: &[String], arguments: &[&str]) -> Output {
        let (command, rest) = arguments.split_first().unwrap();
        let mut line = Command::new(CALIBURN);
        line.args([command, "--node"]).arg(&self.dir).args(shows).args(rest).output().unwrap()
    }

    fn says(&self, arguments: &[&str]) -> String {
        let output = self.node(arguments);
        if !output.status.success() {
            let events = std::fs::read_to_string(self.dir.join("events.log")).unwrap_or_default();
            panic!("{arguments:?}: {}\n{events}", String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).unwrap()
    }

    fn server(&self, name: &str) -> Value {
        let shown: Value = serde_json::from_str(&self.says(&["show", "--json"])).unwrap();
        let servers = shown["servers"].as_array().unwrap().clone();
        servers.into_iter().find(|server| server["name"] == name).unwrap()
    }

    fn until(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let server = self.server(name);
            if is(&server) {
                return server;
            }
            assert!(Instant::now() < until, "{server}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn process(server: &Value) -> Pid {
    Pid::from_raw(server["process"].as_u64().unwrap() as i32).unwrap()
}

/// Also one that nobody has waited for has ended.
fn runs(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// Adds to an account of a bank, in a transaction that the node coordinates.
async fn add(cluster: &Cluster, amount: i64) -> Result<i64, Error> {
    let application = Application::attach(cluster.clone(), 1).await?;
    let added = application.transact(async |tx| {
        let mut bank = BankClient::new(tx.to("bank")?);
        Ok::<_, Error>(bank.add(AddRequest { account: 1, amount, receipt: 0 }).await?.into_inner().balance)
    });
    added.await
}

/// A node with a bank, that does not run.
struct Node {
    dir: tempfile::TempDir,
    own: String,
    listen: String,
}

impl Node {
    fn new() -> (Node, Daemon) {
        let dir = tempfile::tempdir().unwrap();
        let addresses = free_addresses(2).unwrap();
        let (own, listen) = (addresses[0].to_string(), addresses[1].to_string());
        let told = ["--cluster", "test", "--number", "1", "--listen", &own];
        let daemon = Daemon::new(&dir.path().join("node"), &told, &[]);
        let bank =
            ["add-server", "bank", "--number", "11", "--listen", &listen, "--", CALIBURN, "bank-server"];
        daemon.says(&bank);
        (Node { dir, own, listen }, daemon)
    }

    fn dir(&self) -> PathBuf {
        self.dir.path().join("node")
    }
}

#[test]
fn servers_run_whatever_happens() {
    let (node, mut daemon) = Node::new();
    assert!(daemon.says(&["start", "bank"]).contains("running"));

    let runtime = runtime();
    let _context = runtime.enter();
    let cluster = Cluster::new("test").node(1, &format!("http://{}", node.own)).unwrap();
    let cluster = cluster.node(11, &format!("http://{}", node.listen)).unwrap().server("bank", 11);
    assert_eq!(runtime.block_on(add(&cluster, 5)).unwrap(), FIRST + 5);

    // Nobody waits for a coordinator.
    assert_eq!(daemon.says(&["undecided", "--server", "bank"]), "nothing is undecided\n");
    assert_eq!(
        daemon.says(&["undecided", "--json"]),
        "{\"undecided\":[],\"judgements\":[],\"doubt\":null}\n"
    );
    let judged = daemon.node(&["judge", "--server", "bank", "1.1.1.1", "aborted"]);
    assert!(error(&judged).contains("no transaction \"1.1.1.1\" is undecided here"), "{}", error(&judged));

    // The server is killed: it is started again by itself.
    let first = process(&daemon.server("bank"));
    kill_process(first, Signal::KILL).unwrap();
    daemon.until("bank", |server| server["state"] == "running" && server["starts"] == 2);
    assert_eq!(runtime.block_on(add(&cluster, 5)).unwrap(), FIRST + 10);

    // The node is killed: its servers end, and are there again when it is.
    for round in 0..3 {
        let server = process(&daemon.server("bank"));
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        if round == 0 {
            while runs(server) {
                assert!(Instant::now() < until, "the server outlives its node");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        daemon.child = run(&node.dir(), &[]);
        daemon.is_there();
        daemon.until("bank", |server| server["state"] == "running");
        assert_eq!(runtime.block_on(add(&cluster, 5)).unwrap(), FIRST + 15 + 5 * round);
    }
}

#[test]
fn servers_do_what_they_are_told() {
    let (node, daemon) = Node::new();
    assert!(daemon.says(&["start", "bank"]).contains("running"));
    // What it takes is limited from the next start on.
    daemon.says(&["change-server", "bank", "--quota", "1M"]);
    let refused = error(&daemon.node(&["restart", "bank"]));
    assert!(refused.contains("has ended: exit code 2; its output is in"), "{refused}");
    let log = std::fs::read_to_string(node.dir().join("logs/bank.log")).unwrap();
    assert!(log.contains("node 11 has a quota of 1048576 bytes"), "{log}");
    daemon.says(&["change-server", "bank", "--quota", "0"]);
    daemon.says(&["start", "bank"]);
    let crash = daemon.says(&["crash", "bank"]);
    assert!(crash.contains("server bank is"), "{crash}");
    daemon.says(&["start", "bank"]);
    // An order to forget the clock is obeyed by the next start, and by no later one.
    daemon.says(&["restart", "--forget-clock", "bank"]);
    daemon.says(&["restart", "bank"]);
    let log = std::fs::read_to_string(node.dir().join("logs/bank.log")).unwrap();
    assert_eq!(log.matches("its clock forgets what it has given out").count(), 1, "{log}");
    daemon.says(&["stop", "bank"]);
    let events = daemon.says(&["events", "--last", "1000"]);
    for event in
        ["is added, as number 11", "has ended: signal 9", "is to crash", "node 1 of cluster \"test\" begins"]
    {
        assert!(events.contains(event), "{event}: {events}");
    }
}

#[test]
fn a_servers_log_is_where_and_what_it_is_to_be() {
    let (node, daemon) = Node::new();
    daemon.says(&["start", "bank"]);
    let disks = tempfile::tempdir().unwrap();
    let at = |name: &str| disks.path().join(name);
    let change = |arguments: &[&str]| {
        daemon.says(&[&["change-server", "bank"], arguments].concat());
        daemon.says(&["restart", "bank"]);
        let mut options = caliburn::Options::new();
        let log = options.outside(disks.path()).info(node.dir().join("servers/bank")).unwrap().log.unwrap();
        (log.path, log.second, log.capacity)
    };
    let (first, second, third) = (at("first"), at("second"), at("third"));
    let [first, second, third] = [&first, &second, &third].map(|path| path.to_str().unwrap());
    let all = ["--log", first, "--log-bytes", "1M", "--duplex-log", second, "--recovery-target", "100ms"];
    assert_eq!(change(&all), (at("first"), Some(at("second")), 1 << 20));
    assert_eq!(daemon.server("bank")["log"]["recovery_ms"], 100);
    // One of them is lost; the next start makes it again.
    daemon.says(&["crash", "bank"]);
    std::fs::remove_file(first).unwrap();
    daemon.says(&["start", "bank"]);
    assert!(at("first").exists());
    // It moves on with one copy.
    assert_eq!(change(&["--simplex-log"]).1, None);
    assert_eq!(change(&["--log", third]), (at("third"), None, 1 << 20));
    // A dump is made two seconds from now.
    let times = [2, 4, 6]
        .map(|later| humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(later)));
    let times = times.map(|time| time.to_string()[11..19].to_owned()).join(",");
    change(&["--dumps", at("dumps").to_str().unwrap(), "--dump-at", &times]);
    let until = Instant::now() + Duration::from_secs(60);
    let dump = loop {
        let found = std::fs::read_dir(at("dumps")).into_iter().flatten().flatten().map(|entry| entry.path());
        if let Some(dump) = found.into_iter().find(|path| path.extension().is_some_and(|end| end == "dump")) {
            break dump;
        }
        assert!(Instant::now() < until, "no dump is made");
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut dump = std::fs::File::open(dump).unwrap();
    let options = caliburn::Options::new();
    options.restore(&mut dump, &caliburn::RestoreOptions::new(), at("restored")).unwrap();
    let refused = error(&daemon.node(&["change-server", "bank", "--dump-at", "3 o'clock"]));
    assert!(refused.contains("times of day"), "{refused}");
    let refused = error(&daemon.node(&["change-server", "bank", "--log-bytes", "2M"]));
    assert!(refused.contains("another size in another place"), "{refused}");
    let refused = error(&daemon.node(&["change-server", "bank", "--log", first, "--log-bytes", "100"]));
    assert!(refused.contains("at least 64 KiB"), "{refused}");
    let refused = error(&daemon.node(&["change-server", "bank"]));
    assert!(refused.contains("name what is to change"), "{refused}");
}

#[test]
fn a_node_ends_in_good_order_and_stays_what_it_is() {
    let (node, mut daemon) = Node::new();
    let dir = node.dir();
    daemon.says(&["start", "bank"]);
    let server = process(&daemon.server("bank"));
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert!(!runs(server));
    for store in ["store", "servers/bank"] {
        assert!(caliburn::info(dir.join(store)).unwrap().clean, "{store}");
    }
    assert!(error(&daemon.node(&["show"])).contains("does not answer"), "nobody is there");

    // What it was told stays, unless it is told to change.
    let otherwise = |more: &[&str]| {
        let run = Command::new(CALIBURN).args(["run"]).arg(&dir).args(more).output().unwrap();
        error(&run)
    };
    assert!(otherwise(&["--listen", "127.0.0.1:1"]).contains("--config replaces that"));
    assert!(otherwise(&["--number", "2", "--config"]).contains("this is node 1 of cluster \"test\""));
    assert!(otherwise(&["--listen", "192.0.2.1:1", "--config"]).contains("192.0.2.1:1"));
    daemon.child = run(&dir, &["--listen", &node.own, "--config"]);
    daemon.is_there();
}

#[test]
fn a_node_is_told_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let untold = Command::new(CALIBURN).args(["run"]).arg(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert!(error(&untold).contains("told --cluster"), "{}", error(&untold));
    // What can't be is not remembered.
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (busy, free) = (held.local_addr().unwrap().to_string(), "127.0.0.1:0".to_owned());
    for (listen, why) in [(busy, "in use"), (free, "a port is needed")] {
        let mut run = Command::new(CALIBURN);
        run.args(["run"]).arg(dir.path()).args(["--cluster", "wrong", "--number", "2", "--listen", &listen]);
        let refused = error(&run.output().unwrap());
        assert!(refused.contains(why), "{refused}");
        assert!(!dir.path().join("node.json").exists());
    }
}

/// A process that does not watch the daemon, and one that is not to restart.
#[test]
fn what_a_killed_daemon_has_left_is_ended_first() {
    let (node, mut daemon) = Node::new();
    daemon.says(&[
        "add-server",
        "stays",
        "--number",
        "12",
        "--listen",
        "127.0.0.1:1",
        "--",
        "sleep",
        "100000",
    ]);
    daemon.says(&["start", "stays", "--no-wait"]);
    daemon.says(&["remove-server", "bank"]);
    let bank = ["--number", "11", "--listen", &node.listen, "--", CALIBURN, "bank-server"];
    daemon.says(&[&["add-server", "bank", "--no-restart"], &bank[..]].concat());
    daemon.says(&["start", "bank"]);
    let left = process(&daemon.until("stays", |server| server["process"] != 0));
    for _ in 0..2 {
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        daemon.child = run(&node.dir(), &[]);
        daemon.is_there();
        daemon.until("bank", |server| server["state"] == "running");
        let next = process(&daemon.until("stays", |server| server["process"] != 0));
        assert_ne!(left, next);
        assert!(!runs(left), "two at one time");
    }
}

#[test]
fn orders_that_are_obeyed_already_are_done() {
    let (_node, daemon) = Node::new();
    let starts = || {
        let mut line = Command::new(CALIBURN);
        line.args(["start", "bank", "--patience", "20", "--node"]).arg(&daemon.dir);
        line.stdout(Stdio::null()).spawn().unwrap()
    };
    let all: Vec<Child> = (0..3).map(|_| starts()).collect();
    for mut one in all {
        assert!(one.wait().unwrap().success());
    }
    daemon.says(&["start", "bank"]);
    assert_eq!(daemon.server("bank")["starts"], 1);
    daemon.says(&["stop", "bank"]);
    daemon.says(&["stop", "bank"]);
    assert!(error(&daemon.node(&["crash", "bank"])).contains("does not run"));
    assert!(error(&daemon.node(&["change-server", "bank"])).contains("name what is to change"));
}

/// Orders are given while the daemon is killed: what was acknowledged is there, of every other one all or nothing.
#[test]
fn no_acknowledged_order_is_lost() {
    let (node, mut daemon) = Node::new();
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..6u64 {
        let kill = std::thread::spawn({
            let process = Pid::from_child(&daemon.child);
            move || {
                std::thread::sleep(Duration::from_millis(30 + 37 * round));
                kill_process(process, Signal::KILL).unwrap();
            }
        });
        for number in 0.. {
            let user = format!("u-{round}-{number}");
            let output = daemon.node(&["authorise", &user, "a.v1.S/*", "b.v1.S/*"]);
            if !output.status.success() {
                break;
            }
            acknowledged.push(user);
        }
        kill.join().unwrap();
        daemon.child.wait().unwrap();
        daemon.child = run(&node.dir(), &[]);
        daemon.is_there();
        let shown: Value = serde_json::from_str(&daemon.says(&["show", "--json"])).unwrap();
        let users = shown["users"].as_array().unwrap();
        let names: Vec<&str> = users.iter().map(|user| user["name"].as_str().unwrap()).collect();
        for user in &acknowledged {
            assert!(names.contains(&&**user), "{user} is lost");
        }
        // The last one of each round may have come through.
        assert!(names.len() <= acknowledged.len() + round as usize + 1, "{names:?}");
        assert!(users.iter().all(|user| user["rights"].as_array().unwrap().len() == 2));
    }
    assert!(!acknowledged.is_empty());
}

#[test]
fn users_have_rights() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&dir.path().join("certificates"));
    let text = |files: [PathBuf; 3]| files.map(|file| file.to_str().unwrap().to_owned());
    let node = |number| text(authority.files(&[node_name("test", number)], 2900));
    let user = |name: &str| text(authority.files(&[user_name("test", name)], 2900));
    let shows = |name: &str| {
        let [_, certificate, key] = user(name);
        ["--as".to_owned(), certificate, "--as-key".to_owned(), key]
    };
    let addresses = free_addresses(2).unwrap();
    let (own, listen) = (addresses[0].to_string(), addresses[1].to_string());
    let (node_dir, [ca, certificate, key]) = (dir.path().join("node"), node(1));
    let told = [
        "--cluster",
        "test",
        "--number",
        "1",
        "--listen",
        &own,
        "--administrator",
        "root",
        "--authority",
        &ca,
    ];
    let told = [&told[..], &["--certificate", &certificate, "--key", &key]].concat();
    let daemon = Daemon::new(&node_dir, &told, &shows("root"));
    let [_, certificate, key] = node(11);
    let add_bank = ["add-server", "bank", "--number", "11", "--listen", &listen, "--owner", "olga"];
    let command = ["--", CALIBURN, "bank-server"];
    assert!(error(&daemon.node(&[&add_bank[..], &command].concat())).contains("it needs one of its number"));
    let secured = [&add_bank[..], &["--certificate", &certificate, "--key", &key], &command].concat();
    assert!(error(&daemon.node_as(&shows("mallory"), &secured)).contains("user \"mallory\" has no right"));
    assert!(error(&daemon.node_as(&[], &["show"])).contains("wants a certificate"));
    daemon.says(&secured);

    // The owner, and nobody else.
    assert!(error(&daemon.node_as(&shows("mallory"), &["start", "bank"])).contains("has no right"));
    let olga = shows("olga");
    assert!(daemon.node_as(&olga, &["start", "bank"]).status.success());
    assert!(error(&daemon.node_as(&olga, &["authorise", "olga", "*"])).contains("has no right"));

    let judges = daemon.node_as(&shows("alice"), &["judge", "1.1.1.1", "aborted"]);
    assert!(error(&judges).contains("has no right to caliburn.v1.Node/Judge"), "{}", error(&judges));

    // What users may do, the server hears.
    let runtime = runtime();
    let _context = runtime.enter();
    let as_user = |name: &str| {
        let credentials = authority.credentials(user_name("test", name));
        let cluster =
            Cluster::secured("test", credentials).unwrap().node(1, &format!("https://{own}")).unwrap();
        cluster.node(11, &format!("https://{listen}")).unwrap().server("bank", 11)
    };
    let alice = as_user("alice");
    let refused = runtime.block_on(add(&alice, 1)).unwrap_err().to_string();
    assert!(refused.contains("has no right to caliburn.bank.v1.Bank/Add"), "{refused}");
    daemon.says(&["authorise", "alice", "caliburn.bank.v1.Bank/Add"]);
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(refused) = runtime.block_on(add(&alice, 1)) {
        assert!(Instant::now() < until, "{refused}");
    }
    daemon.says(&["remove-user", "alice"]);
    while runtime.block_on(add(&alice, 1)).is_ok() {
        assert!(Instant::now() < until, "a user that was removed has rights");
    }
    assert_eq!(daemon.says(&["show"]).lines().count(), 2);
}

/// In etcd: nobody is told where anything is.
#[test]
fn a_cluster_is_found_in_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let members = match Members::start(1, dir.path().join("etcd")) {
        Ok(members) => members,
        Err(error) => {
            eprintln!("not run: {error}");
            return;
        }
    };
    let etcd = members.addresses().join(",");
    let own = free_addresses(2).unwrap();
    let told = |number: &str, own: &str| {
        let told = ["--cluster", "test", "--etcd", &etcd, "--number", number, "--listen", own];
        told.map(str::to_owned)
    };
    let nodes: Vec<Daemon> = (1..)
        .zip(&own)
        .map(|(number, own)| {
            let told = told(&number.to_string(), &own.to_string());
            let told: Vec<&str> = told.iter().map(String::as_str).collect();
            let daemon = Daemon::new(&dir.path().join(number.to_string()), &told, &[]);
            let (number, listen) = ((10 + number).to_string(), "127.0.0.1:0");
            let bank = [
                "add-server",
                "bank",
                "--number",
                &number,
                "--listen",
                listen,
                "--",
                CALIBURN,
                "bank-server",
            ];
            daemon.says(&bank);
            daemon.says(&["start", "bank"]);
            daemon
        })
        .collect();
    runtime().block_on(async {
        let cluster = Cluster::new("test");
        let etcd = Etcd::new(members.addresses().iter().map(String::as_str), "test").unwrap();
        let _names = Names::follow(etcd, cluster.clone()).await.unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while cluster.all("bank").len() < 2 || cluster.find("node@1").is_err() {
            assert!(Instant::now() < until, "{cluster:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let application = Application::attach(cluster, 1).await.unwrap();
        for blocking in [true, false] {
            let options = Options { blocking, ..Options::default() };
            let moved = application.transact_with(options, async |tx| {
                for (bank, amount) in [("bank@11", -7), ("bank@12", 7)] {
                    let mut bank = BankClient::new(tx.to(bank)?);
                    bank.add(AddRequest { account: 1, amount, receipt: 0 }).await.map_err(Error::from)?;
                }
                Ok::<_, Error>(())
            });
            moved.await.unwrap();
        }
    });
    drop(nodes);
}
