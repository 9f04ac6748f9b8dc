//! A node's daemon: what it is told is done in transactions, and its servers are what it remembers.

use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::Node as NodeNumber;
use caliburn_dist::daemon::{self, DaemonError};
use caliburn_dist::data_server::Environment;
use caliburn_dist::keep::members::free_addresses;
use caliburn_dist::proto::admin::admin_client::AdminClient;
use caliburn_dist::proto::admin::{Name, Order, Server, ShowRequest, Shown, State, Status, User, What};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::Channel;

struct Daemon {
    cluster: Cluster,
    task: JoinHandle<Result<(), DaemonError>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Daemon {
    async fn new(dir: &Path) -> Daemon {
        let listen = free_addresses(1).unwrap()[0];
        let cluster = Cluster::new("c").node(1, &format!("http://{listen}")).unwrap().server("node", 1);
        let environment = Environment {
            name: "node".into(),
            cluster: "c".into(),
            number: 1,
            store: dir.to_owned(),
            listen: Some(listen),
            ..Environment::default()
        };
        let (stop, stops) = tokio::sync::oneshot::channel();
        let run = async move {
            daemon::Daemon::start(environment, None).await?.run(async { _ = stops.await }).await
        };
        let daemon = Daemon { cluster, task: tokio::spawn(run), stop };
        let until = Instant::now() + Duration::from_secs(60);
        while daemon.admin().show(ShowRequest {}).await.is_err() {
            assert!(!daemon.task.is_finished(), "{:?}", daemon.task.await);
            assert!(Instant::now() < until, "it does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        daemon
    }

    fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.cluster.channel(NodeNumber(1)).unwrap())
    }

    async fn shown(&self) -> Shown {
        self.admin().show(ShowRequest {}).await.unwrap().into_inner()
    }

    async fn until(&self, name: &str, is: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let all = self.shown().await.servers;
            let found = all.into_iter().find(|status| status.server.as_ref().is_some_and(|s| s.name == name));
            match found {
                Some(status) if is(&status) => return status,
                other => assert!(Instant::now() < until, "{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn give(&self, name: &str, what: What) -> Result<(), tonic::Status> {
        self.admin()
            .give(Order { name: name.into(), what: what as i32, forget_clock: false })
            .await
            .map(|_| ())
    }

    async fn end(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

/// A process that never serves.
fn server(name: &str, number: u64, seconds: &str) -> Server {
    Server {
        name: name.into(),
        number,
        command: "sleep".into(),
        arguments: vec![seconds.into()],
        listen: format!("127.0.0.1:{}", 1000 + number),
        ..Server::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::new(dir.path()).await;
    let application = Application::attach(daemon.cluster.clone(), 1).await.unwrap();
    let two = async |abort: bool| {
        let both = application.transact(async |tx| {
            let mut admin = AdminClient::new(tx.to("node")?);
            admin.add_server(server("a", 11, "1000")).await.map_err(Error::from)?;
            admin
                .give(Order { name: "a".into(), what: What::Start as i32, forget_clock: false })
                .await
                .map_err(Error::from)?;
            let nested = tx.nest(async |child| {
                let mut admin = AdminClient::new(child.to("node")?);
                admin.add_server(server("nested", 13, "1000")).await.map_err(Error::from)?;
                Err::<(), Error>(child.abort("no"))
            });
            assert!(nested.await.is_err());
            AdminClient::new(tx.to("node")?)
                .add_server(server("b", 12, "1000"))
                .await
                .map_err(Error::from)?;
            if abort { Err(tx.abort("no")) } else { Ok(()) }
        });
        both.await
    };
    two(true).await.unwrap_err();
    assert_eq!(daemon.shown().await.servers.len(), 0);
    two(false).await.unwrap();
    daemon.until("a", |status| status.state() == State::Starting && status.process != 0).await;
    assert_eq!(daemon.until("b", |_| true).await.state(), State::Stopped);
    assert_eq!(daemon.shown().await.servers.len(), 2);
    drop(application);
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_remembered_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::new(dir.path()).await;
    let mut admin = daemon.admin();
    admin.add_server(Server { restarts: true, ..server("ends", 11, "0") }).await.unwrap();
    admin.add_server(server("stays", 12, "1000")).await.unwrap();
    admin.add_server(server("fails", 13, "0")).await.unwrap();
    admin.set_user(User { name: "alice".into(), rights: vec!["*".into()] }).await.unwrap();
    for name in ["ends", "stays", "fails"] {
        daemon.give(name, What::Start).await.unwrap();
    }
    daemon.until("ends", |status| status.starts >= 3 && status.ended == "exit code 0").await;
    let failed = daemon.until("fails", |status| status.state() == State::Failed).await;
    daemon.give("fails", What::Start).await.unwrap();
    daemon.until("fails", |status| status.state() == State::Failed && status.starts > failed.starts).await;
    let first = daemon.until("stays", |status| status.process != 0).await;
    let refused = admin.remove_server(Name { name: "stays".into() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    // Another daemon goes on with what this one remembers.
    daemon.end().await;
    daemon = Daemon::new(dir.path()).await;
    let second = daemon.until("stays", |status| status.process != 0).await;
    assert_ne!(first.process, second.process);
    assert_eq!(daemon.shown().await.incarnation, 2);
    assert_eq!(daemon.shown().await.users[0].name, "alice");
    daemon.until("ends", |status| status.starts >= 1).await;

    daemon.give("stays", What::Crash).await.unwrap();
    assert_eq!(daemon.until("stays", |status| status.state() == State::Failed).await.ended, "signal 9");
    daemon.give("stays", What::Restart).await.unwrap();
    daemon.until("stays", |status| status.process != 0).await;
    daemon.give("stays", What::Stop).await.unwrap();
    assert_eq!(daemon.until("stays", |status| status.state() == State::Stopped).await.ended, "signal 15");
    let mut admin = daemon.admin();
    admin.remove_server(Name { name: "stays".into() }).await.unwrap();
    // The same name again, at once.
    admin.add_server(server("stays", 12, "1000")).await.unwrap();
    daemon.give("stays", What::Start).await.unwrap();
    daemon.until("stays", |status| status.process != 0).await;
    daemon.end().await;
}

/// In one transaction: nobody sees that it was not there.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_of_the_same_name_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::new(dir.path()).await;
    let mut admin = daemon.admin();
    admin.add_server(server("a", 11, "1000")).await.unwrap();
    daemon.give("a", What::Start).await.unwrap();
    let first = daemon.until("a", |status| status.process != 0).await;
    let application = Application::attach(daemon.cluster.clone(), 1).await.unwrap();
    let replaced = application.transact(async |tx| {
        let mut admin = AdminClient::new(tx.to("node")?);
        let order = |what: What| Order { name: "a".into(), what: what as i32, forget_clock: false };
        admin.give(order(What::Stop)).await.map_err(Error::from)?;
        admin.remove_server(Name { name: "a".into() }).await.map_err(Error::from)?;
        admin.add_server(server("a", 11, "2000")).await.map_err(Error::from)?;
        admin.give(order(What::Start)).await.map_err(Error::from)?;
        Ok::<_, Error>(())
    });
    replaced.await.unwrap();
    let second = daemon.until("a", |status| status.process != 0 && status.process != first.process).await;
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", second.process)).unwrap();
    assert_eq!(command, "sleep\x002000\0");
    assert!(!Path::new(&format!("/proc/{}", first.process)).exists(), "two at one time");
    drop(application);
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::new(dir.path()).await;
    let mut admin = daemon.admin();
    admin.add_server(server("a", 11, "1000")).await.unwrap();
    for (wrong, why) in [
        (server("a", 12, "1"), "is there already"),
        (server("b", 11, "1"), "server \"a\" is number 11"),
        (server("b", 1, "1"), "the node itself is number 1"),
        (server("../b", 12, "1"), "\"../b\" is no name of a server"),
        (server("", 12, "1"), "\"\" is no name of a server"),
        (Server { listen: "127.0.0.1:0".into(), ..server("b", 12, "1") }, "a port is needed"),
        (Server { listen: "0.0.0.0:1".into(), ..server("b", 12, "1") }, "an address is needed"),
        (Server { owner: "a b".into(), ..server("b", 12, "1") }, "is no user's name"),
        (Server { command: String::new(), ..server("b", 12, "1") }, "needs a command"),
        (Server { listen: "here".into(), ..server("b", 12, "1") }, "\"here\" is not an address"),
        (server("b", 12, &"x".repeat(5000)), "bytes, of at most 4092"),
    ] {
        let refused = admin.add_server(wrong).await.unwrap_err();
        assert!(refused.message().contains(why), "{}", refused.message());
    }
    let nobody = daemon.give("nobody", What::Start).await.unwrap_err();
    assert_eq!(
        (nobody.code(), nobody.message()),
        (Code::NotFound, "no server is called \"nobody\"; there are [\"a\"]")
    );
    assert_eq!(daemon.give("a", What::None).await.unwrap_err().code(), Code::InvalidArgument);
    for right in ["nonsense", "", "**", "a/b/c", "/a", "a/"] {
        let user = User { name: "x".into(), rights: vec![right.into()] };
        assert!(admin.set_user(user).await.unwrap_err().message().contains("is no right"), "{right}");
    }
    assert_eq!(admin.remove_user(Name { name: "x".into() }).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(daemon.shown().await.servers.len(), 1);
    daemon.end().await;
}
