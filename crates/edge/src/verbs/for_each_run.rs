//! One thing done to each run that a filter selects: each by its own verb, at the run's node, as a call of this caller.

use super::{Api, Asked, At, Context, Fault, How, Verb, Waits, list_runs::unread_run};
use crate::{
    access::Caller,
    auth,
    convert::{many_cursor::Seal, request, run},
    forward::Calls,
    limits, pb,
    reason::Reason,
    status,
};
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use kennel_lifecycle::{RunId, RunState, Violation};
use kennel_proto::call::{self, Call as UnaryCall, Rpc};
use kennel_supervisor::{CallError, ListFilter};
use pb::{for_each_run_request::Action, for_each_run_response::Part, run_outcome::Outcome};
use std::{collections::BTreeMap, sync::Arc};
use tonic::{Request, Status};
use tonic_types::StatusExt;

/// Most runs that match where the caller names no bound, and the highest bound.
const AT_MOST: (u32, u32) = (1000, 10_000);
/// Runs acted upon at the same time where the caller does not say, and most of them.
const PARALLEL: (u32, u32) = (16, 256);
/// Ids of a selection that are read together.
const READ_TOGETHER: usize = 500;

/// What is done to which runs, and who calls.
pub(crate) struct Call {
    act: Act,
    /// Runs of an earlier dry run; absent: all that match.
    chosen: Option<Vec<RunId>>,
    at_most: usize,
    parallel: usize,
    is_dry: bool,
}

/// One action, for any run.
struct Act {
    action: Action,
    filter: ListFilter,
    caller: Caller,
    calls: Calls,
}

impl Verb for pb::ForEachRunRequest {
    const HOW: How = How::order(Waits::Brief).while_asked();
    type Call = Call;

    fn logged(&self, record: Asked) -> Asked {
        match &self.action {
            Some(action) => record.with("action", name(action)),
            None => record,
        }
    }

    fn is_dry(&self) -> bool {
        self.dry_run
    }

    async fn prepared(mut self, at: &Api, context: &mut Context<'_>) -> Result<Self, Fault> {
        let is_empty = self
            .filter
            .as_ref()
            .is_none_or(|filter| *filter == pb::RunFilter::default());
        if is_empty && !self.all {
            let why = "selects every run, which `all` must confirm";
            return Err(status::invalid(&[Violation::new("filter", why)]).into());
        }
        if let auth::Scope::Run { run, .. } = context.scope() {
            let filter = self.filter.get_or_insert_default();
            if filter.parent_run_id.is_empty() && filter.below_run_id.is_empty() {
                filter.below_run_id = run.to_string();
            }
        }
        at.prepare_filter(context, &mut self.filter).await?;
        Ok(self)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Call> {
        let mut filter = ListFilter {
            owner: context.seen_owner(),
            nodes: context.node.into_iter().collect(),
            ..request::filter(self.filter.as_ref(), context.now, found)
        };
        let at_most = bounded("at_most", self.at_most, AT_MOST, found);
        let parallel = bounded("parallel", self.parallel, PARALLEL, found);
        let Some(action) = self.action else {
            found.push(Violation::new("action", "must be given"));
            return None;
        };
        if !run_of(&action).is_empty() {
            let why = "must be empty: the filter selects the runs";
            found.push(Violation::new(format!("{}.run_id", name(&action)), why));
        }
        if filter.states.is_empty() {
            filter.states = RunState::OPEN.to_vec();
        }
        let chosen = (!self.selection.is_empty()).then(|| selected(&self.selection, &filter));
        if chosen == Some(None) {
            let why = "is not one that a dry run with this filter has given";
            found.push(Violation::new("selection", why));
        }
        Some(Call {
            act: Act {
                filter,
                action,
                caller: context.caller.clone(),
                calls: context.extensions.get().cloned()?,
            },
            chosen: chosen.flatten(),
            at_most,
            parallel,
            is_dry: self.dry_run,
        })
    }

    async fn serve(at: Api, call: Call) -> Result<Self::Answer, Fault> {
        let place = at.place(&call.act.caller)?;
        let found = at.find(&call).await?;
        let mut unreachable: Vec<String> = found.iter().filter_map(unreachable_node).collect();
        unreachable.sort_unstable();
        unreachable.dedup();
        let matched = pb::MatchedRuns {
            count: u32::try_from(found.len()).unwrap_or(u32::MAX),
            unreachable_nodes: unreachable,
            selection: if call.is_dry {
                selection(&found, &call.act.filter)
            } else {
                Vec::new()
            }
            .into(),
        };
        let (act, is_dry) = (Arc::new(call.act), call.is_dry);
        let each = stream::iter(found).map(move |found| {
            let (at, act) = (at.clone(), Arc::clone(&act));
            async move {
                // A task of its own: an action that has begun finishes.
                let acting = at
                    .tasks
                    .clone()
                    .spawn(async move { act.upon(&at, found, is_dry).await });
                acting
                    .await
                    .map_err(|broken| status::internal(&broken.to_string()))
            }
        });
        let mut each = each.buffer_unordered(call.parallel);
        let (send, answers) = tokio::sync::mpsc::channel(1);
        let part = |part| Ok(pb::ForEachRunResponse { part: Some(part) });
        let answered = async move {
            let _place = place;
            let mut counts = BTreeMap::new();
            if send.send(part(Part::Matched(matched))).await.is_err() {
                return;
            }
            while let Some(done) = each.next().await {
                let message = done.and_then(|done| {
                    let outcome = done.outcome().as_str_name().trim_start_matches("OUTCOME_");
                    *counts.entry(outcome.to_ascii_lowercase()).or_insert(0) += 1;
                    part(Part::Run(Box::new(done)))
                });
                if send.send(message).await.is_err() {
                    return;
                }
            }
            let _ = send
                .send(part(Part::Summary(pb::ForEachRunSummary { counts })))
                .await;
        };
        tokio::spawn(answered);
        Ok(Box::pin(stream::unfold(
            answers,
            |mut answers| async move { Some((answers.recv().await?, answers)) },
        )))
    }
}

/// Returns a number within its bound, or its default for 0.
fn bounded(
    field: &str,
    given: u32,
    (default, most): (u32, u32),
    found: &mut Vec<Violation>,
) -> usize {
    if given > most {
        found.push(Violation::new(field, format!("must be at most {most}")));
    }
    let number = if given == 0 { default } else { given };
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn run_of(action: &Action) -> &str {
    match action {
        Action::Abort(request) => &request.run_id,
        Action::Interrupt(request) => &request.run_id,
        Action::Pause(request) => &request.run_id,
        Action::Resume(request) => &request.run_id,
        Action::Signal(request) => &request.run_id,
        Action::Restart(request) => &request.run_id,
        Action::Annotate(request) => &request.run_id,
    }
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::Abort(_) => "abort",
        Action::Interrupt(_) => "interrupt",
        Action::Pause(_) => "pause",
        Action::Resume(_) => "resume",
        Action::Signal(_) => "signal",
        Action::Restart(_) => "restart",
        Action::Annotate(_) => "annotate",
    }
}

/// A run that was found; the text: why its record cannot be read here.
type Found = (Box<pb::Run>, Option<String>);

fn unreachable_node((run, _): &Found) -> Option<String> {
    let other = run.other_node.as_ref();
    let other = other.filter(|node| node.reachability() == pb::NodeReachability::Unreachable);
    other.map(|other| other.node_id.clone())
}

/// Makes the selection of these runs, for a call with this filter.
fn selection(found: &[Found], filter: &ListFilter) -> Vec<u8> {
    let ids = found.iter().filter_map(|(run, _)| run.run_id.parse().ok());
    let ids = ids.flat_map(|run: RunId| run.as_u128().to_be_bytes());
    Seal::of(filter).bytes().into_iter().chain(ids).collect()
}

/// Returns the runs of a selection; absent: it is none for this filter.
fn selected(selection: &[u8], filter: &ListFilter) -> Option<Vec<RunId>> {
    let ids = selection.strip_prefix(&Seal::of(filter).bytes())?;
    let (ids, rest) = ids.as_chunks();
    let ids = ids
        .iter()
        .map(|id| RunId::from_u128(u128::from_be_bytes(*id)));
    rest.is_empty().then(|| ids.collect())
}

impl At {
    /// Returns the runs that match, the newest first, or those of them that were chosen.
    async fn find(&self, call: &Call) -> Result<Vec<Found>, Fault> {
        let mut found = Vec::new();
        let Some(chosen) = &call.chosen else {
            self.find_all(&call.act.filter, call.at_most, &mut found)
                .await?;
            return Ok(found);
        };
        for together in chosen.chunks(READ_TOGETHER) {
            let wanted = &call.act.filter.runs;
            let runs = together
                .iter()
                .filter(|run| wanted.is_empty() || wanted.contains(run));
            let filter = ListFilter {
                runs: runs.copied().collect(),
                ..call.act.filter.clone()
            };
            if !filter.runs.is_empty() {
                self.find_all(&filter, call.at_most, &mut found).await?;
            }
        }
        Ok(found)
    }

    async fn find_all(
        &self,
        filter: &ListFilter,
        at_most: usize,
        found: &mut Vec<Found>,
    ) -> Result<(), Fault> {
        let mut start = None;
        loop {
            let page = self
                .supervisor
                .list(filter.clone(), start, limits::PAGE_SIZE_MAX)
                .await?;
            found.extend(
                page.runs
                    .into_iter()
                    .map(|view| (Box::new(run::run(view)), None)),
            );
            found.extend(page.unread.into_iter().map(|row| {
                let unread = unread_run(row);
                let run = pb::Run {
                    run_id: unread.run_id,
                    node_id: unread.node_id,
                    ..pb::Run::default()
                };
                (Box::new(run), Some(unread.reason))
            }));
            if found.len() > at_most {
                return Err(status::too_many_matches(at_most).into());
            }
            start = page.next;
            if start.is_none() {
                return Ok(());
            }
        }
    }
}

/// Returns the outcome of a refused call.
fn outcome_of(refused: &Status) -> Outcome {
    let info = refused.get_details_error_info();
    let is = |reason: Reason| {
        info.as_ref()
            .is_some_and(|info| info.reason == reason.as_str())
    };
    if is(Reason::RunNotFound) {
        Outcome::Gone
    } else if is(Reason::AbortQueued) {
        Outcome::StopQueued
    } else if is(Reason::NodeUnreachable) {
        Outcome::NodeUnreachable
    } else {
        Outcome::Refused
    }
}

impl Act {
    /// Does it to a run, if that still matches.
    async fn upon(&self, at: &At, (run, unread): Found, is_dry: bool) -> pb::RunOutcome {
        let done = match (unread, is_dry) {
            (Some(why), _) => Err(status::internal(&format!(
                "its record cannot be read here: {why}"
            ))),
            (None, true) => Ok((Outcome::Would, None)),
            (None, false) => self.unless_changed(at, &run.run_id).await,
        };
        let (outcome, after, refused) = match done {
            Ok((outcome, after)) => (outcome, after, None),
            Err(refused) => (outcome_of(&refused), None, Some(refused)),
        };
        let info = refused.as_ref().and_then(StatusExt::get_details_error_info);
        pb::RunOutcome {
            run: Some(after.map_or(run, Box::new)),
            outcome: outcome.into(),
            reason: info.map(|info| info.reason).unwrap_or_default(),
            message: refused
                .map(|refused| refused.message().to_owned())
                .unwrap_or_default(),
        }
    }

    /// Tests the run again and does it, where the run matches or its own node knows.
    async fn unless_changed(
        &self,
        at: &At,
        run: &str,
    ) -> Result<(Outcome, Option<pb::Run>), Status> {
        match at.supervisor.get(request::run_id(run)?).await {
            Ok(view) if !view.fits(&self.filter) => {
                Ok((Outcome::NoLongerMatches, Some(run::run(view))))
            }
            Err(CallError::RunNotFound(_)) => Ok((Outcome::Gone, None)),
            _ => self.done(run).await.map(|after| (Outcome::Done, after)),
        }
    }

    /// Does it to one run, and returns the run of the answer.
    async fn done(&self, run: &str) -> Result<Option<pb::Run>, Status> {
        Ok(match &self.action {
            Action::Abort(request) => self.call(request, run).await?.run,
            Action::Interrupt(request) => self.call(request, run).await?.run,
            Action::Pause(request) => self.call(request, run).await?.run,
            Action::Resume(request) => self.call(request, run).await?.run,
            Action::Signal(request) => self.call(request, run).await?.run,
            Action::Restart(request) => self.call(request, run).await?.run,
            Action::Annotate(request) => self.call(request, run).await?.run,
        })
    }

    fn call<C: UnaryCall + Rpc>(
        &self,
        request: &C,
        run: &str,
    ) -> BoxFuture<'static, Result<<C as UnaryCall>::Answer, Status>> {
        let mut request = request.clone();
        if let Some(id) = request.run() {
            run.clone_into(id);
        }
        let (calls, caller) = (self.calls.clone(), self.caller.clone());
        Box::pin(async move {
            auth::authorize(&caller, C::PATH)?;
            let mut request = Request::new(request);
            request.extensions_mut().insert(caller);
            Ok(call::unary(calls, request).await?.into_inner())
        })
    }
}
