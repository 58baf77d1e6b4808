//! Tests lines of output by a pattern, in time linear in the length of the line. A pattern that takes more than that is
//! given up.

mod expression;
mod json;
#[cfg(test)]
mod tests;

use expression::Expression;
pub use expression::Scratch;
use kennel_lifecycle::{LinePattern, limits};
use memchr::memmem::Finder;
use std::sync::Arc;

/// A part of a line that matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Whether `text` is only the beginning.
    pub is_cut: bool,
}

/// A pattern, ready to test lines.
#[derive(Clone, Debug)]
pub struct LineMatcher(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Literal(Box<Finder<'static>>),
    Expression(Arc<Expression>),
    Json(Box<json::Matcher>),
}

/// The test of a line was given up: the pattern takes too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GaveUp;

/// A matcher with the memory of its thread, which it has until its drop.
#[derive(Debug)]
pub(crate) struct LineTests<'a> {
    matcher: &'a LineMatcher,
    scratch: &'a mut Scratch,
}

impl LineMatcher {
    /// Compiles a pattern. It takes time of a caller's choice, so only a thread of owners can do it: no other has the
    /// memory to test lines.
    ///
    /// # Errors
    ///
    /// The pattern is not well formed, or takes too much memory; the text says why.
    pub fn new(pattern: &LinePattern, _: &mut Scratch) -> Result<Self, String> {
        Ok(Self(match pattern {
            LinePattern::Json(pattern) => Kind::Json(Box::new(json::Matcher::new(pattern)?)),
            LinePattern::Literal(text) => Kind::Literal(Box::new(Finder::new(text).into_owned())),
            LinePattern::Regex(text) => Kind::Expression(Arc::new(Expression::new(text)?)),
        }))
    }

    /// Begins to test lines with this memory.
    pub(crate) fn begin<'a>(&'a self, scratch: &'a mut Scratch) -> LineTests<'a> {
        if let Kind::Expression(expression) = &self.0 {
            expression.begin(scratch);
        }
        LineTests {
            matcher: self,
            scratch,
        }
    }

    /// Returns the names of its groups.
    pub fn group_names(&self) -> Vec<&str> {
        match &self.0 {
            Kind::Literal(_) => Vec::new(),
            Kind::Expression(expression) => expression.group_names().collect(),
            Kind::Json(matcher) => matcher.group_names().collect(),
        }
    }

    /// Whether a line that has not ended can match: JSON cannot.
    pub fn tests_unfinished(&self) -> bool {
        !matches!(self.0, Kind::Json(_))
    }
}

impl LineTests<'_> {
    /// Returns the match in this line, if there is one.
    pub(crate) fn test(&mut self, line: &[u8]) -> Result<Option<LineMatch>, GaveUp> {
        match &self.matcher.0 {
            Kind::Expression(expression) => expression.test(line, self.scratch),
            Kind::Json(matcher) => Ok(matcher.test(line)),
            Kind::Literal(finder) => Ok(finder.find(line).map(|_| LineMatch {
                text: matched_text(finder.needle()),
                groups: Vec::new(),
            })),
        }
    }
}

fn matched_text(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(limits::MATCH_TEXT_BYTES_MAX)];
    String::from_utf8_lossy(bytes).into_owned()
}
