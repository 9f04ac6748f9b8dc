//! Keeping a data server running, as a state machine: it does nothing itself, and is told of time.
//!
//! ```text
//!             start                ready
//!   stopped ---------> starting ---------> running
//!      ^                  |                   |
//!      |   ended          |  ended, unasked   |
//!   stopping <------------+-------------------+---> waiting ---> starting     (or failed, if it does not restart)
//!      '---> starting, if it is wanted
//! ```

use crate::proto::admin::State;
use caliburn_os::simulated::{instead, unless};
use std::time::Duration;

/// Asked to end, a process is killed after so long.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// Before a process is started again the first time; twice as long the next.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// One that has run so long has not failed to start.
const STABLE: Duration = Duration::from_secs(60);

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// Whether it is to run, and whether it is started again when it ends.
    Want {
        run: bool,
        restarts: bool,
    },
    /// At once, if it waits or has failed.
    Start,
    Restart,
    Crash,
    /// It serves.
    Ready,
    /// It has ended, or could not begin.
    Ended,
    /// Time has passed.
    Time,
}

/// What is to be done with the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start,
    /// Asks it to end.
    Terminate,
    Kill,
}

/// One data server.
#[derive(Debug)]
pub(super) struct Keeping {
    state: State,
    run: bool,
    restarts: bool,
    /// Times that it has ended unasked, one soon after the other.
    failures: u32,
    since: Duration,
    /// When something is to be done.
    due: Option<Duration>,
}

impl Keeping {
    pub fn new() -> Keeping {
        let (state, zero) = (State::Stopped, Duration::ZERO);
        Keeping { state, run: false, restarts: false, failures: 0, since: zero, due: None }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// When it wants to be told of the time.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    pub fn step(&mut self, now: Duration, input: Input) -> Option<Action> {
        match (input, self.state) {
            (Input::Want { run, restarts }, state) => {
                (self.run, self.restarts) = (run, restarts);
                match (run, state) {
                    (true, State::Stopped) => self.start(now),
                    (false, State::Starting | State::Running) => self.stop(now),
                    (false, State::Waiting | State::Failed) => self.turn(now, State::Stopped, None, None),
                    _ => None,
                }
            }
            (Input::Restart, State::Starting | State::Running) => self.stop(now),
            (Input::Start | Input::Restart, State::Waiting | State::Failed) if self.run => self.start(now),
            (Input::Crash, State::Starting | State::Running | State::Stopping) => Some(Action::Kill),
            (Input::Ready, State::Starting) => self.turn(now, State::Running, None, None),
            (Input::Ended, State::Stopping) if self.run => self.start(now),
            (Input::Ended, State::Stopping) => self.turn(now, State::Stopped, None, None),
            (Input::Ended, State::Starting | State::Running) if self.restarts => {
                let stable = self.state == State::Running && now.saturating_sub(self.since) >= STABLE;
                self.failures = if stable { 1 } else { self.failures.saturating_add(1) };
                self.failures = instead("back-off-forgotten", self.failures, 1);
                let wait = FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST);
                self.turn(now, State::Waiting, Some(now + wait), None)
            }
            (Input::Ended, State::Starting | State::Running) => self.turn(now, State::Failed, None, None),
            (Input::Time, _) if self.due.is_none_or(|due| now < due) => None,
            (Input::Time, State::Waiting) => self.turn(now, State::Starting, None, Some(Action::Start)),
            (Input::Time, State::Stopping) if unless("never-killed", true) => {
                self.turn(now, State::Stopping, None, Some(Action::Kill))
            }
            _ => None,
        }
    }

    /// Because somebody wants it to: what was before is forgotten.
    fn start(&mut self, now: Duration) -> Option<Action> {
        self.failures = 0;
        self.turn(now, State::Starting, None, Some(Action::Start))
    }

    fn stop(&mut self, now: Duration) -> Option<Action> {
        self.turn(now, State::Stopping, Some(now + GRACE), Some(Action::Terminate))
    }

    fn turn(
        &mut self,
        now: Duration,
        to: State,
        due: Option<Duration>,
        action: Option<Action>,
    ) -> Option<Action> {
        (self.state, self.since, self.due) = (to, now, due);
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WANTED: Input = Input::Want { run: true, restarts: true };
    const UNWANTED: Input = Input::Want { run: false, restarts: true };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_ends_is_started_again_later_and_later() {
        let (mut server, mut now, mut waits) = (Keeping::new(), secs(0), Vec::new());
        assert_eq!(server.step(now, WANTED), Some(Action::Start));
        for _ in 0..10 {
            assert_eq!(server.step(now, Input::Ready), None);
            assert_eq!(server.step(now, Input::Ended), None);
            assert_eq!(server.state(), State::Waiting);
            let due = server.due().unwrap();
            waits.push((due - now).as_millis());
            assert_eq!(server.step(due - Duration::from_nanos(1), Input::Time), None);
            assert_eq!(server.step(due, Input::Time), Some(Action::Start));
            now = due;
        }
        assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        // It ran for long: as if for the first time.
        server.step(now, Input::Ready);
        now += STABLE;
        server.step(now, Input::Ended);
        assert_eq!(server.due(), Some(now + FIRST));
        assert_eq!(server.step(now, UNWANTED), None);
        assert_eq!((server.state(), server.due()), (State::Stopped, None));
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let mut server = Keeping::new();
        server.step(secs(0), WANTED);
        assert_eq!(server.step(secs(1), UNWANTED), Some(Action::Terminate));
        assert_eq!(server.step(secs(2), Input::Ready), None);
        assert_eq!(server.step(secs(10), Input::Time), None);
        assert_eq!(server.step(secs(11), Input::Time), Some(Action::Kill));
        // Wanted again before it has ended.
        assert_eq!(server.step(secs(12), WANTED), None);
        assert_eq!(server.step(secs(12), Input::Ended), Some(Action::Start));
    }

    #[test]
    fn what_is_not_to_restart_has_failed() {
        let mut server = Keeping::new();
        server.step(secs(0), Input::Want { run: true, restarts: false });
        server.step(secs(1), Input::Ended);
        assert_eq!((server.state(), server.due()), (State::Failed, None));
        assert_eq!(server.step(secs(2), Input::Restart), Some(Action::Start));
        server.step(secs(3), Input::Ready);
        assert_eq!(server.step(secs(4), Input::Crash), Some(Action::Kill));
        server.step(secs(4), Input::Ended);
        assert_eq!(server.state(), State::Failed);
    }

    proptest! {
        /// Whatever happens: there is one process at most, and it is where somebody wants it in the end.
        #[test]
        fn there_is_one_process_at_most(inputs in prop::collection::vec((0usize..9, 0u64..100), 0..60), run: bool) {
            let (mut server, mut now, mut lives, mut asked) = (Keeping::new(), secs(0), false, false);
            let step = |server: &mut Keeping, now, input, lives: &mut bool, asked: &mut bool| {
                match server.step(now, input) {
                    Some(Action::Start) => {
                        assert!(!*lives, "two processes");
                        (*lives, *asked) = (true, false);
                    }
                    Some(Action::Terminate | Action::Kill) => {
                        assert!(*lives, "nobody to tell");
                        *asked = true;
                    }
                    None => {}
                }
            };
            for (input, wait) in inputs {
                now += secs(wait);
                let input = match input {
                    0 | 1 => Input::Want { run: input == 0, restarts: wait % 2 == 0 },
                    2 => Input::Restart,
                    8 => Input::Start,
                    3 => Input::Crash,
                    4 if lives => Input::Ready,
                    5 | 6 if lives => {
                        lives = false;
                        Input::Ended
                    }
                    _ => Input::Time,
                };
                step(&mut server, now, input, &mut lives, &mut asked);
            }
            step(&mut server, now, Input::Want { run, restarts: true }, &mut lives, &mut asked);
            step(&mut server, now, Input::Restart, &mut lives, &mut asked);
            for _ in 0..4 {
                now += secs(100);
                if lives && asked {
                    lives = false;
                    step(&mut server, now, Input::Ended, &mut lives, &mut asked);
                }
                step(&mut server, now, Input::Time, &mut lives, &mut asked);
            }
            prop_assert_eq!(lives, run);
        }
    }
}
