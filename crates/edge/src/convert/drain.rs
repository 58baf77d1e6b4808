//! A drain, in the contract's form.

use super::time;
use crate::{enums::mapped, pb};
use kennel_supervisor::{Drain, DrainAction, DrainStatus};

/// Most runs that are listed; the others are counted.
const NAMED_MAX: usize = 1000;

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
