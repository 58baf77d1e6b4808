//! The other nodes, for a stream of the runs of all: which there are, and the events of each.

use super::nodes::Links;
use crate::{access::Caller, auth::behalf, limits, pb, status};
use http::HeaderMap;
use kennel_client::ProcessServiceClient;
use kennel_lifecycle::NodeId;
use kennel_supervisor::{Elsewhere, Supervisor};
use parking_lot::Mutex;
use std::{
    error::Error,
    sync::{Arc, Weak},
};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Status, Streaming, metadata::MetadataMap};

/// The nodes of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Known {
    /// They were not read yet.
    #[default]
    NotYet,
    /// They cannot be read, and never were.
    Unavailable,
    /// As they were read last, without the time of the last renewal: it changes all the time.
    Nodes(Arc<[Elsewhere]>),
}

impl Known {
    /// Returns this node.
    pub(crate) fn find(&self, node: NodeId) -> Option<&Elsewhere> {
        match self {
            Self::Nodes(nodes) => nodes.iter().find(|known| known.node == node),
            Self::NotYet | Self::Unavailable => None,
        }
    }
}

/// The list of nodes, read again and again while anyone has this.
pub(crate) struct Followed {
    known: watch::Receiver<Known>,
    _reads: AbortOnDropHandle<()>,
}

impl Followed {
    /// Returns the nodes, and their changes.
    pub(crate) fn nodes(&self) -> watch::Receiver<Known> {
        self.known.clone()
    }
}

/// All nodes, for streams of the runs of all.
pub(crate) struct Fleet {
    supervisor: Supervisor,
    links: Arc<Links>,
    followed: Mutex<Weak<Followed>>,
}

impl Fleet {
    pub(crate) fn new(supervisor: Supervisor, links: Arc<Links>) -> Self {
        Self {
            supervisor,
            links,
            followed: Mutex::default(),
        }
    }

    /// Follows the list of nodes; all that do share one reader of it.
    pub(crate) fn follow(&self) -> Arc<Followed> {
        let mut slot = self.followed.lock();
        if let Some(followed) = slot.upgrade() {
            return followed;
        }
        let (to, known) = watch::channel(Known::NotYet);
        let reads = tokio::spawn(read(self.supervisor.clone(), to));
        let followed = Arc::new(Followed {
            known,
            _reads: AbortOnDropHandle::new(reads),
        });
        *slot = Arc::downgrade(&followed);
        followed
    }

    /// Opens a stream of events at another node, which has the runs of that node alone.
    pub(crate) async fn stream_events(
        &self,
        node: &Elsewhere,
        caller: &Caller,
        request: pb::StreamEventsRequest,
    ) -> Result<Streaming<pb::StreamEventsResponse>, Status> {
        let unreachable = |why: &str| status::node_unreachable(node, why);
        if !self.links.may_reach(node) {
            return Err(unreachable(super::NO_CREDENTIALS));
        }
        let channel = Box::pin(self.links.to(node)).await;
        let channel = channel.map_err(|why| unreachable(&why))?;
        let mut headers = HeaderMap::new();
        behalf::name(&mut headers, caller, node).map_err(|e| unreachable(&e.to_string()))?;
        let mut request = Request::new(request);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        let mut processes = ProcessServiceClient::new(channel)
            .max_decoding_message_size(limits::STREAM_MESSAGE_BYTES_MAX);
        let opened = Box::pin(processes.stream_events(request)).await;
        let opened = opened.map_err(|status| {
            if status.source().is_none() {
                return status;
            }
            self.links.forget(node);
            unreachable(status.message())
        });
        opened.map(tonic::Response::into_inner)
    }
}

async fn read(supervisor: Supervisor, to: watch::Sender<Known>) {
    loop {
        let known = match supervisor.nodes().await {
            Ok(mut nodes) => {
                for node in &mut nodes {
                    node.last_heard = None;
                }
                Known::Nodes(nodes.into())
            }
            Err(_) => Known::Unavailable,
        };
        to.send_if_modified(|before| {
            // The last known list is better than none.
            let is_worse = known == Known::Unavailable && matches!(before, Known::Nodes(_));
            let is_news = !is_worse && *before != known;
            if is_news {
                *before = known;
            }
            is_news
        });
        tokio::time::sleep(limits::NODES_INTERVAL).await;
    }
}
