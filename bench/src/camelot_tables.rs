//! `camelot-tables`: Camelot's Tables 6-1, 6-2 and 6-5, and Graph 6-1, redrawn. One program, one transaction after
//! the other, over arrays of records: parts of one at the node that coordinates, as servers that are embedded
//! share a store and a force ("local"), or each at a node of its own, on loopback, with a store of its own
//! ("remote"). One to three servers, one or ten operations at each, of 32 or 1024 bytes, that read or write; one
//! call for each operation, one after the other.
//!
//! The formulas are fitted as the paper has them: a transaction costs `a + b n`, and each operation `c`.

use crate::Arguments;
use crate::report::{median, rounded};
use crate::target::Failure;
use caliburn::{Class, Mode};
use caliburn_dist::client::{Application, Error, Tx};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::node::Node;
use caliburn_dist::proto::array::array_client::ArrayClient;
use caliburn_dist::proto::array::array_server::{Array, ArrayServer};
use caliburn_dist::proto::array::{ReadReply, ReadRequest, WriteReply, WriteRequest};
use serde_json::json;
use std::time::Instant;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Nodes: the first one coordinates, and has all servers that are local.
const NODES: u64 = 4;
const SERVERS: u64 = 3;
/// Bytes of a record.
const RECORD: usize = 1024;
const RECORDS: usize = 128;
/// Updates of Graph 6-1.
const UPDATES: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];

const SEGMENT: &str = "array";

/// An array of records, in a segment.
struct Records(Node);

#[tonic::async_trait]
impl Array for Records {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteReply>, Status> {
        let written = self.0.run(request, |call, WriteRequest { index, value }| {
            call.write(call.region(SEGMENT)?, index as usize * RECORD, &value)?;
            Ok(WriteReply {})
        });
        written.await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadReply>, Status> {
        let read = self.0.run(request, |call, ReadRequest { index }| {
            let (at, len) = place(index);
            Ok(ReadReply { value: call.read(call.region(SEGMENT)?, at..at + len)? })
        });
        read.await
    }
}

/// Where a record that is read is, and how many bytes of it: long ones have the upper numbers.
fn place(index: u32) -> (usize, usize) {
    match index as usize {
        index if index < RECORDS => (index * RECORD, 32),
        index => ((index - RECORDS) * RECORD, RECORD),
    }
}

/// The same without transactions, stores and locks.
struct Bare;

#[tonic::async_trait]
impl Array for Bare {
    async fn write(&self, _: Request<WriteRequest>) -> Result<Response<WriteReply>, Status> {
        Ok(Response::new(WriteReply {}))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadReply>, Status> {
        Ok(Response::new(ReadReply { value: vec![0; place(request.get_ref().index).1] }))
    }
}

/// A row of Table 6-2, for so many servers.
#[derive(Debug, Clone, Copy)]
struct Kind {
    remote: bool,
    writes: bool,
    bytes: usize,
    operations: u64,
    servers: u64,
}

impl Kind {
    fn all() -> Vec<Kind> {
        let mut all = Vec::new();
        for (remote, writes) in [(false, false), (false, true), (true, false), (true, true)] {
            for (bytes, operations) in [(32, 1), (32, 10), (RECORD, 1), (RECORD, 10)] {
                for servers in 1..=SERVERS {
                    all.push(Kind { remote, writes, bytes, operations, servers });
                }
            }
        }
        all
    }

    fn row(self) -> String {
        let (where_, what) =
            (if self.remote { "remote" } else { "local" }, if self.writes { "write" } else { "read" });
        format!("{where_}, {} {what}s of {} bytes at each server", self.operations, self.bytes)
    }

    async fn run(self, application: &Application) -> Result<(), Error> {
        let done = application.transact(async |tx| {
            for server in 1..=self.servers {
                for operation in 0..self.operations {
                    operate(tx, self, server, operation as u32).await?;
                }
            }
            Ok::<_, Error>(())
        });
        done.await
    }
}

async fn operate(tx: &Tx, kind: Kind, server: u64, index: u32) -> Result<(), Error> {
    let node = if kind.remote { 1 + server } else { 1 };
    let mut array = ArrayClient::new(tx.to(&format!("array@{node}"))?);
    let index = server as u32 * 16 + index;
    match kind.writes {
        true => _ = array.write(WriteRequest { index, value: vec![7; kind.bytes] }).await?,
        false => {
            let index = if kind.bytes == RECORD { index + RECORDS as u32 } else { index };
            let value = array.read(ReadRequest { index }).await?.into_inner().value;
            assert_eq!(value.len(), kind.bytes);
        }
    }
    Ok(())
}

/// Microseconds of one turn.
async fn time(seconds: f64, turn: impl AsyncFn() -> Result<(), Failure>) -> Result<f64, Failure> {
    let (start, mut count) = (Instant::now(), 0u32);
    while count == 0 || start.elapsed().as_secs_f64() < seconds {
        turn().await?;
        count += 1;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// The least squares' `a`, `b` and `c` of `a + b n + c n k`.
fn fit(points: &[(f64, f64, f64)]) -> [f64; 3] {
    let mut system = [[0.0; 4]; 3];
    for (n, k, time) in points {
        // By ratio: a long transaction counts no more than a short one.
        let row = [1.0 / time, n / time, n * k / time, 1.0];
        for (i, equation) in system.iter_mut().enumerate() {
            equation.iter_mut().zip(row).for_each(|(sum, value)| *sum += row[i] * value);
        }
    }
    for i in 0..3 {
        let pivot = system[i];
        for (_, equation) in system.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = equation[i] / pivot[i];
            equation.iter_mut().zip(pivot).for_each(|(value, of)| *value -= factor * of);
        }
    }
    [0, 1, 2].map(|i| system[i][3] / system[i][i])
}

/// Nodes with arrays, and a program that is attached to the first one.
struct World {
    application: Application,
    nodes: Vec<Node>,
}

async fn start(options: &caliburn::Options, dir: &std::path::Path) -> Result<World, Failure> {
    let (mut cluster, mut listeners) = (Cluster::new("tables"), Vec::new());
    for number in 1..=NODES {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        cluster = cluster.node(number, &address)?.server("array", number);
        listeners.push(listener);
    }
    let mut nodes = Vec::new();
    for (number, listener) in (1..).zip(listeners) {
        let node =
            Node::builder(cluster.clone(), number, dir.join(number.to_string())).options(options.clone());
        let node = node.segment(SEGMENT, (RECORDS * RECORD) as u64).start().await?;
        nodes.push(node.clone());
        tokio::spawn(async move {
            let array = ArrayServer::new(Records(node.clone()));
            node.serve_on(listener, |services| _ = services.add_service(array)).await
        });
    }
    Ok(World { application: Application::attach(cluster, 1).await?, nodes })
}

/// What is measured beside transactions: calls without any, and forces of a log.
async fn primitives(
    arguments: &Arguments,
    dir: &std::path::Path,
) -> Result<Vec<(String, Vec<f64>)>, Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::spawn(Server::builder().add_service(ArrayServer::new(Bare)).serve_with_incoming(incoming));
    let bare = ArrayClient::connect(address).await?;
    let options = crate::target::options(arguments.log_mb, arguments.stage_mb);
    let store = options.clone().create(true).open(dir.join("log"))?;
    let region = store.segment_or_create("data", 1 << 20)?.map_all()?;
    let mut all = Vec::new();
    for bytes in [32, RECORD] {
        all.push((format!("a call that writes {bytes} bytes, without transactions"), Vec::new()));
        all.push((format!("a call that reads {bytes} bytes, without transactions"), Vec::new()));
    }
    all.push(("a log forced with 512 bytes".into(), Vec::new()));
    for round in 0..=arguments.rounds {
        let mut times = Vec::new();
        for bytes in [32, RECORD] {
            let value = vec![1; bytes];
            let write = async || {
                let request = WriteRequest { index: 1, value: value.clone() };
                Ok(bare.clone().write(request).await.map(drop)?)
            };
            times.push(time(arguments.seconds, write).await?);
            let index = if bytes == RECORD { RECORDS as u32 } else { 0 };
            let read = async || Ok(bare.clone().read(ReadRequest { index }).await.map(drop)?);
            times.push(time(arguments.seconds, read).await?);
        }
        let force = async || {
            let mut tx = store.begin(Mode::Restore)?;
            tx.write(&region, 0, &[3; 512])?;
            Ok(tx.commit(Class::Power)?)
        };
        times.push(time(arguments.seconds, force).await?);
        let kept = all.iter_mut().zip(times).filter(|_| round > 0);
        kept.for_each(|((_, rounds), time)| rounds.push(time));
    }
    Ok(all)
}

/// The benchmark.
///
/// # Errors
/// When a node does not do what it should.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let say = |table: &str, what: &str, us: f64| {
            let us = rounded(us, 1);
            match arguments.json {
                true => println!(
                    "{}",
                    json!({"workload": "camelot-tables", "table": table, "what": what, "us": us})
                ),
                false => println!("{table:10} {what:70} {us:10.1} us"),
            }
        };
        for (what, rounds) in primitives(arguments, dir.path()).await? {
            say("6-1", &what, median(rounds));
        }
        let options = crate::target::options(arguments.log_mb, arguments.stage_mb);
        let world = start(&options, dir.path()).await?;
        let kinds = Kind::all();
        let update = Kind { remote: false, writes: true, bytes: RECORD, operations: 0, servers: 1 };
        let graph = UPDATES.map(|operations| Kind { operations, ..update });
        let mut times = vec![Vec::new(); kinds.len() + graph.len()];
        for round in 0..=arguments.rounds {
            for (kind, times) in kinds.iter().chain(&graph).zip(&mut times) {
                let turn = async || Ok(kind.run(&world.application).await?);
                let time = time(arguments.seconds / 2.0, turn).await?;
                times.extend((round > 0).then_some(time));
            }
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        for (kind, time) in kinds.iter().zip(&times) {
            say("6-2", &format!("{}, {} servers", kind.row(), kind.servers), *time);
        }
        for (kind, time) in graph.iter().zip(&times[kinds.len()..]) {
            say("graph 6-1", &format!("{} updates of {RECORD} bytes", kind.operations), *time);
        }
        for (of, times) in kinds.chunks(6).zip(times.chunks(6)) {
            let points = of.iter().zip(times);
            let points: Vec<_> =
                points.map(|(kind, time)| (kind.servers as f64, kind.operations as f64, *time)).collect();
            let fitted = fit(&points);
            let worst = points
                .iter()
                .map(|(n, k, time)| ((fitted[0] + fitted[1] * n + fitted[2] * n * k) / time - 1.0).abs());
            let row = Kind { operations: 0, ..of[0] }.row();
            let row = row.replacen(" 0 ", " ", 1).replace(" at each server", "");
            let off = rounded(worst.fold(0.0, f64::max) * 100.0, 1);
            let [a, b, c] = fitted.map(|us| rounded(us, 1));
            match arguments.json {
                true => println!(
                    "{}",
                    json!({
                        "workload": "camelot-tables", "table": "6-5", "what": row, "transaction_us": a,
                        "server_us": b, "operation_us": c, "off_percent": off,
                    })
                ),
                false => println!("6-5        {row}: {a} + {b} n, and {c} us an operation; within {off} %"),
            }
        }
        for node in &world.nodes {
            node.stop().await;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_formula_is_found_again() {
        let of = |n: f64, k: f64| 10.0 + 12.0 * n + 5.5 * n * k;
        let all = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (1.0, 10.0), (2.0, 10.0), (3.0, 10.0)];
        let fitted = fit(&all.map(|(n, k)| (n, k, of(n, k))));
        let near = fitted.iter().zip([10.0, 12.0, 5.5]).all(|(had, wanted)| (had - wanted).abs() < 1e-6);
        assert!(near, "{fitted:?}");
    }
}
