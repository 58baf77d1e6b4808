//! Terminal of a command: its type and size.

use crate::{LeaderExit, Recovery, RunKind, RunSpec, Violation, limits};
use serde::{Deserialize, Serialize};

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Characters of a line.
    pub cols: u16,
}

impl TerminalSize {
    /// Returns the number of its characters.
    #[must_use]
    pub fn cells(self) -> u32 {
        u32::from(self.rows) * u32::from(self.cols)
    }
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self {
            rows: 40,
            cols: 120,
        }
    }
}

/// A requested terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TerminalSpec {
    /// Value of $TERM, where the caller sets no other.
    pub term: String,
    /// Size at the start.
    pub size: TerminalSize,
}

impl Default for TerminalSpec {
    fn default() -> Self {
        Self {
            term: "xterm-256color".into(),
            size: TerminalSize::default(),
        }
    }
}

impl RunSpec {
    /// Adds violations of the terminal, or of fields that need one.
    pub(crate) fn check_terminal(&self, found: &mut Vec<Violation>) {
        let mut wrong = |field: &str, what: &str| found.push(Violation::new(field, what));
        let Some(terminal) = &self.command.terminal else {
            if self.policy.kind == RunKind::Terminal {
                wrong(
                    "spec.pipes",
                    "a run of kind RUN_KIND_TERMINAL is on a terminal",
                );
            }
            return;
        };
        if self.policy.kind != RunKind::Terminal {
            wrong("spec.terminal", "is for runs of kind RUN_KIND_TERMINAL");
        }
        let TerminalSize { rows, cols } = terminal.size;
        if rows == 0 {
            wrong("spec.terminal.rows", limits::TERMINAL_SIDE_WANTED);
        }
        if cols == 0 {
            wrong("spec.terminal.cols", limits::TERMINAL_SIDE_WANTED);
        }
        let term = &terminal.term;
        let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if term.is_empty() || term.len() > limits::TERM_BYTES_MAX || !term.bytes().all(is_name) {
            wrong(
                "spec.terminal.term",
                "must be the name of a terminal: 1 to 128 printable ASCII characters, neither space nor '/'",
            );
        }
        if self.command.initial_input.is_some() {
            wrong(
                "spec.initial_input",
                "is for pipes: what is typed on a terminal is written with WriteInput",
            );
        }
        if self.policy.recovery == Some(Recovery::Adopt) {
            wrong(
                "spec.recovery",
                "a terminal ends with the keeper that holds it: RECOVERY_POLICY_ADOPT is for runs on pipes",
            );
        }
        if self.policy.on_leader_exit == LeaderExit::Keep {
            wrong(
                "spec.on_leader_exit.action",
                "no process can be kept on a terminal: it ends with the run",
            );
        }
    }
}
