//! One data server's process: started, watched and ended as [`Keeping`] says.

use super::events::Events;
use super::keeping::{Action, GRACE, Input, Keeping};
use crate::environment::{Environment, VARIABLES};
use crate::log_plan::LogPlan;
use crate::process_id::ProcessId;
use crate::proto::admin::{Server, State, Status};
use caliburn_os::descriptors::{self, above};
use caliburn_os::host::kill_group;
use caliburn_os::simulated::{even_if, instead, planted, unless};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::OpenOptions;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::Instant;

const LOOK: Duration = Duration::from_millis(20);

/// What a server is told of the node.
#[derive(Debug)]
pub(super) struct Around {
    /// The daemon's own; what is a server's is changed.
    pub environment: Environment,
    pub dir: PathBuf,
    pub events: Events,
}

/// Turns over when a server's process is gone and none comes any more.
pub(super) type Over = watch::Receiver<bool>;

/// Waits for that.
pub(super) async fn is_over(mut over: Over) {
    let _ = over.wait_for(|over| *over).await;
}

/// A server that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    tell: UnboundedSender<Option<Server>>,
    status: Arc<Mutex<Status>>,
    over: Over,
}

impl Kept {
    /// Begins to keep a server, when former ones of its name or number are over.
    pub fn begin(around: Arc<Around>, server: Server, former: Vec<Over>) -> Kept {
        let (tell, told) = unbounded_channel();
        let status = Arc::new(Mutex::new(Status { server: Some(server.clone()), ..Status::default() }));
        let shown = status.clone();
        let (ends, over) = watch::channel(false);
        tokio::spawn(async move {
            for former in former {
                is_over(former).await;
            }
            Process::new(around, server, shown).keep(told).await;
            let _ = ends.send(true);
        });
        Kept { tell, status, over }
    }

    /// What is to be from now on.
    pub fn tell(&self, server: Server) {
        let _ = self.tell.send(Some(server));
    }

    /// Ends it.
    pub fn end(self) -> Over {
        let _ = self.tell.send(None);
        self.over
    }

    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Whether it is that server, and not another one of the same name.
    pub fn is(&self, server: &Server) -> bool {
        lock(&self.status).server.as_ref().is_some_and(|kept| kept.id == server.id)
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
    /// Its number, until it has ended; 0 if there is none.
    process: u32,
    /// Where it says that it serves.
    socket: Option<UnixDatagram>,
    told: Told,
    /// What of the status is nowhere else.
    starts: u64,
    orders: u64,
    ended: String,
    status: Arc<Mutex<Status>>,
}

impl Process {
    fn new(around: Arc<Around>, server: Server, status: Arc<Mutex<Status>>) -> Process {
        let (keeping, began) = (Keeping::new(), Instant::now());
        let (child, process, socket, starts, orders, ended) = (None, 0, None, 0, 0, String::new());
        let told = Told::default();
        Process {
            around,
            server,
            keeping,
            began,
            child,
            process,
            socket,
            told,
            starts,
            orders,
            ended,
            status,
        }
    }

    async fn keep(mut self, mut told: UnboundedReceiver<Option<Server>>) {
        self.end_former().await;
        let mut ends = false;
        self.step(self.wanted());
        while !(ends && self.keeping.state() == State::Stopped) {
            let due = self.keeping.due().map(|due| self.began + due);
            let input = tokio::select! {
                next = told.recv(), if !ends => match next.flatten() {
                    Some(server) => { self.change(server); continue }
                    None => {
                        ends = true;
                        Input::Want { run: false, restarts: false }
                    }
                },
                ended = ended(&mut self.child) => { self.has_ended(ended); Input::Ended }
                said = said(self.socket.as_ref()) => match self.hears(said) {
                    true => Input::Ready,
                    false => continue,
                },
                () = until(due) => Input::Time,
            };
            self.step(input);
        }
    }

    fn wanted(&self) -> Input {
        Input::Want { run: self.server.wanted, restarts: self.server.restarts }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Tells what the process says for operators. Whether it says that it serves.
    fn hears(&mut self, said: Said) -> bool {
        if let Some(text) = said.notice.and_then(|text| self.told.event(self.began.elapsed(), text)) {
            self.around.events.add(&self.server.name, text);
        }
        said.serves
    }

    /// Another record of it.
    fn change(&mut self, server: Server) {
        let before = std::mem::replace(&mut self.server, server);
        let was = self.keeping.state();
        self.step(self.wanted());
        if self.server.started != before.started {
            self.step(Input::Start);
        }
        if self.server.restarted != before.restarted && was != State::Stopped {
            self.step(Input::Restart);
        }
        if self.server.crashed != before.crashed {
            self.step(Input::Crash);
        }
        if (self.server.restarted == before.restarted || was == State::Stopped)
            && matches!(self.keeping.state(), State::Starting | State::Running)
        {
            // What was ordered is so already.
            self.orders = self.server.started + self.server.restarted;
            self.show();
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
        self.show();
    }

    /// At once: whoever waits for an order puts one beside the other.
    fn show(&self) {
        *lock(&self.status) = Status {
            server: Some(self.server.clone()),
            state: self.keeping.state() as i32,
            process: self.process,
            starts: self.starts,
            ended: self.ended.clone(),
            orders: self.orders,
        };
    }

    /// What comes of it if there is no process.
    fn start(&mut self) -> Option<Input> {
        self.starts += 1;
        self.orders = self.server.started + self.server.restarted;
        match self.spawn() {
            Ok(child) => {
                self.process = child.id().unwrap_or_default();
                self.around.events.add(&self.server.name, format!("is started, process {}", self.process));
                self.child = Some(child);
                self.remember();
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

    fn spawn(&mut self) -> io::Result<Child> {
        let Server { name, number, command, arguments, listen, directory, quota, log, .. } = &self.server;
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
            log: log.as_ref().map(LogPlan::of).unwrap_or_default(),
            forget_clock: self.server.forget_clock,
            daemon: own.listen.map(|at| (own.number, own.reached_at(at))),
            supervisor: ProcessId::of(std::process::id()),
            ..own.clone()
        };
        let log = self.around.dir.join("logs").join(format!("{name}.log"));
        let log = above(|| OpenOptions::new().create(true).append(true).open(log))?;
        // Another one for each process, so that none hears what a former one has said.
        let socket = format!("caliburn-{:032x}", u128::from_ne_bytes(caliburn_os::host::random_id()?));
        let named = SocketAddr::from_abstract_name(&socket)?;
        let bound = above(|| std::os::unix::net::UnixDatagram::bind_addr(&named))?;
        bound.set_nonblocking(true)?;
        self.socket = Some(UnixDatagram::from_std(bound)?);
        let mut line = Command::new(command);
        // What the daemon was told is not for them.
        VARIABLES.iter().for_each(|variable| _ = line.env_remove(variable));
        line.args(arguments)
            .envs(environment.variables())
            .env("NOTIFY_SOCKET", format!("@{socket}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // What is typed at the daemon is not for it; and what it starts is told with it.
            .process_group(0)
            .spawn()
    }

    fn signal(&self, signal: Signal) {
        // It has not been waited for, so the number is its own.
        if let Some(leader) = Pid::from_raw(self.process as i32) {
            let _ = kill_process_group(leader, signal);
        }
    }

    fn has_ended(&mut self, ended: io::Result<ExitStatus>) {
        // What it has started, and has not taken with it, would hold its store.
        kill_group(std::mem::take(&mut self.process));
        self.child = None;
        // It may have said why.
        for said in self.socket.take().into_iter().flat_map(last_words) {
            self.hears(said);
        }
        self.told.last = None;
        let _ = std::fs::remove_file(self.record());
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

    /// Where its process is named, for a daemon that comes after one that was killed.
    fn record(&self) -> PathBuf {
        self.around.dir.join("run").join(format!("{}.process", self.server.name))
    }

    fn remember(&self) {
        let record = self.record();
        let folder = record.parent().map(std::fs::create_dir_all);
        let new = record.with_extension("new");
        let written = ProcessId::of(self.process)
            .map(|id| descriptors::write(&new, id.to_string()).and_then(|()| std::fs::rename(&new, &record)));
        if let (Some(Err(error)), _) | (_, Some(Err(error))) = (folder, written) {
            self.around.events.add(&self.server.name, format!("{}: {error}", record.display()));
        }
    }

    /// What a daemon that was killed has left must not run beside what is started here.
    async fn end_former(&self) {
        let Ok(text) = descriptors::read_text(self.record()) else { return };
        let former = text.parse::<ProcessId>().ok().filter(|_| unless("former-processes-left", true));
        let until = Instant::now() + GRACE;
        let mut signal = Signal::TERM;
        let has_ended = |runs: &OwnedFd| {
            let mut poll = [PollFd::new(runs, PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        while let Some((pid, runs)) = former.and_then(|former| Some((former.pid()?, former.open()?))) {
            if signal == Signal::TERM {
                self.around
                    .events
                    .add(&self.server.name, format!("process {} is left, and is ended", pid.as_raw_pid()));
                let _ = kill_process_group(pid, signal);
                signal = Signal::KILL;
            } else if Instant::now() > until {
                let _ = kill_process_group(pid, signal);
            }
            // One that nobody has waited for has ended all the same.
            if has_ended(&runs) {
                break;
            }
            if Instant::now() > until + GRACE {
                self.around
                    .events
                    .add(&self.server.name, format!("process {} does not end", pid.as_raw_pid()));
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let _ = std::fs::remove_file(self.record());
    }
}

/// How a process has ended; never, if there is none.
async fn ended(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

/// What a supervised process says, in systemd's format.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    /// It serves.
    serves: bool,
    /// What an operator should know.
    notice: Option<String>,
}

/// Longer ones are cut.
const MESSAGE: usize = 1024;

impl Said {
    /// One message may have both, in any order.
    fn of(message: &[u8]) -> Said {
        let text = String::from_utf8_lossy(message);
        let lines = || text.lines().take(if planted("first-line-only") { 1 } else { usize::MAX });
        let notice = lines().filter_map(|line| line.strip_prefix("STATUS=")).last().map(str::to_owned);
        Said { serves: lines().any(|line| line == "READY=1"), notice }
    }
}

/// Waits for the next message; for ever if there is no socket.
async fn said(socket: Option<&UnixDatagram>) -> Said {
    let Some(socket) = socket else { return std::future::pending().await };
    let mut message = [0; MESSAGE];
    match socket.recv(&mut message).await {
        Ok(len) => Said::of(&message[..len]),
        Err(_) => std::future::pending().await,
    }
}

/// What a process that has ended has said, and nobody has heard yet. Not without end: others may hold its socket.
fn last_words(socket: UnixDatagram) -> impl Iterator<Item = Said> {
    let socket = socket.into_std();
    let next = move || {
        let mut message = [0; MESSAGE];
        let len = socket.as_ref().ok()?.recv(&mut message).ok()?;
        Some(Said::of(&message[..len]))
    };
    std::iter::from_fn(next).take(instead("last-words-lost", LAST, 0))
}

/// More messages than a socket holds, as Linux is configured by most.
const LAST: usize = 512;

/// Which notices of a server became events: the events of all servers share one log of limited length.
#[derive(Debug, Default)]
struct Told {
    /// What this process said last.
    last: Option<String>,
    /// When this minute began, and how many events there were since.
    minute: Duration,
    count: u64,
}

/// Events that a server can make in a minute.
const MINUTE: u64 = 20;

impl Told {
    /// The event, if there is one. A text that was repeated is none.
    fn event(&mut self, now: Duration, text: String) -> Option<String> {
        if even_if("repetitions-told", self.last.as_ref() != Some(&text)) {
            self.last = Some(text.clone());
        } else {
            return None;
        }
        if now.saturating_sub(self.minute) >= Duration::from_secs(60) {
            (self.minute, self.count) = (now, 0);
        }
        self.count += 1;
        match self.count {
            _ if planted("notices-without-limit") => Some(text),
            ..MINUTE => Some(text),
            MINUTE => Some(format!("says much: what it says in the rest of this minute is left out; {text}")),
            _ => None,
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_process_says_is_heard() {
        let (server, daemon) = UnixDatagram::pair().unwrap();
        let long = format!("STATUS={}", "x".repeat(2000));
        for message in ["MAINPID=7", "STATUS=etcd has forgotten", "A=1\nREADY=1", &*long] {
            server.send(message.as_bytes()).await.unwrap();
        }
        for (serves, notice) in [
            (false, None),
            (false, Some("etcd has forgotten".into())),
            (true, None),
            (false, Some("x".repeat(1024 - 7))),
        ] {
            assert_eq!(said(Some(&daemon)).await, Said { serves, notice });
        }
    }

    #[test]
    fn a_message_of_two_lines_says_both() {
        let both = Said { serves: true, notice: Some("warm".into()) };
        assert_eq!(Said::of(b"STATUS=warm\nREADY=1\n"), both);
        assert_eq!(Said::of(b"READY=1\nSTATUS=cold\nSTATUS=warm"), both);
    }

    #[tokio::test]
    async fn last_words_are_heard() {
        let (server, daemon) = UnixDatagram::pair().unwrap();
        ["STATUS=one", "STATUS=two"].iter().for_each(|text| _ = server.try_send(text.as_bytes()).unwrap());
        drop(server);
        let heard: Vec<_> = last_words(daemon).filter_map(|said| said.notice).collect();
        assert_eq!(heard, ["one", "two"]);
    }

    #[test]
    fn a_server_that_says_much_leaves_room_for_others() {
        let (mut told, second) = (Told::default(), Duration::from_secs(1));
        assert_eq!(told.event(second, "a".into()).as_deref(), Some("a"));
        assert_eq!(told.event(second, "a".into()), None);
        assert_eq!(told.event(second, "b".into()).as_deref(), Some("b"));
        let many = (0..1000).filter_map(|number: u32| told.event(2 * second, number.to_string()));
        let last = many.last().unwrap();
        assert!(last.starts_with("says much") && last.ends_with("; 17"), "{last}");
        assert_eq!(told.event(62 * second, "a".into()).as_deref(), Some("a"));
    }
}
