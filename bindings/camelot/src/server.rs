//! A data server: calls come as gRPC, of whatever method, and go to the program's dispatcher.

use crate::bytes::AsTheyAre;
use crate::call::Message;
use crate::objects::{self, SEGMENT};
use crate::program::{Place, give_up, runtime, settle, starts};
use crate::stack::operate;
use crate::status::to_caller;
use crate::stubs::SERVICE;
use crate::tid::CTid;
use caliburn_dist::client::Application;
use caliburn_dist::data_server::{DataServer, EnvironmentError};
use caliburn_dist::node::Node;
use caliburn_dist::node::call::Call;
use std::convert::Infallible;
use std::ffi::{CStr, CString, c_char, c_int};
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

/// A call that came: see the header.
#[repr(C)]
struct CRequest {
    routine: *const c_char,
    tid: CTid,
    request: Message,
    reply: Message,
}

/// What an operation says beside its status: it has aborted all of its family; or there is no such routine.
const ALL: c_int = 1;
const NO_ROUTINE: c_int = 2;

type Dispatch = unsafe extern "C" fn(*mut CRequest) -> c_int;
type Told = unsafe extern "C" fn(CTid);
type Asked = unsafe extern "C" fn(CTid) -> c_int;

unsafe extern "C" {
    fn camelot_operate(dispatch: Dispatch, request: *mut CRequest, all: *mut c_int) -> c_int;
    fn camelot_initialize(init: unsafe extern "C" fn()) -> c_int;
    fn camelot_free_message(message: *mut Message);
}

/// The order that `Camlib_ForgetClock` gave; 0 is none.
static FORGET_CLOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// See the header.
#[unsafe(no_mangle)]
extern "C" fn Camlib_ForgetClock(order: u64) {
    FORGET_CLOCK.store(order, std::sync::atomic::Ordering::Relaxed);
}

/// What `Camlib_InitializeServer` was told.
struct Initialized {
    init: Option<unsafe extern "C" fn()>,
    server: DataServer,
}

static INITIALIZED: Mutex<Option<Initialized>> = Mutex::new(None);

/// See the header.
///
/// # Safety
/// The name is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn Camlib_InitializeServer(
    init: Option<unsafe extern "C" fn()>,
    unregistered: c_int,
    name: *const c_char,
) {
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let server = runtime().block_on(DataServer::from_environment());
    let server = server.unwrap_or_else(|error| give_up(&format!("{name}: {error}")));
    let told = &server.environment().name;
    if *told != name {
        give_up(&format!("the server is {name:?}, and is started as {told:?} (CALIBURN_SERVER)"));
    }
    let server = server.unregistered(unregistered != 0);
    let mut initialized = INITIALIZED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *initialized = Some(Initialized { init, server });
}

/// See the header.
///
/// # Safety
/// The procedures are what the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn Camlib_Serve(
    dispatch: Option<Dispatch>,
    commit: Option<Told>,
    abort: Option<Told>,
    prepare: Option<Asked>,
    level: c_int,
) {
    let initialized = INITIALIZED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let (Some(Initialized { init, server }), Some(dispatch)) = (initialized, dispatch) else {
        give_up("Camlib_Serve needs Camlib_InitializeServer before it, and a dispatcher");
    };
    let served = runtime().block_on(serve(server, init, (dispatch, commit, abort, prepare), level));
    if let Err(error) = served {
        eprintln!("camelot: the server ends: {error}");
        std::process::exit(1);
    }
}

/// See the header.
///
/// # Safety
/// The message is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn Camlib_TerminateServer(message: *const c_char) -> ! {
    // SAFETY: as the caller says.
    eprintln!("camelot: the server ends: {}", unsafe { CStr::from_ptr(message) }.to_string_lossy());
    std::process::exit(1)
}

/// Called by C: for the log.
///
/// # Safety
/// The message is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_say(message: *const c_char) {
    // SAFETY: as the caller says.
    eprintln!("camelot: {}", unsafe { CStr::from_ptr(message) }.to_string_lossy());
}

type Procedures = (Dispatch, Option<Told>, Option<Told>, Option<Asked>);

async fn serve(
    server: DataServer,
    init: Option<unsafe extern "C" fn()>,
    (dispatch, commit, abort, prepare): Procedures,
    level: c_int,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut node = server.builder().level(usize::try_from(level).unwrap_or(1));
    node = node.forget_clock_once(FORGET_CLOCK.load(std::sync::atomic::Ordering::Relaxed));
    if objects::bytes() != 0 {
        node = node.segment(SEGMENT, objects::bytes().next_multiple_of(4096) as u64);
        node = node.on_mapped(|_, region| objects::tell(region.as_ptr()));
    }
    if let Some(commit) = commit {
        // SAFETY: it is what the header says.
        node = node.on_commit(move |tid, _| unsafe { commit(tid.into()) });
    }
    if let Some(abort) = abort {
        // SAFETY: likewise.
        node = node.on_abort(move |tid| unsafe { abort(tid.into()) });
    }
    if let Some(prepare) = prepare {
        // SAFETY: likewise.
        node = node.on_prepare(move |tid| match unsafe { prepare(tid.into()) } {
            0 => Err("its PrepareProc says no".into()),
            _ => Ok(()),
        });
    }
    if let Some(init) = init {
        node = node.first(move |call| {
            // SAFETY: it is a procedure of the program's.
            match operate(call, || unsafe { camelot_initialize(init) }) {
                0 => Ok(()),
                status => Err(to_caller(status, false)),
            }
        });
    }
    let node = node.start().await?;
    starts();
    let (itself, own) = (node.clone(), server.environment().number);
    let cluster = server.cluster().clone();
    // Top-level transactions of its own are coordinated here: when it serves.
    let attaching = tokio::spawn(async move {
        let application = loop {
            match Application::attach(cluster.clone(), own).await {
                Ok(application) => break application,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        };
        settle(Place { cluster, application: Some(application), _names: None });
    });
    let routines = Routines { node: itself, dispatch };
    let served: Result<(), EnvironmentError> =
        server.serve(&node, |services| _ = services.add_service(routines)).await;
    attaching.abort();
    Ok(served?)
}

/// Whatever is called, as a method of [`SERVICE`].
#[derive(Clone)]
struct Routines {
    node: Node,
    dispatch: Dispatch,
}

impl NamedService for Routines {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for Routines {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let routine = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let method = Method { routines: self.clone(), routine };
        Box::pin(async move { Ok(Grpc::new(AsTheyAre).unary(method, request).await) })
    }
}

struct Method {
    routines: Routines,
    routine: String,
}

impl UnaryService<Vec<u8>> for Method {
    type Response = Vec<u8>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, Status>> + Send>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let (Routines { node, dispatch }, routine) = (self.routines.clone(), self.routine.clone());
        Box::pin(async move {
            node.run(request, move |call, bytes| execute(call, dispatch, &routine, &bytes)).await
        })
    }
}

/// Executes an operation.
fn execute(
    call: &mut Call<'_, '_>,
    dispatch: Dispatch,
    routine: &str,
    bytes: &[u8],
) -> Result<Vec<u8>, Status> {
    let name = CString::new(routine).map_err(|_| Status::unimplemented("no such routine"))?;
    let mut request = CRequest {
        routine: name.as_ptr(),
        tid: call.tid().into(),
        request: Message::of(bytes),
        reply: Message::of(&[]),
    };
    let mut all = 0;
    // SAFETY: the dispatcher is what the header says; the request lives until it has returned.
    let done = operate(call, || unsafe { camelot_operate(dispatch, &mut request, &mut all) });
    // SAFETY: the reply is the stub's; both are freed once.
    let reply = unsafe {
        let reply = request.reply.read();
        camelot_free_message(&mut request.request);
        camelot_free_message(&mut request.reply);
        reply
    };
    match done {
        0 if all == NO_ROUTINE => {
            Err(Status::unimplemented(format!("the server has no routine {routine:?} with these arguments")))
        }
        0 => Ok(reply),
        status => Err(to_caller(status, all == ALL)),
    }
}
