//! Extensions of the limits of time that the keeper counts, by callers and by notices of the command. Both mean: at
//! least this long from now on. A stop in progress has begun, and is not extended.

use super::{CommandStage, Run};
use crate::{
    values::{ExtendResult, Extended, Fact},
    wire::{Answer, WireExtend},
};
use kennel_lifecycle::{Deadline, Extendable};
use std::time::Duration;

impl Run {
    /// Extends limits for a caller: all that are named, or none. The shim learns it before the caller does.
    pub(in crate::keeper) fn extend(&mut self, seq: u64, request: &WireExtend, now: u64) {
        let result = self.extend_all(request, now);
        self.answer(seq, Answer::Extended(result));
    }

    fn extend_all(&mut self, request: &WireExtend, now: u64) -> ExtendResult {
        if !self.can_extend() {
            return ExtendResult::Gone;
        }
        let mut changes = Vec::new();
        for limit in request.limits.iter().copied() {
            let Some(extendable) = self.extendable(limit, now) else {
                return ExtendResult::NoLimit(limit);
            };
            match extendable.whole(request.time) {
                Ok(more) => changes.push((limit, more)),
                Err(possible) => return ExtendResult::TooLong { limit, possible },
            }
        }
        // Pending extensions by the command are first reported as the command's own.
        self.report_news(None);
        for (limit, more) in changes {
            if self.add_time(limit, more, now) {
                let (total, by) = (self.extended.of(limit), request.by.clone());
                self.report(Fact::Extended { limit, total, by });
            }
        }
        if let Some(notices) = &mut self.notices {
            notices.extensions_are_reported(self.extended);
        }
        ExtendResult::Done(self.extended)
    }

    /// Extends each limit that counts, for the command: as far as the bound allows. Returns whether the keeper could.
    pub(super) fn extend_by_notice(&mut self, time: Duration, now: u64) -> bool {
        let can_extend = self.can_extend();
        for limit in Extended::LIMITS.into_iter().filter(|_| can_extend) {
            if let Some(extendable) = self.extendable(limit, now) {
                self.add_time(limit, extendable.cut(time), now);
            }
        }
        can_extend
    }

    /// Reports extensions again: the previous keeper may have died before its report. Their source is not known here.
    pub(super) fn report_extended_again(&mut self) {
        for limit in Extended::LIMITS {
            let total = self.extended.of(limit);
            if !total.is_zero() {
                let by = String::new();
                self.report(Fact::Extended { limit, total, by });
            }
        }
    }

    fn can_extend(&self) -> bool {
        self.stage == CommandStage::Ran && self.ladder.is_none() && !self.ended
    }

    fn extendable(&self, limit: Deadline, now: u64) -> Option<Extendable> {
        let counted = match limit {
            Deadline::MaxRuntime => self.max_runtime,
            Deadline::StartTimeout => self.notices.as_ref()?.start_left(),
            Deadline::MaxPause | Deadline::Inactivity => None,
        };
        Some(Extendable {
            left: Duration::from_millis(counted?.left(now)),
            extended: self.extended.of(limit),
            most: self.policy.timeouts.extension_max(),
        })
    }

    /// Returns whether that is more than nothing.
    fn add_time(&mut self, limit: Deadline, more: Duration, now: u64) -> bool {
        // Rounds up: no run gets less time than was granted.
        let millis = u64::try_from(more.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        match limit {
            Deadline::MaxRuntime => {
                let counted = self.max_runtime.iter_mut();
                counted.for_each(|l| l.extend(millis, now));
            }
            Deadline::StartTimeout => {
                if let Some(notices) = &mut self.notices {
                    notices.extend_start(millis, now);
                }
            }
            Deadline::MaxPause | Deadline::Inactivity => {}
        }
        self.extended.add(limit, more);
        !more.is_zero()
    }
}
