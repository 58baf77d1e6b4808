//! Drives runs: one task per run feeds the pure machine and performs its effects.
//!
//! This crate has the tracker of all live runs and the clock. It knows neither prost nor SQL nor system calls: it asks
//! the keeper, the store and the journal. Read `run/task` for the life of one run, `run/intake` for how it begins,
//! `node/boot` and `node/recover` for what a start does with what an earlier server left.

mod api;
mod audit_log;
mod base;
mod node;
mod record;
mod registry;
mod run;
mod streams;
pub mod telemetry;

pub use audit_log::{
    ChainChecked, ChainError, ChainHead, DeniedCaller, LoggedProcess, LoggedRequest, LoggedSignal,
    ServiceEvent, TrailAsk, TrailEntry, TrailKind, TrailReader, TrailRecord, check_audit_chain,
    export_audit_chain,
};
pub use base::{
    calls::*,
    drain::{Drain, DrainAction, DrainCall, DrainStatus},
    faults::BootError,
    matcher::{LineMatch, LineMatcher, MatchGroup, Scratch},
    other_node::Elsewhere,
    ports::{HealthCheck, Kernel, KernelEvents, OwnerQuotas, Sealer, TokenMaker},
    secret_sources::SecretSources,
    view::Wait,
};
pub use node::{
    boot::{EXIT_CLEAN, EXIT_FAULT, EXIT_LEFT},
    leak_check::{
        Audit, AuditFinding, Judged, Labels, ReapCall, ReapReport, ReapResult, ServiceSeen,
        Unverified,
    },
};
pub use registry::{
    Supervisor, SupervisorConfig,
    consumers::{ConsumerPlace, ConsumerSeat},
    serving::Serving,
};
pub use run::{
    input::{CloseCall, InputProgress, InputWritten, WriteCall},
    intake::command::{CommandSearch, SearchedFile},
};
pub use streams::{
    consumers::{AckPoint, ConsumerBegin, ConsumerView},
    events::Events,
    multi_run::{ManyCall, ManyEvents, ManyFrom, ManyReached, Step},
    output_read::{Missing as MissingBytes, OutputCall, OutputPart, OutputRange, OutputRead},
    screen::ScreenView,
    wait_output::{OutputMatch, OutputWait, OutputWaited},
};

pub use kennel_journal::{
    Amount, Color, Form, Gap, GapReason, LINE_BYTES_MAX, Picture, PictureLine, SCREEN_CELLS_MAX,
    Span, Style, Tail,
};
pub use kennel_keeper::{
    audit::Described,
    client::{
        Capability, CapabilityName, EndCause, Fate, FormerServer, Holds, InterruptWay,
        ListeningSocket, Listing, Member, NoPty, SignalOutcome, SignalTarget, SignalledProcess,
        SignalledProcesses, SocketSeen, Unstopped, Upgrade, UpgradeRefusal, UpgradeState,
    },
};
pub use kennel_linux::{
    accept::{Batch, take_batch, take_queued},
    peer::{Descent, Peer as PeerSeen, credentials as peer_credentials},
};
pub use kennel_store::{
    Age, ConsumerFilter, ConsumerKey, ConsumerRow, Desired, LeftStop, ListFilter, PageStart,
    PastAttempt, Times, UnreadRow, spec_text,
};
