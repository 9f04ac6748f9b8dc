//! What has happened on a node: one log for the node and all of its data servers, in a file that people can read.
//!
//! ```text
//!   2026-01-31T08:00:00.000Z  bank  has ended: signal 9; it is started again
//! ```

use crate::proto::admin::Event;
use caliburn_os::descriptors::{self, above};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// So many are remembered.
const KEPT: usize = 1000;
/// When the file is so long, another one is begun; the one before is kept.
const LONG: u64 = 4 << 20;
/// Of the node itself.
const NODE: &str = "-";

/// The events. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    state: Mutex<State>,
    follow: broadcast::Sender<Event>,
}

#[derive(Debug)]
struct State {
    file: File,
    last: VecDeque<Event>,
}

fn open(path: &Path) -> io::Result<File> {
    above(|| OpenOptions::new().create(true).append(true).open(path))
}

fn parse(line: &str) -> Option<Event> {
    let mut fields = line.splitn(3, "  ");
    let time = humantime::parse_rfc3339(fields.next()?).ok()?;
    let server = fields.next()?;
    let server = if server == NODE { String::new() } else { server.to_owned() };
    Some(Event { time: millis(time), server, text: fields.next()?.to_owned() })
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Events {
    pub fn open(path: PathBuf) -> io::Result<Events> {
        let before = descriptors::read(&path).unwrap_or_default();
        let before = String::from_utf8_lossy(&before);
        let mut last: VecDeque<Event> = before.lines().rev().take(KEPT).filter_map(parse).collect();
        last.make_contiguous().reverse();
        let mut file = open(&path)?;
        if !before.is_empty() && !before.ends_with('\n') {
            // A crash has torn the last line.
            file.write_all(b"\n")?;
        }
        let state = Mutex::new(State { file, last });
        Ok(Events(Arc::new(Inner { path, state, follow: broadcast::Sender::new(KEPT) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has happened with a server, or with the node if its name is empty.
    pub fn add(&self, server: &str, text: impl Into<String>) {
        let now = SystemTime::now();
        // A line stays one.
        let text: String = text.into().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let event = Event { time: millis(now), server: server.to_owned(), text };
        tracing::info!("{}: {}", if server.is_empty() { "node" } else { server }, event.text);
        let mut state = self.state();
        let time = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(event.time));
        let line = format!("{time}  {}  {}\n", if server.is_empty() { NODE } else { server }, event.text);
        if let Err(error) = self.write(&mut state, &line) {
            tracing::warn!("{}: {error}", self.0.path.display());
        }
        state.last.push_back(event.clone());
        if state.last.len() > KEPT {
            state.last.pop_front();
        }
        let _ = self.0.follow.send(event);
    }

    fn write(&self, state: &mut State, line: &str) -> io::Result<()> {
        if state.file.metadata()?.len() > LONG {
            std::fs::rename(&self.0.path, self.0.path.with_extension("log.1"))?;
            state.file = open(&self.0.path)?;
        }
        state.file.write_all(line.as_bytes())
    }

    /// The last ones, and those that come.
    pub fn last(&self, count: usize) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let state = self.state();
        let skipped = state.last.len().saturating_sub(count);
        (state.last.iter().skip(skipped).cloned().collect(), self.0.follow.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_there_after_a_restart_and_a_full_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.log");
        let events = Events::open(path.clone()).unwrap();
        events.add("", "begins");
        events.add("bank", "has ended:\nsignal 9  of two lines");
        let (last, mut follow) = events.last(1);
        assert_eq!((last.len(), &*last[0].text), (1, "has ended: signal 9  of two lines"));
        events.add("bank", "is started");
        assert_eq!(follow.recv().await.unwrap().text, "is started");
        drop(events);
        // Torn by a crash, and by another program.
        let mut file = open(&path).unwrap();
        file.write_all(b"2026-01-31T08:00").unwrap();
        let events = Events::open(path.clone()).unwrap();
        let texts: Vec<String> = events.last(9).0.into_iter().map(|event| event.text).collect();
        assert_eq!(texts, ["begins", "has ended: signal 9  of two lines", "is started"]);
        file.set_len(LONG + 1).unwrap();
        events.add("", "goes on");
        assert_eq!(Events::open(path).unwrap().last(9).0.len(), 1);
        assert_eq!(events.last(9).0.len(), 4);
    }
}
