//! Where the log of a data server is, how long, of how many copies, and how long a recovery may take (Camelot,
//! section
//! 3.2): what is not said stays as it is. It holds from the next start on.

use crate::proto::admin;
use crate::timetable::Timetable;
use caliburn_engine::{OpenError, Options, Store, Tuning};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of log that a recovery reads, verifies and lays over the segments in a second, at least, when nothing of it
/// is in memory: docs/performance.md, "Restart with a full log".
const REPLAYED: u64 = 300_000_000;

/// What is said of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPlan {
    /// File or block device.
    pub path: Option<PathBuf>,
    /// Bytes.
    pub bytes: Option<u64>,
    /// A second copy of it, or that there is to be none.
    pub second: Option<Option<PathBuf>>,
    /// The log is truncated so often that this suffices to recover.
    pub recovery: Option<Duration>,
    /// Where it was, or a copy of it, which it may come from.
    pub former: Vec<PathBuf>,
    /// Where dumps of the store go.
    pub dumps: Option<PathBuf>,
    /// When they are made.
    pub dump_at: Option<Timetable>,
}

impl LogPlan {
    /// As it is remembered.
    pub(crate) fn of(log: &admin::Log) -> LogPlan {
        let second = log.second.as_ref().map(|path| (!path.is_empty()).then(|| path.into()));
        LogPlan {
            path: log.path.as_ref().map(Into::into),
            bytes: log.bytes,
            second,
            recovery: log.recovery_ms.map(Duration::from_millis),
            former: log.former.iter().map(Into::into).collect(),
            dumps: log.dumps.as_ref().map(Into::into),
            dump_at: log.dump_at.as_ref().and_then(|times| times.parse().ok()),
        }
    }

    /// Has a store opened so.
    pub(crate) fn set(&self, options: &mut Options) {
        self.former.iter().for_each(|path| _ = options.outside(path));
        self.path.iter().for_each(|path| _ = options.log_path(path));
        self.bytes.iter().for_each(|bytes| _ = options.log_bytes(*bytes));
        match &self.second {
            Some(Some(path)) => _ = options.duplex_log(path),
            Some(None) => _ = options.simplex_log(),
            None => {}
        }
    }

    /// Has an open one truncated so often.
    pub(crate) fn tune(&self, store: &Store) -> Result<(), OpenError> {
        let Some(recovery) = self.recovery else { return Ok(()) };
        let truncate_percent = percent(recovery, store.query().log_bytes);
        store.set_options(Tuning { truncate_percent, ..store.tuning() })
    }

    /// The environment variables that say this.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let second = self.second.as_ref().map(|second| second.as_ref().map_or("none".into(), path));
        let former = self.former.iter().map(path).collect::<Vec<_>>().join(":");
        let all = [
            ("CALIBURN_LOG", self.path.as_ref().map(path)),
            ("CALIBURN_LOG_BYTES", self.bytes.map(|bytes| bytes.to_string())),
            ("CALIBURN_DUPLEX_LOG", second),
            ("CALIBURN_RECOVERY_MS", self.recovery.map(|time| time.as_millis().to_string())),
            ("CALIBURN_DUMPS", self.dumps.as_ref().map(path)),
            ("CALIBURN_DUMP_AT", self.dump_at.as_ref().map(Timetable::to_string)),
            ("CALIBURN_FORMER_LOGS", Some(former).filter(|former| !former.is_empty())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// The share of a log, in percent, at which truncation is to begin.
fn percent(recovery: Duration, log_bytes: u64) -> u8 {
    let replayed = recovery.as_millis() * u128::from(REPLAYED) / 1000;
    (replayed * 100 / u128::from(log_bytes.max(1))).clamp(1, 50) as u8
}

/// Takes over what a change says.
pub(crate) fn change(log: &mut Option<admin::Log>, change: Option<admin::Log>) -> Result<(), String> {
    let Some(change) = change else { return Ok(()) };
    let log = log.get_or_insert_default();
    if change.bytes.is_some_and(|bytes| log.bytes != Some(bytes))
        && log.path.is_some()
        && change.path.is_none()
    {
        return Err(
            "a log that is not in its store's directory gets another size in another place: name one".into(),
        );
    }
    let admin::Log { path, bytes, second, recovery_ms, former: _, dumps, dump_at } = change;
    for (now, next) in [(&mut log.path, path), (&mut log.second, second)] {
        let Some(next) = next else { continue };
        let before = now.replace(next).filter(|before| !before.is_empty() && !log.former.contains(before));
        log.former.extend(before);
    }
    log.bytes = bytes.or(log.bytes);
    log.dumps = dumps.or(log.dumps.take());
    log.dump_at = dump_at.or(log.dump_at.take());
    log.recovery_ms = recovery_ms.or(log.recovery_ms);
    check(Some(log))
}

/// Why one can't be had.
pub(crate) fn check(log: Option<&admin::Log>) -> Result<(), String> {
    let Some(log) = log else { return Ok(()) };
    let paths = log.path.iter().chain(log.second.iter().filter(|path| !path.is_empty())).chain(&log.dumps);
    for path in paths {
        if !path.starts_with('/') {
            return Err(format!("{path:?} is not absolute: the node may run in another directory"));
        }
        if path.contains(':') {
            return Err(format!("{path:?} has a colon, which is between paths: name it by a link"));
        }
    }
    if log.path.is_some() && log.path == log.second {
        return Err("a log and its second copy are not in one place".into());
    }
    if let Some(times) = log.dump_at.as_ref().filter(|times| !times.is_empty()) {
        times.parse::<Timetable>().map_err(|error| error.to_string())?;
        if log.dumps.is_none() {
            return Err("times of dumps need a directory that they go to".into());
        }
    }
    match (log.bytes, log.recovery_ms) {
        (Some(bytes), _) if bytes < 64 << 10 || !bytes.is_multiple_of(4096) => {
            Err(format!("a log of {bytes} bytes: at least 64 KiB, and a multiple of 4096"))
        }
        (_, Some(0)) => Err("no recovery takes no time".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_stays_until_something_else_is() {
        let said = |path: Option<&str>, second: Option<&str>, bytes| admin::Log {
            path: path.map(Into::into),
            second: second.map(Into::into),
            bytes,
            ..admin::Log::default()
        };
        let mut log = None;
        change(&mut log, None).unwrap();
        assert_eq!(log, None);
        change(&mut log, Some(said(Some("/a"), Some("/b"), None))).unwrap();
        change(&mut log, Some(said(Some("/c"), None, Some(1 << 20)))).unwrap();
        change(&mut log, Some(said(None, Some(""), None))).unwrap();
        let plan = LogPlan::of(log.as_ref().unwrap());
        assert_eq!((plan.path, plan.second, plan.bytes), (Some("/c".into()), Some(None), Some(1 << 20)));
        assert_eq!(plan.former, [PathBuf::from("/a"), "/b".into()]);
        assert!(change(&mut log.clone(), Some(said(None, None, Some(2 << 20)))).is_err());
        for (wrong, why) in [
            (said(Some("/a:b"), None, None), "colon"),
            (said(Some("/a"), Some("/a"), None), "one place"),
            (said(Some("a"), None, None), "not absolute"),
            (said(None, Some("b"), None), "not absolute"),
            (said(None, None, Some(100)), "64 KiB"),
            (admin::Log { recovery_ms: Some(0), ..admin::Log::default() }, "no time"),
            (admin::Log { dump_at: Some("03:00".into()), ..admin::Log::default() }, "a directory"),
            (admin::Log { dump_at: Some("3".into()), ..admin::Log::default() }, "times of day"),
        ] {
            assert!(check(Some(&wrong)).unwrap_err().contains(why));
        }
        assert_eq!(check(log.as_ref()), Ok(()));
    }

    #[test]
    fn the_log_is_truncated_as_often_as_is_wanted() {
        let ms = Duration::from_millis;
        assert_eq!(percent(ms(1000), 64 << 20), 50, "all of it takes less");
        assert_eq!(percent(ms(100), 1 << 30), 2);
        assert_eq!(percent(ms(1), 1 << 40), 1);
        assert_eq!(percent(Duration::MAX, 1), 50);
    }
}
