//! One signal to processes of a run.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{request, tree},
    enums::parsed,
    pb,
    verbs::record::word,
};
use kennel_lifecycle::{Signal, Violation};
use kennel_supervisor::{LoggedProcess, LoggedSignal, SignalCall, SignalTarget};

/// Most processes that one record lists.
const PROCESSES_LOGGED_MAX: usize = 64;

parsed! {
    fn target(SignalTarget) -> SignalTarget
    { Unspecified | Leader => Leader, Tree, Group, TerminalForeground }
}

impl Verb for pb::SignalRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = SignalCall;

    fn logged(&self, record: Asked) -> Asked {
        let target = word(self.target().as_str_name(), "SIGNAL_TARGET_");
        record.with("signal", &self.signal).with("target", target)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        let signal = match self.signal.parse::<Signal>() {
            // The processes would stop, and the run would still be reported as running.
            Ok(Signal::STOP) => Err("cannot be SIGSTOP: Pause stops a run and says so"),
            Ok(signal) => Ok(signal),
            Err(()) => Err("must be the name of a signal, such as SIGUSR1 or SIGRTMIN+3"),
        };
        let signal = signal.map_err(|why| found.push(Violation::new("signal", why)));
        let target = target("target", self.target, found);
        Some(SignalCall {
            run: run?,
            signal: signal.ok()?,
            target,
            request_id,
        })
    }

    fn answered(answer: &Self::Answer, record: Asked) -> Asked {
        if answer.repeated_request {
            return record;
        }
        let run = answer.run.as_ref().map(|run| run.run_id.clone());
        let signal = signalled(answer, &record);
        record.signalled(run, signal)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        Ok(tree::signalled(at.supervisor.signal(call).await?))
    }
}

/// Returns the targets of a client's signal.
fn signalled(done: &pb::SignalResponse, record: &Asked) -> LoggedSignal {
    let attempt = done
        .run
        .as_ref()
        .and_then(|run| run.current_attempt.as_ref());
    let identity = attempt.and_then(|attempt| attempt.identity.as_ref());
    let mut reported = LoggedSignal {
        attempt: attempt.map_or(0, |attempt| attempt.number),
        signal: record.asked("signal"),
        scope: "client".into(),
        sender: "keeper".into(),
        why: format!("{} asked for it", record.by()),
        unlisted: done.unlisted_targets,
        boot_id: identity.map_or_else(String::new, |identity| identity.boot_id.clone()),
        ..LoggedSignal::default()
    };
    for target in &done.targets {
        let result = match target.outcome() {
            pb::SignalOutcome::Delivered | pb::SignalOutcome::Unspecified => {
                reported.delivered += 1;
                "delivered"
            }
            pb::SignalOutcome::Gone => {
                reported.gone += 1;
                "gone"
            }
            pb::SignalOutcome::Failed => {
                reported.refused += 1;
                reported.errno = reported.errno.or(target.error_number);
                "refused"
            }
        };
        if reported.processes.len() < PROCESSES_LOGGED_MAX {
            reported.processes.push(LoggedProcess {
                pid: target.pid,
                start_ticks: target.start_ticks,
                evidence: vec!["member".into()],
                result: result.into(),
            });
        } else {
            reported.unlisted += 1;
        }
    }
    reported
}
