//! Waits for a line of output, parsed.

use super::{parse_run_id, whole};
use crate::{convert::pattern, limits, pb, status};
use kennel_lifecycle::Violation;
use kennel_supervisor::{LINE_BYTES_MAX, OutputWait, Supervisor};
use std::sync::Arc;
use tonic::Status;

/// Parses it; its pattern is compiled in a turn of this owner.
pub(crate) async fn wait_output(
    request: pb::WaitForOutputRequest,
    supervisor: &Supervisor,
    owner: &Arc<str>,
) -> Result<OutputWait, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let matcher = match pattern::pattern("pattern", request.pattern, &mut found) {
        Some(wanted) => {
            let compiled = pattern::compile(supervisor, owner, ("pattern", wanted), &mut found);
            compiled.await.map_err(|error| status::of(&error))?
        }
        None => None,
    };
    let streams = pattern::streams("streams", &request.streams, &mut found);
    let line_bytes_max = match request.line_bytes_max {
        0 => LINE_BYTES_MAX,
        bytes => bytes,
    };
    if !limits::LINE_BYTES.contains(&line_bytes_max) {
        let (least, most) = (limits::LINE_BYTES.start(), limits::LINE_BYTES.end());
        let why = format!("must be {least} to {most}, or 0 for {LINE_BYTES_MAX}");
        found.push(Violation::new("line_bytes_max", why));
    }
    let run = whole(run, &found)?;
    let unread = || status::internal("a pattern was neither read nor refused");
    Ok(OutputWait {
        run,
        matcher: matcher.ok_or_else(unread)?,
        streams,
        after_seq: request.after_seq,
        line_bytes_max,
    })
}
