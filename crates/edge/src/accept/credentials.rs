//! Follows the access file and the attempts of runs, and cuts connections whose certificate, token or user is no longer
//! valid.

use super::Connection;
use crate::{
    access::{self, Access},
    auth::PeerVerdict,
    limits::ACCESS_INTERVAL,
    run_tokens::RunTokens,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::task::JoinSet;

/// The rules, and the connections that they hold for.
#[derive(Debug)]
pub(crate) struct Credentials {
    access: Arc<Access>,
    /// Absent: no run may call.
    runs: Option<Arc<RunTokens>>,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Credentials {
    pub(crate) fn new(access: Arc<Access>, runs: Option<Arc<RunTokens>>) -> Arc<Self> {
        Arc::new(Self {
            access,
            runs,
            connections: Mutex::default(),
        })
    }

    pub(super) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Cuts this connection when the rules no longer permit it.
    pub(super) fn watch(&self, connection: &Arc<Connection>) {
        let is_of_run = matches!(connection.peer.verdict, PeerVerdict::OfARun(Some(_)));
        if self.access.may_change() || is_of_run {
            self.connections().push(Arc::downgrade(connection));
        }
    }

    /// Follows the file; never returns.
    pub(crate) async fn follow(&self) {
        let mut logged = None;
        let mut fetches = JoinSet::new();
        loop {
            self.access.fetch_keys(&mut fetches);
            tokio::time::sleep(ACCESS_INTERVAL).await;
            while let Some(fetched) = fetches.try_join_next() {
                if let Err(error) = fetched {
                    tracing::error!(%error, "fetching the keys of an issuer failed");
                }
            }
            if !self.access.may_change() {
                self.cut_invalid();
                continue;
            }
            let access = Arc::clone(&self.access);
            match tokio::task::spawn_blocking(move || access.refresh()).await {
                Ok(Ok(has_changed)) => {
                    if has_changed {
                        tracing::info!("access file read again");
                    }
                    logged = None;
                }
                Ok(Err(error)) => {
                    let error = error.to_string();
                    // Once, not every second.
                    if logged.as_ref() != Some(&error) {
                        tracing::error!(
                            error,
                            "cannot read the access file, its previous rules stay in force"
                        );
                        logged = Some(error);
                    }
                }
                Err(error) => tracing::error!(%error, "reading the access file failed"),
            }
            self.cut_invalid();
        }
    }

    fn cut_invalid(&self) {
        let (rules, now) = (self.access.rules(), access::now());
        let mut connections = self.connections();
        connections.retain(|connection| connection.strong_count() > 0);
        for connection in connections.iter().filter_map(Weak::upgrade) {
            if !connection.is_good(&rules, self.runs.as_deref(), now) {
                tracing::info!(
                    peer = connection.peer.name(),
                    "credentials are no longer valid, connection closed"
                );
                connection.cut();
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }
}
