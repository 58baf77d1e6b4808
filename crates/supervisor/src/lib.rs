//! Drives runs: one task per run feeds the pure machine and performs its effects.
//!
//! The tracker of all live runs lives here, and so does the clock. Knows neither prost nor SQL nor system calls:
//! it asks the keeper, the store and the journal. Read `run_task` for the life of one run, `intake` for how it
//! begins, `boot` and `recover` for what a start does with what an earlier one has left.

mod adopt;
mod api;
mod audit;
mod blocking;
mod boot;
mod calls;
mod cause;
mod clock;
mod consumers;
mod drain;
mod elsewhere;
mod event;
mod events;
mod input;
mod intake;
mod keeper_watch;
mod late;
mod log_words;
mod lost_end;
mod many;
mod node_store;
mod output;
mod output_read;
mod pending_ends;
mod persisted_spec;
mod ports;
mod reads;
mod record;
mod recover;
mod removed;
mod retention;
mod run_task;
mod saved_output;
mod screen;
mod shape;
mod subscribers;
mod takeover;
pub mod telemetry;
mod tracker;
mod trail;
mod upgrade;
mod view;
mod writes;

pub use api::*;
pub use audit::{
    Audit, AuditFinding, Judged, Labels, ReapCall, ReapReport, ReapResult, ServiceSeen, Unverified,
};
pub use boot::{BootError, EXIT_CLEAN, EXIT_FORCED, EXIT_KEEPER_LOST, EXIT_LEFT};
pub use consumers::{
    AckPoint, CONSUMERS_OF_MANY_MAX, CONSUMERS_PER_NODE_MAX, CONSUMERS_PER_RUN_MAX, ConsumerBegin,
    ConsumerPlace, ConsumerSeat, ConsumerView,
};
pub use drain::{Drain, DrainAction, DrainCall, DrainStatus};
pub use elsewhere::Elsewhere;
pub use events::Events;
pub use input::{CloseCall, InputEnd, InputProgress, InputWritten, WriteCall};
pub use many::{Age, ManyCall, ManyEvents, ManyFrom, ManyReached, Step};
pub use output_read::{Missing as MissingBytes, OutputCall, OutputPart, OutputRange, OutputRead};
pub use ports::{Kernel, KernelEvents};
pub use screen::ScreenView;
pub use tracker::SupervisorConfig;
pub use trail::{
    NodeTold, ProcessTold, RequestTold, SignalTold, TrailAsk, TrailEntry, TrailKind, TrailReader,
    TrailRecord,
};

pub use kennel_journal::{
    Amount, Color, Form, Gap, GapReason, LINE_BYTES_MAX, Picture, PictureLine, SCREEN_CELLS_MAX,
    Span, Style, Tail,
};
pub use kennel_keeper::audit::Described;
pub use kennel_keeper::client::{
    Capability, CapabilityName, EndCause, Fate, FormerServer, Holds, InterruptWay, Listing, Member,
    NoPty, Shot, ShotResult, Shots, SignalTarget, SocketSeen, Unstopped, Upgrade, UpgradeRefusal,
    UpgradeState,
};
pub use kennel_linux::peer::{Descent, Peer as PeerSeen};
pub use kennel_store::spec_text;
pub use kennel_store::{
    ConsumerFilter, ConsumerKey, ConsumerRow, Desired, ListFilter, PageStart, PastAttempt, Times,
};

use kennel_keeper::client::ClientError;
use kennel_store::StoreError;
use std::sync::Arc;

/// The tracker of all runs of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    shared: Arc<tracker::Shared>,
}

/// What a caller is told of a keeper that could not do it.
fn keeper_fault(error: &ClientError) -> CallError {
    match error {
        ClientError::KeeperGone => CallError::Draining,
        ClientError::Exhausted(what) => CallError::HostFull(what.clone()),
        ClientError::NoPty(none) => CallError::NoPty(none.clone()),
        ClientError::Start(_) | ClientError::TooWeak { .. } => {
            CallError::Internal(error.to_string())
        }
    }
}

/// What a caller is told of a store that did not answer.
fn store_fault(error: &StoreError) -> CallError {
    match error {
        StoreError::Unavailable(_) | StoreError::Unknown(_) => CallError::StoreUnavailable,
        StoreError::Fenced(_) | StoreError::Corrupt(_) => CallError::Internal(error.to_string()),
    }
}
