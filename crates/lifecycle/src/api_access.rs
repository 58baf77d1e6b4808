//! What processes of a run may call of the service that runs them, and what runs that they spawn are held to.

use crate::names::named;
use crate::{EnvMode, PidNamespace, RunSpec};
use std::path::Path;

named! {
    /// What processes of a run may call with its token, from the least to the most; each includes those before it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ApiAccess {
        /// Nothing: the run has no token.
        #[default]
        None = "none",
        /// Its own run, and the runs below it.
        OwnRun = "own_run",
        /// Spawn too, with the own run as parent.
        Children = "children",
    }
}

impl RunSpec {
    /// Leaves only what the node names of the server's environment, as for callers over the network.
    pub fn hold_env(&mut self) {
        if self.command.env_mode == EnvMode::InheritAll {
            self.command.env_mode = EnvMode::InheritNamed;
        }
    }

    /// This spec of a child that a process of `parent` spawns, with no more privileges than that run has. An error says what it
    /// asks for beyond them.
    ///
    /// A sandbox is taken over whole: paths of the child's own could lead out of it, by a link that the parent has made.
    pub fn within_parent(mut self, parent: &Self) -> Result<Self, &'static str> {
        match (self.command.env_mode, parent.command.env_mode) {
            (EnvMode::InheritAll, EnvMode::InheritAll) => {}
            (EnvMode::InheritAll, EnvMode::InheritNamed) => self.hold_env(),
            (EnvMode::InheritAll, _) => {
                return Err("a child has the server's environment only where its parent has it");
            }
            _ => {}
        }
        let is_held = |secret: String| parent.server_secrets().any(|held| held == secret);
        if !self.server_secrets().all(is_held) {
            return Err("a child has a secret of the server only where its parent has it");
        }
        let (own, most) = (&mut self.policy, &parent.policy);
        if let Some(sandbox) = &most.privileges.sandbox {
            if own
                .privileges
                .sandbox
                .as_ref()
                .is_some_and(|own| own != sandbox)
            {
                return Err("a child of a run in a sandbox has that sandbox, and no other");
            }
            let cwd = self.command.working_dir();
            if cwd != Path::new("/") && cwd != parent.command.working_dir() {
                return Err("a child of a run in a sandbox has its working directory, or /");
            }
        }
        if most.pid_namespace == PidNamespace::Private {
            own.pid_namespace = PidNamespace::Private;
        }
        own.privileges = std::mem::take(&mut own.privileges).within(&most.privileges);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CapabilitySet, Privileges, Sandbox, Seccomp, Secret, SecretDelivery, SecretSource,
        SecretValue,
    };

    fn held() -> RunSpec {
        let mut parent = RunSpec::default();
        parent.command.cwd = Some("/work".into());
        parent.policy.pid_namespace = PidNamespace::Private;
        parent.policy.privileges = Privileges {
            drop_capabilities: CapabilitySet(3),
            sandbox: Some(Sandbox {
                writable_paths: vec!["/srv".to_owned()],
                ..Sandbox::default()
            }),
            seccomp: Seccomp::Baseline,
            ..Privileges::default()
        };
        parent
    }

    #[test]
    fn child_run_inherits_restrictions_of_its_parent() {
        let parent = held();
        let child = RunSpec::default()
            .within_parent(&parent)
            .expect("it may be");
        assert_eq!(child.policy.privileges, parent.policy.privileges);
        assert_eq!(child.policy.pid_namespace, PidNamespace::Private);
        let free = RunSpec::default();
        let mut own = held();
        own.command.cwd = None;
        let kept = own.clone().within_parent(&free).expect("stricter");
        assert_eq!(kept, own);
    }

    // promise: AC-31, RW-85
    #[test]
    fn child_gets_no_environment_beyond_its_parents() {
        let of = |mode| {
            let mut spec = RunSpec::default();
            spec.command.env_mode = mode;
            spec
        };
        let (all, least) = (of(EnvMode::InheritAll), of(EnvMode::None));
        all.clone().within_parent(&least).expect_err("more");
        all.clone().within_parent(&all).expect("as much");
        let named = of(EnvMode::InheritNamed);
        let held = all.clone().within_parent(&named).expect("held");
        assert_eq!(held, named);
        RunSpec::default()
            .within_parent(&least)
            .expect("no secrets");
    }

    // promise: RW-93a
    #[test]
    fn child_gets_no_secret_its_parent_lacks() {
        let with = |source| RunSpec {
            secrets: vec![Secret {
                name: "A".to_owned(),
                source,
                delivery: SecretDelivery::Variable,
                trim_newline: false,
            }],
            ..RunSpec::default()
        };
        let file = |path: &str| with(SecretSource::ServerFile(path.to_owned()));
        let credential = with(SecretSource::Credential("a".to_owned()));
        file("a").within_parent(&file("a")).expect("as much");
        file("b").within_parent(&file("a")).expect_err("another");
        credential.within_parent(&file("a")).expect_err("another");
        let sent = with(SecretSource::Sent(SecretValue::new(vec![1])));
        sent.within_parent(&RunSpec::default())
            .expect("the child's own");
    }

    // promise: RW-85
    #[test]
    fn child_gets_no_path_beyond_its_parents_sandbox() {
        let parent = held();
        let mut wider = RunSpec::default();
        wider.policy.privileges.sandbox = Some(Sandbox {
            readable_paths: vec!["/root".to_owned()],
            ..Sandbox::default()
        });
        wider.within_parent(&parent).expect_err("another sandbox");
        let mut elsewhere = RunSpec::default();
        elsewhere.command.cwd = Some("/root".into());
        elsewhere
            .within_parent(&parent)
            .expect_err("another directory");
        let mut beside = RunSpec::default();
        beside.command.cwd = Some("/work".into());
        beside.within_parent(&parent).expect("that of its parent");
    }
}
