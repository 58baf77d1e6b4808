//! Names and texts in Rust code, as far as the checks of words need them.

/// A part of code that has words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A name or keyword.
    Name(&'a str),
    /// A string, with its quotes.
    Text(&'a str),
}

/// Returns names and texts of code: no comments, no characters.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        at += match rest {
            [b'/', b'/', ..] => line_length(rest),
            [b'r', b'"' | b'#', ..] if raw_string_length(rest).is_some() => {
                let length = raw_string_length(rest).unwrap_or(1);
                found.push(Token::Text(&text[at..at + length]));
                length
            }
            [b'"', ..] => {
                let length = quoted_length(rest, b'"').min(rest.len());
                found.push(Token::Text(&text[at..at + length]));
                length
            }
            [b'\'', b'\\', ..] | [b'\'', _, b'\'', ..] => quoted_length(rest, b'\''),
            [first, ..] if is_name(*first) => {
                let length = rest.iter().take_while(|byte| is_name(**byte)).count();
                found.push(Token::Name(&text[at..at + length]));
                length
            }
            _ => 1,
        };
    }
    found
}

fn line_length(rest: &[u8]) -> usize {
    rest.iter().take_while(|byte| **byte != b'\n').count()
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the length of `r"..."` or `r#"..."#`; `r#type` is a name.
fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    let begin = 1 + hashes;
    if rest.get(begin) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".to_vec(), vec![b'#'; hashes]].concat();
    let inner = &rest[begin + 1..];
    let length = inner.windows(end.len()).position(|part| part == end)?;
    Some(begin + 1 + length + end.len())
}
