//! Who may write to a cluster's etcd: nodes, and no users; and a node that says so when it is otherwise.

use caliburn_dist::keep::members::free_addresses;
use caliburn_dist::proto::etcd::kv_client::KvClient;
use caliburn_dist::proto::etcd::{PutRequest, RangeRequest, RequestOp, TxnRequest, request_op};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

const CALIBURN: &str = env!("CARGO_BIN_EXE_caliburn-node");

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn caliburn(arguments: &[&str]) -> Output {
    Command::new(CALIBURN).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A member of etcd that trusts the authorities of a file, or everybody.
fn member(dir: &Path, made: &Path, trusts: Option<&Path>) -> (String, Running) {
    let addresses = free_addresses(2).unwrap();
    let client = format!("https://localhost:{}", addresses[0].port());
    let peer = format!("http://{}", addresses[1]);
    let mut command = Command::new("etcd");
    command
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--name", "m", "--initial-cluster", &format!("m={peer}"), "--data-dir"])
        .arg(dir.join("etcd"))
        .arg("--cert-file")
        .arg(made.join("etcd-member-localhost.pem"))
        .arg("--key-file")
        .arg(made.join("etcd-member-localhost.key"));
    if let Some(trusts) = trusts {
        command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(trusts);
    }
    let log = std::fs::File::create(dir.join("etcd.log")).unwrap();
    let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    (client, Running(child))
}

/// What etcd says to somebody with a certificate, or without, who reads a key and who writes it.
async fn tries(member: &str, made: &Path, shows: Option<&str>) -> [Result<(), Status>; 2] {
    let pem = |name: &str| std::fs::read(made.join(name)).unwrap();
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem("etcd-authority.pem")));
    if let Some(shows) = shows {
        tls = tls.identity(Identity::from_pem(pem(&format!("{shows}.pem")), pem(&format!("{shows}.key"))));
    }
    let channel = Endpoint::from_shared(member.to_owned()).unwrap().tls_config(tls).unwrap().connect_lazy();
    let (mut kv, key) = (KvClient::new(channel), b"bank/theirs".to_vec());
    let read = kv.range(RangeRequest { key: key.clone(), ..RangeRequest::default() }).await;
    let put = PutRequest { key, value: b"x".to_vec(), lease: 0 };
    let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let written = kv.txn(TxnRequest { success: vec![put], ..TxnRequest::default() }).await;
    [read.map(drop), written.map(drop)]
}

/// A node, and what is wrong with it as it says some moments later.
fn node_says(dir: &Path, made: &Path, etcd: &str, wrong: bool) -> Vec<String> {
    let own = free_addresses(1).unwrap()[0].to_string();
    let node = dir.join("node");
    let file = |name: &str| made.join(name).to_str().unwrap().to_owned();
    let certificates = ["authority.pem", "node-1.pem", "node-1.key"].map(file);
    let for_etcd = ["etcd-authority.pem", "etcd-node-1.pem", "etcd-node-1.key"].map(file);
    let mut run = Command::new(CALIBURN);
    run.args(["run"]).arg(&node).args(["--cluster", "bank", "--number", "1", "--listen", &own]);
    run.args(["--etcd", etcd, "--administrator", "root"]);
    for (option, file) in ["--authority", "--certificate", "--key"].iter().zip(&certificates) {
        run.args([option, &&**file]);
    }
    for (option, file) in ["--etcd-authority", "--etcd-certificate", "--etcd-key"].iter().zip(&for_etcd) {
        run.args([option, &&**file]);
    }
    let log = std::fs::File::create(dir.join("node.log")).unwrap();
    let run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let _running = Running(run);
    let shows = ["--node", node.to_str().unwrap(), "--as", &file("root.pem"), "--as-key", &file("root.key")];
    let until = Instant::now() + Duration::from_secs(60);
    let mut came = None;
    loop {
        let shown = caliburn(&[&["show", "--json"], &shows[..]].concat());
        if shown.status.success() {
            let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
            let notices = shown["notices"].as_array().unwrap().iter();
            let notices: Vec<String> = notices.map(|notice| notice.as_str().unwrap().to_owned()).collect();
            let came = *came.get_or_insert_with(Instant::now);
            // It looks as soon as it serves.
            if !notices.is_empty() || !wrong && came.elapsed() > Duration::from_secs(1) {
                if wrong {
                    let events = caliburn(&[&["events"], &shows[..]].concat());
                    let events = String::from_utf8(events.stdout).unwrap();
                    assert!(events.contains("takes writes"), "{events}");
                    let text = String::from_utf8(caliburn(&[&["show"], &shows[..]].concat()).stdout).unwrap();
                    assert!(text.contains("warning: etcd's member"), "{text}");
                }
                return notices;
            }
        }
        assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&shown.stderr));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn has_etcd() -> bool {
    let there = Command::new("etcd").arg("--version").output().is_ok();
    if !there {
        eprintln!("not run: etcd is not installed (apt-get install etcd-server)");
    }
    there
}

fn made(dir: &Path) -> PathBuf {
    let made = dir.join("made");
    let make = caliburn(&[
        "certificates",
        made.to_str().unwrap(),
        "--cluster",
        "bank",
        "--node",
        "1",
        "--user",
        "alice",
        "--user",
        "root",
        "--etcd-member",
        "localhost",
    ]);
    assert!(make.status.success(), "{make:?}");
    made
}

#[test]
fn users_can_neither_read_nor_write_etcd_or_the_node_says_so() {
    if !has_etcd() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let all = tempfile::tempdir().unwrap();
    let made = made(all.path());
    let both = all.path().join("both.pem");
    let two =
        ["authority.pem", "etcd-authority.pem"].map(|name| std::fs::read_to_string(made.join(name)).unwrap());
    std::fs::write(&both, two.concat()).unwrap();
    let own = made.join("etcd-authority.pem");
    // Whom etcd trusts; whether it lets in a user, and anybody; what the node says.
    let cases = [
        (Some(&own), [false, false], None),
        (Some(&both), [true, false], Some("certificates of the users' authority")),
        (None, [true, true], Some("anybody who reaches it")),
    ];
    for (trusts, [user, anybody], wrong) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (etcd, _member) = member(dir.path(), &made, trusts.map(PathBuf::as_path));
        runtime.block_on(async {
            let until = Instant::now() + Duration::from_secs(60);
            while tries(&etcd, &made, Some("etcd-node-1")).await.iter().any(Result::is_err) {
                assert!(Instant::now() < until, "etcd is not there");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for (shows, gets_in) in [(Some("alice"), user), (None, anybody)] {
                for (done, what) in tries(&etcd, &made, shows).await.into_iter().zip(["read", "write"]) {
                    assert_eq!(done.is_ok(), gets_in, "{shows:?} may {what}: {done:?}");
                }
            }
        });
        let says = node_says(dir.path(), &made, &etcd, wrong.is_some());
        match wrong {
            None => assert!(says.is_empty(), "{says:?}"),
            Some(wrong) => {
                assert!(says[0].contains(wrong) && says[0].contains("--etcd-authority"), "{says:?}")
            }
        }
    }
}

#[test]
fn certificates_are_made_beside_those_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let made = made(dir.path());
    let authority = std::fs::read(made.join("authority.pem")).unwrap();
    let more = |arguments: &[&str]| {
        caliburn(&[&["certificates", made.to_str().unwrap(), "--cluster", "bank"], arguments].concat())
    };
    let next = more(&["--node", "2"]);
    assert!(next.status.success(), "{next:?}");
    assert_eq!(std::fs::read(made.join("authority.pem")).unwrap(), authority);
    for file in ["node-2.key", "etcd-node-2.key", "authority.key"] {
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(made.join(file)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let key = std::fs::read(made.join("node-1.key")).unwrap();
    let again = more(&["--node", "1"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("node-1.pem is there already"), "{again:?}");
    assert_eq!(std::fs::read(made.join("node-1.key")).unwrap(), key);
    for wrong in [["--user", "node-7"], ["--user", "Al"], ["--user", "authority"], ["--etcd-member", "../x"]]
    {
        assert!(!more(&wrong).status.success(), "{wrong:?}");
    }
}
