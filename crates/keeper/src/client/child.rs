//! Input for a child behind a gate: the spec of its run, and what was resolved for it.

use kennel_lifecycle::{CommandSpec, Policy, Secret, SecretSource, Violation, os_text};
use kennel_linux::{
    fdpass::MESSAGE_BYTES_MAX,
    spawn::{ChildImage, ChildSecret},
};
use serde::{Deserialize, Serialize};
use std::{ffi::OsStr, fmt, os::unix::ffi::OsStrExt, path::PathBuf};

/// Most bytes of a policy, with its privileges counted twice as a shim gets them: the rest of a message has room for the
/// longest paths of a run's directory and control group, and for the places that a sandbox closes.
const POLICY_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 16 * 1024 - PRIVATE_BYTES_MAX;
/// Most bytes of the paths that a sandbox closes beside the data directory.
pub(crate) const PRIVATE_BYTES_MAX: usize = 8 * 1024;

/// Returns why a policy is too large for the messages between server, keeper and shim, each of which has all of it. The
/// field is the one with most bytes.
#[must_use]
pub fn fault_of_size(policy: &Policy) -> Option<Violation> {
    let whole = size(&(policy, &policy.privileges));
    if whole <= POLICY_BYTES_MAX {
        return None;
    }
    let fields = [
        ("spec.limits.io", size(&policy.limits.io)),
        ("spec.privileges", 2 * size(&policy.privileges)),
        ("spec.stop.steps", size(&policy.stop.steps)),
        ("spec.output_rules", size(&policy.output_rules)),
        ("spec.readiness", size(&policy.readiness)),
        ("spec.liveness", size(&policy.liveness)),
    ];
    let (field, _) = fields.into_iter().max_by_key(|(_, size)| *size)?;
    let why = format!(
        "must be shorter: this is the longest part of a policy of {whole} bytes, and {POLICY_BYTES_MAX} is the most"
    );
    Some(Violation::new(field, why))
}

/// Returns the bytes that a part takes in a message; one that cannot be encoded fits none.
fn size(part: &impl Serialize) -> usize {
    serde_json::to_vec(part).map_or(MESSAGE_BYTES_MAX, |bytes| bytes.len())
}

/// Resources for a child behind a gate. Its stored form is the input of the next attempt.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildSpec {
    /// Absolute path of the executable, already resolved.
    #[serde(with = "os_text::path")]
    pub executable: PathBuf,
    /// The whole environment, in order; `command.env` is empty then.
    pub env: Vec<(String, String)>,
    /// The run's private directory, which exists; the shim writes the exit record there.
    #[serde(with = "os_text::path")]
    pub run_dir: PathBuf,
    /// Number of the attempt, 1 for the first: input meant for one is not written to another.
    pub attempt: u32,
    /// The command as requested.
    pub command: CommandSpec,
    /// Rules that keeper and shim follow on their own.
    pub policy: Policy,
    /// Its secrets. The stored form has no values.
    pub secrets: Vec<Secret>,
}

/// For logs: without arguments, environment and input.
impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("executable", &self.executable)
            .field("run_dir", &self.run_dir)
            .field("attempt", &self.attempt)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Secrets whose values were not read are left out.
impl From<&ChildSpec> for ChildImage {
    fn from(real: &ChildSpec) -> Self {
        let bytes = |text: &OsStr| text.as_bytes().to_vec();
        let command = &real.command;
        Self {
            executable: bytes(real.executable.as_os_str()),
            argv: command.argv.iter().map(|word| bytes(word)).collect(),
            env: real.env.clone(),
            cwd: bytes(command.working_dir().as_os_str()),
            secrets: real.secrets.iter().filter_map(with_value).collect(),
        }
    }
}

fn with_value(secret: &Secret) -> Option<ChildSecret> {
    let SecretSource::Sent(value) = &secret.source else {
        return None;
    };
    Some(ChildSecret {
        name: secret.name.clone(),
        delivery: secret.delivery,
        value: value.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        values::HeldPause,
        wire::{
            self, FromShim, Job, Placement, PrepareRequest, ToKeeper, ToServer, ToShim,
            adoption::{WireAdoptable, WireKeepsake, WireMemory},
            handover::WireHeldRun,
        },
    };
    use kennel_lifecycle::{
        CgroupIdentity, Containment, Gap, Held, HostIdentity, IoLimit, ProcessIdentity, RunId,
        RunIdentity, Sandbox, TerminalSize, limits,
    };
    use kennel_linux::attributes::{Attributes, PrivatePlaces};

    fn identity(pid: i32) -> ProcessIdentity {
        ProcessIdentity {
            pid,
            pgid: pid,
            sid: pid,
            start_ticks: u64::MAX,
            pidfs_handle: Some(u64::MAX),
        }
    }

    /// Checks that each message with this policy fits, beside the longest of everything else.
    fn fits_everywhere(policy: &Policy) {
        let longest = "p".repeat(limits::CWD_BYTES_MAX);
        let run_dir = longest.clone();
        let cgroup = Some(CgroupIdentity {
            path: longest,
            inode: u64::MAX,
        });
        let host = HostIdentity {
            boot_id: "b".repeat(64),
            pidns_inode: u64::MAX,
            init_start_ticks: Some(u64::MAX),
        };
        let held = Held {
            by: Containment::Subreaper,
            gaps: vec![Gap::NoCgroup("w".repeat(1024))],
        };
        let keepsake = WireKeepsake {
            held: held.clone(),
            host: host.clone(),
        };
        let terminal = Some(TerminalSize {
            rows: u16::MAX,
            cols: u16::MAX,
        });
        let identity_of_run = RunIdentity {
            command: identity(i32::MAX),
            shim: identity(i32::MAX),
            cgroup: cgroup.clone(),
            host,
        };
        let messages = [
            wire::encode(&ToKeeper::Prepare(Box::new(PrepareRequest {
                seq: u64::MAX,
                run: RunId::from_u128(u128::MAX),
                run_dir: run_dir.clone(),
                policy: policy.clone().into(),
                input: Some(u32::MAX),
                terminal,
            }))),
            wire::encode(&ToServer::Held(Box::new(WireHeldRun {
                run: RunId::from_u128(u128::MAX),
                identity: identity_of_run,
                held,
                policy: policy.clone().into(),
                released: true,
                pause: HeldPause::Stopped,
                stopping: true,
                terminal,
            }))),
            wire::encode(&ToShim::Job(Box::new(Job {
                run: RunId::from_u128(u128::MAX),
                run_dir: run_dir.clone(),
                policy: policy.clone().into(),
                cgroup: cgroup.clone(),
                placement: Placement::ByWrite,
                attributes: Attributes {
                    privileges: policy.privileges.clone(),
                    rlimits: policy.limits.rlimits.clone(),
                    nice: Some(i32::MIN),
                    oom_score_adj: Some(i32::MIN),
                    private: Some(PrivatePlaces {
                        run_dir,
                        closed: vec!["/".repeat(PRIVATE_BYTES_MAX).into()],
                        ..PrivatePlaces::default()
                    }),
                },
                keepsake: Some(keepsake.clone()),
                input: true,
                notify: true,
                terminal: true,
                exit_slot: Some(u32::MAX),
            }))),
            wire::encode(&FromShim::Adoptable(Box::new(WireAdoptable {
                run: RunId::from_u128(u128::MAX),
                command: identity(i32::MAX),
                shim: identity(i32::MAX),
                init: Some(i32::MAX),
                cgroup,
                policy: policy.clone().into(),
                keepsake,
                memory: WireMemory::default(),
                leader_left_at: Some(u64::MAX),
                stopping_since: Some(u64::MAX),
                input: true,
                notify: true,
            }))),
        ];
        for message in messages {
            let bytes = message.expect("it can be encoded").len();
            assert!(bytes <= MESSAGE_BYTES_MAX, "{bytes}");
        }
    }

    type Text = fn(&mut Policy) -> &mut String;

    /// Lengthens one text of a policy for as long as the policy is accepted.
    fn largest(mut policy: Policy, text: Text) -> Policy {
        let (mut least, mut most) = (1, MESSAGE_BYTES_MAX);
        while least + 1 < most {
            let middle = usize::midpoint(least, most);
            *text(&mut policy) = "/".repeat(middle);
            if fault_of_size(&policy).is_none() {
                least = middle;
            } else {
                most = middle;
            }
        }
        *text(&mut policy) = "/".repeat(least);
        policy
    }

    #[test]
    fn largest_accepted_policy_fits_every_message() {
        let mut with_io = Policy::default();
        with_io.limits.io = vec![IoLimit::default()];
        let mut in_sandbox = Policy::default();
        in_sandbox.privileges.sandbox = Some(Sandbox {
            readable_paths: vec![String::new()],
            ..Sandbox::default()
        });
        let of_io: Text = |policy| &mut policy.limits.io[0].path;
        let of_sandbox: Text = |policy| {
            let sandbox = policy.privileges.sandbox.as_mut();
            &mut sandbox.expect("it has one").readable_paths[0]
        };
        for (policy, text, field) in [
            (with_io, of_io, "spec.limits.io"),
            (in_sandbox, of_sandbox, "spec.privileges"),
        ] {
            let mut policy = largest(policy, text);
            fits_everywhere(&policy);
            *text(&mut policy) += "//";
            let fault = fault_of_size(&policy).expect("it is too large");
            assert_eq!(fault.field, field);
        }
        assert_eq!(fault_of_size(&Policy::default()), None);
    }

    #[test]
    fn debug_shows_no_argument_variable_or_input() {
        let secret = || "s3cret".to_owned();
        let spec = ChildSpec {
            executable: "/bin/sh".into(),
            env: vec![("TOKEN".to_owned(), secret())],
            command: CommandSpec {
                argv: vec![secret().into()],
                initial_input: Some(secret().into_bytes()),
                ..CommandSpec::default()
            },
            ..ChildSpec::default()
        };
        let printed = format!("{spec:?}");
        assert!(printed.contains("/bin/sh"), "{printed}");
        assert!(
            !printed.contains("TOKEN") && !printed.contains("s3cret"),
            "{printed}"
        );
        assert!(!printed.contains("115, 51"), "{printed}");
    }
}
