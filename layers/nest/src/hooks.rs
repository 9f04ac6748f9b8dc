//! Hooks: what a program wants done before its transaction may commit, when its family has committed, and when it
//! was undone (Camelot's PrepareProc, CommitProc and AbortProc).

use crate::follow::Follow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

type Veto<'h> = Box<dyn FnOnce() -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + 'h>;
type Told<'h> = Box<dyn FnOnce() + Send + 'h>;

/// A companion with hooks, which each transaction of a family adds for itself. Of several companions it is the
/// last: a hook that panics must not keep those behind it from being told.
#[derive(Default)]
pub struct Hooks<'h> {
    votes: Vec<Veto<'h>>,
    commits: Vec<Told<'h>>,
    aborts: Vec<Told<'h>>,
}

impl std::fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl<'h> Hooks<'h> {
    /// None yet.
    pub fn new() -> Hooks<'h> {
        Hooks::default()
    }

    /// Asked when this transaction is about to commit, as a child or as the top: an error, or a panic, aborts it.
    pub fn on_vote(
        &mut self,
        hook: impl FnOnce() -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + 'h,
    ) {
        self.votes.push(Box::new(hook));
    }

    /// Called when the top has committed and is as durable as was asked, if this transaction and those above it
    /// have. If it panics, the others are called all the same, and the panic goes on then: the family has
    /// committed.
    pub fn on_commit(&mut self, hook: impl FnOnce() + Send + 'h) {
        self.commits.push(Box::new(hook));
    }

    /// Called when this transaction was undone, or one above it; those of later ones first. As for panics,
    /// likewise.
    pub fn on_abort(&mut self, hook: impl FnOnce() + Send + 'h) {
        self.aborts.push(Box::new(hook));
    }
}

/// Calls all, also if one panics; then that goes on.
fn call<'h>(hooks: impl Iterator<Item = Told<'h>>) {
    let mut panics = hooks.filter_map(|hook| catch_unwind(AssertUnwindSafe(hook)).err()).collect::<Vec<_>>();
    // While something unwinds already, that goes on.
    if !panics.is_empty() && !std::thread::panicking() {
        resume_unwind(panics.swap_remove(0));
    }
}

impl<'t> Follow<'t> for Hooks<'_> {
    fn child(&mut self) -> Self {
        Hooks::new()
    }

    fn independent(&mut self) -> Self {
        Hooks::new()
    }

    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.votes.drain(..).try_for_each(|hook| hook())
    }

    fn commit(mut self, parent: &mut Self) {
        parent.commits.append(&mut self.commits);
        parent.aborts.append(&mut self.aborts);
    }

    fn end(self) {
        call(self.commits.into_iter());
    }

    fn abort(self) {
        call(self.aborts.into_iter().rev());
    }
}
