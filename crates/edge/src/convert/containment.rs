//! Containment of a run and its gaps, in the contract's form.

use crate::{
    enums::{self, known, mapped},
    pb,
};
use kennel_lifecycle::{Containment, Gap, Held, Isolation, Violation};

/// Parses the minimum containment that a client accepts.
pub(crate) fn least(number: i32, found: &mut Vec<Violation>) -> Option<Containment> {
    enums::containment_of(known("spec.min_containment", number, "Containment", found))
}

/// Parses the minimum isolation that a client accepts.
pub(crate) fn least_isolation(number: i32, found: &mut Vec<Violation>) -> Option<Isolation> {
    isolation_of(known("spec.min_isolation", number, "Isolation", found))
}

pub(crate) fn shown_isolation(least: Option<Isolation>) -> pb::Isolation {
    least.map_or(pb::Isolation::Unspecified, isolation)
}

mapped! { fn isolation(Isolation) -> Isolation, fn isolation_of { Files Processes } }

pub(crate) fn coverage(held: &Held) -> pb::Coverage {
    let gap = |gap: &Gap| {
        let (kind, text) = shown(gap);
        pb::CoverageGap {
            kind: kind.into(),
            text,
        }
    };
    pb::Coverage {
        gaps: held.gaps.iter().map(gap).collect(),
    }
}

fn shown(gap: &Gap) -> (pb::CoverageGapKind, String) {
    use pb::CoverageGapKind as Kind;
    let (kind, text) = match gap {
        Gap::NoCgroup(why) => {
            return (
                Kind::NoCgroup,
                format!("the run has no control group: {why}"),
            );
        }
        Gap::RootMayLeaveCgroup => (
            Kind::RootMayLeaveCgroup,
            "the command is root and may move itself out of its control group; the shim still finds it, unless it also \
             enters a foreign pid namespace",
        ),
        Gap::OwnerMayMove => (
            Kind::OwnerMayMove,
            "the command's user owns the control groups above the run's and may move processes between them; the shim \
             still finds them",
        ),
        Gap::ForeignPidNamespace => (
            Kind::ForeignPidNamespace,
            "a process that enters a foreign pid namespace before it is orphaned is not seen",
        ),
        Gap::SetuidChildUnkillable => (
            Kind::SetuidChildUnkillable,
            "a child that becomes another user by a setuid program cannot be signalled by this server",
        ),
        Gap::SignalsLeaveSandbox => (
            Kind::SignalsLeaveSandbox,
            "the command is in a sandbox and may signal processes of its user outside of it, and connect to their \
             abstract sockets: this kernel holds neither",
        ),
        Gap::PathSocketsLeaveSandbox => (
            Kind::PathSocketsLeaveSandbox,
            "the command may connect to sockets that have a path and that its user may write to, from its sandbox or \
             without a network; Kennel's own refuse processes of runs",
        ),
        Gap::AttributesLeaveSandbox => (
            Kind::AttributesLeaveSandbox,
            "the command is in a sandbox and may change attributes (mode, owner, times) of files of its user outside \
             of it, Kennel's own included: this host gives it no mounts of its own",
        ),
        Gap::WorkHandedToDaemons => (
            Kind::WorkHandedToDaemons,
            "what a daemon outside of the run does at the command's request (containers, units, jobs) is not part of \
             the run",
        ),
    };
    (kind, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_containment_survives_a_round_trip() {
        let mut found = Vec::new();
        for by in [
            Containment::Subreaper,
            Containment::Cgroup,
            Containment::PrivatePidns,
        ] {
            assert_eq!(
                least(crate::enums::containment(by).into(), &mut found),
                Some(by)
            );
        }
        assert_eq!(least(0, &mut found), None);
        assert_eq!(found, []);
        assert_eq!(least(99, &mut found), None);
        assert_eq!(found[0].field, "spec.min_containment");
    }

    #[test]
    fn containment_gap_has_kind_and_reason() {
        let held = Held {
            by: Containment::Subreaper,
            gaps: vec![Gap::NoCgroup("read-only".into()), Gap::WorkHandedToDaemons],
        };
        let shown = coverage(&held);
        assert_eq!(shown.gaps[0].kind(), pb::CoverageGapKind::NoCgroup);
        assert!(shown.gaps[0].text.contains("read-only"));
        assert_eq!(
            shown.gaps[1].kind(),
            pb::CoverageGapKind::WorkHandedToDaemons
        );
    }
}
