//! A second copy of what a row says before its command runs, outside of the database: from it a row that the database
//! has lost is written again while the run goes on. The keeper knows the rest: identity and what holds the run.

use crate::{NewRun, RunRow, json};

impl NewRun {
    /// The copy, as JSON. Has no identity in it, for it is made before there is one.
    #[must_use]
    pub fn spare(&self) -> Vec<u8> {
        json::bytes(&Self {
            identity: None,
            held: None,
            ..self.clone()
        })
    }

    /// The row in this copy.
    ///
    /// # Errors
    ///
    /// These bytes are no such copy; the text says where not.
    pub fn from_spare(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}

impl RunRow {
    /// The whole row, as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::bytes(self)
    }

    /// The row in these bytes.
    ///
    /// # Errors
    ///
    /// They are none that this version can read; the text says why.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}
