//! A restart policy as the JSON of column `restart_detail`.

use crate::words;
use kennel_lifecycle::{RestartMode, RestartPolicy};
use serde_json::{Value, json};
use std::time::Duration;

/// The JSON text; none for a policy that starts nothing again.
pub(crate) fn write(policy: &RestartPolicy) -> Option<String> {
    let RestartPolicy {
        mode,
        delay,
        factor,
        max_delay,
        jitter_percent,
        max_restarts,
        min_uptime,
        prevent_exit_codes,
        force_exit_codes,
    } = policy;
    policy.restarts().then(|| {
        json!({
            "mode": mode_word(*mode),
            "delay_us": micros(*delay),
            "factor": factor,
            "max_delay_us": micros(*max_delay),
            "jitter_percent": jitter_percent,
            "max_restarts": max_restarts,
            "min_uptime_us": micros(*min_uptime),
            "prevent_exit_codes": prevent_exit_codes,
            "force_exit_codes": force_exit_codes,
        })
        .to_string()
    })
}

/// The policy in this text.
pub(crate) fn read(text: Option<&str>) -> Result<RestartPolicy, String> {
    let Some(text) = text else {
        return Ok(RestartPolicy::default());
    };
    let parsed: Value = serde_json::from_str(text).map_err(|e| format!("restart_detail: {e}"))?;
    read_value(&parsed).ok_or_else(|| format!("restart_detail {parsed}"))
}

fn read_value(value: &Value) -> Option<RestartPolicy> {
    let time = |key: &str| value[key].as_u64().map(Duration::from_micros);
    let number = |key: &str| value[key].as_u64().and_then(|n| u32::try_from(n).ok());
    let codes = |key: &str| serde_json::from_value(value[key].clone()).ok();
    Some(RestartPolicy {
        mode: words::find("mode", &MODES, value["mode"].as_str()?, mode_word).ok()?,
        delay: time("delay_us")?,
        factor: number("factor")?,
        max_delay: time("max_delay_us")?,
        jitter_percent: number("jitter_percent")?,
        max_restarts: match &value["max_restarts"] {
            Value::Null => None,
            _ => Some(number("max_restarts")?),
        },
        min_uptime: time("min_uptime_us")?,
        prevent_exit_codes: codes("prevent_exit_codes")?,
        force_exit_codes: codes("force_exit_codes")?,
    })
}

const MODES: [RestartMode; 3] = [
    RestartMode::Never,
    RestartMode::OnFailure,
    RestartMode::Always,
];

fn mode_word(mode: RestartMode) -> &'static str {
    match mode {
        RestartMode::Never => "never",
        RestartMode::OnFailure => "on_failure",
        RestartMode::Always => "always",
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
