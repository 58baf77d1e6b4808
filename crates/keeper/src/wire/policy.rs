//! A policy on its way: the text that its server has written, which no process on the way writes anew. So a field that a
//! keeper or a shim does not know reaches the next one.

use kennel_lifecycle::{Policy, Recovery};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::{ops::Deref, sync::Arc};

/// A policy with its text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "PolicyParts", into = "PolicyParts")]
pub(crate) struct WirePolicy {
    parts: PolicyParts,
    /// What this process reads in it.
    policy: Policy,
    /// Whether that is all of its values. A run that lives is supervised by the rest; none begins with less.
    is_whole: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PolicyParts {
    text: Arc<RawValue>,
    /// The keeper's decision for its host, where it has made one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "kennel_lifecycle::known_or_default"
    )]
    recovery: Option<Recovery>,
}

impl WirePolicy {
    /// Decides how the run is recovered on this host.
    pub(crate) fn decide(&mut self, recovery: Recovery) {
        self.parts.recovery = Some(recovery);
        self.policy.recovery = Some(recovery);
    }

    /// Whether this version can begin a run with it.
    pub(crate) fn is_known(&self) -> bool {
        self.is_whole && self.unknown_need().is_none()
    }

    pub(crate) fn into_policy(self) -> Policy {
        self.policy
    }
}

impl Deref for WirePolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

#[cfg(test)]
impl std::ops::DerefMut for WirePolicy {
    fn deref_mut(&mut self) -> &mut Policy {
        &mut self.policy
    }
}

impl PartialEq for WirePolicy {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy && self.parts.text.get() == other.parts.text.get()
    }
}

impl Eq for WirePolicy {}

impl From<Policy> for WirePolicy {
    fn from(policy: Policy) -> Self {
        let text = to_raw_value(&policy).expect("a policy is JSON");
        let parts = PolicyParts {
            text: Arc::from(text),
            recovery: None,
        };
        Self {
            parts,
            policy,
            is_whole: true,
        }
    }
}

impl TryFrom<PolicyParts> for WirePolicy {
    type Error = serde_json::Error;

    fn try_from(parts: PolicyParts) -> Result<Self, serde_json::Error> {
        let text = parts.text.get();
        let whole = serde_json::from_str::<Policy>(text);
        let is_whole = whole.is_ok();
        let known = |_| kennel_lifecycle::known_fields(serde_json::from_str(text)?);
        let (mut policy, _) = whole.map(|policy| (policy, None)).or_else(known)?;
        policy.recovery = parts.recovery.or(policy.recovery);
        Ok(Self {
            parts,
            policy,
            is_whole,
        })
    }
}

impl From<WirePolicy> for PolicyParts {
    fn from(policy: WirePolicy) -> Self {
        policy.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: A-22g
    #[test]
    fn unknown_field_reaches_the_next_reader() {
        let text = r#"{"text":{"kind":"job","of_tomorrow":{"a":1}}}"#;
        let mut read: WirePolicy = serde_json::from_str(text).expect("a policy");
        read.decide(Recovery::Adopt);
        assert_eq!(read.kind.name(), "job");
        let passed_on = serde_json::to_string(&read).expect("JSON");
        assert_eq!(
            passed_on,
            r#"{"text":{"kind":"job","of_tomorrow":{"a":1}},"recovery":"adopt"}"#
        );
        let next: WirePolicy = serde_json::from_str(&passed_on).expect("a policy");
        assert_eq!((&next, next.is_known()), (&read, true));
        assert_eq!(next.into_policy().recovery, Some(Recovery::Adopt));
    }

    #[test]
    fn unknown_need_makes_policy_unknown() {
        let text = r#"{"text":{"kind":"job","needs":["sandbox","of_tomorrow"]}}"#;
        let read: WirePolicy = serde_json::from_str(text).expect("a policy");
        assert!(!read.is_known());
    }

    // promise: A-22a, A-22h
    #[test]
    fn unknown_policy_value_keeps_the_other_values() {
        let text = r#"{"text":{"kind":"of_tomorrow","success_exit_codes":[7]}}"#;
        let read: WirePolicy = serde_json::from_str(text).expect("a policy");
        assert!(!read.is_known());
        assert_eq!(read.success_exit_codes, [7]);
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
    }
}
