//! Lines of a name and a value, for one run or one server.

use crate::{sentence::Fields, terminal_text};
use std::fmt::{Display, Write as _};

/// Width of the names in lines about a run or a server.
pub(super) const NAME_WIDTH: usize = 15;

/// Lines of a name and a value, the values aligned.
pub(super) struct DetailView {
    pub(super) text: String,
    /// Width of the names.
    width: usize,
}

impl DetailView {
    pub(super) fn new(width: usize) -> Self {
        Self {
            text: String::new(),
            width,
        }
    }

    /// Adds a line; control characters of the value are shown, not printed.
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let value = terminal_text::one_line(&value.to_string());
        let _ = writeln!(self.text, "{name:0$} {value}", self.width);
    }

    /// Adds the lines of a table, each a template: `NAME: TEXT`, `NAME / LIST: TEXT` for each element of a list, or a
    /// text without a name. Lines without text are left out.
    pub(super) fn lines(&mut self, table: &str, fields: &Fields<'_>) {
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let (name, text) = line.split_once(": ").unwrap_or(("", line));
            match name.split_once(" / ") {
                Some((name, list)) => {
                    for element in fields.each(list) {
                        self.add(name, text, &Fields::of(&element));
                    }
                }
                None => self.add(name, text, fields),
            }
        }
    }

    fn add(&mut self, name: &str, text: &str, fields: &Fields<'_>) {
        let text = fields.fill(text);
        match name {
            _ if text.is_empty() => {}
            "" => self.text.extend([&*text, "\n"]),
            name => self.line(&fields.fill(name), text),
        }
    }
}
