//! Stubs of an interface, as MIG made them for Camelot (section 3.3): of declarations of routines, functions that
//! call them, a dispatcher that is called, and the same interface for programs in other languages (`.proto`).
//!
//! ```text
//!   subsystem small_record_array;
//!   #define SIZE_OF_SMALL 32
//!   type small_record_t = array[SIZE_OF_SMALL] of (MSG_TYPE_UNSTRUCTURED, 8);
//!   import "small_record.h";
//!   camelotroutine record_write(port : port_t; tid : tid_t; index : int; value : small_record_t);
//! ```
//!
//! | type | in C | as a message |
//! |---|---|---|
//! | `int`, `short`, `char`, `unsigned`, `boolean_t`, `long`, `int64_t` | the same | int64 |
//! | `sint64` | `int64_t` | sint64 |
//! | `double` | the same | double |
//! | `array[N] of ...` of unstructured bytes, or `struct[N] of ...` | a type of that name, by value: declared by what is imported | bytes |
//! | `c_string[N]` | `char *`, fewer than N bytes | string |
//!
//! `in`, `out` and `inout` stand before an argument's name; an `out` is a pointer in C. `serverprefix x;` and
//! `userprefix x;` keep apart what a program both serves and calls. `service a.b.C;`: the routines are methods of a
//! server that is not in C, whose answers have no return code.

mod emit;
mod parse;

pub use parse::{ParseError, parse};

/// The service that all routines are methods of.
pub const SERVICE: &str = "caliburn.camelot.v1.Server";

/// How an argument travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A whole number; its type in C.
    Number(String),
    /// One that travels as sint64: where a service that is not in C has it so.
    Zigzag,
    /// A `double`.
    Real,
    /// So many bytes, as a value of a type of this name.
    Bytes(String, u64),
    /// A string of fewer than so many bytes.
    Text(u64),
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// How it travels.
    pub kind: Kind,
    /// To the server.
    pub goes: bool,
    /// Back.
    pub comes: bool,
}

/// A routine, without the system's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routine {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// What the files are called.
    pub subsystem: String,
    /// Headers that declare its types.
    pub imports: Vec<String>,
    /// Before the names of what is called, and of what is served.
    pub user_prefix: String,
    /// Likewise.
    pub server_prefix: String,
    /// A service that is not in C.
    pub service: Option<String>,
    /// What it can do.
    pub routines: Vec<Routine>,
}

/// A file that was made: its name, and what is in it.
pub type Made = (String, String);

impl Interface {
    /// The header, what calls, what is called, and the interface for others.
    pub fn files(&self) -> Vec<Made> {
        let mut files = vec![
            (format!("{}.h", self.subsystem), self.header()),
            (format!("{}_user.c", self.subsystem), self.user()),
        ];
        if self.service.is_none() {
            files.push((format!("{}_server.c", self.subsystem), self.server()));
            files.push((format!("{}.proto", self.subsystem), self.proto()));
        }
        files
    }
}
