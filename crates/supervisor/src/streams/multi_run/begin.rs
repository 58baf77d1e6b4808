//! Start of a multi-run stream, as a position that can be stored.

use super::{ManyCall, ManyFrom, ManyReached};
use crate::{base::calls::Reached, registry::Supervisor};
use kennel_journal::Position;

impl Supervisor {
    /// Returns the position at which a stream of this node's runs begins that is opened now.
    pub fn begin_of_many(&self, call: &ManyCall) -> ManyReached {
        let now = self.shared.store.newest();
        match &call.from {
            ManyFrom::Beginning => ManyReached::default(),
            ManyFrom::Tail(tail) => ManyReached {
                tail: Some((*tail, now)),
                ..ManyReached::default()
            },
            ManyFrom::After(reached) => reached.clone(),
            ManyFrom::LiveOnly => {
                let mut reached = ManyReached::default();
                // A run announced later is given upon its announcement.
                reached.settle(self.shared.announced_until(now));
                for (run, handle) in self.shared.all() {
                    let live = handle.live.borrow();
                    if !self.shared.is_announced(run)
                        || live.view.outcome.is_some()
                        || !live.view.has_marks(&call.filter)
                    {
                        continue;
                    }
                    // A run that does not match yet is given in full once it matches.
                    let hub = live.hub.as_ref().filter(|_| live.view.fits(&call.filter));
                    let head = hub.map(|hub| Position::from(hub.head()).into());
                    let at: Reached = head.unwrap_or_default();
                    reached.open.insert(run, at);
                }
                reached
            }
        }
    }
}
