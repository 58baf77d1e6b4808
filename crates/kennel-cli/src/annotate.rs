//! `kennel annotate`: sets and removes annotations of a run.

use crate::{
    args::{RunRef, SelectionArgs, of_enum},
    failure::Failure,
    link::{Link, print_exact, run_of},
    selection::for_each,
};
use clap::Args;
use kennel_proto::pb::{self, Activity, for_each_run_request::Action};
use std::fmt::Write as _;

#[derive(Debug, Args)]
pub struct AnnotateArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// KEY=VALUE sets an annotation, KEY- removes it
    #[arg(value_name = "KEY=VALUE|KEY-")]
    pub(crate) changes: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Change them only if the annotations have this version: 0 if there never were any [default: any]
    #[arg(long = "if-version", value_name = "NUMBER")]
    pub(crate) expected_version: Option<u64>,
    /// Activity of the run, as an output rule or the command itself reports it
    #[arg(long, value_name = "WHAT", value_parser = of_enum("kennel.v1.Activity", Activity::from_str_name))]
    pub(crate) activity: Option<Activity>,
}

pub(crate) async fn annotate(link: &Link, mut args: AnnotateArgs) -> Result<u8, Failure> {
    let selects = args.selection.is_given();
    if selects {
        // With a selection the first word is a change.
        args.changes.insert(0, args.run.run.clone());
    } else if args.changes.is_empty() && args.activity.is_none() {
        let failure = Failure::new("nothing to change: write KEY=VALUE or KEY-");
        return Err(failure.code(crate::USAGE));
    }
    let mut request = pb::AnnotateRunRequest {
        expected_version: args.expected_version,
        ..pb::AnnotateRunRequest::default()
    };
    for change in &args.changes {
        if let Some((key, value)) = change.split_once('=') {
            request.set.insert(key.to_owned(), value.to_owned());
        } else if let Some(key) = change.strip_suffix('-') {
            request.remove.push(key.to_owned());
        } else {
            let message = format!("{change:?} changes nothing: write KEY=VALUE or KEY-");
            return Err(Failure::new(message));
        }
    }
    if let Some(activity) = args.activity {
        request.set_activity(activity);
    }
    if selects {
        return for_each(link, &args.selection, Action::Annotate(request)).await;
    }
    request.run_id = link.run_id(&args.run.run).await?;
    let run = run_of(link.call(request).await?.run)?;
    print_exact(&link.shown_of(&run, &run, || pairs(&run))).map(|()| 0)
}

fn pairs(run: &pb::Run) -> String {
    let mut text = String::new();
    for (key, value) in &run.annotations {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key}={value}");
    }
    text
}
