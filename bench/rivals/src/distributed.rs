//! `camelot`: a transaction that changes a row at each of several servers, all of this machine, side by side with
//! PostgreSQL and etcd in one run.
//!
//! PostgreSQL: a cluster for each server, as `initdb` makes it (fsync, synchronous_commit), but for
//! `max_prepared_transactions`; unix sockets; statements prepared beforehand; what can be asked at one time is. The
//! program coordinates as a good one would: it prepares at all servers but the first (`PREPARE TRANSACTION`),
//! commits there with its decision, and tells the others (`COMMIT PREPARED`) without waiting for them. Two forces in
//! a row, as ours. With one server a statement is its transaction: one round of messages, where ours takes two.
//!
//! etcd: the keys put in one `Txn`, by three members: no transaction over several calls, and no locks.

use crate::{Arguments, Failure};
use caliburn_bench::camelot::{self, Kind, World};
use caliburn_bench::report::{self, Line, Sample};
use caliburn_dist::keep::members::Members;
use caliburn_dist::proto::etcd::kv_client::KvClient;
use caliburn_dist::proto::etcd::{PutRequest, RequestOp, TxnRequest, request_op};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};
use tonic::transport::Channel;

/// What may go wrong in a program.
type Fault = Box<dyn std::error::Error + Send + Sync>;

const SERVERS: usize = 3;
const ACCOUNTS: u32 = 128;
/// Programs at one time, in the lines of several.
const PROGRAMS: usize = 16;

/// A PostgreSQL. Ended when this is dropped.
struct Postgres {
    dir: PathBuf,
    child: Child,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGTERM is its slow end, and its children would stay.
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// The newest one's programs.
fn programs() -> Option<PathBuf> {
    let all = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut all: Vec<PathBuf> = all.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    all.sort();
    all.into_iter().rfind(|bin| bin.join("initdb").exists())
}

/// It does not run as root; and it ends with this program, however that ends.
fn as_its_user(program: &Path, dir: &Path) -> Result<Command, Failure> {
    let id = Command::new("id").arg("-u").output()?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT"]);
    if id.stdout != b"0\n" {
        command.arg(program);
        return Ok(command);
    }
    if !Command::new("chown").arg("-R").arg("postgres").arg(dir).status()?.success() {
        return Err("there is no user \"postgres\", as whom PostgreSQL could run".into());
    }
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    Ok(command)
}

impl Postgres {
    fn start(programs: &Path, dir: PathBuf) -> Result<Postgres, Failure> {
        std::fs::create_dir_all(&dir)?;
        let data = dir.join("data");
        let initdb = as_its_user(&programs.join("initdb"), &dir)?
            .args(["--auth=trust", "--username=bench", "--no-instructions", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()?;
        if !initdb.success() {
            return Err("initdb has failed".into());
        }
        let log = std::fs::File::create(dir.join("log"))?;
        let child = as_its_user(&programs.join("postgres"), &dir)?
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&dir)
            .args(["-c", "listen_addresses=", "-c", "max_prepared_transactions=200"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Postgres { dir, child })
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let options = format!("host={} user=bench dbname=postgres", self.dir.display());
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match tokio_postgres::connect(&options, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return Ok(client);
                }
                Err(error) if Instant::now() > until => return Err(format!("PostgreSQL: {error}").into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// What a program has of a server.
struct Connection {
    client: Arc<Client>,
    change: Statement,
    decide: Statement,
    /// For what is not waited for.
    behind: Arc<Client>,
}

/// A program, with connections of its own.
struct Program {
    servers: Vec<Connection>,
    number: usize,
    serial: AtomicU64,
}

impl Program {
    async fn new(servers: &[Postgres], number: usize) -> Result<Program, Failure> {
        let mut connections = Vec::new();
        for server in servers {
            let client = server.connect().await?;
            let change = client.prepare("UPDATE account SET amount = amount + 1 WHERE id = $1").await?;
            let decide = client.prepare("INSERT INTO decision VALUES ($1)").await?;
            let (client, behind) = (Arc::new(client), Arc::new(server.connect().await?));
            // What is done behind is forced at its time.
            behind.batch_execute("SET synchronous_commit = off").await?;
            connections.push(Connection { client, change, decide, behind });
        }
        Ok(Program { servers: connections, number, serial: AtomicU64::new(0) })
    }

    async fn change(&self, server: usize, account: u32) -> Result<(), Fault> {
        let Connection { client, change, .. } = &self.servers[server];
        let id = account as i32;
        let row: [&(dyn ToSql + Sync); 1] = [&id];
        let (begun, changed) = tokio::join!(client.batch_execute("BEGIN"), client.execute(change, &row));
        begun?;
        match changed? {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were changed").into()),
        }
    }

    async fn turn(&self, kind: Kind, account: u32) -> Result<(), Fault> {
        if kind.servers == 1 {
            // A statement by itself is a transaction.
            let Connection { client, change, .. } = &self.servers[0];
            client.execute(change, &[&(account as i32)]).await?;
            return Ok(());
        }
        match kind.side_by_side {
            true => {
                let all =
                    tokio::join!(self.change(0, account), self.change(1, account), self.change(2, account));
                all.0.and(all.1).and(all.2)?;
            }
            false => {
                for server in 0..kind.servers as usize {
                    self.change(server, account).await?;
                }
            }
        }
        let id = format!("{}-{}", self.number, self.serial.fetch_add(1, Ordering::Relaxed));
        let prepare = format!("PREPARE TRANSACTION '{id}'");
        let others = &self.servers[1..kind.servers as usize];
        match others {
            [two] => two.client.batch_execute(&prepare).await?,
            [two, three] => {
                let (two, three) =
                    tokio::join!(two.client.batch_execute(&prepare), three.client.batch_execute(&prepare));
                two.and(three)?;
            }
            _ => return Err("two or three servers".into()),
        }
        let Connection { client, decide, behind, .. } = &self.servers[0];
        let row: [&(dyn ToSql + Sync); 1] = [&id];
        let (decided, committed) = tokio::join!(client.execute(decide, &row), client.batch_execute("COMMIT"));
        decided?;
        committed?;
        // All others are told, and then the decision is not needed any more.
        let (behind, others) =
            (behind.clone(), others.iter().map(|server| server.behind.clone()).collect::<Vec<_>>());
        tokio::spawn(async move {
            for other in others {
                other.batch_execute(&format!("COMMIT PREPARED '{id}'")).await?;
            }
            behind.batch_execute(&format!("DELETE FROM decision WHERE id = '{id}'")).await
        });
        Ok(())
    }
}

/// The three of them, with connections for all programs.
struct Servers {
    all: Vec<Postgres>,
    programs: Vec<Program>,
}

impl Servers {
    async fn start(dir: &Path) -> Result<Servers, Failure> {
        let bin = programs().ok_or("it is not installed; on Debian: apt-get install postgresql")?;
        let all: Result<Vec<_>, _> =
            (0..SERVERS).map(|server| Postgres::start(&bin, dir.join(format!("pg{server}")))).collect();
        let all = all?;
        for server in &all {
            let client = server.connect().await?;
            client
                .batch_execute(&format!(
                    "CREATE TABLE account (id int PRIMARY KEY, amount bigint NOT NULL) WITH (fillfactor = 50);
                     CREATE TABLE decision (id text PRIMARY KEY);
                     INSERT INTO account SELECT id, 0 FROM generate_series(0, {}) AS id",
                    ACCOUNTS - 1
                ))
                .await?;
        }
        let mut programs = Vec::new();
        for number in 0..PROGRAMS {
            programs.push(Program::new(&all, number).await?);
        }
        Ok(Servers { all, programs })
    }

    /// Each transaction has changed as many rows at each server.
    async fn check(&self, changes: [u64; SERVERS]) -> Result<(), Failure> {
        for (server, expected) in self.all.iter().zip(changes) {
            let client = server.connect().await?;
            let until = Instant::now() + Duration::from_secs(30);
            loop {
                let row = client.query_one("SELECT sum(amount)::bigint FROM account", &[]).await?;
                let found: i64 = row.get(0);
                if found as u64 == expected {
                    break;
                }
                if Instant::now() > until {
                    return Err(format!("PostgreSQL has {found} changes of {expected}").into());
                }
                // What was not waited for.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

/// Three keys at one time.
async fn put_three(kv: &mut KvClient<Channel>, account: u32) -> Result<(), Fault> {
    let put = |server: usize| {
        let key = format!("bank/{server}/{account}").into_bytes();
        let put = PutRequest { key, value: vec![1; 64], lease: 0 };
        RequestOp { request: Some(request_op::Request::RequestPut(put)) }
    };
    let txn = TxnRequest { success: (0..SERVERS).map(put).collect(), ..TxnRequest::default() };
    match kv.txn(txn).await?.into_inner().succeeded {
        true => Ok(()),
        false => Err("etcd refuses".into()),
    }
}

/// Who is measured.
enum Contender {
    Ours(World, Kind),
    Postgres(Arc<Servers>, Kind, Arc<Mutex<[u64; SERVERS]>>),
    Etcd(KvClient<Channel>),
}

impl Contender {
    async fn turn(&self, program: usize, account: u32) -> Result<(), Fault> {
        match self {
            Contender::Ours(world, kind) => Ok(camelot::run_one(&world.application, *kind, account).await?),
            Contender::Postgres(servers, kind, changes) => {
                servers.programs[program].turn(*kind, account).await?;
                let mut changes = changes.lock().expect("nobody panics");
                changes.iter_mut().take(kind.servers as usize).for_each(|count| *count += 1);
                Ok(())
            }
            Contender::Etcd(kv) => put_three(&mut kv.clone(), account).await,
        }
    }

    async fn round(self: Arc<Self>, programs: usize, seconds: f64) -> Result<Sample, Failure> {
        let start = Instant::now();
        let all: Vec<_> = (0..programs)
            .map(|program| {
                let contender = self.clone();
                tokio::spawn(async move {
                    let mut latencies = Vec::new();
                    // Accounts of its own, so that nobody waits for locks.
                    let own = ACCOUNTS / programs as u32;
                    let mut turn = 0;
                    while start.elapsed().as_secs_f64() < seconds {
                        let before = Instant::now();
                        let account = program as u32 * own + turn % own;
                        let done = contender.turn(program, account).await;
                        done.map_err(|error| error.to_string())?;
                        latencies.push(before.elapsed().as_nanos() as u64);
                        turn += 1;
                    }
                    Ok::<_, String>(latencies)
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for program in all {
            latencies.extend(program.await??);
        }
        let ns_per_tx = start.elapsed().as_nanos() as f64 / latencies.len().max(1) as f64;
        Ok(Sample { ns_per_tx, latencies })
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    // PostgreSQL's user must get there.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let members = Members::start(3, dir.path().join("etcd"));
        let members = members.map_err(|error| eprintln!("without etcd: {error}")).ok();
        let postgres = Servers::start(dir.path()).await;
        let postgres = postgres.map_err(|error| eprintln!("without PostgreSQL: {error}")).ok().map(Arc::new);
        let changes = Arc::new(Mutex::new([0; SERVERS]));
        let mut contenders = Vec::new();
        let mut lines = Vec::new();
        let world =
            camelot::start(caliburn_bench::target::options(256, 64), dir.path(), members.as_ref(), "power");
        let world = world.await?;
        let kinds = camelot::KINDS.into_iter().filter(|kind| kind.servers > 0 && kind.calls == 1);
        for kind in kinds.filter(|kind| kind.blocking || members.is_some()) {
            for programs in [1, PROGRAMS] {
                lines.push(Line::new("caliburn", "redo", "power", programs, json!({"what": kind.what})));
                contenders.push((Arc::new(Contender::Ours(world.clone(), kind)), programs));
                let Some(postgres) = postgres.as_ref().filter(|_| kind.blocking) else { continue };
                lines.push(Line::new("PostgreSQL", "its own", "power", programs, json!({"what": kind.what})));
                let rival = Contender::Postgres(postgres.clone(), kind, changes.clone());
                contenders.push((Arc::new(rival), programs));
            }
        }
        if let Some(members) = &members {
            for programs in [1, PROGRAMS] {
                let kv = KvClient::connect(members.addresses()[0].clone()).await?;
                lines.push(Line::new(
                    "etcd",
                    "its own",
                    "quorum",
                    programs,
                    json!({"what": "3 keys in a Txn"}),
                ));
                contenders.push((Arc::new(Contender::Etcd(kv)), programs));
            }
        }
        let mut rounds = Vec::new();
        for _ in 0..=arguments.rounds {
            let mut samples = Vec::new();
            for (contender, programs) in &contenders {
                samples.push(contender.clone().round(*programs, arguments.seconds).await?);
            }
            rounds.push(samples);
        }
        let mut rounds = rounds.into_iter();
        report::interleave(arguments.rounds, &mut lines, || rounds.next().expect("one for each"));
        if let Some(postgres) = &postgres {
            let changes = *changes.lock().expect("nobody panics");
            postgres.check(changes).await?;
        }
        report::print("camelot", arguments.json, &lines, 0);
        world.stop().await;
        Ok(())
    })
}
