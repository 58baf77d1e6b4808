//! Follows the access file and the attempts of runs, and cuts connections whose certificate, token or user is no longer
//! valid.

use super::ConnectionState;
use crate::{
    access::{self, Access},
    auth::{PeerVerdict, run_tokens::RunTokens},
    limits::{ACCESS_INTERVAL, FIRST_KEYS_MAX},
};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The rules, and the connections that they hold for.
#[derive(Debug)]
pub(crate) struct ServerCredentials {
    access: Arc<Access>,
    /// Absent: no run may call.
    runs: Option<Arc<RunTokens>>,
    connections: Mutex<Vec<Weak<ConnectionState>>>,
    /// Fires when the first keys of issuers are there, or were waited for.
    begun: CancellationToken,
}

impl ServerCredentials {
    pub(crate) fn new(access: Arc<Access>, runs: Option<Arc<RunTokens>>) -> Arc<Self> {
        Arc::new(Self {
            access,
            runs,
            connections: Mutex::default(),
            begun: CancellationToken::new(),
        })
    }

    pub(super) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Cuts this connection when the rules no longer permit it.
    pub(super) fn watch(&self, connection: &Arc<ConnectionState>) {
        let is_of_run = matches!(connection.peer.verdict, PeerVerdict::OfARun(Some(_)));
        if self.access.may_change() || is_of_run {
            self.connections.lock().push(Arc::downgrade(connection));
        }
    }

    /// Waits for the first keys of issuers, for a bounded time. Cancel-safe.
    pub(super) async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Follows the file; never returns.
    pub(crate) async fn follow(&self) {
        let mut logged = None;
        let mut fetches = JoinSet::new();
        self.access.fetch_keys(&mut fetches);
        let first = async {
            while let Some(fetched) = fetches.join_next().await {
                note(fetched);
            }
        };
        // Slower fetches continue in the background.
        let _ = tokio::time::timeout(FIRST_KEYS_MAX, first).await;
        self.begun.cancel();
        loop {
            self.access.fetch_keys(&mut fetches);
            tokio::time::sleep(ACCESS_INTERVAL).await;
            while let Some(fetched) = fetches.try_join_next() {
                note(fetched);
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
                    // A persistent error is logged once.
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
        let mut connections = self.connections.lock();
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
}

fn note(fetched: Result<(), JoinError>) {
    if let Err(error) = fetched {
        tracing::error!(%error, "fetching the keys of an issuer failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, net::TcpListener, time::Duration};

    const MOMENT: Duration = Duration::from_millis(1);

    /// Whether clients over TCP are let in within this time, under these rules.
    async fn begins_within(rules: &str, time: Duration) -> bool {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("access.toml");
        fs::write(&file, rules).expect("own directory");
        let access = Access::open(Some(&file), 0).expect("good rules");
        let credentials = ServerCredentials::new(Arc::new(access), None);
        let begun = async {
            tokio::select! { biased;
                () = credentials.begun() => {}
                () = credentials.follow() => {}
            }
        };
        tokio::time::timeout(time, begun).await.is_ok()
    }

    // promise: I-102a
    #[tokio::test(start_paused = true)]
    async fn first_keys_are_awaited_for_bounded_time() {
        // The key server accepts connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = silent.local_addr().expect("an address");
        let rules = format!(
            "[[issuer]]\nname = 'https://issuer.example'\naudience = 'kennel'\nkeys_url = 'https://{url}/keys'\n"
        );
        assert!(!begins_within(&rules, FIRST_KEYS_MAX.saturating_sub(MOMENT)).await);
        assert!(begins_within(&rules, FIRST_KEYS_MAX + MOMENT).await);
        assert!(begins_within("", MOMENT).await, "there are none to fetch");
    }
}
