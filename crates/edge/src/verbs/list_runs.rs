//! Runs, by the page.

use super::{Api, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{request, run, time, token::PageToken},
    limits, pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{ListFilter, PageStart, RunPage, UnreadRow};
use prost::Message;

/// Page and filter of a list of runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListRunsCall {
    pub(super) filter: ListFilter,
    pub(super) start: Option<PageStart>,
    pub(super) limit: u32,
}

impl Verb for pb::ListRunsRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = ListRunsCall;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let mut filter = ListFilter {
            owner: context.seen_owner(),
            nodes: context.node.into_iter().collect(),
            ..request::filter(self.filter.as_ref(), context.now, found)
        };
        let limit = request::page_size(self.page_size, found);
        let mut start = None;
        if !self.page_token.is_empty() {
            filter.ages.at = PageToken::time(&self.page_token).unwrap_or(filter.ages.at);
            start = PageToken::decode(&self.page_token, &filter).map(|token| token.0);
            if start.is_none() {
                let why = "is not one that a server has given for this filter";
                found.push(Violation::new("page_token", why));
            }
        }
        Some(ListRunsCall {
            filter,
            start,
            limit,
        })
    }

    async fn prepared(mut self, at: &Api, context: &mut Context<'_>) -> Result<Self, Fault> {
        at.prepare_filter(context, &mut self.filter).await?;
        Ok(self)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let ListRunsCall {
            filter,
            start,
            limit,
        } = call;
        let listed = at.supervisor.list(filter.clone(), start, limit).await?;
        Ok(page(listed, &filter))
    }
}

/// The runs that fit on a page, and where the next page begins.
pub(super) fn page(listed: RunPage, filter: &ListFilter) -> pb::ListRunsResponse {
    let RunPage {
        runs,
        mut unread,
        mut next,
    } = listed;
    let mut response = pb::ListRunsResponse::default();
    let mut bytes = 0;
    let mut last: Option<PageStart> = None;
    for view in runs {
        let start = PageStart {
            age: view.new.age,
            run: view.run,
        };
        let run = run::run(view);
        bytes += run.encoded_len();
        if let Some(last) = last
            && bytes > limits::PAGE_BYTES_MAX
        {
            next = Some(last);
            // Unread rows behind the end of this page come with the next one.
            unread.retain(|row| (row.age, row.run) > (last.age, last.run));
            break;
        }
        last = Some(start);
        response.runs.push(run);
    }
    response.unreadable_runs = unread.into_iter().map(unread_run).collect();
    if let Some(start) = next {
        response.next_page_token = PageToken(start).encode(filter);
    }
    response
}

fn unread_run(row: UnreadRow) -> pb::UnreadableRun {
    pb::UnreadableRun {
        run_id: row.run.to_string(),
        node_id: row.node.to_string(),
        create_time: Some(time::timestamp(row.created)),
        reason: row.why,
    }
}

#[cfg(test)]
mod tests;
