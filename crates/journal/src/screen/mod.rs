//! Terminal emulator: the screen after the output bytes, as a grid of characters, and its redraw sequence.
//!
//! Pure: bytes and sizes in, a picture out, the same for every split of the bytes into reads. The model of the grid is
//! [avt](https://docs.rs/avt); state that it does not track (title, reporting modes of keys and mouse) is tracked here.

mod marks;
mod steps;

use avt::{Parser, ScreenKind, Terminal, parser::Function};
use kennel_lifecycle::{KEYBOARD_AT_FIRST, TerminalSize, modes_at_first};
use marks::ScreenMarks;
use std::fmt::Write as _;

/// Most characters of a grid. A larger terminal is not drawn: its model would take the memory that the service needs.
pub const SCREEN_CELLS_MAX: u32 = 1 << 18;

/// Ends an unfinished escape sequence (CAN of ECMA-48).
const CANCEL: char = '\u{18}';

/// Resets the attributes of a terminal, the screen that is shown and its saved cursor: RIS would also remove the
/// scrollback.
const SCREEN_AT_FIRST: &str = "\x1b[!p\x1b[0m\x1b[?6l\x1b[?7h\x1b[r\x1b[H\x1b[2J\x1b7";

/// Initial columns between the tab stops of a terminal.
const TAB_WIDTH: usize = 8;

/// Sets the initial tab stops of a terminal, one by one: few terminals know the one sequence for all of them (DECST8C),
/// and the dump of the grid has no stops where they are the initial ones. The cursor is in the first column before and
/// after.
fn reset_tab_stops(text: &mut String, cols: u16) {
    text.push_str("\x1b[3g");
    for column in (1 + TAB_WIDTH..=cols.into()).step_by(TAB_WIDTH) {
        let _ = write!(text, "\x1b[{column}G\x1bH");
    }
    text.push('\r');
}

/// Whether a terminal of this size can be drawn.
pub fn is_drawn(size: TerminalSize) -> bool {
    (1..=SCREEN_CELLS_MAX).contains(&size.cells())
}

/// Returns this size, or the largest of its width that is drawn.
fn within(size: TerminalSize) -> TerminalSize {
    if is_drawn(size) {
        return size;
    }
    let cols = size.cols.max(1);
    let rows = (SCREEN_CELLS_MAX / u32::from(cols)).min(u32::from(size.rows));
    TerminalSize {
        rows: u16::try_from(rows.max(1)).unwrap_or(u16::MAX),
        cols,
    }
}

/// Returns the sizes by which a grid gets from one size to another. In one step it would have the longer of both sides in
/// each direction: 4,000 lines of 16 characters that become 16 of 4,000 have 16 million cells in between.
fn way(from: TerminalSize, to: TerminalSize) -> impl Iterator<Item = TerminalSize> {
    let (rows, cols) = if to.rows < from.rows {
        (to.rows, from.cols)
    } else {
        (from.rows, to.cols)
    };
    let between = TerminalSize { rows, cols };
    let in_one = TerminalSize {
        rows: from.rows.max(to.rows),
        cols: from.cols.max(to.cols),
    };
    (!is_drawn(in_one))
        .then_some(between)
        .into_iter()
        .chain([to])
}

/// A terminal that receives output.
pub struct Screen {
    terminal: Terminal,
    /// Reads the same as the terminal, one function ahead: so each has its cost before it is carried out.
    parser: Parser,
    /// Whether characters are inserted.
    inserts: bool,
    marks: ScreenMarks,
    /// Text that is still to be drawn, from this byte on.
    text: (String, usize),
    /// Repetitions of the last character that are still to be drawn.
    repeats: u16,
    /// An incomplete UTF-8 character.
    partial: Vec<u8>,
    is_untouched: bool,
}

/// A picture of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Size of the terminal.
    pub size: TerminalSize,
    /// The lines from top to bottom, as many as rows.
    pub lines: Vec<PictureLine>,
    /// Position of the next character: line and column from 0. The column is that of the right edge where the line is
    /// full.
    pub cursor: (u16, u16),
    /// Whether the cursor is visible.
    pub cursor_visible: bool,
    /// Title of the window; absent: none was set.
    pub title: Option<String>,
    /// Whether the alternate screen is shown, as of an editor.
    pub is_alternate: bool,
    /// Whether no output has reached the terminal yet: then it shows nothing, and no mode is set.
    pub is_untouched: bool,
    /// Sequence that draws all of it on a terminal of this size, whatever its earlier state: both screens, cursor,
    /// title, and the reporting modes of keys and mouse.
    pub repaint: Vec<u8>,
}

/// A line of a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureLine {
    /// Adjacent characters of the same style, from the left; blanks without style at the right edge are left out.
    pub spans: Vec<Span>,
    /// Whether it continues in the next line, without a newline between.
    pub is_wrapped: bool,
}

/// Characters of one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The characters; a wide one takes two columns.
    pub text: String,
    /// Their style.
    pub style: Style,
}

/// Style of characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute of SGR")]
pub struct Style {
    /// Colour of the letter; absent: the terminal's own.
    pub foreground: Option<Color>,
    /// Colour behind it; absent: the terminal's own.
    pub background: Option<Color>,
    /// SGR 1.
    pub bold: bool,
    /// SGR 2.
    pub faint: bool,
    /// SGR 3.
    pub italic: bool,
    /// SGR 4.
    pub underline: bool,
    /// SGR 5.
    pub blink: bool,
    /// SGR 7.
    pub inverse: bool,
    /// SGR 9.
    pub strikethrough: bool,
}

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// One of the terminal's 256 colours.
    Indexed(u8),
    /// Red, green, blue.
    Rgb(u8, u8, u8),
}

impl Screen {
    /// Creates an empty screen of this size, or the largest that is drawn.
    pub fn new(size: TerminalSize) -> Self {
        let TerminalSize { rows, cols } = within(size);
        Self {
            terminal: Terminal::new(cols.into(), rows.into()).expect("neither side is 0"),
            parser: Parser::new(),
            inserts: false,
            marks: ScreenMarks::default(),
            text: (String::new(), 0),
            repeats: 0,
            partial: Vec::new(),
            is_untouched: true,
        }
    }

    /// Returns its size.
    pub fn size(&self) -> TerminalSize {
        let (cols, rows) = self.terminal.size();
        let side = |side| u16::try_from(side).unwrap_or(u16::MAX);
        TerminalSize {
            rows: side(rows),
            cols: side(cols),
        }
    }

    /// Changes its size to this, or to the largest that is drawn; what was read before is drawn on the old one.
    pub fn resize(&mut self, size: TerminalSize) {
        self.draw(&mut { u64::MAX });
        for TerminalSize { rows, cols } in way(self.size(), within(size)) {
            self.terminal.resize(cols.into(), rows.into());
        }
    }

    /// Draws the bytes that follow.
    pub fn feed(&mut self, data: &[u8]) {
        self.read(data);
        self.draw(&mut { u64::MAX });
    }

    /// Reads the bytes that follow; [`draw`](Self::draw) draws them.
    pub fn read(&mut self, data: &[u8]) {
        self.is_untouched &= data.is_empty();
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(data);
        let whole = joined.len() - undecided(&joined);
        self.partial = joined.split_off(whole);
        for chunk in joined.utf8_chunks() {
            self.text.0.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                self.text.0.push('\u{fffd}');
            }
        }
    }

    /// Records that bytes are missing: a sequence begun before them is not continued.
    pub fn skip(&mut self) {
        self.is_untouched = false;
        self.partial.clear();
        self.text.0.push(CANCEL);
    }

    /// Draws as much of what was read as so many steps allow, and takes them off; returns whether all is drawn. The last
    /// function may take a few more.
    pub fn draw(&mut self, steps: &mut u64) -> bool {
        while *steps > 0 {
            if self.repeats > 0 {
                self.repeat(steps);
                continue;
            }
            let (text, at) = &mut self.text;
            let Some(letter) = text[*at..].chars().next() else {
                self.text = (String::new(), 0);
                return true;
            };
            *at += letter.len_utf8();
            self.marks.feed(letter);
            let Some(function) = self.parser.feed(letter) else {
                *steps -= 1;
                self.terminal.feed(letter);
                continue;
            };
            self.inserts = steps::inserts(&function, self.inserts);
            if let Function::Rep(times) = function {
                self.terminal.feed(CANCEL);
                self.repeats = times.max(1);
            } else {
                let cost = steps::of(&function, &self.terminal, self.inserts);
                *steps = steps.saturating_sub(cost);
                self.terminal.feed(letter);
            }
        }
        false
    }

    fn repeat(&mut self, steps: &mut u64) {
        let each = steps::of(&Function::Rep(1), &self.terminal, self.inserts);
        let times = u16::try_from(*steps / each).unwrap_or(u16::MAX);
        let times = times.clamp(1, self.repeats);
        self.terminal.execute(Function::Rep(times));
        self.repeats -= times;
        *steps = steps.saturating_sub(each * u64::from(times));
    }

    /// Returns the present picture.
    pub fn picture(&self) -> Picture {
        let size = self.size();
        let cursor = self.terminal.cursor();
        let place = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
        let lines = self.terminal.screen().visible_lines().map(line).collect();
        Picture {
            size,
            lines,
            cursor: (place(cursor.row), place(cursor.col)),
            cursor_visible: cursor.visible,
            title: self.marks.title().map(str::to_owned),
            is_alternate: self.terminal.active_screen_kind() == ScreenKind::Alternate,
            is_untouched: self.is_untouched,
            repaint: self.repaint(),
        }
    }

    fn repaint(&self) -> Vec<u8> {
        let mut text = [
            "\x1b[?1047h",
            SCREEN_AT_FIRST,
            KEYBOARD_AT_FIRST,
            "\x1b[?1047l",
            SCREEN_AT_FIRST,
            "\x1b(B\x1b)B\x0f\x1b[2;4;20l",
            &modes_at_first(),
        ]
        .concat();
        reset_tab_stops(&mut text, self.size().cols);
        self.marks.dump(&mut text);
        // The dump ends with the beginning of an escape sequence. Not every terminal knows C1 controls in UTF-8.
        for letter in self.terminal.dump().chars() {
            match letter {
                '\u{80}'..='\u{9f}' => {
                    let seven_bits = u8::try_from(letter).map_or(b'@', |c1| c1 - 0x40);
                    text.extend(['\x1b', char::from(seven_bits)]);
                }
                _ => text.push(letter),
            }
        }
        let mut repaint = text.into_bytes();
        repaint.extend_from_slice(&self.partial);
        repaint
    }
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen")
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Returns how many of the last bytes may be the beginning of a character: 0 to 3.
fn undecided(data: &[u8]) -> usize {
    let tail = &data[data.len().saturating_sub(3)..];
    let begun = |len: &usize| {
        let last = &tail[tail.len() - len..];
        std::str::from_utf8(last).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (1..=tail.len()).rev().find(begun).unwrap_or(0)
}

fn line(line: &avt::Line) -> PictureLine {
    let mut spans: Vec<Span> = Vec::new();
    for cell in line.cells() {
        // Width 0: right half of a wide character.
        if cell.width() == 0 {
            continue;
        }
        let style = style(cell.pen());
        match spans.last_mut() {
            Some(last) if last.style == style => last.text.push(cell.char()),
            _ => spans.push(Span {
                text: cell.char().to_string(),
                style,
            }),
        }
    }
    if let Some(last) = spans.last_mut()
        && last.style == Style::default()
    {
        last.text.truncate(last.text.trim_end_matches(' ').len());
        if last.text.is_empty() {
            spans.pop();
        }
    }
    PictureLine {
        spans,
        is_wrapped: line.is_wrapped(),
    }
}

fn style(pen: &avt::Pen) -> Style {
    let color = |color| match color {
        avt::Color::Indexed(index) => Color::Indexed(index),
        avt::Color::RGB(rgb) => Color::Rgb(rgb.r, rgb.g, rgb.b),
    };
    Style {
        foreground: pen.foreground().map(color),
        background: pen.background().map(color),
        bold: pen.is_bold(),
        faint: pen.is_faint(),
        italic: pen.is_italic(),
        underline: pen.is_underline(),
        blink: pen.is_blink(),
        inverse: pen.is_inverse(),
        strikethrough: pen.is_strikethrough(),
    }
}

#[cfg(test)]
mod tests;
