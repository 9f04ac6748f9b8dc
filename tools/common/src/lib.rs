//! What the commands of Caliburn share.

pub mod output;
pub mod random;
pub mod record;
pub mod size;
pub mod text;
pub mod told;

/// What a subcommand may fail with.
pub type Failure = Box<dyn std::error::Error>;
