//! Runs as text for people. Pure: takes messages and the time, returns text.

use super::{
    command, limits, list, secrets,
    table::{self, Cell, Colour},
    usage,
    view::View,
    words,
};
use crate::{retention, terminal_text, values};
use kennel_proto::pb;
use std::time::{Duration, SystemTime};

/// Widest command in the table of runs; a longer one is cut.
const COMMAND_COLUMN_WIDTH_MAX: usize = 60;

/// Formats one line per run, below a heading; each id is indented by so many steps. `nodes`: the nodes of the database,
/// where runs of several may be listed.
pub(crate) fn table(
    runs: &[pb::Run],
    (indents, nodes): (&[usize], &[pb::Node]),
    now: SystemTime,
    wide: bool,
    in_colour: bool,
) -> String {
    let mut heading = vec!["RUN", "STATE", "KIND", "AGE", "PID"];
    if !nodes.is_empty() {
        heading.insert(1, "NODE");
    }
    if wide {
        heading.extend(["READY", "ACTIVITY", "ATTEMPT", "EXIT", "OWNER", "LABELS"]);
    }
    heading.push("COMMAND");
    let with_node = |(run, indent): (&pb::Run, &usize)| {
        let mut row = row(run, *indent, now, wide);
        if !nodes.is_empty() {
            let node = nodes.iter().find(|node| node.node_id == run.node_id);
            let name = node.map_or(&run.node_id, |node| &node.node_name);
            row.insert(1, Cell::from(name));
        }
        row
    };
    let rows = runs.iter().zip(indents).map(with_node).collect();
    table::table(&heading, rows, in_colour)
}

fn row(run: &pb::Run, indent: usize, now: SystemTime, wide: bool) -> Vec<Cell> {
    let created = run.create_time.and_then(|t| SystemTime::try_from(t).ok());
    let age = created.map(|t| values::age(now.duration_since(t).unwrap_or_default()));
    let attempt = run.current_attempt.as_ref();
    let pid = command::live_pid(run);
    let mut row = vec![
        Cell::from(format!("{}{}", "  ".repeat(indent), run.run_id)),
        state_cell(run, now),
        Cell::from(words::kind(run.kind())),
        Cell::or_dash(age),
        Cell::or_dash(pid),
    ];
    if wide {
        let mut labels: Vec<_> = run.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        labels.sort();
        row.extend([
            Cell::or_dash(ready(run)),
            Cell::from(words::activity(run.activity())),
            Cell::or_dash(attempt.map(|a| a.number)),
            Cell::or_dash(attempt.and_then(|a| a.exit.as_ref()).map(words::exit)),
            Cell::from(&run.owner),
            Cell::or_dash((!labels.is_empty()).then(|| labels.join(","))),
        ]);
        row.push(Cell::from(command::or_dash(run)));
    } else {
        row.push(Cell::from(table::cut(
            &command::or_dash(run),
            COMMAND_COLUMN_WIDTH_MAX,
        )));
    }
    row
}

/// Returns whether a live run is ready, where that is more than that its command runs.
pub(crate) fn ready(run: &pb::Run) -> Option<&'static str> {
    let says_ready = run.spec.as_ref().is_some_and(|spec| {
        let is_ready =
            |rule: &pb::OutputRule| matches!(rule.action, Some(pb::output_rule::Action::Ready(_)));
        spec.readiness.is_some() || spec.output_rules.iter().any(is_ready)
    });
    let word = if run.ready_time.is_some() {
        "yes"
    } else {
        "no"
    };
    (says_ready && run.end_time.is_none()).then_some(word)
}

/// Returns the state of a run with what it waits for, in its colour.
pub(crate) fn state_cell(run: &pb::Run, now: SystemTime) -> Cell {
    Cell::coloured(state(run, now), colour(run.state()))
}

fn colour(state: pb::RunState) -> Option<Colour> {
    match state {
        pb::RunState::Running => Some(Colour::Good),
        pb::RunState::Starting
        | pb::RunState::Paused
        | pb::RunState::Stopping
        | pb::RunState::Backoff => Some(Colour::Passing),
        pb::RunState::Failed | pb::RunState::Lost => Some(Colour::Bad),
        pb::RunState::Succeeded | pb::RunState::Cancelled | pb::RunState::Unspecified => None,
    }
}

/// Formats the state, with what the run waits for. For a run whose node has no lease it is its last known state, for a
/// pinned one that with which its node leaves it.
pub(crate) fn state(run: &pb::Run, now: SystemTime) -> String {
    let word = words::state(run.state());
    let node = run.other_node.as_ref().filter(|_| run.end_time.is_none());
    if node.is_some_and(|node| node.reachability() == pb::NodeReachability::Unreachable) {
        return format!("UNREACHABLE ({word})");
    }
    if run.pinned.is_some() {
        return format!("PINNED ({word})");
    }
    match waits_for(run, now) {
        Some(wait) => format!("{word} ({wait})"),
        None => word,
    }
}

/// Formats what the run waits for, in one or two words.
pub(crate) fn waits_for(run: &pb::Run, now: SystemTime) -> Option<String> {
    let due = run
        .next_restart_time
        .and_then(|t| SystemTime::try_from(t).ok());
    Some(match run.wait() {
        pb::Wait::Unspecified => return None,
        pb::Wait::Input => "awaiting input".to_owned(),
        pb::Wait::Ready => "not ready".to_owned(),
        pb::Wait::Attempt => {
            let left = due?.duration_since(now).unwrap_or_default();
            format!("next in {}", values::age(left))
        }
        pb::Wait::Restart => "held".to_owned(),
    })
}

/// Formats everything known of a run, one fact per line.
pub(crate) fn run(run: &pb::Run) -> String {
    let attempt = run.current_attempt.clone().unwrap_or_default();
    let mut view = View::default();
    view.line("run", &run.run_id);
    view.line("state", words::state(run.state()));
    view.some("next attempt", run.next_restart_time);
    if let Some(node) = &run.other_node {
        let known = if node.node_name.is_empty() {
            format!("{}, which was removed", node.node_id)
        } else {
            format!("{} at {}", node.node_name, node.address)
        };
        view.line("on another node", known);
        if node.reachability() == pb::NodeReachability::Unreachable {
            view.some("node unreachable since", node.unreachable_since);
        }
    }
    view.some("stop left", run.left_stop.as_ref().map(words::left_stop));
    view.some("pinned by", run.pinned.as_ref().map(words::pinned));
    if attempt.number > 1 || run.consecutive_restarts > 0 {
        view.line("attempt", attempt.number);
        view.line("restarts in a row", run.consecutive_restarts);
    }
    if run.desired() == pb::DesiredState::Stop && run.end_reason.is_none() {
        view.line("wanted", "that it end");
    }
    view.some("end", run.end_reason.as_ref().map(words::end_reason));
    view.some("exit", attempt.exit.as_ref().map(words::exit));
    view.some("tree", run.tree_verdict.as_ref().map(words::verdict));
    if attempt.streams_end() != pb::StreamsEnd::Unspecified {
        view.line("output", words::word(attempt.streams_end().as_str_name()));
    }
    let removed = run.output_removed.as_ref();
    view.some("output is", removed.map(retention::removed));
    view.line("command", command::or_dash(run));
    view.some("cwd", command::shown_directory(run));
    view.line("kind", words::kind(run.kind()));
    view.some("terminal", run.terminal_size.map(words::terminal_size));
    let privileges = run.spec.as_ref().and_then(|spec| spec.privileges.as_ref());
    view.some(
        "user",
        privileges.and_then(|p| p.user.as_ref()).map(words::user),
    );
    if let Some(privileges) = privileges {
        for held in words::held_back(privileges) {
            view.line("privileges", held);
        }
    }
    view.line("owner", &run.owner);
    let mut labels: Vec<_> = run.labels.iter().collect();
    labels.sort();
    for (key, value) in labels {
        view.line("label", format!("{key}={value}"));
    }
    add_reports(&mut view, run);
    process(&mut view, run, &attempt);
    let used = attempt.usage.as_deref().map(usage::lines);
    for (what, used) in used.unwrap_or_default() {
        view.line(what, used);
    }
    if let Some(certificate) = &attempt.certificate {
        certified(&mut view, certificate);
    }
    let grace = run.grace.and_then(|g| Duration::try_from(g).ok());
    view.some("grace", grace.map(|g| format!("{g:?}")));
    let timeouts = run.spec.as_ref().and_then(|s| s.timeouts);
    let max_runtime = timeouts.and_then(|t| Duration::try_from(t.max_runtime?).ok());
    view.some("timeout", max_runtime.map(|t| format!("{t:?}")));
    let inactivity = timeouts.and_then(|t| Duration::try_from(t.inactivity?).ok());
    view.some("inactivity", inactivity.map(|t| format!("{t:?}")));
    for limit in &run.time_limits {
        view.line("time limit", words::time_limit(limit));
    }
    let limits = run.spec.as_ref().and_then(|s| s.limits.as_ref());
    for limit in limits.iter().flat_map(|limits| limits::words(limits)) {
        view.line("limit", limit);
    }
    let pause = run.spec.as_ref().and_then(|s| s.pause);
    view.some("max pause", pause.and_then(words::max_pause));
    let policy = run.spec.as_ref().and_then(|s| s.on_leader_exit);
    view.some("on leader exit", policy.and_then(words::on_leader_exit));
    let kept = run.spec.as_ref().and_then(|s| s.output);
    view.some("output kept", kept.and_then(words::kept_output));
    add_times(&mut view, run, &attempt);
    if let Some(parent) = list::parent_of(run) {
        view.line("parent", parent);
    }
    if let Some(spec) = &run.spec {
        add_grants(&mut view, spec);
    }
    if !run.restarted_from.is_empty() {
        view.line("restarted from", &run.restarted_from);
    }
    if !run.trace_parent.is_empty() {
        view.line("traceparent", &run.trace_parent);
    }
    if !run.run_trace_parent.is_empty() {
        view.line("own traceparent", &run.run_trace_parent);
    }
    view.line("node", &run.node_id);
    view.text
}

/// Formats the times of the run and of its present attempt.
fn add_times(view: &mut View, run: &pb::Run, attempt: &pb::Attempt) {
    view.some("created", run.create_time);
    view.some("started", attempt.start_time);
    view.some("timeout due", run.deadline_time);
    view.some("pause over", run.pause_expires_at);
    if run.end_time.is_none() {
        view.some("SIGKILL due", run.stop_deadline_time);
    }
    view.some("leader exited", attempt.leader_exited_time);
    view.some("streams closed", attempt.streams_closed_time);
    view.some("tree empty", attempt.tree_empty_time);
    view.some("ended", run.end_time);
}

/// Formats what the run may call, and its secrets.
fn add_grants(view: &mut View, spec: &pb::RunSpec) {
    view.some("may call", words::api_access(spec.api_access()));
    for secret in &spec.secrets {
        view.line("secret", secrets::line(secret));
    }
}

/// Formats the reports of clients, output and the command itself.
fn add_reports(view: &mut View, run: &pb::Run) {
    view.some("ready", ready(run));
    view.some("ready since", run.ready_time);
    if !run.ready_by.is_empty() {
        view.line("ready by", &run.ready_by);
    }
    if run.activity() != pb::Activity::Unspecified {
        view.line("activity", words::activity(run.activity()));
    }
    if !run.status.is_empty() {
        view.line("status", terminal_text::one_line(&run.status));
    }
    if run.is_ending_itself {
        view.line("ending", "by itself, as the command reports");
    }
    for off in &run.switched_off_rules {
        let why = words::word(off.reason().as_str_name());
        view.line("rule off", format!("{}: {why}", off.rule));
    }
    for (key, value) in &run.annotations {
        view.line("annotation", format!("{key}={value}"));
    }
}

fn process(view: &mut View, run: &pb::Run, attempt: &pb::Attempt) {
    if attempt.pid == 0 {
        return;
    }
    let is_gone = command::live_pid(run).is_none();
    let process = format!(
        "{}pid {}, group {}, session {}, shim {}",
        if is_gone { "was " } else { "" },
        attempt.pid,
        attempt.process_group_id,
        attempt.session_id,
        attempt.shim_pid
    );
    view.line("process", process);
    view.line("containment", words::containment(run.containment()));
    let identity = attempt.identity.as_ref();
    view.some("cgroup", identity.and_then(|i| i.cgroup_path.as_ref()));
    for gap in run.coverage.iter().flat_map(|c| &c.gaps) {
        view.line("not covered", &gap.text);
    }
}

/// Formats the actions that ended a run. The proof of its end is beside its state.
fn certified(view: &mut View, certificate: &pb::StopCertificate) {
    for step in &certificate.steps {
        let at = step.time.map_or_else(String::new, |at| format!("{at} "));
        view.line("signal", format!("{at}{}", words::stop_step(step)));
    }
    for input in &certificate.inputs {
        view.line("stop step", words::stop_input(input));
    }
    for command in &certificate.commands {
        view.line("stop step", words::stop_command(command));
    }
    if certificate.steps_unlisted > 0 {
        let more = format!("and {} more rounds", certificate.steps_unlisted);
        view.line("signal", more);
    }
    if !certificate.leftovers.is_empty() {
        let left = words::leftovers(&certificate.leftovers, certificate.leftovers_unlisted);
        view.line("left by leader", left);
    }
    view.some("looked last", certificate.census_time);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> pb::Run {
        pb::Run {
            run_id: "01JD0000000000000000000000".to_owned(),
            state: pb::RunState::Running.into(),
            kind: pb::RunKind::Job.into(),
            spec: Some(pb::RunSpec {
                command: Some(pb::run_spec::Command::Argv(pb::Argv {
                    args: ["sh", "-c", "sleep 60"].map(str::to_owned).to_vec(),
                    ..pb::Argv::default()
                })),
                ..pb::RunSpec::default()
            }),
            current_attempt: Some(pb::Attempt {
                pid: 4242,
                ..pb::Attempt::default()
            }),
            create_time: Some(SystemTime::UNIX_EPOCH.into()),
            ..pb::Run::default()
        }
    }

    #[test]
    fn pid_of_an_ended_command_is_not_listed() {
        let mut run = sample();
        let attempt = run.current_attempt.as_mut().expect("it has one");
        attempt.leader_exited_time = Some(SystemTime::UNIX_EPOCH.into());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        let table = super::table(&[run], (&[0], &[]), now, false, false);
        assert!(
            !table.contains("4242") && table.contains("1m30s  -"),
            "{table}"
        );
    }

    #[test]
    fn table_has_heading_and_one_line_per_run() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        let table = super::table(&[sample()], (&[0], &[]), now, false, false);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "RUN                         STATE    KIND  AGE    PID   COMMAND",
                "01JD0000000000000000000000  RUNNING  job   1m30s  4242  sh -c 'sleep 60'",
            ]
        );
    }

    #[test]
    fn limits_and_end_of_pause_are_printed() {
        let mut run = sample();
        run.spec.as_mut().expect("it has one").limits = Some(pb::RunLimits {
            nice: Some(5),
            pids_max: Some(100),
            from_node: vec!["pids-max".to_owned()],
            ..pb::RunLimits::default()
        });
        run.pause_expires_at = Some(SystemTime::UNIX_EPOCH.into());
        let reported = super::run(&run);
        for line in [
            "limit           nice 5\n",
            "limit           pids-max 100 (from the node)\n",
            "pause over      1970-01-01T00:00:00Z\n",
        ] {
            assert!(reported.contains(line), "{reported}");
        }
    }

    #[test]
    fn treatment_of_rest_is_printed_unless_stopped() {
        let reported = |action: pb::LeaderExitAction, secs: Option<u64>| {
            let mut run = sample();
            let spec = run.spec.as_mut().expect("it has one");
            spec.on_leader_exit = Some(pb::LeaderExitPolicy {
                action: action.into(),
                drain_timeout: secs
                    .map(Duration::from_secs)
                    .and_then(|span| span.try_into().ok()),
            });
            super::run(&run)
        };
        assert!(!reported(pb::LeaderExitAction::Stop, None).contains("on leader exit"));
        let keep = reported(pb::LeaderExitAction::Keep, None);
        assert!(
            keep.contains("on leader exit  the rest is kept\n"),
            "{keep}"
        );
        let drain = reported(pb::LeaderExitAction::Drain, Some(90));
        assert!(
            drain.contains("the rest may finish, for at most 90s\n"),
            "{drain}"
        );
    }

    #[test]
    fn long_command_is_cut_in_table_only() {
        let mut long = sample();
        let words = vec!["word".to_owned(); 50];
        long.spec = Some(pb::RunSpec {
            command: Some(pb::run_spec::Command::Argv(pb::Argv {
                args: words,
                ..pb::Argv::default()
            })),
            ..pb::RunSpec::default()
        });
        let row = super::table(
            std::slice::from_ref(&long),
            (&[0], &[]),
            SystemTime::UNIX_EPOCH,
            false,
            false,
        );
        assert!(row.trim_end().ends_with("word wo..."), "{row}");
        assert!(run(&long).contains(&["word"; 50].join(" ")));
    }
}
