//! Protection keys of the program's own, where the processor has them: what they forbid is not Caliburn's.

mod support;

use caliburn::{BeforeImages, Class, Mode, Policy, Region, Store, Tracking};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::set;

const PAGE: usize = 4096;
const PAGES: usize = 16;
/// Set where the processor has keys: that they are not found is a failure then.
const WANTED: &str = "CALIBURN_KEYS";
const CHILD: &str = "CALIBURN_KEYS_CHILD";
/// Faults that were the program's own, and where its key lies.
static OWN: AtomicUsize = AtomicUsize::new(0);
static KEYED: AtomicUsize = AtomicUsize::new(0);

/// A key that forbids this thread all use of what carries it.
fn new_key() -> Option<libc::c_long> {
    const DISABLE_ACCESS: libc::c_ulong = 1;
    // SAFETY: takes two integers; a failure allocates nothing.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, DISABLE_ACCESS) };
    if key < 0 {
        assert!(std::env::var_os(WANTED).is_none(), "no keys: {}", std::io::Error::last_os_error());
        eprintln!("not run: neither processor nor kernel have protection keys");
    }
    (key > 0).then_some(key)
}

/// Gives the page there a key; it stays protected as Caliburn has it: before a page is stored to, to be read only.
fn carry(at: usize, key: libc::c_long) {
    // SAFETY: the page is mapped, and is the test's.
    assert_eq!(unsafe { libc::syscall(libc::SYS_pkey_mprotect, at, PAGE, libc::PROT_READ, key) }, 0);
}

/// The program's handler: takes the key off.
extern "C" fn own(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const KEY: libc::c_int = 4;
    // SAFETY: the kernel hands over a valid structure, with an address for this signal.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    let keyed = KEYED.load(SeqCst);
    if code != KEY || address < keyed || address >= keyed + PAGE {
        // SAFETY: ends the process.
        unsafe { libc::_exit(78) };
    }
    OWN.fetch_add(1, SeqCst);
    carry(keyed, 0);
}

fn opened(path: &std::path::Path, before: BeforeImages) -> (Store, Region) {
    let mut options = support::options();
    options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(before);
    let store = options.open(path).unwrap();
    let region = store.segment_or_create("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
    (store, region)
}

/// A store to a page that carries the program's key comes to the program's handler, and when that has taken the key
/// off, to Caliburn's, once each; what was stored is committed.
fn stores(before: BeforeImages, key: libc::c_long) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path, before);
    for page in 0..PAGES {
        let (tx, at) = (store.begin(Mode::Restore).unwrap(), region.as_ptr().addr() + page * PAGE);
        KEYED.store(at, SeqCst);
        carry(at, key);
        let faults = OWN.load(SeqCst);
        set(&region, page * PAGE + 8, page as u64 + 1);
        assert_eq!(OWN.load(SeqCst), faults + 1);
        if page % 4 == 3 { tx.abort() } else { tx.commit(Class::Power).unwrap() }
    }
    drop(region);
    store.close().unwrap();
    support::clean(&path);
    let (_store, region) = opened(&path, before);
    for page in 0..PAGES {
        let expected = if page % 4 == 3 { 0 } else { page as u64 + 1 };
        assert_eq!(region.load::<u64>(page * PAGE + 8), expected);
    }
}

#[test]
fn a_key_of_the_programs_own_comes_to_its_own_handler() {
    let Some(key) = new_key() else { return };
    if std::env::var_os(CHILD).is_none() {
        // Signals are the process's.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_key_of_the_programs_own_comes_to_its_own_handler", "--nocapture"]);
        assert!(child.env(CHILD, "1").status().unwrap().success());
        return;
    }
    // SAFETY: the structure is plain integers; the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = own as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
    stores(BeforeImages::Eager, key);
    stores(BeforeImages::Lazy, key);
}
