//! `kennel wait-output`: waits for a matching line of output, across restarts of the server.

use crate::{
    args::{RunRef, of_enum},
    exit::TIMED_OUT,
    failure::{Failure, note},
    link::{Link, print_exact},
    values,
};
use clap::Args;
use kennel_proto::pb::{
    self, OutputStream, line_pattern::Pattern, wait_for_output_response::Result as Found,
};
use std::time::Duration;
use tokio::time::timeout;

#[derive(Debug, Args)]
pub struct WaitOutputArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Regular expression that matches a part of a line; with --fixed, text; with --json, a JSON value such as
    /// '"result"'
    #[arg(value_name = "PATTERN", required_unless_present = "json")]
    pub(crate) pattern: Option<String>,
    /// Take PATTERN as text
    #[arg(short = 'F', long, conflicts_with = "json")]
    pub(crate) fixed: bool,
    /// Match lines of JSON that have a value at this JSON Pointer, such as /type: PATTERN, or any value
    #[arg(long, value_name = "POINTER")]
    pub(crate) json: Option<String>,
    /// Search this stream only
    #[arg(long, value_name = "STREAM", value_parser = of_enum("kennel.v1.OutputStream", OutputStream::from_str_name))]
    pub(crate) stream: Option<OutputStream>,
    /// Search after the event of this number [default: from the beginning]
    #[arg(
        long,
        value_name = "SEQ",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) after: u64,
    /// Longest line in bytes that is matched as a whole, up to 16 MiB [default: 64 KiB]
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) line_bytes: u32,
    /// Give up after this time with exit code 124; the run continues
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Exit code of a run that has ended without a match.
const NOT_FOUND: u8 = 3;

pub(crate) async fn wait_output(link: &Link, args: WaitOutputArgs) -> Result<u8, Failure> {
    let run_id = link.run_id(&args.run.run).await?;
    let patience = args.timeout.unwrap_or(Duration::MAX);
    let request = request(run_id.clone(), args);
    let Ok(answered) = timeout(patience, link.call(request)).await else {
        let message = format!("run {run_id}: {patience:?} have passed, and no line matches");
        return Err(Failure::new(message).code(TIMED_OUT));
    };
    let response = answered?;
    if response.incomplete {
        note(&format_args!(
            "output of run {run_id} is no longer kept, a match may be missing"
        ));
    }
    match &response.result {
        Some(Found::Match(found)) => {
            let text = || format!("{}\n", found.line);
            print_exact(&link.shown(found, text))?;
            Ok(0)
        }
        Some(Found::Ended(_)) | None => {
            let message = format!("run {run_id} has ended, and no line matched");
            Err(Failure::new(message).code(NOT_FOUND))
        }
    }
}

fn request(run_id: String, args: WaitOutputArgs) -> pb::WaitForOutputRequest {
    let text = args.pattern.unwrap_or_default();
    let pattern = match args.json {
        Some(pointer) => Pattern::Json(pb::JsonPattern {
            pointer,
            equals: text,
            ..pb::JsonPattern::default()
        }),
        None if args.fixed => Pattern::Literal(text),
        None => Pattern::Regex(text),
    };
    pb::WaitForOutputRequest {
        run_id,
        pattern: Some(pb::LinePattern {
            pattern: Some(pattern),
        }),
        streams: (args.stream.into_iter()).map(Into::into).collect(),
        after_seq: args.after,
        line_bytes_max: args.line_bytes,
    }
}
