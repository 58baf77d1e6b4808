//! Restart policies, from the contract and back.

use super::time;
use crate::{
    enums::{known, unknown_number},
    pb,
};
use kennel_lifecycle::{RestartMode, RestartPolicy, Violation};

const FIELD: &str = "spec.restart";

/// Converts the policy to the lifecycle's types; faults of its form are added to `found`.
pub(crate) fn parse(
    policy: Option<&pb::RestartPolicy>,
    found: &mut Vec<Violation>,
) -> RestartPolicy {
    let Some(policy) = policy else {
        return RestartPolicy::default();
    };
    let preset = preset(policy.preset, found);
    let mode = mode(policy.mode, preset.is_some(), found);
    let base = preset.unwrap_or_default();
    let mut span = |name: &str, given: Option<&_>| {
        time::parse_duration(&format!("{FIELD}.{name}"), given, found)
    };
    let delay = span("delay", policy.delay.as_ref()).unwrap_or(base.delay);
    let max_delay = span("max_delay", policy.max_delay.as_ref());
    let min_uptime = span("min_uptime", policy.min_uptime.as_ref());
    let parsed = RestartPolicy {
        mode,
        delay,
        factor: policy.factor.unwrap_or(base.factor),
        max_delay: max_delay.unwrap_or(base.max_delay.max(delay)),
        jitter_percent: policy.jitter_percent.unwrap_or(base.jitter_percent),
        max_restarts: policy.max_restarts.or(base.max_restarts),
        min_uptime: min_uptime.unwrap_or(base.min_uptime),
        prevent_exit_codes: codes(
            "spec.restart.prevent_exit_codes",
            &policy.prevent_exit_codes,
            found,
        ),
        force_exit_codes: codes(
            "spec.restart.force_exit_codes",
            &policy.force_exit_codes,
            found,
        ),
        hold: policy.hold,
    };
    let mode_alone = pb::RestartPolicy {
        mode: policy.mode,
        ..pb::RestartPolicy::default()
    };
    if !parsed.restarts() && *policy != mode_alone {
        let what = "says how to restart, and RESTART_MODE_NEVER that there is none";
        found.push(Violation::new(FIELD, what));
        return RestartPolicy::default();
    }
    parsed
}

/// Returns the policy for reads, with all values of a preset; absent: it never restarts.
pub(crate) fn shown(policy: &RestartPolicy) -> Option<pb::RestartPolicy> {
    let mode = match policy.mode {
        RestartMode::Never => return None,
        RestartMode::OnFailure => pb::RestartMode::OnFailure,
        RestartMode::Always => pb::RestartMode::Always,
    };
    Some(pb::RestartPolicy {
        preset: pb::RestartPreset::Unspecified.into(),
        mode: mode.into(),
        delay: Some(time::duration(policy.delay)),
        factor: Some(policy.factor),
        max_delay: Some(time::duration(policy.max_delay)),
        jitter_percent: Some(policy.jitter_percent),
        max_restarts: policy.max_restarts,
        min_uptime: Some(time::duration(policy.min_uptime)),
        prevent_exit_codes: shown_codes(&policy.prevent_exit_codes),
        force_exit_codes: shown_codes(&policy.force_exit_codes),
        hold: policy.hold,
    })
}

fn preset(number: i32, found: &mut Vec<Violation>) -> Option<RestartPolicy> {
    match known("spec.restart.preset", number, "RestartPreset", found) {
        pb::RestartPreset::Unspecified => None,
        pb::RestartPreset::Agent => Some(RestartPolicy::agent()),
        pb::RestartPreset::Keepalive => Some(RestartPolicy::keepalive()),
    }
}

fn mode(number: i32, preset: bool, found: &mut Vec<Violation>) -> RestartMode {
    match pb::RestartMode::try_from(number) {
        Ok(pb::RestartMode::Unspecified) if preset => RestartMode::Always,
        Ok(pb::RestartMode::Unspecified | pb::RestartMode::Never) => RestartMode::Never,
        Ok(pb::RestartMode::OnFailure) => RestartMode::OnFailure,
        Ok(pb::RestartMode::Always) => RestartMode::Always,
        Err(_) => {
            found.push(unknown_number("spec.restart.mode", number, "RestartMode"));
            RestartMode::Always
        }
    }
}

/// Converts exit codes to the contract.
pub(crate) fn shown_codes(codes: &[u8]) -> Vec<u32> {
    codes.iter().copied().map(u32::from).collect()
}

/// Parses the exit codes of the field with this name.
pub(crate) fn codes(name: &str, numbers: &[u32], found: &mut Vec<Violation>) -> Vec<u8> {
    let mut codes = Vec::new();
    for (i, number) in numbers.iter().enumerate() {
        match u8::try_from(*number) {
            Ok(code) => codes.push(code),
            Err(_) => {
                let field = format!("{name}[{i}]");
                found.push(Violation::new(field, "must be an exit code, 0 to 255"));
            }
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn of(policy: &pb::RestartPolicy) -> (RestartPolicy, Vec<String>) {
        let mut found = Vec::new();
        let parsed = parse(Some(policy), &mut found);
        (parsed, found.into_iter().map(|v| v.field).collect())
    }

    fn seconds(seconds: i64) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos: 0 }
    }

    #[test]
    fn restart_preset_fills_unset_fields() {
        let keepalive = pb::RestartPolicy {
            preset: pb::RestartPreset::Keepalive.into(),
            mode: pb::RestartMode::OnFailure.into(),
            delay: Some(seconds(90)),
            force_exit_codes: vec![3],
            ..pb::RestartPolicy::default()
        };
        let wanted = RestartPolicy {
            mode: RestartMode::OnFailure,
            delay: Duration::from_secs(90),
            max_delay: Duration::from_secs(90),
            force_exit_codes: vec![3],
            ..RestartPolicy::keepalive()
        };
        assert_eq!(of(&keepalive), (wanted.clone(), vec![]));
        assert_eq!(of(&shown(&wanted).expect("it restarts")), (wanted, vec![]));
        assert_eq!(parse(None, &mut Vec::new()), RestartPolicy::default());
        assert_eq!(of(&pb::RestartPolicy::default()).1, [""; 0]);
    }

    #[test]
    fn restart_options_without_restarts_are_refused() {
        let never = pb::RestartPolicy {
            mode: pb::RestartMode::Never.into(),
            ..pb::RestartPolicy::default()
        };
        assert_eq!(of(&never).1, [""; 0]);
        for said in [
            pb::RestartPolicy {
                preset: pb::RestartPreset::Agent.into(),
                ..never.clone()
            },
            pb::RestartPolicy {
                max_restarts: Some(3),
                ..never
            },
            pb::RestartPolicy {
                delay: Some(seconds(1)),
                ..pb::RestartPolicy::default()
            },
        ] {
            assert_eq!(of(&said).1, ["spec.restart"]);
        }
    }

    #[test]
    fn invalid_restart_values_are_reported_by_field() {
        let strange = pb::RestartPolicy {
            preset: 9,
            mode: 9,
            delay: Some(seconds(-1)),
            prevent_exit_codes: vec![1, 256],
            ..pb::RestartPolicy::default()
        };
        let wanted = [
            "spec.restart.preset",
            "spec.restart.mode",
            "spec.restart.delay",
            "spec.restart.prevent_exit_codes[1]",
        ];
        assert_eq!(of(&strange).1, wanted);
    }
}
