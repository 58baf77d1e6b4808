//! State that a command has set in its terminal besides the screen: the title of the window, and the reporting modes of
//! keys, mouse and pasted text. See ctlseqs of xterm(1).

use std::{collections::BTreeSet, fmt::Write, mem};

/// Longest title that is stored, in bytes.
const TITLE_BYTES_MAX: usize = 1024;
/// Longest parameters of a sequence that are parsed, in bytes.
const PARAMETERS_BYTES_MAX: usize = 64;
/// Most titles on the stack (XTWINOPS 22).
const TITLES_KEPT_MAX: usize = 10;

/// The private modes that are tracked: mouse (9, 1000 to 1006, 1015, 1016), wheel as keys (1007), focus (1004), keypad
/// (66), bracketed paste (2004), blinking cursor (12).
const MODES: [u16; 14] = [
    9, 12, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004,
];

/// The mode that is on in a terminal initially.
const WHEEL_AS_KEYS: u16 = 1007;

/// The state that was set.
#[derive(Debug)]
pub(super) struct Marks {
    state: State,
    /// Parameters of the present sequence.
    parameters: String,
    title: Option<String>,
    titles_kept: Vec<Option<String>>,
    on: BTreeSet<u16>,
    keypad: bool,
    cursor_style: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// After an intermediate byte: one more ends the sequence.
    EscapeMore,
    Control,
    /// An OSC string.
    Command,
    /// DCS, SOS, PM or APC: ignored.
    Other,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            state: State::Text,
            parameters: String::new(),
            title: None,
            titles_kept: Vec::new(),
            on: [WHEEL_AS_KEYS].into(),
            keypad: false,
            cursor_style: 0,
        }
    }
}

impl Marks {
    pub(super) fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub(super) fn feed(&mut self, letter: char) {
        // Most of the output is text.
        if self.state != State::Text || letter < ' ' || ('\u{80}'..='\u{9f}').contains(&letter) {
            self.take(letter);
        }
    }

    fn take(&mut self, letter: char) {
        match letter {
            '\x1b' => {
                if self.state == State::Command {
                    self.command();
                }
                return self.begin(State::Escape);
            }
            '\u{9b}' => return self.begin(State::Control),
            '\u{9d}' => return self.begin(State::Command),
            '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => return self.begin(State::Other),
            '\x07' | '\u{9c}' if self.state == State::Command => {
                self.command();
                return self.begin(State::Text);
            }
            // CAN and SUB end everything and have no other meaning; no other C1 control is known here either.
            '\x18' | '\x1a' | '\u{80}'..='\u{9f}' => return self.begin(State::Text),
            _ => {}
        }
        match (self.state, letter) {
            (State::Command, ' '..) => self.remember(letter, TITLE_BYTES_MAX),
            (State::Text | State::Other, _) | (_, ..' ') => {}
            (State::Escape, '[') => self.begin(State::Control),
            (State::Escape, ']') => self.begin(State::Command),
            (State::Escape, 'P' | 'X' | '^' | '_') => self.begin(State::Other),
            (State::Escape, ' '..='/') => self.begin(State::EscapeMore),
            (State::Escape, _) => {
                match letter {
                    'c' => self.reset(),
                    '=' => self.keypad = true,
                    '>' => self.keypad = false,
                    _ => {}
                }
                self.begin(State::Text);
            }
            (State::EscapeMore, '0'..) => self.begin(State::Text),
            (State::EscapeMore, _) => {}
            (State::Control, '@'..='~') => {
                self.control(letter);
                self.begin(State::Text);
            }
            (State::Control, _) => self.remember(letter, PARAMETERS_BYTES_MAX),
        }
    }

    fn begin(&mut self, state: State) {
        self.parameters.clear();
        self.state = state;
    }

    fn remember(&mut self, letter: char, max: usize) {
        if self.parameters.len() + letter.len_utf8() <= max {
            self.parameters.push(letter);
        }
    }

    /// Handles RIS. The title stays, as in xterm.
    fn reset(&mut self) {
        let title = self.title.take();
        *self = Self {
            title,
            titles_kept: mem::take(&mut self.titles_kept),
            ..Self::default()
        };
    }

    fn command(&mut self) {
        let mut parts = self.parameters.splitn(2, ';');
        if let (Some("0" | "2"), Some(title)) = (parts.next(), parts.next()) {
            self.title = (!title.is_empty()).then(|| title.to_owned());
        }
    }

    fn control(&mut self, last: char) {
        let parameters = mem::take(&mut self.parameters);
        match (parameters.as_str(), last) {
            ("!", 'p') => self.keypad = false,
            (_, 'h' | 'l') => {
                let Some(modes) = parameters.strip_prefix('?') else {
                    return;
                };
                for mode in modes.split(';').filter_map(|mode| mode.parse().ok()) {
                    if !MODES.contains(&mode) {
                        continue;
                    }
                    if last == 'h' {
                        self.on.insert(mode);
                    } else {
                        self.on.remove(&mode);
                    }
                }
            }
            (_, 'q') => {
                if let Some(style) = parameters.strip_suffix(' ') {
                    let style = style.parse().unwrap_or(0);
                    self.cursor_style = if style <= 6 { style } else { 0 };
                }
            }
            ("22" | "22;0" | "22;2", 't') if self.titles_kept.len() < TITLES_KEPT_MAX => {
                self.titles_kept.push(self.title.clone());
            }
            ("23" | "23;0" | "23;2", 't') => {
                if let Some(title) = self.titles_kept.pop() {
                    self.title = title;
                }
            }
            _ => {}
        }
    }

    /// Writes the sequences that set this state in another terminal, after [`MODES_AT_FIRST`].
    pub(super) fn dump(&self, text: &mut String) {
        for mode in &self.on {
            if *mode != WHEEL_AS_KEYS {
                let _ = write!(text, "\x1b[?{mode}h");
            }
        }
        if !self.on.contains(&WHEEL_AS_KEYS) {
            let _ = write!(text, "\x1b[?{WHEEL_AS_KEYS}l");
        }
        if self.keypad {
            text.push_str("\x1b=");
        }
        if self.cursor_style != 0 {
            let _ = write!(text, "\x1b[{} q", self.cursor_style);
        }
        if let Some(title) = &self.title {
            let _ = write!(text, "\x1b]2;{title}\x07");
        }
    }
}
