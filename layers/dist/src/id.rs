//! Who a transaction is, and who it is within its family.

use crate::commit::word::{Incarnation, Node, Outcome, Protocol};
use std::fmt;

/// The identity of a top-level transaction, on whatever node it works (Camelot's `tid_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid {
    /// The node that decides.
    pub coordinator: Node,
    /// In which of its lives: in another it knows nothing of what had not been decided.
    pub incarnation: Incarnation,
    /// Which of the programs that begin transactions there.
    pub client: u64,
    /// Its number among that program's.
    pub serial: u64,
    /// How it is to be committed.
    pub protocol: Protocol,
}

/// Bytes of an identity.
pub const TID_BYTES: usize = 33;

impl Tid {
    /// In this order they sort as their identities do.
    pub fn to_bytes(self) -> [u8; TID_BYTES] {
        let mut bytes = [0; TID_BYTES];
        let words = [self.coordinator.0, self.incarnation.0, self.client, self.serial];
        for (at, word) in words.into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_be_bytes());
        }
        bytes[32] = match self.protocol {
            Protocol::Blocking => 0,
            Protocol::Slots => 1,
        };
        bytes
    }

    /// None of what is not an identity.
    pub fn from_bytes(bytes: &[u8]) -> Option<Tid> {
        let bytes: &[u8; TID_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_be_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let protocol = match bytes[32] {
            0 => Protocol::Blocking,
            1 => Protocol::Slots,
            _ => return None,
        };
        let [coordinator, incarnation, client, serial] = [0, 1, 2, 3].map(word);
        let (coordinator, incarnation) = (Node(coordinator), Incarnation(incarnation));
        Some(Tid { coordinator, incarnation, client, serial, protocol })
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tid { coordinator, incarnation, client, serial, .. } = self;
        write!(f, "{}.{}.{client}.{serial}", coordinator.0, incarnation.0)
    }
}

/// A transaction within its family: the numbers of its ancestors below the top, and its own. That of the top is
/// empty. Calls have numbers as nested transactions have: each can be undone by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<u32>);

impl Path {
    /// A child.
    pub fn child(&self, number: u32) -> Path {
        let mut path = self.0.clone();
        path.push(number);
        Path(path)
    }

    /// Whether it is the other, or below it.
    pub fn is_within(&self, other: &Path) -> bool {
        self.0.starts_with(&other.0)
    }
}

/// How nested transactions and calls have ended, in that order: what a node must hear before the family calls it
/// again, or commits.
pub type News = Vec<(Path, Outcome)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_come_back_and_sort() {
        let tid = |serial, protocol| Tid {
            coordinator: Node(7),
            incarnation: Incarnation(u64::MAX),
            client: 3,
            serial,
            protocol,
        };
        for protocol in [Protocol::Blocking, Protocol::Slots] {
            let one = tid(255, protocol);
            assert_eq!(Tid::from_bytes(&one.to_bytes()), Some(one));
            assert!(one.to_bytes() < tid(256, protocol).to_bytes());
        }
        let corners = [0, 1, u64::MAX];
        for (a, b) in corners.into_iter().flat_map(|a| corners.map(|b| (a, b))) {
            for (client, serial) in corners.into_iter().flat_map(|a| corners.map(|b| (a, b))) {
                for protocol in [Protocol::Blocking, Protocol::Slots] {
                    let (coordinator, incarnation) = (Node(a), Incarnation(b));
                    let one = Tid { coordinator, incarnation, client, serial, protocol };
                    assert_eq!(Tid::from_bytes(&one.to_bytes()), Some(one));
                }
            }
        }
        assert_eq!(Tid::from_bytes(&[0; 32]), None);
        assert_eq!(Tid::from_bytes(&[9; 33]), None);
    }
}
