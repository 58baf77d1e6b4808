//! Keeper and server of a test, and the fixtures of scenarios.

use crate::{handover, scenarios};
use kennel_keeper::{
    client::{
        ChildSpec, ClientError, Fact, HeldRun, KeeperClient, KeeperEvent, KeeperEvents,
        KeeperHello, KeeperReport, Kernel, Outputs, Prepared,
    },
    keeper::{self, CgroupChoice, KeeperConfig, ListenAddress, ServiceManager},
    rundir, server_socket,
};
use kennel_lifecycle::{
    CommandSpec, DefaultLimits, PidNamespace, Policy, RunId, Signal, StopPolicy,
};
use std::{
    collections::HashMap,
    io::Read,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Longest time of any single step.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// Descriptors where there are few.
const FEW_FILES: u64 = 64;
/// Lowest descriptor that cannot be watched where few can: above those that a keeper without runs has.
const FEW_WATCHES: u32 = 64;

/// Difference of nice value and `oom_score_adj` between a burdened keeper and the test.
pub(crate) const BURDEN_NICE: i32 = 3;
/// See [`BURDEN_NICE`].
pub(crate) const BURDEN_OOM_SCORE_ADJ: i32 = 200;

/// Returns that of this process, as inherited.
pub(crate) fn own_nice() -> i32 {
    // SAFETY: getpriority takes integers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Returns that of this process, as inherited.
pub(crate) fn own_oom_score_adj() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").expect("it can be read");
    text.trim().parse().expect("a number")
}

/// Command line: `keeper DIR CHOICE SCENARIO`
pub(crate) fn keep(args: &[String]) -> ExitCode {
    let dir = PathBuf::from(&args[0]);
    std::fs::write(dir.join("choice"), &args[1]).expect("a file");
    let cgroup = match args[1].as_str() {
        "auto" | "no_clone3" | "few_files" | "few_watches" | "burdened" | "ignored_exits"
        | "private" => CgroupChoice::Auto,
        _ => CgroupChoice::Off,
    };
    if args[1] == "foreign_proc" {
        return keep_below_foreign_proc(args);
    }
    if args[1] == "ignored_exits" {
        // SAFETY: no handler is set that could run unsafe code.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
    if args[1] == "no_clone3" {
        refuse_clone3();
    }
    if args[1] == "old_kernel" {
        refuse_pidfs();
    }
    if args[1] == "few_watches" {
        refuse_watches();
    }
    if args[1] == "few_files" {
        let few = libc::rlimit {
            rlim_cur: FEW_FILES,
            rlim_max: FEW_FILES,
        };
        // SAFETY: `few` is a valid rlimit that outlives the call.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
        assert_eq!(set, 0, "a limit can be lowered");
    }
    if args[1] == "burdened" {
        burden();
    }
    let config = KeeperConfig {
        data_dir: dir.join("data"),
        listen: vec![ListenAddress::private(dir.join("run/kennel.sock"))],
        passed_sockets: Vec::new(),
        server_argv: vec![
            "server".into(),
            args[0].clone().into(),
            args[2].clone().into(),
        ],
        cgroup,
        preflight_env: Vec::new(),
        orphan_ttl: handover::orphan_ttl(&args[2]),
        shutdown_timeout: kennel_lifecycle::limits::SHUTDOWN_TIMEOUT_DEFAULT,
        memory_reserve: None,
        default_limits: DefaultLimits::default(),
        service_manager: ServiceManager::default(),
        private: Vec::new(),
    };
    match keeper::run(&config) {
        Ok(code) => ExitCode::from(u8::try_from(code).expect("a small code")),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(u8::try_from(error.exit_code()).expect("a small code"))
        }
    }
}

/// Sets what a keeper may have been started with: a umask for its own files, a low priority, and to be killed first.
fn burden() {
    // SAFETY: both calls take integers.
    unsafe { libc::umask(0o077) };
    let (nice, adj) = (
        own_nice() + BURDEN_NICE,
        own_oom_score_adj() + BURDEN_OOM_SCORE_ADJ,
    );
    // SAFETY: setpriority takes integers.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    assert_eq!(set, 0, "a priority can be lowered");
    std::fs::write("/proc/self/oom_score_adj", adj.to_string()).expect("it can be raised");
}

/// Starts a keeper in a pid namespace of its own, which sees the /proc of this one.
fn keep_below_foreign_proc(args: &[String]) -> ExitCode {
    // SAFETY: unshare takes an integer, and this process has one thread.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) };
    assert_eq!(apart, 0, "a namespace can be made");
    let own = std::env::current_exe().expect("own path");
    let keeper = std::process::Command::new(own)
        .args(["keeper", &args[0], "off", &args[2]])
        .status()
        .expect("a keeper");
    ExitCode::from(u8::try_from(keeper.code().expect("a code")).expect("a small code"))
}

const fn step(code: u32, jump_if: u8, jump_else: u8, k: u32) -> libc::sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "codes of steps are short")]
    libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const ALLOW: libc::sock_filter = step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

fn refuse(errno: i32) -> libc::sock_filter {
    step(
        RETURN,
        0,
        0,
        libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
    )
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("a short number")
}

/// Filters calls as older container runtimes do: clone3(2) is ENOSYS, here and in all children.
fn refuse_clone3() {
    filter(&mut [
        // The kernel's `seccomp_data` begins with the system call number.
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 1, number(libc::SYS_clone3)),
        refuse(libc::ENOSYS),
        ALLOW,
    ]);
}

/// Filters calls as before Linux 6.9: processes have no handles, and groups cannot be addressed by descriptor.
fn refuse_pidfs() {
    /// `PIDFD_SIGNAL_PROCESS_GROUP`.
    const PROCESS_GROUP: u32 = 1 << 2;
    /// Offset of the low half of the fourth argument.
    const FLAGS_AT: u32 = 16 + 3 * 8;
    filter(&mut [
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 1, number(libc::SYS_name_to_handle_at)),
        refuse(libc::EOPNOTSUPP),
        step(IF_EQUAL, 0, 3, number(libc::SYS_pidfd_send_signal)),
        step(LOAD, 0, 0, FLAGS_AT),
        step(IF_EQUAL, 0, 1, PROCESS_GROUP),
        refuse(libc::EINVAL),
        ALLOW,
    ]);
}

/// Filters calls as where the user has no watches left (`max_user_watches`), for later descriptors alone.
fn refuse_watches() {
    /// Offsets of the low halves of the second and the third argument.
    const OPERATION_AT: u32 = 16 + 8;
    const DESCRIPTOR_AT: u32 = 16 + 2 * 8;
    filter(&mut [
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 5, number(libc::SYS_epoll_ctl)),
        step(LOAD, 0, 0, OPERATION_AT),
        step(IF_EQUAL, 0, 3, libc::EPOLL_CTL_ADD.cast_unsigned()),
        step(LOAD, 0, 0, DESCRIPTOR_AT),
        step(IF_AT_LEAST, 0, 1, FEW_WATCHES),
        refuse(libc::ENOSPC),
        ALLOW,
    ]);
}

fn filter(steps: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).expect("a short filter"),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: prctl takes integers here.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(alone, 0, "privileges can be given up");
    // SAFETY: `program` and the steps that it points to outlive the call.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) };
    assert_eq!(set, 0, "a filter can be set");
}

/// Command line: `server DIR SCENARIO`
pub(crate) fn serve(args: &[String]) -> ExitCode {
    let socket = server_socket().expect("started by a keeper");
    handover::fail_for_good(Path::new(&args[0]));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (client, events, hello, held) = KeeperClient::connect(socket).await.expect("a keeper");
        let listeners = client.take_listeners();
        assert_eq!(listeners.len(), 1, "one socket was asked for");
        let dir = PathBuf::from(&args[0]);
        match args[1].as_str() {
            "refuses_to_serve" => return ExitCode::from(2),
            "never_ready" => {
                std::fs::write(dir.join("up"), "up\n").expect("a file");
                std::future::pending::<()>().await;
            }
            _ => {}
        }
        let mut stage = Stage {
            client,
            events,
            hello,
            held,
            dir,
            facts: HashMap::new(),
            usages: HashMap::new(),
            asked: Vec::new(),
            runs: 0,
        };
        if stage.file("failed").exists() {
            stage.client.ready();
            handover::give_up(&mut stage).await;
            return ExitCode::FAILURE;
        }
        if let Some(code) = handover::before_ready(&args[1], &mut stage).await {
            return ExitCode::from(code);
        }
        stage.client.ready();
        scenarios::play(&args[1], &mut stage).await;
        ExitCode::SUCCESS
    })
}

/// Fixtures of a scenario.
pub(crate) struct Stage {
    pub(crate) client: KeeperClient,
    events: KeeperEvents,
    pub(crate) hello: KeeperHello,
    /// Runs of earlier servers of this keeper.
    pub(crate) held: Vec<HeldRun>,
    pub(crate) dir: PathBuf,
    facts: HashMap<RunId, Vec<Fact>>,
    /// Reports of used resources, by their number.
    pub(crate) usages: HashMap<RunId, usize>,
    /// Received events that are not about a run.
    pub(crate) asked: Vec<KeeperEvent>,
    runs: u128,
}

impl Stage {
    /// Whether runs have control groups.
    pub(crate) fn has_cgroup(&self) -> bool {
        self.hello.cgroup_base.is_ok()
    }

    /// Returns the pid namespace of commands.
    pub(crate) fn pid_namespace(&self) -> PidNamespace {
        if self.choice().starts_with("private") {
            PidNamespace::Private
        } else {
            PidNamespace::Shared
        }
    }

    /// Whether commands run in a private one.
    pub(crate) fn is_private(&self) -> bool {
        self.pid_namespace() == PidNamespace::Private
    }

    /// Returns the surroundings in which the test started the keeper.
    pub(crate) fn choice(&self) -> String {
        std::fs::read_to_string(self.file("choice")).expect("the test's choice")
    }

    /// Returns the path of a scenario's file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a run of this shell text. `$0` is the test's directory, by which leftovers are found.
    pub(crate) fn shell(&mut self, text: &str) -> (RunId, ChildSpec) {
        let dir = self.dir.display().to_string();
        self.command("/bin/sh", &["sh", "-c", text, &dir])
    }

    /// Makes a run of this command.
    pub(crate) fn command(&mut self, executable: &str, argv: &[&str]) -> (RunId, ChildSpec) {
        self.runs += 1;
        let run = RunId::from_u128((u128::from(std::process::id()) << 64) | self.runs);
        let spec = ChildSpec {
            executable: executable.into(),
            env: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("KENNEL_RUN_ID".into(), run.to_string()),
                ("KENNEL_TEST_DIR".into(), self.dir.display().to_string()),
            ],
            run_dir: rundir::create(&self.dir.join("data"), run).expect("a run directory"),
            attempt: 1,
            command: CommandSpec {
                argv: argv.iter().map(Into::into).collect(),
                ..CommandSpec::default()
            },
            policy: Policy {
                stop: StopPolicy::within(Duration::from_secs(2)),
                pid_namespace: self.pid_namespace(),
                ..Policy::default()
            },
            ..ChildSpec::default()
        };
        (run, spec)
    }

    pub(crate) async fn prepare(
        &self,
        run: RunId,
        spec: &ChildSpec,
    ) -> Result<Prepared, ClientError> {
        within(self.client.prepare(run, spec)).await
    }

    /// Prepares and releases, and waits for exec.
    pub(crate) async fn start(&mut self, run: RunId, spec: &ChildSpec) -> Prepared {
        let prepared = self.prepare(run, spec).await.expect("a child at its gate");
        self.client.release(run);
        self.wait(run, |facts| facts.contains(&Fact::Executed {}))
            .await;
        prepared
    }

    /// Takes events until this run's reports satisfy the condition, and returns them.
    pub(crate) async fn wait(&mut self, run: RunId, done: impl Fn(&[Fact]) -> bool) -> Vec<Fact> {
        let until = Instant::now() + DEADLINE;
        loop {
            let facts = self.facts.entry(run).or_default();
            if done(facts) {
                return facts.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, self.events.recv()).await {
                Ok(KeeperEvent::Report(report)) => self.note(report),
                Ok(KeeperEvent::Gone) => panic!("the keeper is gone; {run} has {facts:?}"),
                Ok(other) => self.asked.push(other),
                Err(late) => panic!("{late}; {run} has {facts:?}"),
            }
        }
    }

    /// Notes a report. Those of used resources differ from run to run, and are noted by their number alone.
    fn note(&mut self, report: KeeperReport) {
        let facts = self.facts.entry(report.run).or_default();
        match report.fact {
            Fact::Usage(_) => {
                assert!(!facts.iter().any(|fact| matches!(fact, Fact::TreeEnded(_))));
                *self.usages.entry(report.run).or_default() += 1;
            }
            fact => facts.push(fact),
        }
    }

    /// Returns the reports of this run so far.
    pub(crate) async fn reports(&mut self, run: RunId) -> Vec<Fact> {
        self.all_reports()
            .await
            .get(&run)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns all reports so far. The keeper's messages come in order, so that its answer comes after all of them.
    pub(crate) async fn all_reports(&mut self) -> &HashMap<RunId, Vec<Fact>> {
        let unknown = RunId::from_u128(1);
        within(self.client.tree(unknown)).await.expect("a keeper");
        while let Ok(event) = tokio::time::timeout(Duration::ZERO, self.events.recv()).await {
            match event {
                KeeperEvent::Report(report) => self.note(report),
                other => self.asked.push(other),
            }
        }
        self.facts.retain(|_, facts| !facts.is_empty());
        &self.facts
    }

    /// Waits for the verdict on the tree.
    pub(crate) async fn end(&mut self, run: RunId) -> Vec<Fact> {
        let ended = |facts: &[Fact]| matches!(facts.last(), Some(Fact::TreeEnded(_)));
        let facts = self.wait(run, ended).await;
        self.client.acknowledge(run);
        facts
    }

    /// Clears its reports: later ones are of its next attempt.
    pub(crate) fn forget(&mut self, run: RunId) {
        self.facts.remove(&run);
    }

    /// Waits for an event that is not about a run.
    pub(crate) async fn event(&mut self) -> KeeperEvent {
        loop {
            match within(self.events.recv()).await {
                KeeperEvent::Report(report) => self.note(report),
                other => return other,
            }
        }
    }

    /// Returns the keeper's number of a process of a run, from the number that a child of a scenario has written.
    pub(crate) async fn pid(&self, name: &str) -> i32 {
        let own: i32 = self.written(name).await.trim().parse().expect("a pid");
        if !self.is_private() {
            return own;
        }
        let inner = |pid: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let status = status.unwrap_or_default();
            let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
            let numbers = numbers.unwrap_or_default().split_whitespace();
            numbers.collect::<Vec<_>>() == [pid.to_string(), own.to_string()]
        };
        let ours = leftovers(&self.dir).into_iter();
        let mut pids = ours.filter_map(|line| line.split(':').next()?.parse::<i32>().ok());
        pids.find(inner).expect("it is in a namespace of its own")
    }

    /// Waits until the child of a scenario has written this file, and returns it.
    pub(crate) async fn written(&self, name: &str) -> String {
        let path = self.file(name);
        until(|| {
            std::fs::read_to_string(&path)
                .ok()
                .filter(|text| text.ends_with('\n'))
        })
        .await
    }
}

impl Stage {
    /// Checks that a private pid namespace is gone at once when its shim is killed, and that this is proven.
    pub(crate) async fn ends_with_its_shim(&mut self, run: RunId, prepared: &Prepared) {
        scenarios::kill(prepared.identity.shim.pid);
        self.ended_with_its_shim(run, prepared).await;
    }

    /// Checks the same once the shim was killed.
    pub(crate) async fn ended_with_its_shim(&mut self, run: RunId, prepared: &Prepared) {
        let facts = self.end(run).await;
        assert!(
            facts.contains(&scenarios::killed_by(Signal::KILL)),
            "{facts:?}"
        );
        assert!(
            !scenarios::signals(&facts).contains(&Signal::TERM),
            "{facts:?}"
        );
        assert_eq!(facts.last(), Some(&scenarios::empty(self)));
        assert!(!is_alive(prepared.identity.command.pid));
        // No process of the run is left: the remaining ones belong to the service.
        let left = leftovers(&self.dir);
        assert!(!left.iter().any(|line| line.contains("-c\0")), "{left:?}");
    }

    /// Waits until the four shells of [`scenarios::WIDE_TREE`] each wait for a sleep.
    pub(crate) async fn wide_tree_stands(&self) {
        self.written("up").await;
        let sleeps = |line: &String| {
            let pid = line.split(':').next().unwrap_or_default();
            let child = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let child = child.unwrap_or_default();
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.trim()));
            line.contains("-c\0sleep 1000") && name.is_ok_and(|n| n == "sleep\n")
        };
        until(|| (leftovers(&self.dir).iter().filter(|l| sleeps(l)).count() == 4).then_some(()))
            .await;
    }
}

/// Returns the result, or panics at the deadline.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.expect("it takes less than the deadline")
}

/// Polls until there is an answer, or panics at the deadline.
pub(crate) async fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < give_up, "no answer before the deadline");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns standard output and error.
pub(crate) fn pipes(outputs: Outputs) -> (OwnedFd, OwnedFd) {
    match outputs {
        Outputs::Pipes { stdout, stderr } => (stdout, stderr),
        Outputs::Terminal(_) => panic!("a terminal"),
    }
}

/// Returns all output of an ended run.
pub(crate) fn drain(pipe: OwnedFd) -> String {
    let mut text = String::new();
    // WouldBlock at the end means that an unrelated writer remains; all bytes so far have been read.
    let _ = std::fs::File::from(pipe).read_to_string(&mut text);
    text
}

/// Whether a process is there and has not exited.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|s| s.trim().chars().next());
        !matches!(state, Some('Z' | 'X') | None)
    })
}

/// Returns the processes that carry the test's directory in their environment or arguments.
pub(crate) fn leftovers(dir: &Path) -> Vec<String> {
    let needle = dir.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        if pid == std::process::id().cast_signed() || !is_alive(pid) {
            continue;
        }
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let text = [read("environ"), read("cmdline")].concat();
        if String::from_utf8_lossy(&text).contains(&needle) {
            let line = read("cmdline");
            found.push(format!("{pid}: {}", String::from_utf8_lossy(&line)));
        }
    }
    found
}
