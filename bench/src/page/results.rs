//! What a run wrote down: one JSON object per line. `{"run": ...}` says where and when, `{"command": ...}`
//! which command the lines after it come from.

use super::plot::Measured;
use crate::target::Failure;
use serde_json::Value;
use std::path::Path;

/// A result, and the command that it comes from.
#[derive(Debug, Clone)]
pub struct Found {
    /// As the benchmarks print it.
    pub value: Value,
    /// The command.
    pub command: String,
}

impl Found {
    /// A number of it; of its parameters, if it has it there.
    pub fn number(&self, name: &str) -> f64 {
        let value = self.value.get(name).or_else(|| self.value["params"].get(name));
        value.and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    /// A text of it, likewise.
    pub fn text(&self, name: &str) -> &str {
        let value = self.value.get(name).or_else(|| self.value["params"].get(name));
        value.and_then(Value::as_str).unwrap_or("")
    }

    /// A yes or no of it, likewise.
    pub fn is(&self, name: &str) -> bool {
        let value = self.value.get(name).or_else(|| self.value["params"].get(name));
        value.and_then(Value::as_bool).unwrap_or(false)
    }

    /// What was measured, as figures name it.
    pub fn system(&self) -> String {
        match (self.text("system"), self.text("policy")) {
            ("caliburn", policy) => format!("Caliburn {policy}"),
            (other, _) => other.to_owned(),
        }
    }

    /// Its time per transaction.
    pub fn time(&self, x: f64) -> Measured {
        let (y, least, most) = (self.number("ns_per_tx"), self.number("min_ns"), self.number("max_ns"));
        Measured { x, y, span: if least.is_finite() { (least, most) } else { (y, y) } }
    }

    /// Its transactions per second.
    pub fn rate(&self, x: f64) -> Measured {
        let time = self.time(x);
        Measured { x, y: 1e9 / time.y, span: (1e9 / time.span.1, 1e9 / time.span.0) }
    }
}

/// All of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// Where and when.
    pub run: Value,
    /// In the order of the run.
    pub found: Vec<Found>,
}

impl Results {
    /// Reads a run's lines.
    ///
    /// # Errors
    /// When a line is no JSON: which one.
    pub fn read(path: &Path) -> Result<Results, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (mut results, mut command) = (Results::default(), String::new());
        for (i, line) in text.lines().enumerate() {
            let value: Value =
                serde_json::from_str(line).map_err(|e| format!("{}, line {}: {e}", path.display(), i + 1))?;
            if let Some(run) = value.get("run") {
                results.run = run.clone();
            } else if let Some(text) = value["command"].as_str() {
                // A workload that was measured again has a revision of its own.
                let revision = &value["revision"];
                let again = *revision != results.run["revision"] && revision.is_string();
                let note = if again {
                    format!(" ({})", revision.as_str().unwrap_or_default())
                } else {
                    String::new()
                };
                command = text.to_owned() + &note;
            } else {
                results.found.push(Found { value, command: command.clone() });
            }
        }
        Ok(results)
    }

    /// The results of a workload that are as wanted.
    pub fn of(&self, workload: &str, wanted: impl Fn(&Found) -> bool) -> Vec<&Found> {
        self.found.iter().filter(|f| f.text("workload") == workload && wanted(f)).collect()
    }

    /// How much the floors' rounds differed, as a share of their medians: three quarters of the floors by no
    /// more than that.
    pub fn noise(&self) -> f64 {
        let floors = self.found.iter().filter(|f| f.number("ratio_to_floor") == 1.0);
        let spread = floors.map(|f| (f.number("max_ns") - f.number("min_ns")) / f.number("ns_per_tx"));
        let mut known: Vec<f64> = spread.filter(|s| s.is_finite()).collect();
        known.sort_by(f64::total_cmp);
        known.get(known.len() * 3 / 4).copied().unwrap_or(f64::INFINITY)
    }
}
