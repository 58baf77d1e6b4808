//! Lines of a name and a value, for one run or one server.

use crate::terminal_text;
use std::fmt::{Display, Write as _};

/// Lines of a name and a value, the values aligned.
#[derive(Default)]
pub(super) struct View {
    pub(super) text: String,
}

impl View {
    /// Adds a line; control characters of the value are shown, not printed.
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let value = terminal_text::one_line(&value.to_string());
        let _ = writeln!(self.text, "{name:15} {value}");
    }

    /// Adds a line where the text is not empty.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.some(name, Some(text).filter(|text| !text.is_empty()));
    }

    /// Adds a line where there is a value.
    pub(super) fn some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }
}
