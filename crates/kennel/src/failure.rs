//! What a person reads when something did not work: `error: ...`, where there is one `hint: ...`, and a code.

use crate::terminal_text;
use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

/// Something did not work. Printed once, at the end of `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    quiet: bool,
    /// Our own output could not be written.
    of_output: bool,
    /// The server's reason, where it gave one.
    reason: Option<String>,
}

/// Exit code of what has no code of its own.
pub(crate) const FAILED: u8 = 1;

impl Failure {
    /// A failure with exit code 1. One plain sentence, lower case, no full stop.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            code: FAILED,
            quiet: false,
            of_output: false,
            reason: None,
        }
    }

    /// The reader of our standard output is gone: there is no reader, and nothing is wrong.
    pub(crate) fn reader_gone() -> Self {
        Self {
            quiet: true,
            code: 0,
            of_output: true,
            ..Self::new("the reader of standard output is gone")
        }
    }

    /// Our own output cannot be written.
    pub(crate) fn output_failed(cause: &io::Error) -> Self {
        Self {
            of_output: true,
            ..Self::new(format!("cannot write to standard output: {cause}"))
        }
    }

    /// The server's documented reason for it.
    pub(crate) fn reason(mut self, reason: Option<String>) -> Self {
        self.reason = reason;
        self
    }

    /// Whether the server gave this reason.
    pub(crate) fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }

    /// Whether our own output could not be written.
    pub(crate) fn is_of_output(&self) -> bool {
        self.of_output
    }

    /// What went wrong, in one plain sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The same in other words.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// What to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Another exit code.
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Another exit code, where it has none of its own.
    pub(crate) fn or_code(self, code: u8) -> Self {
        if self.code == FAILED {
            self.code(code)
        } else {
            self
        }
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }

    /// Whether it only says that our output has no reader any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Tells the person and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.quiet {
            // Standard error may be closed; there is nowhere left to say so.
            let _ = writeln!(io::stderr(), "{}", terminal_text::lines(&self.to_string()));
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

/// Says something on standard error that is no failure of ours.
pub(crate) fn note(what: &dyn fmt::Display) {
    let text = format!("kennel: {what}");
    // It may be closed; there is nowhere left to say so.
    let _ = writeln!(io::stderr(), "{}", terminal_text::lines(&text));
}

/// An error with its causes, each said once: some errors repeat their cause in their own text.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Reported(&'static str, Option<Box<Reported>>);

    impl fmt::Display for Reported {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Reported {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|inner| inner as _)
        }
    }

    #[test]
    fn each_cause_is_reported_once() {
        let root = Box::new(Reported("refused", None));
        let middle = Box::new(Reported("cannot connect: refused", Some(root)));
        let top = Reported("cannot open the store", Some(middle));
        assert_eq!(
            chain(&top),
            "cannot open the store: cannot connect: refused"
        );
    }
}
