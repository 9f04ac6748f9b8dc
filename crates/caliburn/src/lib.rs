//! x
pub use caliburn_engine::*;
