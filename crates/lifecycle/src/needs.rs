//! Needs of a policy: the features without which acting on its run would be wrong. The server that records the run
//! names them; a process of another version that does not know one neither decides about the run nor starts an attempt
//! of it.

use crate::names::named;
use crate::{Network, PidNamespace, Policy, Seccomp, ladder::Action};

named! {
    /// A feature without which acting on a run is wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Need {
        /// Its command has another user.
        User = "user",
        /// Its command has less of the host.
        Sandbox = "sandbox",
        /// Its command may make fewer system calls.
        Seccomp = "seccomp",
        /// Its command has no network.
        Network = "network",
        /// Its processes have fewer capabilities.
        DropCapabilities = "drop_capabilities",
        /// Its command makes files with other permissions.
        Umask = "umask",
        /// Its processes have a pid namespace of their own.
        PidNamespace = "pid_namespace",
        /// Its stop closes standard input.
        StopCloseInput = "stop_close_input",
        /// Its stop writes to standard input.
        StopInput = "stop_input",
        /// Its stop runs a command.
        StopExec = "stop_exec",
    }
}

impl Policy {
    /// Names the needs of this policy in it.
    pub fn name_needs(&mut self) {
        let needed = Need::ALL.iter().filter(|need| self.has(**need));
        self.needs = needed.map(|need| need.name().to_owned()).collect();
    }

    /// Returns the first need that this version does not know.
    pub fn unknown_need(&self) -> Option<&str> {
        let unknown = |need: &&String| need.parse::<Need>().is_err();
        self.needs.iter().find(unknown).map(String::as_str)
    }

    fn has(&self, need: Need) -> bool {
        let privileges = &self.privileges;
        let stops_by =
            |is: fn(&Action) -> bool| self.stop.steps.iter().any(|step| is(&step.action));
        match need {
            Need::User => privileges.user.is_some(),
            Need::Sandbox => privileges.sandbox.is_some(),
            Need::Seccomp => privileges.seccomp != Seccomp::None,
            Need::Network => privileges.network != Network::default(),
            Need::DropCapabilities => !crate::is_default(&privileges.drop_capabilities),
            Need::Umask => self.umask.is_some(),
            Need::PidNamespace => self.pid_namespace != PidNamespace::Shared,
            Need::StopCloseInput => stops_by(|action| *action == Action::CloseInput),
            Need::StopInput => stops_by(|action| matches!(action, Action::Input(_))),
            Need::StopExec => stops_by(|action| matches!(action, Action::Exec(_))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CapabilitySet, RunUser, Sandbox, StopAction};
    use std::time::Duration;

    // promise: A-22d
    #[test]
    fn policy_names_its_required_features() {
        let mut policy = Policy::default();
        policy.name_needs();
        assert_eq!(policy.needs, Vec::<String>::new());
        let step = |action| StopAction {
            action,
            wait: Duration::ZERO,
        };
        for need in Need::ALL {
            let mut of_one = Policy::default();
            let privileges = &mut of_one.privileges;
            match need {
                Need::User => {
                    privileges.user = Some(RunUser {
                        uid: 1,
                        gid: 1,
                        groups: Vec::new(),
                    });
                }
                Need::Sandbox => privileges.sandbox = Some(Sandbox::default()),
                Need::Seccomp => privileges.seccomp = Seccomp::Baseline,
                Need::Network => privileges.network = Network::None,
                Need::DropCapabilities => privileges.drop_capabilities = CapabilitySet(1),
                Need::Umask => of_one.umask = Some(0),
                Need::PidNamespace => of_one.pid_namespace = PidNamespace::Private,
                Need::StopCloseInput => of_one.stop.steps = vec![step(Action::CloseInput)],
                Need::StopInput => of_one.stop.steps = vec![step(Action::Input(vec![3]))],
                Need::StopExec => of_one.stop.steps = vec![step(Action::Exec(Vec::new()))],
            }
            of_one.name_needs();
            assert_eq!(of_one.needs, [need.name()]);
        }
        policy.privileges.sandbox = Some(Sandbox::default());
        policy.stop.steps = vec![step(Action::CloseInput), step(Action::Exec(Vec::new()))];
        policy.name_needs();
        assert_eq!(policy.needs, ["sandbox", "stop_close_input", "stop_exec"]);
        assert_eq!(policy.unknown_need(), None);
        policy.needs.push("of_tomorrow".into());
        assert_eq!(policy.unknown_need(), Some("of_tomorrow"));
        let text = serde_json::to_string(&policy).expect("JSON");
        let read: Policy = serde_json::from_str(&text).expect("a policy");
        assert_eq!(read, policy, "a name that is not known stays");
    }
}
