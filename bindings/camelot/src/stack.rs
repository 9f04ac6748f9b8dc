//! The transactions of a thread: the innermost is the last. `frames.c` has a frame for each.

use crate::program::{application, runtime};
use crate::status::{ABORTED, COMMITTED, TIMEOUT, of_call, of_error, with_message};
use crate::tid::CTid;
use caliburn_dist::client::{Begun, Nested, Options, TIME_OUT, Tx};
use caliburn_dist::id::Tid;
use caliburn_dist::node::call::Call;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use tonic::Status;

/// One of them.
pub enum Level {
    /// An operation of this server, which its caller's transaction has called.
    Operation(&'static mut Call<'static, 'static>),
    /// A nested one within it.
    Within(Box<Call<'static, 'static>>),
    /// A top-level one of this process.
    Top(Begun),
    /// A nested one of that.
    Nested(Nested),
    /// That of the thread that has begun this one.
    Shared(Tx),
}

impl Level {
    /// What an operation does with its store; none for those that are not in one.
    pub fn call(&mut self) -> Option<&mut Call<'static, 'static>> {
        match self {
            Level::Operation(call) => Some(call),
            Level::Within(call) => Some(call),
            _ => None,
        }
    }

    /// What calls servers; none for those in an operation.
    pub fn tx(&self) -> Option<&Tx> {
        match self {
            Level::Top(begun) => Some(begun.tx()),
            Level::Nested(nested) => Some(nested.tx()),
            Level::Shared(tx) => Some(tx),
            Level::Operation(_) | Level::Within(_) => None,
        }
    }

    fn tid(&self) -> Tid {
        match (self, self.tx()) {
            (Level::Operation(call), _) => call.tid(),
            (Level::Within(call), _) => call.tid(),
            (_, Some(tx)) => tx.tid(),
            (_, None) => unreachable!("it has one of the two"),
        }
    }
}

thread_local! {
    static STACK: RefCell<Vec<Level>> = const { RefCell::new(Vec::new()) };
}

/// With the innermost transaction of this thread.
pub fn innermost<T>(act: impl FnOnce(Option<&mut Level>) -> T) -> T {
    STACK.with(|stack| act(stack.borrow_mut().last_mut()))
}

/// Runs something as an operation. Whoever it calls finds the call as the innermost transaction of this thread.
pub fn operate<T>(call: &mut Call<'_, '_>, body: impl FnOnce() -> T) -> T {
    /// Takes the level away, also in a panic.
    struct Leaves(usize);
    impl Drop for Leaves {
        fn drop(&mut self) {
            STACK.with(|stack| stack.borrow_mut().truncate(self.0));
        }
    }
    // SAFETY: it leaves the stack before this function returns, and nothing else keeps it: levels are lent to
    // functions of this crate only, and what is nested in it is above it on the stack.
    let call: &'static mut Call<'static, 'static> = unsafe { std::mem::transmute(call) };
    let depth = STACK.with(|stack| {
        stack.borrow_mut().push(Level::Operation(call));
        stack.borrow().len() - 1
    });
    let _leaves = Leaves(depth);
    body()
}

fn push(level: Level) -> c_int {
    STACK.with(|stack| stack.borrow_mut().push(level));
    COMMITTED
}

/// Begins one: `kind` as in the header, top-level if there is none, or if that is asked for.
#[unsafe(no_mangle)]
extern "C" fn camelot_begin(kind: c_int, protocol: c_int) -> c_int {
    const TOP: c_int = 1;
    let nested = innermost(|level| {
        let level = level.filter(|_| kind != TOP)?;
        Some(match level.call() {
            Some(call) => call.begin_nested().map(|child| Level::Within(Box::new(child))),
            None => Ok(Level::Nested(level.tx().expect("it has one of the two").begin_nested(TIME_OUT))),
        })
    });
    match nested {
        Some(Ok(level)) => push(level),
        Some(Err(status)) => of_call(&status).0,
        None => match application() {
            Err(status) => status,
            Ok(application) => {
                let options = Options { blocking: protocol == 0, ..Options::default() };
                // What its operation holds a thread for must not wait for one.
                let within = innermost(|level| level.is_some_and(|level| level.call().is_some()));
                match runtime().block_on(application.begin(options)) {
                    Ok(begun) => push(Level::Top(if within { begun.without_waiting() } else { begun })),
                    Err(error) => of_error(&error),
                }
            }
        },
    }
}

/// Ends the innermost.
#[unsafe(no_mangle)]
extern "C" fn camelot_end(commit: c_int) -> c_int {
    let commit = commit != 0;
    let ended = STACK.with(|stack| stack.borrow_mut().pop());
    match ended {
        Some(Level::Within(child)) => {
            let ended = innermost(|level| match level.and_then(Level::call) {
                Some(parent) => parent.end_nested(*child, commit),
                None => Err(Status::internal("its parent is gone")),
            });
            ended.map_or_else(|status| with_message(ABORTED, status.message()), |()| COMMITTED)
        }
        Some(Level::Top(begun)) => runtime().block_on(async {
            match commit {
                true if begun.is_overdue() => {
                    begun.abort().await;
                    with_message(TIMEOUT, "the transaction has taken more than 60 s")
                }
                true => begun.commit().await.map_or_else(|error| of_error(&error), |_| COMMITTED),
                false => {
                    begun.abort().await;
                    COMMITTED
                }
            }
        }),
        Some(Level::Nested(nested)) => {
            let _within = runtime().enter();
            match commit {
                true => nested.commit().map_or_else(|error| of_error(&error), |()| COMMITTED),
                // Within the runtime: those that wait for its locks are told.
                false => {
                    drop(nested);
                    COMMITTED
                }
            }
        }
        Some(Level::Operation(_) | Level::Shared(_)) | None => {
            crate::program::give_up("a transaction was ended that has not begun")
        }
    }
}

/// Whether the innermost transaction is in an operation of this server.
#[unsafe(no_mangle)]
extern "C" fn camelot_in_operation() -> c_int {
    innermost(|level| c_int::from(level.is_some_and(|level| level.call().is_some())))
}

/// What a thread is to go on with.
enum Context {
    Level(Box<Level>),
    /// A top-level transaction of its own.
    Begins,
}

/// What a thread beside this one goes on with: a transaction of its own, or this one's. Nothing if there is none.
#[unsafe(no_mangle)]
extern "C" fn camelot_fork(transaction: c_int) -> *mut c_void {
    let level = innermost(|level| {
        let tx = level?.tx()?;
        Some(match transaction != 0 {
            true => Level::Nested(tx.begin_nested(TIME_OUT)),
            false => Level::Shared(tx.clone()),
        })
    });
    let context = match (level, transaction != 0) {
        (Some(level), _) => Context::Level(Box::new(level)),
        (None, true) => Context::Begins,
        // No transaction.
        (None, false) => return std::ptr::null_mut(),
    };
    Box::into_raw(Box::new(context)).cast()
}

/// Goes on with it.
///
/// # Safety
/// It is of `camelot_fork`, and nobody has it any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_adopt(context: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    match *unsafe { Box::from_raw(context.cast::<Context>()) } {
        Context::Level(level) => push(*level),
        Context::Begins => camelot_begin(0, 0),
    }
}

/// A thread ends that has gone on with another one's transaction.
#[unsafe(no_mangle)]
extern "C" fn camelot_disown() {
    STACK.with(|stack| {
        let last = stack.borrow_mut().pop_if(|level| matches!(level, Level::Shared(_)));
        drop(last);
    });
}

/// See the header.
#[unsafe(no_mangle)]
extern "C" fn camelot_this_tid() -> CTid {
    innermost(|level| level.map_or(CTid::NONE, |level| level.tid().into()))
}
