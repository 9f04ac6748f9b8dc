//! What a node knows of its keeper, and by which it sees that the keeper has forgotten something.
//!
//! ```text
//!   identity    of the cluster, random, written when the cluster is made: another one, or none, is another keeper
//!   etcd        what etcd calls its own cluster: another one after most ways to restore it
//!   revision    what etcd has written in all; it never goes back
//!   mark        how often this node has put a slot; nobody else adds to it
//! ```
//!
//! A revision that went back can grow again by what others write. The mark can't: each put of a slot compares it, in
//! the same step, with what this node knows to be there, and adds one. So a node notices that a put of its own is
//! lost, whatever came since, before it puts another.

/// The random name of a cluster's keeper.
pub type Identity = [u8; 16];

/// What a node knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// Which cluster; nothing before the first time.
    pub identity: Option<Identity>,
    /// Etcd's name of itself.
    pub etcd: u64,
    /// Etcd's revision.
    pub revision: u64,
    /// How many puts of this node the keeper has.
    pub mark: u64,
}

/// Why a node does not rely on its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Doubt {
    /// Nothing is there.
    #[error("etcd has nothing of this cluster: it has lost its data, or another one is in its place")]
    Empty,
    /// Another cluster.
    #[error(
        "etcd has another cluster of this name: the identity of the cluster is not the one that this node knows"
    )]
    Another,
    /// Etcd was made again.
    #[error("etcd was made again: it calls itself by another number than this node knows")]
    MadeAgain,
    /// An earlier state.
    #[error(
        "etcd has an earlier state: it lacks what this node has written or seen there, as after a backup is restored"
    )]
    Earlier,
}

/// How a look at the keeper has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// It has what the node knows; and what it knows now.
    Well(Known),
    /// The node lives another life somewhere.
    Fenced,
    /// It has forgotten something.
    Forgot(Doubt),
}

impl Known {
    /// Learns what an answer says.
    pub fn learn(&mut self, more: &Known) {
        self.identity = self.identity.or(more.identity);
        self.etcd = if self.etcd == 0 { more.etcd } else { self.etcd };
        self.revision = self.revision.max(more.revision);
        self.mark = self.mark.max(more.mark);
    }

    /// Why what a keeper has is not what the node knows, if it is not. `epoch`: the life that it has of the node,
    /// and the one that the node knows of.
    pub fn doubt(&self, found: &Known, epoch: (u64, u64)) -> Option<Doubt> {
        self.identity?;
        let earlier = found.mark < self.mark || found.revision < self.revision || epoch.0 < epoch.1;
        match found.identity {
            None => Some(Doubt::Empty),
            identity if identity != self.identity => Some(Doubt::Another),
            _ if self.etcd != 0 && found.etcd != self.etcd => Some(Doubt::MadeAgain),
            _ if earlier => Some(Doubt::Earlier),
            _ => None,
        }
    }
}
