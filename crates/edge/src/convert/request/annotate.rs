//! Changes of annotations, parsed.

use super::{parse_run_id, whole};
use crate::pb;
use kennel_lifecycle::AnnotationChange;
use kennel_supervisor::AnnotateCall;
use tonic::Status;

pub(crate) fn annotate(
    request: pb::AnnotateRunRequest,
    by: String,
) -> Result<AnnotateCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let change = AnnotationChange {
        set: request.set,
        remove: request.remove.into_iter().collect(),
        expected_version: request.expected_version,
    };
    change.check(&mut found);
    Ok(AnnotateCall {
        run: whole(run, &found)?,
        change,
        by,
    })
}
