//! `kennel extend`: extends limits of time of a run.

use crate::{
    args::RunRef,
    failure::Failure,
    link::{Link, print_exact, run_of},
    sentence, spec, values,
};
use clap::Args;
use kennel_proto::pb;
use std::{fmt::Write as _, time::Duration};

#[derive(Debug, Args)]
pub struct ExtendArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Least time until the limits are reached, from now on, pauses not counted
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    pub(crate) time: Duration,
    /// Extend the limit of --timeout [default: every limit of time that counts now]
    #[arg(long)]
    pub(crate) timeout: bool,
    /// Extend the limit of --inactivity
    #[arg(long)]
    pub(crate) inactivity: bool,
    /// Extend the limit of --start-timeout
    #[arg(long)]
    pub(crate) start_timeout: bool,
}

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
