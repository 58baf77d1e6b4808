//! Containers of runc, as runtimes of Kubernetes make them.

use crate::{kennel::reap_orphans, must};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

const RUNC: &str = "/usr/sbin/runc";
const SECCOMP: &str = "/usr/share/containers/seccomp.json";

/// A container; removed with everything in it when this is dropped.
pub struct Container {
    name: String,
    state: PathBuf,
    runc: Option<Child>,
}

impl Container {
    /// Starts it from a bundle, whose `config.json` is written. `state` is a directory for all containers of a test.
    #[must_use]
    pub fn start(name: String, state: PathBuf, bundle: &Path, config: &Value) -> Self {
        let text = config.to_string();
        must("write", fs::write(bundle.join("config.json"), text));
        let mut runc = Command::new(RUNC);
        runc.arg("--root").arg(&state).args(["run", "--bundle"]);
        runc.arg(bundle).arg(&name).stdin(Stdio::null());
        runc.stdout(Stdio::piped()).stderr(Stdio::piped());
        let runc = Some(must("runc", runc.spawn()));
        Self { name, state, runc }
    }

    /// Returns the command that does this with the container.
    #[must_use]
    pub fn runc(&self, action: &[&str], words: &[&str]) -> Command {
        let mut runc = Command::new(RUNC);
        runc.arg("--root").arg(&self.state).args(action);
        runc.arg(&self.name).args(words);
        runc
    }

    /// Sends SIGTERM to its first process, as the kubelet does.
    pub fn stop(&self) {
        let stopped = must("runc", self.runc(&["kill"], &["TERM"]).output());
        assert!(stopped.status.success(), "{stopped:?}");
    }

    /// Waits for its end.
    #[must_use]
    pub fn end(mut self) -> Output {
        let runc = self.runc.take().expect("it runs");
        must("wait", runc.wait_with_output())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.runc(&["delete", "--force"], &[]).output();
        if let Some(mut runc) = self.runc.take() {
            let _ = runc.wait();
        }
        reap_orphans();
    }
}

/// Returns the entry of a bind mount.
#[must_use]
pub fn bound(from: &Path, to: &str, options: &[&str]) -> Value {
    json!({"destination": to, "type": "bind", "source": from, "options": options})
}

/// Returns the mounts that every container has, with the programs of this host and of the product (`/kennel`).
#[must_use]
pub fn usual_mounts(binaries: &Path) -> Vec<Value> {
    let read = ["rbind", "ro"];
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["newinstance", "ptmxmode=0666", "mode=0620"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        bound(binaries, "/kennel", &read),
    ];
    for dir in ["/usr", "/lib", "/lib64", "/bin"] {
        mounts.push(bound(Path::new(dir), dir, &read));
    }
    mounts
}

/// Returns the profile that a runtime applies to a container with these capabilities.
#[must_use]
pub fn seccomp(capabilities: &[&str]) -> Value {
    let text = must("the profile", fs::read_to_string(SECCOMP));
    let profile: Value = must("JSON", serde_json::from_str(&text));
    let holds = |rule: &&Value| {
        let arches = rule["includes"]["arches"].as_array();
        let needed = rule["includes"]["caps"].as_array();
        let has = |needed: &Value| {
            needed
                .as_str()
                .is_some_and(|needed| capabilities.contains(&needed))
        };
        arches.is_none_or(|arches| arches.iter().any(|arch| arch == "amd64"))
            && needed.is_none_or(|needed| needed.iter().all(has))
    };
    let rules = profile["syscalls"].as_array().expect("rules");
    let rules: Vec<Value> = rules.iter().filter(holds).map(rule).collect();
    json!({
        "defaultAction": profile["defaultAction"],
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    })
}

fn rule(rule: &Value) -> Value {
    let mut own = json!({"names": rule["names"], "action": rule["action"]});
    if rule["args"].as_array().is_some_and(|args| !args.is_empty()) {
        own["args"] = rule["args"].clone();
    }
    own
}
