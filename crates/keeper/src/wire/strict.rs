//! Rules of JSON beyond its grammar: what two decoders could read differently is unreadable. A name twice in one
//! object, an escape in a name (so that no name has a NUL), nesting above 64, a fraction, a number beyond 64 bits.

use serde::{Deserialize, de::Error as _};
use serde_json::Error;

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;

/// Decodes a text that keeps to the rules.
pub(crate) fn read<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Error> {
    check(text).map_err(Error::custom)?;
    serde_json::from_slice(text)
}

/// Checks the rules. The grammar is not checked: what is no JSON is left to the decoder.
fn check(text: &[u8]) -> Result<(), &'static str> {
    // Names of all open objects, and where each open value's names begin.
    let mut names: Vec<&[u8]> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' if open.len() == DEPTH_MAX => return Err("a value is nested too deep"),
            b'{' | b'[' => open.push(names.len()),
            b'}' | b']' => {
                let begin = open.pop().unwrap_or_default();
                let own = &mut names[begin..];
                own.sort_unstable();
                if own.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err("a name is twice in an object");
                }
                names.truncate(begin);
            }
            b'"' => {
                let string = &text[at..];
                let len = length_of_string(string);
                at += len + 1;
                if next_byte(text, at) == Some(b':') {
                    if string[..len].contains(&b'\\') {
                        return Err("a name has an escape");
                    }
                    names.push(&string[..len]);
                }
            }
            b'-' | b'0'..=b'9' => {
                let is_of_number =
                    |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let number = &text[at - 1..];
                let len = number
                    .iter()
                    .position(|b| !is_of_number(b))
                    .unwrap_or(number.len());
                at += len - 1;
                check_number(&number[..len])?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the length of a string up to its closing quote, or of all that there is.
fn length_of_string(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let is_end = |byte: &u8| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    };
    text.iter().position(is_end).unwrap_or(text.len())
}

/// Returns the next byte that is no space.
fn next_byte(text: &[u8], at: usize) -> Option<u8> {
    let rest = text.get(at..)?;
    rest.iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace())
}

fn check_number(number: &[u8]) -> Result<(), &'static str> {
    // Any number of 18 digits fits in 64 bits.
    let is_short = number.len() <= 18 && number.iter().all(|byte| *byte <= b'9' && *byte != b'.');
    let text = str::from_utf8(number).unwrap_or_default();
    let fits = is_short || text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    fits.then_some(())
        .ok_or("a number is no integer of 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    // promise: A-22b
    #[test]
    fn ambiguous_json_is_refused() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let read = |text: &str| read::<Value>(text.as_bytes()).map_err(|error| error.to_string());
        for good in [
            r#"{"a":{"a":1},"b":[{"a":-9223372036854775808},{"a":18446744073709551615}]}"#,
            r#"{"a" : "\"a\":1.5, \\" , "b":"\u0000"}"#,
            &deep(DEPTH_MAX),
        ] {
            assert_eq!(read(good), Ok(serde_json::from_str(good).expect("JSON")));
        }
        for (bad, why) in [
            (r#"{"a":1,"b":{},"a":2}"#, "twice"),
            (r#"[{"x":{"a":1, "a" :2}}]"#, "twice"),
            (r#"{"\u0061":1}"#, "escape"),
            (r#"{"b\u0000":1}"#, "escape"),
            (r#"{"a":1.5}"#, "integer"),
            (r#"{"a":1e3}"#, "integer"),
            ("[18446744073709551616]", "integer"),
            ("[-9223372036854775809]", "integer"),
            (&deep(DEPTH_MAX + 1), "deep"),
        ] {
            let error = read(bad).expect_err(bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    // promise: A-22b
    #[test]
    fn strict_json_decoding_survives_corrupt_bytes() {
        let text = r#"{"a":{"b":[1,-2,"x\"y",{"c":null}]},"d":18446744073709551615}"#;
        kennel_mutations::each(text.as_bytes(), |wrong| {
            // Accepted text means the same to a decoder without these rules.
            if let Ok(value) = read::<Value>(wrong) {
                assert_eq!(value, serde_json::from_slice::<Value>(wrong).expect("JSON"));
            }
        });
    }
}
