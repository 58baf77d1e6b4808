//! State of standard input, in the contract's form.

use crate::{enums::input_end, pb};
use kennel_supervisor::{InputProgress, InputWritten};

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
