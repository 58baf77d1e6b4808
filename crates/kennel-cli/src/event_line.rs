//! An event on one line.

use super::words;
use crate::values;
use kennel_proto::pb::{self, event::Payload, lifecycle::Station};

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
        Payload::Lifecycle(lifecycle) => station(lifecycle.station.as_ref()?),
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
        Payload::SignalSent(sent) => signal(sent),
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

fn station(station: &Station) -> String {
    match station {
        Station::Recorded(r) => format!("recorded: pid {}, group {}", r.pid, r.process_group_id),
        Station::Started(_) => "started".to_owned(),
        Station::Paused(_) => "paused".to_owned(),
        Station::TerminalResized(size) => format!("terminal: {}", words::terminal_size(*size)),
        Station::Resumed(r) if r.reason == "max_pause" => "resumed: max_pause is over".to_owned(),
        Station::Resumed(_) => "resumed".to_owned(),
        Station::Stopping(s) => {
            let by = if s.by.is_empty() {
                String::new()
            } else {
                format!(" by {}", s.by)
            };
            let due = s.deadline_time.as_ref();
            let due = due.map(|t| format!(", SIGKILL is due {t}"));
            format!("stopping: {}{by}{}", s.reason, due.unwrap_or_default())
        }
        Station::LeaderExited(l) => {
            let how = l.exit.as_ref().map(words::exit);
            format!("leader exited: {}", how.unwrap_or("unknown".to_owned()))
        }
        Station::StreamsClosed(s) => {
            format!("streams closed: {}", words::word(s.how().as_str_name()))
        }
        Station::Stuck(s) => {
            let verdict = s.verdict.as_ref().map(words::verdict);
            verdict.unwrap_or("stuck".to_owned())
        }
        Station::TreeEmpty(t) => {
            let verdict = t.verdict.as_ref().map(words::verdict);
            format!("tree: {}", verdict.unwrap_or("unknown".to_owned()))
        }
        Station::AttemptEnded(a) => {
            let due = a.next_restart_time.as_ref().map(|t| format!(" at {t}"));
            let due = due.unwrap_or_else(|| ", held until a restart".to_owned());
            let restart = a.consecutive_restarts;
            format!(
                "attempt ended: {}, restart {restart} in a row{due}",
                a.reason
            )
        }
        Station::Annotated(changed) => annotated(changed),
        Station::Ready(ready) => format!("ready: attempt {}, by {}", ready.attempt, ready.by),
        Station::ActivityChanged(doing) => {
            let asks = doing.question.as_ref().map(|asked| {
                let text = crate::terminal_text::one_line(&asked.text);
                format!(", question {}: {text}", asked.number)
            });
            format!(
                "activity: {}, by {}{}",
                words::activity(doing.activity()),
                doing.by,
                asks.unwrap_or_default()
            )
        }
        Station::Answered(answered) => {
            let by = format!(" by {}", answered.by);
            let by = values::only_if(!answered.by.is_empty(), &by);
            let how = words::word(answered.how().as_str_name());
            format!("answered: {:?} {how}{by}", answered.questions)
        }
        Station::StatusChanged(said) => {
            let ends = values::only_if(said.is_stopping, ", it ends by itself");
            let status = crate::terminal_text::one_line(&said.status);
            format!("status: {status}{ends}")
        }
        Station::OutputMatched(matched) => output_matched(matched),
        Station::RuleSwitchedOff(off) => {
            let why = words::word(off.reason().as_str_name());
            format!("output rule {} switched off: {why}", off.rule)
        }
        Station::EventsSummed(summed) => format!("{} events were only counted", summed.events),
        Station::Extended(extended) => words::extended(extended),
        Station::Ended(e) => format!("ended: {}, {}", words::state(e.state()), e.reason),
    }
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

fn signal(sent: &pb::SignalSent) -> String {
    if let (Some(delivered), Some(gone), Some(refused)) = (sent.delivered, sent.gone, sent.refused)
    {
        let address = words::signal_address(sent.scope(), sent.sender());
        let went = words::signal_went(delivered, gone, refused, sent.error_number);
        return format!("signal {} sent {address}: {went}", sent.signal);
    }
    match (sent.error_number, sent.targets) {
        (Some(errno), _) => {
            let why = words::errno(errno);
            format!("signal {} could not be sent: {why}", sent.signal)
        }
        (None, Some(targets)) => format!("signal {} sent, processes: {targets}", sent.signal),
        (None, None) => format!("signal {} sent", sent.signal),
    }
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
