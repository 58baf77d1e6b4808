//! Report of the proof, for people and as JSON.

use super::{
    sandbox::Reach,
    suite::{Outcome, Way},
};
use kennel_naughty::PROGRAMS;
use serde_json::{Value, json};
use std::{fmt::Write as _, time::Duration};

/// Width of the column of names and of each other column.
const NAME_WIDTH: usize = 23;
const CELL_WIDTH: usize = 21;

pub(super) struct Report {
    /// Containment of runs on this host.
    pub(super) containment: &'static str,
    /// Access that a run in a sandbox had.
    pub(super) reach: Option<Reach>,
    /// Each way with the outcome of every program, in the order of the suite.
    pub(super) columns: Vec<(Way, Vec<Outcome>)>,
}

/// Number of programs of one way with each outcome.
#[derive(Default)]
struct WayTally {
    empty: usize,
    admitted: usize,
    lies: usize,
    not_run: usize,
}

impl Report {
    /// Whether no verdict was false.
    pub(super) fn holds(&self) -> bool {
        let is_held = self.reach.as_ref().is_none_or(Reach::holds);
        is_held && self.columns.iter().all(|(_, cells)| tally(cells).lies == 0)
    }

    pub(super) fn text(&self, took: Duration) -> String {
        let mut text = format!(
            "Containment of runs: {}\n\n{:NAME_WIDTH$}",
            self.containment, "program"
        );
        for (way, _) in &self.columns {
            let _ = write!(text, "{:CELL_WIDTH$}", name(*way));
        }
        trim_end(&mut text);
        for (index, program) in PROGRAMS.iter().enumerate() {
            let _ = write!(text, "{:NAME_WIDTH$}", program.name);
            for (_, cells) in &self.columns {
                let _ = write!(text, "{:CELL_WIDTH$}", cell(&cells[index]));
            }
            trim_end(&mut text);
        }
        text.push('\n');
        for (way, cells) in &self.columns {
            let _ = writeln!(text, "{}", guarantee(*way, &tally(cells)));
        }
        if let Some(reach) = &self.reach {
            let _ = writeln!(text, "{}", reach.text());
        }
        text.push('\n');
        self.notes(&mut text);
        let _ = writeln!(text, "took {} s", took.as_secs());
        text
    }

    /// Adds details that do not fit into the cells, each once.
    fn notes(&self, text: &mut String) {
        let mut notes = Vec::new();
        for (way, cells) in &self.columns {
            for (program, outcome) in PROGRAMS.iter().zip(cells) {
                let note = match outcome {
                    Outcome::Empty(_) => continue,
                    Outcome::NotRun(why) => format!("{}: not run: {why}", program.name),
                    Outcome::Admitted { verdict, left } => format!(
                        "{}, {}: {verdict}; found and ended: {left:?}",
                        program.name,
                        name(*way)
                    ),
                    Outcome::Lie { verdict, left } => format!(
                        "{}, {}: {verdict}, BUT THERE WERE {left:?}",
                        program.name,
                        name(*way)
                    ),
                };
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        for note in &notes {
            let _ = writeln!(text, "{note}");
        }
        if !notes.is_empty() {
            text.push('\n');
        }
    }

    pub(super) fn json(&self) -> String {
        let ways: Vec<Value> = self
            .columns
            .iter()
            .map(|(way, cells)| {
                let programs = PROGRAMS.iter().zip(cells);
                let tally = tally(cells);
                json!({
                    "way": name(*way),
                    "holds": tally.lies == 0,
                    "empty": tally.empty,
                    "admitted": tally.admitted,
                    "lies": tally.lies,
                    "notRun": tally.not_run,
                    "programs": programs
                        .map(|(program, outcome)| as_json(program.name, outcome))
                        .collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "holds": self.holds(),
            "containment": self.containment,
            "sandbox": self.reach.as_ref().map(Reach::json),
            "ways": ways,
        })
        .to_string()
    }
}

fn as_json(program: &str, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::NotRun(why) => json!({"program": program, "outcome": "notRun", "why": why}),
        Outcome::Empty(proof) => json!({"program": program, "outcome": "empty", "proof": proof}),
        Outcome::Admitted { verdict, left } => {
            json!({"program": program, "outcome": "admitted", "verdict": verdict, "left": left})
        }
        Outcome::Lie { verdict, left } => {
            json!({"program": program, "outcome": "lie", "verdict": verdict, "left": left})
        }
    }
}

fn tally(cells: &[Outcome]) -> WayTally {
    let mut tally = WayTally::default();
    for cell in cells {
        match cell {
            Outcome::NotRun(_) => tally.not_run += 1,
            Outcome::Empty(_) => tally.empty += 1,
            Outcome::Admitted { .. } => tally.admitted += 1,
            Outcome::Lie { .. } => tally.lies += 1,
        }
    }
    tally
}

fn guarantee(way: Way, tally: &WayTally) -> String {
    let what = match way {
        Way::NormalEnd => "When its command exits, the rest of a run's tree is ended",
        Way::Abort => "Abort ends the whole tree",
        Way::Timeout => "At its deadline the whole tree is ended",
        Way::ServerKilled => "After a SIGKILL of the server Abort ends the whole tree",
        Way::KeeperKilled => "A SIGKILL of the keeper leaves no tree behind",
    };
    let holds = match (tally.lies, tally.empty) {
        (0, 0) => "not run",
        (0, _) => "holds",
        _ => "BROKEN",
    };
    format!(
        "{holds:8}{what}, or the verdict says so: {} empty, {} admitted, {} not run, {} untrue",
        tally.empty, tally.admitted, tally.not_run, tally.lies
    )
}

fn name(way: Way) -> &'static str {
    match way {
        Way::NormalEnd => "command exits",
        Way::Abort => "abort",
        Way::Timeout => "deadline",
        Way::ServerKilled => "server killed",
        Way::KeeperKilled => "keeper killed",
    }
}

fn cell(outcome: &Outcome) -> String {
    match outcome {
        Outcome::NotRun(_) => "not run".to_owned(),
        Outcome::Empty(proof) => format!("empty ({proof})"),
        Outcome::Admitted { left, .. } => format!("admitted, {} left", left.len()),
        Outcome::Lie { left, .. } => format!("UNTRUE: {} left", left.len()),
    }
}

fn trim_end(text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(last: Outcome) -> Report {
        let mut cells = vec![Outcome::Empty("shim"); PROGRAMS.len() - 1];
        cells.push(last);
        Report {
            containment: "shim",
            reach: None,
            columns: vec![(Way::Abort, cells)],
        }
    }

    // promise: C-20
    #[test]
    fn false_verdict_breaks_the_guarantee() {
        let lie = Outcome::Lie {
            verdict: "empty".to_owned(),
            left: vec![7],
        };
        let report = report(lie);
        assert!(!report.holds());
        let text = report.text(Duration::ZERO);
        assert!(
            text.contains("BROKEN") && text.contains("BUT THERE WERE [7]"),
            "{text}"
        );
        assert!(report.json().contains("\"holds\":false"));
    }

    #[test]
    fn skipped_check_has_a_reason_and_passes() {
        let report = report(Outcome::NotRun("no such thing here".to_owned()));
        assert!(report.holds());
        let text = report.text(Duration::ZERO);
        assert!(text.contains("not run: no such thing here"), "{text}");
        assert!(report.json().contains("\"notRun\":1"));
    }
}
