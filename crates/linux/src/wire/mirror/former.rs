//! The end of a server, as the next one is told.

use super::WireExit;
use crate::client::{EndCause, FormerServer};
use kennel_lifecycle::Timestamp;
use serde::{Deserialize, Serialize};

mirror_enum!(
    /// [`EndCause`].
    WireEndCause = EndCause { ByItself, Hung, Late, Upgrade }
);

/// [`FormerServer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireFormer {
    pub(crate) version: String,
    pub(crate) at_us: i64,
    pub(crate) served: bool,
    pub(crate) exit: WireExit,
    pub(crate) cause: WireEndCause,
}

impl From<FormerServer> for WireFormer {
    fn from(real: FormerServer) -> Self {
        Self {
            version: real.version,
            at_us: real.at.0,
            served: real.served,
            exit: real.exit.into(),
            cause: real.cause.into(),
        }
    }
}

impl From<WireFormer> for FormerServer {
    fn from(wire: WireFormer) -> Self {
        Self {
            version: wire.version,
            at: Timestamp(wire.at_us),
            served: wire.served,
            exit: wire.exit.into(),
            cause: wire.cause.into(),
        }
    }
}
