//! `certs`: a private authority in a directory, and its certificates.
//!
//! `ca.pem`, `ca-key.pem` and `crl.pem` are the authority's, `NAME.pem` and `NAME-key.pem` of a server or client,
//! `ID.token` is a token. `issued.toml` lists the issued certificates, so that one whose file was replaced can be
//! revoked too.

mod authority;
mod entries;
mod files;

use crate::{
    failure::{Failure, because, note},
    print, print_exact,
};
use authority::{Authority, Kind};
use clap::{Args, Subcommand, ValueEnum};
use files::{Directory, Made};
use rcgen::{SanType, string::Ia5String};
use rustls_pki_types::DnsName;
use sha2::{Digest as _, Sha256};
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

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

/// Default validity in days.
const AUTHORITY_DAYS: u32 = 3650;
const DAYS: u32 = 365;
/// Longest name of a client or token.
const NAME_CHARS_MAX: usize = 64;
/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

pub(crate) fn certs(command: CertsCommand) -> Result<(), Failure> {
    match command {
        CertsCommand::Init(make) => init(&make),
        CertsCommand::Server { make, out, names } => server(&make, out.as_deref(), &names),
        CertsCommand::Client { make, name, role } => {
            let (written, principal, _) = client(&make, &name)?;
            print_new(&written, || entries::principal(&principal, &role))
        }
        CertsCommand::Node { make, name } => node(&make, &name),
        CertsCommand::Token { make, id, role } => token(&make, &id, &role),
        CertsCommand::Revoke { dir, name } => {
            let count = Authority::open(Directory::open(&dir)?)?.revoke(&name)?;
            note(&format_args!(
                "revoked {count} of {name}; servers with this list refuse them"
            ));
            Ok(())
        }
        CertsCommand::Ls { dir } => print(&Directory::open(&dir)?.issued()?.table()),
    }
}

fn init(make: &MakeArgs) -> Result<(), Failure> {
    let dir = Directory::create(&make.dir)?;
    let until = after(make.days.unwrap_or(AUTHORITY_DAYS));
    let written = authority::init(&dir, until, make.force)?;
    print_made(&written, until);
    Ok(())
}

fn server(make: &MakeArgs, out: Option<&Path>, names: &[String]) -> Result<(), Failure> {
    let sans = names
        .iter()
        .map(|name| server_name(name))
        .collect::<Result<Vec<_>, _>>()?;
    let authority = Authority::open(Directory::open(&make.dir)?)?;
    let out = out.map(Directory::create).transpose()?;
    let until = after(make.days.unwrap_or(DAYS));
    let name = names.first().map(String::as_str).unwrap_or_default();
    let place = (out.as_ref(), make.force);
    let written = authority.issue(Kind::Server, name, sans, until, place)?;
    print_made(&written, until);
    // An access file has one such section, which stays the same for a replaced certificate.
    print_exact(&entries::tls(&written, &authority.dir))
}

/// Makes the certificate of a client, and returns its principal.
fn client(make: &MakeArgs, name: &str) -> Result<(Made, String, Authority), Failure> {
    let principal = principal(name)?;
    let uri = Ia5String::try_from(principal.as_str()).map_err(because(format_args!(
        "{principal:?} cannot be in a certificate"
    )))?;
    let authority = Authority::open(Directory::open(&make.dir)?)?;
    let until = after(make.days.unwrap_or(DAYS));
    let sans = vec![SanType::URI(uri)];
    let written = authority.issue(Kind::Client, name, sans, until, (None, make.force))?;
    print_made(&written, until);
    Ok((written, principal, authority))
}

/// Makes the certificate of a node. A node forwards calls for other principals, with their rights: that needs the role
/// admin.
fn node(make: &MakeArgs, name: &str) -> Result<(), Failure> {
    let (written, principal, authority) = client(make, name)?;
    let role = RoleArgs {
        role: RoleArg::Admin,
        owner: None,
    };
    print_new(&written, || {
        entries::principal(&principal, &role) + &entries::forward(&written, &authority.dir)
    })
}

/// Makes a token, which needs no authority, but is stored with the certificates.
fn token(make: &MakeArgs, id: &str, role: &RoleArgs) -> Result<(), Failure> {
    check_plain(id)?;
    let dir = Directory::create(&make.dir)?;
    let until = after(make.days.unwrap_or(DAYS));
    let text = hex::encode(files::random::<TOKEN_BYTES>()?);
    let written = dir.write(
        &[(&format!("{id}.token"), &format!("{text}\n"))],
        make.force,
    )?;
    print_made(&written, until);
    print_exact(&entries::token(
        id,
        &hex::encode(Sha256::digest(&text)),
        &rfc3339(until)?,
    ))?;
    print_new(&written, || {
        entries::principal(&format!("token:{id}"), role)
    })
}

/// Prints the entry of a new principal: that of a replaced certificate has one already.
fn print_new(written: &Made, entry: impl FnOnce() -> String) -> Result<(), Failure> {
    if written.replaced {
        return Ok(());
    }
    print_exact(&entry())
}

fn print_made(written: &Made, until: OffsetDateTime) {
    let files: Vec<String> = written
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    note(&format_args!(
        "made {}, valid until {}",
        files.join(", "),
        until.date()
    ));
}

fn server_name(name: &str) -> Result<SanType, Failure> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let wrong = || {
        Failure::new(format!("{name:?} is neither a host name nor an IP address"))
            .code(crate::USAGE)
            .hint("name what stands between tcp:// and the port")
    };
    DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).map_err(|_| wrong())?;
    Ok(SanType::DnsName(
        Ia5String::try_from(name).map_err(|_| wrong())?,
    ))
}

/// Returns the principal of a client: its name is a URI, or becomes one.
fn principal(name: &str) -> Result<String, Failure> {
    let Some((scheme, rest)) = name.split_once("://") else {
        check_plain(name)?;
        return Ok(format!("spiffe://kennel/{name}"));
    };
    let is_scheme = !scheme.is_empty()
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    if is_scheme && !rest.is_empty() && name.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(name.to_owned());
    }
    Err(Failure::new(format!("{name:?} is no URI")).code(crate::USAGE))
}

fn check_plain(name: &str) -> Result<(), Failure> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_CHARS_MAX
        && name.chars().all(is_good)
    {
        return Ok(());
    }
    Err(Failure::new(format!("{name:?} cannot be a name"))
        .code(crate::USAGE)
        .hint("letters, digits, dots, dashes and underscores, at most 64, or a URI"))
}

fn after(days: u32) -> OffsetDateTime {
    let now = OffsetDateTime::now_utc();
    (now + Duration::days(days.into()))
        .replace_nanosecond(0)
        .unwrap_or(now)
}

fn rfc3339(time: OffsetDateTime) -> Result<String, Failure> {
    time.format(&Rfc3339)
        .map_err(because(format_args!("cannot write {time}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_name_becomes_a_uri() {
        assert_eq!(principal("alice").as_deref(), Ok("spiffe://kennel/alice"));
        assert_eq!(
            principal("spiffe://prod/ns/agents").as_deref(),
            Ok("spiffe://prod/ns/agents")
        );
        for bad in [
            "",
            "-x",
            "a b",
            "a/b",
            "://x",
            "spiffe://",
            "spiffe://a b",
            "\u{e4}",
        ] {
            assert!(principal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn server_names_are_hosts_or_addresses() {
        assert!(matches!(server_name("10.0.0.7"), Ok(SanType::IpAddress(_))));
        assert!(matches!(server_name("::1"), Ok(SanType::IpAddress(_))));
        assert!(matches!(
            server_name("*.nodes.example"),
            Ok(SanType::DnsName(_))
        ));
        for bad in ["", "tcp://x", "x:7443", "a b", "-"] {
            assert!(server_name(bad).is_err(), "{bad}");
        }
    }
}
