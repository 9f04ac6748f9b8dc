//! Calls of servers, as the stubs make them.

use crate::bytes::AsTheyAre;
use crate::program::{give_up, place, runtime};
use crate::stack::innermost;
use crate::status::{Aborts, COMMITTED, WRONG, of_call, of_error, with_message};
use bytes::Bytes;
use caliburn_dist::client::Tx;
use std::cell::RefCell;
use std::error::Error as StdError;
use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::Body as HttpBody;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

/// A message of a stub: see the header.
#[repr(C)]
pub struct Message {
    pub bytes: *mut u8,
    pub length: usize,
    pub capacity: usize,
    at: usize,
    number: u64,
    field: *const u8,
    field_length: usize,
    wrong: c_int,
}

impl Message {
    /// What is in it.
    ///
    /// # Safety
    /// It is a stub's.
    pub unsafe fn read(&self) -> Vec<u8> {
        match self.length {
            0 => Vec::new(),
            // SAFETY: so many bytes are there.
            length => unsafe { std::slice::from_raw_parts(self.bytes, length) }.to_vec(),
        }
    }

    /// One with these bytes, which C frees.
    pub fn of(bytes: &[u8]) -> Message {
        let mut message = Message {
            bytes: std::ptr::null_mut(),
            length: bytes.len(),
            capacity: bytes.len(),
            at: 0,
            number: 0,
            field: std::ptr::null(),
            field_length: 0,
            wrong: 0,
        };
        if !bytes.is_empty() {
            // SAFETY: memory of that size, if there is some.
            unsafe {
                message.bytes = libc::malloc(bytes.len()).cast();
                if message.bytes.is_null() {
                    give_up("no memory for a message");
                }
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.bytes, bytes.len());
            }
        }
        message
    }
}

struct Target {
    server: String,
    time: Duration,
    failed: Option<(c_int, Aborts)>,
}

thread_local! {
    /// The last is being called; those before wait for their arguments.
    static TARGETS: RefCell<Vec<Target>> = const { RefCell::new(Vec::new()) };
}

/// The server that is to be called, and how long it may take.
///
/// # Safety
/// The name is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_call_to(server: *const c_char, milliseconds: u64) {
    // SAFETY: as the caller says.
    let server = unsafe { CStr::from_ptr(server) }.to_string_lossy().into_owned();
    let target = Target { server, time: Duration::from_millis(milliseconds), failed: None };
    TARGETS.with(|targets| targets.borrow_mut().push(target));
}

/// How many calls are being made by this thread; and only so many from now on, when others were jumped out of.
#[unsafe(no_mangle)]
extern "C" fn camelot_calls() -> usize {
    TARGETS.with(|targets| targets.borrow().len())
}

#[unsafe(no_mangle)]
extern "C" fn camelot_cut_calls(count: usize) {
    TARGETS.with(|targets| targets.borrow_mut().truncate(count));
}

/// The system's arguments: ignored by servers.
#[unsafe(no_mangle)]
extern "C" fn camelot_port() -> c_int {
    0
}

/// Whether the call that was made aborts its transaction (1), or its family (2), and with which status.
///
/// # Safety
/// `status` is a number's place.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_call_failed(status: *mut c_int) -> c_int {
    let failed = TARGETS.with(|targets| targets.borrow_mut().pop()).and_then(|target| target.failed);
    let (code, aborts) = failed.unwrap_or((COMMITTED, Aborts::Nothing));
    // SAFETY: as the caller says.
    unsafe { *status = code };
    match aborts {
        Aborts::Nothing => 0,
        Aborts::Innermost => 1,
        Aborts::All => 2,
    }
}

/// Makes the call. `routine`: the path of its method.
///
/// # Safety
/// A string, and messages of stubs.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_invoke(
    routine: *const c_char,
    request: *const Message,
    reply: *mut Message,
) -> c_int {
    // SAFETY: as the caller says.
    let (routine, request) = unsafe { (CStr::from_ptr(routine).to_string_lossy(), (*request).read()) };
    let Some((server, time)) =
        TARGETS.with(|targets| targets.borrow().last().map(|to| (to.server.clone(), to.time)))
    else {
        give_up("a stub was called outside of SERVER_CALL");
    };
    let (code, aborts) = match invoke(&server, time, &routine, request) {
        Ok(bytes) => {
            // SAFETY: as the caller says; what was there is nothing.
            unsafe { reply.write(Message::of(&bytes)) };
            return COMMITTED;
        }
        Err(failed) => failed,
    };
    TARGETS.with(|targets| {
        if let Some(target) = targets.borrow_mut().last_mut() {
            target.failed = Some((code, aborts));
        }
    });
    code
}

fn invoke(server: &str, time: Duration, routine: &str, request: Vec<u8>) -> Result<Vec<u8>, (c_int, Aborts)> {
    let path: PathAndQuery = routine
        .parse()
        .map_err(|_| (with_message(WRONG, format!("{routine:?} is no method's path")), Aborts::Nothing))?;
    let late = || Err(Status::deadline_exceeded("the answer did not come in time"));
    let through = async |tx: &Tx, request: Vec<u8>| {
        let to = tx.to(server).map_err(|error| Status::not_found(error.to_string()))?;
        tokio::time::timeout(time, send(to, path.clone(), request)).await.unwrap_or_else(|_| late())
    };
    let answer = innermost(|level| {
        let level = level?;
        Some(match level.call() {
            Some(call) => call.outward(async |tx| through(tx, request.clone()).await),
            None => {
                let tx = level.tx().expect("it has one of the two");
                runtime().block_on(through(tx, request.clone()))
            }
        })
    });
    let answer = match answer {
        Some(answer) => answer,
        // A transaction of its own, at the server.
        None => {
            let cluster = &place().map_err(|code| (code, Aborts::Nothing))?.cluster;
            let found = cluster.find(server).and_then(|node| cluster.channel(node));
            let channel = found.map_err(|error| (of_error(&error.into()), Aborts::Nothing))?;
            runtime().block_on(async {
                tokio::time::timeout(time, send(channel, path.clone(), request))
                    .await
                    .unwrap_or_else(|_| late())
            })
        }
    };
    answer.map_err(|status| of_call(&status))
}

async fn send<S>(to: S, path: PathAndQuery, request: Vec<u8>) -> Result<Vec<u8>, Status>
where
    S: GrpcService<Body>,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    let mut grpc = Grpc::new(to);
    grpc.ready().await.map_err(|error| {
        let error: Box<dyn StdError + Send + Sync> = error.into();
        Status::unavailable(error.to_string())
    })?;
    Ok(grpc.unary(Request::new(request), path, AsTheyAre).await?.into_inner())
}
