//! Orders for a run, from callers, limits and the server itself.

use super::{RunTask, signalling::PendingSignal};
use crate::{
    base::{calls::CallError, clock},
    registry::{InputNews, Order},
    run::output::Output,
};
use kennel_keeper::client::SignalResult;
use kennel_lifecycle::{Command, Entry, Input, Phase, Refusal, StopOrder, StopReason};

impl RunTask {
    /// Refuses an order whose event readers of the journal or the next server need, where the events of the run have
    /// reached their bound.
    fn within_bound(&self, order: Order) -> Option<Order> {
        let Some(limit) = self.output.as_ref().and_then(Output::full_of_events) else {
            return Some(order);
        };
        let what = "bytes of events of this run".to_owned();
        let full = CallError::QuotaExceeded { what, limit };
        match order {
            Order::Resize(..) | Order::Pause(_) => order.refuse(full),
            order => return Some(order),
        }
        None
    }

    pub(super) fn order(&mut self, order: Order) {
        self.at = clock::now();
        let Some(order) = self.within_bound(order) else {
            return;
        };
        let Some(order) = self.unless_pinned(order) else {
            return;
        };
        if self.attempts.due().is_some() {
            return self.order_between(order);
        }
        match order {
            Order::Stop(order, reply) => {
                let _ = reply.send(self.stop(order));
            }
            Order::Restart(call, reply) => {
                let answer = self.restart(call).map_err(|why| self.refuse_call(why));
                drop(reply.send(answer));
            }
            Order::Interrupt(request_id, reply) => {
                self.signal(PendingSignal::Interrupt(request_id, reply));
            }
            Order::Signal(call, reply) => self.signal(PendingSignal::Named(call, reply)),
            Order::Resize(call, reply) => self.resize(call, reply),
            Order::InputAccepted(input, reply) => {
                if input.is_new {
                    self.conditions.silence.break_off();
                    self.conditions.answer_shown(input.at);
                }
                let InputNews {
                    questions,
                    how,
                    by,
                    write,
                    ..
                } = *input;
                self.answered(Some(&questions), how, by, write);
                // A caller that has gone needs no answer.
                let _ = reply.send(());
            }
            Order::Warn(message) => self.note(&Entry::Warning { message }),
            Order::Pin(by) => {
                self.pin(by);
                self.publish_view();
            }
            Order::Annotate(call, reply) => self.annotate(*call, reply),
            Order::Extend(call, reply) => self.extend(call, reply),
            Order::Pause(reply) => match self.machine.phase() {
                // If an earlier caller still waits for the row, this caller waits too.
                Phase::Paused if self.waiters.pausing.is_empty() => {
                    drop(reply.send(Ok(SignalResult::Done)));
                }
                Phase::Paused | Phase::Pausing { .. } => self.waiters.pausing.push(reply),
                _ => match self.feed(Input::Command(Command::Pause)) {
                    Ok(()) => self.waiters.pausing.push(reply),
                    Err(refusal) => drop(reply.send(Err(self.refuse_call(refusal)))),
                },
            },
            Order::Resume(reply) => match self.machine.phase() {
                Phase::Running => drop(reply.send(Ok(SignalResult::Done))),
                _ => match self.feed(Input::Command(Command::Resume)) {
                    Ok(()) => self.waiters.resuming.push(reply),
                    Err(refusal) => drop(reply.send(Err(self.refuse_call(refusal)))),
                },
            },
        }
    }

    pub(super) fn stop(&mut self, order: StopOrder) -> Result<(), Refusal> {
        let wanted = self.stays_wanted(&order);
        let before = self.projection.pending_stops;
        self.feed(Input::Command(Command::Stop(order.clone())))?;
        if !wanted {
            if self.projection.pending_stops == before {
                self.record_request(&order);
            }
            self.attempts.wants_end(order);
        }
        self.decide_about_ended_attempt();
        Ok(())
    }

    /// Has the run stopped where it has reached a limit at which its spec demands that.
    pub(super) fn keep_limit(&mut self) {
        if self.pinned.is_some() {
            return;
        }
        let Some(reason) = self.limit_reached() else {
            return;
        };
        self.at = clock::now();
        tracing::warn!(run_id = %self.run, limit = reason.name(), "stopping the run, as its spec demands");
        let result = self.facets.shown().result_of(self.new.attempt);
        let grace = match (&reason, result) {
            (StopReason::Result { .. }, Some(result)) => result.grace,
            _ => self.new.policy().grace(),
        };
        self.stop_unasked(StopOrder { reason, grace });
    }

    /// A stop that no caller has asked for.
    pub(super) fn stop_unasked(&mut self, order: StopOrder) {
        if self.pinned.is_some() {
            return;
        }
        if self.attempts.due().is_some() {
            return self.end_waiting(&order);
        }
        // An ended or stopping run refuses the stop.
        let _ = self.stop(order);
    }

    pub(super) fn limit_reached(&mut self) -> Option<StopReason> {
        let limit = self.output.as_mut().and_then(Output::limit_reached);
        let limit = limit.map(StopReason::LimitExceeded);
        limit
            .or_else(|| self.keep_silence())
            .or_else(|| self.keep_rules())
    }

    pub(super) fn answer_waiters(&mut self) {
        let phase = self.machine.phase();
        let refused = self.refuse_call(match phase {
            Phase::Closed(_) | Phase::Forgotten(_) => Refusal::Ended,
            _ => Refusal::Stopping,
        });
        self.waiters.answer(phase, refused);
    }
}
