//! Runs as they are typed, and commands that act on several.

use super::link::{ANSWER_MAX, Link, print_exact, refused, run_of};
use crate::{args::RunRefs, failure::Failure};
use futures_util::{StreamExt as _, stream};
use kennel_lifecycle::{RunId, RunIdPart, is_run_name, labels::Selector};
use kennel_proto::pb;

/// Most runs acted upon at the same time.
const TOGETHER_MAX: usize = 32;
/// Shortest part of an id: fewer characters are a habit of other tools, such as the number of a task, and would name a run
/// by chance.
const PART_MIN: usize = 4;
/// Most ids that are listed where several match.
const NAMED_MAX: i32 = 5;

impl Link {
    /// Returns the full id of the typed run: the whole id in any case, its name, or a unique beginning or end of the id. A
    /// run is resolved once: a later run may have its name.
    pub(crate) async fn run_id(&self, typed: &str) -> Result<String, Failure> {
        if let Ok(run) = typed.to_ascii_uppercase().parse::<RunId>() {
            return Ok(run.to_string());
        }
        if typed.is_empty() {
            let failure = Failure::new("the id of the run is empty");
            return Err(failure.hint("kennel ps --all lists every run"));
        }
        let (by_name, typed) = match typed.split_once(':') {
            Some(("name", name)) => (Some(true), name),
            Some(("id", part)) => (Some(false), part),
            _ => (None, typed),
        };
        if by_name != Some(false) && is_run_name(typed) {
            let run_id = typed.to_owned();
            let named = self
                .connection
                .call_within(ANSWER_MAX, pb::GetRunRequest { run_id });
            match named.await {
                Ok(found) => return Ok(run_of(found.run)?.run_id),
                Err(refusal) if refusal.is("RUN_NOT_FOUND") => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        if by_name == Some(true) || typed.parse::<RunIdPart>().is_err() {
            return Err(no_run(typed));
        }
        if typed.len() < PART_MIN {
            let message = format!(
                "{typed:?} is no run's name, and too short for an id: type at least {PART_MIN} characters of that"
            );
            return Err(Failure::new(message).hint(instead(typed)));
        }
        let request = pb::ListRunsRequest {
            filter: Some(pb::RunFilter {
                run_id_part: typed.to_owned(),
                ..pb::RunFilter::default()
            }),
            page_size: NAMED_MAX + 1,
            page_token: String::new(),
        };
        let page = self.ask(request).await?;
        let unread = page.unreadable_runs.into_iter().map(|run| run.run_id);
        let runs = page.runs.into_iter().map(|run| run.run_id);
        match &*runs.chain(unread).collect::<Vec<_>>() {
            [] => Err(no_run(typed)),
            [run] => Ok(run.clone()),
            ids => {
                let message = format!("{typed:?} begins or ends the ids of several runs");
                Err(Failure::new(message).hint(format!("type more of one: {}", ids.join(" "))))
            }
        }
    }

    /// Completes the parent's id in a request, where it is given in part.
    pub(crate) async fn with_parent(
        &self,
        mut request: pb::SpawnRequest,
    ) -> Result<pb::SpawnRequest, Failure> {
        let spec = request.spec.as_mut();
        if let Some(parent) = spec.and_then(|spec| spec.parent.as_mut()) {
            parent.run_id = self.run_id(&parent.run_id).await?;
        }
        Ok(request)
    }

    /// Returns the full id, where a run may be given.
    pub(crate) async fn run_id_or_none(&self, typed: Option<&str>) -> Result<String, Failure> {
        match typed {
            Some(typed) => self.run_id(typed).await,
            None => Ok(String::new()),
        }
    }

    /// Returns the full ids of several runs.
    pub(crate) async fn run_ids(&self, typed: &[String]) -> Result<Vec<String>, Failure> {
        let mut ids = Vec::new();
        for typed in typed {
            ids.push(self.run_id(typed).await?);
        }
        Ok(ids)
    }
}

fn no_run(typed: &str) -> Failure {
    let message = format!("no run has the name {typed:?}, or an id that begins or ends with it");
    Failure::new(message).hint(instead(typed))
}

/// Returns what may have been meant by a word that is no id of a run.
fn instead(typed: &str) -> String {
    // Lines of typed words, and a hint for each.
    let mut known = include_str!("no_runs.txt").lines();
    let hint = known.find_map(|line| {
        let (words, hint) = line.split_once(": ")?;
        words.split(' ').any(|word| word == typed).then_some(hint)
    });
    match (hint, typed.split_once('/')) {
        (Some(hint), _) => hint.to_owned(),
        (None, Some((_, id))) => format!("leave the kind out: {id}"),
        (None, None) if typed.contains('=') && typed.parse::<Selector>().is_ok() => {
            format!("that is a label: kennel ps -l {typed}")
        }
        (None, None) => {
            "kennel ps --all lists every run; in SQLite an id is found by its end among the newest 100,000"
                .to_owned()
        }
    }
}

/// Acts upon each run, several at the same time, and prints the answers in the typed order. All are tried; the exit
/// code is that of the first that failed.
pub(crate) async fn each<A>(
    link: &Link,
    refs: &RunRefs,
    act: impl Fn(String) -> A,
) -> Result<u8, Failure>
where
    A: Future<Output = Result<(String, u8), Failure>>,
{
    let act = &act;
    let one = |typed: &String| {
        let typed = typed.clone();
        async move { act(link.run_id(&typed).await?).await }
    };
    if let [typed] = &*refs.runs {
        let (text, code) = one(typed).await?;
        print_exact(&text)?;
        return Ok(code);
    }
    let mut answers = stream::iter(refs.runs.iter().map(one)).buffered(TOGETHER_MAX);
    let mut first = 0;
    while let Some(answer) = answers.next().await {
        let code = match answer {
            Ok((text, code)) => {
                print_exact(&text)?;
                code
            }
            Err(failure) => {
                failure.report_in(&link.format);
                failure.exit_code()
            }
        };
        if first == 0 {
            first = code;
        }
    }
    Ok(first)
}
