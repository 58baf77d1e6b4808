//! Enum values shared by requests, answers and errors, in the contract's form.

use crate::pb;
use kennel_lifecycle::{Containment, InputClosed};
use kennel_supervisor::InputEnd;

pub(crate) fn containment(by: Containment) -> pb::Containment {
    match by {
        Containment::Subreaper => pb::Containment::Subreaper,
        Containment::Cgroup => pb::Containment::Cgroup,
        Containment::PrivatePidns => pb::Containment::PrivatePidns,
    }
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
