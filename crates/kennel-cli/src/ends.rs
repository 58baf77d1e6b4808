//! The signals that end this process, for commands that put something back first.

use crate::failure::{Failure, because};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for them.
pub struct Ends([Signal; 4]);

impl Ends {
    /// Begins to listen.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(because("cannot listen for signals"));
        Ok(Self([
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::interrupt())?,
            listen(SignalKind::quit())?,
        ]))
    }

    /// Waits for one of them.
    pub async fn came(&mut self) {
        let [terminate, hangup, interrupt, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    }
}
