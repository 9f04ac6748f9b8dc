//! `demo`: money moves among nodes, in transactions that are nested, side by side, blocking or not, while
//! nodes and members of etcd are killed and stopped at random. At the end no cent may be missing, every
//! acknowledged transfer must be there, of every other one all or nothing, and some order of those that are there
//! must explain what they have seen. The network is cut, too.
//!
//! ```text
//!   supervisor --starts--> etcd x 3, a process for each node (a bank with a store and a log of its own)
//!       |--- programs, each attached to a node: transfers, with receipts
//!       '--- SIGKILL and SIGSTOP, of nodes and of members, also while they recover; machines that are lost
//! ```
//!
//! Every other node keeps its log in etcd too, and loses its directory with its machine.

use caliburn_dist::bank::{self, ACCOUNTS};
use caliburn_dist::client::{Application, Error, Options, Tx};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::host::Patience;
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, free_addresses, pause};
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::{AddRequest, ShowRequest};
use caliburn_tools::Failure;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::links::Links;
use crate::reckoning::{Done, Ledger, Totals, USED, compare, list};
use caliburn_tools::random::Random;

/// Programs that are attached to each node.
const PROGRAMS: u64 = 2;

/// Arguments of the hidden process that is one node.
#[derive(Args, Debug)]
pub struct NodeProcess {
    number: u64,
    store: PathBuf,
    /// All nodes, `number=address`.
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<String>,
    /// Members of etcd.
    #[arg(long, value_delimiter = ',')]
    members: Vec<String>,
    /// Where dumps go: its log is replicated.
    #[arg(long)]
    dumps: Option<PathBuf>,
}

/// A node, by its place, and where it is.
fn named((node, address): (usize, SocketAddr)) -> String {
    format!("{}={address}", node + 1)
}

/// Whether a node's log is in etcd too.
fn is_replicated(node: usize) -> bool {
    node.is_multiple_of(2)
}

fn cluster(nodes: &[String]) -> Result<Cluster, Failure> {
    let mut cluster = Cluster::new("demo");
    for node in nodes {
        let (number, address) = node.split_once('=').ok_or("a node is number=address")?;
        let number = number.parse()?;
        cluster = cluster.node(number, &format!("http://{address}"))?.server("bank", number);
    }
    Ok(cluster)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn patience() -> Patience {
    let ms = Duration::from_millis;
    Patience { answer: ms(500), probe: ms(500), silence: ms(2_000), chase: ms(200) }
}

/// One node, until it is killed or its supervisor is gone.
pub fn work(arguments: &NodeProcess) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        let cluster = cluster(&arguments.nodes)?;
        let keeper = Keeper::Etcd(Etcd::new(arguments.members.iter().map(String::as_str), "demo")?);
        let node = Node::builder(cluster, arguments.number, &arguments.store);
        let mut node = bank::segment(node).keeper(keeper).patience(patience());
        if let Some(dumps) = &arguments.dumps {
            // Whoever ran it before is dead: the supervisor knows. Often dumped, so that there is something to lose.
            node = node.replicated(dumps).take_over(true).dump_every(1 << 20);
        }
        let node = node.start().await?;
        let own = format!("{}=", arguments.number);
        let own = arguments.nodes.iter().find_map(|node| node.strip_prefix(&own));
        let address: SocketAddr = own.ok_or("it is not among the nodes")?.parse()?;
        // It ends with its supervisor.
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(1);
        });
        println!("ready");
        let service = bank::service(&node);
        node.serve(address, |services| _ = services.add_service(service)).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The nodes, and the members of etcd.
struct World {
    dir: PathBuf,
    addresses: Vec<SocketAddr>,
    links: Links,
    members: Members,
    nodes: Vec<Option<Child>>,
}

impl World {
    fn start(nodes: usize, dir: &Path) -> Result<World, Failure> {
        let members = Members::start(3, dir.join("etcd"))?;
        let addresses = free_addresses(nodes)?;
        let links = Links::new(&addresses, &members.sockets())?;
        let nodes = (0..nodes).map(|_| None).collect();
        let mut world = World { dir: dir.to_owned(), addresses, links, members, nodes };
        for node in 0..world.nodes.len() {
            let ready = world.run(node)?;
            if !ready.recv_timeout(Duration::from_secs(60)).unwrap_or(false) {
                return Err(format!("node {} did not start; see {}", node + 1, dir.display()).into());
            }
        }
        Ok(world)
    }

    /// As programs see it: for them it is not cut.
    fn cluster(&self) -> Result<Cluster, Failure> {
        let addresses: Vec<String> = self.addresses.iter().copied().enumerate().map(named).collect();
        cluster(&addresses)
    }

    /// Runs a node; it says when it is ready.
    fn run(&mut self, node: usize) -> Result<std::sync::mpsc::Receiver<bool>, Failure> {
        let log = self.dir.join(format!("node-{}.log", node + 1));
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-node").arg((node + 1).to_string()).arg(self.dir.join(format!("node-{}", node + 1)));
        let others = self.links.nodes_of(node).chain([(node, self.addresses[node])]);
        let others: Vec<String> = others.map(named).collect();
        let members: Vec<String> = self.links.members_of(node).map(|at| format!("http://{at}")).collect();
        command.args(["--nodes", &others.join(","), "--members", &members.join(",")]);
        if is_replicated(node) {
            command.arg("--dumps").arg(self.dir.join("dumps"));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let output = child.stdout.take().ok_or("the node has no output")?;
        let (send, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let line = BufReader::new(output).lines().next();
            let _ = send.send(line.is_some_and(|line| line.is_ok_and(|line| line == "ready")));
        });
        self.nodes[node] = Some(child);
        Ok(ready)
    }

    /// Kills a node, and runs it again; some are killed again while they recover.
    fn replace(&mut self, node: usize, random: &mut Random, lost: bool) -> Result<(), Failure> {
        self.kill(node);
        if lost {
            std::fs::remove_dir_all(self.dir.join(format!("node-{}", node + 1)))?;
        }
        std::thread::sleep(some(random, 600));
        let mut ready = self.run(node)?;
        while random.below(3) == 0 {
            std::thread::sleep(some(random, 60));
            self.kill(node);
            ready = self.run(node)?;
        }
        if ready.recv_timeout(Duration::from_secs(60)).unwrap_or(false) {
            return Ok(());
        }
        Err(format!("node {} did not start again; see {}", node + 1, self.dir.display()).into())
    }

    fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.kill(node));
    }
}

async fn add(
    tx: &Tx,
    (node, account): (u64, u64),
    amount: i64,
    receipt: u64,
    done: &Done,
) -> Result<(), Error> {
    let mut bank = BankClient::new(tx.to(&format!("bank@{node}"))?);
    bank.add(AddRequest { account: account as u32, amount, receipt }).await?;
    done.appended(list(node, account), receipt, amount);
    Ok(())
}

/// Reads an account.
async fn look(tx: &Tx, (node, account): (u64, u64), done: &Done) -> Result<(), Error> {
    let mut bank = BankClient::new(tx.to(&format!("bank@{node}"))?);
    let shown = bank.show(ShowRequest { account: account as u32 }).await?.into_inner();
    done.read(list(node, account), shown.balance, shown.receipts);
    Ok(())
}

/// One transfer; a receipt at both ends.
async fn transfer(
    application: &Application,
    random: &mut Random,
    nodes: u64,
    receipt: u64,
    done: &Done,
) -> Result<(), Error> {
    let mut place = || (1 + random.below(nodes), random.below(USED));
    let (from, to, third) = (place(), place(), place());
    let (amount, kind) = (1 + random.below(50) as i64, random.below(5));
    let blocking = random.below(2) == 0;
    let options = Options { blocking, time_out: Duration::from_secs(5) };
    application
        .transact_with(options, async |tx| match kind {
            // Nested: something that is thought better of.
            0 => {
                let undone = tx.nest(async |child| {
                    add(child, third, 1, receipt | 1 << 63, &Done::default()).await?;
                    Err::<(), Error>(child.abort("thought better of"))
                });
                let undone = undone.await;
                if !matches!(undone, Err(Error::Aborted(_) | Error::Call(_) | Error::TimeOut(_))) {
                    return undone;
                }
                let moved = tx.nest(async |child| {
                    add(child, from, -amount, receipt, done).await?;
                    add(child, to, amount, receipt, done).await
                });
                moved.await
            }
            // Side by side.
            1 => {
                let (one, two) = tokio::join!(
                    tx.nest(async |child| add(child, from, -amount, receipt, done).await),
                    tx.nest(async |child| add(child, to, amount, receipt, done).await)
                );
                one.and(two)
            }
            // What it sees of others must fit what it does.
            2 => {
                look(tx, third, done).await?;
                add(tx, from, -amount, receipt, done).await?;
                look(tx, to, done).await?;
                add(tx, to, amount, receipt, done).await
            }
            _ => {
                add(tx, from, -amount, receipt, done).await?;
                add(tx, to, amount, receipt, done).await
            }
        })
        .await
}

struct Shared {
    start: Instant,
    stop: AtomicBool,
    receipts: AtomicU64,
    ledger: Mutex<Ledger>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A program: one transfer after the other.
async fn program(shared: Arc<Shared>, cluster: Cluster, home: u64, nodes: u64, seed: u64) {
    let mut random = Random(seed);
    let mut application = None;
    while !shared.stop.load(Ordering::Acquire) {
        if application.is_none() {
            application = Application::attach(cluster.clone(), home).await.ok();
        }
        let Some(attached) = &application else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let receipt = shared.receipts.fetch_add(1, Ordering::Relaxed);
        let what = Done::begins(shared.now());
        let done = transfer(attached, &mut random, nodes, receipt, &what).await;
        let at = shared.now();
        shared.ledger().add(receipt, &done, at, what);
        if done.is_err() {
            // As programs do when something is wrong.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Some time.
fn some(random: &mut Random, ms: u64) -> Duration {
    Duration::from_millis(random.below(ms))
}

/// What the supervisor does at random.
fn disturb(world: &mut World, random: &mut Random) -> Result<&'static str, Failure> {
    let node = random.below(world.nodes.len() as u64) as usize;
    let member = random.below(world.members.count() as u64) as usize;
    let cut = |cuts: &dyn Fn(&Links, bool), random: &mut Random| {
        cuts(&world.links, true);
        std::thread::sleep(some(random, 6_000));
        cuts(&world.links, false);
    };
    Ok(match random.below(10) {
        0..=2 => {
            world.replace(node, random, false)?;
            "a node was killed"
        }
        7 => {
            cut(&|links, is_cut| links.cut_off(node, is_cut), random);
            "a node was cut off from the others"
        }
        8 => {
            let other = (node + 1) % world.nodes.len();
            cut(&|links, is_cut| links.cut_between(node, other, is_cut), random);
            "two nodes were cut off from each other"
        }
        9 => {
            cut(&|links, is_cut| links.cut_from_members(node, is_cut), random);
            "a node was cut off from etcd"
        }
        5..7 if is_replicated(node) => {
            world.replace(node, random, true)?;
            "a machine was lost"
        }
        3 => {
            pause(world.nodes[node].as_ref(), true);
            std::thread::sleep(some(random, 4_000));
            pause(world.nodes[node].as_ref(), false);
            "a node was stopped"
        }
        4 => {
            world.members.kill(member);
            std::thread::sleep(some(random, 1_000));
            world.members.run(member)?;
            "a member of etcd was killed"
        }
        _ => {
            world.members.pause(member, true);
            std::thread::sleep(some(random, 2_000));
            world.members.pause(member, false);
            "a member of etcd was stopped"
        }
    })
}

/// What all banks have, in one transaction: when everything is there again.
async fn totals(cluster: &Cluster, nodes: u64) -> Result<Totals, Failure> {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let read = async {
            let application = Application::attach(cluster.clone(), 1).await?;
            let totals = application.transact(async |tx| {
                let mut totals = Totals::default();
                for node in 1..=nodes {
                    let mut bank =
                        BankClient::new(tx.to(&format!("bank@{node}"))?).max_decoding_message_size(64 << 20);
                    for account in 0..ACCOUNTS {
                        let shown = bank.show(ShowRequest { account }).await?.into_inner();
                        totals.amount += shown.balance;
                        if u64::from(account) < USED {
                            totals.lists.push(shown.receipts);
                            totals.balances.push(shown.balance);
                        } else {
                            totals.strays.extend(shown.receipts);
                        }
                    }
                }
                Ok::<_, Error>(totals)
            });
            totals.await
        };
        match read.await {
            Ok(totals) => return Ok(totals),
            Err(error) if Instant::now() > until => {
                return Err(format!("the banks can't be read: {error}").into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    nodes: u64,
    /// How many times something is killed or stopped.
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Seed of the random moments. Default: drawn from the time.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the nodes and etcd; made anew. Default: a temporary one, removed at the end.
    #[arg(long)]
    store: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Demo {
    /// Where all of it is, made anew.
    fn directory(&self) -> Result<PathBuf, Failure> {
        let dir = match &self.store {
            Some(dir) if dir.exists() => return Err(format!("{} is there already", dir.display()).into()),
            Some(dir) => dir.to_owned(),
            None => std::env::temp_dir().join(format!("caliburn-nodes-{}", std::process::id())),
        };
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

fn wall_ns() -> u64 {
    UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64)
}

/// The supervisor.
pub fn run(wanted: &Demo) -> Result<ExitCode, Failure> {
    let seed = wanted.seed.unwrap_or_else(wall_ns);
    let dir = wanted.directory()?;
    let runtime = runtime()?;
    let mut world = runtime.block_on(async { World::start(wanted.nodes as usize, &dir) })?;
    let cluster = runtime.block_on(async { world.cluster() })?;
    let shared = Arc::new(Shared {
        start: Instant::now(),
        stop: AtomicBool::new(false),
        receipts: AtomicU64::new(1),
        ledger: Mutex::default(),
    });
    let programs: Vec<_> = (0..wanted.nodes * PROGRAMS)
        .map(|number| {
            let home = 1 + number % wanted.nodes;
            let seed = seed ^ number << 32;
            let program = program(shared.clone(), cluster.clone(), home, wanted.nodes, seed);
            runtime.spawn(program)
        })
        .collect();
    let bar = match wanted.json || !std::io::stderr().is_terminal() {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(wanted.kills.into()),
    };
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} faults  {msg}")?);
    let (start, mut random) = (Instant::now(), Random(seed));
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for fault in 0..=wanted.kills {
        // Between them something gets done.
        std::thread::sleep(Duration::from_millis(300 + random.below(900)));
        let done = shared.ledger().acknowledged.len();
        let rate = done as f64 / start.elapsed().as_secs_f64();
        bar.set_message(format!("{done} transfers, {rate:.0}/s"));
        if fault < wanted.kills {
            *kinds.entry(disturb(&mut world, &mut random)?).or_default() += 1;
            bar.inc(1);
        }
    }
    shared.stop.store(true, Ordering::Release);
    let elapsed = start.elapsed();
    let totals = runtime.block_on(async {
        for program in programs {
            program.await?;
        }
        totals(&cluster, wanted.nodes).await
    })?;
    bar.finish_and_clear();
    let ledger = shared.ledger();
    let problems = compare(&ledger, &totals, wanted.nodes);
    let acknowledged = ledger.acknowledged.len();
    if wanted.json {
        println!(
            "{}",
            json!({
                "seed": seed, "nodes": wanted.nodes, "faults": kinds, "seconds": elapsed.as_secs_f64(),
                "acknowledged": acknowledged, "refused": ledger.refused.len(), "unknown": ledger.unknown.len(),
                "why": ledger.why, "problems": problems,
            })
        );
    } else {
        let per_second = acknowledged as f64 / elapsed.as_secs_f64();
        println!(
            "{acknowledged} transfers among {} nodes in {:.1} s ({per_second:.0}/s); {} were refused, of {} nobody was told",
            wanted.nodes,
            elapsed.as_secs_f64(),
            ledger.refused.len(),
            ledger.unknown.len(),
        );
        for (kind, count) in kinds {
            println!("  {count} times {kind}");
        }
        match problems.is_empty() {
            true => println!(
                "no cent is missing, every acknowledged transfer is there, and some order of them explains what they have seen (seed {})",
                seed
            ),
            false => problems.iter().for_each(|problem| println!("WRONG: {problem} (seed {seed})")),
        }
    }
    drop(world);
    if problems.is_empty() {
        std::fs::remove_dir_all(&dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("the stores are kept in {}", dir.display());
    Ok(ExitCode::FAILURE)
}
