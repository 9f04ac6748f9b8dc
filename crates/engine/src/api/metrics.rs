//! Metrics of an open store: one registry, in the forms of Prometheus and OpenTelemetry, and told to other
//! processes.
//!
//! A process that wants to know writes the time to the file `watched` in the store's directory; a thread of the
//! store looks there once a second, and as long as the time is recent it writes its metrics to the file `board`,
//! several times a second. Whom nobody watches that costs one look at a name each second. Neither file is forced,
//! nor means anything to the store.

use crate::api::shared::Shared;
use crate::api::store::Store;
use crate::policy::kind::Policy;
use crate::policy::query::{Query, Statistics};
use crate::storage::error::OpenError;
use crate::storage::meter::{BOUNDS, Histogram, Waits};
use crate::storage::settings::Settings;
use crate::storage::{directory, gate};
use caliburn_log::format::{self, BOARD_MAGIC, Board};
use caliburn_os::clock::wall_ns;
use caliburn_os::host::Id;
use caliburn_os::sync::atomic::Ordering;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Written by who wants to know.
const WATCHED: &str = "watched";
/// Written for those.
const BOARD: &str = "board";
/// So long the one who wants to know is believed to be there.
const RECENT: u64 = 10_000_000_000;
/// What the board says is not older, else nobody writes it any more.
const PRESENT: u64 = 2_000_000_000;
/// How often the board is written then.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether somebody wants to know.
const LOOKED_EVERY: Duration = Duration::from_secs(1);

/// What a metric is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A number that only grows while the store is open.
    Counter(f64),
    /// A number of the moment.
    Gauge(f64),
    /// How often something took at most so long, in seconds: each class with those before it; how often at all;
    /// and the sum.
    Histogram {
        /// Upper bounds, and how many were at most so long.
        classes: Vec<(f64, u64)>,
        /// How many in all.
        count: u64,
        /// Seconds together.
        sum: f64,
    },
}

/// A metric of a store.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, as Prometheus wants it.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Name and value of a label, if there are several of the name.
    pub label: Option<(&'static str, &'static str)>,
    /// What it says.
    pub value: Value,
}

/// The metrics of a store at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    store: PathBuf,
    time: u64,
    metrics: Vec<Metric>,
}

impl Metrics {
    /// Each of them; those of one name stand together.
    pub fn iter(&self) -> impl Iterator<Item = &Metric> {
        self.metrics.iter()
    }

    /// In the text format of Prometheus.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        let store = label(&self.store.display().to_string());
        let mut last = "";
        for metric in &self.metrics {
            let Metric { name, help, label, value } = metric;
            if *name != last {
                let kind = match value {
                    Value::Counter(_) => "counter",
                    Value::Gauge(_) => "gauge",
                    Value::Histogram { .. } => "histogram",
                };
                _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
                last = name;
            }
            let label = label.map_or(String::new(), |(name, value)| format!(",{name}=\"{value}\""));
            match value {
                Value::Counter(value) | Value::Gauge(value) => {
                    _ = writeln!(out, "{name}{{store={store}{label}}} {value}");
                }
                Value::Histogram { classes, count, sum } => {
                    for (bound, count) in classes {
                        _ = writeln!(out, "{name}_bucket{{store={store}{label},le=\"{bound}\"}} {count}");
                    }
                    _ = writeln!(out, "{name}_bucket{{store={store}{label},le=\"+Inf\"}} {count}");
                    _ = writeln!(out, "{name}_sum{{store={store}{label}}} {sum}");
                    _ = writeln!(out, "{name}_count{{store={store}{label}}} {count}");
                }
            }
        }
        out
    }

    /// As OpenTelemetry's protocol has them in JSON (`ExportMetricsServiceRequest`).
    pub fn to_otlp_json(&self) -> String {
        let points: Vec<String> = self.metrics.iter().map(|metric| self.as_otlp(metric)).collect();
        format!(
            "{{\"resourceMetrics\":[{{\"resource\":{{\"attributes\":[{}]}},\"scopeMetrics\":[{{\"scope\":{{\"name\":\"caliburn\",\"version\":\"{}\"}},\"metrics\":[{}]}}]}}]}}",
            attribute("caliburn.store", &self.store.display().to_string()),
            env!("CARGO_PKG_VERSION"),
            points.join(",")
        )
    }

    fn as_otlp(&self, metric: &Metric) -> String {
        let Metric { name, help, label, value } = metric;
        let attributes = label.map_or(String::new(), |(name, value)| attribute(name, value));
        let at = format!("\"attributes\":[{attributes}],\"timeUnixNano\":\"{}\"", self.time);
        let data = match value {
            Value::Counter(value) => format!(
                "\"sum\":{{\"aggregationTemporality\":2,\"isMonotonic\":true,\"dataPoints\":[{{{at},\"asDouble\":{value}}}]}}"
            ),
            Value::Gauge(value) => format!("\"gauge\":{{\"dataPoints\":[{{{at},\"asDouble\":{value}}}]}}"),
            Value::Histogram { classes, count, sum } => {
                let bounds: Vec<String> = classes.iter().map(|(bound, _)| bound.to_string()).collect();
                let ends = classes.iter().map(|(_, count)| *count).chain([*count]);
                let mut before = 0;
                let counts: Vec<String> =
                    ends.map(|end| format!("\"{}\"", end - std::mem::replace(&mut before, end))).collect();
                format!(
                    "\"histogram\":{{\"aggregationTemporality\":2,\"dataPoints\":[{{{at},\"count\":\"{count}\",\"sum\":{sum},\"bucketCounts\":[{}],\"explicitBounds\":[{}]}}]}}",
                    counts.join(","),
                    bounds.join(",")
                )
            }
        };
        format!("{{\"name\":\"{name}\",\"description\":{},{data}}}", quoted(help))
    }
}

fn attribute(name: &str, value: &str) -> String {
    format!("{{\"key\":\"{name}\",\"value\":{{\"stringValue\":{}}}}}", quoted(value))
}

/// The value of a label of Prometheus's.
fn label(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// A string of JSON's.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The registry.
struct Registry(Vec<Metric>);

impl Registry {
    fn put(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: Option<(&'static str, &'static str)>,
        value: Value,
    ) {
        self.0.push(Metric { name, help, label, value });
    }

    fn count(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.put(name, help, None, Value::Counter(value as f64));
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.put(name, help, None, Value::Gauge(value as f64));
    }

    fn histogram(&mut self, name: &'static str, help: &'static str, histogram: &Histogram) {
        let (counts, sum) = histogram.read();
        let mut count = 0;
        let mut through = |more: u64| {
            count += more;
            count
        };
        let classes =
            BOUNDS.iter().zip(&counts).map(|(bound, n)| (*bound as f64 / 1e6, through(*n))).collect();
        let count = counts.iter().sum();
        self.put(name, help, None, Value::Histogram { classes, count, sum });
    }
}

impl Shared {
    fn metrics(&self) -> Metrics {
        let (query, s, meter) = (self.query(), self.statistics(), &self.storage.meter);
        let mut all = Registry(Vec::new());
        let lasting = meter.lasting.load(std::sync::atomic::Ordering::Relaxed);
        let name = "caliburn_commits_total";
        let help = "Transactions committed, by the failure class that was asked for.";
        for (class, count) in [("process", s.committed.saturating_sub(lasting)), ("lasting", lasting)] {
            all.put(name, help, Some(("class", class)), Value::Counter(count as f64));
        }
        all.count("caliburn_aborts_total", "Transactions aborted.", s.aborted);
        all.count("caliburn_ranges_total", "Ranges declared.", s.ranges);
        all.count("caliburn_declared_bytes_total", "Bytes declared.", s.declared_bytes);
        all.gauge("caliburn_open_transactions", "Transactions that are open.", query.uncommitted as u64);
        all.gauge(
            "caliburn_prepared_transactions",
            "Prepared transactions that are undecided.",
            query.prepared as u64,
        );
        all.gauge("caliburn_failed", "1 if the store has failed.", u64::from(query.failed));
        self.waits(&mut all);
        if self.kind == Policy::Redo {
            log_metrics(&mut all, &query, &s);
            all.histogram("caliburn_force_seconds", "Forces of the log for commits.", &meter.force);
            let help = "Forces of segments by truncation.";
            all.histogram("caliburn_segment_force_seconds", help, &meter.segment_force);
        }
        Metrics { store: self.storage.dir.clone(), time: wall_ns(), metrics: all.0 }
    }

    fn waits(&self, all: &mut Registry) {
        let meter = &self.storage.meter;
        let named: [(&'static str, &Waits); 4] = [
            ("force", &meter.durable),
            ("log_room", &meter.log_room),
            ("stage_room", &meter.stage_room),
            ("memory", &meter.memory),
        ];
        let read = named.map(|(what, waits)| (what, waits.read()));
        for (what, (times, ..)) in read {
            let value = Value::Counter(times as f64);
            all.put(
                "caliburn_waits_total",
                "Times that a thread waited, by what for.",
                Some(("for", what)),
                value,
            );
        }
        for (what, (_, seconds, _)) in read {
            let value = Value::Counter(seconds);
            all.put(
                "caliburn_wait_seconds_total",
                "Seconds that threads waited.",
                Some(("for", what)),
                value,
            );
        }
        for (what, (.., now)) in read {
            let value = Value::Gauge(now as f64);
            all.put("caliburn_waiting_threads", "Threads that wait now.", Some(("for", what)), value);
        }
    }

    /// The life of the thread that tells other processes, until the store is closed.
    pub(super) fn run_telling(&self) {
        let mut seen = 0;
        loop {
            let wanted = self.is_watched();
            if wanted {
                self.write_board();
            }
            self.told.wait(seen, Some(if wanted { TOLD_EVERY } else { LOOKED_EVERY }));
            seen = self.told.count();
            if self.storage.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
                return;
            }
        }
    }

    fn is_watched(&self) -> bool {
        let (media, path) = (&*self.storage.media, self.storage.dir.join(WATCHED));
        if !media.exists(&path) {
            return false;
        }
        let read = media.read(&path);
        if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            // Another user's: the next one that is made can be read.
            let _ = media.remove(&path);
        }
        let time = read.ok().and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        time.is_some_and(|time| wall_ns().abs_diff(time) < RECENT)
    }

    /// What fails here is nobody's loss.
    fn write_board(&self) {
        let (media, path) = (&*self.storage.media, self.storage.dir.join(BOARD));
        let prometheus = self.metrics().to_prometheus();
        let bytes = Told { prometheus, time: wall_ns(), process: std::process::id() }.encode(self.storage.id);
        let file = if media.exists(&path) { media.open(&path, true) } else { media.create(&path) };
        _ = file.and_then(|file| file.write_at(&bytes, 0));
    }
}

fn log_metrics(all: &mut Registry, query: &Query, s: &Statistics) {
    all.gauge("caliburn_log_bytes", "Bytes of the log's ring.", query.log_bytes);
    all.gauge("caliburn_log_copies", "Media that have the log.", query.log_copies);
    all.gauge("caliburn_log_used_bytes", "Bytes of it in use.", query.log_used);
    all.gauge("caliburn_log_kept_bytes", "Bytes before those, kept until they are archived.", query.log_kept);
    all.gauge("caliburn_log_unforced_bytes", "Bytes of it that are not forced yet.", query.log_unforced);
    all.gauge(
        "caliburn_dirty_pages",
        "Pages with committed changes that their segment lacks.",
        query.dirty_pages,
    );
    all.gauge("caliburn_private_bytes", "Memory of private pages.", query.private_pages * query.page_bytes);
    all.gauge(
        "caliburn_overflow_bytes",
        "Pages that lie in files, since a transaction has outgrown the memory budget.",
        query.overflow_bytes,
    );
    all.gauge(
        "caliburn_memory_budget_bytes",
        "Memory of private pages that may be kept.",
        query.memory_budget,
    );
    all.count("caliburn_log_written_bytes_total", "Bytes written to the log.", s.log_bytes);
    all.count("caliburn_records_total", "Records written to the log.", s.records);
    all.count(
        "caliburn_merged_transactions_total",
        "Transactions merged with others into a record.",
        s.merged_transactions,
    );
    all.count("caliburn_flushes_total", "Movements from the stage to the log.", s.flushes);
    all.count("caliburn_forces_total", "Forces of the log for commits.", s.forces);
    all.count("caliburn_truncations_total", "Incremental truncations that wrote something.", s.truncations);
    all.count("caliburn_epochs_total", "Epoch truncations.", s.epochs);
    all.count("caliburn_pages_written_total", "Pages written to segments.", s.pages_written);
    all.count("caliburn_pages_dropped_total", "Private pages given back to the system.", s.pages_dropped);
    all.count(
        "caliburn_pages_blocked_total",
        "Times that an open transaction kept a page from being written.",
        s.pages_blocked,
    );
}

impl Store {
    /// The metrics of the store, as of now.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn metrics(&self) -> Metrics {
        self.shared.storage.must_be_own();
        self.shared.metrics()
    }
}

/// What a store tells that another process has open.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Told {
    /// Its metrics, in the text format of Prometheus.
    pub prometheus: String,
    /// When it told them, nanoseconds since 1970.
    pub time: u64,
    /// The process that has it open.
    pub process: u32,
}

impl Told {
    fn encode(&self, store: Id) -> Vec<u8> {
        let head = Board {
            time: self.time.into(),
            len: (self.prometheus.len() as u64).into(),
            process: self.process.into(),
            ..Board::new_zeroed()
        };
        let mut bytes = [head.as_bytes(), self.prometheus.as_bytes()].concat();
        format::seal(&mut bytes, BOARD_MAGIC, store);
        bytes
    }

    /// What stands behind it is left of a longer one.
    fn decode(bytes: &[u8], store: &Id) -> Option<Told> {
        let (head, text) = Board::read_from_prefix(bytes).ok()?;
        let text = text.get(..usize::try_from(head.len.get()).ok()?)?;
        let whole = &bytes[..size_of::<Board>() + text.len()];
        format::unseal(whole, BOARD_MAGIC, "board", Some(store)).ok()?;
        let prometheus = std::str::from_utf8(text).ok()?.to_owned();
        Some(Told { prometheus, time: head.time.get(), process: head.process.get() })
    }
}

/// Asks the store in a directory, which a program has open, to tell its metrics, and reads what it told last:
/// within a second there is something, and as long as this is called every few seconds it is renewed several times
/// a second. Stores without background threads tell nothing.
///
/// # Errors
/// When there is no store, or its directory cannot be written to.
pub fn watch(dir: impl AsRef<Path>) -> Result<Option<Told>, OpenError> {
    let (dir, mut settings) = (dir.as_ref(), Settings::default());
    // The owner of the store may be another user.
    settings.rules.mode = 0o644;
    let media = directory::hold(dir, &settings)?;
    let catalog = directory::read_catalog(&*media, dir)?;
    let path = dir.join(WATCHED);
    let made = || media.create(&path);
    let file = match media.exists(&path).then(|| media.open(&path, true)) {
        None => made(),
        // Another user's.
        Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            media.remove(&path).and_then(|()| made())
        }
        Some(opened) => opened,
    };
    file.and_then(|file| file.write_at(&wall_ns().to_le_bytes(), 0))
        .map_err(OpenError::io("write", &path))?;
    let path = dir.join(BOARD);
    for _ in 0..10 {
        let bytes = if media.exists(&path) { media.read(&path).unwrap_or_default() } else { Vec::new() };
        if bytes.len() < size_of::<Board>() {
            return Ok(None);
        }
        // One that is just being written is read again.
        if let Some(told) = Told::decode(&bytes, &catalog.store) {
            return Ok(Some(told).filter(|told| wall_ns().abs_diff(told.time) < PRESENT));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_comes_back_at_every_corner() {
        let texts = ["", "\0", "a 1\n", &"x".repeat(70_000)];
        for (text, store) in
            texts.into_iter().flat_map(|text| [[0; 16], [0xFF; 16]].map(|store| (text, store)))
        {
            for (time, process) in [(0, 0), (1, u32::MAX), (u64::MAX, 1)] {
                let told = Told { prometheus: text.to_owned(), time, process };
                let mut bytes = told.encode(store);
                let same = |told: Option<Told>| {
                    let told = told.unwrap();
                    assert_eq!((&*told.prometheus, told.time, told.process), (text, time, process));
                };
                same(Told::decode(&bytes, &store));
                assert!(Told::decode(&bytes[..bytes.len() - 1], &store).is_none());
                assert!(Told::decode(&bytes, &[7; 16]).is_none(), "another store's");
                bytes.extend([0xAB; 9]);
                same(Told::decode(&bytes, &store));
                // It says that more follows than there is.
                for len in [bytes.len() as u64, u64::MAX] {
                    let at = std::mem::offset_of!(Board, len);
                    bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
                    assert!(Told::decode(&bytes, &store).is_none());
                }
            }
        }
    }
}
