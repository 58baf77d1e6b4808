//! Readiness and result of a run, as typed.

use super::spec::span;
use crate::{
    args::ReadyArgs,
    failure::Failure,
    values::{GrpcPort, LocalUrl},
};
use kennel_proto::pb::{self, liveness::Probe as LiveProbe, output_rule::Action, readiness::Probe};

/// Name of the rule of `--result-line`.
const RESULT_RULE: &str = "result";

pub(crate) fn readiness(args: &ReadyArgs) -> Result<Option<Box<pb::Readiness>>, Failure> {
    let line = args
        .ready_line
        .as_ref()
        .map(|text| Probe::Line(regex(text)));
    let tcp = args.ready_tcp.map(|port| Probe::Tcp(tcp(port)));
    let http = args.ready_http.as_ref().map(|url| Probe::Http(http(url)));
    let grpc = args.ready_grpc.as_ref().map(|at| Probe::Grpc(grpc(at)));
    let exec = args
        .ready_exec
        .as_deref()
        .map(|script| Probe::Exec(exec(script)));
    let notify = args
        .ready_notify
        .then_some(Probe::Notify(pb::NotifyProbe {}));
    let Some(probe) = line.or(tcp).or(http).or(grpc).or(exec).or(notify) else {
        return Ok(None);
    };
    Ok(Some(Box::new(pb::Readiness {
        probe: Some(probe),
        interval: span(args.ready_interval, "interval")?,
        timeout: None,
        start_timeout: span(args.start_timeout, "start timeout")?,
    })))
}

pub(crate) fn liveness(args: &ReadyArgs) -> Result<Option<pb::Liveness>, Failure> {
    let tcp = args.live_tcp.map(|port| LiveProbe::Tcp(tcp(port)));
    let http = args
        .live_http
        .as_ref()
        .map(|url| LiveProbe::Http(http(url)));
    let grpc = args.live_grpc.as_ref().map(|at| LiveProbe::Grpc(grpc(at)));
    let exec = args
        .live_exec
        .as_deref()
        .map(|script| LiveProbe::Exec(exec(script)));
    let watchdog = span(args.watchdog, "watchdog")?.map(LiveProbe::Watchdog);
    let Some(probe) = tcp.or(http).or(grpc).or(exec).or(watchdog) else {
        return Ok(None);
    };
    Ok(Some(pb::Liveness {
        probe: Some(probe),
        interval: span(args.live_interval, "interval of liveness")?,
        timeout: span(args.live_timeout, "timeout of liveness")?,
        failure_threshold: args.live_failures,
    }))
}

fn tcp(port: u16) -> pb::TcpProbe {
    pb::TcpProbe {
        port: u32::from(port),
    }
}

fn exec(script: &str) -> pb::ExecProbe {
    pb::ExecProbe {
        args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
    }
}

fn grpc(at: &GrpcPort) -> pb::GrpcProbe {
    pb::GrpcProbe {
        port: u32::from(at.port),
        service: at.service.clone(),
    }
}

fn http(url: &LocalUrl) -> pb::HttpProbe {
    pb::HttpProbe {
        port: u32::from(url.port),
        path: url.path.clone(),
    }
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
