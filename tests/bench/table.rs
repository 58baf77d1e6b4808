//! The table that is printed at the end, and times in a readable form.

use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Rows: figure, value, ratio, target, verdict.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

/// A target, and whether it is reached.
pub(crate) struct Goal {
    says: String,
    limit: f64,
    at_least: bool,
}

impl Goal {
    pub(crate) fn at_most(says: &str, limit: f64) -> Self {
        Self {
            says: format!("<= {says}"),
            limit,
            at_least: false,
        }
    }

    pub(crate) fn at_least(says: &str, limit: f64) -> Self {
        Self {
            says: format!(">= {says}"),
            limit,
            at_least: true,
        }
    }

    /// Returns the target in words, and the verdict.
    pub(crate) fn met_by(self, value: f64) -> (String, bool) {
        let met = if self.at_least {
            value >= self.limit
        } else {
            value <= self.limit
        };
        (self.says, met)
    }
}

impl Table {
    /// Adds a figure without a target.
    pub(crate) fn fact(&mut self, what: &str, value: &str) {
        self.push([what, value, "", "", ""]);
    }

    /// Adds a figure of another tool, and its leftovers.
    pub(crate) fn compared(&mut self, what: &str, value: &str, leaves: &str) {
        self.push([what, value, leaves, "", ""]);
    }

    /// Adds a figure with a target.
    pub(crate) fn goal(
        &mut self,
        what: &str,
        value: &str,
        ratio: &str,
        (goal, met): (String, bool),
    ) {
        let verdict = if met { "reached" } else { "NOT REACHED" };
        self.push([what, value, ratio, &goal, verdict]);
    }

    /// Adds a figure that is missing, and the reason.
    pub(crate) fn not_measured(&mut self, what: &str, why: &str) {
        self.push([what, "not measured", why, "", ""]);
    }

    fn push(&mut self, row: [&str; 5]) {
        eprintln!("{}", row.join("  ").trim_end());
        self.rows.push(row.map(str::to_owned));
    }

    pub(crate) fn print(&self) {
        let heads = ["what", "value", "ratio", "target", ""].map(str::to_owned);
        let rows: Vec<&[String; 5]> = std::iter::once(&heads).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..5)
            .map(|column| {
                rows.iter()
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        println!();
        for row in rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            println!("{}", cells.join("  ").trim_end());
        }
        let missed = self
            .rows
            .iter()
            .filter(|row| row[4] == "NOT REACHED")
            .count();
        println!("\n{missed} of the targets are not reached on this machine in this run.");
        let file = crate::target().join("bench.json");
        match std::fs::write(&file, self.json(&Host::look()).to_string()) {
            Ok(()) => println!("These figures are in {}.", file.display()),
            Err(error) => println!("{} could not be written: {error}", file.display()),
        }
    }

    /// Returns each row with its words, and with their first number, for the comparison of two runs.
    fn json(&self, host: &Host) -> Value {
        let rows = self
            .rows
            .iter()
            .map(|[what, value, ratio, target, verdict]| {
                let reached = (!verdict.is_empty()).then_some(verdict == "reached");
                json!({
                    "what": what,
                    "value": value,
                    "value_number": number(value),
                    "ratio": ratio,
                    "ratio_number": number(ratio),
                    "target": target,
                    "target_number": number(target),
                    "reached": reached,
                })
            });
        json!({
            "measured_unix_s": host.now_s,
            "kernel": host.kernel,
            "cores": host.cores,
            "load_average_1m": host.load,
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

/// The host of the measurement.
struct Host {
    now_s: u64,
    kernel: String,
    cores: usize,
    /// Load of the machine. Above the number of cores figures mean little.
    load: Option<f64>,
}

impl Host {
    fn look() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            now_s: now.map_or(0, |now| now.as_secs()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load: number(&read("/proc/loadavg")),
        }
    }
}

/// Returns the first number in a text.
fn number(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut parts = text.split(|c| !is_part(c));
    parts.find_map(|part| part.parse().ok())
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Times of many repetitions.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn at(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn p50_us(&self) -> f64 {
        self.at(50).as_secs_f64() * 1e6
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.at(99).as_secs_f64() * 1e6
    }

    pub(crate) fn p50(&self) -> String {
        readable(self.at(50))
    }

    pub(crate) fn p99(&self) -> String {
        readable(self.at(99))
    }

    pub(crate) fn max(&self) -> String {
        readable(self.at(100))
    }
}

fn readable(took: Duration) -> String {
    let micros = took.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.0} us")
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_numbers_and_verdicts_of_rows() {
        let mut table = Table::default();
        table.goal(
            "runs",
            "412 / 80",
            "0.21 x bare",
            Goal::at_least("0.5 x bare", 0.5).met_by(0.21),
        );
        table.fact("raw", "16 us");
        table.not_measured("peer", "not installed");
        let host = Host {
            now_s: 1,
            kernel: "6.18".into(),
            cores: 2,
            load: None,
        };
        let json = table.json(&host);
        assert_eq!(json["cores"], 2);
        let rows = &json["rows"];
        assert_eq!(rows[0]["value_number"], 412.0);
        assert_eq!(rows[0]["ratio_number"], 0.21);
        assert_eq!(rows[0]["target_number"], 0.5);
        assert_eq!(rows[0]["reached"], false);
        assert_eq!(rows[1]["value_number"], 16.0);
        assert!(rows[1]["reached"].is_null());
        assert!(rows[2]["value_number"].is_null());
    }
}
