//! The `caliburn-top` command: a store in use, as it is from second to second.

use caliburn_tools::told::told;
use caliburn_tools::{Failure, output, size};
use clap::Parser;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show a store that a program is using, as it is from second to second.
#[derive(Parser, Debug)]
#[command(name = "caliburn-top", version)]
struct Arguments {
    /// Directory of a store that a program is using.
    store: PathBuf,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0)]
    every: f64,
    /// Print so many looks as lines, and end.
    #[arg(long, value_name = "N")]
    lines: Option<u64>,
}

/// What was told at one moment: the value of each metric, by its name and labels but the store's.
struct Look {
    time: u64,
    process: u32,
    values: BTreeMap<String, f64>,
}

impl Look {
    fn at(arguments: &Arguments) -> Result<Look, Failure> {
        let told = told(&arguments.store)?;
        Ok(Look { time: told.time, process: told.process, values: values(&told.prometheus) })
    }

    fn get(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// By how much a counter grew in a second.
    fn rate(&self, before: &Look, name: &str) -> f64 {
        let seconds = self.time.saturating_sub(before.time) as f64 / 1e9;
        if seconds > 0.0 { (self.get(name) - before.get(name)).max(0.0) / seconds } else { 0.0 }
    }

    /// The time in seconds that so many of those were not longer than that came since, of a histogram.
    fn quantile(&self, before: &Look, name: &str, share: f64) -> Option<f64> {
        let prefix = format!("{name}_bucket{{le=\"");
        let mut classes: Vec<(f64, f64)> = self
            .values
            .iter()
            .filter_map(|(key, count)| {
                let bound = key.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
                Some((bound, count - before.get(key)))
            })
            .collect();
        classes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = classes.last()?.1;
        let found = classes.iter().find(|(_, count)| *count >= all * share)?;
        (all > 0.0).then_some(found.0)
    }
}

/// The lines of Prometheus's text, without the store's label, which comes first.
fn values(text: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (key, value) = line.rsplit_once(' ')?;
        let (name, labels) = key.split_once('{')?;
        // A path may hold anything but an unquoted quotation mark.
        let mut end = None;
        let mut quoted = false;
        let inner = labels.strip_prefix("store=\"")?;
        for (i, c) in inner.char_indices() {
            match c {
                '"' if !quoted => {
                    end = Some(i);
                    break;
                }
                c => quoted = c == '\\' && !quoted,
            }
        }
        let rest = inner[end? + 1..].strip_suffix('}')?.trim_start_matches(',');
        let key = if rest.is_empty() { name.to_owned() } else { format!("{name}{{{rest}}}") };
        Some((key, value.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect()
}

const WAITS: [(&str, &str); 4] = [
    ("force", "a force of the log"),
    ("log_room", "room in the log"),
    ("stage_room", "room in the stage"),
    ("memory", "memory"),
];

fn seconds(time: Option<f64>) -> String {
    match time {
        None => "-".into(),
        Some(time) if time.is_infinite() => "> 1 s".into(),
        Some(time) if time < 0.001 => format!("{:.0} us", time * 1e6),
        Some(time) => format!("{:.0} ms", time * 1e3),
    }
}

fn main() -> ExitCode {
    output::run("caliburn-top", || run(&Arguments::parse()))
}

/// Shows a store until `q` is pressed, or prints lines.
fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let every = Duration::try_from_secs_f64(arguments.every.max(0.2)).map_err(|e| e.to_string())?;
    let mut before = Look::at(arguments)?;
    if let Some(lines) = arguments.lines {
        for _ in 0..lines {
            std::thread::sleep(every);
            let look = Look::at(arguments)?;
            println!("{}", as_line(&look, &before));
            before = look;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut terminal = ratatui::init();
    let shown = (|| {
        let mut history = VecDeque::new();
        loop {
            let look = Look::at(arguments)?;
            history.push_back(look.rate(&before, COMMITS[0]) as u64 + look.rate(&before, COMMITS[1]) as u64);
            if history.len() > 400 {
                history.pop_front();
            }
            terminal.draw(|frame| draw(frame, arguments, &look, &before, &history))?;
            before = look;
            if event::poll(every)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && matches!(key.code, KeyCode::Char('q' | 'c') | KeyCode::Esc)
            {
                return Ok(ExitCode::SUCCESS);
            }
        }
    })();
    ratatui::restore();
    shown
}

const COMMITS: [&str; 2] =
    ["caliburn_commits_total{class=\"process\"}", "caliburn_commits_total{class=\"lasting\"}"];

fn as_line(look: &Look, before: &Look) -> String {
    let waiting: f64 =
        WAITS.iter().map(|(what, _)| look.get(&format!("caliburn_waiting_threads{{for=\"{what}\"}}"))).sum();
    format!(
        "commits/s {:.0}  lasting/s {:.0}  log {}/s  used {:.0} %  force p50 {} p99 {}  private {}  open {:.0}  waiting {waiting:.0}{}",
        look.rate(before, COMMITS[0]) + look.rate(before, COMMITS[1]),
        look.rate(before, COMMITS[1]),
        size::show(look.rate(before, "caliburn_log_written_bytes_total") as u64),
        log_share(look) * 100.0,
        seconds(look.quantile(before, "caliburn_force_seconds", 0.5)),
        seconds(look.quantile(before, "caliburn_force_seconds", 0.99)),
        size::show(look.get("caliburn_private_bytes") as u64),
        look.get("caliburn_open_transactions"),
        if look.get("caliburn_failed") > 0.0 { "  FAILED" } else { "" }
    )
}

/// How much of the log is in use or kept.
fn log_share(look: &Look) -> f64 {
    let taken = look.get("caliburn_log_used_bytes") + look.get("caliburn_log_kept_bytes");
    (taken / look.get("caliburn_log_bytes").max(1.0)).clamp(0.0, 1.0)
}

fn draw(frame: &mut Frame<'_>, arguments: &Arguments, look: &Look, before: &Look, history: &VecDeque<u64>) {
    let rows = [1, 6, 3, 3, 7, 6].map(Constraint::Length);
    let [head, commits, log, memory, waits, rest] = Layout::vertical(rows).areas(frame.area());
    let failed = look.get("caliburn_failed") > 0.0;
    let state = if failed { "FAILED".red().bold() } else { "in use".green() };
    let title = format!("caliburn-top  {}  process {}  ", arguments.store.display(), look.process);
    frame.render_widget(Line::from(vec![title.into(), state, "   q ends".dim()]), head);

    let lasting = look.rate(before, COMMITS[1]);
    let title = format!(
        " {:.0} commits/s, {lasting:.0} of them lasting; {:.0} aborts/s ",
        look.rate(before, COMMITS[0]) + lasting,
        look.rate(before, "caliburn_aborts_total")
    );
    let bars: Vec<u64> = history.iter().rev().take(commits.width as usize).rev().copied().collect();
    frame.render_widget(Sparkline::default().block(Block::bordered().title(title)).data(&bars), commits);

    let share = log_share(look);
    let title = format!(
        " log of {}: {}/s written, {:.0} forces/s, p50 {} p99 {} ",
        size::show(look.get("caliburn_log_bytes") as u64),
        size::show(look.rate(before, "caliburn_log_written_bytes_total") as u64),
        look.rate(before, "caliburn_forces_total"),
        seconds(look.quantile(before, "caliburn_force_seconds", 0.5)),
        seconds(look.quantile(before, "caliburn_force_seconds", 0.99))
    );
    frame.render_widget(gauge(title, share, "in use or kept"), log);
    let private = look.get("caliburn_private_bytes");
    let budget = look.get("caliburn_memory_budget_bytes").max(1.0);
    let title = format!(" private memory: {} of {} ", size::show(private as u64), size::show(budget as u64));
    frame.render_widget(gauge(title, private / budget, ""), memory);

    let row = |(what, text): &(&str, &str)| {
        let of = |name: &str| format!("{name}{{for=\"{what}\"}}");
        Row::new([
            (*text).to_owned(),
            format!("{:.0}", look.get(&of("caliburn_waiting_threads"))),
            format!("{:.0}/s", look.rate(before, &of("caliburn_waits_total"))),
            format!("{:.1} %", look.rate(before, &of("caliburn_wait_seconds_total")) * 100.0),
        ])
    };
    let widths =
        [Constraint::Length(22), Constraint::Length(8), Constraint::Length(12), Constraint::Length(16)];
    let table = Table::new(WAITS.iter().map(row), widths)
        .header(Row::new(["waiting for", "now", "times", "of a thread's time"]).bold())
        .block(Block::bordered());
    frame.render_widget(table, waits);
    let lines = [
        format!(
            "open {:.0}, prepared {:.0}; {:.0} ranges/s, {}/s declared",
            look.get("caliburn_open_transactions"),
            look.get("caliburn_prepared_transactions"),
            look.rate(before, "caliburn_ranges_total"),
            size::show(look.rate(before, "caliburn_declared_bytes_total") as u64)
        ),
        format!(
            "truncation: {:.0} pages/s written, {:.0}/s given back, {:.0}/s blocked; {:.0} epochs in all",
            look.rate(before, "caliburn_pages_written_total"),
            look.rate(before, "caliburn_pages_dropped_total"),
            look.rate(before, "caliburn_pages_blocked_total"),
            look.get("caliburn_epochs_total")
        ),
        format!("kept for the archive: {}", size::show(look.get("caliburn_log_kept_bytes") as u64)),
    ];
    let text: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered()), rest);
}

fn gauge(title: String, share: f64, label: &str) -> Gauge<'static> {
    let share = share.clamp(0.0, 1.0);
    let color = if share > 0.9 {
        Color::Red
    } else if share > 0.7 {
        Color::Yellow
    } else {
        Color::Green
    };
    let label = format!("{:.0} % {label}", share * 100.0);
    Gauge::default()
        .block(Block::bordered().title(title))
        .gauge_style(Style::new().fg(color))
        .ratio(share)
        .label(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_whatever_the_path_is() {
        let text = "# HELP a b\na{store=\"/x\\\"y} z\",le=\"0.1\"} 3\nb{store=\"s\"} 1.5\n";
        let found = values(text);
        assert_eq!(found.get("a{le=\"0.1\"}"), Some(&3.0));
        assert_eq!(found.get("b"), Some(&1.5));
    }

    #[test]
    fn a_quantile_is_of_what_came_since() {
        let look = |counts: [f64; 3]| Look {
            time: 0,
            process: 0,
            values: ["0.1", "1", "+Inf"]
                .into_iter()
                .zip(counts)
                .map(|(bound, count)| (format!("t_bucket{{le=\"{bound}\"}}"), count))
                .collect(),
        };
        let (before, now) = (look([10.0, 10.0, 10.0]), look([11.0, 19.0, 20.0]));
        assert_eq!(now.quantile(&before, "t", 0.5), Some(1.0));
        assert_eq!(now.quantile(&before, "t", 0.95), Some(f64::INFINITY));
        assert_eq!(now.quantile(&now, "t", 0.5), None);
    }

    #[test]
    fn it_draws_in_any_terminal() {
        use ratatui::Terminal;
        use ratatui::backend::TestBackend;

        let arguments = Arguments { store: "s".into(), every: 1.0, lines: None };
        let look = Look { time: 1, process: 2, values: BTreeMap::new() };
        for (width, height) in [(80, 30), (20, 5), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let history = VecDeque::from([1, 5, 3]);
            terminal.draw(|frame| draw(frame, &arguments, &look, &look, &history)).unwrap();
        }
    }
}
