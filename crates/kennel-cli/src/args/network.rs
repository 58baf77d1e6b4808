//! Flags for servers on the network.

use clap::Args;
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
