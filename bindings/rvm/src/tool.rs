//! RVM's library as far as the tools need it: what makes a log, and what makes a heap. Each may be done once
//! per process, which has one life of RVM.

// What the library is written upon.
use caliburn_c as _;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_ulong};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

unsafe extern "C" {
    fn rvm_tool_make_log(log: *const c_char, length: c_ulong) -> c_int;
    fn rvm_tool_zap(
        log: *const c_char,
        data: *const c_char,
        length: c_ulong,
        start: c_ulong,
        static_length: c_ulong,
        heap_length: c_ulong,
        lists: c_ulong,
        chunk: c_ulong,
    ) -> c_int;
    fn rvm_return(code: c_int) -> *const c_char;
}

/// Where the store of a log is.
pub fn store_of(log: &Path) -> std::path::PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(OsStr::new(".caliburn"));
    name.into()
}

/// A heap to be made.
#[derive(Debug, Clone, Copy)]
pub struct Heap {
    /// Bytes of the file.
    pub length: u64,
    /// Address of the heap.
    pub start: u64,
    /// Bytes of the heap.
    pub heap_length: u64,
    /// Bytes of the static region behind it.
    pub static_length: u64,
    /// Free lists.
    pub lists: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
}

/// Makes a log of so many bytes, whose name must be free.
///
/// # Errors
/// The name of RVM's code.
pub fn make_log(log: &Path, length: u64) -> Result<(), String> {
    let name = string(log)?;
    // SAFETY: the string ends with a zero byte and is only read.
    told(unsafe { rvm_tool_make_log(name.as_ptr(), length) })
}

/// Makes a file a segment with a heap and a static region, and says so on standard output.
///
/// # Errors
/// The name of RVM's code, or the heap's number.
pub fn zap(log: &Path, data: &Path, heap: &Heap) -> Result<(), String> {
    let (log, data) = (string(log)?, string(data)?);
    let Heap { length, start, heap_length, static_length, lists, chunk } = *heap;
    // SAFETY: as above; the segment is mapped where nothing is, or the call fails.
    told(unsafe {
        rvm_tool_zap(log.as_ptr(), data.as_ptr(), length, start, static_length, heap_length, lists, chunk)
    })
}

fn string(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{path:?} has a zero byte"))
}

fn told(code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code if code < 0 => Err(format!("error {code} of the heap's (rds.h)")),
        // SAFETY: the names are static strings.
        code => Err(unsafe { CStr::from_ptr(rvm_return(code)) }.to_string_lossy().into_owned()),
    }
}
