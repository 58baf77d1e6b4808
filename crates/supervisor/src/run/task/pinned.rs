//! Pinned runs: a later version has said something of the run that this one does not know, and without which it would
//! decide wrongly. The keeper supervises it on; this task begins no attempt, keeps no limit, and obeys an abort alone.

use super::RunTask;
use crate::{
    base::{calls::Pinned, clock},
    registry::Order,
};

impl RunTask {
    /// Pins the run where its spec has a need or a value that this version does not know.
    pub(super) fn pin_by_spec(&mut self) {
        if let Some(unknown) = self.new.spec.unknown() {
            self.pin(unknown.to_owned());
        }
    }

    /// Pins the run, once.
    pub(super) fn pin(&mut self, by: String) {
        if self.pinned.is_some() {
            return;
        }
        tracing::error!(run_id = %self.run, by, "run is pinned by a later version: only an abort acts");
        let since = clock::now();
        self.pinned = Some(Pinned { by, since });
    }

    /// Refuses an order that a pinned run does not take.
    pub(super) fn unless_pinned(&mut self, order: Order) -> Option<Order> {
        let Some(pinned) = &self.pinned else {
            return Some(order);
        };
        let refused = pinned.refusal(self.run, self.state());
        if let Order::Stop(..) | Order::InputAccepted(..) | Order::Warn(_) | Order::Pin(_) = order {
            return Some(order);
        }
        order.refuse(refused);
        None
    }
}
