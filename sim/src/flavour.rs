//! Kinds of stores.

use crate::media::Hardware;
use caliburn::{BeforeImages, BufferPool, Class, Guard, Options, Policy, Replacement, Tracking};

/// Kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// With the redo policy.
    Redo,
    /// With the undo policy, in the page cache.
    Undo,
    /// With the undo policy, in persistent memory.
    Persistent,
    /// With the redo policy; the segment is a file that was adopted, and only declared bytes reach it.
    Adopted,
    /// With the redo policy, and two copies of the log.
    Duplex,
    /// With the shadow policy.
    Shadow,
    /// The same, by programs that declare nothing: their stores are caught, and what pages held is kept at once.
    Caught,
    /// The same; pages wait in memory, and are stolen when they are more than three.
    Lazy,
    /// The same, in a buffer pool of as many frames as half of the segment has pages when it is new.
    Pool,
    /// With the redo policy, by programs that declare nothing: their stores are found when they commit.
    Found,
    /// With the redo policy; there is memory for two pages, and transactions outgrow that and the log.
    Large,
}

impl Flavour {
    /// How it recovers.
    pub fn policy(self) -> Policy {
        match self {
            Flavour::Redo | Flavour::Adopted | Flavour::Duplex | Flavour::Found | Flavour::Large => {
                Policy::Redo
            }
            Flavour::Undo | Flavour::Persistent => Policy::Undo,
            Flavour::Shadow | Flavour::Caught | Flavour::Lazy | Flavour::Pool => Policy::Shadow,
        }
    }

    /// Whether what its segments have and was not forced is in its log, or what it replaced is.
    pub fn logs_all(self) -> bool {
        !matches!(self, Flavour::Undo | Flavour::Persistent | Flavour::Adopted)
    }

    /// Files whose inodes tell whether the memory of a store survived: one of them is enough.
    pub fn keepers(self) -> &'static [&'static str] {
        if self.policy() == Policy::Undo { &["/undo", ".segment"] } else { &["/stage"] }
    }

    /// Whether memory that was stored to may be found after a power cut.
    pub fn steals(self) -> bool {
        self.policy() == Policy::Shadow
    }

    /// Whether a transaction has savepoints, branches, and can be prepared.
    pub fn has_parts(self) -> bool {
        self.policy() != Policy::Shadow && self != Flavour::Found
    }

    /// How programs change memory.
    pub fn tracking(self) -> Tracking {
        match self {
            Flavour::Caught | Flavour::Lazy | Flavour::Pool => Tracking::Fault,
            Flavour::Found => Tracking::Scan,
            _ => Tracking::Declared,
        }
    }

    /// Says so in options.
    pub fn choose(self, options: &mut Options) {
        options.policy(self.policy()).tracking(self.tracking()).before_images(self.before_images());
        options.declared_only(self == Flavour::Adopted).require(self.reach());
        if self == Flavour::Large {
            // Pages that are guarded cannot be moved.
            options.guard(Guard::Off).overflow(true);
        }
        if let Some(pool) = self.pool() {
            options.buffer_pool(pool);
        }
    }

    /// Bytes of private pages, and of old values, that it may keep.
    pub fn memory_budget(self) -> u64 {
        match self {
            Flavour::Lazy => 3 * 4096,
            Flavour::Large => 2 * 4096,
            _ => 1 << 30,
        }
    }

    /// When what pages held is kept.
    pub fn before_images(self) -> BeforeImages {
        if self == Flavour::Lazy { BeforeImages::Adaptive } else { BeforeImages::Eager }
    }

    /// The pool that it has.
    pub fn pool(self) -> Option<BufferPool> {
        let pool = BufferPool { bytes: 8 * 4096, page_bytes: 4096, replacement: Replacement::Random };
        (self == Flavour::Pool).then_some(pool)
    }

    /// Whether every commit is forced.
    pub fn forces_all(self) -> bool {
        self == Flavour::Persistent || self.policy() == Policy::Shadow
    }

    /// The machine for it.
    pub fn hardware(self) -> Hardware {
        Hardware { persistent: self == Flavour::Persistent, ..Hardware::default() }
    }

    /// The most that a commit survives.
    pub fn reach(self) -> Class {
        if self == Flavour::Undo { Class::Process } else { Class::Power }
    }
}
