//! Tests lines of output by a pattern, in time linear in the length of the line.

mod json;
#[cfg(test)]
mod tests;

use kennel_lifecycle::{LinePattern, limits};
use regex::bytes::{Regex, RegexBuilder};

/// A part of a line that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineMatch {
    /// The text that matched; for JSON the value, as JSON.
    pub text: String,
    /// Captured groups that took part in the match, in order; the name is empty where the group has none.
    pub groups: Vec<MatchGroup>,
}

/// A captured group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchGroup {
    /// Name in the pattern; empty: the group has none.
    pub name: String,
    /// Its text; for JSON a string without its quotes, or any other value as JSON.
    pub text: String,
}

/// A pattern, ready to test lines.
#[derive(Clone, Debug)]
pub struct LineMatcher(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Text(Regex),
    Json(Box<json::Matcher>),
}

impl LineMatcher {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// The pattern is not well formed, or takes too much memory; the text says why.
    pub fn new(pattern: &LinePattern) -> Result<Self, String> {
        let source = match pattern {
            LinePattern::Json(pattern) => {
                let matcher = json::Matcher::new(pattern)?;
                return Ok(Self(Kind::Json(Box::new(matcher))));
            }
            LinePattern::Literal(text) => regex::escape(text),
            LinePattern::Regex(text) => text.clone(),
        };
        let built = RegexBuilder::new(&source)
            .size_limit(limits::REGEX_BYTES_MAX)
            .dfa_size_limit(limits::REGEX_BYTES_MAX)
            .build();
        built
            .map(|regex| Self(Kind::Text(regex)))
            .map_err(|e| e.to_string())
    }

    /// Returns the match in this line, if there is one.
    #[must_use]
    pub fn test(&self, line: &[u8]) -> Option<LineMatch> {
        let regex = match &self.0 {
            Kind::Text(regex) => regex,
            Kind::Json(matcher) => return matcher.test(line),
        };
        let text = |bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(limits::MATCH_TEXT_BYTES_MAX)];
            String::from_utf8_lossy(bytes).into_owned()
        };
        let found = regex.captures(line)?;
        let groups = regex.capture_names().enumerate().skip(1);
        let groups = groups.filter_map(|(number, name)| {
            Some(MatchGroup {
                name: name.unwrap_or_default().to_owned(),
                text: text(found.get(number)?.as_bytes()),
            })
        });
        Some(LineMatch {
            text: text(found.get(0)?.as_bytes()),
            groups: groups.collect(),
        })
    }

    /// Whether a line that has not ended can match: JSON cannot.
    #[must_use]
    pub fn tests_unfinished(&self) -> bool {
        matches!(self.0, Kind::Text(_))
    }
}
