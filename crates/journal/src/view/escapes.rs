//! Removes escape sequences and control characters from bytes, for every split into reads.
//!
//! The grammar is that of ECMA-48, fifth edition: 5.3 (7-bit C1), 5.4 (control sequences), 5.6 (control strings); as
//! terminals do, a control character within a sequence is obeyed, and CAN, SUB or another ESC breaks it off. 8-bit C1
//! controls are known in UTF-8 only (U+0080 to U+009F): a lone byte 0x9B is no control there, and stays.

/// Longest control string, such as a title or a picture. An unfinished one is broken off there, and later bytes are
/// text again: without a bound a lost terminator would swallow everything after it.
const STRING_BYTES_MAX: u32 = 64 * 1024;
/// Longest control sequence, likewise.
const SEQUENCE_BYTES_MAX: u32 = 256;

const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;
const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
const DEL: u8 = 0x7f;
/// First byte of U+0080 to U+00BF in UTF-8, and of nothing else.
const LEAD_OF_C1: u8 = 0xc2;

/// Filters the bytes of one stream, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Escapes {
    state: EscapeState,
    /// Offset of the present sequence; meaningless between sequences.
    began: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapeState {
    /// Text.
    #[default]
    Text,
    /// After a byte that is half of a C1 control, or of a letter.
    Lead,
    /// After ESC and perhaps intermediate bytes.
    Escape(u32),
    /// In a control sequence of so many bytes.
    Sequence(u32),
    /// In a control string of so many bytes, which BEL ends too if it is an OSC.
    String { osc: bool, len: u32 },
    /// In a control string, perhaps after the first byte of U+009C.
    StringLead { osc: bool, len: u32 },
}

/// Whether a byte is text, and begins no sequence.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..DEL) || (byte > DEL && byte != LEAD_OF_C1)
}

impl Escapes {
    /// Returns the offset of the unfinished sequence at the end of the fed bytes.
    pub(super) fn began(&self) -> Option<u64> {
        (self.state != EscapeState::Text).then_some(self.began)
    }

    /// Feeds bytes, of which the first has this offset; passes on the remaining ones with their offset, run by run.
    pub(super) fn feed(&mut self, offset: u64, data: &[u8], keep: &mut impl FnMut(u64, &[u8])) {
        let mut at = 0;
        while let Some(byte) = data.get(at).copied() {
            let here = offset + at as u64;
            if self.state == EscapeState::Text {
                let rest = &data[at..];
                let len = rest.iter().position(|b| !is_plain(*b));
                let len = len.unwrap_or(rest.len());
                if len > 0 {
                    keep(here, &rest[..len]);
                    at += len;
                    continue;
                }
                self.began = here;
            }
            if self.take(here, byte, keep) {
                at += 1;
            }
        }
    }

    /// Ends the present sequence, which turns out to be none.
    pub(super) fn finish(&mut self, keep: &mut impl FnMut(u64, &[u8])) {
        if self.state == EscapeState::Lead {
            keep(self.began, &[LEAD_OF_C1]);
        }
        self.state = EscapeState::Text;
    }

    /// Handles one byte that is not plain text. `false`: it is not part of the present sequence, and must be handled
    /// again.
    fn take(&mut self, here: u64, byte: u8, keep: &mut impl FnMut(u64, &[u8])) -> bool {
        let obeyed = matches!(byte, b'\t' | b'\n' | b'\r');
        let (next, taken) = match (self.state, byte) {
            (EscapeState::Text, LEAD_OF_C1) => (EscapeState::Lead, true),
            (EscapeState::Lead, 0x80..=0x9f) => (c1(byte - 0x40), true),
            (EscapeState::Lead, _) => {
                keep(self.began, &[LEAD_OF_C1]);
                (EscapeState::Text, false)
            }
            (_, ESC) => (EscapeState::Escape(0), true),
            (EscapeState::Text, _)
            | (_, CAN | SUB)
            | (EscapeState::String { osc: true, .. }, BEL) => (EscapeState::Text, true),
            (EscapeState::StringLead { osc, len }, byte) => match byte {
                0x9c => (EscapeState::Text, true),
                _ => (EscapeState::String { osc, len }, false),
            },
            (EscapeState::String { len, .. }, _) if len >= STRING_BYTES_MAX => {
                (EscapeState::Text, false)
            }
            (EscapeState::String { osc, len }, LEAD_OF_C1) => {
                (EscapeState::StringLead { osc, len: len + 1 }, true)
            }
            (EscapeState::String { osc, len }, _) => {
                (EscapeState::String { osc, len: len + 1 }, true)
            }
            (EscapeState::Escape(len) | EscapeState::Sequence(len), _)
                if len >= SEQUENCE_BYTES_MAX =>
            {
                (EscapeState::Text, false)
            }
            (state @ (EscapeState::Escape(_) | EscapeState::Sequence(_)), _) if obeyed => {
                keep(here, &[byte]);
                (state, true)
            }
            (state @ (EscapeState::Escape(_) | EscapeState::Sequence(_)), 0..0x20 | DEL) => {
                (state, true)
            }
            // Terminals disagree on such bytes: possible text is not lost.
            (EscapeState::Escape(_) | EscapeState::Sequence(_), 0x80..) => {
                (EscapeState::Text, false)
            }
            (EscapeState::Escape(len), 0x20..=0x2f) => (EscapeState::Escape(len + 1), true),
            (EscapeState::Escape(0), 0x40..=0x5f) => (c1(byte), true),
            (EscapeState::Sequence(len), 0x20..=0x3f) => (EscapeState::Sequence(len + 1), true),
            (EscapeState::Escape(_) | EscapeState::Sequence(_), _) => (EscapeState::Text, true),
        };
        self.state = next;
        taken
    }
}

/// Returns the state that a C1 control begins, by the second byte of its 7-bit form.
fn c1(byte: u8) -> EscapeState {
    match byte {
        b'[' => EscapeState::Sequence(0),
        b']' => EscapeState::String { osc: true, len: 0 },
        b'P' | b'X' | b'^' | b'_' => EscapeState::String { osc: false, len: 0 },
        _ => EscapeState::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(data: &[u8]) -> String {
        let mut kept = Vec::new();
        let mut keep = |_, bytes: &[u8]| kept.extend_from_slice(bytes);
        let mut escapes = Escapes::default();
        escapes.feed(0, data, &mut keep);
        escapes.finish(&mut keep);
        kept.escape_ascii().to_string()
    }

    // promise: O-14
    #[test]
    fn escape_sequences_are_removed_from_plain_text() {
        let endless = |begin: &str, len| [begin.as_bytes(), &vec![b'1'; len][..]].concat();
        for (data, wanted) in [
            (&b"plain \t text\r\n"[..], r"plain \t text\r\n"),
            (b"\x1b[1;31mred\x1b[0m", "red"),
            (b"\x1b[38:2::1:2:3mcolons", "colons"),
            (b"\x1b[?25lhidden\x1b[ q", "hidden"),
            (b"\x1b]0;title\x07one", "one"),
            (b"\x1b]8;;http://x\x1b\\two\x1b]8;;\x1b\\", "two"),
            (b"\x1bPq#0~~\x1b\\three", "three"),
            (b"\x1bP\x07 BEL ends no DCS\x1b\\four", "four"),
            (b"\x1b_a\x1b\\\x1b^b\x1b\\\x1bXc\x1b\\five", "five"),
            (b"\x1b(B\x1b)0\x1b#8\x1b=\x1b7six", "six"),
            (b"\x1bcreset", "reset"),
            // 8-bit controls in UTF-8, and letters that begin with the same byte.
            (b"\xc2\x9b31mred", "red"),
            (b"\xc2\x9d0;title\xc2\x9cone", "one"),
            (b"\xc2\x85next line", "next line"),
            (b"\xc2\xa9\xc3\xa9", r"\xc2\xa9\xc3\xa9"),
            (b"\x1b]0;\xc2\xa9 title\x07c", "c"),
            // Bytes that are not text in any encoding stay.
            (b"a\x9bb\xff\xc2", r"a\x9bb\xff\xc2"),
            (b"\xc2\xc2\xa9", r"\xc2\xc2\xa9"),
            (b"\xe2\xc2\x9bm\x82", r"\xe2\x82"),
            // Control characters within a sequence, and those that abort it.
            (b"\x1b[3\n1mline", r"\nline"),
            (b"\x1b[3\x181mcan", "1mcan"),
            (b"\x1b[3\x1b[1mesc", "esc"),
            (b"\x1b]0;title\x1b[1mesc", "esc"),
            (b"\x1b]0;title\x1asub", "sub"),
            (b"\x1b[31\xc3\xa9", r"\xc3\xa9"),
            (b"nul\0bel\x07bs\x08del\x7fvt\x0bff\x0c", "nulbelbsdelvtff"),
            (b"\x1b", ""),
        ] {
            assert_eq!(text(data), wanted, "{}", data.escape_ascii());
        }
        assert_eq!(text(&endless("\x1b[", 300)), "1".repeat(300 - 256));
        let title = endless("\x1b]", 70_000);
        assert_eq!(text(&title), "1".repeat(70_000 - 65_536));
    }
}
