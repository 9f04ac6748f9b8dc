//! Transactions that were prepared and are to be decided.

use crate::error::{Fault, call};
use crate::store::{caliburn_store, open};
use caliburn_c_common::text;
use std::ffi::{c_int, c_void};

/// An undecided transaction.
#[repr(C)]
pub struct caliburn_prepared {
    /// Its global identifier.
    pub global_id: *const c_void,
    /// Bytes of it.
    pub global_id_len: usize,
    /// When it was prepared, in nanoseconds since 1970.
    pub time: u64,
    /// Whether an earlier process prepared it: 0 or 1.
    pub recovered: c_int,
}

/// Called with an undecided transaction, valid until it returns; what is not 0 ends the walk.
pub type caliburn_prepared_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, prepared: *const caliburn_prepared) -> c_int>;

/// Calls a function with each undecided transaction of the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_prepared_list(
    store: *const caliburn_store,
    visit: caliburn_prepared_fn,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visit = visit.ok_or_else(|| Fault::invalid("visit is a null pointer"))?;
        for prepared in open(store)?.store.prepared() {
            let told = caliburn_prepared {
                global_id: prepared.global_id.as_ptr().cast(),
                global_id_len: prepared.global_id.len(),
                time: prepared.time,
                recovered: c_int::from(prepared.recovered),
            };
            // SAFETY: the function is the caller's word (convention 2).
            if unsafe { visit(context, &told) } != 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Commits an undecided transaction.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_commit_prepared(
    store: *mut caliburn_store,
    global_id: *const c_void,
    len: usize,
) -> c_int {
    call(|| Ok(open(store)?.store.commit_prepared(text::bytes("global_id", global_id.cast(), len)?)?))
}

/// Aborts an undecided transaction.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_abort_prepared(
    store: *mut caliburn_store,
    global_id: *const c_void,
    len: usize,
) -> c_int {
    call(|| Ok(open(store)?.store.abort_prepared(text::bytes("global_id", global_id.cast(), len)?)?))
}
