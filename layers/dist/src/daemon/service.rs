//! The interface for administrators and data servers: each change a transaction on the node server.

use super::events::Events;
use super::process::Kept;
use super::table;
use crate::credentials::{Peer, is_label};
use crate::data_server::is_reachable;
use crate::id::Tid;
use crate::log_plan;
use crate::node::Node;
use crate::node::call::Call;
use crate::proto::admin::admin_server::Admin;
use crate::proto::admin::record::Of;
use crate::proto::admin::{
    Change, Done, Event, EventsRequest, FollowRequest, Name, Order, Server, ShowRequest, Shown, Surroundings,
    User, What,
};
use crate::rights::covers;
use caliburn_os::simulated::{planted, unless};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const SERVICE: &str = "caliburn.admin.v1.Admin";

/// Transactions that change what the node server remembers.
#[derive(Debug, Default)]
pub(super) struct Changes {
    open: Mutex<HashSet<Tid>>,
    pub committed: Notify,
}

impl Changes {
    fn open(&self) -> MutexGuard<'_, HashSet<Tid>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ended(&self, tid: Tid, committed: bool) {
        if self.open().remove(&tid) && committed {
            self.committed.notify_one();
        }
    }
}

pub(super) struct Service {
    pub node: Node,
    pub cluster: String,
    pub changes: Arc<Changes>,
    pub administrator: Option<String>,
    /// Whether others find servers in etcd.
    pub is_found: bool,
    pub kept: Arc<Mutex<BTreeMap<String, Kept>>>,
    /// Nothing until the table was read.
    pub told: watch::Sender<Option<Surroundings>>,
    pub events: Events,
}

/// Who asks for something, and whether he may.
struct Asker {
    peer: Option<Peer>,
    administrator: Option<String>,
    operation: &'static str,
    /// Within a transaction of his own, which may take long.
    within: bool,
}

impl Asker {
    fn name(&self) -> String {
        self.peer.as_ref().map_or_else(|| "a program on this machine".to_owned(), Peer::to_string)
    }

    /// # Errors
    /// `PERMISSION_DENIED`.
    fn may(&self, users: &[User], owner: Option<&str>) -> Result<(), Status> {
        let may = match &self.peer {
            None => true,
            Some(Peer::Node(_)) => false,
            Some(Peer::User(_)) if planted("anybody-administers") => true,
            Some(Peer::User(user)) if self.administrator.as_ref() == Some(user) => true,
            Some(Peer::User(user)) => {
                let operation = format!("{SERVICE}/{}", self.operation);
                let mut own =
                    users.iter().filter(|known| known.name == *user).flat_map(|known| &known.rights);
                own.any(|right| covers(right, &operation)) || owner == Some(user) && !self.within
            }
        };
        match may {
            true => Ok(()),
            false => {
                let (name, operation) = (self.name(), self.operation);
                Err(Status::permission_denied(format!("{name} has no right to {SERVICE}/{operation}")))
            }
        }
    }
}

impl Service {
    fn asker<M>(&self, request: &Request<M>, operation: &'static str) -> Asker {
        let peer = request.extensions().get::<Peer>().cloned();
        let within = request.metadata().get_bin(crate::wire::KEY).is_some();
        Asker { peer, administrator: self.administrator.clone(), operation, within }
    }

    /// Changes what is remembered, within the transaction that the request belongs to.
    async fn change<M: Send + 'static>(
        &self,
        request: Request<M>,
        operation: &'static str,
        change: impl FnOnce(&mut Call<'_, '_>, M, &Asker) -> Result<(), Status> + Send + 'static,
    ) -> Result<Response<Done>, Status> {
        let (asker, changes) = (self.asker(&request, operation), self.changes.clone());
        let done = self.node.run(request, move |call, message| {
            table::lock(call)?;
            change(call, message, &asker)?;
            changes.open().insert(call.tid());
            Ok(Done {})
        });
        done.await
    }
}

fn server(servers: &[Server], name: &str) -> Result<Server, Status> {
    let found = servers.iter().find(|server| server.name == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<&str> = servers.iter().map(|server| &*server.name).collect();
        Status::not_found(format!("no server is called {name:?}; there are {names:?}"))
    })
}

fn users(told: &Option<Surroundings>) -> Vec<User> {
    told.as_ref().map_or_else(Vec::new, |told| told.users.clone())
}

/// That somebody can own a server: a user, or nobody.
fn is_owner(name: &str) -> Result<(), Status> {
    match name.is_empty() || is_label(name) {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!("{name:?} is no user's name"))),
    }
}

/// That something can be a right.
fn is_right(right: &str) -> Result<(), Status> {
    let parts = right.split_once('/').filter(|(service, operation)| {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        !service.is_empty()
            && service.chars().all(word)
            && !operation.is_empty()
            && (*operation == "*" || operation.chars().all(word))
    });
    match right == "*" || parts.is_some() {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "{right:?} is no right: <service>/<operation>, <service>/*, or *"
        ))),
    }
}

/// What can be seen to be wrong before it is started.
fn check(new: &Server, servers: &[Server], own: u64, (secured, found): (bool, bool)) -> Result<(), Status> {
    let invalid = |what: String| Err(Status::invalid_argument(format!("server {:?}: {what}", new.name)));
    if new.command.is_empty() {
        return invalid("it needs a command".into());
    }
    let Ok(listen) = new.listen.parse::<std::net::SocketAddr>() else {
        return invalid(format!("{:?} is not an address such as 127.0.0.1:4101", new.listen));
    };
    // In etcd it says itself at which port it is.
    let listen = if found && listen.port() == 0 { (listen.ip(), 1).into() } else { listen };
    if let Err(why) = is_reachable(listen) {
        return invalid(format!("{}: {why}", new.listen));
    }
    if secured && (new.certificate.is_empty() || new.key.is_empty()) {
        return invalid("its cluster has certificates: it needs one of its number, and the key".into());
    }
    is_owner(&new.owner)?;
    if new.number == own {
        return invalid(format!("the node itself is number {own}"));
    }
    match servers.iter().find(|there| there.number == new.number && there.name != new.name) {
        Some(there) => invalid(format!("server {:?} is number {}", there.name, new.number)),
        None => Ok(()),
    }
}

#[tonic::async_trait]
impl Admin for Service {
    type EventsStream = ReceiverStream<Result<Event, Status>>;
    type FollowStream = ReceiverStream<Result<Surroundings, Status>>;

    async fn add_server(&self, request: Request<Server>) -> Result<Response<Done>, Status> {
        let random = caliburn_os::host::random_id().map_err(|error| Status::internal(error.to_string()))?;
        let id = u128::from_ne_bytes(random) as u64;
        let (own, found) = (self.node.number(), self.is_found);
        let secured = request.extensions().get::<Peer>().is_some();
        let changed = self.change(request, "AddServer", move |call, mut new, asker| {
            let (servers, users) = table::all(call)?;
            asker.may(&users, None)?;
            check(&new, &servers, own, (secured, found))?;
            log_plan::check(new.log.as_ref()).map_err(Status::invalid_argument)?;
            if servers.iter().any(|there| there.name == new.name) {
                return Err(Status::already_exists(format!("server {:?} is there already", new.name)));
            }
            (new.started, new.restarted, new.crashed, new.forget_clock) = (0, 0, 0, 0);
            new.id = id;
            table::put(call, Of::Server(new))
        });
        changed.await
    }

    async fn change_server(&self, request: Request<Change>) -> Result<Response<Done>, Status> {
        let changed = self.change(request, "ChangeServer", |call, change, asker| {
            let (servers, users) = table::all(call)?;
            asker.may(&users, None)?;
            let mut there = server(&servers, &change.name)?;
            let Change { name: _, restarts, quota, owner, command, arguments, log } = change;
            there.restarts = restarts.unwrap_or(there.restarts);
            there.quota = quota.unwrap_or(there.quota);
            there.owner = owner.unwrap_or(there.owner);
            is_owner(&there.owner)?;
            log_plan::change(&mut there.log, log).map_err(Status::invalid_argument)?;
            if let Some(command) = command {
                (there.command, there.arguments) = (command, arguments);
            }
            table::put(call, Of::Server(there))
        });
        changed.await
    }

    async fn remove_server(&self, request: Request<Name>) -> Result<Response<Done>, Status> {
        let changed = self.change(request, "RemoveServer", |call, Name { name }, asker| {
            let (servers, users) = table::all(call)?;
            asker.may(&users, None)?;
            if unless("removed-while-it-runs", server(&servers, &name)?.wanted) {
                return Err(Status::failed_precondition(format!("server {name:?} runs: stop it first")));
            }
            table::remove(call, "server", &name).map(|_| ())
        });
        changed.await
    }

    async fn give(&self, request: Request<Order>) -> Result<Response<Done>, Status> {
        let random = caliburn_os::host::random_id().map_err(|error| Status::internal(error.to_string()))?;
        let number = u128::from_ne_bytes(random) as u64 | 1;
        let changed = self.change(request, "Give", move |call, order, asker| {
            let (servers, users) = table::all(call)?;
            let owner = servers.iter().find(|server| server.name == order.name);
            asker.may(&users, owner.map(|server| &*server.owner).filter(|owner| !owner.is_empty()))?;
            let mut there = server(&servers, &order.name)?;
            if order.forget_clock {
                if !matches!(order.what(), What::Start | What::Restart) {
                    return Err(Status::invalid_argument(
                        "a clock forgets when its server is started or restarted",
                    ));
                }
                there.forget_clock = number;
            }
            match order.what() {
                What::None => return Err(Status::invalid_argument("an order that is none")),
                What::Start => (there.wanted, there.started) = (true, there.started + 1),
                What::Stop => there.wanted = false,
                What::Restart => (there.wanted, there.restarted) = (true, there.restarted + 1),
                What::Crash => there.crashed += 1,
            }
            table::put(call, Of::Server(there))
        });
        changed.await
    }

    async fn set_user(&self, request: Request<User>) -> Result<Response<Done>, Status> {
        let changed = self.change(request, "SetUser", |call, user, asker| {
            asker.may(&table::all(call)?.1, None)?;
            user.rights.iter().try_for_each(|right| is_right(right))?;
            table::put(call, Of::User(user))
        });
        changed.await
    }

    async fn remove_user(&self, request: Request<Name>) -> Result<Response<Done>, Status> {
        let changed = self.change(request, "RemoveUser", |call, Name { name }, asker| {
            asker.may(&table::all(call)?.1, None)?;
            match table::remove(call, "user", &name)? {
                true => Ok(()),
                false => Err(Status::not_found(format!("no user is called {name:?}"))),
            }
        });
        changed.await
    }

    async fn show(&self, request: Request<ShowRequest>) -> Result<Response<Shown>, Status> {
        let (asker, kept, cluster) = (self.asker(&request, "Show"), self.kept.clone(), self.cluster.clone());
        let (number, incarnation) = (self.node.number(), self.node.incarnation());
        let notices = self.node.notices();
        let shown = self.node.run(request, move |call, ShowRequest {}| {
            let (servers, users) = table::all(call)?;
            let may = asker.may(&users, None);
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let statuses = servers.into_iter().map(|server| {
                let status = kept.get(&server.name).map(Kept::status).unwrap_or_default();
                crate::proto::admin::Status { server: Some(server), ..status }
            });
            let mut servers: Vec<_> = statuses.collect();
            if may.is_err() {
                // Whoever owns some sees those.
                let Some(Peer::User(user)) = asker.peer.as_ref().filter(|_| !asker.within) else {
                    return may.map(|()| Shown::default());
                };
                servers.retain(|status| status.server.as_ref().is_some_and(|server| server.owner == *user));
                if servers.is_empty() {
                    return may.map(|()| Shown::default());
                }
            }
            let (users, notices) = if may.is_ok() { (users, notices) } else { Default::default() };
            Ok(Shown { cluster, number, incarnation, servers, users, notices })
        });
        shown.await
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let asker = self.asker(&request, "Events");
        asker.may(&users(&self.told.borrow()), None)?;
        let EventsRequest { last, follow } = request.into_inner();
        let (last, mut next) = self.events.last(last as usize);
        let (sender, stream) = mpsc::channel(64);
        let (told, mut stopped) = (self.told.clone(), self.node.stopped());
        tokio::spawn(async move {
            for event in last {
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            if !follow {
                return;
            }
            loop {
                let event = tokio::select! {
                    event = next.recv() => event,
                    () = sender.closed() => return,
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                };
                // He may have lost the right meanwhile.
                let may = asker.may(&users(&told.borrow()), None);
                if let Err(status) = may {
                    let _ = sender.send(Err(status)).await;
                    return;
                }
                match event {
                    Ok(event) => _ = sender.send(Ok(event)).await,
                    // Whoever reads too slowly misses some, and is told.
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        let missed = format!("{missed} events were missed");
                        let _ = sender.send(Err(Status::data_loss(missed))).await;
                        return;
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let asker = self.asker(&request, "Follow");
        let is_node = matches!(asker.peer, None | Some(Peer::Node(_)));
        if !is_node {
            asker.may(&users(&self.told.borrow()), None)?;
        }
        let mut told = self.told.subscribe();
        let mut stopped = self.node.stopped();
        let (sender, stream) = mpsc::channel(4);
        tokio::spawn(async move {
            loop {
                let all = told.borrow_and_update().clone();
                let may = is_node || asker.may(&users(&all), None).is_ok();
                if let Some(all) = all.filter(|_| may)
                    && sender.send(Ok(all)).await.is_err()
                {
                    return;
                }
                tokio::select! {
                    changed = told.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
