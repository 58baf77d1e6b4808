//! Handles the keeper's reports of a run, and the results of work that its task has started.

use super::{Room, RunTask};
use crate::{
    base::{calls::CallError, clock, view::StartAnswer},
    run::task::{RunStage, done::Done},
};
use kennel_keeper::client::{ClientError, Fact, KeeperReport, Prepared, SignalResult};
use kennel_lifecycle::{
    AnsweredBy, Entry, Report, RowState, Signal, StartFailure, StartStage, limits,
};
use kennel_linux::crash_point;
use kennel_store::Desired;

impl RunTask {
    pub(super) fn kernel(&mut self, report: KeeperReport) {
        if self.legacy.hears_again {
            self.legacy.hears_again = !matches!(report.fact, Fact::TreeEnded(_));
            return;
        }
        // Reports come in the order of their events; shim and keeper each add their own time, so the exit of a quick
        // command may be timed before its start.
        self.at = self
            .times()
            .started
            .map_or(report.at, |started| started.max(report.at));
        crash_point!("spawn.executed", matches!(report.fact, Fact::Executed {}));
        crash_point!("exit.leader", matches!(report.fact, Fact::LeaderExited(_)));
        crash_point!("exit.tree", matches!(report.fact, Fact::TreeEnded(_)));
        let report = match report.fact {
            Fact::Notified(notified) => {
                self.notified(report.at, notified);
                return;
            }
            Fact::Extended { limit, total, by } => {
                self.heard_extension(limit, total, &by);
                return;
            }
            Fact::NotReleased {} => Report::NotReleased,
            Fact::Executed {} => Report::Executed,
            Fact::ExecFailed(failure) => Report::ExecFailed(failure),
            Fact::LeaderExited(exit) => Report::LeaderExited(exit),
            Fact::PauseExpired {} => Report::PauseExpired,
            Fact::Stops(reason) => Report::KeeperStops {
                reason,
                grace: self.new.policy().grace(),
            },
            Fact::TreeEnded(tree) => {
                self.report(Report::Census(report.at));
                Report::TreeEnded(tree)
            }
            Fact::LeftBehind(left) => Report::LeftBehind(left),
            Fact::MemoryKills(kills) => Report::MemoryKills(kills),
            Fact::Usage(usage) => Report::Usage(usage),
            Fact::TreeStuck(stuck) => Report::TreeStuck(stuck),
            Fact::StopInput(done) => Report::InputStopped(done),
            Fact::StopCommand(done) => Report::CommandStopped(done),
            Fact::RoundTargets(targets) => {
                self.note_targets(targets);
                return;
            }
            Fact::StopStep(step) => {
                self.record_round(&step);
                // The certificate has no signal round after the verdict: such a round was for survivors of a late stop.
                if self.machine.ends().tree.is_some() {
                    return;
                }
                let again = self.note_signal(&Entry::StopStep(step));
                self.legacy.steps_again += usize::from(again);
                // The certificate includes the count of rounds that it does not list.
                if again && self.legacy.steps_again > limits::STEPS_LISTED_MAX {
                    return;
                }
                Report::Signalled(step)
            }
            Fact::SignalSent {
                signal,
                targets,
                errno,
            } => {
                let kills = signal == Signal::KILL && targets != Some(0);
                self.note_signal(&Entry::SignalSent {
                    signal,
                    targets,
                    errno,
                });
                if !kills {
                    return;
                }
                Report::KillSent
            }
        };
        self.report(report);
    }

    pub(super) fn take_in(&mut self, done: Done) {
        self.at = clock::now();
        match done {
            Done::Prepared(result) => self.prepared(*result),
            Done::LeftOver(row) => self.left_over(*row),
            Done::Report(report) => {
                if let Report::StateRecorded(RowState::Paused) = report {
                    self.waiters.paused(&Ok(SignalResult::Done));
                }
                if let Report::StateNotRecorded(RowState::Pausing | RowState::Paused) = report {
                    self.waiters.paused(&Err(CallError::StoreUnavailable));
                }
                // Without a record, this task removes the run's files.
                self.legacy.unrecorded |= report == Report::Withdrawn;
                self.report(report);
            }
            Done::Aged(age, report) => {
                self.new.age = age;
                self.report(report);
            }
            Done::Taken(row) => {
                self.waiters.refused = Some(StartAnswer::Taken(row));
                self.report(Report::KeyTaken);
            }
            Done::Met(row) => self.met(*row),
            Done::Unread(row) => {
                self.pin(row.why.clone());
                self.take_over(row.open(self.new.clone()));
            }
            Done::Strange => {
                self.attempts.stage = RunStage::Disowned;
                self.projection.clear();
            }
            Done::StopDurable(deadline) => {
                self.attempts.desired = Desired::Stop;
                self.attempts.stop_deadline = Some(deadline);
                self.projection.stop_recorded();
                self.report(Report::StopRecorded);
            }
            Done::StopRefused => {
                self.projection.stop_due = None;
                self.report(Report::StopRecorded);
            }
            Done::Facets(revision) => self.facets_recorded(revision),
            Done::Probed { attempt, by } => self.probed(attempt, by),
            Done::NotLive {
                attempt,
                failures,
                error,
            } if attempt == self.new.attempt => self.conditions.not_live(failures, error),
            Done::NotLive { .. } => {}
            Done::InputStands { attempt, accepted } => {
                // Input beyond the question is its answer.
                if self.facets.shown().questions.are_behind(attempt, accepted) {
                    self.answered(None, AnsweredBy::Input, String::new(), None);
                }
            }
            Done::Warning { attempt, message } => self.warn_once(attempt, message),
            Done::Froze(result) => {
                let frozen = result == SignalResult::Done;
                self.waiters.pause_result = Some(result);
                self.report(if frozen {
                    Report::Frozen
                } else {
                    Report::NotFrozen
                });
            }
            Done::Resized(resized) => self.resized(*resized),
            Done::Extended(extended) => self.extended(*extended),
            Done::Removed => self.attempts.room = Room::Kept,
            Done::Closed(row) => {
                tracing::warn!(run_id = %self.run, "the row of this run was closed already, with another outcome, which stands");
                self.projection.closed_row = Some(row);
                self.disown();
            }
            Done::Disowned => self.disown(),
            Done::Written => {
                self.projection.written();
                self.next_write();
            }
        }
    }

    fn disown(&mut self) {
        self.attempts.stage = RunStage::Disowned;
        self.shared.kernel.acknowledge(self.run);
    }

    pub(super) fn prepared(&mut self, result: Result<Prepared, ClientError>) {
        crash_point!("spawn.prepared");
        self.attempts.preparing = false;
        let prepared = match result {
            Ok(prepared) => prepared,
            Err(error) => {
                let failure = match error {
                    ClientError::Start(failure) => failure,
                    ClientError::KeeperGone => {
                        // If the keeper was only slow, its child must not wait at the gate for ever.
                        self.shared.kernel.shut_gate(self.run);
                        self.waiters.refuse(CallError::Draining);
                        prepare_failure()
                    }
                    ClientError::Exhausted(what) => {
                        self.waiters.refuse(self.no_room(what));
                        prepare_failure()
                    }
                    error @ (ClientError::NoPty(_)
                    | ClientError::KeeperOlder
                    | ClientError::OtherLevels(_)) => {
                        self.waiters.refuse(error.into());
                        prepare_failure()
                    }
                    ClientError::TooWeak { wanted, held } => {
                        self.waiters.refuse(CallError::ContainmentUnavailable {
                            run: self.run,
                            wanted,
                            reached: held.by,
                            why: held.cgroup_refused().map(str::to_owned),
                        });
                        prepare_failure()
                    }
                };
                let why = failure.stage.api_name().to_owned();
                self.reporting.spans.prepared(&self.new, self.at, Some(why));
                return self.report(Report::PrepareFailed(failure));
            }
        };
        self.new.identity = Some(prepared.identity.clone());
        self.terminal = prepared.terminal;
        let attached = match &mut self.output {
            Some(output) => output.attach(prepared.outputs),
            None => Ok(()),
        };
        if let Some(why) = prepared.held.cgroup_refused() {
            self.reporting
                .warnings
                .push(format!("this run has no control group: {why}"));
        }
        self.new.held = Some(prepared.held);
        self.reporting.spans.prepared(&self.new, self.at, None);
        self.report(Report::Prepared(Box::new(prepared.identity)));
        if let Err(error) = attached {
            tracing::error!(run_id = %self.run, %error, "cannot read the output, the command is not released");
            self.waiters
                .refuse(self.no_room("descriptors of the server".into()));
            // The report shuts the gate and closes the pending row.
            self.report(Report::NotReleased);
        }
    }

    fn no_room(&self, what: String) -> CallError {
        let limit = u64::from(self.shared.config.runs_max);
        CallError::QuotaExceeded { what, limit }
    }

    /// Appends an entry about a signal, unless an earlier server has. Returns whether an earlier server has.
    pub(super) fn note_signal(&mut self, entry: &Entry) -> bool {
        let again = self.machine.record().has_signal(self.at, entry);
        if !again {
            self.note(entry);
        }
        again
    }
}

pub(super) fn prepare_failure() -> StartFailure {
    StartFailure {
        stage: StartStage::Prepare,
        errno: None,
        path: None,
    }
}
