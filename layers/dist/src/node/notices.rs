//! What an operator should know of a node: what has happened, and what is wrong as long as it is.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens often is told once in so long.
const OFTEN: Duration = Duration::from_secs(60);

type Tell = dyn Fn(&str) + Send + Sync;

/// Told as they come, and kept as long as they are true.
#[derive(Default)]
pub(crate) struct Notices {
    tell: Option<Box<Tell>>,
    /// By what they are about.
    standing: Mutex<BTreeMap<&'static str, String>>,
    /// When what happens often was told last.
    often: Mutex<BTreeMap<&'static str, Instant>>,
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notices").field("standing", &self.standing).finish_non_exhaustive()
    }
}

impl Notices {
    pub fn new(tell: Option<Box<Tell>>) -> Notices {
        Notices { tell, ..Notices::default() }
    }

    /// Something has happened.
    pub fn once(&self, text: impl AsRef<str>) {
        tracing::warn!("{}", text.as_ref());
        self.tell.iter().for_each(|tell| tell(text.as_ref()));
    }

    /// Something has happened that may happen often: it is told now and then.
    pub fn now_and_then(&self, about: &'static str, text: impl AsRef<str>) {
        let mut often = self.often.lock().unwrap_or_else(PoisonError::into_inner);
        if often.get(about).is_some_and(|told| told.elapsed() < OFTEN) {
            return;
        }
        often.insert(about, Instant::now());
        drop(often);
        self.once(text);
    }

    /// Something is so from now on, until it is cleared. It is told when it is another text than before.
    pub fn set(&self, about: &'static str, text: String) {
        if self.standing().insert(about, text.clone()).as_ref() != Some(&text) {
            self.once(text);
        }
    }

    /// It is so no more.
    pub fn clear(&self, about: &'static str) {
        self.standing().remove(about);
    }

    /// What is so now.
    pub fn all(&self) -> Vec<String> {
        self.standing().values().cloned().collect()
    }

    fn standing(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_stays_so_is_told_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let notices = Notices::new(Some(Box::new(move |text| tell.lock().unwrap().push(text.to_owned()))));
        notices.set("a", "one".into());
        notices.set("a", "one".into());
        notices.set("b", "two".into());
        notices.set("a", "three".into());
        assert_eq!(notices.all(), ["three", "two"]);
        notices.clear("b");
        notices.once("four");
        (0..9).for_each(|_| notices.now_and_then("c", "five"));
        assert_eq!(notices.all(), ["three"]);
        assert_eq!(*told.lock().unwrap(), ["one", "two", "three", "four", "five"]);
    }
}
