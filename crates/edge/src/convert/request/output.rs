//! Selection of output, and its view.

use super::{known, parse_run_id, unknown_number, whole};
use crate::{limits, pb};
use kennel_lifecycle::Violation;
use kennel_supervisor::{Form, OutputCall, OutputRange};
use tonic::Status;

pub(crate) fn read_output(request: &pb::ReadOutputRequest) -> Result<OutputCall, Status> {
    use pb::{OutputStream as Stream, read_output_request::Range as Asked};
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let stream = match Stream::try_from(request.stream) {
        Ok(Stream::Stdout) => 1,
        Ok(Stream::Stderr) => 2,
        Ok(Stream::Unspecified) => {
            found.push(Violation::new("stream", "must be given"));
            1
        }
        Err(_) => {
            found.push(unknown_number("stream", request.stream, "OutputStream"));
            1
        }
    };
    let max = limits::OUTPUT_READ_BYTES_MAX;
    let from = |offset| OutputRange::From {
        offset,
        bytes_max: match request.bytes_max {
            0 => max,
            bytes => u64::from(bytes),
        },
    };
    if u64::from(request.bytes_max) > max {
        let why = format!("must be at most {max}");
        found.push(Violation::new("bytes_max", why));
    }
    let range = match &request.range {
        None => from(0),
        Some(Asked::Offset(offset)) => from(*offset),
        Some(Asked::HeadTail(ends)) => {
            let (head, tail) = (u64::from(ends.head_bytes), u64::from(ends.tail_bytes));
            if !(1..=max).contains(&(head + tail)) {
                let why = format!("must be 1 to {max} bytes together");
                found.push(Violation::new("head_tail", why));
            }
            OutputRange::Ends { head, tail }
        }
    };
    let (form, _) = view("view", request.view, &mut found);
    if form.is_some_and(|form| form.lines) {
        let why = "must be OUTPUT_VIEW_RAW or OUTPUT_VIEW_TEXT";
        found.push(Violation::new("view", why));
    }
    Ok(OutputCall {
        run: whole(run, &found)?,
        stream,
        range,
        plain: form.is_some_and(|form| form.plain),
    })
}

/// Parses the form of a view, and whether its lines are parsed.
pub(super) fn view(field: &str, number: i32, found: &mut Vec<Violation>) -> (Option<Form>, bool) {
    use pb::OutputView as View;
    let form = |plain, lines| {
        Some(Form {
            plain,
            lines,
            ..Form::default()
        })
    };
    match known(field, number, "OutputView", found) {
        View::Unspecified | View::Raw => (None, false),
        View::Text => (form(true, false), false),
        View::Lines => (form(false, true), false),
        View::TextLines => (form(true, true), false),
        View::JsonLines => (form(true, true), true),
    }
}
