//! Connections that are closed or refused for want of a slot, or because no call came: counted, with a warning at
//! intervals that has their number.

use super::places::Places;
use crate::{
    auth::{Full, Peer},
    limits::REFUSALS_WARNED_EVERY,
    status::code_name,
};
use kennel_lifecycle::Timestamp;
use kennel_supervisor::{
    DeniedCaller, LoggedRequest, Supervisor, TrailEntry, TrailRecord,
    telemetry::{Telemetry, names},
};
use opentelemetry::{KeyValue, metrics::Counter};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Weak},
    time::Duration,
};
use tonic::Code;

/// Reason why a connection is closed or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// There is no slot.
    Full(Full),
    /// The connection has made no accepted call.
    NoCall,
    /// The TLS handshake failed.
    Handshake,
    /// Its address had the most unidentified connections or handshakes when there was no slot for another one.
    Displaced,
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::Full(Full::Process),
        Self::Full(Full::User),
        Self::Full(Full::Run),
        Self::Full(Full::All),
        Self::Full(Full::Refused),
        Self::NoCall,
        Self::Handshake,
        Self::Displaced,
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
            Self::Displaced => "displaced",
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
            Self::Displaced => {
                "too many clients have not identified themselves, closing the oldest of the address with the most"
            }
            Self::NoCall => "connections have made no call that was accepted, closing them",
        }
    }
}

/// Counters of refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    telemetry: Telemetry,
    /// Audit log of failed handshakes; absent: none.
    trail: Option<Supervisor>,
    counter: Counter<u64>,
    /// For each kind: time of the last warning, and the number since.
    warned: Mutex<HashMap<Refusal, (Timestamp, u64)>>,
}

impl Refusals {
    pub(crate) fn new(
        telemetry: &Telemetry,
        places: &Places,
        trail: Option<Supervisor>,
    ) -> Arc<Self> {
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
            trail,
            counter,
            warned: Mutex::default(),
        })
    }

    /// Notes a failed handshake. The audit log has it where the client spoke TLS, and not for a probe of the port.
    pub(super) fn note_handshake(&self, error: &io::Error, peer: &Peer) {
        self.note(Refusal::Handshake, peer);
        if let Some(trail) = &self.trail
            && error.kind() == io::ErrorKind::InvalidData
        {
            let denied = LoggedRequest {
                rpc: "Handshake".to_owned(),
                by: peer.name(),
                code: code_name(Code::Unauthenticated).to_owned(),
                reason: "HANDSHAKE_FAILED".to_owned(),
                calls: 1,
                ..LoggedRequest::default()
            };
            let denied = denied.with("error", error.to_string());
            trail.audit_log().deny(
                TrailRecord::now(None, TrailEntry::Request(denied)),
                DeniedCaller::Stranger,
            );
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.telemetry.now()
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
        let mut warned = self.warned.lock();
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
