//! Single processes of a run, in the contract's form.

use super::{run, time, usage};
use crate::pb;
use kennel_lifecycle::Usage;
use kennel_supervisor::{
    Holds, Listing, Member, RunView, SignalOutcome, Signalled, SignalledProcess,
};

pub(crate) fn signalled(signalled: Signalled) -> pb::SignalResponse {
    pb::SignalResponse {
        run: Some(run::run(signalled.run)),
        targets: signalled
            .signalled
            .signalled
            .into_iter()
            .map(signalled_process)
            .collect(),
        unlisted_targets: signalled.signalled.unlisted,
        repeated_request: signalled.repeated,
    }
}

fn signalled_process(process: SignalledProcess) -> pb::SignalledProcess {
    let (outcome, errno) = match process.result {
        SignalOutcome::Delivered => (pb::SignalOutcome::Delivered, None),
        SignalOutcome::Gone => (pb::SignalOutcome::Gone, None),
        SignalOutcome::Failed(errno) => (pb::SignalOutcome::Failed, Some(errno)),
    };
    pb::SignalledProcess {
        pid: process.pid,
        start_ticks: process.start_ticks,
        outcome: outcome.into(),
        error_number: errno,
    }
}

pub(crate) fn tree(view: RunView, listing: Listing, used: Option<&Usage>) -> pb::GetTreeResponse {
    let mut run = run::run(view);
    usage::add(&mut run, used);
    pb::GetTreeResponse {
        run: Some(run),
        processes: listing.members.into_iter().map(process).collect(),
        unlisted_processes: listing.unlisted,
    }
}

fn process(member: Member) -> pb::TreeProcess {
    pb::TreeProcess {
        pid: member.pid,
        parent_pid: member.ppid,
        process_group_id: member.pgid,
        session_id: member.sid,
        start_ticks: member.start_ticks,
        name: member.name,
        args: member.args,
        args_truncated: member.args_cut,
        state: member.state.to_string(),
        rss_bytes: member.rss_bytes,
        cpu_time: member.cpu_time.map(time::duration),
        listening_tcp_ports: member.listening_ports.into_iter().map(u32::from).collect(),
        listening_tcp_ports_truncated: member.ports_cut,
        held_by: holds(member.holds),
    }
}

fn holds(holds: Holds) -> Vec<i32> {
    let all = [
        (holds.cgroup, pb::ProcessHold::Cgroup),
        (holds.shim, pb::ProcessHold::Shim),
        (holds.keeper, pb::ProcessHold::Keeper),
    ];
    let those = all.into_iter().filter(|(holds, _)| *holds);
    those.map(|(_, hold)| hold.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_outcomes_and_holds_have_proto_values() {
        let results = [
            (SignalOutcome::Delivered, pb::SignalOutcome::Delivered, None),
            (SignalOutcome::Gone, pb::SignalOutcome::Gone, None),
            (SignalOutcome::Failed(1), pb::SignalOutcome::Failed, Some(1)),
        ];
        for (result, outcome, errno) in results {
            let reported = signalled_process(SignalledProcess {
                pid: 7,
                start_ticks: 8,
                result,
            });
            assert_eq!((reported.pid, reported.start_ticks), (7, 8));
            assert_eq!(
                (reported.outcome(), reported.error_number),
                (outcome, errno)
            );
        }
        let held = |cgroup, shim, keeper| {
            holds(Holds {
                cgroup,
                shim,
                keeper,
            })
        };
        let [cgroup, shim, keeper] = [
            pb::ProcessHold::Cgroup,
            pb::ProcessHold::Shim,
            pb::ProcessHold::Keeper,
        ]
        .map(i32::from);
        assert_eq!(held(true, true, false), [cgroup, shim]);
        assert_eq!(held(false, false, true), [keeper]);
    }
}
