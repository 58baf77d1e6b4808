//! Watches for a keeper that does not answer: calls that need it are refused meanwhile; the log and the audit log
//! record it.

use crate::registry::Supervisor;
use kennel_lifecycle::Timestamp;
use tokio::sync::watch;

impl Supervisor {
    /// Time since which the keeper has not answered, and every change of it; absent: it answers.
    pub fn keeper_unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.shared.kernel.unresponsive()
    }

    /// Records each time that the keeper stops answering, and when it answers again.
    pub(crate) async fn watch_keeper(self) {
        let mut unresponsive = self.keeper_unresponsive();
        let pid = self.shared.hello.keeper.pid;
        while unresponsive.changed().await.is_ok() {
            let since = *unresponsive.borrow_and_update();
            let what = if since.is_some() {
                tracing::error!(
                    keeper.pid = pid,
                    "the keeper does not answer: no process is started, signalled or ended until it answers"
                );
                "keeper_unresponsive"
            } else {
                tracing::info!(keeper.pid = pid, "the keeper answers again");
                "keeper_answers"
            };
            let keeper = [("keeper_pid", pid.to_string())];
            self.shared.trail.note(what, keeper);
        }
    }
}
