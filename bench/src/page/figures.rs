//! The papers' figures and tables, redrawn from a run; their own numbers beside ours where they have any.

use super::plot::{Measured, Plot, Series, bars, brief};
use super::results::{Found, Results};

/// A figure with its table.
#[derive(Debug)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// Where it comes from, what to see in it.
    pub text: String,
    /// The plot.
    pub svg: String,
    /// The table's head.
    pub head: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// Commands that the numbers come from.
    pub commands: Vec<String>,
}

impl Figure {
    fn new(title: &str, text: &str, svg: String, head: &[&str], found: &[&Found]) -> Figure {
        let mut commands: Vec<String> = found.iter().map(|f| f.command.clone()).collect();
        commands.dedup();
        let head = head.iter().map(|text| (*text).to_owned()).collect();
        Figure { title: title.into(), text: text.into(), svg, head, rows: Vec::new(), commands }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

/// All figures for which the run has results.
pub fn all(results: &Results) -> Vec<Figure> {
    let mut figures = vec![
        synthetic(results),
        throughput(results, "debit-credit", "process", "Debit-credit (Vista, Figure 5b)"),
        throughput(results, "order-entry", "process", "Order-entry (Vista, Figure 5c)"),
        throughput(results, "debit-credit", "power", "Debit-credit, every commit forced"),
        group_commit(results),
    ];
    figures.extend(tpca(results));
    figures.extend([
        coda(results),
        restart(results),
        threads(results),
        latency(results),
        sustained(results),
        throughput(results, "persistent", "power", "Persistent memory, debit-credit"),
    ]);
    figures.into_iter().filter(|figure| !figure.rows.is_empty()).collect()
}

/// Systems in the order of their first results.
fn systems(found: &[&Found]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    found.iter().for_each(|f| {
        if !names.contains(&f.system()) {
            names.push(f.system());
        }
    });
    names
}

/// The results of the last command alone that has a workload: one run, in which ratios hold. Commands with more
/// systems win.
fn one_run<'r>(found: Vec<&'r Found>) -> Vec<&'r Found> {
    let mut best: Vec<&'r Found> = Vec::new();
    for command in found.iter().map(|f| &f.command) {
        let of: Vec<&Found> = found.iter().copied().filter(|f| f.command == *command).collect();
        if systems(&of).len() > systems(&best).len() {
            best = of;
        }
    }
    best
}

const PLAIN: &str = "plain stores";

fn synthetic(results: &Results) -> Figure {
    let found = one_run(results.of("synthetic", |_| true));
    let sizes: Vec<f64> = found.iter().filter(|f| f.system() == PLAIN).map(|f| f.number("bytes")).collect();
    let plain = |bytes: f64| {
        let of = found.iter().find(|f| f.system() == PLAIN && f.number("bytes") == bytes);
        of.map_or(f64::NAN, |f| f.number("ns_per_tx"))
    };
    let names: Vec<String> = systems(&found).into_iter().filter(|name| name != PLAIN).collect();
    let of = |name: &str, bytes: f64| found.iter().find(|f| f.system() == name && f.number("bytes") == bytes);
    let mut series: Vec<Series> = names
        .iter()
        .map(|name| {
            let over = |bytes: f64| {
                let (time, base) = (of(name, bytes)?.time(bytes), plain(bytes));
                // A floor may be as fast as plain stores: nothing is drawn on a logarithmic axis then.
                let over = time.y - base;
                (over > 0.0).then(|| Measured::told(bytes, over))
            };
            let points = sizes.iter().filter_map(|bytes| over(*bytes)).collect();
            Series { name: name.clone(), points, paper: false }
        })
        .collect();
    // "only 5 usec of overhead for small transactions", 17.9 usec for each KB beyond 1 KB.
    let vista = |bytes: f64| 5_000.0 + (bytes / 1024.0 - 1.0).max(0.0) * 17_900.0;
    let points = sizes.iter().map(|bytes| Measured::told(*bytes, vista(*bytes))).collect();
    series.push(Series { name: "Vista, 1997 (175 MHz)".into(), points, paper: true });
    let small = |factor: f64| vec![Measured::told(8.0, 5_000.0 * factor)];
    series.push(Series { name: "RVM on Rio, 1997".into(), points: small(100.0), paper: true });
    series.push(Series { name: "RVM, 1997".into(), points: small(2000.0), paper: true });
    let plot = Plot {
        x_label: "bytes changed by a transaction",
        y_label: "overhead, ns",
        x_log: true,
        y_log: true,
        paired: false,
        series,
    };
    let mut head = vec!["bytes", "plain stores, ns"];
    head.extend(names.iter().map(String::as_str));
    let mut figure = Figure::new(
        "Synthetic: overhead over plain stores (Vista, Figure 5a)",
        "One range at a random place of 50 MB. Overhead is the time of a transaction less that of the same stores without any; ns, and the ratio to the hand-written undo log. The paper gives 5 us for small transactions and 17.9 us per KB beyond 1 KB; RVM on Rio 100 and RVM 2,000 times as much for small ones.",
        plot.svg(),
        &head,
        &found,
    );
    for bytes in sizes {
        let cell = |name: &String| {
            of(name, bytes).map_or("".into(), |f| {
                format!("{:.0} ({:.2}x)", f.number("ns_per_tx") - plain(bytes), f.number("ratio_to_floor"))
            })
        };
        figure.row(
            [format!("{bytes}"), format!("{:.0}", plain(bytes))].into_iter().chain(names.iter().map(cell)),
        );
    }
    figure
}

fn throughput(results: &Results, workload: &str, class: &str, title: &str) -> Figure {
    let found = one_run(results.of(workload, |f| {
        f.text("class") == class && f.number("bytes").is_nan() && f.number("threads") == 1.0
    }));
    let rows: Vec<_> = found.iter().map(|f| (f.system(), f.rate(0.0))).collect();
    let text = match (workload, class) {
        ("debit-credit", "process") => {
            "Transactions per second, one thread; commits survive a killed process. In 1997 Vista was 41 times as fast as RVM on Rio and 556 times as fast as RVM. Rivals keep records of 128 bytes under keys; redb has no such commit, its figures are of one that survives nothing."
        }
        ("order-entry", _) => {
            "Transactions per second. In 1997 Vista was 14 times as fast as RVM on Rio and 150 times as fast as RVM."
        }
        ("persistent", _) => {
            "Ordinary memory taken for persistent: cache lines written back and fenced, no system call."
        }
        _ => "One thread; every commit forced to the disk. The floor is one forced write of 200 bytes.",
    };
    let svg = if rows.is_empty() { String::new() } else { bars("transactions per second", true, &rows) };
    let head = ["", "tx/s", "ns per tx", "p50 ns", "p99 ns", "p99.9 ns", "to the floor"];
    let mut figure = Figure::new(title, text, svg, &head, &found);
    for f in &found {
        let version = if f.text("version").is_empty() {
            String::new()
        } else {
            format!(" {}", short(f.text("version")))
        };
        let plain = |name: &str| brief(f.number(name));
        figure.row([
            f.system() + &version,
            brief(f.rate(0.0).y),
            plain("ns_per_tx"),
            plain("p50_ns"),
            plain("p99_ns"),
            plain("p999_ns"),
            format!("{:.2}", f.number("ratio_to_floor")),
        ]);
    }
    figure
}

/// The number in a version's text.
fn short(version: &str) -> String {
    let number = version.split([' ', ':', ',']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    number.unwrap_or(version).to_owned()
}

fn group_commit(results: &Results) -> Figure {
    let found = one_run(results.of("group-commit", |f| f.number("in_flight").is_nan()));
    let flying = results.of("group-commit", |f| f.number("in_flight").is_finite());
    let names: Vec<String> = systems(&found).into_iter().filter(|n| n != "bare forced write").collect();
    let of = |name: &String| found.iter().filter(|f| f.system() == *name).collect::<Vec<_>>();
    let series = names.iter().map(|name| Series {
        name: name.clone(),
        points: of(name).iter().map(|f| f.rate(f.number("threads"))).collect(),
        paper: false,
    });
    let series: Vec<Series> = series.collect();
    let plot = Plot {
        x_label: "threads",
        y_label: "transactions per second",
        x_log: true,
        y_log: true,
        paired: false,
        series,
    };
    let mut figure = Figure::new(
        "Group commit (Vista, Figure 6): forced debit-credit by several threads",
        "Each thread on tables of its own. In 1997 RVM with groups of 64 stayed far behind Vista, and a single thread gained nothing from it: that is what commits in flight are for, in the last line. \"To the force\" is the time per transaction over that of a bare forced write.",
        if found.is_empty() { String::new() } else { plot.svg() },
        &["", "threads", "tx/s", "p50 us", "p99 us", "to the force"],
        &found,
    );
    for f in found.iter().chain(&flying) {
        let flying = if f.number("in_flight").is_finite() { ", 256 in flight" } else { "" };
        figure.row([
            f.system() + flying,
            brief(f.number("threads")),
            brief(f.rate(0.0).y),
            brief(f.number("p50_ns") / 1e3),
            brief(f.number("p99_ns") / 1e3),
            format!("{:.3}", f.number("ratio_to_floor")),
        ]);
    }
    figure
}

/// RVM's Table 1: transactions per second at 12.5 % to 175 %, sequential, random and localized.
const TABLE_1: [(f64, [f64; 3]); 14] = [
    (12.5, [48.6, 47.9, 47.5]),
    (25.0, [48.5, 46.4, 46.6]),
    (37.5, [48.6, 45.5, 46.2]),
    (50.0, [48.2, 44.7, 45.1]),
    (62.5, [48.1, 43.9, 44.2]),
    (75.0, [47.7, 43.2, 43.4]),
    (87.5, [47.2, 42.5, 43.8]),
    (100.0, [46.9, 41.6, 41.1]),
    (112.5, [46.3, 40.8, 39.0]),
    (125.0, [46.9, 39.7, 39.0]),
    (137.5, [48.6, 33.8, 40.0]),
    (150.0, [46.9, 33.3, 39.4]),
    (162.5, [46.5, 30.9, 38.7]),
    (175.0, [46.4, 27.4, 35.4]),
];
const PATTERNS: [&str; 3] = ["sequential", "random", "localized"];

fn tpca(results: &Results) -> Vec<Figure> {
    let found = results.of("tpca", |_| true);
    let of = |pattern: &str| found.iter().filter(|f| f.text("pattern") == pattern).collect::<Vec<_>>();
    let ratio = |f: &Found| f.number("rmem_pmem") * 100.0;
    let (mut throughput, mut processor) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for (i, pattern) in PATTERNS.into_iter().enumerate() {
        let points = of(pattern);
        let Some(base) = points.first().map(|f| f.rate(0.0).y) else { continue };
        let share = |f: &&&Found| {
            let rate = f.rate(ratio(f));
            let of_base = |v: f64| v / base * 100.0;
            Measured { x: rate.x, y: of_base(rate.y), span: (of_base(rate.span.0), of_base(rate.span.1)) }
        };
        let name = format!("Caliburn redo, {pattern}");
        throughput.push(Series { name, points: points.iter().map(share).collect(), paper: false });
        let paper = TABLE_1.iter().map(|(x, y)| Measured::told(*x, y[i] / TABLE_1[0].1[i] * 100.0));
        let name = format!("RVM 1993, {pattern}");
        throughput.push(Series { name, points: paper.collect(), paper: true });
        let cpu = points.iter().map(|f| Measured::told(ratio(f), f.number("cpu_ns_per_tx") / 1e3)).collect();
        processor.push(Series { name: (*pattern).into(), points: cpu, paper: false });
        for f in &points {
            let told = TABLE_1.iter().find(|(x, _)| *x == ratio(f)).map_or(f64::NAN, |(_, y)| y[i]);
            rows.push(vec![
                (*pattern).to_owned(),
                format!("{:.1} %", ratio(f)),
                brief(f.rate(0.0).y),
                format!("{:.1} %", f.rate(0.0).y / base * 100.0),
                format!("{told:.1} ({:.1} %)", told / TABLE_1[0].1[i] * 100.0),
                format!("{:.1}", f.number("cpu_ns_per_tx") / 1e3),
                brief(f.number("p99_ns") / 1e3),
            ]);
        }
    }
    // A colour for each pattern, the paper's dashed beside it.
    let x_label = "recoverable memory, % of physical memory";
    let one = Plot {
        x_label,
        y_label: "% of the rate at 12.5 %",
        x_log: false,
        y_log: false,
        paired: true,
        series: throughput,
    };
    let two = Plot {
        x_label,
        y_label: "processor us per transaction",
        x_log: false,
        y_log: false,
        paired: false,
        series: processor,
    };
    let mut figure = Figure::new(
        "TPC-A with data beyond memory (RVM, Table 1 and Figures 8 and 9)",
        "Forced commits within a memory control group, without swap. Above: throughput against that with data of an eighth of memory, with the paper's own curves dashed; below: processor time per transaction of all threads.",
        if rows.is_empty() { String::new() } else { one.svg() + &two.svg() },
        &["accounts", "data/memory", "tx/s", "of 12.5 %", "RVM 1993, tx/s", "processor us/tx", "p99 us"],
        &found,
    );
    figure.rows = rows;
    vec![figure]
}

/// RVM's Table 2: savings within and between transactions, in percent.
const TABLE_2: [(&str, f64, f64); 9] = [
    ("RVM 1993, server", 20.7, 0.0),
    ("RVM 1993, server", 21.5, 0.0),
    ("RVM 1993, server", 20.9, 0.0),
    ("RVM 1993, client", 41.6, 26.7),
    ("RVM 1993, client", 31.2, 22.0),
    ("RVM 1993, client", 28.1, 20.9),
    ("RVM 1993, client", 25.8, 21.9),
    ("RVM 1993, client", 41.3, 36.2),
    ("RVM 1993, client", 17.3, 64.3),
];

fn coda(results: &Results) -> Figure {
    let found = results.of("coda", |_| true);
    let name = |f: &&Found| match f.number("flush_every") {
        1.0 => format!("Caliburn redo, {}", f.text("machine")),
        every => format!("Caliburn redo, {}, flush every {every:.0}", f.text("machine")),
    };
    let saved = |f: &&Found| Measured::told(0.0, f.number("total_saved") * 100.0);
    let mut rows: Vec<_> = found.iter().map(|f| (name(f), saved(f))).collect();
    rows.extend(TABLE_2.map(|(name, intra, inter)| (name.to_owned(), Measured::told(0.0, intra + inter))));
    let mut figure = Figure::new(
        "Log bytes saved by the two optimisations (RVM, Table 2)",
        "Generated transactions like those of Coda's servers and clients; sizes of structures are ours.",
        if found.is_empty() { String::new() } else { bars("log bytes saved, %", false, &rows) },
        &["", "transactions", "bytes written to the log", "saved within", "saved between", "together"],
        &found,
    );
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    for f in &found {
        figure.row([
            name(f),
            brief(f.number("transactions")),
            brief(f.number("log_bytes")),
            percent(f.number("intra_saved")),
            percent(f.number("inter_saved")),
            percent(f.number("total_saved")),
        ]);
    }
    if !found.is_empty() {
        for (name, intra, inter) in TABLE_2 {
            let [a, b, c] = [intra, inter, intra + inter].map(|v| percent(v / 100.0));
            figure.row([name.to_owned(), String::new(), String::new(), a, b, c]);
        }
    }
    figure
}

fn restart(results: &Results) -> Figure {
    let mut found = results.of("restart", |_| true);
    found.sort_by(|a, b| {
        (a.number("data_mb"), a.text("cache"))
            .partial_cmp(&(b.number("data_mb"), b.text("cache")))
            .expect("numbers")
    });
    let name = |f: &&Found| {
        let [cache, log, exit] = ["cache", "log", "exit"].map(|name| f.text(name));
        let state =
            if f.text("system") == "caliburn" { format!(", {log} log, {exit}") } else { String::new() };
        format!("{}: {:.0} MB, {cache}{state}", f.system(), f.number("data_mb"))
    };
    let time = |f: &&Found| {
        let (y, least, most) = (f.number("first_tx_ms"), f.number("min_ms"), f.number("max_ms"));
        Measured { x: 0.0, y, span: if least.is_finite() { (least, most) } else { (y, y) } }
    };
    let rows: Vec<_> = found.iter().map(|f| (name(f), time(f))).collect();
    let mut figure = Figure::new(
        "From opening to the first transaction",
        "After a clean end or SIGKILL, with the page cache warm or dropped. A full log is one of 64 MB. Rivals: to the first read, after 10,000 debit-credit transactions over all accounts and SIGKILL; redb's were forced, since no others of its survive that.",
        if rows.is_empty() { String::new() } else { bars("ms", true, &rows) },
        &["", "ms", "least", "most"],
        &found,
    );
    for (name, m) in rows {
        figure.row([name, format!("{:.2}", m.y), format!("{:.2}", m.span.0), format!("{:.2}", m.span.1)]);
    }
    figure
}

fn threads(results: &Results) -> Figure {
    let found = results.of("threads", |_| true);
    let names = systems(&found);
    let of = |name: &String| found.iter().filter(|f| f.system() == *name).collect::<Vec<_>>();
    let series = names.iter().map(|name| Series {
        name: name.clone(),
        points: of(name).iter().map(|f| f.rate(f.number("threads"))).collect(),
        paper: false,
    });
    let series = series.collect();
    let plot = Plot {
        x_label: "threads",
        y_label: "transactions per second",
        x_log: true,
        y_log: true,
        paired: false,
        series,
    };
    let mut figure = Figure::new(
        "Threads: debit-credit that survives the process, each thread on tables of its own",
        "Transactions per second of all threads, and against one thread of the same system. The hand-written log shares nothing: what it gains is what the processors give.",
        if found.is_empty() { String::new() } else { plot.svg() },
        &["", "threads", "tx/s", "to one thread", "p99 ns"],
        &found,
    );
    for name in &names {
        let all = of(name);
        let one = all.first().map_or(f64::NAN, |f| f.rate(0.0).y);
        for f in all {
            let rate = f.rate(0.0).y;
            figure.row([
                name.clone(),
                brief(f.number("threads")),
                brief(rate),
                format!("{:.2}", rate / one),
                brief(f.number("p99_ns")),
            ]);
        }
    }
    figure
}

fn latency(results: &Results) -> Figure {
    let found = results.of("latency", |_| true);
    let shares = [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999), ("p9999_ns", 0.9999)];
    let name = |f: &&Found| format!("{}, {}, {}/s", f.system(), f.text("class"), brief(f.number("rate")));
    let series = found.iter().map(|f| {
        let points = shares.map(|(name, share)| Measured::told(1.0 / (1.0 - share), f.number(name)));
        let points = points.into_iter().filter(|p| p.y.is_finite()).collect();
        Series { name: name(f), points, paper: false }
    });
    let series = series.collect();
    let plot = Plot {
        x_label: "one in so many transactions takes longer (2: the median)",
        y_label: "ns",
        x_log: true,
        y_log: true,
        paired: false,
        series,
    };
    let mut figure = Figure::new(
        "Latency at a fixed rate",
        "Debit-credit, timed from when each transaction was due: whoever had to wait for a pause is counted with the wait.",
        if found.is_empty() { String::new() } else { plot.svg() },
        &["", "p50 ns", "p99 ns", "p99.9 ns", "p99.99 ns", "worst ns", "kept up"],
        &found,
    );
    for f in &found {
        let at = |name: &str| brief(f.number(name));
        let kept = if f.is("kept_up") { "yes" } else { "no" };
        figure.row([
            name(f),
            at("p50_ns"),
            at("p99_ns"),
            at("p999_ns"),
            at("p9999_ns"),
            at("max_ns"),
            kept.into(),
        ]);
    }
    figure
}

fn sustained(results: &Results) -> Figure {
    let found = results.of("sustained", |_| true);
    let name = |f: &&Found| {
        let truncated = if f.is("truncated") { "truncated all the time" } else { "not truncated" };
        format!("{}, log of {:.0} MB {truncated}", f.system(), f.number("log_mb"))
    };
    let rows: Vec<_> = found.iter().map(|f| (name(f), f.rate(0.0))).collect();
    let mut figure = Figure::new(
        "Lazy commits with truncation running",
        "Debit-credit in the Process class, as fast as it goes.",
        if rows.is_empty() { String::new() } else { bars("transactions per second", false, &rows) },
        &["", "tx/s", "rate to that without", "p50 ns", "p99 ns", "p99.9 ns"],
        &found,
    );
    for f in &found {
        let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|name| brief(f.number(name)));
        figure.row([
            name(f),
            brief(f.rate(0.0).y),
            format!("{:.2}", 1.0 / f.number("ratio_to_floor")),
            p50,
            p99,
            p999,
        ]);
    }
    figure
}
