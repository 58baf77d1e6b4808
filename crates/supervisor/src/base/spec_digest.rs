//! Keyed digests of a client's spec: a repeat is recognised by them, and the parts in which another spec differs.

use kennel_lifecycle::RecordedSpec;
use std::sync::Arc;

/// Version of the algorithm, in the row beside the digest; a change needs another number.
pub(crate) const DIGEST_VERSION: i32 = 4;
/// Version before, with one digest of the whole: rows of servers of that version have it.
const WHOLE_VERSION: i32 = 3;
/// Length of the digest of one part.
pub const PART_BYTES: usize = 16;

/// Part of a spec that has a digest of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecPart {
    /// All that is recorded and compared.
    Recorded,
    /// Values of the variables that the caller sets.
    EnvValues,
    /// Standard input.
    Input,
    /// Values of secrets that the caller has sent.
    SentSecrets,
}

impl SpecPart {
    /// All parts, in the order of their digests.
    pub const ALL: [Self; 4] = [
        Self::Recorded,
        Self::EnvValues,
        Self::Input,
        Self::SentSecrets,
    ];
}

/// Digests of a spec under the key of this installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecDigest {
    /// Digest of each part.
    pub parts: [[u8; PART_BYTES]; 4],
    /// Digest of the whole, as the version before makes it.
    pub whole: [u8; 32],
}

impl SpecDigest {
    /// Returns the form in a row of [`DIGEST_VERSION`].
    pub(crate) fn stored(&self) -> Vec<u8> {
        self.parts.concat()
    }

    /// Returns the parts in which a spec with this stored digest differs; absent: the digests cannot say which.
    pub(crate) fn different_parts(&self, version: i32, stored: &[u8]) -> Option<Vec<SpecPart>> {
        if version == WHOLE_VERSION && *stored == self.whole {
            return Some(Vec::new());
        }
        let (there, rest) = stored.as_chunks::<PART_BYTES>();
        let is_known = version == DIGEST_VERSION && rest.is_empty() && there.len() == 4;
        is_known.then(|| {
            let each = SpecPart::ALL.iter().zip(there.iter().zip(&self.parts));
            let different = each.filter(|(_, (there, own))| there != own);
            different.map(|(part, _)| *part).collect()
        })
    }
}

/// The spec of a run beside the one that was requested under its id, its key or its name.
#[derive(Clone, Debug)]
pub struct ComparedSpecs {
    /// Spec of the run.
    pub existing: Arc<RecordedSpec>,
    /// Requested spec, as a run would have it at this node.
    pub requested: Arc<RecordedSpec>,
    /// Parts that differ; absent: the digests cannot say which.
    pub different: Option<Vec<SpecPart>>,
}
