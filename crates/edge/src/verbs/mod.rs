//! The verbs of the contract: each is declared once, on its request; one path serves them all.
//!
//! The gate has admitted the caller by its role before. The path: record begun, rights by content and names, all
//! violations, scope, the work with its keeper and the end of the server, record ended. Attach alone, whose request is a
//! stream, is served by hand.

mod admin;
mod consumers;
mod for_each_run;
mod input;
mod list;
mod list_runs;
mod orders;
mod path;
mod reads;
mod record;
mod restart;
mod scope;
mod signal;
mod simple;
mod spawn;
mod stream_events;

pub(crate) use record::Asked;
pub(crate) use scope::Scope;

use crate::{
    access::Caller,
    attach::Seats,
    auth,
    convert::trace_context::TraceContext,
    forward::{AskItsNode, Fleet, Links},
    keys::digest::DigestKey,
    limits,
    load::{
        admission::{self, Admission},
        shares::Shares,
    },
    status,
};
use kennel_lifecycle::{NodeId, RunId, Timestamp, Violation};
use kennel_proto::call::Rpc;
use kennel_supervisor::{CallError, Serving, Supervisor};
use std::{ops::Deref, sync::Arc};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::{Extensions, Request, Status, metadata::MetadataMap};

/// An rpc, on its request; `prost::Name` names it.
pub(crate) trait Verb: prost::Name + Rpc + Send + Sized + 'static {
    const HOW: How;
    /// The request, parsed.
    type Call: Send + 'static;

    /// Adds the requested values to the record, which has the run and the request's id, without anything that could be a secret.
    fn logged(&self, record: Asked) -> Asked {
        record
    }

    /// Whether it only says what it would do: then it is not recorded.
    fn is_dry(&self) -> bool {
        false
    }

    /// Checks rights that depend on the request, and looks up what its parsing needs.
    fn prepared(
        self,
        _at: &Api,
        _context: &mut Context<'_>,
    ) -> impl Future<Output = Result<Self, Fault>> + Send {
        std::future::ready(Ok(self))
    }

    /// Parses it, with all its violations; `None` only together with one.
    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call>;

    /// Checks what only the server can: more violations, and rights that depend on what was parsed.
    fn checked(
        _at: &Api,
        _context: &Context<'_>,
        _call: &mut Self::Call,
        _found: &mut Vec<Violation>,
    ) -> impl Future<Output = Result<(), Fault>> + Send {
        std::future::ready(Ok(()))
    }

    /// What the caller must be able to see; absent: the run that the request names.
    fn scope(_call: &Self::Call) -> Option<Scope> {
        None
    }

    fn waits(_call: &Self::Call) -> Waits {
        Self::HOW.waits
    }

    /// Carries it out. The first line of some takes the caller's slots.
    fn serve(
        at: Api,
        call: Self::Call,
    ) -> impl Future<Output = Result<Self::Answer, Fault>> + Send + 'static;

    /// Adds the result to the record.
    fn answered(_answer: &Self::Answer, record: Asked) -> Asked {
        record
    }

    /// The run that it has started, for the call's span.
    fn begun(_answer: &Self::Answer) -> Option<RunId> {
        None
    }

    /// Counts its refusal.
    fn refused(_at: &Api, _status: &Status) {}
}

/// How an rpc is carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    logs: Logs,
    waits: Waits,
    /// Whether it is carried out although its caller has gone.
    to_its_end: bool,
    /// Whether no run may do it to itself.
    to_others: bool,
}

impl How {
    /// One that changes nothing.
    const fn read(waits: Waits) -> Self {
        Self {
            logs: Logs::Nothing,
            waits,
            to_its_end: false,
            to_others: false,
        }
    }

    /// One that is recorded, and carried out to its end.
    const fn order(waits: Waits) -> Self {
        Self {
            logs: Logs::Each,
            waits,
            to_its_end: true,
            to_others: false,
        }
    }

    /// Many calls have one record.
    const fn summed(self) -> Self {
        Self {
            logs: Logs::Summed,
            ..self
        }
    }

    /// No run may do it to itself.
    const fn to_others(self) -> Self {
        Self {
            to_others: true,
            ..self
        }
    }

    /// It ends with its caller.
    const fn while_asked(self) -> Self {
        Self {
            to_its_end: false,
            ..self
        }
    }
}

/// How the audit log has an rpc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    /// Not: it changes nothing.
    Nothing,
    /// A record for each call, on disk before the answer.
    Each,
    /// One record for many calls.
    Summed,
}

/// Events that end a wait for the answer, in addition to the caller's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It comes soon: a server that ends or is replaced gives it time.
    Brief,
    /// Likewise, and not while the keeper does not answer.
    Keeper,
    /// It may take days: not when another server replaces this one.
    Caller,
    KeeperAndCaller,
}

/// Why a verb is refused.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) Status);

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        Self(status::of(&error))
    }
}

/// Who calls, from where, and how.
pub(crate) struct Context<'a> {
    pub(crate) caller: Caller,
    metadata: MetadataMap,
    extensions: Extensions,
    /// Whether the run's node, or all nodes, can be asked.
    pub(crate) asks_node: bool,
    pub(crate) key: &'a DigestKey,
    pub(crate) own_node: NodeId,
    /// Node that the request's filter names.
    pub(crate) node: Option<NodeId>,
    /// Time at which ages of the request's filter count.
    pub(crate) now: Timestamp,
}

impl<'a> Context<'a> {
    fn of<T>(request: Request<T>, at: &'a At) -> Result<(Self, T), Status> {
        let (metadata, mut extensions, body) = request.into_parts();
        let context = Self {
            caller: auth::caller(&mut extensions)?,
            asks_node: extensions.get::<AskItsNode>().is_some(),
            metadata,
            extensions,
            key: &at.key,
            own_node: at.supervisor.node(),
            node: None,
            now: Timestamp(0),
        };
        Ok((context, body))
    }

    pub(crate) fn trace(&self) -> TraceContext {
        TraceContext::of(&self.metadata, &self.extensions)
    }

    pub(crate) fn scope(&self) -> auth::Scope {
        auth::Scope::of(&self.caller)
    }

    /// The caller, as a principal.
    pub(crate) fn by(&self) -> String {
        self.caller.principal.clone()
    }

    /// The owner whose rows alone the caller may see.
    pub(crate) fn seen_owner(&self) -> Option<String> {
        self.scope().owner().map(str::to_owned)
    }
}

/// What serves the verbs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(Arc<At>);

pub(crate) struct At {
    pub(crate) supervisor: Supervisor,
    key: DigestKey,
    /// Work that continues when its caller goes away.
    tasks: TaskTracker,
    /// Slots for streams of events.
    places: Arc<Semaphore>,
    /// Slots for readers of the audit log.
    audit_places: Arc<Semaphore>,
    /// Quota usage of owners.
    shares: Shares,
    /// Memory for lines that are longer than usual, in KiB.
    long_lines: Arc<Semaphore>,
    /// Counts refused spawns.
    admission: Admission,
    /// Writers of terminals.
    seats: Arc<Seats>,
    /// All nodes.
    fleet: Arc<Fleet>,
    going: Serving,
}

impl Api {
    pub(crate) fn new(
        supervisor: Supervisor,
        key: DigestKey,
        tasks: TaskTracker,
        links: Arc<Links>,
        shares: Shares,
    ) -> Self {
        let telemetry = supervisor.telemetry();
        let places = Arc::new(Semaphore::new(limits::STREAMS_MAX));
        admission::measure_streams(&telemetry, &places);
        Self(Arc::new(At {
            fleet: Arc::new(Fleet::new(supervisor.clone(), links)),
            going: supervisor.serving(),
            supervisor,
            key,
            tasks,
            places,
            audit_places: Arc::new(Semaphore::new(limits::AUDIT_STREAMS_MAX)),
            shares,
            long_lines: Arc::new(Semaphore::new(limits::LONG_LINES_KIB_MAX as usize)),
            admission: Admission::new(&telemetry),
            seats: Arc::default(),
        }))
    }
}

impl Deref for Api {
    type Target = At;

    fn deref(&self) -> &At {
        &self.0
    }
}

#[cfg(test)]
mod tests;
