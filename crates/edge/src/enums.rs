//! Enum values shared by requests, answers and errors, in the contract's form.

use crate::pb;
use kennel_lifecycle::{Containment, InputClosed};
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

pub(crate) fn input_end(end: InputEnd) -> pb::InputEnd {
    match end {
        InputEnd::Closed(InputClosed::Client) => pb::InputEnd::Client,
        InputEnd::Closed(InputClosed::Command) => pb::InputEnd::Command,
        InputEnd::Closed(InputClosed::AttemptEnded) => pb::InputEnd::AttemptEnded,
        InputEnd::Closed(InputClosed::Stop) => pb::InputEnd::Stop,
        InputEnd::Spec => pb::InputEnd::Spec,
    }
}
