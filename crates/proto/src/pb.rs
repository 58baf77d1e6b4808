//! The generated contract, as it is in `proto/kennel/v1`.

#![expect(
    clippy::pedantic,
    reason = "generated; what the contract says is said in the proto files"
)]

tonic::include_proto!("kennel.v1");

/// The contract as an encoded `FileDescriptorSet`, with its imports and comments.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kennel.v1.binpb"));
