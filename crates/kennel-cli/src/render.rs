//! Runs as text for people. Pure: takes messages and the time, returns text.

use super::{
    command, limits,
    sentence::{self, Fields},
    table::{self, Cell, Colour},
    view::{DetailView, NAME_WIDTH},
    words,
};
use crate::values;
use kennel_proto::{fields::ToFields as _, json::ToJson as _, pb};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::SystemTime};

/// Columns of the table of runs, and whether only the wide one has them.
const COLUMNS: [(&str, bool); 14] = [
    ("RUN", false),
    ("NAME", false),
    ("NODE", false),
    ("STATE", false),
    ("KIND", true),
    ("AGE", false),
    ("PID", false),
    ("READY", true),
    ("ACTIVITY", true),
    ("ATTEMPT", true),
    ("EXIT", false),
    ("OWNER", true),
    ("LABELS", false),
    ("COMMAND", false),
];
/// Shortest id and widest labels of a table that fits a terminal.
const ID_WIDTH_MIN: usize = 12;
const LABELS_WIDTH_MAX: usize = 24;

/// Lines about a run.
const LINES: &str = include_str!("get.txt");

/// Look of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TableLayout {
    /// Whether it has all columns.
    pub(crate) wide: bool,
    /// Width of the terminal that it has to fit; absent: its values are whole.
    pub(crate) width: Option<usize>,
    pub(crate) in_colour: bool,
}

/// Formats one line per run, below a heading; each id is indented by so many steps. `nodes`: the nodes of the database,
/// where runs of several may be listed. NODE, NAME, EXIT and LABELS are there where a run has one.
pub(crate) fn table(
    runs: &[pb::Run],
    (indents, nodes): (&[usize], &[pb::Node]),
    now: SystemTime,
    look: TableLayout,
) -> String {
    let id_width = look.width.map_or(usize::MAX, |_| id_width(runs));
    let rows = runs.iter().zip(indents);
    let rows = rows.map(|(run, indent)| row(run, (*indent, id_width), nodes, now));
    let mut rows: Vec<Vec<Cell>> = rows.collect();
    let is_shown = |column: usize| match COLUMNS[column] {
        ("NODE", _) => !nodes.is_empty(),
        ("NAME" | "EXIT" | "LABELS", _) => {
            look.wide || rows.iter().any(|row| row[column].is_said())
        }
        (_, is_wide) => look.wide || !is_wide,
    };
    let shown: Vec<usize> = (0..COLUMNS.len())
        .filter(|column| is_shown(*column))
        .collect();
    for row in &mut rows {
        let mut cells: Vec<Option<Cell>> = std::mem::take(row).into_iter().map(Some).collect();
        *row = shown
            .iter()
            .filter_map(|column| cells[*column].take())
            .collect();
    }
    let heading: Vec<&str> = shown.iter().map(|column| COLUMNS[*column].0).collect();
    table::fitting(&heading, rows, look.width, look.in_colour)
}

/// Returns the length at which all ids differ.
fn id_width(runs: &[pb::Run]) -> usize {
    let differ = |width: &usize| {
        let ids = runs
            .iter()
            .map(|run| run.run_id.get(..*width).unwrap_or(&run.run_id));
        ids.collect::<BTreeSet<_>>().len() == runs.len()
    };
    (ID_WIDTH_MIN..26).find(differ).unwrap_or(usize::MAX)
}

fn name(run: &pb::Run) -> Option<&String> {
    let name = run.spec.as_ref().map(|spec| &spec.name);
    name.filter(|name| !name.is_empty())
}

/// Returns a cell for each column.
fn row(
    run: &pb::Run,
    (indent, id_width): (usize, usize),
    nodes: &[pb::Node],
    now: SystemTime,
) -> Vec<Cell> {
    let created = run.create_time.and_then(|t| SystemTime::try_from(t).ok());
    let age = created.map(|t| values::age(now.duration_since(t).unwrap_or_default()));
    let attempt = run.current_attempt.as_ref();
    let node = nodes.iter().find(|node| node.node_id == run.node_id);
    let labels: Vec<_> = run.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let labels = (!labels.is_empty()).then(|| labels.join(","));
    let is_cut = id_width < usize::MAX;
    let id = run.run_id.get(..id_width).unwrap_or(&run.run_id);
    vec![
        Cell::from(format!("{}{id}", "  ".repeat(indent))),
        Cell::or_dash(name(run)),
        Cell::from(node.map_or(&run.node_id, |node| &node.node_name)),
        state_cell(run, now),
        Cell::from(words::kind(run.kind())),
        Cell::or_dash(age),
        Cell::or_dash(command::live_pid(run)),
        Cell::or_dash(ready(run)),
        Cell::from(sentence::activity(run.activity())),
        Cell::or_dash(attempt.map(|a| a.number)),
        Cell::or_dash(attempt.and_then(|a| a.exit.as_ref()).map(sentence::exit)),
        Cell::from(&run.owner),
        Cell::or_dash(labels.map(|all| {
            if is_cut {
                table::cut(&all, LABELS_WIDTH_MAX)
            } else {
                all
            }
        })),
        Cell::from(command::or_dash(run)),
    ]
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
    let spec = run.spec.clone().unwrap_or_default();
    let attempt = run.current_attempt.clone().unwrap_or_default();
    let user = spec.privileges.and_then(|privileges| privileges.user);
    let mut fields = run.to_fields();
    if attempt.pid == 0 {
        fields["coverage"].take();
    }
    let more = json!({
        "command": command::or_dash(run),
        "cwd": command::shown_directory(run).unwrap_or_default(),
        "isLive": command::live_pid(run).is_some(),
        "limits": spec.limits.as_ref().map(limits::words).unwrap_or_default(),
        "ready": ready(run).unwrap_or_default(),
        "umask": spec.umask.map_or_else(String::new, |mask| format!("{mask:03o}")),
        "user": user.as_ref().map(words::user).unwrap_or_default(),
        "wasRestarted": attempt.number > 1 || run.consecutive_restarts > 0,
    });
    let mut view = DetailView::new(NAME_WIDTH);
    view.lines(LINES, &Fields::of(&more).inner(&fields));
    let json = serde_json::from_str(&run.to_json()).unwrap_or_default();
    add_others(&mut view, "", &json);
    view.text
}

/// Adds all other fields, those of a later contract, under their paths.
fn add_others(view: &mut DetailView, before: &str, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        let path = format!("{before}{name}");
        if matches!(&*path, "spec" | "currentAttempt") {
            add_others(view, &format!("{path}."), value);
        } else if !is_named(&path) {
            view.line(&path, value);
        }
    }
}

/// Whether one of the lines is about this field.
fn is_named(path: &str) -> bool {
    let mut named = LINES.split(|c: char| c != '.' && !c.is_alphanumeric());
    named.any(|named| {
        let below = named.strip_prefix(path);
        below.is_some_and(|below| below.is_empty() || below.starts_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sentence::tests::json_name;
    use std::time::Duration;

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

    // promise: RW-167
    #[test]
    fn pid_of_an_ended_command_is_not_listed() {
        let mut run = sample();
        let attempt = run.current_attempt.as_mut().expect("it has one");
        attempt.leader_exited_time = Some(SystemTime::UNIX_EPOCH.into());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        let table = super::table(&[run], (&[0], &[]), now, TableLayout::default());
        assert!(
            !table.contains("4242") && table.contains("1m30s  -"),
            "{table}"
        );
    }

    // promise: C-69
    #[test]
    fn run_fields_without_own_line_are_printed() {
        let fields = |message: &str, before: &str| {
            let own = kennel_proto::names::fields(message).iter();
            let own = own.filter(|(path, _)| !path.contains('.'));
            own.map(|(path, _)| format!("{before}{path}"))
                .collect::<Vec<_>>()
        };
        let all = [
            fields("kennel.v1.Run", ""),
            fields("kennel.v1.RunSpec", "spec."),
            fields("kennel.v1.Attempt", "currentAttempt."),
        ];
        let unnamed = all.concat().into_iter();
        let unnamed = unnamed.filter(|path| !is_named(&json_name(path)));
        assert_eq!(unnamed.collect::<Vec<_>>(), [""; 0]);
        let mut view = DetailView::new(NAME_WIDTH);
        let later = serde_json::json!({"runId": "x", "note": "n", "spec": {"kind": 1, "sort": 2}});
        add_others(&mut view, "", &later);
        assert_eq!(view.text, "note            \"n\"\nspec.sort       2\n");
    }

    #[test]
    fn table_has_heading_and_one_line_per_run() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        let table = super::table(&[sample()], (&[0], &[]), now, TableLayout::default());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "RUN                         STATE    AGE    PID   COMMAND",
                "01JD0000000000000000000000  RUNNING  1m30s  4242  sh -c 'sleep 60'",
            ]
        );
    }

    // promise: C-21
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
    fn leader_exit_policy_is_printed_unless_default() {
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

    // promise: C-69
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
            TableLayout {
                width: Some(80),
                ..TableLayout::default()
            },
        );
        assert!(row.lines().all(|line| line.len() <= 80), "{row}");
        assert!(row.trim_end().ends_with("..."), "{row}");
        assert!(run(&long).contains(&["word"; 50].join(" ")));
    }

    #[test]
    fn only_known_counters_of_usage_are_printed() {
        let lines = |usage: pb::Usage| {
            let mut run = sample();
            let attempt = run.current_attempt.get_or_insert_default();
            attempt.usage = Some(Box::new(usage));
            super::run(&run)
        };
        let none = lines(pb::Usage::default());
        let span = |millis| Duration::from_millis(millis).try_into().ok();
        let ended = pb::Usage {
            cpu_user_time: span(1500),
            cpu_system_time: span(0),
            cpu_throttled_time: span(0),
            memory_peak_bytes: Some(5 << 20),
            memory_kills: Some(0),
            io_read_bytes: Some(0),
            io_written_bytes: Some(2048),
            ..pb::Usage::default()
        };
        let expected = "\ncpu used        1.5s user, 0ns system\nmemory used     at most 5.0M\n\
            disk used       0 read, 2.0K written\ncreated  ";
        assert!(lines(ended).contains(expected));
        assert!(
            !none.contains(" used ") && !none.contains("tasks ") && !none.contains("pressure ")
        );
        let live = pb::Usage {
            cpu_throttled_time: span(20),
            memory_bytes: Some(1 << 20),
            memory_kills: Some(2),
            pids: Some(3),
            pids_peak: Some(9),
            memory_pressure: Some(pb::Pressure {
                some: Some(pb::Stall {
                    avg10_percent: 12.05,
                    total_time: span(77),
                }),
                full: None,
            }),
            ..pb::Usage::default()
        };
        let expected = "\ncpu used        20ms throttled\nmemory used     1.0M, 2 killed for lack of it\n\
            tasks           3, at most 9\npressure        memory 12.05%\ncreated  ";
        assert!(lines(live).contains(expected));
    }
}
