//! A page of runs as a message.

use crate::{
    convert::{run, time, token::PageToken},
    limits, pb,
};
use kennel_supervisor::{ListFilter, PageStart, RunPage, UnreadRow};
use prost::Message;

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
            age: view.age.unwrap_or_default(),
            run: view.run,
        };
        let run = run::run(view);
        bytes += run.encoded_len();
        if let Some(last) = last
            && bytes > limits::PAGE_BYTES_MAX
        {
            next = Some(last);
            // Those behind the end of this page come with the next one.
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
