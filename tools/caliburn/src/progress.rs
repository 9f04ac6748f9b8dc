//! A bar on the terminal while a store is opened, checked or dumped.

use caliburn::{Options, Phase, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What is over sooner needs no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// Shows what opening or checking with the options takes long for, if somebody is there to see it.
pub fn show(options: &mut Options) {
    if !stderr().is_terminal() {
        return;
    }
    let (start, shown) = (Instant::now(), Mutex::new(None));
    options.progress(move |progress| {
        if start.elapsed() >= PATIENCE {
            draw(&mut shown.lock().expect("no panic under this lock"), progress);
        }
        ControlFlow::Continue(())
    });
}

fn draw(shown: &mut Option<(Phase, ProgressBar)>, progress: &Progress) {
    if shown.as_ref().is_none_or(|(phase, _)| *phase != progress.phase) {
        let what = match progress.phase {
            Phase::VerifySegments => "verifying segments",
            Phase::CopySegments => "reading segments",
            _ => "reading the log",
        };
        let style = ProgressStyle::with_template("{msg}  [{bar:30}] {bytes} of {total_bytes}, {eta}");
        let bar = ProgressBar::new(progress.total).with_message(what);
        bar.set_style(style.expect("the template is well-formed"));
        *shown = Some((progress.phase, bar));
    }
    if let Some((_, bar)) = shown {
        bar.set_position(progress.done);
    }
}
