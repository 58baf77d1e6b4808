//! Upgrade: a server makes room for one of another binary. Who requests it, and what happens to this server; the keeper
//! does the rest.

use crate::{base::calls::CallError, registry::Supervisor};
use kennel_keeper::client::{Upgrade, UpgradeRefusal};

impl Supervisor {
    /// Asks the keeper to start a server of the installed binary in the place of this one. Answers when that binary was
    /// found fit: from then on this server leaves.
    pub async fn upgrade(&self, request_id: Option<String>) -> Result<Upgrade, CallError> {
        let asked = self.shared.kernel.upgrade(request_id.as_deref()).await?;
        asked.map_err(CallError::NotUpgraded)
    }

    /// Logs a refused upgrade that a signal requested: no caller gets the result.
    pub(crate) fn log_not_upgraded(refusal: &UpgradeRefusal) {
        tracing::error!("not upgraded: {refusal}");
    }
}
