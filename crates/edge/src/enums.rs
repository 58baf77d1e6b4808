//! Enum values shared by requests, answers and errors, in the contract's form.

use crate::pb;
use kennel_lifecycle::{Containment, InputClosed, RunKind, Violation};
use kennel_supervisor::InputEnd;

/// Makes the function from an enum to the contract's, and if it is named, the one back, where no value is unspecified.
/// The table lists the variants of the same name, then those of others. Both functions match every variant.
macro_rules! mapped {
    ($vis:vis fn $shown:ident($own:ident) -> $pb:ident { $($same:ident)* $(, $from:ident = $to:ident)* }) => {
        $vis fn $shown(value: $own) -> pb::$pb {
            match value {
                $($own::$same => pb::$pb::$same,)*
                $($own::$from => pb::$pb::$to,)*
            }
        }
    };
    (
        $vis:vis fn $shown:ident($own:ident) -> $pb:ident, fn $parsed:ident
        { $($same:ident)* $(, $from:ident = $to:ident)* }
    ) => {
        mapped! { $vis fn $shown($own) -> $pb { $($same)* $(, $from = $to)* } }

        $vis fn $parsed(value: pb::$pb) -> Option<$own> {
            match value {
                pb::$pb::Unspecified => None,
                $(pb::$pb::$same => Some($own::$same),)*
                $(pb::$pb::$to => Some($own::$from),)*
            }
        }
    };
}
pub(crate) use mapped;

mapped! {
    pub(crate) fn containment(Containment) -> Containment, fn containment_of { Subreaper Cgroup PrivatePidns }
}

mapped! { pub(crate) fn kind(RunKind) -> RunKind, fn kind_of { Heartbeat Service Terminal Job } }

pub(crate) fn input_end(end: InputEnd) -> pb::InputEnd {
    match end {
        InputEnd::Closed(InputClosed::Client) => pb::InputEnd::Client,
        InputEnd::Closed(InputClosed::Command) => pb::InputEnd::Command,
        InputEnd::Closed(InputClosed::AttemptEnded) => pb::InputEnd::AttemptEnded,
        InputEnd::Closed(InputClosed::Stop) => pb::InputEnd::Stop,
        InputEnd::Spec => pb::InputEnd::Spec,
    }
}

/// Returns the value with this number. A number that this version has no value for is a violation, and unspecified.
pub(crate) fn known<E: TryFrom<i32> + Default>(
    field: &str,
    number: i32,
    name: &str,
    found: &mut Vec<Violation>,
) -> E {
    E::try_from(number).unwrap_or_else(|_| {
        found.push(unknown_number(field, number, name));
        E::default()
    })
}

/// Makes the violation for a number that this version has no value for.
pub(crate) fn unknown_number(field: &str, number: i32, name: &str) -> Violation {
    Violation::new(
        field,
        format!("{number} is not a {name} that this server knows"),
    )
}
