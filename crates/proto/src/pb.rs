//! The generated contract, as it is in `proto/kennel/v1`.

#![expect(
    clippy::pedantic,
    reason = "generated; what the contract says is said in the proto files"
)]

tonic::include_proto!("kennel.v1");

/// Adds the fields of another message: what is repeated comes behind, what is not takes the place.
pub fn add<M: prost::Message>(to: &mut M, from: &M) {
    to.merge(&*from.encode_to_vec())
        .expect("it was encoded here");
}

/// For logs: without the value.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .field("source", &self.source)
            .field("delivery", &self.delivery())
            .field("trim_newline", &self.trim_newline)
            .finish()
    }
}

/// For logs: without the value.
impl std::fmt::Debug for secret::Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(..)"),
            Self::ServerFile(path) => f.debug_tuple("ServerFile").field(path).finish(),
            Self::Credential(name) => f.debug_tuple("Credential").field(name).finish(),
        }
    }
}

/// For logs: without values of variables and secrets, and without input.
impl std::fmt::Debug for RestartRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestartRequest")
            .field("run_id", &self.run_id)
            .field("request_id", &self.request_id)
            .field("grace", &self.grace)
            .field("expected_attempt", &self.expected_attempt)
            .field("new_run_id", &self.new_run_id)
            .finish_non_exhaustive()
    }
}

/// The contract as an encoded `FileDescriptorSet`, with its imports and without comments.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kennel.v1.binpb"));
