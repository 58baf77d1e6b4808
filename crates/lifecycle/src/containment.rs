//! Containment: mechanisms that hold a run's processes together, and their gaps.

use crate::names::named;
use crate::{Network, PidNamespace, Policy};
use serde::{Deserialize, Serialize};

named! {
    /// Containment of a run, from the weakest to the strongest.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Containment {
        /// A shim that is the tree's subreaper. Each run has at least this.
        #[default]
        Subreaper = "subreaper",
        /// A control group (v2) of its own beside the shim.
        Cgroup = "cgroup",
        /// A private pid namespace below the shim, and a control group where there is one.
        PrivatePidns = "private_pidns",
    }
}

/// One thing that the containment of a run cannot see or hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The run has no control group, and why.
    NoCgroup(String),
    /// The command is root and may move itself out of its control group.
    RootMayLeaveCgroup,
    /// The command's user owns the control groups above the run's and may move processes between them.
    OwnerMayMove,
    /// A process that enters a foreign pid namespace before it is orphaned is not seen.
    ForeignPidNamespace,
    /// A child that becomes another user by a setuid program cannot be signalled.
    SetuidChildUnkillable,
    /// Work of a daemon outside of the run is not part of the run, even at the command's request.
    WorkHandedToDaemons,
    /// A command in its sandbox may signal processes of its user outside of it, and connect to their abstract sockets.
    SignalsLeaveSandbox,
    /// A command in its sandbox, or without a network, may connect to sockets that have a path.
    PathSocketsLeaveSandbox,
    /// A command in its sandbox may change attributes of its user's files outside of it, such as mode, owner and times.
    AttributesLeaveSandbox,
}

/// Containment of one run, with its gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The mechanism; the weakest for one that only a later version knows.
    #[serde(deserialize_with = "crate::known_or_default")]
    pub by: Containment,
    /// Its gaps, on this host and for this command.
    #[serde(deserialize_with = "crate::known")]
    pub gaps: Vec<Gap>,
}

/// Host capabilities that decide on gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each looked up by itself"
)]
pub struct HostFacts {
    /// User of the service, and of commands that name none.
    pub uid: u32,
    /// Commands may write to `cgroup.procs` above the control groups of runs.
    pub groups_are_open: bool,
    /// A control group is killed as a whole, with every process in it.
    pub has_cgroup_kill: bool,
    /// Commands may enter pid namespaces that others have made.
    pub namespaces_are_open: bool,
    /// Keeper and shim may signal processes of every user.
    pub may_signal_everybody: bool,
    /// A program that a command executes gains no privileges.
    pub no_new_privileges: bool,
    /// A sandbox holds signals and abstract sockets too.
    pub sandbox_holds_signals: bool,
    /// A sandbox has mounts of its own, which hold attributes of files too.
    pub sandbox_has_mounts: bool,
}

impl Containment {
    /// Returns the containment that a run of this kind reaches.
    pub fn reached(has_cgroup: bool, pid_namespace: PidNamespace) -> Self {
        match (pid_namespace, has_cgroup) {
            (PidNamespace::Private, _) => Self::PrivatePidns,
            (PidNamespace::Shared, true) => Self::Cgroup,
            (PidNamespace::Shared, false) => Self::Subreaper,
        }
    }
}

impl Held {
    /// Returns the containment of a run with this policy and this control group (or the reason why it has none).
    pub fn on(host: &HostFacts, cgroup: Result<(), String>, policy: &Policy) -> Self {
        let pid_namespace = policy.pid_namespace;
        let no_new_privileges = host.no_new_privileges || policy.privileges.gains_nothing();
        let has_cgroup = cgroup.is_ok();
        let by = Containment::reached(has_cgroup, pid_namespace);
        let mut gaps: Vec<Gap> = cgroup.err().map(Gap::NoCgroup).into_iter().collect();
        let privileges = &policy.privileges;
        if privileges.sandbox.is_some() {
            if !host.sandbox_holds_signals {
                gaps.push(Gap::SignalsLeaveSandbox);
            }
            if !host.sandbox_has_mounts {
                gaps.push(Gap::AttributesLeaveSandbox);
            }
        }
        if privileges.sandbox.is_some() || privileges.network == Network::None {
            gaps.push(Gap::PathSocketsLeaveSandbox);
        }
        if by == Containment::PrivatePidns {
            // A process that leaves the control group, becomes another user or makes namespaces below is still in this
            // pid namespace: setns(2) only enters pid namespaces below the caller's.
            gaps.push(Gap::WorkHandedToDaemons);
            return Self { by, gaps };
        }
        let uid = privileges.user.as_ref().map_or(host.uid, |user| user.uid);
        // The control groups belong to the service's user.
        if has_cgroup && host.groups_are_open && (uid == 0 || uid == host.uid) {
            gaps.push(if uid == 0 {
                Gap::RootMayLeaveCgroup
            } else {
                Gap::OwnerMayMove
            });
        }
        if by == Containment::Subreaper && host.namespaces_are_open {
            gaps.push(Gap::ForeignPidNamespace);
        }
        let killed_whole = has_cgroup && host.has_cgroup_kill;
        if !killed_whole && !host.may_signal_everybody && !no_new_privileges {
            gaps.push(Gap::SetuidChildUnkillable);
        }
        gaps.push(Gap::WorkHandedToDaemons);
        Self { by, gaps }
    }

    /// Returns why there is no control group, where there is none.
    pub fn cgroup_refused(&self) -> Option<&str> {
        self.gaps.iter().find_map(|gap| match gap {
            Gap::NoCgroup(why) => Some(why.as_str()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: HostFacts = HostFacts {
        uid: 0,
        groups_are_open: true,
        has_cgroup_kill: true,
        namespaces_are_open: true,
        may_signal_everybody: true,
        no_new_privileges: false,
        sandbox_holds_signals: false,
        sandbox_has_mounts: false,
    };
    const USER: HostFacts = HostFacts {
        uid: 1000,
        may_signal_everybody: false,
        ..ROOT
    };

    fn without() -> Result<(), String> {
        Err("read-only".into())
    }

    fn no_cgroup() -> Gap {
        Gap::NoCgroup("read-only".into())
    }

    // promise: N-2
    #[test]
    fn each_containment_lists_its_coverage_gaps() {
        use Gap::{
            ForeignPidNamespace, OwnerMayMove, RootMayLeaveCgroup, SetuidChildUnkillable,
            WorkHandedToDaemons,
        };
        let cases = [
            (ROOT, Ok(()), vec![RootMayLeaveCgroup, WorkHandedToDaemons]),
            (USER, Ok(()), vec![OwnerMayMove, WorkHandedToDaemons]),
            (
                ROOT,
                without(),
                vec![no_cgroup(), ForeignPidNamespace, WorkHandedToDaemons],
            ),
            (
                USER,
                without(),
                vec![
                    no_cgroup(),
                    ForeignPidNamespace,
                    SetuidChildUnkillable,
                    WorkHandedToDaemons,
                ],
            ),
        ];
        for (host, cgroup, gaps) in cases {
            assert_eq!(
                Held::on(&host, cgroup.clone(), &Policy::default()).gaps,
                gaps,
                "{host:?} {cgroup:?}"
            );
        }
    }

    // promise: N-2
    #[test]
    fn gap_closed_by_the_host_is_not_listed() {
        let closed = HostFacts {
            groups_are_open: false,
            namespaces_are_open: false,
            no_new_privileges: true,
            ..USER
        };
        assert_eq!(
            Held::on(&closed, Ok(()), &Policy::default()).gaps,
            [Gap::WorkHandedToDaemons]
        );
        let held = Held::on(&closed, without(), &Policy::default());
        assert_eq!(held.gaps, [no_cgroup(), Gap::WorkHandedToDaemons]);
        let mut gaining = Policy::default();
        assert!(
            Held::on(&USER, without(), &gaining)
                .gaps
                .contains(&Gap::SetuidChildUnkillable)
        );
        gaining.privileges.no_new_privileges = true;
        assert!(
            !Held::on(&USER, without(), &gaining)
                .gaps
                .contains(&Gap::SetuidChildUnkillable)
        );
        let old = HostFacts {
            has_cgroup_kill: false,
            ..USER
        };
        let held = Held::on(&old, Ok(()), &Policy::default());
        assert!(held.gaps.contains(&Gap::SetuidChildUnkillable));
    }

    // promise: RW-168
    #[test]
    fn cgroup_escape_gap_depends_on_user() {
        let gaps = |host: &HostFacts, uid| {
            let mut policy = Policy::default();
            policy.privileges.user = Some(crate::RunUser {
                uid,
                ..crate::RunUser::default()
            });
            Held::on(host, Ok(()), &policy).gaps
        };
        let open = [Gap::RootMayLeaveCgroup, Gap::OwnerMayMove];
        let opens = |host, uid| gaps(host, uid).into_iter().find(|gap| open.contains(gap));
        assert_eq!(opens(&ROOT, 1000), None);
        assert_eq!(opens(&ROOT, 0), Some(Gap::RootMayLeaveCgroup));
        assert_eq!(opens(&USER, 1000), Some(Gap::OwnerMayMove));
        assert_eq!(opens(&USER, 1001), None);
    }

    // promise: AC-21a
    #[test]
    fn sandbox_gaps_depend_on_host_capabilities() {
        let mut policy = Policy::default();
        policy.privileges.sandbox = Some(crate::Sandbox::default());
        let gaps = |host: &HostFacts, policy: &Policy| Held::on(host, Ok(()), policy).gaps;
        let open = gaps(&ROOT, &policy);
        assert!(open.contains(&Gap::SignalsLeaveSandbox));
        assert!(open.contains(&Gap::AttributesLeaveSandbox));
        let holding = HostFacts {
            sandbox_holds_signals: true,
            sandbox_has_mounts: true,
            ..ROOT
        };
        let held = gaps(&holding, &policy);
        assert!(!held.contains(&Gap::SignalsLeaveSandbox));
        assert!(!held.contains(&Gap::AttributesLeaveSandbox));
        assert!(held.contains(&Gap::PathSocketsLeaveSandbox));
        policy.privileges.sandbox = None;
        policy.privileges.network = Network::None;
        assert!(gaps(&holding, &policy).contains(&Gap::PathSocketsLeaveSandbox));
    }

    #[test]
    fn containments_are_ordered_and_reached_one_reported() {
        assert!(Containment::Subreaper < Containment::Cgroup);
        assert!(Containment::Cgroup < Containment::PrivatePidns);
        assert_eq!(
            Held::on(&ROOT, Ok(()), &Policy::default()).by,
            Containment::Cgroup
        );
        assert_eq!(
            Held::on(&ROOT, Ok(()), &Policy::default()).cgroup_refused(),
            None
        );
        let weaker = Held::on(&ROOT, without(), &Policy::default());
        assert_eq!(weaker.by, Containment::Subreaper);
        assert_eq!(weaker.cgroup_refused(), Some("read-only"));
    }

    #[test]
    fn private_pid_namespace_closes_gaps_of_other_containments() {
        let private = |host: &HostFacts, cgroup| {
            let policy = Policy {
                pid_namespace: PidNamespace::Private,
                ..Policy::default()
            };
            Held::on(host, cgroup, &policy)
        };
        for host in [ROOT, USER] {
            let held = private(&host, Ok(()));
            assert_eq!(held.by, Containment::PrivatePidns);
            assert_eq!(held.gaps, [Gap::WorkHandedToDaemons]);
            let held = private(&host, without());
            assert_eq!(held.by, Containment::PrivatePidns);
            assert_eq!(held.gaps, [no_cgroup(), Gap::WorkHandedToDaemons]);
        }
    }
}
