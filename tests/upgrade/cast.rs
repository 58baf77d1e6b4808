//! Forty runs, one of each kind twice and more, and what each has to show after each change of version.

use crate::reader::Reader;
use kennel_proto::pb::{
    self, AbortWait, ApiAccess, LeaderExitAction, OnMaxPause, PidNamespace, RecoveryPolicy,
    RestartMode, RunKind, RunState, liveness, secret::Source, stop_action::Action,
};
use kennel_tests::{
    Client, Heard, Kennel, PATIENCE, RunExt, SpecExt, argv,
    client::{duration, micros},
    eventually, eventually_async, must, naughty,
    procfs::Proc,
    programs, sh,
};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Value of the label `app` of all of them.
pub(crate) const APP: &str = "cast";
/// Longer than the test.
const LONG: Duration = Duration::from_hours(1);
/// A limit of time that is reached while versions change.
const LIMIT: Duration = Duration::from_secs(5);
/// What may pass between a limit and its act on a busy machine, and while no keeper is there.
const LATE: i64 = 30_000_000;
/// Milliseconds between two lines of a run.
const PACE: &str = "500";
/// Value of a secret.
const SECRET: &str = "hush-hush";

/// What a run is, and so what it has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Writes lines.
    Talks,
    /// The same, in a pid namespace of its own.
    TalksApart,
    /// Every task is stopped.
    Paused,
    /// A stop is in force, whose signal it ignores, and whose grace is long.
    Stubborn,
    /// Its leader has exited, and the rest goes on.
    Drains,
    /// Its attempt has failed, and the next one is due much later.
    BacksOff,
    /// Commands beside its own look whether it is live.
    Probed,
    /// A command beside its own is the first step of its stop.
    StopsBySteps,
    /// Exits at once unless it has its secrets; restarted at each look, by what is kept of them.
    HasSecrets,
    /// Echoes its input.
    Listens,
    /// Echoes what is typed at its terminal.
    HasTerminal,
    /// Calls the server with the token of its run, once for each line of its input.
    Calls,
}

const ROLES: [Role; 12] = [
    Role::Talks,
    Role::TalksApart,
    Role::Paused,
    Role::Stubborn,
    Role::Drains,
    Role::BacksOff,
    Role::Probed,
    Role::StopsBySteps,
    Role::HasSecrets,
    Role::Listens,
    Role::HasTerminal,
    Role::Calls,
];

/// What becomes of a run with its keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// It is ended.
    Ends,
    /// The next keeper adopts it, as its spec says.
    Adopted,
    /// The same, since it is a service.
    AdoptedAsService,
}

/// A run.
struct Member {
    role: Role,
    after: After,
    id: String,
    state: RunState,
    lasting: pb::Attempt,
    /// Process that lives for as long as the run does; absent between two attempts.
    leader: Option<Proc>,
    /// Lines, bytes of input, calls so far.
    shown: u64,
}

/// All runs.
pub(crate) struct Cast {
    dir: PathBuf,
    joins: u32,
    members: Vec<Member>,
    timed: Vec<Timed>,
    /// Those that have ended, for the comparison of their events.
    over: Vec<String>,
}

impl Cast {
    /// Begins with no run; files of the runs are in this directory.
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            joins: 0,
            members: Vec::new(),
            timed: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Returns how many live.
    pub(crate) fn living(&self) -> usize {
        self.members.len()
    }

    /// Begins runs of all roles, for each way that a keeper's death has.
    pub(crate) async fn join(&mut self, kennel: &Kennel) {
        let mut client = kennel.client().await;
        self.joins += 1;
        for role in ROLES {
            for after in [After::Ends, After::Adopted] {
                let after = match after {
                    // A terminal ends with its keeper.
                    _ if role == Role::HasTerminal => After::Ends,
                    // Without a process, only a service outlives its keeper.
                    After::Adopted if role == Role::BacksOff => After::AdoptedAsService,
                    After::Adopted if self.joins.is_multiple_of(2) => After::AdoptedAsService,
                    other => other,
                };
                let member = self.begin(&mut client, role, after).await;
                self.members.push(member);
            }
        }
        self.look(kennel).await;
    }

    fn talk(&self) -> String {
        let program = programs::naughty();
        format!(
            "exec {} talk {} {PACE}",
            program.display(),
            self.dir.display()
        )
    }

    fn file(&self, id: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{id}.{what}"))
    }

    fn spec(&self, role: Role) -> pb::RunSpec {
        let dir = self.dir.display();
        let talks = naughty(&["talk", &dir.to_string(), PACE]);
        let never = pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            delay: Some(duration(LONG)),
            max_delay: Some(duration(LONG)),
            ..pb::RestartPolicy::default()
        };
        match role {
            Role::Talks | Role::Paused => talks.max_runtime(LONG),
            Role::TalksApart => pb::RunSpec {
                pid_namespace: PidNamespace::Private.into(),
                ..talks
            },
            Role::Stubborn => sh(&format!("trap '' TERM; {}", self.talk())).grace(LONG),
            Role::Drains => sh(&format!("({}) & exit 5", self.talk()))
                .on_leader_exit(LeaderExitAction::Drain, Some(LONG)),
            Role::BacksOff => {
                let again = format!("{dir}/$KENNEL_RUN_ID.again");
                sh(&format!("[ -e {again} ] || exit 1; {}", self.talk())).restart(
                    pb::RestartPolicy {
                        mode: RestartMode::OnFailure.into(),
                        ..never
                    },
                )
            }
            Role::Probed => {
                let mut spec = talks;
                let script = format!("echo >>{dir}/$KENNEL_RUN_ID.probes");
                spec.liveness = Some(pb::Liveness {
                    probe: Some(liveness::Probe::Exec(exec(&script))),
                    interval: Some(duration(Duration::from_secs(1))),
                    timeout: Some(duration(PATIENCE)),
                    failure_threshold: Some(3),
                });
                spec
            }
            Role::StopsBySteps => {
                let mut spec = talks;
                let script = format!("echo >{dir}/$KENNEL_RUN_ID.stopped");
                spec.stop.get_or_insert_default().steps = vec![pb::StopAction {
                    action: Some(Action::Exec(pb::stop_action::Exec {
                        args: exec(&script).args,
                    })),
                    wait: Some(duration(Duration::from_secs(3))),
                }];
                spec
            }
            Role::HasSecrets => {
                let value = || Source::Value(SECRET.into());
                let has =
                    format!("[ \"$S\" = {SECRET} ] && [ \"$(cat $F)\" = {SECRET} ] || exit 99");
                sh(&format!("{has}; {}", self.talk()))
                    .secret("S", value())
                    .secret_file("F", value())
                    .restart(never)
            }
            Role::Listens => argv(&["cat"]).open_input(),
            Role::HasTerminal => argv(&["cat"]).on_terminal(pb::Terminal::default()),
            Role::Calls => {
                let program = programs::kennel();
                let calls = format!(
                    "while read n; do {} get $KENNEL_RUN_ID >{dir}/$KENNEL_RUN_ID.$n.said 2>&1; \
                     echo $? >{dir}/$KENNEL_RUN_ID.$n.new; \
                     mv {dir}/$KENNEL_RUN_ID.$n.new {dir}/$KENNEL_RUN_ID.$n.code; done",
                    program.display()
                );
                let mut spec = sh(&calls).open_input();
                spec.api_access = ApiAccess::OwnRun.into();
                spec
            }
        }
        .label("app", APP)
    }

    async fn begin(&self, client: &mut Client, role: Role, after: After) -> Member {
        let mut spec = self.spec(role);
        match after {
            After::Ends => {}
            After::AdoptedAsService => spec.kind = RunKind::Service.into(),
            After::Adopted => spec.set_recovery(RecoveryPolicy::Adopt),
        }
        let run = must("spawn", client.spawn(spec).await);
        let id = run.run_id;
        let state = match role {
            Role::Paused => {
                self.until_more_than(&id, 0).await;
                must("pause", client.pause(&id).await);
                RunState::Paused
            }
            Role::Stubborn => {
                self.until_more_than(&id, 0).await;
                must("abort", client.abort_with(&id, None, AbortWait::None).await);
                RunState::Stopping
            }
            Role::Drains => RunState::Stopping,
            Role::BacksOff => RunState::Backoff,
            _ => RunState::Running,
        };
        let run = eventually_async(&format!("{role:?} is {state:?}"), PATIENCE, async || {
            let run = must("get", client.clone().get(&id).await);
            (run.state() == state).then_some(run)
        })
        .await;
        Member {
            role,
            after,
            id,
            state,
            lasting: run.lasting(),
            leader: Proc::read(run.attempt().pid).filter(Proc::is_alive),
            shown: 0,
        }
    }

    /// Returns the number of the last line that the run has printed.
    fn lines(&self, id: &str) -> u64 {
        let said = fs::read_to_string(self.file(id, "lines")).unwrap_or_default();
        said.trim().parse().unwrap_or_default()
    }

    async fn until_more_than(&self, id: &str, lines: u64) -> u64 {
        eventually(&format!("{id} goes on"), PATIENCE, || {
            Some(self.lines(id)).filter(|now| *now > lines)
        })
        .await
    }

    /// Checks that each run is as it was, and does what it is there for.
    pub(crate) async fn look(&mut self, kennel: &Kennel) {
        let mut client = kennel.client().await;
        let mut members = std::mem::take(&mut self.members);
        for member in &mut members {
            let run = must("get", client.get(&member.id).await);
            let what = format!("{:?}, {:?}: {run:?}", member.role, member.after);
            assert_eq!(run.state(), member.state, "{what}");
            assert_eq!(run.lasting(), member.lasting, "{what}");
            let lives = member.leader.as_ref().is_none_or(Proc::is_alive);
            assert!(lives, "its process is gone: {what}");
        }
        for member in &mut members {
            self.act(&mut client, member).await;
        }
        self.members = members;
    }

    async fn act(&self, client: &mut Client, member: &mut Member) {
        let id = &member.id;
        match member.role {
            Role::Talks | Role::TalksApart | Role::Stubborn | Role::Drains | Role::StopsBySteps => {
                member.shown = self.until_more_than(id, member.shown).await;
            }
            Role::Paused => {
                let lines = self.lines(id);
                assert!(member.shown == 0 || lines == member.shown, "it is paused");
                member.shown = lines;
            }
            Role::BacksOff => {}
            Role::Probed => {
                let file = self.file(id, "probes");
                member.shown = eventually("it is probed", PATIENCE, || {
                    let times = fs::metadata(&file).map_or(0, |file| file.len());
                    (times > member.shown).then_some(times)
                })
                .await;
            }
            Role::HasSecrets => {
                let run = must("restart", client.restart(id, None).await);
                member.leader = Proc::read(run.attempt().pid).filter(Proc::is_alive);
                member.shown = self.until_more_than(id, member.shown).await;
                let run = must("get", client.get(id).await);
                assert_eq!(run.attempt().number, member.lasting.number + 1, "{run:?}");
                assert_eq!(run.state(), RunState::Running, "{run:?}");
                member.leader = Proc::read(run.attempt().pid).filter(Proc::is_alive);
                member.lasting = run.lasting();
            }
            Role::Listens => {
                let piece = piece(member.shown);
                let (key, at) = (format!("w{}", member.shown), member.shown);
                let written = client.write(id, &key, Some(at), piece.as_bytes()).await;
                must("write", written);
                member.shown += piece.len() as u64;
                client.hear_text(id, &piece).await;
            }
            Role::HasTerminal => {
                member.shown += 1;
                let line = format!("typed {}.", member.shown);
                must("type", client.type_in(id, &format!("{line}\n")).await);
                eventually_async("it is shown", PATIENCE, async || {
                    let heard = client.clone().hear_now(id).await;
                    // The terminal and the command echo each line.
                    (heard.text().matches(&line).count() == 2).then_some(())
                })
                .await;
            }
            Role::Calls => {
                member.shown += 1;
                let number = member.shown;
                let (key, line) = (format!("w{number}"), format!("{number}\n"));
                must("write", client.write(id, &key, None, line.as_bytes()).await);
                let file = self.file(id, &format!("{number}.code"));
                let code =
                    eventually("it calls", PATIENCE, || fs::read_to_string(&file).ok()).await;
                let said = fs::read_to_string(self.file(id, &format!("{number}.said")));
                assert_eq!(code, "0\n", "{said:?}");
            }
        }
    }

    /// After a keeper's death: runs that end with it have ended, with exit and all of their output. The others live.
    pub(crate) async fn keeper_has_died(&mut self, kennel: &Kennel) {
        let mut client = kennel.client().await;
        let members = std::mem::take(&mut self.members);
        for member in members {
            if member.after != After::Ends {
                self.members.push(member);
                continue;
            }
            let run = must("wait", client.ended(&member.id).await);
            let what = format!("{:?} {}: {run:?}", member.role, run.reason());
            let reasons = ["service_lost", "orphan_terminated", "aborted", "exited"];
            assert!(reasons.contains(&run.reason()), "{what}");
            // Between two attempts the run has no tree.
            let is_empty = run.tree_is_empty() || member.role == Role::BacksOff;
            assert!(is_empty, "{what}");
            let lives = member.leader.as_ref().is_some_and(Proc::is_alive);
            assert!(!lives, "it lives: {what}");
            match member.role {
                Role::Drains => assert_eq!(run.code(), Some(5), "{what}"),
                Role::BacksOff => assert_eq!(run.code(), Some(1), "{what}"),
                Role::Stubborn => assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{what}"),
                _ => assert!(run.signal().is_some() || run.code().is_some(), "{what}"),
            }
            self.hear_whole_output(&mut client, &member.id, &run).await;
        }
    }

    /// Begins runs whose limits of time are reached while versions change.
    pub(crate) async fn set_limits(&mut self, kennel: &Kennel) {
        let mut client = kennel.client().await;
        for limit in [Limit::Runtime, Limit::Pause, Limit::Grace, Limit::Backoff] {
            let talks = sh(&self.talk());
            let spec = match limit {
                Limit::Runtime => talks.max_runtime(LIMIT),
                Limit::Pause => talks.max_pause(LIMIT, OnMaxPause::Resume),
                Limit::Grace => sh(&format!("trap '' TERM; {}", self.talk())).grace(LIMIT),
                Limit::Backoff => {
                    let file = format!("{}/$KENNEL_RUN_ID.tried", self.dir.display());
                    let policy = pb::RestartPolicy {
                        mode: RestartMode::OnFailure.into(),
                        delay: Some(duration(LIMIT)),
                        ..pb::RestartPolicy::default()
                    };
                    sh(&format!("[ -e {file} ] && exit 0; echo >{file}; exit 1")).restart(policy)
                }
            };
            let mut spec = spec.label("app", APP);
            match limit {
                // Between two attempts only a service outlives its keeper.
                Limit::Backoff => spec.kind = RunKind::Service.into(),
                _ => spec.set_recovery(RecoveryPolicy::Adopt),
            }
            let id = must("spawn", client.spawn(spec).await).run_id;
            match limit {
                Limit::Pause => {
                    self.until_more_than(&id, 0).await;
                    must("pause", client.pause(&id).await);
                }
                Limit::Grace => {
                    self.until_more_than(&id, 0).await;
                    must("abort", client.abort_with(&id, None, AbortWait::None).await);
                }
                Limit::Runtime | Limit::Backoff => {}
            }
            self.timed.push(Timed { limit, id });
        }
    }

    /// Checks that no limit was reached early or late.
    async fn limits_were_kept(&mut self, client: &mut Client) {
        for Timed { limit, id } in std::mem::take(&mut self.timed) {
            if limit == Limit::Pause {
                eventually_async("it goes on", PATIENCE, async || {
                    let run = must("get", client.clone().get(&id).await);
                    (run.state() == RunState::Running).then_some(())
                })
                .await;
                fs::write(self.file(&id, "exit"), "3").expect("own directory");
            }
            let run = must("wait", client.ended(&id).await);
            let times = times(client, &id).await;
            let (from, to, reason) = match limit {
                Limit::Runtime => ("started", "stopping", "deadline_exceeded"),
                Limit::Pause => ("paused", "resumed", "exited"),
                Limit::Grace => ("stopping", "leader_exited", "aborted"),
                // The backoff begins before the attempt's end is recorded.
                Limit::Backoff => ("tree_empty", "started", "exited"),
            };
            assert_eq!(run.reason(), reason, "{limit:?}: {run:?} {times:?}");
            let from = times.iter().find(|(station, _)| *station == from);
            let to = times.iter().rfind(|(station, _)| *station == to);
            let (Some((_, from)), Some((_, to))) = (from, to) else {
                panic!("{limit:?}: {times:?}");
            };
            let (passed, wanted) = (to - from, i64::try_from(LIMIT.as_micros()).expect("short"));
            // The limit's clock differs from that of recorded times, which may be slewed; a busy server records a pause
            // later than the keeper starts counting.
            let is_kept = passed >= wanted - wanted / 20 && passed <= wanted + LATE;
            assert!(is_kept, "{limit:?} after {passed} us: {times:?}");
            self.over.push(id);
        }
    }

    /// Ends all, each in its own way, and compares each byte and each code with what the runs have done.
    pub(crate) async fn finish(mut self, kennel: &Kennel, reader: Reader) {
        let mut client = kennel.client().await;
        self.limits_were_kept(&mut client).await;
        for (number, member) in std::mem::take(&mut self.members).into_iter().enumerate() {
            self.end(&mut client, member, number).await;
        }
        let crowd = reader.finish().await;
        for id in &self.over {
            let fresh = must("stream", client.hear_all(id, 0).await);
            let read = crowd
                .runs
                .get(id)
                .unwrap_or_else(|| panic!("{id} was not streamed"));
            assert_eq!(read.events, fresh.events, "what was read is what is there");
        }
    }

    async fn end(&mut self, client: &mut Client, member: Member, number: usize) {
        let id = &member.id;
        let code = u8::try_from(20 + number).expect("few");
        let says_code = |code: u8| {
            let new = self.file(id, "new");
            fs::write(&new, code.to_string()).expect("own directory");
            fs::rename(new, self.file(id, "exit")).expect("own directory");
        };
        let (reason, ended) = match member.role {
            Role::Talks | Role::TalksApart | Role::Probed => {
                says_code(code);
                ("exited", Ended::Code(code))
            }
            Role::Paused => {
                // Resume first: an immediate exit could precede its answer.
                must("resume", client.resume(id).await);
                says_code(code);
                ("exited", Ended::Code(code))
            }
            Role::Stubborn => {
                let now = Some(Duration::ZERO);
                must("abort", client.abort_with(id, now, AbortWait::None).await);
                ("aborted", Ended::Signal("SIGKILL"))
            }
            Role::Drains => {
                says_code(code);
                ("exited", Ended::Code(5))
            }
            Role::BacksOff => {
                fs::write(self.file(id, "again"), "").expect("own directory");
                must("restart", client.restart(id, None).await);
                self.until_more_than(id, 0).await;
                says_code(0);
                ("exited", Ended::Code(0))
            }
            Role::StopsBySteps | Role::HasSecrets => {
                must("abort", client.abort(id).await);
                let is_stopped = self.file(id, "stopped").exists();
                assert_eq!(is_stopped, member.role == Role::StopsBySteps);
                ("aborted", Ended::Signal("SIGTERM"))
            }
            Role::Listens | Role::Calls => {
                must("close", client.close_input(id, None).await);
                ("exited", Ended::Code(0))
            }
            Role::HasTerminal => {
                must("type", client.type_in(id, "\x04").await);
                ("exited", Ended::Code(0))
            }
        };
        let run = must("wait", client.ended(id).await);
        let what = format!("{:?}, {:?}: {run:?}", member.role, member.after);
        assert_eq!(run.reason(), reason, "{what}");
        match ended {
            Ended::Code(code) => assert_eq!(run.code(), Some(code.into()), "{what}"),
            Ended::Signal(name) => assert_eq!(run.signal().as_deref(), Some(name), "{what}"),
        }
        assert!(run.tree_is_empty(), "{what}");
        let heard = self.hear_whole_output(client, id, &run).await;
        match member.role {
            Role::Listens => {
                let mut wanted = String::new();
                while (wanted.len() as u64) < member.shown {
                    wanted += &piece(wanted.len() as u64);
                }
                assert_eq!(heard.text(), wanted);
            }
            Role::HasTerminal => {
                let mut wanted = String::new();
                for line in 1..=member.shown {
                    let _ = write!(wanted, "typed {line}.\r\ntyped {line}.\r\n");
                }
                assert_eq!(heard.text(), wanted);
            }
            _ => {}
        }
    }

    /// Compares the lines that are kept with those that the run has printed.
    async fn hear_whole_output(&mut self, client: &mut Client, id: &str, run: &pb::Run) -> Heard {
        self.over.push(id.to_owned());
        let heard = must("stream", client.hear_all(id, 0).await);
        let gaps = heard.events.iter();
        let gaps = gaps.filter(|(_, payload)| matches!(payload, pb::event::Payload::Gap(_)));
        assert_eq!(gaps.count(), 0, "{id} has gaps");
        let text = heard.text();
        if !self.file(id, "lines").exists() {
            return heard;
        }
        let mut last = 0;
        for line in text.lines() {
            let number = line
                .strip_prefix("line ")
                .and_then(|n| n.parse::<u64>().ok());
            let number = number.unwrap_or_else(|| panic!("{line:?}"));
            // A command killed between line and tally repeats the line in its next attempt.
            let is_next = number == last + 1 || number == last && run.attempt().number > 1;
            assert!(is_next, "{number} after {last} of {id}");
            last = number;
        }
        let written = self.lines(id);
        assert!(
            (written..=written + 1).contains(&last),
            "{last} of {written}: {run:?}"
        );
        heard
    }
}

enum Ended {
    Code(u8),
    Signal(&'static str),
}

/// A limit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Runtime,
    Pause,
    Grace,
    Backoff,
}

/// A run with a limit of time.
struct Timed {
    limit: Limit,
    id: String,
}

fn exec(script: &str) -> pb::ExecProbe {
    pb::ExecProbe {
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
    }
}

/// Returns what is written at this offset of an input.
fn piece(offset: u64) -> String {
    format!("from {offset} on\n")
}

/// Returns the stations of a run that has ended, with their times in microseconds.
async fn times(client: &mut Client, id: &str) -> Vec<(&'static str, i64)> {
    let mut stream = must("stream", client.events_after(id, 0).await);
    let mut found = Vec::new();
    while let Some(message) = must("stream", stream.message().await) {
        for batch in &message.run_events {
            let base = batch.base_time.as_ref().map_or(0, micros);
            for event in &batch.events {
                let delta = event.time_delta.as_ref();
                let delta = delta.map_or(0, |d| d.seconds * 1_000_000 + i64::from(d.nanos / 1000));
                if let Some(pb::event::Payload::Lifecycle(lifecycle)) = &event.payload
                    && let Some(station) = &lifecycle.station
                {
                    found.push((kennel_tests::client::station_name(station), base + delta));
                }
            }
        }
    }
    found
}
