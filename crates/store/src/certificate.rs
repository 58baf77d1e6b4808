//! The stop certificate as the JSON of column `certificate_detail`. The verdict stands in columns of its own.

use crate::words;
use kennel_lifecycle::{Signal, SignalScope, SignalSender, StopCertificate, StopStep, Timestamp};
use serde_json::{Value, json};

/// The JSON text.
pub(crate) fn write(certificate: &StopCertificate) -> String {
    let StopCertificate {
        steps,
        steps_unlisted,
        leftovers,
        census,
    } = certificate;
    let steps: Vec<Value> = steps.iter().map(write_step).collect();
    json!({
        "steps": steps,
        "steps_unlisted": steps_unlisted,
        "leftovers": words::leftovers(leftovers),
        "census_us": census.map(|at| at.0),
    })
    .to_string()
}

fn write_step(step: &StopStep) -> Value {
    json!({
        "at_us": step.at.0,
        "signal": step.signal.number(),
        "scope": scope_word(step.scope),
        "sender": sender_word(step.sender),
        "delivered": step.delivered,
        "gone": step.gone,
        "refused": step.refused,
        "errno": step.errno,
    })
}

/// The certificate in this text.
pub(crate) fn read(text: &str) -> Result<StopCertificate, String> {
    let parsed: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    read_value(&parsed).ok_or_else(|| format!("{parsed} is no certificate"))
}

fn read_value(value: &Value) -> Option<StopCertificate> {
    let steps = value["steps"].as_array()?.iter().map(read_step);
    Some(StopCertificate {
        steps: steps.collect::<Option<_>>()?,
        steps_unlisted: number(&value["steps_unlisted"])?,
        leftovers: words::read_leftovers(&value["leftovers"])?,
        census: value["census_us"].as_i64().map(Timestamp),
    })
}

fn read_step(value: &Value) -> Option<StopStep> {
    const SCOPES: [SignalScope; 4] = [
        SignalScope::Tree,
        SignalScope::ControlGroup,
        SignalScope::ShimChildren,
        SignalScope::PidNamespace,
    ];
    const SENDERS: [SignalSender; 2] = [SignalSender::Keeper, SignalSender::Shim];
    let (scope, sender) = (value["scope"].as_str()?, value["sender"].as_str()?);
    Some(StopStep {
        at: Timestamp(value["at_us"].as_i64()?),
        signal: Signal::from_number(number(&value["signal"])?)?,
        scope: SCOPES.into_iter().find(|s| scope_word(*s) == scope)?,
        sender: SENDERS.into_iter().find(|s| sender_word(*s) == sender)?,
        delivered: number(&value["delivered"])?,
        gone: number(&value["gone"])?,
        refused: number(&value["refused"])?,
        errno: number(&value["errno"]),
    })
}

fn number<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_i64()?).ok()
}

fn scope_word(scope: SignalScope) -> &'static str {
    match scope {
        SignalScope::Tree => "tree",
        SignalScope::ControlGroup => "cgroup_kill",
        SignalScope::ShimChildren => "shim_children",
        SignalScope::PidNamespace => "pid_namespace",
    }
}

fn sender_word(sender: SignalSender) -> &'static str {
    match sender {
        SignalSender::Keeper => "keeper",
        SignalSender::Shim => "shim",
    }
}
