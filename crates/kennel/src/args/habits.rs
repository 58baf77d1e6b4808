//! Commands and flags of docker, kubectl, pueue, supervisorctl, systemd-run, journalctl, and what takes their place here.

/// Words of other tools, and their replacement.
pub(super) type Habit = (&'static [&'static str], &'static str);

/// Commands, and their replacement.
pub(super) const COMMANDS: &[Habit] = &[
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
        "settings are those that kennel serve was started with: kennel config check, then start it again; a new binary is put in \
         place by: kennel upgrade; the spec of a run does not change",
    ),
    (
        &["enable", "disable", "mask", "unmask"],
        "a run starts by kennel run; to start one with the host, let a unit of systemd call: kennel run",
    ),
    (
        &["is-active", "is-failed"],
        "the state alone: kennel get RUN -o jsonpath='{.state}'",
    ),
    (
        &["shutdown", "halt", "quit"],
        "kennel drain --wait lets the runs finish; SIGTERM to kennel serve ends them and the server",
    ),
    (
        &["edit", "patch", "set", "scale", "rename"],
        "the spec of a run does not change: start another run",
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
        "the spec of a run: kennel get RUN -o yaml; its output: kennel logs RUN",
    ),
    (
        &["health", "ping", "healthz"],
        "kennel status says whether the server serves",
    ),
    (
        &[
            "nice", "renice", "parallel", "group", "stash", "enqueue", "switch", "env",
        ],
        "a run starts at once: there is no queue; what it may use is said at its start: kennel run --help",
    ),
    (
        &["login", "logout", "cluster-info"],
        "a server is named by --server or KENNEL_SERVER, or chosen by kennel context use NAME; kennel status describes it",
    ),
    (
        &[
            "get-contexts",
            "current-context",
            "use-context",
            "set-context",
        ],
        "servers by name: kennel context ls, kennel context use NAME, kennel context set NAME",
    ),
    (
        &["view"],
        "the settings of kennel serve: kennel config show --origin; servers by name: kennel context ls",
    ),
    (
        &["container", "pod", "job", "unit", "task"],
        "leave the word out: kennel ps lists runs, kennel get RUN shows one",
    ),
    (
        &["system"],
        "kennel status describes the server, its store and its limits; kennel doctor searches for what runs left behind",
    ),
    (
        &["compose", "stack", "rollout", "service"],
        "there is no file of services: start each by kennel run -d --kind service --restart keepalive -- COMMAND; another attempt \
         of one: kennel restart RUN",
    ),
    (
        &["label"],
        "labels are given at the start (--label KEY=VALUE); what changes later: kennel annotate RUN KEY=VALUE",
    ),
    (
        &["cordon", "uncordon"],
        "kennel drain NODE refuses new runs; kennel undrain NODE accepts them again",
    ),
    (
        &["api-resources", "explain"],
        "the fields of a run: kennel get RUN -o yaml; the flags of a command: kennel COMMAND --help",
    ),
    (
        &["whoami", "auth"],
        "kennel audit shows the name that each call had; the server's file of principals (--access) says what it may do",
    ),
    (
        &["debug"],
        "a run has the host's own processes: kennel tree RUN shows their pids for strace, gdb or perf",
    ),
    (
        &["volume", "network", "configmap"],
        "a run has the host's own files and network; what a sandbox may reach: kennel run --help",
    ),
    (
        &["secret", "secrets"],
        "secrets are given to a run, and none is kept without one: kennel run --secret NAME[=SOURCE] -- COMMAND",
    ),
    (
        &["man"],
        "kennel COMMAND --help has the whole page of a command",
    ),
    (
        &["send"],
        "write to the input of a run started with --stdin or --tty: echo yes | kennel write RUN",
    ),
    (
        &["reset"],
        "kennel drain --abort --wait ends all runs; kennel drain --undo accepts new ones",
    ),
    (
        &["pid"],
        "processes of a run: kennel tree RUN; the command's pid: kennel get RUN -o jsonpath='{.currentAttempt.pid}'",
    ),
    (
        &["avail", "list-units", "list-jobs", "list-unit-files"],
        "kennel ps lists runs; with --all the ended ones too, with --state failed those that failed",
    ),
    (
        &["clear", "reset-failed"],
        "nothing needs to be cleared: an ended run and its output go when retention removes them (kennel serve --help)",
    ),
    (
        &["journalctl"],
        "output of a run: kennel logs RUN; its history: kennel events RUN; the log of the service is its standard error",
    ),
];

/// Flags of `run` and `spawn`, and their replacement.
pub(super) const RUN_FLAGS: &[Habit] = &[
    (
        &["--uid", "--gid"],
        "user and group of a run: --user UID:GID",
    ),
    (
        &["--name", "-N", "--unit", "--description"],
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
        &["--privileged", "--cap-add", "--security-opt", "--userns"],
        "a run has the privileges of the server: --user UID:GID and --no-new-privileges take them away, and --cap-drop and --sandbox",
    ),
    (
        &["--entrypoint", "--image", "--platform", "--pull"],
        "there is no image: name the command itself",
    ),
    (
        &["-p"],
        "a property of systemd has a flag of its own: --memory-max, --pids-max, --cpus, --timeout; a port needs none: a run has \
         the host's network; kennel spawn prints the id by itself",
    ),
    (
        &["--property", "--slice"],
        "each run has a control group of its own, and properties have flags: --memory-max, --pids-max, --cpus, --timeout, \
         --restart; see kennel run --help",
    ),
    (
        &["--init"],
        "every run has a shim, which reaps its orphaned processes",
    ),
    (
        &["--cidfile", "--pidfile"],
        "kennel spawn prints the id: kennel spawn -- COMMAND >FILE",
    ),
    (
        &["--sig-proxy"],
        "signals are forwarded to the command; without that: kennel spawn, then kennel logs -f RUN",
    ),
    (
        &["--dry-run"],
        "a command is started or refused; the settings of a started one: kennel get RUN -o yaml",
    ),
    (
        &[
            "--gpus",
            "--device",
            "--runtime",
            "--ipc",
            "--pid",
            "--uts",
            "--cgroup-parent",
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
            "-q",
            "--quiet",
            "--same-dir",
            "--print-task-id",
            "--send-sighup",
        ],
        "leave the flag out: kennel run waits, passes output on and prints nothing of its own; kennel spawn prints the id; both \
         start in this directory",
    ),
    (
        &["--log-driver", "--log-opt"],
        "output is kept by the server: --output-max, --output-full; kennel logs RUN reads it",
    ),
    (
        &[
            "--after",
            "--delay",
            "--priority",
            "--stashed",
            "--on-calendar",
            "--on-active",
        ],
        "a run starts at once: start it when its time has come, for example from a timer of systemd",
    ),
    (
        &["--group", "-g"],
        "a group is a label: --label group=NAME, and then: kennel ps -l group=NAME; there is no queue",
    ),
    (
        &["-d"],
        "kennel spawn starts the command at once and in the background",
    ),
    (
        &[
            "--health-cmd",
            "--healthcheck",
            "--no-healthcheck",
            "--health-interval",
        ],
        "a command that probes the run: --live-exec SCRIPT, or --ready-exec SCRIPT until it is ready",
    ),
    (
        &["--shell", "-S"],
        "a shell on this terminal: kennel run -it -- bash",
    ),
    (
        &["--detach-keys"],
        "ctrl-p ctrl-q leaves the terminal of a run; other keys: kennel run -dt, and then kennel attach --detach-keys KEYS RUN",
    ),
    (
        &["--remain-after-exit", "--service-type", "--no-block"],
        "a run ends with its command and stays on record: kennel get RUN; what happens to its children: --on-leader-exit",
    ),
    (
        &["--link", "--attach", "-a"],
        "output goes to this terminal already; of a run that was started before: kennel logs -f RUN, or kennel attach RUN",
    ),
];

/// Flags and words of single commands, and their replacement.
pub(super) const OF_COMMANDS: &[(&[&str], Habit)] = &[
    (
        &["top", "stats"],
        (
            &[WORD],
            "all live runs are shown, once with --once; the processes of one run: kennel tree RUN",
        ),
    ),
    (
        &["ps", "ls", "list"],
        (
            &[WORD],
            "states and labels select runs: --state running, -l KEY=VALUE; one run alone: kennel get RUN; processes of one: \
             kennel tree RUN",
        ),
    ),
    (
        &["ps", "ls", "list"],
        (
            &["--field-selector"],
            "runs are selected by --state STATE and -l KEY=VALUE",
        ),
    ),
    (
        &["ps", "ls", "list"],
        (
            &["--show-labels", "-s", "--size"],
            "more columns, labels too: kennel ps -o wide; memory and output: kennel top --once",
        ),
    ),
    (
        &["ps", "ls", "list"],
        (
            &["-e", "-A", "-x", "--all-namespaces"],
            "ended runs are listed too with --all; runs have no namespaces, but labels: -l KEY=VALUE; processes of a run: kennel \
             tree RUN",
        ),
    ),
    (
        &["ps", "ls", "list"],
        (
            &["--no-headers"],
            "ids alone: -q; columns without a head: -o '{{.runId}} {{.state}}'",
        ),
    ),
    (
        &["restart"],
        (
            &["--in-place", "-i"],
            "an ended run keeps its record, and a new run is started from its spec",
        ),
    ),
    (
        &["kill"],
        (
            &["-0"],
            "no signal is needed to learn whether a run is alive: kennel get RUN -o jsonpath='{.state}'",
        ),
    ),
    (
        &["abort", "stop"],
        (
            &["-s", "--signal"],
            "the first signal of a stop is chosen at the start: kennel run --stop-signal INT; another signal to a run: kennel kill \
             -s INT RUN",
        ),
    ),
    (
        &["kill"],
        (
            &["--kill-who", "--kill-whom", "--to"],
            "kill signals the command; others: kennel signal --to tree|group|leader SIGNAL RUN",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-u", "--unit", "-c", "--container"],
            "name the run itself: kennel logs RUN, or its label: kennel logs -l name=NAME",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-e", "-x", "-xe", "--pager-end", "--no-pager", "-r"],
            "the last lines: -n 100; output is printed in the order of time, without a pager",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-g", "--grep"],
            "search in what is printed: kennel logs RUN | grep PATTERN; wait for a line: kennel wait-output RUN PATTERN",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-a"],
            "the output of all runs: kennel logs --all; of a run, all lines are printed without -n",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-b", "-k", "--boot", "--dmesg"],
            "the output of a run: kennel logs RUN; the log of the service is its standard error",
        ),
    ),
    (
        &["logs", "log", "tail"],
        (&["-S", "-U"], "a part by its time: --since 1h, --until 5m"),
    ),
    (
        &["logs", "log", "tail"],
        (
            &["-p"],
            "the output of all attempts of a run is in one log: kennel logs RUN; one stream alone: --stream stderr",
        ),
    ),
    (
        &["attach"],
        (
            &["-i", "-t", "-it", "--no-stdin"],
            "leave the flag out: attach types and shows; only shows with --read-only",
        ),
    ),
    (
        &["get", "inspect", "describe", "show", "status"],
        (
            &["-f", "-p", "--property", "-j", "--json", "--value"],
            "a form is given by -o: -o json, -o yaml, or of a run -o '{{.state}}'",
        ),
    ),
    (
        &["get", "inspect", "describe", "show", "status"],
        (
            &["-n", "--lines"],
            "last lines of output: kennel logs -n 20 RUN, or with the history kennel why --lines 20 RUN",
        ),
    ),
    (&["wait"], (&["-t"], "the longest wait: --timeout 30s")),
    (
        &["write"],
        (
            &["--text", "-m"],
            "text is passed on standard input: echo TEXT | kennel write RUN",
        ),
    ),
    (
        &["serve"],
        (
            &["--socket", "--host", "-H", "--port"],
            "where to listen: --listen unix:PATH or tcp:ADDRESS:PORT",
        ),
    ),
];

/// Placeholder for any word that is no flag.
pub(super) const WORD: &str = "";

/// Flags of any other command, and their replacement.
pub(super) const FLAGS: &[Habit] = &[
    (
        &["-l", "--selector", "-g", "--group", "--filter", "--label"],
        "runs by a label: $(kennel ps -q -l KEY=VALUE) in the place of RUN; ps, logs and events take -l themselves",
    ),
    (
        &["-a", "--all"],
        "all live runs: $(kennel ps -q) in the place of RUN; with --all the ended ones too",
    ),
    (
        &["-H", "--host", "-s", "--kubeconfig", "--socket"],
        "a server is named by --server unix:PATH or KENNEL_SERVER, or by --context NAME",
    ),
    (
        &["--no-trunc", "--full"],
        "whole commands are shown by: kennel ps -o wide",
    ),
    (
        &["-A", "--all-namespaces", "-n", "--namespace"],
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
    (
        &["-v", "--verbose", "--debug"],
        "the version is printed by: kennel version; more about a run: kennel why RUN, about the server: kennel status",
    ),
    (
        &["--force", "--now"],
        "a run is killed at once with --grace 0: kennel stop --grace 0 RUN",
    ),
];
