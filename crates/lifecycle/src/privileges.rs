//! User, privileges and sandbox of a command.

use crate::{
    CapabilitySet, Violation, limits,
    names::{named, sparse},
    violation::count_at_most,
};
use serde::{Deserialize, Serialize};

sparse! {
    /// The user of a command, and whether executing a program may give it more privileges.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Privileges {
        /// User of the command; absent: the server's own.
        pub user: Option<RunUser>,
        /// Whether no program adds privileges, set-user-id programs included; see `PR_SET_NO_NEW_PRIVS`.
        pub no_new_privileges: bool,
        /// Capabilities of the host that no process of the run has or gains.
        pub drop_capabilities: CapabilitySet,
        /// Access to the host; absent: all that its user has.
        pub sandbox: Option<Sandbox>,
        /// Permitted system calls.
        pub seccomp: Seccomp,
        /// Its network.
        pub network: Network,
    }
}

sparse! {
    /// A sandbox: the command in it reads the system, writes its own directories and reaches neither Kennel nor
    /// processes of other runs.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Sandbox {
        /// Absolute paths that the command may read and execute beside the system.
        pub readable_paths: Vec<String>,
        /// Absolute paths that the command may write beside its working directory and temporary ones.
        pub writable_paths: Vec<String>,
    }
}

named! {
    /// A profile of system calls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Seccomp {
        /// All system calls.
        #[default]
        None = "none",
        /// All system calls but those that endanger the host.
        Baseline = "baseline",
    }
}

named! {
    /// Network of a command.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Network {
        /// That of the server.
        #[default]
        Host = "host",
        /// A loopback interface of its own, and no other.
        None = "none",
    }
}

named! {
    /// Degree of isolation of a sandbox, from the weakest to the strongest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Isolation {
        /// Files, and processes that could be traced.
        Files = "files",
        /// Files and processes as above, and signals and abstract sockets.
        Processes = "processes",
    }
}

/// A user by number, with all its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, and no others.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub groups: Vec<u32>,
}

impl Privileges {
    /// Restricts these privileges to those that the node allows.
    #[must_use]
    pub fn within(self, node: &Self) -> Self {
        Self {
            user: self.user,
            no_new_privileges: self.no_new_privileges || node.no_new_privileges,
            drop_capabilities: self.drop_capabilities.union(node.drop_capabilities),
            sandbox: self.sandbox.or_else(|| node.sandbox.clone()),
            seccomp: self.seccomp.max(node.seccomp),
            network: self.network.max(node.network),
        }
    }

    /// Whether no program adds privileges to the command: a sandbox and a profile ensure that too.
    pub fn gains_nothing(&self) -> bool {
        self.no_new_privileges || self.sandbox.is_some() || self.seccomp != Seccomp::None
    }

    /// Returns the capabilities that the command loses: those that lead around a sandbox too. No program in one gives
    /// them back.
    pub fn lost_capabilities(&self) -> CapabilitySet {
        let around = self.sandbox.as_ref().map(|_| CapabilitySet::AROUND_SANDBOX);
        self.drop_capabilities.union(around.unwrap_or_default())
    }

    /// Adds the violations of the privileges.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        if let Some(sandbox) = &self.sandbox {
            sandbox.check(found);
        }
        let Some(user) = &self.user else { return };
        let field = "spec.privileges.user.supplementary_group_ids";
        let (count, most) = (user.groups.len(), limits::GROUPS_MAX);
        count_at_most(field, count, most, "entries", found);
        // The kernel reserves this number for "no id".
        let is_none = |id: &u32| *id == u32::MAX;
        if [user.uid, user.gid].iter().chain(&user.groups).any(is_none) {
            let why = "4294967295 is no user and no group";
            found.push(Violation::new("spec.privileges.user", why));
        }
    }
}

impl Sandbox {
    fn check(&self, found: &mut Vec<Violation>) {
        for (field, paths) in [
            ("readable_paths", &self.readable_paths),
            ("writable_paths", &self.writable_paths),
        ] {
            let field = format!("spec.privileges.sandbox.{field}");
            let (count, most) = (paths.len(), limits::SANDBOX_PATHS_MAX);
            count_at_most(field.as_str(), count, most, "entries", found);
            let is_usable = |path: &String| path.starts_with('/') && !path.contains('\0');
            if !paths.iter().all(is_usable) {
                found.push(Violation::new(field.as_str(), "must be absolute paths"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: AC-20
    #[test]
    fn node_privileges_only_restrict_a_run() {
        let node = Privileges {
            drop_capabilities: CapabilitySet(1),
            sandbox: Some(Sandbox::default()),
            seccomp: Seccomp::Baseline,
            network: Network::None,
            ..Privileges::default()
        };
        assert_eq!(Privileges::default().within(&node), node);
        let own = Privileges {
            no_new_privileges: true,
            drop_capabilities: CapabilitySet(2),
            sandbox: Some(Sandbox {
                writable_paths: vec!["/srv".to_owned()],
                ..Sandbox::default()
            }),
            ..Privileges::default()
        };
        let both = own.clone().within(&node);
        assert!(both.no_new_privileges);
        assert_eq!(both.drop_capabilities, CapabilitySet(3));
        assert_eq!(both.sandbox, own.sandbox);
        assert_eq!(both.seccomp, Seccomp::Baseline);
        assert_eq!(both.network, Network::None);
        assert_eq!(own.clone().within(&Privileges::default()), own);
    }
}
