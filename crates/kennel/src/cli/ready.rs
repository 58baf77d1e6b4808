//! Readiness and result of a run, as they were typed.

use super::spec::span;
use crate::{args::ReadyArgs, failure::Failure};
use kennel_proto::pb::{self, output_rule::Action, readiness::Probe};

/// Name of the rule that `--result-line` is.
const RESULT_RULE: &str = "result";

pub(crate) fn readiness(args: &ReadyArgs) -> Result<Option<Box<pb::Readiness>>, Failure> {
    let line = args
        .ready_line
        .as_ref()
        .map(|text| Probe::Line(regex(text)));
    let tcp = args.ready_tcp.map(|port| {
        Probe::Tcp(pb::TcpProbe {
            port: u32::from(port),
        })
    });
    let http = args.ready_http.as_ref().map(|url| {
        Probe::Http(pb::HttpProbe {
            port: u32::from(url.port),
            path: url.path.clone(),
        })
    });
    let Some(probe) = line.or(tcp).or(http) else {
        return Ok(None);
    };
    Ok(Some(Box::new(pb::Readiness {
        probe: Some(probe),
        interval: span(args.ready_interval, "interval")?,
        timeout: None,
        start_timeout: span(args.start_timeout, "start timeout")?,
    })))
}

pub(crate) fn rules(args: &ReadyArgs) -> Result<Vec<pb::OutputRule>, Failure> {
    let Some(line) = &args.result_line else {
        return Ok(Vec::new());
    };
    Ok(vec![pb::OutputRule {
        name: RESULT_RULE.to_owned(),
        pattern: Some(regex(line)),
        streams: Vec::new(),
        action: Some(Action::Result(pb::output_rule::Result {
            after: span(args.result_after, "time after the result")?,
            grace: None,
        })),
    }])
}

fn regex(text: &str) -> pb::LinePattern {
    pb::LinePattern {
        pattern: Some(pb::line_pattern::Pattern::Regex(text.to_owned())),
    }
}
