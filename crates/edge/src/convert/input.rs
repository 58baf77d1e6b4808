//! State of standard input, in the contract's form.

use super::request;
use crate::{enums::input_end, pb};
use kennel_lifecycle::{Violation, limits as bounds};
use kennel_supervisor::{InputProgress, InputWritten, WriteCall};

/// Parses a write, of the rpc or of a client at a terminal.
pub(crate) fn write(
    request: pb::WriteInputRequest,
    by: String,
    found: &mut Vec<Violation>,
) -> Option<WriteCall> {
    let run = request::parse_run_id(&request.run_id, found);
    if request.data.is_empty() || request.data.len() > bounds::INPUT_WRITE_BYTES_MAX {
        let most = bounds::INPUT_WRITE_BYTES_MAX;
        let what = format!("must be 1 to {most} bytes");
        found.push(Violation::new("data", what));
    }
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if request.write_id.len() > bounds::WRITE_ID_BYTES_MAX
        || !request.write_id.bytes().all(is_plain)
    {
        let most = bounds::WRITE_ID_BYTES_MAX;
        let what = format!("must be at most {most} printable ASCII characters without \" and \\");
        found.push(Violation::new("write_id", what));
    }
    request::check_attempt(request.expected_attempt, found);
    Some(WriteCall {
        run: run?,
        data: request.data.into(),
        offset: request.offset,
        write_id: (!request.write_id.is_empty()).then_some(request.write_id),
        expected_attempt: request.expected_attempt,
        answers: request.if_awaiting,
        by,
    })
}

pub(crate) fn written(written: InputWritten) -> pb::WriteInputResponse {
    pb::WriteInputResponse {
        input: Some(status(written.progress)),
        start_offset: written.start,
        repeated_request: written.repeated,
    }
}

pub(crate) fn status(progress: InputProgress) -> pb::InputStatus {
    let closed_by = progress.end.map_or(pb::InputEnd::Unspecified, input_end);
    pb::InputStatus {
        attempt: progress.attempt,
        accepted_offset: progress.accepted,
        unread_bytes: progress.unread,
        closed_by: closed_by.into(),
    }
}
