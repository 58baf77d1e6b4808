//! A drain, in the contract's form.

use super::{request, spec::known, time};
use crate::{enums::mapped, pb};
use kennel_lifecycle::Violation;
use kennel_supervisor::{Drain, DrainAction, DrainCall, DrainStatus};
use std::time::Duration;
use tonic::Status;

/// Longest time until remaining runs are ended.
const DEADLINE_MAX: Duration = Duration::from_hours(30 * 24);
/// Most runs that are listed; the others are counted.
const NAMED_MAX: usize = 1000;

pub(crate) fn call(request: &pb::DrainRequest, by: String) -> Result<DrainCall, Status> {
    let mut found = Vec::new();
    let request_id = request::request_id(&request.request_id, &mut found);
    let deadline = time::parse_duration("deadline", request.deadline.as_ref(), &mut found);
    if deadline.is_some_and(|wait| wait > DEADLINE_MAX) {
        found.push(Violation::new("deadline", "must be at most 30 days"));
    }
    let action = match known("action", request.action, "DrainAction", &mut found) {
        pb::DrainAction::Unspecified | pb::DrainAction::Finish => DrainAction::Finish,
        pb::DrainAction::Abort => {
            if deadline.is_some() {
                let why = "runs that are ended at once need no deadline";
                found.push(Violation::new("deadline", why));
            }
            DrainAction::Abort
        }
    };
    request::no_violations(&found)?;
    Ok(DrainCall {
        action,
        deadline,
        by,
        request_id,
    })
}

pub(crate) fn status(status: DrainStatus) -> pb::DrainStatus {
    let named = status.remaining.iter().take(NAMED_MAX);
    pb::DrainStatus {
        remaining: u32::try_from(status.remaining.len()).unwrap_or(u32::MAX),
        run_ids: named.map(ToString::to_string).collect(),
        drain: status.drain.map(drain),
    }
}

mapped! { fn action(DrainAction) -> DrainAction { Finish Abort } }

fn drain(drain: Drain) -> pb::Drain {
    pb::Drain {
        action: action(drain.action).into(),
        deadline_time: drain.deadline.map(time::timestamp),
        start_time: Some(time::timestamp(drain.since)),
        by: drain.by,
    }
}
