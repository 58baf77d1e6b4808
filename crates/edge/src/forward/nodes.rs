//! Connections to other nodes.

use crate::access::Access;
use kennel_client::{Address, Authorized, Connection, Credentials, connect_with, shown};
use kennel_lifecycle::NodeId;
use kennel_supervisor::Elsewhere;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// Longest time of a connect with its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time between two pings of a node on this host while a call is open: the node may be halted.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Connections to other nodes: one for each, made when it is needed, with the credentials of the access file.
pub(crate) struct Links {
    access: Arc<Access>,
    open: Mutex<HashMap<NodeId, (String, Connection)>>,
}

impl Links {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self {
            access,
            open: Mutex::default(),
        }
    }

    /// Whether a call to this node can be tried: its address and the credentials for it are known.
    pub(super) fn may_reach(&self, node: &Elsewhere) -> bool {
        match node.address.parse() {
            Ok(Address::Unix(_)) => true,
            Ok(Address::Tcp { .. }) => self.access.rules().forward.is_some(),
            Err(_) => false,
        }
    }

    /// Returns a channel to this node; or why there is none.
    pub(super) async fn to(&self, node: &Elsewhere) -> Result<Authorized, String> {
        let open = self.open.lock().get(&node.node).cloned();
        if let Some((address, connection)) = open
            && address == node.address
        {
            return Ok(connection.channel());
        }
        let address: Address = node.address.parse().map_err(|error| shown(&error))?;
        let tls = self.access.rules().forward.clone().unwrap_or_default();
        let credentials = Credentials {
            tls,
            local_pings: Some(PING_EVERY),
            is_shared: true,
            ..Credentials::default()
        };
        let connecting = connect_with(&address, &credentials);
        let connected = tokio::time::timeout(CONNECT_MAX, connecting).await;
        let connection = connected
            .map_err(|_| format!("no connection within {} s", CONNECT_MAX.as_secs()))?
            .map_err(|error| shown(&error))?;
        let channel = connection.channel();
        self.open
            .lock()
            .insert(node.node, (node.address.clone(), connection));
        Ok(channel)
    }

    /// Drops the failed connection to this node: the next call makes another one, with the credentials of that time.
    pub(super) fn forget(&self, node: &Elsewhere) {
        self.open.lock().remove(&node.node);
    }
}
