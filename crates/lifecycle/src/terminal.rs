//! Terminal of a command: its type and size.

use crate::{Violation, limits};
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

impl TerminalSpec {
    /// Adds violations of the terminal itself.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        let mut wrong = |field: &str, what: &str| found.push(Violation::new(field, what));
        let TerminalSize { rows, cols } = self.size;
        if rows == 0 {
            wrong("spec.terminal.rows", limits::TERMINAL_SIDE_WANTED);
        }
        if cols == 0 {
            wrong("spec.terminal.cols", limits::TERMINAL_SIDE_WANTED);
        }
        let term = &self.term;
        let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if term.is_empty() || term.len() > limits::TERM_BYTES_MAX || !term.bytes().all(is_name) {
            wrong(
                "spec.terminal.term",
                "must be the name of a terminal: 1 to 128 printable ASCII characters, neither space nor '/'",
            );
        }
    }
}
