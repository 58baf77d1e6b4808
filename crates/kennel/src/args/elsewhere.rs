//! What people type from habit of other tools and Kennel does not have: each is answered by name, with what to do.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands, and what to do in their place.
const COMMANDS: [(&[&str], &str); 20] = [
    (
        &["rm", "remove", "delete", "del", "clean"],
        "an ended run goes by itself when retention removes it (kennel serve --help); end a live one with: kennel stop RUN",
    ),
    (
        &["prune", "gc"],
        "ended runs go by themselves when retention removes them (kennel serve --help); what runs have left behind on the \
         host is ended by: kennel reap",
    ),
    (
        &["exec", "enter", "sh", "shell", "bash"],
        "a run has the host's own files, so another command needs no entry into it: kennel run -- COMMAND; the terminal of \
         a run started with --tty: kennel attach RUN; its standard input: kennel write RUN",
    ),
    (
        &["start"],
        "a new run of a command: kennel run -d -- COMMAND; an ended run once more: kennel restart RUN",
    ),
    (
        &["create", "apply", "submit", "launch"],
        "start a command with: kennel run -d -- COMMAND",
    ),
    (
        &["history", "journal"],
        "kennel ps --all lists ended runs; kennel events RUN and kennel why RUN show what happened to one",
    ),
    (
        &["reload", "daemon-reload", "reread", "update", "reconfigure"],
        "settings are those that kennel serve was started with: kennel config check, then start it again; a new binary is put in place by: kennel upgrade",
    ),
    (
        &["enable", "disable", "mask", "unmask"],
        "a run starts when it is asked for; to start one with the host, let a unit of systemd call: kennel run",
    ),
    (
        &["is-active", "is-failed"],
        "the state alone: kennel get RUN -o jsonpath='{.state}'",
    ),
    (
        &["shutdown", "halt"],
        "kennel drain --wait lets the runs finish; SIGTERM to kennel serve ends them and the server",
    ),
    (
        &["edit", "patch", "set", "scale", "rename"],
        "what a run was started with does not change: start another one",
    ),
    (
        &["port", "expose", "port-forward", "proxy"],
        "a run has the host's network: kennel tree RUN shows where its processes listen",
    ),
    (
        &["cp", "copy", "diff", "commit", "export", "import"],
        "a run has the host's own files: use them directly",
    ),
    (
        &[
            "pull", "push", "images", "build", "image", "tag", "save", "load",
        ],
        "kennel runs commands of the host, not images",
    ),
    (
        &["follow", "maintail"],
        "follow the output of a run with: kennel logs -f RUN; its terminal with: kennel attach RUN",
    ),
    (
        &["fg"],
        "the terminal of a run started with --tty: kennel attach RUN; the output of any: kennel logs -f RUN",
    ),
    (
        &["cat"],
        "what a run was started with: kennel get RUN -o yaml; what it has written: kennel logs RUN",
    ),
    (
        &["health", "ping", "healthz"],
        "kennel status says whether the server serves",
    ),
    (
        &[
            "nice", "renice", "parallel", "group", "stash", "enqueue", "switch",
        ],
        "a run starts at once: there is no queue; what it may use is said at its start: kennel run --help",
    ),
    (
        &["login", "logout", "context", "cluster-info"],
        "a server is named by --server unix:PATH or KENNEL_SERVER; kennel status describes it",
    ),
];

/// Flags of `run` and `spawn`, and what to do in their place.
const RUN_FLAGS: [(&[&str], &str); 15] = [
    (
        &["--uid", "--gid"],
        "user and group of a run: --user UID:GID",
    ),
    (
        &["--name", "-N", "--unit", "--description", "--slice"],
        "a run has labels in place of a name: --label name=NAME, and then: kennel ps -l name=NAME",
    ),
    (
        &[
            "--volume",
            "-v",
            "--mount",
            "--tmpfs",
            "--read-only",
            "--volumes-from",
        ],
        "a run has the host's own files; another root or mounts: bwrap or unshare before the command",
    ),
    (
        &[
            "--publish",
            "-p",
            "-P",
            "--publish-all",
            "--expose",
            "--network",
            "--net",
            "--dns",
            "--add-host",
            "--hostname",
        ],
        "a run has the host's network: its ports are open without more; another network: ip netns exec before the command",
    ),
    (
        &[
            "--privileged",
            "--cap-add",
            "--cap-drop",
            "--security-opt",
            "--userns",
        ],
        "a run has the privileges of the server: --user UID:GID and --no-new-privileges take them away",
    ),
    (
        &["--entrypoint", "--image", "--platform", "--pull"],
        "there is no image: name the command itself",
    ),
    (
        &["--property"],
        "limits have flags of their own: --memory-max, --pids-max, --cpus, --timeout; see kennel run --help",
    ),
    (
        &[
            "--gpus",
            "--device",
            "--runtime",
            "--ipc",
            "--pid",
            "--uts",
            "--init",
            "--cgroup-parent",
            "--cidfile",
        ],
        "a run sees the host's devices and shared memory; a pid namespace of its own: --pid-namespace private",
    ),
    (
        &[
            "--cpu-shares",
            "--cpu-quota",
            "--cpu-period",
            "--cpuset-cpus",
        ],
        "processors are given by --cpus and --cpu-weight; pinned by taskset before the command",
    ),
    (
        &["--memory-swap", "--memory-reservation", "--shm-size"],
        "memory is given by --memory-max, --memory-high and --swap-max",
    ),
    (
        &[
            "--wait",
            "--pipe",
            "--scope",
            "--collect",
            "-G",
            "--foreground",
        ],
        "kennel run waits and passes output on by itself; leave the flag out",
    ),
    (
        &["--log-driver", "--log-opt"],
        "output is kept by the server: --output-max, --output-full; kennel logs RUN reads it",
    ),
    (
        &[
            "--after",
            "--delay",
            "--group",
            "--priority",
            "--stashed",
            "--on-calendar",
            "--on-active",
        ],
        "a run starts at once: start it when its time has come, for example from a timer of systemd",
    ),
    (
        &["--health-cmd", "--healthcheck", "--no-healthcheck"],
        "health is what the caller makes of output and exit: kennel events RUN",
    ),
    (
        &["--hostname-file", "--link", "--attach", "-a"],
        "output goes to this terminal already; of a run that was started before: kennel logs -f RUN, or kennel attach RUN",
    ),
];

/// Flags of any other command, and what to do in their place.
const FLAGS: [(&[&str], &str); 6] = [
    (
        &["--no-trunc", "--full"],
        "whole commands are shown by: kennel ps -o wide",
    ),
    (
        &["-A", "--all-namespaces"],
        "ended runs are shown with --all; runs have no namespaces, but labels: -l KEY=VALUE",
    ),
    (
        &["-w", "--watch"],
        "changes are shown by: kennel top, and as a stream by: kennel events -f --all",
    ),
    (
        &["--previous", "--details"],
        "the output of all attempts of a run is in one log: kennel logs RUN; its history: kennel why RUN",
    ),
    (&["-v"], "the version is printed by: kennel version"),
    (
        &["--force", "--now"],
        "a run is killed at once with --grace 0: kennel stop --grace 0 RUN",
    ),
];

/// Answers a word that is another tool's, and removes tips that lead to something else.
pub(crate) fn explain(error: &mut clap::Error, is_run: bool) -> Option<String> {
    let (kind, table) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, &COMMANDS[..]),
        ErrorKind::UnknownArgument if is_run => (ContextKind::InvalidArg, &RUN_FLAGS[..]),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, &FLAGS[..]),
        _ => return None,
    };
    let word = match error.get(kind) {
        Some(ContextValue::String(word)) => {
            word.split(['=', ' ']).next().unwrap_or(word).to_owned()
        }
        _ => return None,
    };
    let known = table.iter().find(|(words, _)| words.contains(&&*word));
    if let Some((_, instead)) = known {
        return Some(match kind {
            ContextKind::InvalidSubcommand => {
                format!("error: there is no kennel {word}\nhint: {instead}")
            }
            _ => format!("error: there is no {word}\nhint: {instead}"),
        });
    }
    error.remove(ContextKind::Usage);
    // "to pass '-x' as a value, use '-- -x'" is of no command here.
    error.remove(ContextKind::Suggested);
    keep_near(error, ContextKind::SuggestedSubcommand, &word);
    keep_near(error, ContextKind::SuggestedArg, &word);
    None
}

/// Keeps those suggestions that are one slip of the fingers from what was typed.
fn keep_near(error: &mut clap::Error, kind: ContextKind, word: &str) {
    let suggested = match error.remove(kind) {
        Some(ContextValue::String(one)) => vec![one],
        Some(ContextValue::Strings(several)) => several,
        _ => return,
    };
    let near: Vec<String> = suggested
        .into_iter()
        .filter(|other| strsim::damerau_levenshtein(other, word) <= 2)
        .collect();
    if !near.is_empty() {
        error.insert(kind, ContextValue::Strings(near));
    }
}
