//! Flags for servers on the network, and of the commands that prepare for them.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Heading of these flags.
const HEADING: &str = "Servers on the network";

/// Credentials for a server on the network. Each flag wins over its variable, a variable over the context.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RemoteArgs {
    /// Context that names the server: see `kennel context` [env: KENNEL_CONTEXT]
    #[arg(long, global = true, help_heading = HEADING, value_name = "NAME", conflicts_with = "server")]
    pub(crate) context: Option<String>,
    /// CA certificates that verify the server's certificate [env: KENNEL_TLS_CA] [default: those of this host]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Client certificate [env: KENNEL_TLS_CERT]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the client certificate [env: KENNEL_TLS_KEY]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Host name to verify in the server's certificate [env: KENNEL_TLS_SERVER_NAME] [default: the host of the address]
    #[arg(long, global = true, help_heading = HEADING, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// File with the bearer token [env: KENNEL_TOKEN_FILE]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List all contexts; a star marks the current one
    Ls,
    /// Make a context the current one; `default` is the socket of this host
    Use(ContextName),
    /// Create or replace a context from --server, --tls-ca, --tls-cert, --tls-key, --tls-server-name and --token-file
    Set(NewContext),
    /// Print a context [default: the current one]
    Show {
        /// Name of the context
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Remove a context
    Rm(ContextName),
}

#[derive(Debug, Args)]
pub struct ContextName {
    /// Name of the context
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub struct NewContext {
    /// Name of the context
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Make it the current one
    #[arg(long = "use")]
    pub(crate) uses: bool,
}

#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make an authority: its certificate, its key, and an empty list of revoked certificates
    Init(MakeArgs),
    /// Make the certificate of a server, and print the [tls] section for its access file
    Server {
        #[command(flatten)]
        make: MakeArgs,
        /// Directory for the files instead of the authority's, made where it is absent; the authority is then not changed:
        /// it may be read-only, as a mounted Secret, and does not list the certificate
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Host names and IP addresses that clients call the server by; the first one names the files
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// Make the certificate of a client, and print its principal for the access file
    Client {
        #[command(flatten)]
        make: MakeArgs,
        /// Name of the client: alice is the principal spiffe://kennel/alice; a URI is a principal itself
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        role: RoleArgs,
    },
    /// Make the certificate that nodes use to call each other, and print its principal and the [forward] section for their access
    /// files
    Node {
        #[command(flatten)]
        make: MakeArgs,
        /// Name of the certificate: nodes is the principal spiffe://kennel/nodes, with the role admin
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Make a token, and print it, hashed, and its principal for the access file
    Token {
        #[command(flatten)]
        make: MakeArgs,
        /// Name of the token: ci is the principal token:ci
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        role: RoleArgs,
    },
    /// Revoke all certificates of a server or client: put them on the list of the authority
    Revoke {
        /// Directory of the authority
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Name of the server or client
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List issued and revoked certificates
    Ls {
        /// Directory of the authority
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct MakeArgs {
    /// Directory of the authority
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Days of validity [default: 3650 for an authority, 365 for all others]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: Option<u32>,
    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Default, Args)]
pub struct RoleArgs {
    /// Role of the principal
    #[arg(long, value_enum, value_name = "ROLE", default_value_t)]
    pub(crate) role: RoleArg,
    /// Owner of the runs that it starts [default: the principal]
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// See the runs of its owner
    Viewer,
    /// Start runs too, and control those of its owner
    #[default]
    Spawner,
    /// See and control all runs
    Operator,
    /// Drain, upgrade and reap too
    Admin,
}
