//! Commands that act on runs by a selection: a dry run first, whose runs alone are acted upon.

use super::{
    each::each,
    link::{ANSWER_MAX, Link, print_exact, refused},
};
use crate::{
    args::{RunRefs, SelectionArgs, Targets},
    failure::{Failure, note},
    terminal_text,
};
use kennel_client as client;
use kennel_proto::pb::{self, for_each_run_request::Action, for_each_run_response::Part};
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

/// Acts on the named runs by `act`, or on the selected ones by `action`.
pub(crate) async fn each_of<A>(
    link: &Link,
    targets: Targets,
    action: Action,
    act: impl Fn(String) -> A,
) -> Result<u8, Failure>
where
    A: Future<Output = Result<(String, u8), Failure>>,
{
    let Targets { runs, selection } = targets;
    if selection.is_given() {
        return for_each(link, &selection, action).await;
    }
    each(link, &RunRefs { runs }, act).await
}

/// Acts on the selected runs and prints a line for each. The exit code: 1 if one was refused.
pub(crate) async fn for_each(
    link: &Link,
    selection: &SelectionArgs,
    action: Action,
) -> Result<u8, Failure> {
    let mut request = pb::ForEachRunRequest {
        filter: Some(selection.filter()),
        all: selection.all,
        action: Some(action),
        at_most: selection.at_most.unwrap_or_default(),
        dry_run: true,
        ..pb::ForEachRunRequest::default()
    };
    let mut found = Vec::new();
    let matched = answers(link, &request, |outcome| {
        found.push(outcome);
        Ok(())
    });
    let Some((matched, _)) = matched.await? else {
        return Err(Failure::new("the server did not say which runs match"));
    };
    if found.is_empty() {
        note(&"no run matches");
        return Ok(0);
    }
    if selection.dry_run {
        found
            .iter()
            .try_for_each(|outcome| print_outcome(link, outcome))?;
        note(&format_args!(
            "{} would be acted upon, and nothing was done",
            runs(found.len())
        ));
        return Ok(0);
    }
    if selection.all && !selection.yes {
        confirm(&format!("act on all {}?", runs(found.len())))?;
    }
    request.dry_run = false;
    request.selection = matched.selection;
    let done = answers(link, &request, |outcome| print_outcome(link, &outcome));
    let Some((_, Some(summary))) = done.await? else {
        let failure = Failure::new("the server did not act on all of them");
        return Err(failure.hint("the same command continues"));
    };
    let counts = summary.counts.iter();
    let counts: Vec<String> = counts
        .map(|(outcome, count)| format!("{outcome} {count}"))
        .collect();
    note(&counts.join(", "));
    let passes = ["done", "gone", "no_longer_matches"];
    let is_refused = summary
        .counts
        .keys()
        .any(|outcome| !passes.contains(&outcome.as_str()));
    Ok(u8::from(is_refused))
}

fn runs(count: usize) -> String {
    format!("{count} {}", if count == 1 { "run" } else { "runs" })
}

/// Asks on the terminal.
fn confirm(question: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let failure = Failure::new(format!("{question} Here is no terminal to ask on"));
        return Err(failure
            .hint("--yes acts without a question")
            .code(crate::USAGE));
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
    match line.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was done")),
    }
}

/// Makes the call; returns its first part, and the last one if it came.
async fn answers(
    link: &Link,
    request: &pb::ForEachRunRequest,
    mut each: impl FnMut(pb::RunOutcome) -> Result<(), Failure>,
) -> Result<Option<(pb::MatchedRuns, Option<pb::ForEachRunSummary>)>, Failure> {
    let mut process = link.connection.processes();
    let asked = tokio::time::timeout(ANSWER_MAX, process.for_each_run(request.clone()));
    let asked = asked
        .await
        .map_err(|_| Failure::new("the server does not answer"))?;
    let mut stream = asked
        .map_err(|status| refused(client::Failure::from(status)))?
        .into_inner();
    let (mut first, mut last) = (None, None);
    loop {
        let next = stream.message().await.map_err(client::Failure::from);
        let Some(message) = next.map_err(refused)? else {
            return Ok(first.map(|first| (first, last)));
        };
        match message.part {
            Some(Part::Matched(matched)) => first = Some(matched),
            Some(Part::Run(outcome)) => each(*outcome)?,
            Some(Part::Summary(summary)) => last = Some(summary),
            None => {}
        }
    }
}

fn print_outcome(link: &Link, outcome: &pb::RunOutcome) -> Result<(), Failure> {
    let Some(run) = &outcome.run else {
        return Ok(());
    };
    let text = || {
        let word = outcome
            .outcome()
            .as_str_name()
            .trim_start_matches("OUTCOME_");
        let name = run.spec.as_ref().map_or("", |spec| &spec.name);
        let word = word.to_ascii_lowercase();
        let parts = [&run.run_id, name, &word, &outcome.message];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        terminal_text::one_line(&parts.join(" ")) + "\n"
    };
    print_exact(&link.shown_of(run, outcome, text))
}
