//! From acceptance to the open gate, and the ways that lead back before it.

use super::{Machine, failed_at, recorded, with_tree};
use crate::{Effect, Leaving, NeverRan, Phase, Report, Row, StartStage, StopOrder, TreeVerdict};

impl Machine {
    pub(super) fn preparing(&mut self, stop: Option<StopOrder>, report: Report) -> Phase {
        match report {
            Report::Prepared(proc) => match stop {
                // INV-2: the stop came before the gate opened.
                Some(order) => self.shut_gate(NeverRan::Stopped(order), Row::Owed),
                None => {
                    self.identity = Some(proc);
                    self.effects.push(Effect::Record);
                    Phase::Gated { stop: None }
                }
            },
            Report::PrepareFailed(failure) => match stop {
                Some(order) => {
                    self.close_never_ran(NeverRan::Stopped(order), TreeVerdict::NeverRan)
                }
                None if self.follows => {
                    self.close_never_ran(NeverRan::Failed(failure), TreeVerdict::NeverRan)
                }
                None => {
                    self.effects.push(Effect::Forget);
                    Phase::Forgotten(NeverRan::Failed(failure))
                }
            },
            // A stop refers to the run under the key, which is not this run.
            Report::KeyTaken => {
                self.effects.push(Effect::Forget);
                Phase::Forgotten(NeverRan::Superseded)
            }
            _ => Phase::Preparing { stop },
        }
    }

    pub(super) fn gated(&mut self, stop: Option<StopOrder>, report: Report) -> Phase {
        let why = |failed| stop.clone().map_or(failed, NeverRan::Stopped);
        match report {
            Report::Recorded => match stop {
                Some(order) => self.shut_gate(NeverRan::Stopped(order), Row::Owed),
                None => {
                    // INV-1: recorded only here, after the row was committed, and this phase ends with it.
                    if let Some(identity) = self.identity.take() {
                        self.append(recorded(identity));
                    }
                    // INV-1, INV-2: Release only after the row is written and with no stop accepted.
                    self.effects.push(Effect::Release);
                    Phase::Released
                }
            },
            Report::RecordFailed => {
                let row = self.unrecorded_row(stop.is_some());
                let why = why(failed_at(StartStage::Record));
                self.shut_gate(why, row)
            }
            Report::RecordUnknown => {
                let row = self.perhaps_recorded_row(stop.is_some());
                let why = why(failed_at(StartStage::Record));
                self.shut_gate(why, row)
            }
            Report::KeyTaken => self.shut_gate(NeverRan::Superseded, Row::Absent),
            // The child is gone, but the INSERT may still succeed: its row must be closed.
            Report::NotReleased | Report::LeaderExited(_) => {
                let why = why(failed_at(StartStage::Gate));
                self.shut_gate(why, Row::InFlight)
            }
            Report::TreeEnded(tree) => {
                let why = why(failed_at(StartStage::Gate));
                let phase = self.shut_gate(why, Row::InFlight);
                with_tree(phase, tree)
            }
            Report::Prepared(_)
            | Report::PrepareFailed(_)
            | Report::StopRecorded
            | Report::StateRecorded(_)
            | Report::StateNotRecorded(_)
            | Report::Executed
            | Report::ExecFailed(_)
            | Report::StreamsClosed(_)
            | Report::LeftBehind(_)
            | Report::Signalled(_)
            | Report::InputStopped(_)
            | Report::CommandStopped(_)
            | Report::KillSent
            | Report::MemoryKills(_)
            | Report::Usage(_)
            | Report::Census(_)
            | Report::TreeStuck(_)
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::PauseExpired
            | Report::KeeperStops { .. }
            | Report::OutcomeRecorded
            | Report::Withdrawn
            | Report::NotWithdrawn => Phase::Gated { stop },
        }
    }

    /// Stops a run whose child exits without having run.
    pub(super) fn stop_leaving(&mut self, mut leaving: Leaving, order: StopOrder) -> Phase {
        if let NeverRan::Failed(_) = leaving.why
            && leaving.row != Row::Owed
        {
            leaving.why = NeverRan::Stopped(order);
            // The stop must outlive this server: a late retry of the spawn must find it.
            if let Row::Absent | Row::Void = leaving.row {
                leaving.row = Row::Owed;
            }
        }
        self.settle(leaving)
    }

    pub(super) fn leaving(&mut self, mut leaving: Leaving, report: Report) -> Phase {
        match (report, leaving.row) {
            (Report::TreeEnded(tree), _) => {
                leaving.tree.get_or_insert(tree);
            }
            (Report::Recorded, Row::InFlight) | (Report::NotWithdrawn, Row::Withdrawing) => {
                leaving.row = Row::Owed;
            }
            (Report::RecordUnknown, Row::InFlight) => {
                let stopped = matches!(leaving.why, NeverRan::Stopped(_));
                leaving.row = self.perhaps_recorded_row(stopped);
            }
            (Report::RecordFailed, Row::InFlight) | (Report::Withdrawn, Row::Withdrawing) => {
                let stopped = matches!(leaving.why, NeverRan::Stopped(_));
                leaving.row = self.unrecorded_row(stopped);
            }
            (Report::KeyTaken, Row::InFlight) => {
                leaving.row = Row::Absent;
                leaving.why = NeverRan::Superseded;
            }
            _ => {}
        }
        self.settle(leaving)
    }

    /// Closes or forgets the run once its row and the end of its tree allow it.
    fn settle(&mut self, mut leaving: Leaving) -> Phase {
        match (leaving.row, leaving.tree.take()) {
            (Row::Owed, Some(tree)) => self.close_never_ran(leaving.why, tree),
            (Row::Absent, Some(_)) => {
                self.effects.extend([Effect::Acknowledge, Effect::Forget]);
                Phase::Forgotten(leaving.why)
            }
            (Row::Void, Some(tree)) => {
                self.effects.push(Effect::Withdraw);
                leaving.row = Row::Withdrawing;
                with_tree(Phase::Leaving(leaving), tree)
            }
            (_, tree) => Phase::Leaving(Leaving { tree, ..leaving }),
        }
    }
}
