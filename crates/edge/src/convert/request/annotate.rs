//! Changes of annotations, parsed.

use super::{parse_run_id, whole};
use crate::{convert::rules, pb};
use kennel_lifecycle::{AnnotationChange, Violation};
use kennel_supervisor::AnnotateCall;
use tonic::Status;

pub(crate) fn annotate(
    request: pb::AnnotateRunRequest,
    by: String,
) -> Result<AnnotateCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let activity = rules::activity_of(request.activity());
    if activity.is_none() && request.activity != 0 {
        let why = "must be an Activity that this server knows";
        found.push(Violation::new("activity", why));
    }
    let change = AnnotationChange {
        set: request.set,
        remove: request.remove.into_iter().collect(),
        expected_version: request.expected_version,
    };
    change.check(&mut found);
    if change.is_empty() && activity.is_none() && found.is_empty() {
        let why = "must be given, or `remove`, or `activity`";
        found.push(Violation::new("set", why));
    }
    Ok(AnnotateCall {
        run: whole(run, &found)?,
        change,
        activity,
        by,
    })
}
