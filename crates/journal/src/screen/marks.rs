//! State that a command has set in its terminal besides the screen: the title of the window, and the modes of keys,
//! mouse and the like. See ctlseqs of xterm(1).

use kennel_lifecycle::repeated_mode;
use std::{collections::BTreeSet, fmt::Write, mem};

/// Longest title that is stored, in bytes.
const TITLE_BYTES_MAX: usize = 1024;
/// Longest parameters of a sequence that are parsed, in bytes.
const PARAMETERS_BYTES_MAX: usize = 64;
/// Most titles on the stack (XTWINOPS 22).
const TITLES_KEPT_MAX: usize = 10;
/// Most flags of the keyboard on the stack of a screen; beyond, the oldest are dropped.
const KEYBOARDS_MAX: usize = 16;

/// The state that was set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenMarks {
    state: MarkState,
    /// Parameters of the present sequence.
    parameters: String,
    title: Option<String>,
    titles_kept: Vec<Option<String>>,
    /// The modes that are not as at first.
    changed: BTreeSet<u16>,
    keypad: bool,
    cursor_style: u8,
    /// Level of `modifyOtherKeys`.
    other_keys: u8,
    /// Flags of the kitty keyboard protocol, of the main and of the alternate screen; the last is in force.
    keyboards: [Vec<u8>; 2],
    is_alternate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MarkState {
    #[default]
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

impl ScreenMarks {
    pub(super) fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub(super) fn feed(&mut self, letter: char) {
        // Fast path: most output is text.
        if self.state != MarkState::Text || letter < ' ' || ('\u{80}'..='\u{9f}').contains(&letter)
        {
            self.take(letter);
        }
    }

    fn take(&mut self, letter: char) {
        match letter {
            '\x1b' => {
                if self.state == MarkState::Command {
                    self.command();
                }
                return self.begin(MarkState::Escape);
            }
            '\u{9b}' => return self.begin(MarkState::Control),
            '\u{9d}' => return self.begin(MarkState::Command),
            '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => return self.begin(MarkState::Other),
            '\x07' | '\u{9c}' if self.state == MarkState::Command => {
                self.command();
                return self.begin(MarkState::Text);
            }
            // CAN and SUB only end sequences; other C1 controls are unknown here.
            '\x18' | '\x1a' | '\u{80}'..='\u{9f}' => return self.begin(MarkState::Text),
            _ => {}
        }
        match (self.state, letter) {
            (MarkState::Command, ' '..) => self.remember(letter, TITLE_BYTES_MAX),
            (MarkState::Text | MarkState::Other, _) | (_, ..' ') => {}
            (MarkState::Escape, '[') => self.begin(MarkState::Control),
            (MarkState::Escape, ']') => self.begin(MarkState::Command),
            (MarkState::Escape, 'P' | 'X' | '^' | '_') => self.begin(MarkState::Other),
            (MarkState::Escape, ' '..='/') => self.begin(MarkState::EscapeMore),
            (MarkState::Escape, _) => {
                match letter {
                    'c' => self.reset(),
                    '=' => self.keypad = true,
                    '>' => self.keypad = false,
                    _ => {}
                }
                self.begin(MarkState::Text);
            }
            (MarkState::EscapeMore, '0'..) => self.begin(MarkState::Text),
            (MarkState::EscapeMore, _) => {}
            (MarkState::Control, '@'..='~') => {
                self.control(letter);
                self.begin(MarkState::Text);
            }
            (MarkState::Control, _) => self.remember(letter, PARAMETERS_BYTES_MAX),
        }
    }

    fn begin(&mut self, state: MarkState) {
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
                for number in modes.split(';').filter_map(|mode| mode.parse().ok()) {
                    self.set(number, last == 'h');
                }
            }
            (_, 'u') => self.set_keyboard(&parameters),
            (">4" | ">" | ">4;", 'm') | (">4", 'n') => self.other_keys = 0,
            (_, 'm') => {
                if let Some(level) = parameters.strip_prefix(">4;") {
                    self.other_keys = level.parse().unwrap_or(0);
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

    fn set(&mut self, number: u16, is_on: bool) {
        if let 47 | 1047 | 1049 = number {
            self.is_alternate = is_on;
        }
        match repeated_mode(number) {
            Some(at_first) if at_first != is_on => self.changed.insert(number),
            _ => self.changed.remove(&number),
        };
    }

    /// Handles the sequences of the kitty keyboard protocol. A pop of more than there are leaves none.
    fn set_keyboard(&mut self, parameters: &str) {
        let stack = &mut self.keyboards[usize::from(self.is_alternate)];
        let mut numbers = parameters.get(1..).unwrap_or_default().split(';');
        let mut next = || numbers.next().and_then(|number| number.parse::<u8>().ok());
        let (first, second) = (next(), next());
        let flags = first.unwrap_or(0);
        match parameters.as_bytes().first() {
            Some(b'>') => {
                if stack.len() == KEYBOARDS_MAX {
                    stack.remove(0);
                }
                stack.push(flags);
            }
            Some(b'<') => {
                let pops = first.unwrap_or(1).max(1);
                stack.truncate(stack.len().saturating_sub(pops.into()));
            }
            Some(b'=') => {
                let before = stack.pop().unwrap_or(0);
                stack.push(match second {
                    Some(2) => before | flags,
                    Some(3) => before & !flags,
                    _ => flags,
                });
            }
            _ => {}
        }
    }

    /// Writes the sequences that set this state in another terminal whose modes are as at first.
    pub(super) fn dump(&self, text: &mut String) {
        for mode in &self.changed {
            let last = if repeated_mode(*mode) == Some(true) {
                'l'
            } else {
                'h'
            };
            let _ = write!(text, "\x1b[?{mode}{last}");
        }
        if self.other_keys != 0 {
            let _ = write!(text, "\x1b[>4;{}m", self.other_keys);
        }
        // Each screen has its own keyboard stack.
        for (stack, screen) in self.keyboards.iter().zip(["\x1b[?1047l", "\x1b[?1047h"]) {
            if !stack.is_empty() {
                text.push_str(screen);
            }
            for flags in stack {
                let _ = write!(text, "\x1b[>{flags}u");
            }
        }
        text.push_str("\x1b[?1047l");
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
