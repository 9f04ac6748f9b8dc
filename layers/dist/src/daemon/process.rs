//! One data server's process: started, watched and ended as [`Keeping`] says.

use super::events::Events;
use super::keeping::{Action, Input, Keeping};
use crate::data_server::Environment;
use crate::proto::admin::{Server, State, Status};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a server is told of the node.
#[derive(Debug)]
pub(super) struct Around {
    /// The daemon's own; what is a server's is changed.
    pub environment: Environment,
    pub dir: PathBuf,
    pub events: Events,
}

/// A server that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    tell: UnboundedSender<Option<Server>>,
    status: Arc<Mutex<Status>>,
    task: JoinHandle<()>,
}

impl Kept {
    /// Begins to keep a server, when a former one of its name has ended.
    pub fn begin(around: Arc<Around>, server: Server, former: Option<JoinHandle<()>>) -> Kept {
        let (tell, told) = unbounded_channel();
        let status = Arc::new(Mutex::new(Status { server: Some(server.clone()), ..Status::default() }));
        let shown = status.clone();
        let task = tokio::spawn(async move {
            if let Some(former) = former {
                let _ = former.await;
            }
            let name = server.name.clone();
            let events = around.events.clone();
            if let Err(error) = Process::keep(around, server, told, shown).await {
                events.add(&name, format!("can't be kept: {error}"));
            }
        });
        Kept { tell, status, task }
    }

    /// What is to be from now on.
    pub fn tell(&self, server: Server) {
        let _ = self.tell.send(Some(server));
    }

    /// Ends it.
    pub fn end(self) -> JoinHandle<()> {
        let _ = self.tell.send(None);
        self.task
    }

    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }
}

fn lock(status: &Mutex<Status>) -> MutexGuard<'_, Status> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Process {
    around: Arc<Around>,
    server: Server,
    keeping: Keeping,
    began: Instant,
    child: Option<Child>,
    /// Where it says that it serves.
    socket: UnixDatagram,
    path: PathBuf,
    /// What of the status is nowhere else.
    starts: u64,
    orders: u64,
    ended: String,
    status: Arc<Mutex<Status>>,
}

impl Process {
    async fn keep(
        around: Arc<Around>,
        server: Server,
        mut told: UnboundedReceiver<Option<Server>>,
        status: Arc<Mutex<Status>>,
    ) -> io::Result<()> {
        let path = around.dir.join("run").join(format!("{}.socket", server.name));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        let (keeping, began) = (Keeping::new(), Instant::now());
        let mut kept = Process {
            around,
            server,
            keeping,
            began,
            child: None,
            socket,
            path,
            starts: 0,
            orders: 0,
            ended: String::new(),
            status,
        };
        let mut ends = false;
        kept.step(kept.wanted());
        while !(ends && kept.keeping.state() == State::Stopped) {
            let due = kept.keeping.due().map(|due| kept.began + due);
            let mut message = [0; 256];
            let input = tokio::select! {
                next = told.recv(), if !ends => match next {
                    Some(Some(server)) => { kept.change(server); continue }
                    Some(None) | None => {
                        ends = true;
                        Input::Want { run: false, restarts: false }
                    }
                },
                ended = ended(&mut kept.child) => { kept.has_ended(ended); Input::Ended }
                received = kept.socket.recv(&mut message) => {
                    let said = String::from_utf8_lossy(&message[..received?]);
                    if !said.lines().any(|line| line == "READY=1") {
                        continue;
                    }
                    Input::Ready
                }
                () = until(due) => Input::Time,
            };
            kept.step(input);
        }
        let _ = std::fs::remove_file(&kept.path);
        Ok(())
    }

    fn wanted(&self) -> Input {
        Input::Want { run: self.server.wanted, restarts: self.server.restarts }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Another record of it.
    fn change(&mut self, server: Server) {
        let before = std::mem::replace(&mut self.server, server);
        self.step(self.wanted());
        if self.server.started != before.started {
            self.step(Input::Start);
        }
        if self.server.restarted != before.restarted {
            self.step(Input::Restart);
        }
        if self.server.crashed != before.crashed {
            self.step(Input::Crash);
        }
    }

    fn step(&mut self, input: Input) {
        let mut input = Some(input);
        while let Some(next) = input.take() {
            let before = self.keeping.state();
            match self.keeping.step(self.now(), next) {
                None => {}
                Some(Action::Start) => input = self.start(),
                Some(Action::Terminate) => self.signal(Signal::TERM),
                Some(Action::Kill) => self.signal(Signal::KILL),
            }
            let (state, events) = (self.keeping.state(), &self.around.events);
            match state {
                _ if state == before => {}
                State::Running => events.add(&self.server.name, "runs"),
                State::Failed => events.add(&self.server.name, "is not started again by itself"),
                _ => {}
            }
        }
        // At once: whoever waits for an order puts one beside the other.
        *lock(&self.status) = Status {
            server: Some(self.server.clone()),
            state: self.keeping.state() as i32,
            process: self.child.as_ref().and_then(Child::id).unwrap_or_default(),
            starts: self.starts,
            ended: self.ended.clone(),
            orders: self.orders,
        };
    }

    /// What comes of it if there is no process.
    fn start(&mut self) -> Option<Input> {
        // What a former process has said.
        while self.socket.try_recv(&mut [0; 256]).is_ok() {}
        self.starts += 1;
        self.orders = self.server.started + self.server.restarted;
        match self.spawn() {
            Ok(child) => {
                let process = child.id().unwrap_or_default();
                self.around.events.add(&self.server.name, format!("is started, process {process}"));
                self.child = Some(child);
                None
            }
            Err(error) => {
                let why = format!("{}: {error}", self.server.command);
                self.around.events.add(&self.server.name, format!("could not be started: {why}"));
                self.ended = why;
                Some(Input::Ended)
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let Server { name, number, command, arguments, listen, directory, quota, .. } = &self.server;
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let own = &self.around.environment;
        let store = match &**directory {
            "" => self.around.dir.join("servers").join(name),
            directory => Path::new(directory).to_owned(),
        };
        let certificates = own.certificates.as_ref().map(|[authority, ..]| {
            [authority.clone(), self.server.certificate.clone().into(), self.server.key.clone().into()]
        });
        let listen =
            listen.parse().map_err(|_| wrong(format!("{listen:?} is not an address to serve at")))?;
        let environment = Environment {
            name: name.clone(),
            number: *number,
            store,
            listen: Some(listen),
            certificates,
            quota: (*quota != 0).then_some(*quota),
            daemon: own.listen.map(|at| (own.number, own.reached_at(at))),
            supervisor: Some(std::process::id()),
            ..own.clone()
        };
        let log = self.around.dir.join("logs").join(format!("{name}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        Command::new(command)
            .args(arguments)
            .envs(environment.variables())
            .env("NOTIFY_SOCKET", &self.path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // What is typed at the daemon is not for it.
            .process_group(0)
            .spawn()
    }

    fn signal(&self, signal: Signal) {
        // It has not been waited for, so the number is its own.
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(id as i32));
        if let Some(id) = id {
            let _ = kill_process(id, signal);
        }
    }

    fn has_ended(&mut self, ended: io::Result<ExitStatus>) {
        self.child = None;
        let how = match ended {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, signal) => format!("signal {}", signal.unwrap_or_default()),
            },
            Err(error) => error.to_string(),
        };
        self.around.events.add(&self.server.name, format!("has ended: {how}"));
        self.ended = how;
    }
}

/// How a process has ended; never, if there is none.
async fn ended(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
