//! Patterns of output lines, and their matches.

use crate::{
    convert::line,
    enums::unknown_number,
    pb::{self, line_pattern::Pattern},
};
use kennel_lifecycle::{JsonPattern, LinePattern, Violation};
use kennel_supervisor::{CallError, LineMatcher, MatchGroup, OutputMatch, Supervisor};
use std::sync::Arc;

/// Longest line in an answer.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Parses the pattern in this field.
pub(crate) fn pattern(
    field: &str,
    pattern: Option<pb::LinePattern>,
    found: &mut Vec<Violation>,
) -> Option<LinePattern> {
    let Some(pattern) = pattern.and_then(|pattern| pattern.pattern) else {
        let why = "must have `literal`, `regex` or `json`";
        found.push(Violation::new(field, why));
        return None;
    };
    let pattern = match pattern {
        Pattern::Literal(text) => LinePattern::Literal(text),
        Pattern::Regex(text) => LinePattern::Regex(text),
        Pattern::Json(json) => LinePattern::Json(JsonPattern {
            pointer: json.pointer,
            equals: (!json.equals.is_empty()).then_some(json.equals),
            captures: json.captures,
        }),
    };
    let before = found.len();
    pattern.check(field, found);
    (found.len() == before).then_some(pattern)
}

/// Compiles the pattern in this field, in a turn of this owner.
pub(crate) async fn compile(
    supervisor: &Supervisor,
    owner: &Arc<str>,
    (field, pattern): (&str, LinePattern),
    found: &mut Vec<Violation>,
) -> Result<Option<LineMatcher>, CallError> {
    let field = format!("{field}.{}", pattern.name());
    let compiled = supervisor.owner_turn(owner, move |scratch| LineMatcher::new(&pattern, scratch));
    let refuse = |why| found.push(Violation::new(field, why));
    Ok(compiled.await?.map_err(refuse).ok())
}

/// Parses the selected streams of standard output and standard error; none: both.
pub(crate) fn streams(field: &str, streams: &[i32], found: &mut Vec<Violation>) -> [bool; 2] {
    let mut named = [streams.is_empty(); 2];
    for stream in streams {
        match pb::OutputStream::try_from(*stream) {
            Ok(pb::OutputStream::Stdout) => named[0] = true,
            Ok(pb::OutputStream::Stderr) => named[1] = true,
            Ok(pb::OutputStream::Unspecified) => {
                found.push(Violation::new(field, "must name a stream"));
            }
            Err(_) => found.push(unknown_number(field, *stream, "OutputStream")),
        }
    }
    named
}

pub(crate) fn matched(found: OutputMatch) -> pb::OutputMatch {
    let OutputMatch { line: at, found } = found;
    let mut text = at.text;
    let is_long = text.len() > LINE_BYTES_MAX;
    text.truncate(LINE_BYTES_MAX);
    pb::OutputMatch {
        seq: at.seq,
        attempt: at.attempt,
        stream: line::output_stream(at.stream).into(),
        offset: at.offset,
        line: line::text(text),
        truncated: at.is_cut || is_long,
        text: found.text,
        groups: found.groups.into_iter().map(group).collect(),
    }
}

fn group(group: MatchGroup) -> pb::MatchGroup {
    let MatchGroup { name, text, is_cut } = group;
    pb::MatchGroup {
        name,
        text,
        truncated: is_cut,
    }
}
