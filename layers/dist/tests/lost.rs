//! Machines that are lost: nodes whose logs are in etcd, made again of a dump and that log in another directory.

mod support;

use caliburn_dist::bank::FIRST;
use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, MembersError};
use caliburn_dist::node::{Builder, Node, NodeError};
use caliburn_dist::proto::bank::TotalRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{BOTH, add, serve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One node's place, members of etcd, and where dumps go.
struct Place {
    dir: tempfile::TempDir,
    members: Members,
    etcd: Etcd,
}

impl Place {
    fn new(members: usize) -> Option<Place> {
        let dir = tempfile::tempdir().unwrap();
        let members = match Members::start(members, dir.path().join("etcd")) {
            Ok(members) => members,
            Err(error @ MembersError::NotInstalled) => {
                println!("not run: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let addresses = members.addresses();
        let etcd = Etcd::new(addresses.iter().map(String::as_str), "test").unwrap();
        Some(Place { dir, members, etcd })
    }

    fn dumps(&self) -> PathBuf {
        self.dir.path().join("dumps")
    }

    fn build(&self, cluster: &Cluster, number: u64, machine: &str) -> Builder {
        let node = support::node(cluster, number, &self.dir.path().join(machine));
        node.keeper(Keeper::Etcd(self.etcd.clone())).replicated(self.dumps())
    }
}

/// Runs it at an address that it may have had before, and serves. (It may take a moment until that is free.)
async fn run(builder: Builder, address: &str) -> (Node, JoinHandle<()>) {
    let node = builder.start().await.unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let serving = serve(&node, listener);
    (node, serving)
}

fn addresses(count: usize) -> Vec<String> {
    caliburn_dist::keep::members::free_addresses(count).unwrap().iter().map(ToString::to_string).collect()
}

fn cluster(addresses: &[String]) -> Cluster {
    let mut cluster = Cluster::new("test");
    for (number, address) in (1..).zip(addresses) {
        cluster = cluster.node(number, &format!("http://{address}")).unwrap().server("bank", number);
    }
    cluster
}

/// What a machine leaves behind that is lost: nothing. That of one that comes back: a copy of what it had.
fn lose(path: &Path) -> PathBuf {
    let aside = path.with_extension("old");
    fs::rename(path, &aside).unwrap();
    aside
}

/// What was acknowledged is there on another machine, however often that happens; and the old one is fenced.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_machine_is_lost_goes_on_elsewhere() {
    let Some(place) = Place::new(3) else { return };
    let addresses = addresses(2);
    let cluster = cluster(&addresses);
    let two = run(place.build(&cluster, 2, "b"), &addresses[1]).await;
    let mut one = run(place.build(&cluster, 1, "a0"), &addresses[0]).await;
    let mut sum = 0;
    for turn in 0..4 {
        let application = Application::attach(cluster.clone(), 2).await.unwrap();
        for number in 0..12 {
            let options = BOTH[number as usize % 2];
            let receipt = turn * 100 + number + 1;
            let done = application.transact_with(options, async |tx| {
                add(tx, 1, 7, 5, receipt).await?;
                add(tx, 2, 7, -5, receipt).await?;
                Ok::<_, Error>(())
            });
            // It has lost the connection to the node that was replaced.
            match done.await {
                Ok(()) => sum += 5,
                Err(error) => assert!(number == 0 && turn > 0, "turn {turn}, {number}: {error}"),
            }
        }
        if turn == 1 {
            one.0.dump().await.unwrap();
        }
        // The machine is gone, as far as anybody can tell; and yet it goes on.
        let machine = format!("a{}", turn + 1);
        let refused = place.build(&cluster, 1, &machine).start().await.unwrap_err();
        assert!(matches!(refused, NodeError::Replaced { node: 1, .. }), "{refused}");
        one.1.abort();
        let next = place.build(&cluster, 1, &machine).take_over(true);
        let next = next.start().await.unwrap();
        // It is fenced at its first force, and stops.
        let alone = one.0.dump().await;
        assert!(alone.is_err(), "it goes on");
        one.0.stop().await;
        next.stop().await;
        // The old one comes back.
        let old = place.build(&cluster, 1, &format!("a{turn}")).start().await.unwrap_err();
        assert!(matches!(old, NodeError::Replaced { .. }), "{old}");
        one = run(place.build(&cluster, 1, &machine), &addresses[0]).await;
        let application = Application::attach(cluster.clone(), 2).await.unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let balances = application.transact(async |tx| {
                Ok::<_, Error>((add(tx, 1, 7, 0, 0).await?, add(tx, 2, 7, 0, 0).await?))
            });
            match balances.await {
                Ok(balances) => break assert_eq!(balances, (FIRST + sum, FIRST - sum), "turn {turn}"),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }
    // Of what came to nothing nothing is left.
    one.0.dump().await.unwrap();
    assert_eq!(fs::read_dir(place.dumps()).unwrap().count(), dump_of(&place.dumps()).len());
    for (node, serving) in [one, two] {
        node.stop().await;
        serving.await.unwrap();
    }
}

/// A node prepares, and its machine is lost: what it has prepared is decided elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_prepared_is_decided_elsewhere() {
    let Some(place) = Place::new(1) else { return };
    let addresses = addresses(2);
    let cluster = cluster(&addresses);
    let two = run(place.build(&cluster, 2, "b"), &addresses[1]).await;
    // It dies when it has voted, before it hears the outcome: its commit hook never comes.
    let (voted, mut has_voted) = tokio::sync::mpsc::unbounded_channel();
    let dying =
        place.build(&cluster, 1, "a").on_prepare(move |_| voted.send(()).map_err(|error| error.to_string()));
    let one = run(dying, &addresses[0]).await;
    let application = Application::attach(cluster.clone(), 2).await.unwrap();
    let transfer = application.transact(async |tx| {
        add(tx, 1, 3, 9, 1).await?;
        add(tx, 2, 3, -9, 1).await?;
        Ok::<_, Error>(())
    });
    let (done, _) = tokio::join!(transfer, async {
        has_voted.recv().await.unwrap();
        one.1.abort();
        one.0.stop().await;
    });
    lose(&place.dir.path().join("a/1"));
    let again = run(place.build(&cluster, 1, "c").take_over(true), &addresses[0]).await;
    let until = Instant::now() + Duration::from_secs(60);
    let balances = loop {
        let balances = application
            .transact(async |tx| Ok::<_, Error>((add(tx, 1, 3, 0, 0).await?, add(tx, 2, 3, 0, 0).await?)));
        match balances.await {
            Ok(balances) => break balances,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    assert!(
        balances == (FIRST + 9, FIRST - 9) || done.is_err() && balances == (FIRST, FIRST),
        "{done:?}: {balances:?}"
    );
    for (node, serving) in [again, two] {
        node.stop().await;
        serving.await.unwrap();
    }
}

/// Etcd keeps what came since the last dump, and not much more.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_in_etcd_stays_small() {
    let Some(place) = Place::new(1) else { return };
    let addresses = addresses(1);
    let cluster = cluster(&addresses);
    let one = run(place.build(&cluster, 1, "a").dump_every(20_000), &addresses[0]).await;
    let first = dump_of(&place.dumps());
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let (mut added, until) = (0, Instant::now() + Duration::from_secs(60));
    while dump_of(&place.dumps()) == first {
        assert!(Instant::now() < until, "no dump is made");
        added += 1;
        application.transact(async |tx| add(tx, 1, 5, 1, 0).await).await.unwrap();
    }
    one.1.abort();
    one.0.stop().await;
    let again = run(place.build(&cluster, 1, "b").take_over(true), &addresses[0]).await;
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let balance = application.transact(async |tx| add(tx, 1, 5, 0, 0).await).await.unwrap();
    assert_eq!(balance, FIRST + added);
    again.0.stop().await;
    again.1.await.unwrap();
    // Without its dumps it can't be had.
    for dump in fs::read_dir(place.dumps()).unwrap() {
        fs::remove_file(dump.unwrap().path()).unwrap();
    }
    let none = place.build(&cluster, 1, "c").take_over(true).start().await.unwrap_err();
    assert!(matches!(none, NodeError::NoDump { node: 1, .. }), "{none}");
    let _running = &place.members;
}

/// Others who use the same directory for dumps, who take over in vain, and who restart often.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_well_stays_so() {
    let Some(place) = Place::new(1) else { return };
    let addresses = addresses(2);
    let cluster = cluster(&addresses[..1]);
    // Of another cluster, with the same number.
    let members = place.members.addresses();
    let etcd = Etcd::new(members.iter().map(String::as_str), "other").unwrap();
    let other = Cluster::new("other");
    let other = other.node(1, &format!("http://{}", addresses[1])).unwrap().server("bank", 1);
    let mut added = 0;
    let mut first = Vec::new();
    let own = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("test-1-");
    for turn in 0..5 {
        let one = run(place.build(&cluster, 1, "a").dump_every(20_000), &addresses[0]).await;
        let builder = support::node(&other, 1, &place.dir.path().join(format!("other{turn}")));
        let builder = builder.keeper(Keeper::Etcd(etcd.clone())).replicated(place.dumps()).take_over(true);
        let another = run(builder, &addresses[1]).await;
        let wrong = place.build(&cluster, 1, "b").replicated(place.dir.path().join("wrong")).take_over(true);
        let wrong = wrong.start().await.unwrap_err();
        assert!(matches!(wrong, NodeError::File("list", ..)), "{wrong}");
        let application = Application::attach(cluster.clone(), 1).await.unwrap();
        for _ in 0..12 {
            added += 1;
            application.transact(async |tx| add(tx, 1, 5, 1, 0).await).await.unwrap();
        }
        let until = Instant::now() + Duration::from_secs(60);
        // 60 commits in all make a dump due, though no life has so many.
        let mut dumps = dump_of(&place.dumps());
        dumps.retain(own);
        if turn == 0 {
            first = dumps;
        }
        while turn == 4 && dump_of(&place.dumps()).contains(&first[0]) {
            assert!(Instant::now() < until, "no dump is made");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let dumps = dump_of(&place.dumps());
        assert!(dumps.len() == 2 && dumps.iter().filter(|path| own(path)).count() == 1, "{dumps:?}");
        for (node, serving) in [one, another] {
            node.stop().await;
            serving.await.unwrap();
        }
    }
    let one = run(place.build(&cluster, 1, "c").take_over(true), &addresses[0]).await;
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let balance = application.transact(async |tx| add(tx, 1, 5, 0, 0).await).await.unwrap();
    assert_eq!(balance, FIRST + added);
    one.0.stop().await;
    one.1.await.unwrap();
}

/// A log elsewhere, and a machine that had the node before.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_comes_back_to_a_machine_that_had_it() {
    let Some(place) = Place::new(1) else { return };
    let cluster = cluster(&addresses(1));
    let build = |machine: &str| {
        let mut options = caliburn_engine::Store::options();
        options.log_path(place.dir.path().join(format!("log-{machine}"))).log_bytes(4 << 20);
        place.build(&cluster, 1, machine).options(options)
    };
    build("a").start().await.unwrap().stop().await;
    for machine in ["b", "a", "b"] {
        build(machine).take_over(true).start().await.unwrap().stop().await;
        build(machine).start().await.unwrap().stop().await;
    }
    // Stores and logs that were put aside, and are there.
    let aside = |path: PathBuf| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".replaced")).count()
    };
    assert_eq!(
        aside(place.dir.path().into())
            + aside(place.dir.path().join("a"))
            + aside(place.dir.path().join("b")),
        4
    );
}

/// A node stops though etcd is away and a commit waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_without_etcd() {
    let Some(mut place) = Place::new(1) else { return };
    let addresses = addresses(1);
    let cluster = cluster(&addresses);
    let one = run(place.build(&cluster, 1, "a"), &addresses[0]).await;
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let add_one = async || application.transact(async |tx| add(tx, 1, 5, 1, 0).await).await;
    add_one().await.unwrap();
    place.members.kill(0);
    let (done, ()) = tokio::join!(add_one(), async {
        // When it has prepared, or a little earlier: what comes then is refused.
        tokio::time::sleep(Duration::from_millis(300)).await;
        one.0.stop().await;
        one.1.abort();
    });
    assert!(done.is_err(), "{done:?}");
    place.members.run(0).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let one = loop {
        match place.build(&cluster, 1, "a").start().await {
            Ok(node) => break node,
            Err(error) => {
                assert!(Instant::now() < until, "{error}: {}", place.members.printed(0).unwrap());
            }
        }
    };
    one.stop().await;
}

/// Etcd forgets everything: the nodes have their stores, and begin a new one.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_lost_is_begun_again() {
    let Some(mut place) = Place::new(1) else { return };
    let addresses = addresses(1);
    let cluster = cluster(&addresses);
    for turn in 1..=2 {
        // It remembers lives that this etcd knows nothing of.
        let node = if turn == 1 {
            run(place.build(&cluster, 1, "a"), &addresses[0]).await
        } else {
            let refused = place.build(&cluster, 1, "a").start().await.unwrap_err();
            assert!(refused.to_string().contains("start it again"), "{refused}");
            run(place.build(&cluster, 1, "a"), &addresses[0]).await
        };
        let application = Application::attach(cluster.clone(), 1).await.unwrap();
        let balance = application.transact(async |tx| add(tx, 1, 5, 1, 0).await).await.unwrap();
        assert_eq!(balance, FIRST + turn);
        node.0.stop().await;
        node.1.await.unwrap();
        place.members = Members::start(1, place.dir.path().join(format!("etcd{turn}"))).unwrap();
        let members = place.members.addresses();
        place.etcd = Etcd::new(members.iter().map(String::as_str), "test").unwrap();
    }
}

fn dump_of(dumps: &Path) -> Vec<PathBuf> {
    let of = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path();
    fs::read_dir(dumps)
        .unwrap()
        .map(of)
        .filter(|path| path.extension().is_some_and(|e| e == "dump"))
        .collect()
}

/// A log is replicated where there is an etcd.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_etcd_nothing_is_replicated() {
    let dir = tempfile::tempdir().unwrap();
    let node = support::node(&Cluster::new("test"), 1, dir.path()).replicated(dir.path().join("dumps"));
    let error = node.start().await.unwrap_err();
    assert!(error.to_string().contains("etcd"), "{error}");
}

/// In the numbers of receipts, to be found in the files of a member.
const MARK: u64 = 0x5EED_C0DE << 32;

/// Flips a bit of each receipt that a member has on its disk, while it does not run.
fn flip(place: &mut Place, member: usize) {
    let path = place.members.dir().join(format!("m{member}/member/snap/db"));
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        place.members.kill(member);
        let mut bytes = fs::read(&path).unwrap();
        let mark = (MARK >> 32) as u32;
        let found: Vec<usize> =
            (0..bytes.len() - 4).filter(|at| bytes[*at..*at + 4] == mark.to_le_bytes()).collect();
        found.iter().for_each(|at| bytes[*at] ^= 1);
        fs::write(&path, &bytes).unwrap();
        place.members.run(member).unwrap();
        if found.len() > 10 {
            return;
        }
        // It writes them some time.
        assert!(Instant::now() < until, "a member does not write what it has");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A member's disk lies: it gives other bytes than it was given. What it says is asked of another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_in_one_member_is_read_of_another() {
    let Some(mut place) = Place::new(3) else { return };
    let addresses = addresses(1);
    let cluster = cluster(&addresses);
    let (one, serving) = run(place.build(&cluster, 1, "a"), &addresses[0]).await;
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let receipts: Vec<u64> = (1..=40).map(|number| MARK + number).collect();
    for receipt in &receipts {
        application.transact(async |tx| add(tx, 1, 7, 1, *receipt).await).await.unwrap();
    }
    one.stop().await;
    serving.await.unwrap();
    tokio::task::block_in_place(|| flip(&mut place, 0));
    // Who asks only that one is told.
    let first = place.members.addresses().swap_remove(0);
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let etcd = Etcd::new([first.as_str()], "test").unwrap();
        let node = support::node(&cluster, 1, &place.dir.path().join("b")).keeper(Keeper::Etcd(etcd));
        let refused = node.replicated(place.dumps()).take_over(true).start().await.unwrap_err();
        if refused.to_string().contains("piece of a log") {
            break;
        }
        // It is not there yet.
        assert!(Instant::now() < until, "{refused}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let builder = place.build(&cluster, 1, "c").take_over(true);
    let (one, serving) = run(builder, &addresses[0]).await;
    let mut bank = BankClient::new(cluster.channel(caliburn_dist::commit::word::Node(1)).unwrap());
    assert_eq!(bank.total(TotalRequest {}).await.unwrap().into_inner().receipts, receipts);
    one.stop().await;
    serving.await.unwrap();
}
