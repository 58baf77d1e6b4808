//! How far standard input has come.

use crate::pb;
use kennel_lifecycle::InputClosed;
use kennel_supervisor::{InputEnd, InputProgress, InputWritten};

pub(crate) fn written(written: InputWritten) -> pb::WriteInputResponse {
    pb::WriteInputResponse {
        input: Some(status(written.progress)),
        start_offset: written.start,
        repeated_request: written.repeated,
    }
}

pub(crate) fn status(progress: InputProgress) -> pb::InputStatus {
    let closed_by = progress.end.map_or(pb::InputEnd::Unspecified, end);
    pb::InputStatus {
        attempt: progress.attempt,
        accepted_offset: progress.accepted,
        unread_bytes: progress.unread,
        closed_by: closed_by.into(),
    }
}

pub(crate) fn end(end: InputEnd) -> pb::InputEnd {
    match end {
        InputEnd::Closed(InputClosed::Client) => pb::InputEnd::Client,
        InputEnd::Closed(InputClosed::Command) => pb::InputEnd::Command,
        InputEnd::Closed(InputClosed::AttemptEnded) => pb::InputEnd::AttemptEnded,
        InputEnd::Spec => pb::InputEnd::Spec,
    }
}
