//! Connections that are closed or refused for want of a slot, or because no call came: counted, with a warning at
//! intervals that has their number.

use super::places::{Full, Places};
use crate::{auth::Peer, limits::REFUSALS_WARNED_EVERY};
use kennel_lifecycle::Timestamp;
use kennel_supervisor::telemetry::{Telemetry, names};
use opentelemetry::{KeyValue, metrics::Counter};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Reason why a connection is closed or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// There is no slot.
    Full(Full),
    /// The connection has made no accepted call.
    NoCall,
    /// The TLS handshake failed.
    Handshake,
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl Refusal {
    const ALL: [Self; 7] = [
        Self::Full(Full::Process),
        Self::Full(Full::User),
        Self::Full(Full::Run),
        Self::Full(Full::All),
        Self::Full(Full::Refused),
        Self::NoCall,
        Self::Handshake,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Full(Full::Process) => "process_limit",
            Self::Full(Full::User) => "user_limit",
            Self::Full(Full::Run) => "run_limit",
            Self::Full(Full::All) => "limit",
            Self::Full(Full::Refused) => "refused_limit",
            Self::NoCall => "no_call",
            Self::Handshake => "handshake",
        }
    }

    /// Returns the text for the log, with the consequence.
    fn sentence(self) -> &'static str {
        match self {
            Self::Full(Full::Process) => {
                "one process has too many connections, refusing its further ones"
            }
            Self::Full(Full::User) => {
                "the processes of one user have too many connections, refusing further ones"
            }
            Self::Full(Full::Run) => "runs have too many connections, refusing further ones",
            Self::Full(Full::All) => "there are too many connections, refusing further ones",
            Self::Full(Full::Refused) => {
                "peers that may not call have too many connections, closing further ones"
            }
            Self::Handshake => "TLS handshakes have failed",
            Self::NoCall => "connections have made no call that was accepted, closing them",
        }
    }
}

/// Counters of refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    telemetry: Telemetry,
    counter: Counter<u64>,
    /// For each kind: time of the last warning, and the number since.
    warned: Mutex<HashMap<Refusal, (Timestamp, u64)>>,
}

impl Refusals {
    pub(crate) fn new(telemetry: &Telemetry, places: &Places) -> Arc<Self> {
        let counter = telemetry
            .meter()
            .u64_counter("kennel.connection.refused")
            .with_unit("{connection}")
            .with_description(
                "Connections closed or refused because of a limit, or because no call came",
            )
            .build();
        for refusal in Refusal::ALL {
            counter.add(0, &[KeyValue::new(names::REASON, refusal.word())]);
        }
        let places = places.downgrade();
        telemetry
            .meter()
            .u64_observable_gauge("kennel.connection.active")
            .with_unit("{connection}")
            .with_description("Connections of peers that may call")
            .with_callback(move |observer| {
                if let Some(places) = Weak::upgrade(&places) {
                    observer.observe(Places::from(places).admitted() as u64, &[]);
                }
            })
            .build();
        Arc::new(Self {
            telemetry: telemetry.clone(),
            counter,
            warned: Mutex::default(),
        })
    }

    pub(crate) fn note(&self, refusal: Refusal, peer: &Peer) {
        let attribute = KeyValue::new(names::REASON, refusal.word());
        self.counter.add(1, &[attribute]);
        let now = self.telemetry.now();
        let is_soon = |last: Timestamp| {
            let since = u64::try_from(now.0 - last.0).map(Duration::from_micros);
            // A clock that was set back has no effect.
            since.is_ok_and(|since| since < REFUSALS_WARNED_EVERY)
        };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let count = match warned.get_mut(&refusal) {
            Some((last, since)) if is_soon(*last) => {
                *since += 1;
                return;
            }
            Some((_, since)) => *since + 1,
            None => 1,
        };
        warned.insert(refusal, (now, 0));
        drop(warned);
        tracing::warn!(
            peer = peer.name(),
            peer.pid = peer.pid(),
            reason = refusal.word(),
            connections = count,
            "{}",
            refusal.sentence()
        );
    }
}
