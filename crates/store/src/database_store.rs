//! A store in a database: open, or opened in the background for a server that cannot wait for it.

use crate::{MIGRATIONS, OpenError, Store, StoreError, StoreUrl, database::Database, open};
use kennel_lifecycle::Backoff;
use std::{
    error::Error,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// Delays between two tries.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(100), Duration::from_secs(2));

/// Opens the store in the background and retries after any error. Calls wait for the first try alone; `failed` is the error of
/// one that the caller has made.
pub fn open_later(url: &StoreUrl, failed: Option<OpenError>) -> Arc<dyn Store> {
    let (tell, state) = watch::channel(OpenState::Unasked);
    let mut tries = JoinSet::new();
    tries.spawn(open_at_last(url.clone(), failed, tell));
    Arc::new(DatabaseStore {
        shown: url.to_string(),
        state,
        _tries: tries,
    })
}

#[derive(Debug)]
enum OpenState {
    /// The first try is in progress.
    Unasked,
    /// The last try failed.
    Away(OpenError),
    Open(Arc<Database>),
}

/// A store in a database.
#[derive(Debug)]
pub(crate) struct DatabaseStore {
    /// The address, without its password.
    shown: String,
    state: watch::Receiver<OpenState>,
    /// The tries, which end with the store.
    _tries: JoinSet<()>,
}

async fn open_at_last(
    url: StoreUrl,
    mut failed: Option<OpenError>,
    tell: watch::Sender<OpenState>,
) {
    let mut retries = RETRY.retries(RandomState::new().hash_one(()));
    let mut said = String::new();
    loop {
        let opened = match failed.take() {
            Some(error) => Err(error),
            None => open::database(&url, MIGRATIONS).await,
        };
        let error = match opened {
            Ok(db) => {
                if !said.is_empty() {
                    tracing::info!(store = %url, "the database is open");
                }
                tell.send_replace(OpenState::Open(Arc::new(db)));
                return;
            }
            Err(error) => error,
        };
        let why = chain(&error);
        if why != said {
            tracing::error!(store = %url, %why, "cannot open the database, retrying");
            said.clone_from(&why);
        }
        tell.send_replace(OpenState::Away(error));
        tokio::time::sleep(retries.next_delay()).await;
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

impl DatabaseStore {
    /// A store in a database that is open.
    pub(crate) fn of(db: Database, url: &StoreUrl) -> Self {
        Self {
            shown: url.to_string(),
            state: watch::channel(OpenState::Open(Arc::new(db))).1,
            _tries: JoinSet::new(),
        }
    }

    /// Returns the database, once the first try to open it has ended.
    pub(crate) async fn open(&self) -> Result<Arc<Database>, StoreError> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, OpenState::Unasked));
        match state.await.as_deref() {
            Ok(OpenState::Open(db)) => Ok(Arc::clone(db)),
            Ok(&OpenState::Away(OpenError::SchemaTooNew { min_level, level })) => {
                Err(StoreError::SchemaTooNew { min_level, level })
            }
            Ok(OpenState::Away(error)) => Err(StoreError::Unavailable(chain(error))),
            Ok(OpenState::Unasked) | Err(_) => {
                Err(StoreError::Unavailable("no task opens the store".into()))
            }
        }
    }

    /// Returns the database where it is open at this moment, else the address.
    pub(crate) fn now(&self) -> Result<Arc<Database>, &str> {
        match &*self.state.borrow() {
            OpenState::Open(db) => Ok(Arc::clone(db)),
            OpenState::Unasked | OpenState::Away(_) => Err(&self.shown),
        }
    }
}
