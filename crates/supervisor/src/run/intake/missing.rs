//! Missing features of this host among those that a policy asks for.

use kennel_keeper::client::{CapabilityName, KeeperHello};
use kennel_lifecycle::{Isolation, Missing, Network, PidNamespace, Policy, Recovery, Seccomp};

/// The missing features, each with its field.
pub(super) fn features(hello: &KeeperHello, policy: &Policy) -> Vec<Missing> {
    let privileges = &policy.privileges;
    let mut missing = Vec::new();
    let mut need = |is_asked: bool, name: CapabilityName, (field, what): (&str, &str)| {
        if let Some(why) = hello.lacks(name).filter(|_| is_asked) {
            missing.push(Missing {
                field: field.into(),
                capability: format!("{what}: {why}"),
            });
        }
    };
    let private = policy.pid_namespace == PidNamespace::Private;
    let namespace = ("spec.pid_namespace", "a private pid namespace for each run");
    need(private, CapabilityName::PidNamespace, namespace);
    let outlives = policy.recovery() == Recovery::Adopt;
    let adoption = ("spec.recovery", "a run that outlives the service");
    need(outlives, CapabilityName::Adoption, adoption);
    let user = ("spec.privileges.user", "a user of its own for a command");
    need(privileges.user.is_some(), CapabilityName::RunAs, user);
    let drops = !privileges.drop_capabilities.is_empty();
    let dropped = (
        "spec.privileges.drop_capabilities",
        "commands without capabilities",
    );
    need(drops, CapabilityName::DropCapabilities, dropped);
    let sandboxed = privileges.sandbox.is_some();
    let sandbox = ("spec.privileges.sandbox", "a sandbox for commands");
    need(sandboxed, CapabilityName::Sandbox, sandbox);
    let filtered = privileges.seccomp != Seccomp::None;
    let field = if filtered {
        "spec.privileges.seccomp_profile"
    } else {
        "spec.privileges.sandbox"
    };
    // A sandbox needs a filter too: Landlock alone does not block prlimit(2).
    let filter = (field, "a filter of system calls");
    need(filtered || sandboxed, CapabilityName::Seccomp, filter);
    let cut_off = privileges.network == Network::None;
    let network = (
        "spec.privileges.network",
        "a network of its own for a command",
    );
    need(cut_off, CapabilityName::NetworkNamespace, network);
    let least = (
        "spec.min_isolation",
        "isolation of signals and abstract sockets",
    );
    let attributes = ("spec.min_isolation", "isolation of the attributes of files");
    let insists = policy.min_isolation.is_some() && sandboxed;
    need(insists, CapabilityName::SandboxMounts, attributes);
    let signals = policy.min_isolation == Some(Isolation::Processes) && sandboxed;
    need(signals, CapabilityName::SandboxSignals, least);
    if policy.min_isolation.is_some() && !sandboxed {
        missing.push(Missing {
            field: "spec.min_isolation".into(),
            capability: "isolation without a sandbox: neither the spec nor this node asks for one"
                .into(),
        });
    }
    missing
}
