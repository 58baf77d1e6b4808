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
    ServiceEvent, Trail, TrailAsk, TrailEntry, TrailKind, TrailReader, TrailRecord,
    check_audit_chain, export_audit_chain,
};
pub use base::calls::*;
pub use base::drain::{Drain, DrainAction, DrainCall, DrainStatus};
pub use base::faults::BootError;
pub use base::matcher::{LineMatch, LineMatcher, MatchGroup, Scratch};
pub use base::other_node::Elsewhere;
pub use base::ports::{HealthCheck, Kernel, KernelEvents, OwnerQuotas, Sealer, TokenMaker};
pub use base::secret_sources::SecretSources;
pub use base::spec_digest::{ComparedSpecs, PART_BYTES, SpecDigest, SpecPart};
pub use node::boot::{EXIT_CLEAN, EXIT_FAULT, EXIT_LEFT};
pub use node::leak_check::{
    Audit, AuditFinding, Judged, Labels, ReapCall, ReapReport, ReapResult, ServiceSeen, Unverified,
};
pub use node::retention::Swept;
pub use registry::consumers::{ConsumerPlace, ConsumerSeat};
pub use registry::{Supervisor, SupervisorConfig, serving::Serving};
pub use run::input::{CloseCall, InputProgress, InputWritten, WriteCall};
pub use run::intake::command::{CommandSearch, SearchedFile};
pub use streams::consumers::{AckPoint, ConsumerBegin, ConsumerView};
pub use streams::events::Events;
pub use streams::line::OutputLine;
pub use streams::multi_run::{ManyCall, ManyEvents, ManyFrom, ManyReached, Step};
pub use streams::output_read::{
    Missing as MissingBytes, OutputCall, OutputPart, OutputRange, OutputRead,
};
pub use streams::screen::ScreenView;
pub use streams::wait_output::{OutputMatch, OutputWait, OutputWaited};

pub use kennel_journal::{
    Amount, Color, Form, Gap, GapReason, LINE_BYTES_MAX, Picture, PictureLine, SCREEN_CELLS_MAX,
    Span, Style, Tail,
};
pub use kennel_keeper::audit::Described;
pub use kennel_keeper::client::{
    Capability, CapabilityName, EndCause, Fate, FormerServer, Holds, InterruptWay, ListeningSocket,
    Listing, Member, NoPty, SignalOutcome, SignalTarget, SignalledProcess, SignalledProcesses,
    SocketSeen, Unstopped, Upgrade, UpgradeRefusal, UpgradeState,
};
pub use kennel_linux::accept::{AcceptBatch, take_batch, take_queued};
pub use kennel_linux::peer::{Descent, PeerSeen, credentials as peer_credentials};
pub use kennel_store::spec_text;
pub use kennel_store::{
    Age, Ages, ConsumerFilter, ConsumerKey, ConsumerRow, Desired, LeftStop, ListFilter, NewRun,
    PageStart, PastAttempt, Reports, RunRow, Times, UnreadRow,
};
