//! The table that is printed at the end, and times as people read them.

use std::time::Duration;

/// Rows: what, value, ratio, goal, reached.
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

    /// The target in words, and the verdict.
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
    /// A figure without a target.
    pub(crate) fn fact(&mut self, what: &str, value: &str) {
        self.push([what, value, "", "", ""]);
    }

    /// A figure of somebody else's, and what it leaves.
    pub(crate) fn compared(&mut self, what: &str, value: &str, leaves: &str) {
        self.push([what, value, leaves, "", ""]);
    }

    /// A figure with one.
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

    /// A figure that is missing, and why.
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
    }
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

    pub(crate) fn p50(&self) -> String {
        readable(self.at(50))
    }

    pub(crate) fn p99(&self) -> String {
        readable(self.at(99))
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
