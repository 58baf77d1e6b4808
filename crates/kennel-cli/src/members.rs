//! Single processes of a run: signals to them, and their tree.

use crate::{
    args::{RunRefs, SelectionArgs, of_enum},
    calls::{self, AbortArgs, standing},
    command, complete,
    each::each,
    failure::Failure,
    link::{Link, new_request_id, print, refused, run_of},
    list,
    selection::for_each,
    sentence, values, words,
};
use clap::{Args, builder::NonEmptyStringValueParser};
use clap_complete::engine::ArgValueCompleter;
use kennel_lifecycle::Signal;
use kennel_proto::pb::{self, SignalTarget, for_each_run_request::Action};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

#[derive(Debug, Args)]
pub struct SignalArgs {
    /// Processes that receive the signal [default: leader]
    #[arg(long, value_name = "WHO", value_parser = of_enum("kennel.v1.SignalTarget", SignalTarget::from_str_name))]
    pub(crate) to: Option<SignalTarget>,
    /// Id of this request: repeated requests with one id send one signal [default: a new id]
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) request_id: Option<String>,
    /// Signal by name or number, such as SIGUSR1, usr1, 10 or SIGRTMIN+3, and runs, in either order; for SIGSTOP use
    /// `pause`
    #[arg(value_names = ["SIGNAL", "RUN"], add = ArgValueCompleter::new(complete::runs), num_args = 1.., required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

impl SignalArgs {
    /// Splits the words into the signal and the runs: the first word is the signal, or else the last one.
    pub(crate) fn split(&self) -> Result<(Signal, &[String]), String> {
        let ends = self.words.split_first().zip(self.words.split_last());
        let Some(((first, behind), (last, before))) = ends else {
            return values::signal("").map(|signal| (signal, &[][..]));
        };
        match values::signal(first) {
            Ok(signal) => Ok((signal, behind)),
            Err(wrong) => match values::signal(last) {
                Ok(signal) => Ok((signal, before)),
                Err(_) => Err(format!("{first:?} is no signal: {wrong}")),
            },
        }
    }
}

#[derive(Debug, Args)]
pub struct KillArgs {
    /// Send this signal to the command, by name or number; -9 and -USR1 are short for it [default: end the run, as `abort` does]
    #[arg(short, long, value_name = "SIGNAL", value_parser = values::signal)]
    pub(crate) signal: Option<Signal>,
    /// List the signals
    #[arg(short, long)]
    pub(crate) list: bool,
    /// Ids of runs, or their beginning or end
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", required_unless_present = "list")]
    pub(crate) runs: Vec<String>,
}

/// Most child runs shown.
const CHILDREN_MAX: usize = 1000;

/// Deepest indentation; deeper processes are listed below it.
const DEPTH_SHOWN_MAX: usize = 32;

pub(crate) async fn signal(link: &Link, args: SignalArgs) -> Result<u8, Failure> {
    let target = args.to.unwrap_or(pb::SignalTarget::Leader);
    let (signal, runs) = args
        .split()
        .map_err(|wrong| Failure::new(wrong).code(crate::USAGE))?;
    if runs.len() > 1 && args.request_id.is_some() {
        let message = "--request-id is of one signal to one run";
        return Err(Failure::new(message).code(crate::USAGE));
    }
    if args.selection.is_given() && runs.is_empty() {
        let action = Action::Signal(pb::SignalRequest {
            request_id: args.request_id.clone().unwrap_or_else(new_request_id),
            signal: signal.to_string(),
            target: target.into(),
            ..pb::SignalRequest::default()
        });
        return for_each(link, &args.selection, action).await;
    }
    if args.selection.is_given() || runs.is_empty() {
        return Err(
            Failure::new("name runs, or select them with -l, -f or --all").code(crate::USAGE),
        );
    }
    let runs = RunRefs {
        runs: runs.to_vec(),
    };
    send(link, &runs, signal, target, args.request_id).await
}

/// `kill`: ends runs, or sends them a signal.
pub(crate) async fn kill(link: &Link, args: KillArgs) -> Result<u8, Failure> {
    // `kill HUP RUN` and `kill RUN 10` must not end the run.
    if let (None, true) = (args.signal, args.runs.len() > 1)
        && let Some(word) = args.runs.iter().find(|word| values::signal(word).is_ok())
    {
        let message = format!("{word} is a signal, not a run");
        let failure = Failure::new(message).code(crate::USAGE);
        return Err(failure.hint(format!("kennel kill -s {word} RUN")));
    }
    match args.signal {
        Some(signal) => {
            let runs = RunRefs { runs: args.runs };
            send(link, &runs, signal, pb::SignalTarget::Leader, None).await
        }
        None => calls::abort(link, AbortArgs::of(args.runs)).await,
    }
}

/// `kill -l`.
pub(crate) fn list_signals() -> Result<(), Failure> {
    let names = (1..=64).filter_map(Signal::from_number);
    let lines = names.map(|signal| format!("{:2}  {signal}\n", signal.number()));
    print(&lines.collect::<String>())
}

async fn send(
    link: &Link,
    runs: &RunRefs,
    signal: Signal,
    target: pb::SignalTarget,
    request_id: Option<String>,
) -> Result<u8, Failure> {
    each(link, runs, async |run_id| {
        let request = pb::SignalRequest {
            run_id,
            request_id: request_id.clone().unwrap_or_else(new_request_id),
            signal: signal.to_string(),
            target: target.into(),
        };
        let response = link.ask(request).await?;
        let run = run_of(response.run.clone())?;
        let shown = link.shown_of(&run, &response, || standing(&run) + &outcomes(&response));
        Ok((shown, 0))
    })
    .await
}

fn outcomes(response: &pb::SignalResponse) -> String {
    let mut text = String::new();
    for target in &response.targets {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", sentence::of("signalTarget", target));
    }
    if response.unlisted_targets > 0 {
        let _ = writeln!(text, "... and {} more", response.unlisted_targets);
    }
    if response.targets.is_empty() && !response.repeated_request {
        text.push_str("no process was there\n");
    }
    text
}

pub(crate) async fn tree(link: &Link, runs: RunRefs) -> Result<u8, Failure> {
    each(link, &runs, async |run_id| {
        let response = link.ask(pb::GetTreeRequest { run_id }).await?;
        let run = run_of(response.run.clone())?;
        let children = pb::RunFilter {
            parent_run_id: run.run_id.clone(),
            ..pb::RunFilter::default()
        };
        // The keeper lists processes, the database child runs: without the database, processes are still shown.
        let children = list::all(&link.connection, children, CHILDREN_MAX).await;
        let children = match children.map_err(refused) {
            Ok(children) => child_runs(&children.noting_others()),
            Err(failure) => format!("child runs are not known\n{failure}\n"),
        };
        let shown = link.shown_of(&run, &response, || {
            standing(&run) + &render(&response) + &children
        });
        Ok((shown, 0))
    })
    .await
}

/// Formats one line per child run of this one, the newest first.
fn child_runs(runs: &[pb::Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let (state, command) = (words::state(run.state()), command::or_dash(run));
        let _ = writeln!(text, "run {} {state} {command}", run.run_id);
    }
    text
}

/// Formats one line per process below its parent, with two spaces more.
pub(super) fn render(response: &pb::GetTreeResponse) -> String {
    let mut text = String::new();
    let listed: BTreeSet<i32> = response.processes.iter().map(|p| p.pid).collect();
    let mut below: BTreeMap<i32, Vec<&pb::TreeProcess>> = BTreeMap::new();
    let mut open: Vec<(usize, &pb::TreeProcess)> = Vec::new();
    for process in &response.processes {
        if listed.contains(&process.parent_pid) {
            below.entry(process.parent_pid).or_default().push(process);
        } else {
            open.push((0, process));
        }
    }
    open.reverse();
    while let Some((depth, process)) = open.pop() {
        let indent = "  ".repeat(depth.min(DEPTH_SHOWN_MAX));
        let _ = writeln!(text, "{indent}{}", line(process));
        let children = below.remove(&process.pid).unwrap_or_default();
        open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
    }
    // Parents changed during the scan, so that some processes are below each other.
    for process in below.into_values().flatten() {
        let _ = writeln!(text, "{}", line(process));
    }
    if response.unlisted_processes > 0 {
        let _ = writeln!(text, "... and {} more", response.unlisted_processes);
    }
    text
}

fn line(process: &pb::TreeProcess) -> String {
    let mut line = format!(
        "{} {} {}",
        process.pid,
        process.state,
        size(process.rss_bytes)
    );
    if process.pid == process.session_id {
        line.push_str(" session");
    } else if process.pid == process.process_group_id {
        line.push_str(" group");
    }
    let ports = process.listening_tcp_ports.iter();
    let ports: Vec<String> = ports.map(|port| format!(":{port}")).collect();
    if !ports.is_empty() {
        let more = values::only_if(process.listening_tcp_ports_truncated, ",...");
        let _ = write!(line, " listens {}{more}", ports.join(","));
    }
    let holds = process.held_by();
    let holds: Vec<&str> = holds.map(|hold| words::word(hold.as_str_name())).collect();
    let _ = write!(line, " [{}] ", holds.join(","));
    if process.args.is_empty() {
        // A process chooses its name, line feeds and escapes included.
        let _ = write!(line, "({})", values::command_line([process.name.as_str()]));
    } else {
        line.push_str(&values::command_line(
            process.args.iter().map(String::as_str),
        ));
    }
    if process.args_truncated {
        line.push_str("...");
    }
    line
}

fn size(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    if bytes >= MIB {
        format!("{}M", bytes / MIB)
    } else {
        format!("{}K", bytes / KIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent_pid: i32) -> pb::TreeProcess {
        pb::TreeProcess {
            pid,
            parent_pid,
            process_group_id: 1,
            session_id: 1,
            state: "S".into(),
            rss_bytes: 2 * 1024 * 1024,
            args: vec!["a".into(), "b c".into()],
            held_by: vec![pb::ProcessHold::Cgroup.into(), pb::ProcessHold::Shim.into()],
            ..pb::TreeProcess::default()
        }
    }

    // promise: C-9
    #[test]
    fn tree_is_indented_and_complete() {
        let apart = pb::TreeProcess {
            session_id: 12,
            listening_tcp_ports: vec![80, 443],
            ..process(12, 5)
        };
        let zombie = pb::TreeProcess {
            args: Vec::new(),
            name: "z".into(),
            state: "Z".into(),
            rss_bytes: 0,
            ..process(13, 11)
        };
        // Two processes seen as each other's children.
        let (one, other) = (process(20, 21), process(21, 20));
        let response = pb::GetTreeResponse {
            run: None,
            processes: vec![process(10, 5), process(11, 10), apart, zombie, one, other],
            unlisted_processes: 2,
        };
        let mut plain = String::new();
        for part in [
            "10 S 2M [cgroup,shim] a 'b c'\n",
            "  11 S 2M [cgroup,shim] a 'b c'\n",
            "    13 Z 0K [cgroup,shim] (z)\n",
            "12 S 2M session listens :80,:443 [cgroup,shim] a 'b c'\n",
            "21 S 2M [cgroup,shim] a 'b c'\n",
            "20 S 2M [cgroup,shim] a 'b c'\n",
            "... and 2 more\n",
        ] {
            plain.push_str(part);
        }
        assert_eq!(render(&response), plain);
        let forged = pb::TreeProcess {
            args: Vec::new(),
            name: "\u{1b}[2J\n".into(),
            ..process(14, 5)
        };
        assert!(line(&forged).ends_with(r"($'\u001b[2J\n')"), "{forged:?}");
    }

    #[test]
    fn each_signal_outcome_is_printed() {
        let target = |pid, outcome: pb::SignalOutcome, errno| pb::SignalledProcess {
            pid,
            start_ticks: 1,
            outcome: outcome.into(),
            error_number: errno,
        };
        let mut response = pb::SignalResponse {
            targets: vec![
                target(1, pb::SignalOutcome::Delivered, None),
                target(2, pb::SignalOutcome::Gone, None),
                target(3, pb::SignalOutcome::Failed, Some(1)),
            ],
            ..pb::SignalResponse::default()
        };
        let text = outcomes(&response);
        assert!(
            text.starts_with("1 delivered\n2 gone\n3 failed: "),
            "{text}"
        );
        response.targets.clear();
        assert_eq!(outcomes(&response), "no process was there\n");
    }
}
