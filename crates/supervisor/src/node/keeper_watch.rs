//! A keeper that does not answer: what needs it is refused meanwhile, and the log and the audit trail have it.

use crate::{audit_log::TrailRecord, registry::Supervisor};
use kennel_lifecycle::Timestamp;
use tokio::sync::watch;

impl Supervisor {
    /// Since when the keeper has not answered, and every change of that; absent: it answers.
    #[must_use]
    pub fn keeper_unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.shared.kernel.unresponsive()
    }

    /// Writes down each time that it does not answer, and when it does again.
    pub(crate) async fn watch_keeper(self) {
        let mut unresponsive = self.keeper_unresponsive();
        let pid = self.shared.hello.keeper.pid;
        while unresponsive.changed().await.is_ok() {
            let since = *unresponsive.borrow_and_update();
            let what = if since.is_some() {
                tracing::error!(
                    keeper.pid = pid,
                    "the keeper does not answer: nothing is started, signalled or ended until it does"
                );
                "keeper_unresponsive"
            } else {
                tracing::info!(keeper.pid = pid, "the keeper answers again");
                "keeper_answers"
            };
            let record = TrailRecord::node(what, [("keeper_pid", pid.to_string())]);
            self.shared.trail.tell(record);
        }
    }
}
