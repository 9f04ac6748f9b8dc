//! Plots as SVG: lines over two axes, and horizontal bars; medians, with bars from the least to the most of the
//! rounds.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;

/// A measured value: median, least, most.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Over the axis.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// Least and most.
    pub span: (f64, f64),
}

impl Measured {
    /// A value that somebody else tells, without rounds.
    pub fn told(x: f64, y: f64) -> Measured {
        Measured { x, y, span: (y, y) }
    }
}

/// A curve.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<Measured>,
    /// From a paper: drawn dashed.
    pub paper: bool,
}

/// A plot of curves.
#[derive(Debug)]
pub struct Plot<'a> {
    /// What the horizontal axis counts.
    pub x_label: &'a str,
    /// What the vertical axis counts.
    pub y_label: &'a str,
    /// Whether the horizontal axis is logarithmic.
    pub x_log: bool,
    /// Whether the vertical one is.
    pub y_log: bool,
    /// Whether each paper's curve belongs to the one before it.
    pub paired: bool,
    /// The curves.
    pub series: Vec<Series>,
}

/// One axis: from values to places.
struct Axis {
    log: bool,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn new(log: bool, values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Axis {
        let sound = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (least, most) = (sound.clone().fold(f64::MAX, f64::min), sound.fold(f64::MIN, f64::max));
        let (from, to) = if log {
            (
                10f64.powf(least.log10().floor()),
                10f64.powf(most.log10().ceil().max(least.log10().floor() + 1.0)),
            )
        } else {
            (least.min(0.0), if most > 0.0 { most * 1.06 } else { 1.0 })
        };
        Axis { log, from, to, start, end }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.from).log10() - self.from.log10()) / (self.to.log10() - self.from.log10())
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + share * (self.end - self.start)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
            return (first..=last).map(|exponent| 10f64.powi(exponent)).collect();
        }
        let rough = (self.to - self.from) / 6.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        (0..).map(|i| self.from + f64::from(i) * step).take_while(|v| *v <= self.to).collect()
    }
}

/// A number as one reads it: 1.2k, 30M.
pub fn brief(value: f64) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = match scaled.abs() {
        v if v >= 100.0 || v == v.round() => format!("{scaled:.0}"),
        v if v >= 10.0 => format!("{scaled:.1}"),
        _ => format!("{scaled:.2}"),
    };
    text + unit
}

/// For use within markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const COLOURS: [&str; 12] = [
    "#0b5fff", "#e4572e", "#17a398", "#8f2d9b", "#c9a227", "#5a6b7b", "#2e933c", "#d1495b", "#00798c",
    "#7b4b94", "#9c6644", "#444444",
];

/// Grey for floors; else by place.
fn colour(name: &str, i: usize) -> &'static str {
    match name {
        n if n.contains("hand-written") || n.contains("forced write") || n.contains("plain") => "#888888",
        _ => COLOURS[i % COLOURS.len()],
    }
}

impl Plot<'_> {
    /// The markup.
    pub fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|s| s.points.iter());
        let xs = Axis::new(self.x_log, all().map(|p| p.x), LEFT, WIDTH - RIGHT);
        let ys = Axis::new(self.y_log, all().flat_map(|p| [p.y, p.span.0, p.span.1]), HEIGHT - BOTTOM, TOP);
        let mut out = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="plot">"#);
        self.frame(&mut out, &xs, &ys);
        let mut own = 0;
        for (i, series) in self.series.iter().enumerate() {
            // A paper's curve has the colour of ours before it, or is black.
            let colour = match series.paper {
                true if i > 0 && self.paired => colour("", own - 1),
                true => "#222222",
                false => {
                    own += 1;
                    colour(&series.name, own - 1)
                }
            };
            let dash = if series.paper { r#" stroke-dasharray="5 4""# } else { "" };
            let line: Vec<String> =
                series.points.iter().map(|p| format!("{:.1},{:.1}", xs.place(p.x), ys.place(p.y))).collect();
            let _ = write!(
                out,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>"#,
                line.join(" ")
            );
            for point in &series.points {
                let (x, y) = (xs.place(point.x), ys.place(point.y));
                let (low, high) = (ys.place(point.span.0), ys.place(point.span.1));
                let _ = write!(
                    out,
                    r#"<line x1="{x:.1}" x2="{x:.1}" y1="{low:.1}" y2="{high:.1}" stroke="{colour}"/><circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"><title>{}: {} at {} ({} to {})</title></circle>"#,
                    escape(&series.name),
                    brief(point.y),
                    brief(point.x),
                    brief(point.span.0),
                    brief(point.span.1)
                );
            }
            let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 14.0 + i as f64 * 18.0);
            let _ = write!(
                out,
                r#"<line x1="{x}" x2="{}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2.4"{dash}/><text x="{}" y="{}">{}</text>"#,
                x + 22.0,
                x + 28.0,
                y + 4.0,
                escape(&series.name)
            );
        }
        out + "</svg>"
    }

    fn frame(&self, out: &mut String, xs: &Axis, ys: &Axis) {
        for tick in ys.ticks() {
            let y = ys.place(tick);
            let _ = write!(
                out,
                r#"<line class="grid" x1="{LEFT}" x2="{}" y1="{y:.1}" y2="{y:.1}"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                brief(tick)
            );
        }
        for tick in xs.ticks() {
            let x = xs.place(tick);
            let _ = write!(
                out,
                r#"<line class="grid" y1="{TOP}" y2="{}" x1="{x:.1}" x2="{x:.1}"/><text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0,
                brief(tick)
            );
        }
        let (middle_x, middle_y) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        let _ = write!(
            out,
            r#"<text x="{middle_x}" y="{}" text-anchor="middle" class="axis">{}</text><text transform="translate(18 {middle_y}) rotate(-90)" text-anchor="middle" class="axis">{}</text>"#,
            HEIGHT - 10.0,
            escape(self.x_label),
            escape(self.y_label)
        );
    }
}

/// Horizontal bars on a logarithmic axis: name, value with its span.
pub fn bars(label: &str, log: bool, rows: &[(String, Measured)]) -> String {
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let (left, right, row) = (20.0 + longest as f64 * 6.8, 110.0, 24.0);
    let label = if log { format!("{label} (logarithmic)") } else { label.to_owned() };
    let bottom = TOP + row * rows.len() as f64;
    let height = bottom + 44.0;
    let values = rows.iter().flat_map(|(_, m)| [m.y, m.span.0, m.span.1]);
    let axis = Axis::new(log, values, left, WIDTH - right);
    let mut out = format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" class="plot">"#);
    for tick in axis.ticks() {
        let x = axis.place(tick);
        let _ = write!(
            out,
            r#"<line class="grid" y1="{TOP}" y2="{bottom}" x1="{x:.1}" x2="{x:.1}"/><text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 16.0,
            brief(tick)
        );
    }
    for (i, (name, m)) in rows.iter().enumerate() {
        let (y, end) = (TOP + row * i as f64, axis.place(m.y));
        let (low, high, middle) = (axis.place(m.span.0), axis.place(m.span.1), y + row / 2.0);
        let _ = write!(
            out,
            r#"<rect x="{left}" y="{:.1}" width="{:.1}" height="{}" fill="{}"/><line x1="{low:.1}" x2="{high:.1}" y1="{middle:.1}" y2="{middle:.1}" stroke="black"/><text x="{}" y="{:.1}" text-anchor="end">{}</text><text x="{:.1}" y="{:.1}">{}</text>"#,
            y + 4.0,
            (end - left).max(0.5),
            row - 8.0,
            colour(name, i),
            left - 8.0,
            middle + 4.0,
            escape(name),
            high.max(end) + 6.0,
            middle + 4.0,
            brief(m.y)
        );
    }
    let _ = write!(
        out,
        r#"<text x="{}" y="{}" text-anchor="middle" class="axis">{}</text>"#,
        (left + WIDTH - right) / 2.0,
        height - 6.0,
        escape(&label)
    );
    out + "</svg>"
}
