//! One thing done to each run that a filter selects: each by its own verb, at the run's node, as a call of this caller.

use super::{Api, Asked, At, Context, Fault, How, Verb, Waits};
use crate::{
    access::Caller,
    auth,
    convert::{many_cursor::Seal, request, run},
    forward::Calls,
    limits, pb,
    reason::Reason,
    status,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use kennel_lifecycle::{NodeId, RunId, RunState, Violation};
use kennel_proto::call::{self, Call as UnaryCall, Rpc};
use kennel_supervisor::{CallError, ListFilter};
use pb::{for_each_run_request::Action, for_each_run_response::Part, run_outcome::Outcome};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
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
    chosen: Option<BTreeSet<RunId>>,
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
        // A call that names its node, or is made by a run, is only for that node's runs.
        let own_node = (!context.asks_node).then_some(context.own_node);
        let mut filter = ListFilter {
            owner: context.seen_owner(),
            nodes: context.node.or(own_node).into_iter().collect(),
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
            filter.states = match action {
                Action::Remove(_) => RunState::ENDED.to_vec(),
                _ => RunState::OPEN.to_vec(),
            };
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
        let runs = found.runs.iter().map(|(run, _)| run);
        let matched = pb::MatchedRuns {
            count: u32::try_from(found.runs.len()).unwrap_or(u32::MAX),
            unreachable_nodes: found.unreachable.iter().map(NodeId::to_string).collect(),
            selection: if call.is_dry {
                selection(runs, &call.act.filter).into()
            } else {
                Bytes::new()
            },
        };
        let (act, is_dry) = (Arc::new(call.act), call.is_dry);
        let each = stream::iter(found.runs).map(move |found| {
            let (at, act) = (at.clone(), Arc::clone(&act));
            async move {
                // In a separate task an action that has begun finishes.
                let acting = at
                    .tasks
                    .clone()
                    .spawn(async move { act.upon(&at, found, is_dry).await });
                acting
                    .await
                    .map_err(|broken| status::internal(&broken.to_string()))
            }
        });
        let each = each.buffer_unordered(call.parallel);
        let begun = Some((each, BTreeMap::new(), place));
        let answers = stream::unfold(begun, |open| async move {
            let (mut each, mut counts, place) = open?;
            Some(match each.next().await {
                Some(Ok(done)) => {
                    let outcome = done.outcome().as_str_name().trim_start_matches("OUTCOME_");
                    *counts.entry(outcome.to_ascii_lowercase()).or_insert(0) += 1;
                    let part = answer(Part::Run(Box::new(done)));
                    (Ok(part), Some((each, counts, place)))
                }
                Some(Err(broken)) => (Err(broken), Some((each, counts, place))),
                None => {
                    let part = Part::Summary(pb::ForEachRunSummary { counts });
                    (Ok(answer(part)), None)
                }
            })
        });
        let first = stream::once(std::future::ready(Ok(answer(Part::Matched(matched)))));
        Ok(Box::pin(first.chain(answers)))
    }
}

fn answer(part: Part) -> pb::ForEachRunResponse {
    pb::ForEachRunResponse { part: Some(part) }
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
        Action::Remove(request) => &request.run_id,
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
        Action::Remove(_) => "remove",
    }
}

/// Runs that were found: ids alone, for they may be many. The text: why a record cannot be read here.
#[derive(Default)]
struct MatchingRuns {
    runs: Vec<(RunId, Option<String>)>,
    unreachable: BTreeSet<NodeId>,
}

/// Makes the selection of these runs, for a call with this filter.
fn selection<'a>(runs: impl Iterator<Item = &'a RunId>, filter: &ListFilter) -> Vec<u8> {
    let ids = runs.flat_map(|run| run.as_u128().to_be_bytes());
    Seal::of(filter).bytes().into_iter().chain(ids).collect()
}

/// Returns the runs of a selection, each once; absent: it is none for this filter.
fn selected(selection: &[u8], filter: &ListFilter) -> Option<BTreeSet<RunId>> {
    let ids = selection.strip_prefix(&Seal::of(filter).bytes())?;
    let (ids, rest) = ids.as_chunks();
    let ids = ids.iter().map(|id| u128::from_be_bytes(*id));
    let is_whole = rest.is_empty() && ids.len() <= AT_MOST.1 as usize;
    is_whole.then(|| ids.map(RunId::from_u128).collect())
}

impl At {
    /// Returns the runs that match, or those of them that were chosen.
    async fn find(&self, call: &Call) -> Result<MatchingRuns, Fault> {
        let mut found = MatchingRuns::default();
        let Some(chosen) = &call.chosen else {
            self.find_all(&call.act.filter, call.at_most, &mut found)
                .await?;
            return Ok(found);
        };
        let wanted = &call.act.filter.runs;
        let chosen = chosen.iter().copied();
        let chosen = chosen.filter(|run| wanted.is_empty() || wanted.contains(run));
        let chosen: Vec<RunId> = chosen.collect();
        for together in chosen.chunks(READ_TOGETHER) {
            let filter = ListFilter {
                runs: together.to_vec(),
                ..call.act.filter.clone()
            };
            self.find_all(&filter, call.at_most, &mut found).await?;
        }
        Ok(found)
    }

    async fn find_all(
        &self,
        filter: &ListFilter,
        at_most: usize,
        found: &mut MatchingRuns,
    ) -> Result<(), Fault> {
        let mut start = None;
        loop {
            let page = self
                .supervisor
                .list(filter.clone(), start, limits::PAGE_SIZE_MAX);
            let page = page.await?;
            for view in page.runs {
                let elsewhere = view.elsewhere.as_ref().filter(|other| !other.is_reachable);
                found.unreachable.extend(elsewhere.map(|other| other.node));
                found.runs.push((view.run, None));
            }
            let unread = page.unread.into_iter();
            found
                .runs
                .extend(unread.map(|row| (row.run, Some(row.why))));
            if found.runs.len() > at_most {
                return Err(status::too_many_matches(at_most).into());
            }
            start = page.next;
            if start.is_none() {
                return Ok(());
            }
        }
    }
}

/// Returns the outcome of a call that was refused for this reason.
fn outcome_of(reason: &str) -> Outcome {
    let is = |known: Reason| known.as_str() == reason;
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
    async fn upon(
        &self,
        at: &At,
        (run, unread): (RunId, Option<String>),
        is_dry: bool,
    ) -> pb::RunOutcome {
        let done = match unread {
            Some(why) => {
                let why = format!("its record cannot be read here: {why}");
                Err(status::internal(&why))
            }
            None => self.unless_changed(at, run, is_dry).await,
        };
        let (outcome, after, reason, message) = match done {
            Ok((outcome, after)) => (outcome, after, String::new(), String::new()),
            Err(refused) => {
                let info = refused.get_details_error_info();
                let reason = info.map(|info| info.reason).unwrap_or_default();
                let message = refused.message().to_owned();
                (outcome_of(&reason), None, reason, message)
            }
        };
        let by_id = || pb::Run {
            run_id: run.to_string(),
            ..pb::Run::default()
        };
        pb::RunOutcome {
            run: Some(Box::new(after.unwrap_or_else(by_id))),
            outcome: outcome.into(),
            reason,
            message,
        }
    }

    /// Tests the run again and does it, where the run matches or its own node knows.
    async fn unless_changed(
        &self,
        at: &At,
        run: RunId,
        is_dry: bool,
    ) -> Result<(Outcome, Option<pb::Run>), Status> {
        let found = match at.supervisor.get(run).await {
            Ok(view) if !view.fits(&self.filter) => {
                return Ok((Outcome::NoLongerMatches, Some(run::run(view))));
            }
            Err(CallError::RunNotFound(_)) => return Ok((Outcome::Gone, None)),
            found => found.ok().map(run::run),
        };
        if is_dry {
            return Ok((Outcome::Would, found));
        }
        let after = self.done(&run.to_string()).await?;
        Ok((Outcome::Done, after.or(found)))
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
            Action::Remove(request) => {
                self.call(request, run).await?;
                None
            }
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
