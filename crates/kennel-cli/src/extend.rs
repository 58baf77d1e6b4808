//! `kennel extend`: extends limits of time of a run.

use super::{
    link::{Link, print_exact, run_of},
    sentence, spec,
};
use crate::{args::ExtendArgs, failure::Failure};
use kennel_proto::pb;
use std::fmt::Write as _;

pub(crate) async fn extend(link: &Link, args: ExtendArgs) -> Result<(), Failure> {
    let flags = [
        (args.timeout, pb::Deadline::MaxRuntime),
        (args.inactivity, pb::Deadline::Inactivity),
        (args.start_timeout, pb::Deadline::StartTimeout),
    ];
    let named = flags.iter().filter(|(is_named, _)| *is_named);
    let request = pb::ExtendTimeoutsRequest {
        run_id: link.run_id(&args.run.run).await?,
        limits: named.map(|(_, limit)| (*limit).into()).collect(),
        duration: spec::span(Some(args.time), "duration")?,
    };
    let run = run_of(link.call(request).await?.run)?;
    print_exact(&link.shown_of(&run, &run, || limits(&run)))
}

fn limits(run: &pb::Run) -> String {
    let mut text = String::new();
    for limit in &run.time_limits {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", sentence::of("timeLimit", limit));
    }
    text
}
