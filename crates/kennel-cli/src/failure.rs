//! Failures for people: `error: ...`, with `hint: ...` where there is one, and an exit code.

use crate::{Format, terminal_text};
use kennel_client::{TargetError, shown};
use serde_json::json;
use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

/// A failure. Printed once, at the end of `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    quiet: bool,
    /// Whether this process's own output could not be written.
    of_output: bool,
    /// The server's reason, if it gave one.
    reason: Option<String>,
}

/// Longest wait of a keeper or a server for the reader of its standard error.
const PRINT_MAX: Duration = Duration::from_secs(1);
/// Default exit code of failures.
pub const FAILED: u8 = 1;

impl Failure {
    /// Refuses other forms than text, where a text has one purpose.
    pub fn unless_text(format: &Format) -> Result<(), Self> {
        if format.is_text() {
            return Ok(());
        }
        let failure = Self::new("this command has no form for programs");
        Err(failure.hint("leave --output out").code(crate::USAGE))
    }

    /// Makes a failure with exit code 1. The message is one plain sentence, lower case, without full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            code: FAILED,
            quiet: false,
            of_output: false,
            reason: None,
        }
    }

    /// Makes the failure for a gone reader of standard output: it is no error.
    pub fn reader_gone() -> Self {
        Self {
            quiet: true,
            code: 0,
            of_output: true,
            ..Self::new("the reader of standard output is gone")
        }
    }

    /// Makes the failure for output that cannot be written.
    pub fn output_failed(cause: &io::Error) -> Self {
        Self {
            of_output: true,
            ..Self::new(format!("cannot write to standard output: {cause}"))
        }
    }

    /// Adds the server's documented reason.
    pub fn reason(mut self, reason: Option<String>) -> Self {
        self.reason = reason;
        self
    }

    /// Whether the server gave this reason.
    pub fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }

    /// Whether this process's own output could not be written.
    pub fn is_of_output(&self) -> bool {
        self.of_output
    }

    /// Returns the message, one plain sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Replaces the message.
    pub fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets another exit code.
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Sets another exit code, unless one was set.
    pub fn or_code(self, code: u8) -> Self {
        if self.code == FAILED {
            self.code(code)
        } else {
            self
        }
    }

    /// Returns the exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// Whether the failure only means that the output has no reader any more.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints the failure and returns the exit code.
    pub fn report(&self) -> ExitCode {
        self.report_in(&Format::default())
    }

    /// Prints the failure, where output is for programs as one line of JSON, and returns the exit code.
    pub fn report_in(&self, format: &Format) -> ExitCode {
        let text = if format.is_text() {
            terminal_text::lines(&self.to_string())
        } else {
            let (message, hint, reason) = (&self.message, &self.hint, &self.reason);
            let error =
                json!({"message": message, "hint": hint, "reason": reason, "exitCode": self.code});
            terminal_text::json(&json!({"error": error}).to_string())
        };
        if !self.quiet {
            // Standard error may be closed; then the text is not printed.
            let _ = writeln!(io::stderr(), "{text}");
        }
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Prints a note on standard error that is no failure.
pub fn note(what: &dyn fmt::Display) {
    let text = format!("kennel: {what}");
    // Standard error may be closed; then the text is not printed.
    let _ = writeln!(io::stderr(), "{}", terminal_text::lines(&text));
}

/// Prints what a keeper or a server has to say, and does not wait for a reader that stands still.
pub fn in_time(print: impl FnOnce() + Send + 'static) {
    let (printed, is_printed) = mpsc::channel();
    let print = move || {
        print();
        let _ = printed.send(());
    };
    if thread::Builder::new().spawn(print).is_ok() {
        // After a timeout there is no more to do.
        let _ = is_printed.recv_timeout(PRINT_MAX);
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        let failure = Self::new(error.to_string());
        let hint = match &error {
            TargetError::NotAnAddress(text) => return failure.hint(address_for(text)),
            TargetError::NoDefault => "name the server with --server unix:PATH or KENNEL_SERVER",
            TargetError::SocketWithCredentials => {
                "name a server on the network with --server tcp://HOST:PORT"
            }
            TargetError::CredentialsAlone => {
                "name it with --server tcp://HOST:PORT, KENNEL_SERVER or --context"
            }
            TargetError::TwoVariables => "unset one of them",
            TargetError::HalfCertificate => "name both with --tls-cert and --tls-key",
            TargetError::NoContext(_) => "kennel context ls lists them",
            TargetError::Contexts { .. } => {
                "kennel context set NAME --server ... writes a context anew"
            }
            TargetError::NoFile(_)
            | TargetError::LongPath(_)
            | TargetError::Relative { .. }
            | TargetError::ServerUser(_)
            | TargetError::UnreadContexts { .. } => return failure,
        };
        failure.hint(hint)
    }
}

/// Returns what may have been meant by a text that is no address.
fn address_for(text: &str) -> String {
    if text.starts_with("tcp:") {
        return "write it as tcp://HOST:PORT".to_owned();
    }
    let schemes = ["http://", "https://"];
    let of_http = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    let at = of_http.unwrap_or(text);
    let port = at.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) if !at.contains('/') => format!("did you mean tcp://{at}"),
        _ if text.contains('/') && of_http.is_none() => format!("did you mean unix:{text}"),
        _ => "write it as unix:PATH, or tcp://HOST:PORT".to_owned(),
    }
}

/// Makes the failure of an operation by its cause, for `map_err`.
pub fn because<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Failure {
    move |cause| Failure::new(format!("{what}: {cause}"))
}

/// Makes the failure of an operation, with all its causes.
pub fn failed(what: &str, cause: &(dyn Error + 'static)) -> Failure {
    Failure::new(format!("{what}: {}", shown(cause)))
}
