//! The address of the store, as a person writes it.

use sqlx::postgres::PgConnectOptions;
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Parameters that may follow the `?` of a Postgres URL. Another one is refused: a misspelt `sslmode` must not be
/// ignored, and its value must not get into a log.
const POSTGRES_PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// The address of a store: `sqlite:PATH`, or a `postgres:` URL. Its texts never show a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    place: StoreLocation,
    /// The file that it was read from, and is read from again where a login fails.
    source: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreLocation {
    Sqlite(PathBuf),
    Postgres(String),
}

/// The text is not the address of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoreUrl {
    /// The scheme is neither of the two.
    #[error("invalid store URL: expected sqlite:PATH or postgres://USER@HOST/DATABASE")]
    Scheme,
    /// `sqlite:` and nothing after it.
    #[error("sqlite: must be followed by the path of a file")]
    NoPath,
    /// A parameter is not one of Postgres' connection parameters.
    #[error("{0:?} is not a parameter of a postgres URL")]
    Parameter(String),
    /// The URL is malformed. Its text is not repeated: a password may be in it.
    #[error(
        "the postgres URL cannot be read: write postgres://USER:PASSWORD@HOST:PORT/DATABASE and encode \
         special characters of the password as %XX"
    )]
    Postgres,
}

impl StoreUrl {
    /// Makes the address of the database file at this path.
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::of(StoreLocation::Sqlite(path.into()))
    }

    fn of(place: StoreLocation) -> Self {
        let source = None;
        Self { place, source }
    }

    /// Notes the file that holds this address, which may have another one later, such as a changed password.
    #[must_use]
    pub fn in_file(self, file: &Path) -> Self {
        let source = Some(file.to_owned());
        Self { source, ..self }
    }

    /// Returns the path of the database's file; absent: it is no file of this host.
    pub fn file(&self) -> Option<&Path> {
        match &self.place {
            StoreLocation::Sqlite(path) => Some(path),
            StoreLocation::Postgres(_) => None,
        }
    }

    pub(crate) fn place(&self) -> &StoreLocation {
        &self.place
    }

    /// Returns the address that its file has by now, if that is another one.
    pub(crate) fn reread(&self) -> Option<Self> {
        let file = self.source.as_ref()?;
        let text = std::fs::read_to_string(file).ok()?;
        let read = text.trim().parse::<Self>().ok()?.in_file(file);
        (read != *self).then_some(read)
    }

    /// Returns the parameters of a connection. Absent: it is no address of Postgres.
    pub(crate) fn connect_options(&self) -> Option<PgConnectOptions> {
        match &self.place {
            StoreLocation::Postgres(url) => url.parse().ok(),
            StoreLocation::Sqlite(_) => None,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<Self, InvalidStoreUrl> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            // Both sqlite:PATH and the URL form sqlite:///PATH name the same file.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(InvalidStoreUrl::NoPath);
            }
            return Ok(Self::sqlite(path));
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(InvalidStoreUrl::Scheme);
        }
        for (name, _) in parameters(text) {
            if !POSTGRES_PARAMETERS.contains(&name) && !name.starts_with("options[") {
                return Err(InvalidStoreUrl::Parameter(name.to_owned()));
            }
        }
        PgConnectOptions::from_str(text).map_err(|_| InvalidStoreUrl::Postgres)?;
        Ok(Self::of(StoreLocation::Postgres(text.to_owned())))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            StoreLocation::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreLocation::Postgres(url) => f.write_str(&redacted(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Returns the URL with stars for the password, in the user part and among the parameters.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (base, query) = match rest.split_once('?') {
        Some((base, query)) => (base, Some(query)),
        None => (rest, None),
    };
    // The last @ ends the user part, so that a password with an unencoded @ is hidden as a whole.
    let base = match base.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => base.to_owned(),
    };
    let Some(query) = query else {
        return format!("{scheme}://{base}");
    };
    let shown: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if name.eq_ignore_ascii_case("password") => format!("{name}=***"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{scheme}://{base}?{}", shown.join("&"))
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_url_text_hides_its_password() {
        for text in [
            "postgres://kennel:s3cret@db.example/kennel",
            "postgresql://kennel:s3cret@db.example:5433/kennel?sslmode=require",
            "postgres:///kennel?host=/run/postgresql&user=kennel&password=s3cret",
            "postgres://kennel:p%40s3cret@db.example/kennel?password=s3cret&application_name=k",
        ] {
            let url: StoreUrl = text.parse().expect(text);
            for shown in [url.to_string(), format!("{url:?}")] {
                assert!(!shown.contains("s3cret"), "{shown}");
                assert!(shown.contains("kennel") && shown.contains("***"), "{shown}");
            }
        }
    }

    #[test]
    fn invalid_url_is_refused_without_its_password() {
        let refused = [
            ("mysql://root:s3cret@host/db", InvalidStoreUrl::Scheme),
            ("sqlite:", InvalidStoreUrl::NoPath),
            ("sqlite://", InvalidStoreUrl::NoPath),
            (
                "postgres://u:s3cret@host:notaport/db",
                InvalidStoreUrl::Postgres,
            ),
            (
                "postgres://host/db?passwrd=s3cret",
                InvalidStoreUrl::Parameter("passwrd".into()),
            ),
        ];
        for (text, expected) in refused {
            let error = text.parse::<StoreUrl>().expect_err(text);
            assert_eq!(error, expected);
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn sqlite_path_is_used_verbatim() {
        for (text, path) in [
            (
                "sqlite:/var/lib/kennel/kennel.db",
                "/var/lib/kennel/kennel.db",
            ),
            (
                "sqlite:///var/lib/kennel/kennel.db",
                "/var/lib/kennel/kennel.db",
            ),
            ("sqlite:kennel db?.sqlite", "kennel db?.sqlite"),
        ] {
            let url: StoreUrl = text.parse().expect(text);
            assert_eq!(url, StoreUrl::sqlite(path));
        }
    }
}
