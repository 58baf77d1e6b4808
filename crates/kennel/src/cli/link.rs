//! The connection to a server, and how answers are printed.

use super::{progress, refusal};
use crate::{
    args::Format,
    config::{self, Surroundings},
    failure::{Failure, chain},
    terminal_text,
};
use kennel_client as client;
use kennel_client::{ConnectError, Connection};
use kennel_proto::pb;
use std::{
    io::{self, Write as _},
    time::Duration,
};

/// A server that answered.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// Where it is, as `unix:PATH`.
    pub(crate) address: String,
    pub(crate) format: Format,
    /// It ends with this process.
    pub(crate) own: bool,
}

impl Link {
    /// Connects to the server that flag, environment or default name.
    pub(crate) async fn open(
        server: Option<&str>,
        format: Format,
        here: &Surroundings,
    ) -> Result<Self, Failure> {
        let dialled = Self::dial(server, format, here).await?;
        dialled.map_err(not_connected)
    }

    /// The same; `None` where nobody has named a server, and none listens at the default.
    pub(crate) async fn open_if_there(
        server: Option<&str>,
        format: Format,
        here: &Surroundings,
    ) -> Result<Option<Self>, Failure> {
        if server.is_some() || here.names_server() {
            return Self::open(server, format, here).await.map(Some);
        }
        match Self::dial(server, format, here).await {
            Ok(Ok(link)) => Ok(Some(link)),
            Ok(Err(ConnectError::NoServer { source, .. })) if has_no_listener(&source) => Ok(None),
            Ok(Err(error)) => Err(not_connected(error)),
            // There is no default.
            Err(_) => Ok(None),
        }
    }

    /// The outer error: no address is known.
    async fn dial(
        server: Option<&str>,
        format: Format,
        here: &Surroundings,
    ) -> Result<Result<Self, ConnectError>, Failure> {
        let address = config::server_address(server, here).map_err(|f| f.or_code(crate::USAGE))?;
        let dialled = client::Address::Unix(address.socket.clone());
        Ok(client::connect(&dialled).await.map(|connection| Self {
            connection,
            address: address.to_string(),
            format,
            own: false,
        }))
    }

    /// To a server that this process has started.
    pub(crate) fn own(connection: Connection, format: Format) -> Self {
        Self {
            connection,
            address: "its own".to_owned(),
            format,
            own: true,
        }
    }

    /// Prints one of the two, by the form that was asked for.
    pub(crate) fn print(
        &self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        print_exact(&self.shown(json, text))
    }

    /// The text of one of the two, safe to be printed.
    pub(crate) fn shown(
        &self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> String {
        if self.format.is_text() {
            terminal_text::lines(&text())
        } else {
            self.format.document(&json())
        }
    }

    /// The same where the answer is about one run.
    pub(crate) fn shown_of(
        &self,
        run: &pb::Run,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> String {
        match self.format {
            Format::Name => format!("{}\n", terminal_text::one_line(&run.run_id)),
            _ => self.shown(json, text),
        }
    }
}

fn has_no_listener(cause: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(cause.kind(), NotFound | ConnectionRefused)
}

fn not_connected(error: ConnectError) -> Failure {
    let failure = Failure::new(chain(&error));
    match error {
        ConnectError::NoServer { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            failure.hint("the socket belongs to another user; name yours with --server unix:PATH")
        }
        ConnectError::NoServer { .. } => failure.hint("start one with: kennel serve"),
        ConnectError::ForeignServer { .. } | ConnectError::Transport { .. } => {
            failure.hint("name another server with --server unix:PATH or KENNEL_SERVER")
        }
    }
}

/// A response without what it must carry: not a Kennel server of this version.
pub(crate) fn run_of(run: Option<pb::Run>) -> Result<pb::Run, Failure> {
    run.ok_or_else(|| Failure::new("the server's answer has no run in it"))
}

/// Longest wait for an answer that is given at once: a server that hangs is replaced within less.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A call that does not wait by its nature: it fails where no answer comes.
pub(crate) fn soon<T>(message: T) -> impl client::IntoRequest<T> {
    client::within(ANSWER_MAX, message)
}

/// For `map_err` on a call.
pub(crate) fn refused(status: impl Into<client::Failure>) -> Failure {
    refusal::failure(&status.into())
}

/// Writes text for people to standard output at once, safe for a terminal.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_exact(&terminal_text::lines(text))
}

/// Writes to standard output at once: JSON, and what is our own.
pub(crate) fn print_exact(text: &str) -> Result<(), Failure> {
    progress::clear();
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|cause| stdout_failed(&cause))
}

/// A reader that went away is not an error.
pub(crate) fn stdout_failed(cause: &io::Error) -> Failure {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        Failure::reader_gone()
    } else {
        Failure::output_failed(cause)
    }
}
