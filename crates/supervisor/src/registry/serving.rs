//! Serving state of this server: one state, which only advances.

use std::sync::Arc;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ServingStage {
    #[default]
    Serving,
    /// Another server replaces this one: waiting calls end, short ones are finished.
    Leaving,
    /// Another server replaces this one, and all calls are answered.
    Answered,
    /// New work is refused, and runs are ended.
    ShuttingDown,
    /// The keeper is gone: what remains of all output is read, and nothing more is done.
    KeeperLost,
}

#[derive(Clone, Copy, Debug, Default)]
struct ServingState {
    stage: ServingStage,
    /// Streams end and listeners close.
    is_closing: bool,
    /// A task of this server has failed on which others rely.
    has_failed: bool,
}

/// Serving state, shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<watch::Sender<ServingState>>);

impl Serving {
    /// Begins to leave: another server is to replace this one.
    pub fn leave(&self) {
        self.advance(ServingStage::Leaving);
    }

    /// Reports that every call is answered: a server that leaves exits now.
    pub fn has_answered(&self) {
        // A server that does not leave continues to answer.
        self.0.send_if_modified(|state| {
            let leaves = state.stage == ServingStage::Leaving;
            if leaves {
                state.stage = ServingStage::Answered;
            }
            leaves
        });
    }

    /// Closes: streams end and listeners close.
    pub fn close(&self) {
        self.0.send_modify(|state| state.is_closing = true);
    }

    pub(crate) fn shut_down(&self) {
        self.advance(ServingStage::ShuttingDown);
    }

    pub(crate) fn lose_keeper(&self) {
        self.advance(ServingStage::KeeperLost);
        self.close();
    }

    pub(crate) fn fail(&self) {
        self.0.send_modify(|state| state.has_failed = true);
    }

    /// Whether another server is to replace this one.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage(), ServingStage::Leaving | ServingStage::Answered)
    }

    /// Whether this server takes no new work: its runs are being ended, and their ends are still reported.
    pub fn is_refusing(&self) -> bool {
        self.stage() >= ServingStage::ShuttingDown
    }

    pub(crate) fn has_lost_keeper(&self) -> bool {
        self.stage() == ServingStage::KeeperLost
    }

    /// Waits until another server is to replace this one. Cancel-safe, as all of these.
    pub async fn until_leaving(&self) {
        self.until(|state| matches!(state.stage, ServingStage::Leaving | ServingStage::Answered))
            .await;
    }

    /// Waits until this server takes no new work.
    pub async fn until_refusing(&self) {
        self.until(|state| state.stage >= ServingStage::ShuttingDown)
            .await;
    }

    /// Waits until streams end and listeners close.
    pub async fn until_closing(&self) {
        self.until(|state| state.is_closing).await;
    }

    pub(crate) async fn until_answered(&self) {
        self.until(|state| state.stage == ServingStage::Answered)
            .await;
    }

    pub(crate) async fn until_keeper_lost(&self) {
        self.until(|state| state.stage == ServingStage::KeeperLost)
            .await;
    }

    pub(crate) async fn until_failed(&self) {
        self.until(|state| state.has_failed).await;
    }

    fn stage(&self) -> ServingStage {
        self.0.borrow().stage
    }

    fn advance(&self, stage: ServingStage) {
        self.0.send_if_modified(|state| {
            let is_later = stage > state.stage;
            if is_later {
                state.stage = stage;
            }
            is_later
        });
    }

    async fn until(&self, holds: impl Fn(&ServingState) -> bool) {
        // `wait_for` cannot fail: `self` owns the sender.
        let _ = self.0.subscribe().wait_for(|state| holds(state)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn serving_state_only_advances_in_all_clones() {
        let serving = Serving::default();
        let other = serving.clone();
        serving.has_answered();
        assert!(!other.is_leaving() && !other.is_refusing());
        serving.leave();
        other.until_leaving().await;
        serving.has_answered();
        other.until_answered().await;
        assert!(other.is_leaving());
        // A shutdown wins over a server that leaves.
        serving.shut_down();
        serving.leave();
        assert!(other.is_refusing() && !other.is_leaving());
        assert!(!other.has_lost_keeper());
        serving.lose_keeper();
        other.until_keeper_lost().await;
        other.until_closing().await;
    }
}
