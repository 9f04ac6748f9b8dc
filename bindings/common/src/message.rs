//! What a thread's last call that failed had to say.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Leaves a message for [`last`].
#[cold]
pub fn leave(text: &str) {
    let text = CString::new(text.replace('\0', "\u{FFFD}")).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The message, valid until the thread leaves another one; empty before the first.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What a panic had to say.
pub fn told(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}
