//! What the whole process has: threads for the network, the cluster, and the node that coordinates what it begins.

use crate::status::{NOT_RUNNING, with_message};
use caliburn_dist::client::Application;
use caliburn_dist::cluster::Cluster;
use caliburn_dist::environment::{Environment, EnvironmentError, Follows};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Where a process is in a cluster.
pub struct Place {
    pub cluster: Cluster,
    /// Who coordinates what is begun here: none if Camelot does not run.
    pub application: Option<Application>,
    /// Kept for as long as the process runs.
    pub _names: Option<Follows>,
}

static PLACE: OnceLock<Place> = OnceLock::new();
static STARTS: AtomicBool = AtomicBool::new(false);

/// Threads for the network.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        ignore_pipes();
        caliburn_os::descriptors::occupy();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap_or_else(|error| give_up(&format!("no threads for the network: {error}")))
    })
}

/// Who writes to a peer that is gone is told by an error, as programs in Rust are, and not killed; unless the
/// program has its own way.
fn ignore_pipes() {
    // SAFETY: both are asked for and set as the system says; the structure is plain memory.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_DFL
        {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
    }
}

/// Misuse, and what leaves nothing to do.
pub fn give_up(why: &str) -> ! {
    eprintln!("camelot: {why}");
    std::process::abort()
}

/// Where this process is. It must have been told.
///
/// # Errors
/// Its status, if Camelot was not initialized.
pub fn place() -> Result<&'static Place, c_int> {
    PLACE.get().ok_or_else(|| {
        with_message(NOT_RUNNING, "Camlib_InitializeAppl was not called; or the server does not serve yet")
    })
}

/// Who coordinates what is begun here.
///
/// # Errors
/// Its status, if Camelot does not run here.
pub fn application() -> Result<&'static Application, c_int> {
    // A server is there for itself some moments after it serves others.
    let until = Instant::now() + Duration::from_secs(10);
    while STARTS.load(Ordering::Acquire) && PLACE.get().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    let application = place()?.application.as_ref();
    application
        .ok_or_else(|| with_message(NOT_RUNNING, "Camelot does not run here: there are no transactions"))
}

/// A server begins to serve: soon it can be called by itself.
pub fn starts() {
    STARTS.store(true, Ordering::Release);
}

/// Where this process is from now on.
pub fn settle(place: Place) {
    if PLACE.set(place).is_err() {
        give_up("it was initialized twice");
    }
}

/// See the header.
///
/// # Safety
/// The name is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Camlib_InitializeAppl(name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    match runtime().block_on(find()) {
        Ok(place) => {
            let runs = place.application.is_some();
            settle(place);
            c_int::from(runs)
        }
        Err(error) => give_up(&format!("{name}: {error}")),
    }
}

/// The cluster, and a node of it, as the environment says.
async fn find() -> Result<Place, EnvironmentError> {
    let environment = Environment::read_program()?;
    let (cluster, names) = environment.found().await?;
    let application = match Application::attach(cluster.clone(), environment.number).await {
        Ok(application) => Some(application),
        Err(error) => {
            with_message(NOT_RUNNING, error.to_string());
            None
        }
    };
    Ok(Place { cluster, application, _names: Some(names) })
}
