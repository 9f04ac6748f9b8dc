//! Where the log of a node's data server is, and when it is dumped: arguments of `node add-server` and `node
//! change-server`.

use caliburn_dist::proto::admin::Log;
use caliburn_tools::{Failure, size};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct ServerLog {
    /// File or block device for its log; in its store's directory unless told. It moves there when the server is
    /// started next.
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Bytes of its log.
    #[arg(long, value_parser = size::parse)]
    log_bytes: Option<u64>,
    /// A second file or block device for its log: either may be lost.
    #[arg(long, value_name = "PATH")]
    duplex_log: Option<PathBuf>,
    /// Its log has one copy.
    #[arg(long, conflicts_with = "duplex_log")]
    simplex_log: bool,
    /// How long a recovery of it may take, such as 100ms: its log is truncated as often as that takes.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    recovery_target: Option<Duration>,
    /// Directory to which dumps of its store go.
    #[arg(long, value_name = "DIRECTORY")]
    dumps: Option<PathBuf>,
    /// When they are made: times of day in UTC, such as 03:00,15:30; '' is never.
    #[arg(long, value_name = "TIMES")]
    dump_at: Option<String>,
}

/// Whatever directory the node is run in; empty if none is named.
pub fn absolute(path: &Option<PathBuf>) -> Result<String, Failure> {
    let Some(path) = path else { return Ok(String::new()) };
    let path = std::path::absolute(path)?;
    path.into_os_string().into_string().map_err(|path| format!("{path:?} is not UTF-8").into())
}

impl ServerLog {
    /// What is said; nothing if nothing is.
    pub fn said(&self) -> Result<Option<Log>, Failure> {
        let named =
            |path: &Option<PathBuf>| absolute(path).map(|text| Some(text).filter(|text| !text.is_empty()));
        let second = named(&self.duplex_log)?;
        let log = Log {
            path: named(&self.log)?,
            bytes: self.log_bytes,
            second: second.or(self.simplex_log.then(String::new)),
            recovery_ms: self.recovery_target.map(|time| time.as_millis() as u64),
            former: Vec::new(),
            dumps: named(&self.dumps)?,
            dump_at: self.dump_at.clone(),
        };
        Ok((log != Log::default()).then_some(log))
    }
}
