//! libmdbx, by its C interface: MDBX_WRITEMAP with MDBX_UTTERLY_NOSYNC for the Process class, its default for
//! Power. Integer keys.

use crate::records::{Database, Session};
use caliburn_bench::target::Failure;
use mdbx_sys::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::ptr;

struct Opened {
    env: *mut MDBX_env,
    records: MDBX_dbi,
}

// SAFETY: an environment may be used by several threads, each with transactions of its own.
unsafe impl Sync for Opened {}

fn done(code: c_int) -> Result<(), Failure> {
    if code == MDBX_SUCCESS {
        return Ok(());
    }
    // SAFETY: a string that stays.
    let text = unsafe { CStr::from_ptr(mdbx_strerror(code)) };
    Err(format!("libmdbx: {}", text.to_string_lossy()).into())
}

/// A database in a directory.
pub fn open(dir: &Path, forced: bool, bytes: usize) -> Result<Box<dyn Database>, Failure> {
    let path = CString::new(dir.as_os_str().as_encoded_bytes())?;
    let (mut env, mut tx, mut records) = (ptr::null_mut(), ptr::null_mut(), 0);
    let flags = if forced { 0 } else { MDBX_WRITEMAP | MDBX_UTTERLY_NOSYNC };
    // SAFETY: each call is given what the one before it made.
    unsafe {
        // It tells of its work otherwise.
        mdbx_setup_debug(MDBX_LOG_FATAL, MDBX_DBG_DONTCHANGE, None);
        done(mdbx_env_create(&mut env))?;
        let most = bytes as isize * 4 + (256 << 20);
        done(mdbx_env_set_geometry(env, -1, -1, most, 64 << 20, -1, -1))?;
        done(mdbx_env_open(env, path.as_ptr(), flags, 0o644))?;
        done(mdbx_txn_begin_ex(env, ptr::null_mut(), 0, &mut tx, ptr::null_mut()))?;
        let of_table = MDBX_INTEGERKEY | MDBX_CREATE;
        done(mdbx_dbi_open(tx, ptr::null(), of_table, &mut records))?;
        done(mdbx_txn_commit_ex(tx, ptr::null_mut()))?;
    }
    Ok(Box::new(Opened { env, records }))
}

impl Database for Opened {
    fn session(&self) -> Box<dyn Session + Send + '_> {
        Box::new(Own { opened: self, tx: ptr::null_mut() })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: no session is left.
        unsafe { mdbx_env_close_ex(self.env, true) };
    }
}

struct Own<'d> {
    opened: &'d Opened,
    tx: *mut MDBX_txn,
}

// SAFETY: a thread keeps it from begin to commit.
unsafe impl Send for Own<'_> {}

fn value(bytes: *const c_void, len: usize) -> MDBX_val {
    MDBX_val { iov_base: bytes.cast_mut(), iov_len: len }
}

impl Session for Own<'_> {
    fn begin(&mut self) -> Result<(), Failure> {
        // SAFETY: the environment is open.
        done(unsafe { mdbx_txn_begin_ex(self.opened.env, ptr::null_mut(), 0, &mut self.tx, ptr::null_mut()) })
    }

    fn get(&mut self, key: u64, target: &mut [u8]) -> Result<bool, Failure> {
        let (key, mut found) = (value((&raw const key).cast(), 8), value(ptr::null(), 0));
        // SAFETY: the transaction is open.
        match unsafe { mdbx_get(self.tx, self.opened.records, &key, &mut found) } {
            MDBX_NOTFOUND => Ok(false),
            code => {
                done(code)?;
                assert_eq!(found.iov_len, target.len());
                // SAFETY: the record stays while the transaction is open and it is not changed.
                let found = unsafe { std::slice::from_raw_parts(found.iov_base.cast::<u8>(), target.len()) };
                target.copy_from_slice(found);
                Ok(true)
            }
        }
    }

    fn put(&mut self, key: u64, bytes: &[u8]) -> Result<(), Failure> {
        let (key, mut new) = (value((&raw const key).cast(), 8), value(bytes.as_ptr().cast(), bytes.len()));
        // SAFETY: as above; it copies the value.
        done(unsafe { mdbx_put(self.tx, self.opened.records, &key, &mut new, 0 as _) })
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        let key = value((&raw const key).cast(), 8);
        // SAFETY: as above.
        done(unsafe { mdbx_del(self.tx, self.opened.records, &key, ptr::null()) })
    }

    fn scan(&mut self, from: u64, count: u64, target: &mut [u8]) -> Result<u64, Failure> {
        let (mut key, mut found) = (value((&raw const from).cast(), 8), value(ptr::null(), 0));
        let (mut cursor, mut records) = (ptr::null_mut(), 0);
        // SAFETY: as above; the cursor is closed before the transaction ends.
        unsafe {
            done(mdbx_cursor_open(self.tx, self.opened.records, &mut cursor))?;
            let mut code = mdbx_cursor_get(cursor, &mut key, &mut found, MDBX_SET_LOWERBOUND);
            while (code == MDBX_SUCCESS || code == MDBX_RESULT_TRUE) && records < count {
                let bytes = std::slice::from_raw_parts(found.iov_base.cast::<u8>(), found.iov_len);
                target.copy_from_slice(bytes);
                records += 1;
                code = mdbx_cursor_get(cursor, &mut key, &mut found, MDBX_NEXT);
            }
            mdbx_cursor_close(cursor);
            if code != MDBX_NOTFOUND && code != MDBX_RESULT_TRUE {
                done(code)?;
            }
        }
        Ok(records)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        // SAFETY: as above; it is open no more.
        done(unsafe { mdbx_txn_commit_ex(self.tx, ptr::null_mut()) })
    }
}

/// Its version.
pub fn version() -> String {
    // SAFETY: a constant.
    let version = unsafe { &mdbx_version };
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}
