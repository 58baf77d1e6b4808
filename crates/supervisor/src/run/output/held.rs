//! Output that waits at its bound until consumers have acknowledged the oldest ([`OnOutputFull::Block`]).

use super::{Output, Ready, WARNINGS_MAX};
use crate::{
    base::clock,
    registry::floors::{Floor, Floors},
};
use kennel_lifecycle::{Entry, OnOutputFull};
use std::mem::Discriminant;

/// Whether output waits, and what was reported of that.
#[derive(Debug, Default)]
pub(super) struct Held {
    holds: bool,
    /// The floor that was last reported as blocking.
    reported: Option<Discriminant<Floor>>,
}

impl Held {
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    pub(super) fn hold(&mut self) {
        self.holds = true;
    }
}

impl Output {
    /// Makes the output wait for consumers of the run where its policy says so.
    pub(crate) fn behind(mut self, floors: &Floors) -> Self {
        if self.writer.bound().on_full == OnOutputFull::Block {
            self.floor = Some(floors.of(self.run));
        }
        self
    }

    /// Whether output waits for consumers.
    pub(crate) fn holds(&self) -> bool {
        self.held.holds()
    }

    /// Waits until consumers have acknowledged more. Cancel-safe.
    pub(super) async fn floor_moved(&self) -> Ready {
        // Values that this copy has seen count as handled.
        let moved = match self.floor.clone() {
            Some(mut floor) => floor.changed().await.is_ok(),
            None => false,
        };
        if !moved {
            std::future::pending::<()>().await;
        }
        Ready::Floor
    }

    /// Applies what was acknowledged by now.
    pub(super) fn apply_floor(&mut self) {
        self.held.holds = false;
        if let Some(floor) = &mut self.floor
            && let Floor::UpTo(seq) = *floor.borrow_and_update()
        {
            self.writer.release_up_to(seq);
        }
    }

    /// Stops to wait for consumers: further output exceeds the bound, and nothing unacknowledged is removed for it.
    pub(crate) fn go_beyond(&mut self) {
        self.held.holds = false;
        self.writer.go_beyond_bound(true);
    }

    /// Reports among the events that output waits, and for which consumers.
    pub(super) fn report_held(&mut self) {
        let Some(floor) = self.floor.as_ref().filter(|_| self.held.holds) else {
            return;
        };
        let floor = *floor.borrow();
        let max = self.writer.bound().max_bytes;
        let why = match floor {
            // The store query is pending; the wait may end at once.
            Floor::Unknown => return,
            Floor::NoConsumer => {
                "no consumer of the run is registered that could acknowledge the oldest"
            }
            Floor::UpTo(_) => "a consumer of the run has not acknowledged the oldest",
        };
        let floor = std::mem::discriminant(&floor);
        if self.held.reported == Some(floor) || self.disk.warnings >= WARNINGS_MAX {
            return;
        }
        self.held.reported = Some(floor);
        self.disk.warnings += 1;
        let message =
            format!("output waits, and the command with it: {max} bytes are kept, and {why}");
        tracing::warn!(run_id = %self.run, why, "output blocked: waiting for consumers to acknowledge");
        self.line(&Entry::Warning { message }, clock::now());
    }
}
