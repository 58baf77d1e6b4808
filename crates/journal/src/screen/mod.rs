//! What a terminal shows after the bytes that were written to it: a grid of characters, and what draws it again elsewhere.
//!
//! Pure: bytes and sizes in, a picture out, the same wherever reads have cut the bytes. The model of the grid is
//! [avt](https://docs.rs/avt); what it does not keep (title, what the terminal reports of keys and mouse) is kept here.

mod marks;

use avt::{ScreenKind, Terminal};
use kennel_lifecycle::TerminalSize;
use marks::Marks;
use std::fmt::Write as _;

use kennel_lifecycle::MODES_AT_FIRST;

/// Most characters that a grid may have. Beyond it a terminal is not drawn: its model would take what the service needs.
pub const SCREEN_CELLS_MAX: u32 = 1 << 20;

/// Ends what an escape sequence has begun (CAN of ECMA-48).
const CANCEL: char = '\u{18}';

/// Resets the looks of a terminal, both screens and what is saved of their cursors: RIS would also
/// take away what has scrolled by.
const AS_AT_FIRST: &str = concat!(
    "\x1b[?1047h\x1b[!p\x1b[0m\x1b[?6l\x1b[?7h\x1b[r\x1b[H\x1b[2J\x1b7",
    "\x1b[?1047l\x1b[!p\x1b[0m\x1b[?6l\x1b[?7h\x1b[r\x1b[H\x1b[2J\x1b7",
    "\x1b(B\x1b)B\x0f\x1b[4l\x1b[20l\x1b[?1l\x1b[?25h",
);

/// Columns between the tab stops of a terminal at first.
const TAB_WIDTH: usize = 8;

/// Sets the tab stops of a terminal at first, one by one: few terminals know the one sequence for all of them (DECST8C), and the
/// dump of the grid has no stops where they are as at first. The cursor is in the first column before and after.
fn reset_tab_stops(text: &mut String, cols: u16) {
    text.push_str("\x1b[3g");
    for column in (1 + TAB_WIDTH..=cols.into()).step_by(TAB_WIDTH) {
        let _ = write!(text, "\x1b[{column}G\x1bH");
    }
    text.push('\r');
}

/// Whether a terminal of this size can be drawn.
#[must_use]
pub fn is_drawn(size: TerminalSize) -> bool {
    let cells = u32::from(size.rows) * u32::from(size.cols);
    (1..=SCREEN_CELLS_MAX).contains(&cells)
}

/// This size, or the largest of its width that is drawn.
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

/// A terminal that is written to.
pub struct Screen {
    terminal: Terminal,
    marks: Marks,
    /// A letter of which only the beginning has come.
    partial: Vec<u8>,
}

/// A picture of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// How large it is.
    pub size: TerminalSize,
    /// The lines from top to bottom, as many as there are rows.
    pub lines: Vec<PictureLine>,
    /// Where the next character goes: line and column from 0. The column is that of the right edge where the line is full.
    pub cursor: (u16, u16),
    /// Whether the cursor is seen.
    pub cursor_visible: bool,
    /// What the command has called the window; absent: nothing.
    pub title: Option<String>,
    /// Whether it is the alternate screen that is shown, as of an editor.
    pub is_alternate: bool,
    /// What draws all of it on a terminal of this size, whatever that has shown before: both screens, cursor, title, and the
    /// modes in which the command wants keys and mouse to be reported.
    pub repaint: Vec<u8>,
}

/// A line of a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureLine {
    /// Characters side by side that look alike, from the left; blanks at the right edge that look like nothing are left out.
    pub spans: Vec<Span>,
    /// It goes on in the next line, without a newline between.
    pub is_wrapped: bool,
}

/// Characters that look alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The characters; a wide one takes two columns.
    pub text: String,
    /// How they look.
    pub style: Style,
}

/// How characters look.
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
    /// Of the terminal's 256.
    Indexed(u8),
    /// Red, green, blue.
    Rgb(u8, u8, u8),
}

impl Screen {
    /// An empty one of this size, or the largest that is drawn.
    #[must_use]
    pub fn new(size: TerminalSize) -> Self {
        let TerminalSize { rows, cols } = within(size);
        Self {
            terminal: Terminal::new(cols.into(), rows.into()).expect("neither side is 0"),
            marks: Marks::default(),
            partial: Vec::new(),
        }
    }

    /// How large it is.
    #[must_use]
    pub fn size(&self) -> TerminalSize {
        let (cols, rows) = self.terminal.size();
        let side = |side| u16::try_from(side).unwrap_or(u16::MAX);
        TerminalSize {
            rows: side(rows),
            cols: side(cols),
        }
    }

    /// Makes it this large, or the largest that is drawn.
    pub fn resize(&mut self, size: TerminalSize) {
        let TerminalSize { rows, cols } = within(size);
        self.terminal.resize(cols.into(), rows.into());
    }

    /// The bytes that follow.
    pub fn feed(&mut self, data: &[u8]) {
        let mut joined = std::mem::take(&mut self.partial);
        if joined.is_empty() {
            return self.feed_from_letter(data);
        }
        joined.extend_from_slice(data);
        self.feed_from_letter(&joined);
    }

    /// Bytes are missing here: what they may have begun is not continued.
    pub fn skip(&mut self) {
        self.partial.clear();
        self.feed_text(CANCEL.encode_utf8(&mut [0; 4]));
    }

    fn feed_from_letter(&mut self, data: &[u8]) {
        let whole = data.len() - undecided(data);
        let (now, later) = data.split_at(whole);
        for chunk in now.utf8_chunks() {
            self.feed_text(chunk.valid());
            if !chunk.invalid().is_empty() {
                self.feed_text("\u{fffd}");
            }
        }
        self.partial = later.to_vec();
    }

    fn feed_text(&mut self, text: &str) {
        self.marks.feed(text);
        self.terminal.feed(text);
    }

    /// What it shows now.
    #[must_use]
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
            repaint: self.repaint(),
        }
    }

    fn repaint(&self) -> Vec<u8> {
        let mut text = String::from(AS_AT_FIRST);
        reset_tab_stops(&mut text, self.size().cols);
        text.push_str(MODES_AT_FIRST);
        self.marks.dump(&mut text);
        // Ends with what an escape sequence has begun. Not every terminal knows the one-letter forms of C1 in UTF-8.
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

/// How many of the last bytes may be the beginning of a letter: 0 to 3.
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
        // The right half of a wide character.
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
