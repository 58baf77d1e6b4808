//! Messages of the server, and names in messages that this version does not know.

use super::{Keeper, Run};
use crate::{
    values::{Recorded, SignalResult, SkippedBy},
    wire::{Answer, Head, ToKeeper, ToServer},
};
use kennel_lifecycle::RunId;
use kennel_linux::{clock, crash_point};
use std::os::fd::OwnedFd;

impl Keeper {
    /// Reports what a message was passed over for, once to each server.
    pub(super) fn report_skipped(&mut self, reader: SkippedBy, name: &str) {
        if let Some(report) = self.skipped.report(reader, name) {
            self.send_event(report);
        }
    }

    /// Does what a message says. `None`: it lacks its number or its run.
    pub(super) fn obey(&mut self, head: Head, message: ToKeeper, fds: Vec<OwnedFd>) -> Option<()> {
        let Head { seq, run } = head;
        let recorded = |run, identity, run_dir| Recorded {
            run,
            identity,
            run_dir,
        };
        match message {
            ToKeeper::Prepare(request) => self.prepare(seq?, run?, *request, fds),
            ToKeeper::Ready(_) => self.server_is_ready(),
            ToKeeper::Release {} => self.with_run(run?, |run, _| run.release()),
            ToKeeper::ShutGate {} => self.with_run(run?, |run, _| run.shut_gate()),
            ToKeeper::Stop { plan } => self.with_run(run?, |run, now| run.stop(&plan, now)),
            ToKeeper::Acknowledge {} => {
                crash_point!("keeper.acknowledge");
                self.with_run(run?, |run, _| run.acknowledge());
                crash_point!("keeper.acknowledged");
            }
            ToKeeper::KeepRest {} => self.with_run(run?, |run, _| run.keep_rest()),
            ToKeeper::Interrupt { request } => self.ask_run(seq?, run?, |run, seq, now| {
                run.interrupt(seq, request.as_deref(), now);
            }),
            ToKeeper::WasSent { request } => self.ask_run(seq?, run?, |run, seq, now| {
                run.answer_whether_sent(seq, &request, now);
            }),
            ToKeeper::Pause {} => self.ask_run(seq?, run?, Run::pause),
            ToKeeper::Resume {} => self.ask_run(seq?, run?, |run, seq, _| run.resume(seq)),
            ToKeeper::Help { argv, timeout_ms } => {
                self.ask_run(seq?, run?, |run, seq, _| run.help(seq, argv, timeout_ms));
            }
            ToKeeper::Extend(extend) => {
                self.ask_run(seq?, run?, |run, seq, now| run.extend(seq, &extend, now));
            }
            ToKeeper::Signal {
                signal,
                target,
                request,
            } => self.ask_run(seq?, run?, |run, seq, now| {
                run.signal(seq, signal, target, request.as_deref(), now);
            }),
            ToKeeper::Tree {} => self.ask_run(seq?, run?, Run::list),
            ToKeeper::Input { request } => {
                self.ask_run(seq?, run?, |run, seq, _| run.ask_input(seq, request));
            }
            ToKeeper::Resize { attempt, size } => {
                self.ask_run(seq?, run?, |run, seq, _| run.resize(seq, attempt, size));
            }
            ToKeeper::Inventory {} => self.send_inventory(seq?),
            ToKeeper::Reap {
                plan,
                victims,
                directories,
            } => self.begin_reaping(seq?, &plan, victims, directories),
            ToKeeper::Observe { identity, run_dir } => {
                self.observe(seq?, recorded(run?, identity, run_dir));
            }
            ToKeeper::EndOrphan {
                identity,
                run_dir,
                plan,
            } => {
                let recorded = recorded(run?, identity, run_dir);
                self.end_orphan(seq?, recorded, &plan, clock::boot_ms());
            }
            ToKeeper::KeeperSeen { keeper, host } => self.look_for_keeper(seq?, &keeper, &host),
            ToKeeper::Upgrade { request } => self.begin_upgrade(Some(seq?), request),
            ToKeeper::Pong {} => self.server_answered(clock::boot_ms()),
            ToKeeper::Ping {} => self.send(Head::NONE, &ToServer::Pong {}, Vec::new()),
        }
        Some(())
    }

    /// Lets a run act on a request, and answers where there is no such run.
    fn ask_run(&mut self, seq: u64, id: RunId, act: impl FnOnce(&mut Run, u64, u64)) {
        if self.runs.contains_key(&id) {
            self.with_run(id, |run, now| act(run, seq, now));
        } else {
            self.answer(seq, Answer::Signal(SignalResult::UnknownRun));
        }
    }
}
