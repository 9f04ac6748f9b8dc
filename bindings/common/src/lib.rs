//! What Caliburn's C interfaces share. The one contract that all `unsafe` here relies on is the one at the head of
//! their headers: what a C program passes is valid memory of the size and type that the function's own words say,
//! for as long as they say.

pub mod handle;
pub mod message;
pub mod text;

/// An argument that cannot be: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);
