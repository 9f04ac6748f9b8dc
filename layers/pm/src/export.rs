//! What is shown to other systems as a disk.

use crate::blocks::Blocks;

/// A segment of blocks under a name.
#[derive(Debug)]
pub struct Export {
    /// Under which name; an NBD client that asks for none gets it, too.
    pub name: String,
    /// The blocks.
    pub blocks: Blocks,
    /// Writes of up to a mebibyte happen wholly or not at all; others block by block.
    pub at_once: bool,
}
