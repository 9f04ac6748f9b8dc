//! A run's results as one self-contained page, and as a summary in Markdown.

mod figures;
mod plot;
mod results;

use crate::target::Failure;
use figures::Figure;
use plot::escape;
use results::Results;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// A quarter of the floors differed from round to round by more than this share of their median: the machine
/// was noisy.
const NOISY: f64 = 0.3;
/// Between these the summary stands in a document that has more to say.
const MARKS: [&str; 2] = ["<!-- figures of cargo xtask bench -->", "<!-- end of figures -->"];

/// Reads a run's results; writes the page, and the summary into the document between its marks.
///
/// # Errors
/// When the results cannot be read, or a file not be written.
pub fn make(results: &Path, page: &Path, document: &Path) -> Result<(), Failure> {
    let results = Results::read(results)?;
    let figures = figures::all(&results);
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|e| Failure::from(format!("{}: {e}", path.display())))
    };
    write(page, html(&results, &figures))?;
    let text = std::fs::read_to_string(document).map_err(|e| format!("{}: {e}", document.display()))?;
    let around =
        text.split_once(MARKS[0]).and_then(|(before, rest)| Some((before, rest.split_once(MARKS[1])?.1)));
    let (before, after) = around.ok_or_else(|| format!("{} has no place for figures", document.display()))?;
    let [begin, end] = MARKS;
    write(document, format!("{before}{begin}\n\n{}\n{end}{after}", markdown(&results, &figures)))
}

/// Where and when, and whether it was quiet there.
fn circumstances(results: &Results) -> String {
    let run = |name: &str| results.run[name].as_str().unwrap_or("?").to_owned();
    let noise = results.noise();
    let quiet = if noise > NOISY {
        "**The machine was noisy**: ratios within a run count, not times."
    } else {
        "The machine was quiet."
    };
    format!(
        "{}, {}, {}, {}; {} processors, {}, {}. From round to round three quarters of the floors differed by at most {:.0} % of their medians. {quiet}",
        run("date"),
        run("revision"),
        run("compiler"),
        run("kernel"),
        run("processors"),
        run("processor"),
        run("disk"),
        noise * 100.0
    )
}

fn markdown(results: &Results, figures: &[Figure]) -> String {
    let mut out = format!("{}\n", circumstances(results));
    for figure in figures {
        let _ = write!(out, "\n### {}\n\n{}\n\n", figure.title, figure.text);
        let _ = writeln!(out, "| {} |", figure.head.join(" | "));
        let _ = writeln!(out, "|{}", "---|".repeat(figure.head.len()));
        figure.rows.iter().for_each(|row| {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        });
        let commands: Vec<String> = figure.commands.iter().map(|c| format!("`{c}`")).collect();
        let _ = writeln!(out, "\n{}", commands.join("; "));
    }
    out
}

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.7rem}h2{font-size:1.2rem;margin-top:2.6rem}table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}\
td,th{padding:.15rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}\
td:first-child,th:first-child{text-align:left}code{font-size:.8rem;overflow-wrap:anywhere}\
.plot{width:100%;height:auto;font:12px system-ui,sans-serif}.grid{stroke:#e2e2e2}.axis{font-weight:600}nav li{margin:.1rem 0}\
.noisy{background:#fff3cd;padding:.4rem .8rem}summary{cursor:pointer}";

fn html(results: &Results, figures: &[Figure]) -> String {
    let told = escape(&circumstances(results)).replace("**", "");
    let class = if results.noise() > NOISY { "noisy" } else { "" };
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Caliburn: benchmarks</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{STYLE}</style></head><body>\
         <h1>Caliburn: benchmarks</h1><p class=\"{class}\">{told}</p>\
         <p>Medians of interleaved rounds; bars go from the best round to the worst. Dashed: what the papers say.</p><nav><ol>"
    );
    for (i, figure) in figures.iter().enumerate() {
        let _ = write!(out, "<li><a href=\"#f{i}\">{}</a></li>", escape(&figure.title));
    }
    out.push_str("</ol></nav>");
    for (i, figure) in figures.iter().enumerate() {
        let row = |tag: &str, cells: &[String]| {
            let cells: String = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
            format!("<tr>{cells}</tr>")
        };
        let rows: String = figure.rows.iter().map(|cells| row("td", cells)).collect();
        let commands: String =
            figure.commands.iter().map(|c| format!("<p><code>{}</code></p>", escape(c))).collect();
        let _ = write!(
            out,
            "<section id=\"f{i}\"><h2>{}</h2><p>{}</p>{}<details open><summary>Numbers and commands</summary><table>{}{rows}</table>{commands}</details></section>",
            escape(&figure.title),
            escape(&figure.text),
            figure.svg,
            row("th", &figure.head)
        );
    }
    let data = Value::Array(results.found.iter().map(|f| f.value.clone()).collect()).to_string();
    // All results, for those who want to draw them otherwise.
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"results\">{}</script></body></html>",
        data.replace('<', "\\u003c")
    );
    out
}
