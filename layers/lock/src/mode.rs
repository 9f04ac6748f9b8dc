//! Modes: in what way something is locked, and which ways go together.

use std::fmt::Debug;

/// A mode of locking. A program may have its own, of what its operations allow beside each other (Camelot, section
/// 4.2; Schwarz and Spector).
pub trait Mode: Copy + Eq + Debug + Send + Sync + 'static {
    /// All modes.
    const ALL: &'static [Self];

    /// Whether two transactions may hold the lock, one in this mode and one in the other. The same asked the other
    /// way.
    fn goes_with(self, other: Self) -> bool;

    /// The weakest mode that is as strong as both: what a transaction holds that has asked for the one and the
    /// other.
    fn and(self, other: Self) -> Self;
}

/// What is wrong with a table of modes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the table of modes is wrong: {0}")]
pub struct WrongModes(pub String);

/// Whether the modes of a type say the same from either side, and what stands for two is as strong as each.
///
/// # Errors
/// With the first two modes that do not.
pub fn check<M: Mode>() -> Result<(), WrongModes> {
    let pairs = || M::ALL.iter().flat_map(|a| M::ALL.iter().map(|b| (*a, *b)));
    for (a, b) in pairs() {
        if a.goes_with(b) != b.goes_with(a) {
            let (goes, not) = if a.goes_with(b) { (a, b) } else { (b, a) };
            return Err(WrongModes(format!(
                "{goes:?} goes with {not:?}, and {not:?} does not go with {goes:?}"
            )));
        }
        let both = a.and(b);
        if both != b.and(a) || !M::ALL.contains(&both) {
            return Err(WrongModes(format!(
                "{a:?} and {b:?} are another mode than {b:?} and {a:?}, or none"
            )));
        }
        if a.and(a) != a {
            return Err(WrongModes(format!("{a:?} twice is {:?}", a.and(a))));
        }
        // A parent comes to hold both while others hold what goes with each.
        let each = |c: &M| a.goes_with(*c) && b.goes_with(*c);
        if let Some(c) = M::ALL.iter().find(|c| both.goes_with(**c) != each(c)) {
            let (does, do_not) =
                if each(c) { ("does not go", "each of them does") } else { ("goes", "one of them does not") };
            return Err(WrongModes(format!(
                "{a:?} and {b:?} are {both:?}, which {does} with {c:?}, and {do_not}"
            )));
        }
    }
    Ok(())
}

/// The usual modes: of a thing, and of the things in it (Gray, Lorie, Putzolu, Traiger 1976).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standard {
    /// Some of what is in it is read, with locks of its own.
    IntentShared,
    /// Some of what is in it is changed, with locks of its own.
    IntentExclusive,
    /// All of it is read.
    Shared,
    /// All of it is read, and some of what is in it is changed.
    SharedIntentExclusive,
    /// All of it is changed.
    Exclusive,
}

impl Mode for Standard {
    const ALL: &'static [Standard] = &[
        Standard::IntentShared,
        Standard::IntentExclusive,
        Standard::Shared,
        Standard::SharedIntentExclusive,
        Standard::Exclusive,
    ];

    #[inline]
    fn goes_with(self, other: Standard) -> bool {
        use Standard::*;
        match (self.min(other), self.max(other)) {
            (IntentShared, Exclusive) => false,
            (IntentShared, _) | (IntentExclusive, IntentExclusive) | (Shared, Shared) => true,
            _ => false,
        }
    }

    #[inline]
    fn and(self, other: Standard) -> Standard {
        use Standard::*;
        match (self.min(other), self.max(other)) {
            (IntentExclusive, Shared) => SharedIntentExclusive,
            (_, stronger) => stronger,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standard::*;

    #[test]
    fn the_usual_modes_are_sound() {
        check::<Standard>().unwrap();
        assert!(IntentExclusive.goes_with(IntentShared) && !IntentExclusive.goes_with(Shared));
        assert_eq!(Shared.and(IntentExclusive), SharedIntentExclusive);
        assert!(!SharedIntentExclusive.goes_with(SharedIntentExclusive));
    }

    #[test]
    fn tables_that_are_not_symmetric_are_told() {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        struct Odd(bool);
        impl Mode for Odd {
            const ALL: &'static [Odd] = &[Odd(false), Odd(true)];
            fn goes_with(self, other: Odd) -> bool {
                self.0 && !other.0
            }
            fn and(self, other: Odd) -> Odd {
                Odd(self.0 | other.0)
            }
        }
        let WrongModes(text) = check::<Odd>().unwrap_err();
        assert_eq!(text, "Odd(true) goes with Odd(false), and Odd(false) does not go with Odd(true)");
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        struct Weak(bool);
        impl Mode for Weak {
            const ALL: &'static [Weak] = &[Weak(false), Weak(true)];
            fn goes_with(self, other: Weak) -> bool {
                !self.0 && !other.0
            }
            fn and(self, other: Weak) -> Weak {
                Weak(self.0 & other.0)
            }
        }
        let WrongModes(text) = check::<Weak>().unwrap_err();
        assert!(text.starts_with("Weak(false) and Weak(true) are Weak(false), which goes with"), "{text}");
    }
}
