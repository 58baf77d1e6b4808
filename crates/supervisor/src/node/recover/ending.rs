//! How a recovered attempt is closed, and whether another one follows.

use super::{REST, Recovery};
use crate::{
    base::{blocking::blocking, clock},
    record::persisted_spec,
    run::{
        cleanup::Cleanup,
        task::{add, outlives_service, start_failure},
        writes,
    },
    telemetry::tell_end,
};
use kennel_keeper::rundir;
use kennel_lifecycle::{EndReason, Outcome, Timestamp, TreeVerdict};
use kennel_linux::crash_point;
use kennel_store::{Closure, Desired, Rest, RunRow, StoredState, Times};
use std::{sync::Arc, time::Duration};

impl Recovery {
    /// Whether the gate of a first attempt was not opened when the service ended: no caller was told that it runs, and its Spawn
    /// may be made again.
    pub(super) fn never_began(&self, outcome: &Outcome) -> bool {
        let lost = matches!(outcome.reason, EndReason::ServiceLost | EndReason::Rebooted);
        let never_ran = outcome.exit.is_none() && outcome.tree == TreeVerdict::NeverRan;
        let wanted = self.row.desired == Desired::Run && self.row.new.attempt == 1;
        lost && never_ran && wanted
    }

    /// Removes what was made for a run that has no row.
    pub(super) async fn forget(&self) {
        let (shared, run) = (Arc::clone(&self.shared), self.row.new.run);
        let removed = blocking(move || Cleanup::All.carry_out(&shared, run)).await;
        if let Err(error) = removed.flatten() {
            tracing::warn!(run_id = %run, %error, "what was made of the run stays");
        }
    }

    /// The stations with what is known only now.
    pub(super) fn times_at_end(&self, now: Timestamp, outcome: &Outcome) -> Times {
        let mut times = Times {
            ended: Some(now),
            ..self.row.times
        };
        if matches!(outcome.tree, TreeVerdict::Empty(_)) {
            times.tree_empty.get_or_insert(now);
        }
        times
    }

    /// Writes that the attempt has ended so, and when the next is due.
    pub(super) async fn rest(&mut self, outcome: Outcome, delay: Duration, restarts: u32) -> bool {
        self.serve_readers().await;
        self.take_saved_output();
        let now = clock::now();
        let times = self.times_at_end(now, &outcome);
        let mut past = self.row.past.clone();
        add(&mut past, &self.row.new, outcome, times);
        let rest = Rest {
            past,
            restarts,
            next: now.plus(delay),
        };
        writes::until_delivered(&self.shared, self.row.new.run).await;
        crash_point!("recover.rest");
        let written = writes::retry(
            &self.shared.store,
            self.row.new.run,
            "the end of the attempt",
            || self.shared.store.rest(&self.row.new, &rest),
        );
        let written = written.await;
        crash_point!("recover.rested");
        if !written {
            tokio::time::sleep(REST).await;
            return false;
        }
        self.row = RunRow {
            state: StoredState::Backoff,
            past: rest.past,
            restarts: rest.restarts,
            next_restart: Some(rest.next),
            times: Times {
                ended: None,
                ..times
            },
            ..self.row.clone()
        };
        true
    }

    /// Whether the attempt that is due may be begun here; if not, the run is closed.
    pub(super) async fn may_follow(&mut self) -> bool {
        let here = self.row.new.keeper_epoch == self.shared.hello.epoch;
        if !here && !outlives_service(&self.row.new) {
            // Its service has ended while it waited.
            self.close_between(EndReason::ServiceLost).await;
            return false;
        }
        let dir = rundir::path(&self.shared.config.data_dir, self.row.new.run);
        let at = dir.clone();
        let kept = blocking(move || persisted_spec::read(&at, 1)).await;
        match kept.flatten() {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(run_id = %self.row.new.run, %error, "what the next attempt is made of cannot be read");
                let failure = start_failure(&error, &dir);
                self.close_between(EndReason::StartFailed(failure)).await;
                false
            }
        }
    }

    /// Nothing of the run is there, and nothing will be.
    pub(super) async fn close_between(&mut self, reason: EndReason) {
        let Some(last) = self.row.past.last().cloned() else {
            return;
        };
        self.row.times = last.times;
        let outcome = Outcome {
            reason,
            ..last.outcome
        };
        self.close(outcome).await;
    }

    /// Journal first, then the row, then whoever waits.
    pub(super) async fn close(&mut self, outcome: Outcome) {
        let run = self.row.new.run;
        let now = clock::now();
        let times = self.times_at_end(now, &outcome);
        self.serve_readers().await;
        self.take_saved_output();
        writes::until_delivered(&self.shared, run).await;
        crash_point!("recover.close");
        let journal = self.journal.as_ref();
        let entries = journal.map(|journal| journal.entries_at_end(&outcome, now));
        let closure = Closure {
            outcome,
            times,
            entries,
        };
        let store = &self.shared.store;
        let written = writes::retry(store, run, "the outcome", || {
            store.close(&self.row.new, &closure)
        });
        let written = written.await;
        crash_point!("recover.closed");
        if !written {
            tokio::time::sleep(REST).await;
            return;
        }
        let Closure { outcome, times, .. } = closure;
        let at = times.ended.unwrap_or_else(clock::now);
        let telemetry = &self.shared.config.telemetry;
        let since = self.since;
        tell_end(telemetry, &self.row.new, &times, &outcome, (since, at));
        self.live.send_modify(|live| {
            live.view.state = outcome.state();
            live.view.desired = self.row.desired;
            live.view.times = times;
            live.view.exit = outcome.exit;
            live.view.outcome = Some(outcome.clone());
            live.view.stuck = None;
        });
        let told = match self
            .journal
            .take()
            .map(|mut journal| journal.end(&outcome, now))
        {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::error!(run_id = %run, %error, "the end is not in the journal, the next server tries again");
                false
            }
            None => false,
        };
        crash_point!("recover.reported");
        let shared = Arc::clone(&self.shared);
        let cleanup = if told {
            Cleanup::Ended
        } else {
            Cleanup::Needless
        };
        let removed = blocking(move || cleanup.carry_out(&shared, run));
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(run_id = %run, %error, "the run's directory is not wholly removed");
        }
    }
}
