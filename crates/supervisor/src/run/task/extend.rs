//! Extensions of the run's limits of time, by callers and by the command. The keeper counts `max_runtime`, and the
//! start of a command that reports itself ready; this task counts the others. Each extension is an entry, and with that
//! a facet of the run.

use super::RunTask;
use crate::{
    base::{
        calls::{CallError, ExtendCall},
        clock,
    },
    run::task::done::{Done, ExtendDone, ExtendReply},
};
use kennel_keeper::client::{ExtendResult, Extended};
use kennel_lifecycle::{Deadline, Extendable, Extension, NOTIFIED, Phase, Refusal, Timestamp};
use kennel_linux::crash_point;
use std::{collections::BTreeMap, time::Duration};

/// Limits that can be extended.
const LIMITS: [Deadline; 3] = [
    Deadline::StartTimeout,
    Deadline::MaxRuntime,
    Deadline::Inactivity,
];

impl RunTask {
    /// Extends limits, all or none, and answers when that is durable.
    pub(super) fn extend(&mut self, call: Box<ExtendCall>, reply: ExtendReply) {
        let limits = match self.check_extension(&call) {
            Ok(limits) => limits,
            // A caller that is gone needs no answer.
            Err(error) => return drop(reply.send(Err(error))),
        };
        self.extend_limits(call, limits, reply);
    }

    /// Asks the keeper to extend what it counts, and extends the others after that.
    fn extend_limits(&mut self, call: Box<ExtendCall>, limits: Vec<Deadline>, reply: ExtendReply) {
        let counted = limits.iter().copied();
        let counted: Vec<Deadline> = counted.filter(|l| self.keeper_counts(*l)).collect();
        let mut extended = ExtendDone {
            call,
            limits,
            attempt: self.new.attempt,
            result: Ok(ExtendResult::Done(Extended::default())),
            reply,
        };
        if counted.is_empty() {
            return self.extended(extended);
        }
        self.op(move |shared, run, done| async move {
            crash_point!("extend.ask");
            let call = &extended.call;
            let asked = shared.kernel.extend(run, &counted, call.time, &call.by);
            extended.result = asked.await.map_err(CallError::from);
            let _ = done.send(Done::Extended(Box::new(extended))).await;
        });
    }

    pub(super) fn extended(&mut self, mut done: ExtendDone) {
        crash_point!("extend.asked");
        if let Ok(ExtendResult::NoLimit(over)) = done.result {
            // The keeper knows first that the attempt is ready: a call that names no limit means the other limits.
            let others = done.limits.iter().filter(|limit| **limit != over);
            let means_others = done.call.limits.is_empty() && done.attempt == self.new.attempt;
            if means_others && others.count() > 0 {
                done.limits.retain(|limit| *limit != over);
                return self.extend_limits(done.call, done.limits, done.reply);
            }
        }
        match self.finish_extension(&done) {
            Ok(()) => self.answer_when_durable(done.reply),
            Err(error) => drop(done.reply.send(Err(error))),
        }
    }

    fn finish_extension(&mut self, done: &ExtendDone) -> Result<(), CallError> {
        let run = self.run;
        if done.attempt != self.new.attempt {
            return Err(self.refuse_call(Refusal::Stopping));
        }
        if let Some(refusal) = self.refuses_time() {
            return Err(self.refuse_call(refusal));
        }
        let totals = match done.result {
            Ok(ExtendResult::Done(totals)) => totals,
            Ok(ExtendResult::TooLong { limit, possible }) => {
                return Err(CallError::ExtensionTooLong {
                    run,
                    limit,
                    possible,
                });
            }
            Ok(ExtendResult::NoLimit(limit)) => {
                let limit = Some(limit);
                return Err(CallError::NoTimeLimit { run, limit });
            }
            Ok(ExtendResult::Gone) => return Err(self.refuse_call(Refusal::Stopping)),
            Err(ref error) => return Err(error.clone()),
        };
        let mut is_news = false;
        for limit in done.limits.iter().copied() {
            is_news |= if self.keeper_counts(limit) {
                self.note_total(limit, totals.of(limit), &done.call.by)
            } else {
                self.lengthen(limit, done.call.time, &done.call.by)
            };
        }
        if is_news {
            self.facets_changed();
        }
        Ok(())
    }

    /// Handles the keeper's report of an extension. It is repeated to each server.
    pub(super) fn heard_extension(&mut self, limit: Deadline, total: Duration, by: &str) {
        if self.note_total(limit, total, by) {
            self.facets_changed();
        }
    }

    /// Extends what this task counts for the command, as far as the bound allows: so much from `at` on, which may be
    /// long ago where the keeper repeats it. Returns whether that is news.
    pub(super) fn extends(&mut self, at: Timestamp, time: Duration) -> bool {
        let (Some(then), Some(now)) = (self.run_time_at(at), self.run_time()) else {
            return false;
        };
        let time = then.saturating_add(time).saturating_sub(now);
        if self.refuses_time().is_some() {
            return false;
        }
        let mut is_news = false;
        for limit in LIMITS {
            if self.counts(limit) && !self.keeper_counts(limit) {
                is_news |= self.lengthen(limit, time, NOTIFIED);
            }
        }
        is_news
    }

    /// Returns the extension of this limit in the present attempt.
    pub(super) fn extension(&self, limit: Deadline) -> Extension {
        let extensions = &self.facets.shown().extensions;
        extensions.of(self.new.attempt, limit)
    }

    /// Returns for how long the attempt has run, pauses not counted, whatever was done to the clock; absent: it has not
    /// started.
    pub(super) fn run_time(&self) -> Option<Duration> {
        self.run_time_at(clock::now())
    }

    fn run_time_at(&self, at: Timestamp) -> Option<Duration> {
        let between = |from, to| self.shared.clock.between(from, to);
        self.machine.record().run_time(at, &between)
    }

    /// Returns this limit with its extension, counted from the start of the attempt; absent: there is none.
    pub(super) fn extended_limit(&self, limit: Deadline) -> Option<Duration> {
        let own = self.new.policy().extendable(limit)?;
        Some(own.saturating_add(self.extension(limit).total))
    }

    /// Returns when each limit ends, as far as that is known and counts: that of inactivity where it was extended,
    /// since its silence has no end before.
    pub(super) fn limit_ends(&self) -> BTreeMap<Deadline, Timestamp> {
        if !matches!(self.machine.phase(), Phase::Running | Phase::Pausing { .. }) {
            return BTreeMap::new();
        }
        let (record, clock) = (self.machine.record(), &self.shared.clock);
        let between = |from, to| clock.between(from, to);
        let ends = LIMITS.into_iter().filter(|limit| self.counts(*limit));
        let ends = ends.filter_map(|limit| {
            let end = match limit {
                Deadline::Inactivity => Some(self.extension(limit).end).filter(|e| !e.is_zero()),
                _ => self.extended_limit(limit),
            };
            let over = record.over_at(Some(end?), &between)?;
            Some((limit, clock.reckoned(record.times.started?, over)))
        });
        ends.collect()
    }

    /// Returns the limits to extend: those of the call, or where it names none, all that count.
    fn check_extension(&self, call: &ExtendCall) -> Result<Vec<Deadline>, CallError> {
        if let Some(refusal) = self.refuses_time() {
            return Err(self.refuse_call(refusal));
        }
        let run = self.run;
        let limits: Vec<Deadline> = if call.limits.is_empty() {
            let all = LIMITS.into_iter();
            all.filter(|limit| self.counts(*limit)).collect()
        } else {
            call.limits.clone()
        };
        let limit = limits.iter().copied().find(|limit| !self.counts(*limit));
        if limit.is_some() || limits.is_empty() {
            return Err(CallError::NoTimeLimit { run, limit });
        }
        for limit in limits.iter().copied().filter(|l| !self.keeper_counts(*l)) {
            if let Err(possible) = self.extendable(limit).whole(call.time) {
                return Err(CallError::ExtensionTooLong {
                    run,
                    limit,
                    possible,
                });
            }
        }
        Ok(limits)
    }

    /// Limits count from the start of the command until it is stopped.
    fn refuses_time(&self) -> Option<Refusal> {
        match self.machine.phase() {
            Phase::Running
            | Phase::Pausing { .. }
            | Phase::Paused
            | Phase::Resuming
            // The keeper still counts while remaining processes continue, and refuses once they are being stopped.
            | Phase::Draining { stop: None, .. } => None,
            Phase::Accepted
            | Phase::Preparing { .. }
            | Phase::Gated { .. }
            | Phase::Leaving(_)
            | Phase::Released => Some(Refusal::NotRunningYet),
            // The next attempt can be extended.
            _ if self.attempts.has_next_attempt() => Some(Refusal::NotRunningYet),
            Phase::Closed(_) | Phase::Forgotten(_) => Some(Refusal::Ended),
            Phase::Stopping { .. } | Phase::Draining { .. } | Phase::Closing(_) => {
                Some(Refusal::Stopping)
            }
        }
    }

    /// Whether the present attempt has this limit, and counts it: that of its start until it is ready, and of a rest
    /// that its leader has left that of its run time alone.
    fn counts(&self, limit: Deadline) -> bool {
        let is_over = match limit {
            Deadline::MaxRuntime | Deadline::MaxPause => false,
            _ if self.machine.record().leader.is_some() => true,
            Deadline::StartTimeout => self.facets.shown().is_ready(self.new.attempt),
            Deadline::Inactivity => false,
        };
        self.new.policy().extendable(limit).is_some() && !is_over
    }

    fn keeper_counts(&self, limit: Deadline) -> bool {
        match limit {
            Deadline::StartTimeout => self.new.policy().is_ready_by_notice(),
            Deadline::MaxRuntime | Deadline::MaxPause => true,
            Deadline::Inactivity => false,
        }
    }

    /// Returns a limit that this task counts, as it is now.
    fn extendable(&self, limit: Deadline) -> Extendable {
        let own = self.new.policy().extendable(limit).unwrap_or_default();
        let extended = self.extension(limit).total;
        let left = if limit == Deadline::Inactivity {
            self.conditions.silence.left(own, clock::instant())
        } else {
            let passed = self.run_time().unwrap_or_default();
            own.saturating_add(extended).saturating_sub(passed)
        };
        Extendable {
            left,
            extended,
            most: self.new.policy().timeouts.extension_max(),
        }
    }

    /// Extends a limit that this task counts, as far as the bound allows. Returns whether that is news.
    fn lengthen(&mut self, limit: Deadline, time: Duration, by: &str) -> bool {
        let extendable = self.extendable(limit);
        let more = extendable.cut(time);
        let total = extendable.extended + more;
        if limit != Deadline::Inactivity {
            return self.note_total(limit, total, by);
        }
        let left = extendable.left + more;
        let end = self.run_time().unwrap_or_default().saturating_add(left);
        let is_news = self.note_extension(limit, Extension { total, end }, by);
        if is_news {
            self.conditions.silence.spare(left);
        }
        is_news
    }

    fn note_total(&mut self, limit: Deadline, total: Duration, by: &str) -> bool {
        let Some(own) = self.new.policy().extendable(limit) else {
            return false;
        };
        let end = own.saturating_add(total);
        self.note_extension(limit, Extension { total, end }, by)
    }

    fn note_extension(&mut self, limit: Deadline, to: Extension, by: &str) -> bool {
        let extensions = &self.facets.shown().extensions;
        let Some(entry) = extensions.change(self.new.attempt, limit, to, by) else {
            return false;
        };
        self.note(&entry);
        let total_seconds = to.total.as_secs_f64();
        tracing::info!(run_id = %self.run, limit = limit.name(), total_seconds, by, "limit of time extended");
        true
    }
}
