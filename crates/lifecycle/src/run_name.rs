//! Names of runs, and patterns of them.

use crate::{RunId, limits};

/// Whether a name may have these characters, and so many of them.
fn is_of_name(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"._/-".contains(&c);
    text.len() <= limits::RUN_NAME_MAX && text.bytes().all(is_plain)
}

/// Whether a run may have this name. An id is none, in whatever case: it would name two runs.
pub fn is_run_name(text: &str) -> bool {
    is_of_name(text)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.to_ascii_uppercase().parse::<RunId>().is_err()
}

/// Pattern of a name: `*` stands for any characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// Returns the pattern; absent: no name has it.
    pub fn new(text: &str) -> Option<Self> {
        let plain = text.replace(['*', '?'], "a");
        (!text.is_empty() && is_of_name(&plain)).then(|| Self(text.to_owned()))
    }

    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the only name that it has, if there is one.
    pub fn literal(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&self.0)
    }

    /// Returns it as a pattern of SQL's LIKE with `!` as escape.
    pub fn like(&self) -> String {
        let escaped = self.0.replace('_', "!_");
        escaped.replace('*', "%").replace('?', "_")
    }

    /// Whether a name has it.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut in_name) = (0, 0);
        // The last `*`, and where the name continues after its match.
        let mut star = None;
        while in_name < name.len() {
            match (pattern.get(at), star) {
                (Some(b'*'), _) => {
                    star = Some((at, in_name));
                    at += 1;
                }
                (Some(one), _) if *one == b'?' || *one == name[in_name] => {
                    at += 1;
                    in_name += 1;
                }
                (_, Some((last, behind))) => {
                    star = Some((last, behind + 1));
                    at = last + 1;
                    in_name = behind + 1;
                }
                (_, None) => return false,
            }
        }
        pattern[at..].iter().all(|c| *c == b'*')
    }
}
