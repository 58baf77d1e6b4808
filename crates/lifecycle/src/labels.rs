//! Labels of runs: valid keys and values, and selectors over them. Syntax and meaning are those of Kubernetes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

/// Longest name in a key, and longest value.
pub const LABEL_NAME_BYTES_MAX: usize = 63;
/// Longest prefix of a key.
pub const LABEL_PREFIX_BYTES_MAX: usize = 253;
/// Most requirements of one selector.
pub const SELECTOR_REQUIREMENTS_MAX: usize = 64;
/// Most values of one requirement.
pub const SELECTOR_VALUES_MAX: usize = 64;

/// A key or a value cannot be one of a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The name, behind the prefix, is not well formed.
    #[error(
        "a key must be [PREFIX/]NAME, the name 1 to 63 letters, digits, '-', '_' or '.', the first and the last a letter \
         or a digit"
    )]
    Name,
    /// The prefix is no domain name.
    #[error(
        "the prefix of a key must be a domain name of at most 253 lower-case letters, digits, '-' and '.'"
    )]
    Prefix,
    /// The value is not well formed.
    #[error(
        "a value must be empty, or 1 to 63 letters, digits, '-', '_' or '.', the first and the last a letter or a digit"
    )]
    Value,
}

/// Checks a key: `app`, or `example.com/app`.
pub fn check_key(key: &str) -> Result<(), LabelError> {
    let name = match key.split_once('/') {
        Some((prefix, _)) if !is_domain(prefix) => return Err(LabelError::Prefix),
        Some((_, name)) => name,
        None => key,
    };
    if is_name(name) {
        Ok(())
    } else {
        Err(LabelError::Name)
    }
}

/// Checks a value.
pub fn check_value(value: &str) -> Result<(), LabelError> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(LabelError::Value)
    }
}

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= LABEL_NAME_BYTES_MAX && is_framed(text, u8::is_ascii_alphanumeric, inner)
}

fn is_domain(text: &str) -> bool {
    let outer = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_part = |part| is_framed(part, outer, |b| outer(&b) || b == b'-');
    text.len() <= LABEL_PREFIX_BYTES_MAX && text.split('.').all(is_part)
}

/// Whether all bytes are of `inner`, and the first and the last also of `outer`.
fn is_framed(text: &str, outer: impl Fn(&u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let ends = text.as_bytes().first().zip(text.as_bytes().last());
    ends.is_some_and(|(first, last)| outer(first) && outer(last)) && text.bytes().all(inner)
}

/// Selects runs by their labels: all requirements must hold. Without any, all runs match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// Requirement on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The key.
    pub key: String,
    /// Test of its value.
    pub test: LabelTest,
}

impl Requirement {
    /// Whether these pairs meet it.
    pub fn matches(&self, pairs: &BTreeMap<String, String>) -> bool {
        let value = pairs.get(&self.key);
        match &self.test {
            LabelTest::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelTest::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
        }
    }
}

/// Test of the value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelTest {
    /// The value is one of these.
    In(BTreeSet<String>),
    /// The value is none of these; a run without the key matches.
    NotIn(BTreeSet<String>),
    /// The key exists, with any value.
    Exists,
    /// The key does not exist.
    Absent,
}

/// The text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A requirement is not well formed.
    #[error(
        "{0:?} is not a requirement: write KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY"
    )]
    Requirement(String),
    /// A key or a value is invalid.
    #[error("{text:?} cannot match: {cause}")]
    Label {
        /// The invalid key or value.
        text: String,
        /// The fault.
        cause: LabelError,
    },
    /// The selector exceeds its bounds.
    #[error(
        "a selector has at most {SELECTOR_REQUIREMENTS_MAX} requirements of at most {SELECTOR_VALUES_MAX} values"
    )]
    TooLong,
}

impl Selector {
    /// Whether every run matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the requirements.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether a run with these labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements
            .iter()
            .all(|wanted| wanted.matches(labels))
    }

    /// Adds the requirement that `key` has this value.
    pub fn require(&mut self, key: &str, value: &str) -> Result<(), SelectorError> {
        self.push(key, LabelTest::In([value.to_owned()].into()))
    }

    /// Adds the requirements of another selector.
    pub fn and(&mut self, other: Self) -> Result<(), SelectorError> {
        self.requirements.extend(other.requirements);
        self.check_length()
    }

    fn push(&mut self, key: &str, test: LabelTest) -> Result<(), SelectorError> {
        let cannot = |text: &str, cause| SelectorError::Label {
            text: text.to_owned(),
            cause,
        };
        check_key(key).map_err(|cause| cannot(key, cause))?;
        if let LabelTest::In(values) | LabelTest::NotIn(values) = &test {
            for value in values {
                check_value(value).map_err(|cause| cannot(value, cause))?;
            }
            if values.len() > SELECTOR_VALUES_MAX {
                return Err(SelectorError::TooLong);
            }
        }
        self.requirements.push(Requirement {
            key: key.to_owned(),
            test,
        });
        self.check_length()
    }

    fn check_length(&self) -> Result<(), SelectorError> {
        if self.requirements.len() > SELECTOR_REQUIREMENTS_MAX {
            return Err(SelectorError::TooLong);
        }
        Ok(())
    }

    fn push_text(&mut self, text: &str) -> Result<(), SelectorError> {
        let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
        if let Some(key) = text.strip_prefix('!').filter(|key| !key.contains('=')) {
            return self.push(key.trim(), LabelTest::Absent);
        }
        if let Some((key, value)) = text.split_once("!=") {
            return self.push(key.trim(), LabelTest::NotIn(one(value)));
        }
        if let Some((key, value)) = text.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value);
            return self.push(key.trim(), LabelTest::In(one(value)));
        }
        let malformed = || SelectorError::Requirement(text.to_owned());
        let Some((key, set)) = text.split_once(char::is_whitespace) else {
            if text.contains(['(', ')']) {
                return Err(malformed());
            }
            return self.push(text, LabelTest::Exists);
        };
        let set = set.trim_start();
        let (is_in, list) = if let Some(list) = set.strip_prefix("notin") {
            (false, list)
        } else {
            (true, set.strip_prefix("in").ok_or_else(malformed)?)
        };
        let list = list
            .trim()
            .strip_prefix('(')
            .and_then(|l| l.strip_suffix(')'));
        let values = list.ok_or_else(malformed)?.split(',');
        let values = values.map(|value| value.trim().to_owned()).collect();
        let of = if is_in {
            LabelTest::In
        } else {
            LabelTest::NotIn
        };
        self.push(key, of(values))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    /// Parses requirements with commas between them, such as `app=web,tier in (a,b),!canary`.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let mut selector = Self::default();
        if text.trim().is_empty() {
            return Ok(selector);
        }
        let mut depth = 0_u32;
        let at_top = |c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        };
        for requirement in text.split(at_top) {
            selector.push_text(requirement.trim())?;
        }
        Ok(selector)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Requirement { key, test }) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let (word, values) = match test {
                LabelTest::Exists => {
                    f.write_str(key)?;
                    continue;
                }
                LabelTest::Absent => {
                    write!(f, "!{key}")?;
                    continue;
                }
                LabelTest::In(values) => ("in", values),
                LabelTest::NotIn(values) => ("notin", values),
            };
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            write!(f, "{key} {word} ({})", values.join(","))?;
        }
        Ok(())
    }
}
