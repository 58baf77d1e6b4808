//! `inbox` and `answer`: the runs that wait for a person, what they ask, and the answer to a question.

use crate::{
    args::{FilterArgs, Format, LabelArgs, RunRef},
    failure::Failure,
    link::{Link, new_request_id, print_exact, run_of},
    list::all,
    table::{Cell, fitting},
    values, words,
};
use clap::Args;
use kennel_linux::own_terminal;
use kennel_proto::pb;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, SystemTime},
};

#[derive(Debug, Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Answer, written with an end of line; without it, a line of standard input, hidden where the run's terminal hides it
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Number of the question [default: the only one]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) question: Option<u64>,
    /// Write the answer as it is, without an end of line
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub struct InboxArgs {
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Look each second, and print what has changed, until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Interval of the looks of `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Prints the runs that wait for input, the oldest question first.
pub(crate) async fn inbox(link: &Link, args: InboxArgs) -> Result<(), Failure> {
    let mut filter = args.filters.with(&args.labels);
    filter.waits.push(pb::Wait::Input.into());
    let is_table = matches!(link.format, Format::Text | Format::Wide);
    let is_screen = args.watch && is_table && io::stdout().is_terminal();
    let mut before = None;
    loop {
        let listed = all(&link.connection, filter.clone(), usize::MAX).await;
        let mut runs = listed.map_err(super::link::refused)?.noting_others();
        runs.sort_by_key(|run| {
            let since = run.questions.first().and_then(|first| first.since_time);
            since.map(|at| (at.seconds, at.nanos))
        });
        let asked = runs.iter();
        let asked = asked.map(|run| (run.run_id.clone(), run.questions.clone()));
        let asked = Some(asked.collect::<Vec<_>>());
        if is_screen {
            // Shown ages also change.
            print_exact(&format!("\x1b[H\x1b[2J{}", table(&runs)))?;
        } else if asked != before {
            match link.format {
                Format::Name => {
                    let ids = runs.iter().map(|run| format!("{}\n", run.run_id));
                    print_exact(&ids.collect::<String>())?;
                }
                _ => link.print_all(&runs, || table(&runs))?,
            }
        }
        if !args.watch {
            return Ok(());
        }
        before = asked;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn table(runs: &[pb::Run]) -> String {
    let now = SystemTime::now();
    let row = |run: &pb::Run, question: Option<&pb::Question>| {
        let name = run.spec.as_ref().map(|spec| spec.name.as_str());
        let name = name.filter(|name| !name.is_empty()).unwrap_or(&run.run_id);
        let waits = question.and_then(|question| question.since_time);
        let waits = waits.and_then(|since| now.duration_since(since.try_into().ok()?).ok());
        vec![
            Cell::from(name),
            Cell::or_dash(question.map(|question| question.number)),
            Cell::or_dash(waits.map(values::age)),
            Cell::from(question.map_or("-", |question| &question.text)),
        ]
    };
    let rows = runs.iter().flat_map(|run| {
        let asked = run
            .questions
            .iter()
            .map(|question| row(run, Some(question)));
        // A run without questions waits by its activity.
        let silent = run.questions.is_empty().then(|| row(run, None));
        asked.chain(silent)
    });
    let width = io::stdout().is_terminal().then(own_terminal::size);
    let width = width.flatten().map(|size| usize::from(size.cols));
    fitting(
        &["RUN", "NO", "WAITS", "QUESTION"],
        rows.collect(),
        width,
        false,
    )
}

/// Answers a question of a run, if it still waits.
pub(crate) async fn answer(link: &Link, args: AnswerArgs) -> Result<(), Failure> {
    let run_id = link.run_id(&args.run.run).await?;
    let run = run_of(link.ask(pb::GetRunRequest { run_id }).await?.run)?;
    let question = match (args.question, &run.questions[..]) {
        (Some(number), asked) => asked.iter().find(|question| question.number == number),
        (None, [question]) => Some(question),
        (None, []) => None,
        (None, several) => {
            let asked = several
                .iter()
                .map(|one| format!("{} {:?}", one.number, one.text));
            let asked = asked.collect::<Vec<_>>().join(", ");
            let failure = Failure::new(format!("run {} asks several questions", run.run_id));
            return Err(failure.hint(format!("choose one by --question: {asked}")));
        }
    };
    let Some(question) = question else {
        let failure = Failure::new(format!("run {} does not ask this", run.run_id));
        return Err(failure
            .hint("kennel inbox lists what is asked; kennel write writes without a question"));
    };
    let mut text = match args.text {
        Some(text) => text,
        None => read_line(question)?,
    };
    if !args.raw {
        let is_terminal = run.kind() == pb::RunKind::Terminal;
        text.push(if is_terminal { '\r' } else { '\n' });
    }
    let request = pb::WriteInputRequest {
        run_id: run.run_id,
        data: text.into_bytes().into(),
        write_id: new_request_id(),
        expected_attempt: Some(question.attempt),
        if_awaiting: Some(question.number),
        ..pb::WriteInputRequest::default()
    };
    let input = link.call(request).await?.input;
    let status = input.unwrap_or_default();
    link.print(&status, || words::input(&status))
}

/// Reads a line from standard input, without showing it where the run's terminal would not.
fn read_line(question: &pb::Question) -> Result<String, Failure> {
    let unreadable = |cause: io::Error| Failure::new(format!("cannot read the answer: {cause}"));
    let is_typed = io::stdin().is_terminal();
    if is_typed {
        let text = crate::terminal_text::one_line(&question.text);
        let _ = write!(io::stderr(), "{text} ");
    }
    let hidden = question.echo_off.then(own_terminal::echo_off).transpose();
    let hidden = hidden.map_err(unreadable)?;
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).map_err(unreadable)?;
    drop(hidden);
    if is_typed && question.echo_off {
        let _ = writeln!(io::stderr());
    }
    if read == 0 {
        return Err(Failure::new(
            "standard input has ended: nothing was answered",
        ));
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
