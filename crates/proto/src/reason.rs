//! The documented reasons of errors, with their codes. Each has a page under docs/errors.

use tonic::Code;

/// Domain of every reason.
pub const DOMAIN: &str = "kennel.v1";

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $code:ident;)*) => {
        /// Why a call failed, as clients compare it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason that can be given.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the reason as it is in `google.rpc.ErrorInfo`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Returns the code of its statuses. A failed start has another one for some errors of the system, and no
            /// status has [`Reason::NotWriter`].
            pub fn code(self) -> Code {
                match self {
                    $(Self::$variant => Code::$code,)*
                }
            }
        }
    };
}

reasons! {
    /// The run id is invalid.
    InvalidRunId = "INVALID_RUN_ID", InvalidArgument;
    /// The caller has not authenticated.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated;
    /// Fields of the request are invalid.
    InvalidField = "INVALID_FIELD", InvalidArgument;
    /// The spec requests what this server cannot do.
    CapabilityMissing = "CAPABILITY_MISSING", FailedPrecondition;
    /// The containment of the run would be weaker than its spec permits.
    ContainmentUnavailable = "CONTAINMENT_UNAVAILABLE", FailedPrecondition;
    /// A secret of the server cannot be read.
    SecretUnavailable = "SECRET_UNAVAILABLE", FailedPrecondition;
    /// There is no such command.
    CommandNotFound = "COMMAND_NOT_FOUND", NotFound;
    /// A step of the start failed.
    SpawnFailed = "SPAWN_FAILED", FailedPrecondition;
    /// There is no such run.
    RunNotFound = "RUN_NOT_FOUND", NotFound;
    /// More runs match than the caller allows to be acted upon.
    TooManyMatches = "TOO_MANY_MATCHES", FailedPrecondition;
    /// The run is at another node.
    RunOnOtherNode = "RUN_ON_OTHER_NODE", FailedPrecondition;
    /// The call is for a node that does not answer.
    NodeUnreachable = "NODE_UNREACHABLE", Unavailable;
    /// The call is for a node that does not exist.
    NodeNotFound = "NODE_NOT_FOUND", NotFound;
    /// Another server has the node's lease.
    NodeFenced = "NODE_FENCED", Unavailable;
    /// A stop is left for a node that cannot be reached, and not done.
    AbortQueued = "ABORT_QUEUED", FailedPrecondition;
    /// A node that has a lease is not forgotten.
    NodeHasLease = "NODE_HAS_LEASE", FailedPrecondition;
    /// The run has ended.
    RunEnded = "RUN_ENDED", FailedPrecondition;
    /// The run is in a state in which it cannot do this.
    InvalidState = "INVALID_STATE", FailedPrecondition;
    /// An Abort with this id came before its Spawn.
    RunFenced = "RUN_FENCED", FailedPrecondition;
    /// A stop came while the run was starting.
    RunStopped = "RUN_STOPPED", FailedPrecondition;
    /// A run had the id, and its record is removed.
    RunRemoved = "RUN_REMOVED", FailedPrecondition;
    /// The time in the run id is too old or ahead.
    RunIdExpired = "RUN_ID_EXPIRED", FailedPrecondition;
    /// Values of an ended run that were not stored are not in the request either.
    SpecIncomplete = "SPEC_INCOMPLETE", FailedPrecondition;
    /// Another client writes on the terminal.
    NotWriter = "NOT_WRITER", FailedPrecondition;
    /// The terminal is larger than one that is drawn.
    ScreenTooLarge = "SCREEN_TOO_LARGE", FailedPrecondition;
    /// A run with this id or key has another spec.
    SpecMismatch = "SPEC_MISMATCH", AlreadyExists;
    /// An open run has the name.
    NameTaken = "NAME_TAKEN", AlreadyExists;
    /// A quota or a bound is reached.
    QuotaExceeded = "QUOTA_EXCEEDED", ResourceExhausted;
    /// The database does not answer.
    StoreUnavailable = "STORE_UNAVAILABLE", Unavailable;
    /// The keeper does not answer.
    KeeperUnresponsive = "KEEPER_UNRESPONSIVE", Unavailable;
    /// The keys of a token's issuer are missing.
    IssuerUnavailable = "ISSUER_UNAVAILABLE", Unavailable;
    /// The node is drained, or its server ends.
    NodeDraining = "NODE_DRAINING", Unavailable;
    /// Another server replaces this one.
    ServerReplaced = "SERVER_REPLACED", Unavailable;
    /// The installed binary failed the check.
    UpgradeRefused = "UPGRADE_REFUSED", FailedPrecondition;
    /// Another upgrade is in progress.
    UpgradeUnderWay = "UPGRADE_UNDER_WAY", FailedPrecondition;
    /// Some processes of the run did not stop.
    PausePartial = "PAUSE_PARTIAL", FailedPrecondition;
    /// A signal could not be sent.
    SignalFailed = "SIGNAL_FAILED", Internal;
    /// There is no terminal for the run, or its leader controls none.
    NoTerminal = "NO_TERMINAL", FailedPrecondition;
    /// This host gives no terminal.
    PtyUnavailable = "PTY_UNAVAILABLE", FailedPrecondition;
    /// The host's terminals are used up.
    PtyExhausted = "PTY_EXHAUSTED", ResourceExhausted;
    /// The input of a terminal is ended by a key.
    TerminalInput = "TERMINAL_INPUT", FailedPrecondition;
    /// Standard input accepts no more bytes.
    InputClosed = "INPUT_CLOSED", FailedPrecondition;
    /// The write does not fit the position of the standard input.
    InputOffsetMismatch = "INPUT_OFFSET_MISMATCH", OutOfRange;
    /// The state of standard input is not known.
    InputOffsetUnknown = "INPUT_OFFSET_UNKNOWN", FailedPrecondition;
    /// The attempt is not the one of the request.
    AttemptMismatch = "ATTEMPT_MISMATCH", FailedPrecondition;
    /// The annotations have another version.
    AnnotationsChanged = "ANNOTATIONS_CHANGED", Aborted;
    /// Another answer to the question was accepted.
    AnsweredAlready = "ANSWERED_ALREADY", FailedPrecondition;
    /// The run does not ask this question.
    QuestionGone = "QUESTION_GONE", FailedPrecondition;
    /// The run has no such limit of time now.
    NoTimeLimit = "NO_TIME_LIMIT", FailedPrecondition;
    /// A limit of time cannot be extended so far.
    ExtensionTooLong = "EXTENSION_TOO_LONG", OutOfRange;
    /// The position is beyond the last event.
    CursorAhead = "CURSOR_AHEAD", OutOfRange;
    /// Events at the position can no longer be read.
    CursorExpired = "CURSOR_EXPIRED", OutOfRange;
    /// There is no such consumer.
    ConsumerNotFound = "CONSUMER_NOT_FOUND", NotFound;
    /// A newer reader of the same name replaced this one.
    ConsumerTakenOver = "CONSUMER_TAKEN_OVER", FailedPrecondition;
    /// The journal cannot be read.
    JournalUnreadable = "JOURNAL_UNREADABLE", DataLoss;
    /// The caller's deadline has expired.
    DeadlineExceeded = "DEADLINE_EXCEEDED", DeadlineExceeded;
    /// The caller may not use this server.
    PermissionDenied = "PERMISSION_DENIED", PermissionDenied;
    /// The caller's process cannot be identified.
    CallerUnverified = "CALLER_UNVERIFIED", PermissionDenied;
    /// The request is not a message of the contract.
    MalformedRequest = "MALFORMED_REQUEST", InvalidArgument;
    /// The request exceeds the maximum size.
    RequestTooLarge = "REQUEST_TOO_LARGE", ResourceExhausted;
    /// There is no such method.
    Unimplemented = "UNIMPLEMENTED", Unimplemented;
    /// The server has a fault of its own.
    Internal = "INTERNAL", Internal;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    // promise: A-6
    #[test]
    fn reasons_and_pages_match() {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let found: BTreeSet<String> = fs::read_dir(pages)
            .expect("docs/errors can be read")
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .filter(|name| name != "README")
            .collect();
        let wanted: BTreeSet<String> = Reason::ALL.iter().map(|r| r.as_str().to_owned()).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn error_page_begins_with_reason_and_remedy() {
        for reason in Reason::ALL {
            let page = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../docs/errors")
                .join(format!("{}.md", reason.as_str()));
            let text = fs::read_to_string(&page).expect("the page can be read");
            assert!(
                text.starts_with(&format!("# {}\n", reason.as_str())),
                "{page:?}"
            );
            assert!(text.contains("\n## What to do\n"), "{page:?}");
        }
    }
}
