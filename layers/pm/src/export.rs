//! What is shown to other systems as a disk.

use crate::blocks::Blocks;
use std::sync::Arc;

/// A segment of blocks under a name.
#[derive(Debug)]
pub struct Export {
    /// Under which name; an NBD client that asks for none gets it, too.
    pub name: String,
    /// The blocks. Who keeps them, too, can ask for their [counts](Blocks::counts) while they are served.
    pub blocks: Arc<Blocks>,
    /// Writes of up to a mebibyte happen wholly or not at all; others block by block.
    pub at_once: bool,
}
