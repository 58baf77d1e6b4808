//! Stop certificates, in the contract's form.

use super::time;
use crate::{
    enums::mapped,
    pb::{self, exit, tree_verdict},
};
use kennel_lifecycle::{
    Exit, Leftover, Leftovers, Outcome, Proof, SignalScope, SignalSender, StopCommand,
    StopCommandEnd, StopInput, StopStep, Stuck, StuckProcess, TreeVerdict,
};

/// Returns the certificate of a run with this outcome, with its containment and its verdict.
pub(crate) fn certificate(outcome: &Outcome, held_by: pb::Containment) -> pb::StopCertificate {
    let certificate = &outcome.certificate;
    let left = &certificate.leftovers;
    pb::StopCertificate {
        steps: certificate.steps.iter().map(step).collect(),
        steps_unlisted: certificate.steps_unlisted,
        containment: held_by.into(),
        leftovers: leftovers(left),
        leftovers_unlisted: left.unlisted,
        census_time: certificate.census.map(time::timestamp),
        verdict: Some(tree_verdict(&outcome.tree)),
        inputs: certificate.inputs.iter().map(input).collect(),
        commands: certificate.commands.iter().map(command).collect(),
    }
}

fn input(input: &StopInput) -> pb::StopInput {
    pb::StopInput {
        time: Some(time::timestamp(input.at)),
        bytes: input.bytes,
        written: input.written,
    }
}

fn command(command: &StopCommand) -> pb::StopCommand {
    use pb::stop_command::{End, NotStarted};
    pb::StopCommand {
        time: Some(time::timestamp(command.at)),
        name: command.name.clone(),
        end: Some(match command.end {
            StopCommandEnd::Exited(exit) => End::Exited(self::exit(exit)),
            StopCommandEnd::TimedOut => End::TimedOut(pb::stop_command::TimedOut {}),
            StopCommandEnd::NotStarted(errno) => End::NotStarted(NotStarted {
                error_number: errno,
            }),
            StopCommandEnd::CutOff => End::CutOff(pb::stop_command::CutOff {}),
        }),
    }
}

mapped! {
    fn scope(SignalScope) -> SignalScope { Tree ShimChildren PidNamespace, ControlGroup = CgroupKill }
}
mapped! { fn sender(SignalSender) -> SignalSender { Keeper Shim } }

fn step(step: &StopStep) -> pb::StopStep {
    pb::StopStep {
        time: Some(time::timestamp(step.at)),
        signal: step.signal.to_string(),
        scope: scope(step.scope).into(),
        sender: sender(step.sender).into(),
        delivered: step.delivered,
        gone: step.gone,
        refused: step.refused,
        error_number: step.errno,
    }
}

/// Converts it to an event.
pub(super) fn signal_sent(step: &StopStep) -> pb::SignalSent {
    pb::SignalSent {
        signal: step.signal.to_string(),
        targets: Some(step.targets()),
        error_number: step.errno,
        scope: scope(step.scope).into(),
        sender: sender(step.sender).into(),
        delivered: Some(step.delivered),
        gone: Some(step.gone),
        refused: Some(step.refused),
    }
}

/// Converts processes that SIGKILL does not end to a verdict on a run that has not ended.
pub(super) fn stuck(stuck: &Stuck) -> pb::TreeVerdict {
    let process = |p: &StuckProcess| pb::StuckProcess {
        pid: p.pid,
        start_ticks: p.start_ticks,
        state: p.state.to_string(),
        why: p.why.clone(),
    };
    let stuck = tree_verdict::Stuck {
        processes: stuck.processes.iter().map(process).collect(),
        unlisted: stuck.unlisted,
    };
    pb::TreeVerdict {
        verdict: Some(tree_verdict::Verdict::Stuck(stuck)),
    }
}

pub(crate) fn exit(exit: Exit) -> pb::Exit {
    let (result, core_dumped) = match exit {
        Exit::Code(code) => (exit::Result::Code(code), false),
        Exit::Signal {
            signal,
            core_dumped,
        } => (
            exit::Result::Signal(exit::Signal {
                name: signal.to_string(),
                number: signal.number(),
            }),
            core_dumped,
        ),
        Exit::Unknown => (exit::Result::Unknown(exit::Unknown {}), false),
    };
    pb::Exit {
        core_dumped,
        result: Some(result),
    }
}

pub(crate) fn leftovers(left: &Leftovers) -> Vec<pb::Leftover> {
    let one = |p: &Leftover| pb::Leftover {
        pid: p.pid,
        start_ticks: p.start_ticks,
        name: p.name.clone(),
    };
    left.processes.iter().map(one).collect()
}

mapped! { fn empty_proof(Proof) -> EmptyProof { CgroupAndEchild Echild Cgroup PrivatePidns } }

pub(crate) fn tree_verdict(verdict: &TreeVerdict) -> pb::TreeVerdict {
    use pb::tree_verdict::Verdict;
    let verdict = match verdict {
        TreeVerdict::Empty(proof) => Verdict::Empty(tree_verdict::Empty {
            proof: empty_proof(*proof).into(),
        }),
        TreeVerdict::Survivors(pids) => {
            Verdict::Survivors(tree_verdict::Survivors { pids: pids.clone() })
        }
        TreeVerdict::Unverified(why) => {
            Verdict::Unverified(tree_verdict::Unverified { why: why.clone() })
        }
        TreeVerdict::NeverRan => Verdict::NeverRan(tree_verdict::NeverRan {}),
        TreeVerdict::Kept(left) => Verdict::Kept(tree_verdict::Kept {
            processes: leftovers(left),
            unlisted: left.unlisted,
        }),
    };
    pb::TreeVerdict {
        verdict: Some(verdict),
    }
}
