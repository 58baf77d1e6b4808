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

/// Makes the function that parses an enum whose unspecified value, and the one that says it, stand for its default. If
/// it is named, the one back leaves the default unspecified.
macro_rules! parsed {
    (
        $vis:vis fn $parse:ident($pb:ident) -> $own:ident
        { Unspecified $(| $said:ident)? => $default:ident $(, $same:ident)* }
    ) => {
        $vis fn $parse(
            field: &str,
            number: i32,
            found: &mut Vec<kennel_lifecycle::Violation>,
        ) -> $own {
            match $crate::enums::known(field, number, stringify!($pb), found) {
                pb::$pb::Unspecified $(| pb::$pb::$said)? => $own::$default,
                $(pb::$pb::$same => $own::$same,)*
            }
        }
    };
    (
        $vis:vis fn $parse:ident($pb:ident) -> $own:ident, fn $shown:ident
        { Unspecified $(| $said:ident)? => $default:ident $(, $same:ident)* }
    ) => {
        parsed! { $vis fn $parse($pb) -> $own { Unspecified $(| $said)? => $default $(, $same)* } }

        $vis fn $shown(value: $own) -> pb::$pb {
            match value {
                $own::$default => pb::$pb::Unspecified,
                $($own::$same => pb::$pb::$same,)*
            }
        }
    };
}
pub(crate) use parsed;

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

/// Returns what the value with this number stands for. One that stands for nothing, such as the unspecified one, is a
/// violation like an unknown number.
pub(crate) fn named<E: TryFrom<i32>, T>(
    field: &str,
    number: i32,
    name: &str,
    stands_for: impl FnOnce(E) -> Option<T>,
    found: &mut Vec<Violation>,
) -> Option<T> {
    let value = E::try_from(number).ok().and_then(stands_for);
    if value.is_none() {
        found.push(unknown_number(field, number, name));
    }
    value
}

/// Makes the violation for a number that this version has no value for.
pub(crate) fn unknown_number(field: &str, number: i32, name: &str) -> Violation {
    Violation::new(
        field,
        format!("{number} is not a {name} that this server knows"),
    )
}
