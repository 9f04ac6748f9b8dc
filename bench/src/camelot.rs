//! `camelot`: transactions over data servers (Camelot, sections 6.2 to 6.4, Tables 6-1 and 6-2). Nodes of this
//! process, each with a store, on loopback, and a program: a transaction without calls; bare calls, and calls in
//! transactions; transactions that write at one, two and three servers, of which the first is at the node that
//! coordinates, one call after the other or side by side, blocking or not; the same by several programs at one
//! time.
//!
//! Without blocking, slots are kept by three members of etcd where that is installed, all on this machine; else
//! that is left out, and said. The same of nodes whose logs are in that etcd as well: class `quorum`.

use crate::Arguments;
use crate::report::{self, Life, Line, Sample};
use crate::target::Failure;
use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error, Options, Tx};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::Members;
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::bank_server::{Bank, BankServer};
use caliburn_dist::proto::bank::{
    AddReply, AddRequest, MoveRequest, ShowReply, ShowRequest, TotalReply, TotalRequest,
};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

const NODES: u64 = 3;
/// Programs at one time.
const PROGRAMS: usize = 16;

/// A server without transactions, stores and locks: what a call costs by itself.
struct Bare;

#[tonic::async_trait]
impl Bank for Bare {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddReply>, Status> {
        Ok(Response::new(AddReply { balance: request.get_ref().amount }))
    }

    async fn r#move(&self, _: Request<MoveRequest>) -> Result<Response<AddReply>, Status> {
        Err(Status::unimplemented("it only answers"))
    }

    async fn show(&self, _: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        Ok(Response::new(ShowReply::default()))
    }

    async fn total(&self, _: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        Ok(Response::new(TotalReply::default()))
    }
}

async fn add(tx: &Tx, node: u64, account: u32) -> Result<(), Error> {
    let mut bank = BankClient::new(tx.to(&format!("bank@{node}"))?);
    bank.add(AddRequest { account, amount: 1, receipt: 0 }).await?;
    Ok(())
}

/// What one transaction is.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// In words.
    pub what: &'static str,
    /// Servers.
    pub servers: u64,
    /// Calls of each.
    pub calls: u64,
    /// Whether the servers are called at one time.
    pub side_by_side: bool,
    /// Which protocol.
    pub blocking: bool,
}

const fn kind(what: &'static str, servers: u64, calls: u64, side_by_side: bool, blocking: bool) -> Kind {
    Kind { what, servers, calls, side_by_side, blocking }
}

/// What is measured.
pub const KINDS: [Kind; 8] = [
    kind("nothing", 0, 0, false, true),
    kind("1 server", 1, 1, false, true),
    kind("1 server, 10 calls", 1, 10, false, true),
    kind("2 servers", 2, 1, false, true),
    kind("3 servers", 3, 1, false, true),
    kind("3 servers, side by side", 3, 1, true, true),
    kind("3 servers, 10 calls each, side by side", 3, 10, true, true),
    kind("3 servers, side by side, without blocking", 3, 1, true, false),
];

/// Runs one transaction.
///
/// # Errors
/// When it does not commit.
pub async fn run_one(application: &Application, kind: Kind, account: u32) -> Result<(), Error> {
    let options = Options { blocking: kind.blocking, ..Options::default() };
    let calls = async |tx: &Tx, node: u64| {
        for call in 0..kind.calls {
            add(tx, node, (account + call as u32) % bank::ACCOUNTS).await?;
        }
        Ok::<_, Error>(())
    };
    application
        .transact_with(options, async |tx| match (kind.side_by_side, kind.servers) {
            (true, 3) => {
                let (one, two, three) = tokio::join!(calls(tx, 1), calls(tx, 2), calls(tx, 3));
                one.and(two).and(three)
            }
            _ => {
                for node in 1..=kind.servers {
                    calls(tx, node).await?;
                }
                Ok(())
            }
        })
        .await
}

/// Nodes with banks, in this process, and a program.
#[derive(Debug, Clone)]
pub struct World {
    /// The program.
    pub application: Application,
    nodes: Vec<Node>,
    /// What its commits survive.
    class: &'static str,
    kinds: Vec<Kind>,
}

/// Starts them.
///
/// # Errors
/// When a store or a node can't be made.
pub async fn start(
    options: caliburn::Options,
    dir: &std::path::Path,
    members: Option<&Members>,
    class: &'static str,
) -> Result<World, Failure> {
    let (mut cluster, mut listeners) = (Cluster::new(class), Vec::new());
    let dir = dir.join(class);
    for number in 1..=NODES {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        cluster = cluster.node(number, &format!("http://{}", listener.local_addr()?))?.server("bank", number);
        listeners.push(listener);
    }
    let mut nodes = Vec::new();
    for (number, listener) in (1..).zip(listeners) {
        let mut node =
            Node::builder(cluster.clone(), number, dir.join(number.to_string())).options(options.clone());
        if let Some(members) = members {
            let addresses = members.addresses();
            node = node.keeper(Keeper::Etcd(Etcd::new(addresses.iter().map(String::as_str), class)?));
        }
        if class == "quorum" {
            node = node.replicated(dir.join("dumps"));
        }
        let node = bank::segment(node).start().await?;
        nodes.push(node.clone());
        tokio::spawn(async move {
            let bank = bank::service(&node);
            node.serve_on(listener, |services| _ = services.add_service(bank)).await
        });
    }
    let application = Application::attach(cluster, 1).await?;
    let kinds = KINDS.into_iter().filter(|kind| kind.blocking || members.is_some());
    Ok(World { application, nodes, class, kinds: kinds.collect() })
}

impl World {
    /// Stops the nodes.
    pub async fn stop(&self) {
        for node in &self.nodes {
            node.stop().await;
        }
    }
}

/// One program after the other turn, for a time.
async fn measure(seconds: f64, turn: impl AsyncFn() -> Result<(), Error>) -> Result<Sample, Error> {
    let (start, mut latencies, mut count) = (Instant::now(), Vec::new(), 0u64);
    while start.elapsed().as_secs_f64() < seconds {
        let before = Instant::now();
        turn().await?;
        latencies.push(before.elapsed().as_nanos() as u64);
        count += 1;
    }
    Ok(Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / count as f64, latencies })
}

async fn together(application: &Application, seconds: f64, kind: Kind) -> Result<Sample, Failure> {
    let start = Instant::now();
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|number| {
            let application = application.clone();
            tokio::spawn(async move {
                let (mut count, mut latencies) = (0, Vec::new());
                while start.elapsed().as_secs_f64() < seconds {
                    let before = Instant::now();
                    // An account of its own, so that nobody waits for locks.
                    run_one(&application, kind, number as u32).await?;
                    latencies.push(before.elapsed().as_nanos() as u64);
                    count += 1;
                }
                Ok::<_, Error>(Life { count, elapsed: start.elapsed(), latencies })
            })
        })
        .collect();
    let (mut count, mut latencies) = (0, Vec::new());
    for program in programs {
        let life = program.await??;
        count += life.count;
        latencies.extend(life.latencies);
    }
    Ok(Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / count.max(1) as f64, latencies })
}

/// The benchmark.
///
/// # Errors
/// When a node, or a member of etcd, does not do what it should.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let members = Members::start(3, dir.path().join("etcd"));
        let members = members.map_err(|error| eprintln!("without etcd: {error}")).ok();
        let options = crate::target::options(arguments.log_mb, arguments.stage_mb);
        let mut worlds = vec![start(options.clone(), dir.path(), members.as_ref(), "power").await?];
        if members.is_some() {
            worlds.push(start(options, dir.path(), members.as_ref(), "quorum").await?);
        }
        let bare = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let bare_address = format!("http://{}", bare.local_addr()?);
        let incoming = tonic::transport::server::TcpIncoming::from(bare).with_nodelay(Some(true));
        let server = Server::builder().add_service(BankServer::new(Bare));
        tokio::spawn(server.serve_with_incoming(incoming));
        let bare = BankClient::connect(bare_address).await?;

        let line =
            |system, class, what, threads| Line::new(system, "redo", class, threads, json!({"what": what}));
        let mut lines = vec![line("tonic", "power", "a bare call", 1)];
        let many = |world: &World| world.kinds.clone().into_iter().filter(|kind| kind.calls == 1);
        for world in &worlds {
            lines.extend(world.kinds.iter().map(|kind| line("caliburn", world.class, kind.what, 1)));
            lines.extend(many(world).map(|kind| line("caliburn", world.class, kind.what, PROGRAMS)));
        }
        let account = AtomicU32::new(0);
        let mut rounds: Vec<Vec<Sample>> = Vec::new();
        for _ in 0..=arguments.rounds {
            let mut samples = Vec::new();
            let call = async || {
                let request = AddRequest { account: 1, amount: 1, receipt: 0 };
                Ok(bare.clone().add(request).await.map(drop)?)
            };
            samples.push(measure(arguments.seconds / 2.0, call).await?);
            for world in &worlds {
                for kind in &world.kinds {
                    let turn = async || {
                        let account = account.fetch_add(11, Ordering::Relaxed) % bank::ACCOUNTS;
                        run_one(&world.application, *kind, account).await
                    };
                    samples.push(measure(arguments.seconds / 2.0, turn).await?);
                }
                for kind in many(world) {
                    samples.push(together(&world.application, arguments.seconds / 2.0, kind).await?);
                }
            }
            rounds.push(samples);
        }
        let mut rounds = rounds.into_iter();
        report::interleave(arguments.rounds, &mut lines, || rounds.next().expect("one for each"));
        report::print("camelot", arguments.json, &lines, 0);
        for world in &worlds {
            world.stop().await;
        }
        Ok(())
    })
}
