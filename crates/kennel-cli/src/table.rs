//! Tables for people: columns of the width that a terminal shows, and colour for states where it is permitted.

use crate::terminal_text;
use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Green, yellow and red, as a terminal has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Good,
    Passing,
    Bad,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "\x1b[32m",
            Self::Passing => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// Least width of a last column that is cut.
const LAST_WIDTH_MIN: usize = 8;

/// A text, which may be coloured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    pub(crate) fn coloured(text: impl AsRef<str>, colour: Option<Colour>) -> Self {
        Self {
            text: terminal_text::one_line(text.as_ref()),
            colour,
        }
    }

    /// Whether it says more than that there is nothing.
    pub(crate) fn is_said(&self) -> bool {
        self.text != "-"
    }

    /// Makes the cell of a value, a dash where there is none.
    pub(crate) fn or_dash(value: Option<impl ToString>) -> Self {
        Self::from(value.map_or_else(|| "-".to_owned(), |value| value.to_string()))
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::coloured(text, None)
    }
}

/// Rows below a heading, safe for a terminal.
pub(crate) fn table(heading: &[&str], rows: Vec<Vec<Cell>>, in_colour: bool) -> String {
    fitting(heading, rows, None, in_colour)
}

/// Rows likewise, whose last cells are cut so that a line has at most this width.
pub(crate) fn fitting(
    heading: &[&str],
    rows: Vec<Vec<Cell>>,
    width_max: Option<usize>,
    in_colour: bool,
) -> String {
    let heading = heading.iter().map(Cell::from).collect();
    let mut rows: Vec<Vec<Cell>> = std::iter::once(heading).chain(rows).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.text.width())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    if let (Some(width_max), Some((_, before))) = (width_max, widths.split_last()) {
        let taken: usize = before.iter().map(|width| width + 2).sum();
        let room = width_max.saturating_sub(taken).max(LAST_WIDTH_MIN);
        for last in rows.iter_mut().filter_map(|row| row.last_mut()) {
            last.text = cut(&last.text, room);
        }
    }
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            match cell.colour.filter(|_| in_colour) {
                // Writing to a String cannot fail.
                Some(colour) => drop(write!(text, "{}{}\x1b[0m", colour.code(), cell.text)),
                None => text.push_str(&cell.text),
            }
            // Lines get no trailing spaces.
            if row[column + 1..].iter().any(|cell| !cell.text.is_empty()) {
                let room = widths[column] + 2 - cell.text.width();
                text.extend(std::iter::repeat_n(' ', room));
            }
        }
        text.push('\n');
    }
    text
}

/// Returns the beginning of a text, up to the width, and `...` where that is not all.
pub(crate) fn cut(text: &str, width_max: usize) -> String {
    if text.width() <= width_max {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut room = width_max.saturating_sub(3);
    for c in text.chars() {
        let Some(left) = room.checked_sub(c.width().unwrap_or_default()) else {
            break;
        };
        room = left;
        cut.push(c);
    }
    cut + "..."
}

/// Whether standard output may have colour: it is a terminal that has some, and `NO_COLOR` is not set. `CLICOLOR_FORCE` wins
/// over all.
pub(crate) fn in_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|v| !v.is_empty() && v != "0");
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    forced || (!is_set("NO_COLOR") && !dumb && io::stdout().is_terminal())
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-44
    #[test]
    fn column_width_counts_displayed_characters() {
        let rows = vec![
            vec![
                "二二".into(),
                Cell::coloured("UP", Some(Colour::Good)),
                "x".into(),
            ],
            vec!["a".into(), "\u{1b}[m".into(), Cell::default()],
        ];
        assert_eq!(
            table(&["NAME", "STATE", "C"], rows.clone(), false),
            "NAME  STATE     C\n二二  UP        x\na     \\u{1b}[m\n"
        );
        let shown = table(&["NAME", "STATE", "C"], rows, true);
        assert!(
            shown.contains("二二  \u{1b}[32mUP\u{1b}[0m        x\n"),
            "{shown:?}"
        );
    }

    #[test]
    fn long_text_is_cut_by_width() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abc...");
        assert_eq!(cut("二二二二", 7), "二二...");
    }
}
