//! The connection to a server, and the output of answers.

use super::{progress, refusal};
use crate::{
    args::{ClientArgs, Format},
    failure::Failure,
    terminal_text,
};
use kennel_client as client;
use kennel_client::{
    Address, Call, ConnectError, Connection, Surroundings, Target, TargetError, shown,
};
use kennel_linux::own_streams;
use kennel_proto::{json::ToJson, pb};
use std::{io, os::fd::AsFd, time::Duration};

/// A server that answered.
pub struct Link {
    pub(crate) connection: Connection,
    /// Its address, as `unix:PATH` or `tcp://HOST:PORT`.
    pub(crate) address: String,
    pub(crate) format: Format,
    /// Whether it ends with this process.
    pub(crate) own: bool,
}

impl Link {
    /// Connects to the server that flag, environment, context or default name.
    pub(crate) async fn open(
        client: &ClientArgs,
        format: Format,
        here: &Surroundings,
    ) -> Result<Self, Failure> {
        let (link, node) = Self::open_any(client, format, here).await?;
        link.at_node(node.as_deref())
    }

    /// Connects likewise, for calls that every server answers alike; with the given node.
    pub(crate) async fn open_any(
        client: &ClientArgs,
        format: Format,
        here: &Surroundings,
    ) -> Result<(Self, Option<String>), Failure> {
        let target = Target::resolve(&client.given(), here).map_err(no_target)?;
        let link = Self::dial(&target, format).await.map_err(not_connected)?;
        Ok((link, target.node))
    }

    /// Connects likewise; `None` where no server is given, and none listens at the default.
    pub(crate) async fn open_if_there(
        client: &ClientArgs,
        format: Format,
        here: &Surroundings,
    ) -> Result<Option<Self>, Failure> {
        let given = client.given();
        let named = Target::named(&given, here).map_err(no_target)?;
        if named.is_some() || given.values.has_credentials() {
            return Self::open(client, format, here).await.map(Some);
        }
        // A default server may not exist.
        let Ok(target) = Target::resolve(&given, here) else {
            return Ok(None);
        };
        match Self::dial(&target, format).await {
            Ok(link) => link.at_node(target.node.as_deref()).map(Some),
            Err(ConnectError::NoServer { source, .. }) if has_no_listener(&source) => Ok(None),
            Err(error) => Err(not_connected(error)),
        }
    }

    async fn dial(target: &Target, format: Format) -> Result<Self, ConnectError> {
        Ok(Self {
            connection: target.connect().await?,
            address: target.address.to_string(),
            format,
            own: false,
        })
    }

    /// Directs calls to this node of its database.
    pub(super) fn at_node(self, node: Option<&str>) -> Result<Self, Failure> {
        let Some(node) = node else { return Ok(self) };
        let connection = self.connection.to_node(node);
        let connection = connection.map_err(|e| Failure::new(e.to_string()).code(crate::USAGE))?;
        Ok(Self { connection, ..self })
    }

    /// Makes the link to a server that this process has started.
    pub fn own(connection: Connection, format: Format) -> Self {
        Self {
            connection,
            address: "its own".to_owned(),
            format,
            own: true,
        }
    }

    /// Makes a call that waits for something.
    pub(crate) async fn call<C: Call>(&self, request: C) -> Result<C::Answer, Failure> {
        self.connection.call(request).await.map_err(refused)
    }

    /// Makes a call that does not wait: it fails where no answer comes.
    pub(crate) async fn ask<C: Call>(&self, request: C) -> Result<C::Answer, Failure> {
        let asked = self.connection.call_within(ANSWER_MAX, request);
        asked.await.map_err(refused)
    }

    /// Prints a message in the requested form; `text` is that for people.
    pub(crate) fn print(
        &self,
        message: &impl ToJson,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        print_exact(&self.shown(message, text))
    }

    /// Prints messages, each a document, or a table of them.
    pub(crate) fn print_all<M: ToJson>(
        &self,
        messages: &[M],
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.format.is_text() {
            return print_exact(&table());
        }
        let documents = messages
            .iter()
            .map(|message| self.format.document(&message.to_json()));
        print_exact(&documents.collect::<String>())
    }

    /// Returns a message in the requested form, safe to be printed.
    pub(crate) fn shown(&self, message: &impl ToJson, text: impl FnOnce() -> String) -> String {
        self.either(|| message.to_json(), text)
    }

    /// Returns one of two texts, safe to be printed.
    pub(crate) fn either(
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

    /// Returns the answer about one run likewise.
    pub(crate) fn shown_of(
        &self,
        run: &pb::Run,
        message: &impl ToJson,
        text: impl FnOnce() -> String,
    ) -> String {
        self.either_of(run, || message.to_json(), text)
    }

    /// Returns one of two texts about one run, or its id.
    pub(crate) fn either_of(
        &self,
        run: &pb::Run,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> String {
        match self.format {
            Format::Name => format!("{}\n", terminal_text::one_line(&run.run_id)),
            _ => self.either(json, text),
        }
    }
}

fn has_no_listener(cause: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(cause.kind(), NotFound | ConnectionRefused)
}

fn no_target(error: TargetError) -> Failure {
    Failure::from(error).or_code(crate::USAGE)
}

fn not_connected(error: ConnectError) -> Failure {
    let failure = Failure::new(shown(&error));
    let hint = match error {
        ConnectError::NoServer {
            address: Address::Tcp { .. },
            ..
        } => "is it started with --listen tcp:ADDRESS:PORT, and may this host reach it?",
        ConnectError::NoServer { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            "the socket belongs to another user; name yours with --server unix:PATH"
        }
        ConnectError::NoServer { .. } => "start one with: kennel serve",
        ConnectError::ForeignServer { uid, .. } => {
            return failure.hint(format!("if it is to be trusted: --server-user {uid}"));
        }
        ConnectError::Transport { .. } => {
            "name another server with --server unix:PATH or KENNEL_SERVER"
        }
        ConnectError::UntrustedServer { .. } => "name the file with its authority: --tls-ca FILE",
        ConnectError::WrongServerName { .. } => {
            "call it by a name that it has, or, where you know why they differ, give it with --tls-server-name NAME"
        }
        ConnectError::ClientCertificate { .. } => {
            "name a valid one of its authority with --tls-cert and --tls-key; kennel certs client makes one"
        }
        ConnectError::NoClientCertificate { .. } => "name one with --tls-cert and --tls-key",
        ConnectError::Token { .. } => "it may have expired: kennel certs token makes another one",
        ConnectError::NoCredentials { .. } => {
            "name them: --tls-cert and --tls-key, or --token-file"
        }
        ConnectError::ServerCertificate { .. }
        | ConnectError::Insecure { .. }
        | ConnectError::Credentials(_) => {
            return failure;
        }
    };
    failure.hint(hint)
}

/// Returns the run of a response; a response without it is not of a Kennel server of this version.
pub fn run_of(run: Option<pb::Run>) -> Result<pb::Run, Failure> {
    run.ok_or_else(|| Failure::new("the server's answer has no run in it"))
}

/// Longest wait for an answer to a call that does not block: a server that hangs is replaced within less.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Converts a call's error, for `map_err`.
pub fn refused(status: impl Into<client::Failure>) -> Failure {
    refusal::failure(&status.into())
}

/// Writes text for people to standard output at once, safe for a terminal.
pub fn print(text: &str) -> Result<(), Failure> {
    print_exact(&terminal_text::lines(text))
}

/// Writes to standard output at once: JSON, and the program's own text.
pub fn print_exact(text: &str) -> Result<(), Failure> {
    progress::clear();
    write(io::stdout().lock(), text.as_bytes())
}

/// Writes to standard output or standard error at once: a reader that went away is not an error.
pub(crate) fn write(to: impl AsFd, bytes: &[u8]) -> Result<(), Failure> {
    own_streams::write_all(to, bytes).map_err(|cause| match cause.kind() {
        io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::output_failed(&cause),
    })
}

/// Returns a new id, so that a repeated call acts once.
pub(crate) fn new_request_id() -> String {
    ulid::Ulid::generate().to_string()
}
