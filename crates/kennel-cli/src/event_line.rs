//! An event on one line.

use super::{sentence, words};
use crate::values;
use kennel_proto::pb::{self, event::Payload, lifecycle::Station};
use serde_json::Value;

/// Bytes of output that an event's line shows; the total length is given beside them.
const EXCERPT_BYTES_MAX: usize = 60;

/// Formats `SEQ TIME WORDS`; `None` for a payload that is no event of the run.
pub(crate) fn event_line(seq: u64, time: &str, payload: &Payload) -> Option<String> {
    let words = event_words(payload)?;
    Some(format!("{seq} {time} {words}"))
}

/// Formats the contents of an event; `None` for a payload that is no event of the run.
pub(crate) fn event_words(payload: &Payload) -> Option<String> {
    Some(match payload {
        Payload::Lifecycle(lifecycle) => station(lifecycle)?,
        Payload::Output(output) => {
            let stream = words::stream(output.stream());
            format!(
                "{stream}: {} bytes at {}: {}",
                output.data.len(),
                output.offset,
                excerpt(&output.data)
            )
        }
        Payload::Line(line) => {
            let stream = words::stream(line.stream());
            let more = values::only_if(line.truncated, "...");
            let shown = line.text.as_bytes().escape_ascii();
            format!("{stream}: line at {}: \"{shown}\"{more}", line.offset)
        }
        Payload::SignalSent(sent) => sentence::of("signalSent", sent),
        Payload::Warning(warning) => format!("warning: {}", warning.message),
        Payload::Gap(gap) => words::gap(gap),
        Payload::Heartbeat(_) | Payload::Snapshot(_) => return None,
    })
}

fn excerpt(data: &[u8]) -> String {
    let shown = &data[..data.len().min(EXCERPT_BYTES_MAX)];
    let dots = values::only_if(shown.len() < data.len(), "...");
    format!("\"{}\"{dots}", shown.escape_ascii())
}

fn station(lifecycle: &pb::Lifecycle) -> Option<String> {
    Some(match lifecycle.station.as_ref()? {
        Station::Annotated(changed) => annotated(changed),
        Station::OutputMatched(matched) => output_matched(matched),
        _ => sentence::of_field("lifecycle", lifecycle, &Value::Null)?,
    })
}

/// Formats annotations, whose values are text of clients with any characters.
fn annotated(changed: &pb::lifecycle::Annotated) -> String {
    let set = changed.set.iter();
    let set = set.map(|(key, value)| format!("{key}={:?}", excerpt_of(value)));
    let removed = changed.removed.iter().map(|key| format!("{key}-"));
    let pairs: Vec<String> = set.chain(removed).collect();
    format!(
        "annotated, version {}: {}",
        changed.version,
        pairs.join(" ")
    )
}

fn output_matched(matched: &pb::lifecycle::OutputMatched) -> String {
    let rules = matched.rules.iter().map(|of| {
        let groups = of.groups.iter();
        let groups = groups.map(|(key, value)| format!(" {key}={:?}", excerpt_of(value)));
        format!("{}{}", of.rule, groups.collect::<String>())
    });
    let rules: Vec<String> = rules.collect();
    let stream = words::stream(matched.stream());
    let place = format!("{stream} at {}", matched.offset);
    format!("line of {place} matched: {}", rules.join(", "))
}

fn excerpt_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(EXCERPT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_stays_on_one_line() {
        let output = pb::Output {
            stream: pb::OutputStream::Stderr.into(),
            data: b"a\nb\x1b[31m".to_vec().into(),
            offset: 7,
        };
        assert_eq!(
            event_line(3, "T", &Payload::Output(output)).as_deref(),
            Some(r#"3 T stderr: 8 bytes at 7: "a\nb\x1b[31m""#)
        );
    }

    #[test]
    fn long_output_event_prints_its_length() {
        let output = pb::Output {
            stream: pb::OutputStream::Stdout.into(),
            data: vec![b'x'; 4096].into(),
            offset: 0,
        };
        let line = event_line(1, "T", &Payload::Output(output)).expect("output has a line");
        assert!(
            line.contains("4096 bytes") && line.ends_with("x\"..."),
            "{line}"
        );
        assert!(line.len() < 120);
    }
}
