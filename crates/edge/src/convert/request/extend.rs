//! Extensions of limits of time, parsed.

use super::{parse_run_id, whole};
use crate::{convert::time, pb};
use kennel_lifecycle::{Deadline, Violation, limits::TIMEOUT_MAX};
use kennel_supervisor::ExtendCall;
use tonic::Status;

pub(crate) fn extend(
    request: &pb::ExtendTimeoutsRequest,
    by: String,
) -> Result<ExtendCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let mut limits = Vec::new();
    for (at, limit) in request.limits.iter().enumerate() {
        let limit = match pb::Deadline::try_from(*limit) {
            Ok(pb::Deadline::MaxRuntime) => Deadline::MaxRuntime,
            Ok(pb::Deadline::Inactivity) => Deadline::Inactivity,
            Ok(pb::Deadline::StartTimeout) => Deadline::StartTimeout,
            Ok(pb::Deadline::MaxPause | pb::Deadline::Unspecified) | Err(_) => {
                let why =
                    "must be DEADLINE_MAX_RUNTIME, DEADLINE_INACTIVITY or DEADLINE_START_TIMEOUT";
                found.push(Violation::new(format!("limits[{at}]"), why));
                continue;
            }
        };
        if limits.contains(&limit) {
            found.push(Violation::new(format!("limits[{at}]"), "is named twice"));
        }
        limits.push(limit);
    }
    let time = time::parse_duration("duration", request.duration.as_ref(), &mut found);
    let time = time.unwrap_or_default();
    if found.is_empty() && (time.is_zero() || time > TIMEOUT_MAX) {
        let why = "must be more than zero and at most 10 years (87,600 hours)";
        found.push(Violation::new("duration", why));
    }
    Ok(ExtendCall {
        run: whole(run, &found)?,
        limits,
        time,
        by,
    })
}
