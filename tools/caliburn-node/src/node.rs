//! `node`: runs a machine's node, and administers one (Camelot, section 3.2).
//!
//! ```text
//!   caliburn-node run /var/lib/caliburn --cluster bank --number 1 --listen 127.0.0.1:4100      the first time
//!   caliburn-node run /var/lib/caliburn                                                        from then on
//!   caliburn-node add-server -n /var/lib/caliburn bank --number 11 --listen 127.0.0.1:4111 -- /usr/bin/bank
//!   caliburn-node start -n /var/lib/caliburn bank
//! ```

use crate::certificates::Certificates;
use crate::configuration::Configuration;
use crate::orders::{Ordered, Starting};
use crate::server_log::{ServerLog, absolute};
use crate::undecided;
use caliburn_dist::cluster::root;
use caliburn_dist::commit::word::Node as NodeNumber;
use caliburn_dist::daemon::Daemon;
use caliburn_dist::data_server::{DataServer, Environment};
use caliburn_dist::proto::admin::admin_client::AdminClient;
use caliburn_dist::proto::admin::{
    Change, EventsRequest, Name, Server, ShowRequest, Shown, State, Status, User, What,
};
use caliburn_dist::proto::caliburn::node_client::NodeClient;
use caliburn_dist::{bank, proto::admin::Event};
use caliburn_tools::{Failure, size, text};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};
use tonic::transport::Channel;

/// What a node can be told.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node until it is told to stop; the first time it is told what it is, and remembers.
    Run(Run),
    /// Make certificates for nodes, users and members of etcd, and the two authorities that they are of.
    Certificates(Certificates),
    /// Show the node, its data servers and its users.
    #[command(visible_alias = "status")]
    Show(Show),
    /// Add a data server: a program that is told by its environment what it serves.
    AddServer(AddServer),
    /// Change a data server, when it is started next.
    ChangeServer(ChangeServer),
    /// Remove a data server that is stopped. Its store stays.
    RemoveServer(Named),
    /// Start a data server, and wait until it serves; from then on it runs when the node does.
    Start(Starting),
    /// Stop a data server in good order, and wait for it.
    Stop(Ordered),
    /// Stop a data server and start it again.
    Restart(Starting),
    /// Kill a data server. It recovers when it is started next: by itself, if it is marked so.
    Crash(Ordered),
    /// Give a user rights, in place of those that he had.
    Authorise(Authorise),
    /// Remove a user.
    RemoveUser(Named),
    /// Show transactions that wait for a coordinator, and what was decided in its place.
    Undecided(undecided::Which),
    /// End a transaction that is undecided at one node, in place of a coordinator that is gone for ever. It may have
    /// ended otherwise everywhere else: `undecided` shows that when it is known.
    Judge(undecided::Judge),
    /// Forget a judgement that was wrong, when what depended on it is mended.
    Forget(undecided::Forget),
    /// Rely on the etcd that there is, after the one that the node knew was lost or restored from a backup. What is
    /// undecided there is judged first.
    Accept(undecided::Accept),
    /// Show what has happened on the node.
    Events(Events),
}

#[derive(Args, Debug)]
pub struct Run {
    /// Directory of the node, made if it is missing.
    directory: PathBuf,
    /// The node's clock forgets how far it had gone: for one that others refuse since its machine's clock was
    /// ahead once. Timestamps may come again. Of a data server: caliburn-node restart --forget-clock.
    #[arg(long)]
    forget_clock: bool,
    /// What is given differs from what the node was told before, and is to replace it.
    #[arg(long)]
    config: bool,
    #[command(flatten)]
    told: crate::configuration::Told,
}

/// Which node, and as who.
#[derive(Args, Debug)]
pub struct Contact {
    /// Directory of a node of this machine.
    #[arg(short, long, value_name = "DIRECTORY", env = "CALIBURN_NODE", required_unless_present = "at")]
    node: Option<PathBuf>,
    /// Address of a node anywhere, such as https://10.0.0.1:4100, in place of a directory.
    #[arg(long, requires_all = ["cluster", "is_number"], conflicts_with = "node")]
    at: Option<String>,
    /// Its cluster.
    #[arg(long, requires = "at")]
    cluster: Option<String>,
    /// Its number there.
    #[arg(long = "is-number", id = "is_number", requires = "at")]
    number: Option<u64>,
    /// PEM file: the certificate of the authority.
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// PEM file: your certificate, if the node wants one.
    #[arg(
        long = "as",
        id = "as",
        value_name = "FILE",
        requires = "as_key",
        env = "CALIBURN_USER_CERTIFICATE"
    )]
    certificate: Option<PathBuf>,
    /// PEM file: its key.
    #[arg(long, id = "as_key", value_name = "FILE", requires = "as", env = "CALIBURN_USER_KEY")]
    as_key: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Show {
    #[command(flatten)]
    contact: Contact,
}

#[derive(Args, Debug)]
pub struct AddServer {
    #[command(flatten)]
    contact: Contact,
    /// Its name: a-z, 0-9, '-'.
    name: String,
    /// Its number in the cluster.
    #[arg(long)]
    number: u64,
    /// Where it serves, such as 127.0.0.1:4101.
    #[arg(long)]
    listen: std::net::SocketAddr,
    /// Directory of its store; in the node's unless told.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// It is not started again by itself when it ends.
    #[arg(long)]
    no_restart: bool,
    /// What its segments and its log may take: 0 is no quota.
    #[arg(long, default_value = "0", value_parser = size::parse)]
    quota: u64,
    /// The user who may start, stop, restart and crash it too.
    #[arg(long, default_value = "")]
    owner: String,
    /// PEM file: its certificate, where peers have some.
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// PEM file: the key of that.
    #[arg(long)]
    key: Option<PathBuf>,
    #[command(flatten)]
    log: Box<ServerLog>,
    /// The program, and its arguments, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct ChangeServer {
    #[command(flatten)]
    contact: Contact,
    /// Its name.
    name: String,
    /// Whether it is started again by itself when it ends.
    #[arg(long)]
    restart: Option<bool>,
    /// What its segments and its log may take: 0 is no quota.
    #[arg(long, value_parser = size::parse)]
    quota: Option<u64>,
    /// The user who may start, stop, restart and crash it too; '' is nobody.
    #[arg(long)]
    owner: Option<String>,
    #[command(flatten)]
    log: Box<ServerLog>,
    /// The program, and its arguments, after `--`.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Named {
    #[command(flatten)]
    contact: Contact,
    /// Its name.
    name: String,
}

#[derive(Args, Debug)]
pub struct Authorise {
    #[command(flatten)]
    contact: Contact,
    /// The user, as in his certificate.
    user: String,
    /// What he may call: `<service>/<operation>`, `<service>/*`, or `*`. The node's own service is
    /// caliburn.admin.v1.Admin.
    #[arg(required = true)]
    rights: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Events {
    #[command(flatten)]
    contact: Contact,
    /// How many of those that have been.
    #[arg(long, default_value_t = 20)]
    last: u32,
    /// Go on with those that come, until interrupted.
    #[arg(short, long)]
    follow: bool,
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Runs it.
pub fn run(command: &Command) -> Result<ExitCode, Failure> {
    warn();
    runtime()?.block_on(async {
        let patience = match command {
            Command::Run(_) | Command::Events(Events { follow: true, .. }) => {
                return command.run().await;
            }
            Command::Start(Starting { ordered: it, .. })
            | Command::Restart(Starting { ordered: it, .. })
            | Command::Stop(it)
            | Command::Crash(it) => Duration::from_secs(it.patience) + PATIENCE,
            _ => PATIENCE,
        };
        let done = tokio::time::timeout(patience, command.run()).await;
        done.unwrap_or_else(|_| Err(format!("the node does not answer within {patience:?}").into()))
    })
}

/// A node answers within this.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is worth a warning goes where errors go.
fn warn() {
    let subscriber =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN);
    let _ = subscriber.with_target(false).try_init();
}

impl Command {
    async fn run(&self) -> Result<ExitCode, Failure> {
        match self {
            Command::Run(run) => {
                let configuration = Configuration::of(&run.directory, &run.told, run.config)?;
                let (mut environment, administrator) = configuration.to_environment(&run.directory)?;
                environment.forget_clock = if run.forget_clock { another_number()? } else { 0 };
                let daemon = Daemon::start(environment, administrator).await?;
                // It can be that.
                configuration.write(&run.directory)?;
                println!("{}", configuration.describe());
                daemon.run(std::future::pending()).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Certificates(certificates) => certificates.run(),
            Command::Show(show) => show.contact.show().await,
            Command::AddServer(add) => add.run().await,
            Command::ChangeServer(change) => change.run().await,
            Command::RemoveServer(Named { contact, name }) => {
                contact.admin()?.remove_server(Name { name: name.clone() }).await.map_err(said)?;
                contact.done(&format!("server {name:?} is removed; its store stays"))
            }
            Command::Start(start) => start.ordered.run(What::Start, start.forget_clock).await,
            Command::Stop(ordered) => ordered.run(What::Stop, false).await,
            Command::Restart(start) => start.ordered.run(What::Restart, start.forget_clock).await,
            Command::Crash(ordered) => ordered.run(What::Crash, false).await,
            Command::Authorise(Authorise { contact, user, rights }) => {
                let message = User { name: user.clone(), rights: rights.clone() };
                contact.admin()?.set_user(message).await.map_err(said)?;
                contact.done(&format!("user {user:?} may {}", rights.join(", ")))
            }
            Command::RemoveUser(Named { contact, name }) => {
                contact.admin()?.remove_user(Name { name: name.clone() }).await.map_err(said)?;
                contact.done(&format!("user {name:?} is removed"))
            }
            Command::Undecided(which) => which.run().await,
            Command::Judge(judge) => judge.run().await,
            Command::Forget(forget) => forget.run().await,
            Command::Accept(accept) => accept.run().await,
            Command::Events(events) => events.run().await,
        }
    }
}

/// An order that was never given.
fn another_number() -> Result<u64, Failure> {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_right(16) | 1)
}

/// What a node has answered, for people.
pub fn said(status: tonic::Status) -> Failure {
    let cause = root(&status);
    match status.code() {
        tonic::Code::Unavailable => format!("the node does not answer: {cause}").into(),
        // Of a connection that has ended meanwhile.
        tonic::Code::Unknown | tonic::Code::Cancelled | tonic::Code::Internal => {
            format!("what the node has done is not known; look with: caliburn-node show ({cause})").into()
        }
        _ => status.message().to_owned().into(),
    }
}

impl Contact {
    /// What is known of it: what to show, its number, its address.
    fn place(&self) -> Result<(Environment, u64, String), Failure> {
        let mut environment = Environment::default();
        let (mut at, mut number) = (self.at.clone().unwrap_or_default(), self.number.unwrap_or_default());
        let mut authority = self.authority.clone();
        if let Some(directory) = &self.node {
            let configuration = Configuration::read(directory)?;
            number = configuration.number;
            at = configuration.address();
            authority = authority.or_else(|| configuration.authority());
            environment.cluster = configuration.cluster;
        } else {
            environment.cluster = self.cluster.clone().unwrap_or_default();
        }
        environment.certificates = match (authority, &self.certificate, &self.as_key) {
            (Some(authority), Some(certificate), Some(key)) => {
                Some([authority, certificate.clone(), key.clone()])
            }
            (None, None, None) => None,
            (Some(_), ..) => {
                return Err("the node wants a certificate: name a user's with --as FILE --as-key FILE".into());
            }
            (None, ..) => return Err("name the authority's certificate with --authority FILE".into()),
        };
        Ok((environment, number, at))
    }

    /// The daemon.
    pub fn admin(&self) -> Result<AdminClient<Channel>, Failure> {
        let (environment, number, at) = self.place()?;
        let cluster = environment.cluster()?.node(number, &at)?;
        Ok(AdminClient::new(cluster.channel(NodeNumber(number))?))
    }

    /// The node itself, or one of its data servers.
    pub async fn node_or(&self, server: Option<&str>) -> Result<NodeClient<Channel>, Failure> {
        let (environment, mut number, mut at) = self.place()?;
        if let Some(name) = server {
            let servers = self.shown(&mut self.admin()?).await?.servers;
            let server =
                servers.into_iter().filter_map(|status| status.server).find(|server| server.name == name);
            let server = server.ok_or_else(|| format!("no server is called {name:?}"))?;
            (number, at) = (server.number, environment.reached_at(server.listen.parse()?));
        }
        let cluster = environment.cluster()?.node(number, &at)?;
        Ok(NodeClient::new(cluster.channel(NodeNumber(number))?))
    }

    pub fn done(&self, what: &str) -> Result<ExitCode, Failure> {
        match self.json {
            true => println!("{}", json!({"done": what})),
            false => println!("{}", text::plain(what)),
        }
        Ok(ExitCode::SUCCESS)
    }

    pub async fn shown(&self, admin: &mut AdminClient<Channel>) -> Result<Shown, Failure> {
        Ok(admin.show(ShowRequest {}).await.map_err(said)?.into_inner())
    }

    async fn show(&self) -> Result<ExitCode, Failure> {
        let shown = self.shown(&mut self.admin()?).await?;
        if self.json {
            let servers: Vec<_> = shown.servers.iter().map(status_json).collect();
            let users = shown.users.iter().map(|user| json!({"name": user.name, "rights": user.rights}));
            let users: Vec<_> = users.collect();
            println!(
                "{}",
                json!({"cluster": shown.cluster, "number": shown.number, "incarnation": shown.incarnation,
                    "servers": servers, "users": users, "notices": shown.notices})
            );
            return Ok(ExitCode::SUCCESS);
        }
        let Shown { cluster, number, incarnation, servers, users, notices } = shown;
        println!("node {number} of cluster {}, in its life {incarnation}", text::plain(cluster));
        let name = |name: &str| text::plain(name).to_string();
        for status in servers {
            let server = status.server.clone().unwrap_or_default();
            let process =
                if status.process == 0 { String::new() } else { format!(", process {}", status.process) };
            let starts = match status.starts {
                0 | 1 => String::new(),
                starts => format!(", {starts} starts"),
            };
            let ended = if status.ended.is_empty() {
                String::new()
            } else {
                format!(", ended last: {}", name(&status.ended))
            };
            println!(
                "server {:<16} {:>4}  {:<22} {}{process}{starts}{ended}",
                name(&server.name),
                server.number,
                name(&server.listen),
                state_name(status.state()),
            );
        }
        users
            .iter()
            .for_each(|user| println!("user   {:<16} {}", name(&user.name), name(&user.rights.join(" "))));
        notices.iter().for_each(|notice| println!("warning: {}", name(notice)));
        Ok(ExitCode::SUCCESS)
    }
}

pub fn state_name(state: State) -> &'static str {
    match state {
        State::Stopped => "stopped",
        State::Starting => "starting",
        State::Running => "running",
        State::Stopping => "stopping",
        State::Waiting => "waiting to be started again",
        State::Failed => "failed",
    }
}

pub fn status_json(status: &Status) -> serde_json::Value {
    let server = status.server.clone().unwrap_or_default();
    json!({"name": server.name, "number": server.number, "command": server.command, "arguments": server.arguments,
        "listen": server.listen, "directory": server.directory, "restarts": server.restarts, "quota": server.quota,
        "owner": server.owner, "wanted": server.wanted, "state": state_name(status.state()),
        "process": status.process, "starts": status.starts, "ended": status.ended,
        "log": server.log.map(|log| json!({"path": log.path, "bytes": log.bytes, "second": log.second, "recovery_ms": log.recovery_ms, "dumps": log.dumps, "dump_at": log.dump_at}))})
}

/// A program that is named by a path is that one, whatever directory the node is run in.
fn program(command: &str) -> Result<String, Failure> {
    if command.contains('/') { absolute(&Some(PathBuf::from(command))) } else { Ok(command.to_owned()) }
}

impl AddServer {
    async fn run(&self) -> Result<ExitCode, Failure> {
        let (command, arguments) = self.command.split_first().expect("clap wants one");
        let server = Server {
            name: self.name.clone(),
            number: self.number,
            command: program(command)?,
            arguments: arguments.to_vec(),
            listen: self.listen.to_string(),
            directory: absolute(&self.directory)?,
            restarts: !self.no_restart,
            quota: self.quota,
            owner: self.owner.clone(),
            certificate: absolute(&self.certificate)?,
            key: absolute(&self.key)?,
            log: self.log.said()?,
            ..Server::default()
        };
        self.contact.admin()?.add_server(server).await.map_err(said)?;
        self.contact.done(&format!("server {:?} is added; start it with: caliburn-node start", self.name))
    }
}

impl ChangeServer {
    async fn run(&self) -> Result<ExitCode, Failure> {
        let log = self.log.said()?;
        let others = self.restart.is_none() && self.quota.is_none() && self.owner.is_none();
        if others && log.is_none() && self.command.is_empty() {
            return Err("name what is to change: see --help".into());
        }
        let change = Change {
            name: self.name.clone(),
            restarts: self.restart,
            quota: self.quota,
            owner: self.owner.clone(),
            command: self.command.first().map(|command| program(command)).transpose()?,
            arguments: self.command.iter().skip(1).cloned().collect(),
            log,
        };
        self.contact.admin()?.change_server(change).await.map_err(said)?;
        self.contact.done(&format!("server {:?} is changed, when it is started next", self.name))
    }
}

impl Events {
    async fn run(&self) -> Result<ExitCode, Failure> {
        let request = EventsRequest { last: self.last, follow: self.follow };
        let mut events = self.contact.admin()?.events(request).await.map_err(said)?.into_inner();
        while let Some(Event { time, server, text }) = events.message().await.map_err(said)? {
            let time = UNIX_EPOCH + Duration::from_millis(time);
            let time = humantime::format_rfc3339_millis(time).to_string();
            match self.contact.json {
                true => println!("{}", json!({"time": time, "server": server, "text": text})),
                false => {
                    let server = if server.is_empty() { "-" } else { &*server };
                    println!("{time}  {}  {}", text::plain(server), text::plain(&text));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A data server to try things with: a bank.
pub fn bank_server() -> Result<ExitCode, Failure> {
    warn();
    runtime()?.block_on(async {
        let server = DataServer::from_environment().await?;
        let node = bank::segment(server.builder()).start().await?;
        let service = bank::service(&node);
        server.serve(&node, |services| _ = services.add_service(service)).await?;
        Ok(ExitCode::SUCCESS)
    })
}
