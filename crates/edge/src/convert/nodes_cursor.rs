//! The position of a multi-run stream, as an opaque cursor of the client: the place in the events of each node.
//!
//! Not a secret, and valid at every node: the places are those of [`super::many_cursor`], and each node checks its own.

use super::many_cursor::{SEAL_BYTES, Seal, without_place};
use crate::{
    convert::many_cursor::VERSION_OF_NODES,
    pb::{self, stream_events_request::Position},
};
use bytes::Bytes;
use kennel_lifecycle::NodeId;
use prost::Message;
use std::collections::BTreeMap;

/// A position in the events of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodesCursor {
    pub(crate) seal: Seal,
    /// Start of nodes that are not among `nodes`.
    pub(crate) others: Position,
    /// Place of each node: where it starts, or the cursor of its own events.
    pub(crate) nodes: BTreeMap<NodeId, Position>,
}

/// The encoded form.
#[derive(Clone, PartialEq, Message)]
struct Encoded {
    #[prost(bytes = "bytes", tag = "1")]
    seal: Bytes,
    #[prost(message, optional, tag = "2")]
    others: Option<pb::StreamEventsRequest>,
    #[prost(message, repeated, tag = "3")]
    nodes: Vec<EncodedNode>,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedNode {
    #[prost(bytes = "bytes", tag = "1")]
    node: Bytes,
    #[prost(message, optional, tag = "2")]
    place: Option<pb::StreamEventsRequest>,
}

impl NodesCursor {
    /// Returns the position at the start of a stream.
    pub(crate) fn starting(seal: Seal, at: Position) -> Self {
        Self {
            seal,
            others: at,
            nodes: BTreeMap::new(),
        }
    }

    /// Returns the place of a node.
    pub(crate) fn place(&self, node: NodeId) -> &Position {
        self.nodes.get(&node).unwrap_or(&self.others)
    }

    /// Returns its approximate encoded size in bytes.
    pub(crate) fn size(&self) -> usize {
        let len = |place: &Position| match place {
            Position::Cursor(cursor) => 48 + cursor.len(),
            _ => 48,
        };
        48 + self.nodes.values().map(len).sum::<usize>()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let encoded = Encoded {
            seal: Bytes::copy_from_slice(&self.seal.0),
            others: Some(at(&self.others)),
            nodes: (self.nodes.iter())
                .map(|(node, place)| EncodedNode {
                    node: Bytes::copy_from_slice(&node.as_u128().to_be_bytes()),
                    place: Some(at(place)),
                })
                .collect(),
        };
        let mut to = vec![VERSION_OF_NODES];
        to.extend(encoded.encode_to_vec());
        to.into()
    }

    /// Decodes a cursor, also one that a consumer got. Absent: not a cursor.
    pub(crate) fn decode(cursor: &[u8]) -> Option<Self> {
        let [VERSION_OF_NODES, encoded @ ..] = without_place(cursor)? else {
            return None;
        };
        let encoded = Encoded::decode(encoded).ok()?;
        let seal: [u8; SEAL_BYTES] = encoded.seal.as_ref().try_into().ok()?;
        let others = place(encoded.others)?;
        if let Position::Cursor(_) = others {
            return None;
        }
        let mut nodes = BTreeMap::new();
        for one in encoded.nodes {
            let node = NodeId::from_u128(u128::from_be_bytes(one.node.as_ref().try_into().ok()?));
            if nodes.insert(node, place(one.place)?).is_some() {
                return None;
            }
        }
        Some(Self {
            seal: Seal(seal),
            others,
            nodes,
        })
    }
}

fn at(place: &Position) -> pb::StreamEventsRequest {
    pb::StreamEventsRequest {
        position: Some(place.clone()),
        ..pb::StreamEventsRequest::default()
    }
}

fn place(encoded: Option<pb::StreamEventsRequest>) -> Option<Position> {
    // A seq belongs to one run, not to a node.
    encoded?
        .position
        .filter(|place| !matches!(place, Position::AfterSeq(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_supervisor::ListFilter;

    fn cursor() -> NodesCursor {
        let live = Position::Live(pb::FromLive {});
        let mut cursor = NodesCursor::starting(
            Seal::of(&ListFilter::default()),
            Position::Beginning(pb::FromBeginning {}),
        );
        let place = Position::Cursor(Bytes::from_static(b"place"));
        cursor.nodes.insert(NodeId::from_u128(7), place);
        cursor.nodes.insert(NodeId::from_u128(9), live);
        cursor
    }

    #[test]
    fn cursor_of_nodes_survives_a_round_trip() {
        let cursor = cursor();
        let bytes = cursor.encode();
        assert_eq!(NodesCursor::decode(&bytes), Some(cursor.clone()));
        assert_eq!(cursor.place(NodeId::from_u128(8)), &cursor.others);
        assert!(matches!(
            cursor.place(NodeId::from_u128(7)),
            Position::Cursor(_)
        ));
        assert_eq!(NodesCursor::decode(&[]), None);
        assert_eq!(NodesCursor::decode(&bytes[1..]), None);
        for len in 0..bytes.len() {
            // A cut at any point is detected.
            assert_ne!(NodesCursor::decode(&bytes[..len]), Some(cursor.clone()));
        }
    }

    /// Places of nodes that have ended stay for as long as there is room.
    // promise: I-78b
    #[test]
    fn nodes_cursor_holds_more_nodes_than_a_stream() {
        let mut cursor = cursor();
        for node in 0..=crate::limits::STREAM_NODES_MAX {
            let node = NodeId::from_u128(node as u128);
            cursor.nodes.insert(node, Position::Live(pb::FromLive {}));
        }
        assert_eq!(NodesCursor::decode(&cursor.encode()), Some(cursor));
    }

    #[test]
    fn nodes_cursor_with_a_run_position_is_refused() {
        let mut wrong = cursor();
        wrong.others = Position::Cursor(Bytes::new());
        assert_eq!(NodesCursor::decode(&wrong.encode()), None);
        let mut wrong = cursor();
        (wrong.nodes).insert(NodeId::from_u128(9), Position::AfterSeq(3));
        assert_eq!(NodesCursor::decode(&wrong.encode()), None);
    }
}
