//! Rivals with a C interface: what `src/c/rival.h` says.

use crate::records::{Database, Session};
use caliburn_bench::target::Failure;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

/// The functions of a rival, as in the header.
#[repr(C)]
pub struct Rival {
    name: *const c_char,
    version: unsafe extern "C" fn() -> *const c_char,
    open: unsafe extern "C" fn(*const c_char, c_int, u64) -> *mut c_void,
    session: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    begin: unsafe extern "C" fn(*mut c_void) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> c_int,
    declare: Option<unsafe extern "C" fn(*mut c_void, u64, usize) -> *mut c_void>,
    put: Option<unsafe extern "C" fn(*mut c_void, u64, *const c_void, usize) -> c_int>,
    take: Option<unsafe extern "C" fn(*mut c_void, u64) -> c_int>,
    scan: Option<unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void, usize) -> i64>,
    commit: unsafe extern "C" fn(*mut c_void) -> c_int,
    end: unsafe extern "C" fn(*mut c_void),
    close: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: the table is constant.
unsafe impl Sync for Rival {}

unsafe extern "C" {
    static lmdb: Rival;
    static sqlite: Rival;
    static rocksdb: Rival;
    static berkeley: Rival;
    static pmdk: Rival;
}

/// All of them.
pub fn all() -> [&'static Rival; 5] {
    // SAFETY: the C files define them, and nothing changes them.
    unsafe { [&lmdb, &sqlite, &rocksdb, &berkeley, &pmdk] }
}

impl Rival {
    /// Its name.
    pub fn name(&self) -> &'static str {
        // SAFETY: a string literal.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or("?")
    }

    /// Its version.
    pub fn version(&self) -> String {
        // SAFETY: a string that stays.
        unsafe { CStr::from_ptr((self.version)()) }.to_string_lossy().into_owned()
    }

    /// A database in a directory.
    pub fn open(&'static self, dir: &Path, forced: bool, bytes: usize) -> Result<Box<dyn Database>, Failure> {
        let path = CString::new(dir.as_os_str().as_encoded_bytes())?;
        // SAFETY: as the header says.
        let database = unsafe { (self.open)(path.as_ptr(), c_int::from(forced), bytes as u64) };
        if database.is_null() {
            return Err(format!("{}: no database can be opened in {}", self.name(), dir.display()).into());
        }
        Ok(Box::new(Opened { rival: self, database }))
    }
}

struct Opened {
    rival: &'static Rival,
    database: *mut c_void,
}

// SAFETY: the header says that only sessions are of one thread.
unsafe impl Sync for Opened {}

impl Database for Opened {
    fn session(&self) -> Box<dyn Session + Send + '_> {
        // SAFETY: the database is open.
        let session = unsafe { (self.rival.session)(self.database) };
        assert!(!session.is_null(), "{}: no session", self.rival.name());
        Box::new(Own { opened: self, session })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: sessions borrow it, so none is left.
        unsafe { (self.rival.close)(self.database) };
    }
}

struct Own<'d> {
    opened: &'d Opened,
    session: *mut c_void,
}

// SAFETY: one thread at a time has it.
unsafe impl Send for Own<'_> {}

impl Own<'_> {
    fn done(&self, what: &str, code: c_int) -> Result<(), Failure> {
        if code == 1 { Ok(()) } else { Err(format!("{}: {what} failed", self.opened.rival.name()).into()) }
    }
}

impl Session for Own<'_> {
    fn begin(&mut self) -> Result<(), Failure> {
        // SAFETY: the session is there until it is dropped.
        self.done("begin", unsafe { (self.opened.rival.begin)(self.session) })
    }

    fn get(&mut self, key: u64, value: &mut [u8]) -> Result<bool, Failure> {
        // SAFETY: as above; the value has room.
        let code =
            unsafe { (self.opened.rival.get)(self.session, key, value.as_mut_ptr().cast(), value.len()) };
        self.done("get", c_int::from(code >= 0)).map(|()| code == 1)
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Failure> {
        let put = self.opened.rival.put.ok_or("its records are memory")?;
        // SAFETY: as above.
        self.done("put", unsafe { put(self.session, key, value.as_ptr().cast(), value.len()) })
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        let take = self.opened.rival.take.ok_or("its records are memory")?;
        // SAFETY: as above.
        self.done("remove", unsafe { take(self.session, key) })
    }

    fn scan(&mut self, from: u64, count: u64, value: &mut [u8]) -> Result<u64, Failure> {
        let scan = self.opened.rival.scan.ok_or("its records are memory")?;
        // SAFETY: as above; the value has room.
        let found = unsafe { scan(self.session, from, count, value.as_mut_ptr().cast(), value.len()) };
        self.done("scan", c_int::from(found >= 0)).map(|()| found as u64)
    }

    fn declare(&mut self, key: u64, len: usize) -> Option<Result<*mut u8, Failure>> {
        let declare = self.opened.rival.declare?;
        // SAFETY: as above.
        let at: *mut u8 = unsafe { declare(self.session, key, len) }.cast();
        Some(self.done("declare", c_int::from(!at.is_null())).map(|()| at))
    }

    fn commit(&mut self) -> Result<(), Failure> {
        // SAFETY: as above.
        self.done("commit", unsafe { (self.opened.rival.commit)(self.session) })
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        // SAFETY: it is used no more.
        unsafe { (self.opened.rival.end)(self.session) };
    }
}
