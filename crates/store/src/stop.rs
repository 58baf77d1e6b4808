//! The first stop of a run as the JSON of column `stop_detail`.

use crate::words::{self, DEADLINES, LIMITS};
use kennel_lifecycle::{StopOrder, StopReason};
use serde_json::{Value, json};
use std::time::Duration;

/// The JSON text.
pub(crate) fn write(order: &StopOrder) -> String {
    let grace_us = u64::try_from(order.grace.as_micros()).unwrap_or(u64::MAX);
    match &order.reason {
        StopReason::Abort { by, request_id } => {
            json!({"reason": "abort", "by": by, "request_id": request_id, "grace_us": grace_us})
        }
        StopReason::Restart { by, request_id } => {
            json!({"reason": "restart", "by": by, "request_id": request_id, "grace_us": grace_us})
        }
        StopReason::ServerShutdown => json!({"reason": "server_shutdown", "grace_us": grace_us}),
        StopReason::Orphaned => json!({"reason": "orphaned", "grace_us": grace_us}),
        StopReason::ShimLost => json!({"reason": "shim_lost", "grace_us": grace_us}),
        StopReason::DeadlineExceeded(which) => {
            let which = words::deadline_word(*which);
            json!({"reason": "deadline_exceeded", "which": which, "grace_us": grace_us})
        }
        StopReason::LimitExceeded(limit) => {
            let limit = words::limit_word(*limit);
            json!({"reason": "limit_exceeded", "limit": limit, "grace_us": grace_us})
        }
    }
    .to_string()
}

/// The order in this text.
pub(crate) fn read(text: &str) -> Result<StopOrder, String> {
    let parsed: Value = serde_json::from_str(text).map_err(|e| format!("stop_detail: {e}"))?;
    read_value(&parsed).ok_or_else(|| format!("stop_detail {parsed}"))
}

fn read_value(value: &Value) -> Option<StopOrder> {
    let reason = match value["reason"].as_str()? {
        "abort" => StopReason::Abort {
            by: value["by"].as_str()?.to_owned(),
            request_id: value["request_id"].as_str().map(str::to_owned),
        },
        "restart" => StopReason::Restart {
            by: value["by"].as_str()?.to_owned(),
            request_id: value["request_id"].as_str().map(str::to_owned),
        },
        "server_shutdown" => StopReason::ServerShutdown,
        "orphaned" => StopReason::Orphaned,
        "shim_lost" => StopReason::ShimLost,
        "deadline_exceeded" => {
            let which = value["which"].as_str()?;
            let which = words::find("which", &DEADLINES, which, words::deadline_word);
            StopReason::DeadlineExceeded(which.ok()?)
        }
        "limit_exceeded" => {
            let limit = value["limit"].as_str()?;
            let limit = words::find("limit", &LIMITS, limit, words::limit_word);
            StopReason::LimitExceeded(limit.ok()?)
        }
        _ => return None,
    };
    let grace = Duration::from_micros(value["grace_us"].as_u64()?);
    Some(StopOrder { reason, grace })
}
