//! Where the server reads secrets of runs: directories and credentials that the operator has opened for them.

use crate::base::{blocking::blocking, calls::CallError, cause};
use kennel_lifecycle::{
    LimitPowers, Resource, Rlimit, RunLimits, Secret, SecretDelivery, SecretSource, SecretValue,
    StartFailure, StartStage, limits::SECRET_BYTES_MAX,
};
use kennel_linux::beneath;
use std::{io, path::PathBuf, sync::Arc};

/// The sources of one server. Nothing else is read for a run.
#[derive(Clone, Debug, Default)]
pub struct SecretSources {
    /// Directories with files; the first that has one counts.
    pub dirs: Vec<PathBuf>,
    /// Directory with the credentials of the server's own service; absent: it has none.
    pub credentials_dir: Option<PathBuf>,
    /// Names of the credentials that runs may have.
    pub credentials: Vec<String>,
}

/// A secret that a run cannot have at this time.
#[derive(Debug)]
pub(crate) struct SecretFault {
    name: String,
    source: String,
    errno: Option<i32>,
    why: String,
}

impl SecretSources {
    /// Reads the values that the server has for these secrets, and trims all that are to be trimmed.
    pub(crate) async fn filled(
        self: &Arc<Self>,
        secrets: Vec<Secret>,
    ) -> Result<Vec<Secret>, SecretFault> {
        let is_there = |s: &Secret| s.source.of_server().is_none() && !s.trim_newline;
        if secrets.iter().all(is_there) {
            return Ok(secrets);
        }
        let sources = Arc::clone(self);
        let read = blocking(move || secrets.into_iter().map(|s| sources.fill(s)).collect());
        read.await.unwrap_or_else(|error| {
            Err(SecretFault {
                name: String::new(),
                source: String::new(),
                errno: cause::errno(&error),
                why: error.to_string(),
            })
        })
    }

    fn fill(&self, secret: Secret) -> Result<Secret, SecretFault> {
        let read = match &secret.source {
            SecretSource::ServerFile(path) => self.file(path),
            SecretSource::Credential(name) => self.credential(name),
            SecretSource::Sent(value) => Ok(value.expose().to_vec()),
        };
        let fault = |why: String, errno| SecretFault {
            name: secret.name.clone(),
            source: secret.source.of_server().unwrap_or_default(),
            errno,
            why,
        };
        let value = match read {
            Ok(bytes) if secret.trim_newline => SecretValue::new(bytes).without_line_end(),
            Ok(bytes) => SecretValue::new(bytes),
            Err(error) => return Err(fault(error.to_string(), cause::errno(&error))),
        };
        if let Some(why) = value.fault(secret.delivery) {
            return Err(fault(format!("its value {why}"), None));
        }
        Ok(Secret {
            source: SecretSource::Sent(value),
            ..secret
        })
    }

    fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut found = Err(not_opened("the server has no --secret-dir"));
        for dir in &self.dirs {
            found = beneath::read(dir, path, SECRET_BYTES_MAX);
            let is_missing = |error: &io::Error| {
                let kind = error.kind();
                matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            };
            if !found.as_ref().is_err_and(is_missing) {
                break;
            }
        }
        found
    }

    fn credential(&self, name: &str) -> io::Result<Vec<u8>> {
        if !self.credentials.iter().any(|opened| opened == name) {
            return Err(not_opened("no --secret-credential of the server names it"));
        }
        let dir = self.credentials_dir.as_ref();
        let dir = dir.ok_or_else(|| not_opened("the server's service has no credentials"))?;
        beneath::read(dir, name, SECRET_BYTES_MAX)
    }
}

/// Returns the names of variables whose values the server has read with a line end, which is seldom a part of them.
pub(crate) fn with_line_end(asked: &[Secret], filled: &[Secret]) -> Vec<String> {
    let pairs = asked.iter().zip(filled);
    let found = pairs.filter(|(asked, filled)| {
        asked.source.of_server().is_some()
            && filled.delivery == SecretDelivery::Variable
            && matches!(&filled.source, SecretSource::Sent(value) if value.ends_line())
    });
    found.map(|(asked, _)| asked.name.clone()).collect()
}

fn not_opened(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

impl From<SecretFault> for StartFailure {
    fn from(fault: SecretFault) -> Self {
        Self {
            stage: StartStage::Secret,
            errno: fault.errno,
            path: Some(fault.source),
        }
    }
}

impl From<SecretFault> for CallError {
    fn from(fault: SecretFault) -> Self {
        Self::SecretUnavailable {
            name: fault.name,
            origin: fault.source,
            why: fault.why,
        }
    }
}

/// Leaves no core dump of a command with secrets, unless its spec says otherwise. A file needs more than one byte; a
/// program that `core_pattern` names gets a dump of any size, except at a limit of exactly one byte, see core(5).
pub(crate) fn without_core(limits: &mut RunLimits, secrets: &[Secret], powers: &LimitPowers) {
    let is_core = |limit: &Rlimit| limit.resource == Resource::Core;
    if !secrets.is_empty() && !limits.rlimits.iter().any(is_core) {
        let mut most = powers.hard_max.iter();
        let most = most.find(|(resource, _)| *resource == Resource::Core);
        let most = most.map_or(0, |(_, most)| (*most).min(1));
        limits.rlimits.push(Rlimit {
            resource: Resource::Core,
            soft: most,
            hard: most,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{SecretDelivery, UNLIMITED};
    use std::{fs, path::Path};

    fn sources(dirs: &[&Path]) -> Arc<SecretSources> {
        Arc::new(SecretSources {
            dirs: dirs.iter().map(|dir| dir.to_path_buf()).collect(),
            credentials_dir: Some(dirs[0].to_owned()),
            credentials: vec!["db".to_owned()],
        })
    }

    async fn read(sources: &Arc<SecretSources>, source: SecretSource) -> Result<Vec<u8>, String> {
        let secret = Secret {
            name: "A".to_owned(),
            source,
            delivery: SecretDelivery::Variable,
            trim_newline: false,
        };
        let filled = sources.filled(vec![secret]).await;
        let filled = filled.map_err(|fault| fault.why)?;
        match &filled[0].source {
            SecretSource::Sent(value) => Ok(value.expose().to_vec()),
            other => panic!("{other:?}"),
        }
    }

    // promise: RW-93
    #[tokio::test]
    async fn only_configured_secret_sources_are_read() {
        let (one, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (one, other) = (one.expect("a directory"), other.expect("a directory"));
        let both = sources(&[one.path(), other.path()]);
        let file = |path: &str| SecretSource::ServerFile(path.to_owned());
        let credential = |name: &str| SecretSource::Credential(name.to_owned());
        fs::write(one.path().join("db"), b"one").expect("a file");
        fs::write(other.path().join("db"), b"other").expect("a file");
        fs::write(other.path().join("tls"), b"key").expect("a file");
        assert_eq!(read(&both, file("db")).await.as_deref(), Ok(&b"one"[..]));
        assert_eq!(read(&both, file("tls")).await.as_deref(), Ok(&b"key"[..]));
        fs::create_dir(other.path().join("team")).expect("a directory");
        fs::write(other.path().join("team/db"), b"team").expect("a file");
        fs::write(one.path().join("team"), b"no directory").expect("a file");
        let team = read(&both, file("team/db")).await;
        assert_eq!(team.as_deref(), Ok(&b"team"[..]));
        let db = read(&both, credential("db")).await;
        assert_eq!(db.as_deref(), Ok(&b"one"[..]));
        let why = read(&both, credential("tls")).await.expect_err("not named");
        assert!(why.contains("--secret-credential"), "{why}");
        let none = Arc::new(SecretSources::default());
        let why = read(&none, file("db")).await.expect_err("no directory");
        assert!(why.contains("--secret-dir"), "{why}");
        fs::write(other.path().join("tls"), b"\xff").expect("a file");
        let why = read(&both, file("tls")).await.expect_err("no text");
        assert!(why.contains("UTF-8"), "{why}");
    }

    // promise: RW-90a
    #[test]
    fn secret_run_gets_minimal_core_limit() {
        let secret = Secret {
            name: "A".to_owned(),
            source: SecretSource::ServerFile("db".to_owned()),
            delivery: SecretDelivery::Variable,
            trim_newline: false,
        };
        let limited = |hard_max: &[(Resource, u64)], secrets: &[Secret]| {
            let powers = LimitPowers {
                hard_max: hard_max.to_vec(),
                nice_min: 0,
                oom_score_adj_min: None,
                knobs: Ok(Vec::new()),
            };
            let mut limits = RunLimits::default();
            without_core(&mut limits, secrets, &powers);
            let limits = limits.rlimits.into_iter();
            limits
                .map(|l| (l.resource, l.soft, l.hard))
                .collect::<Vec<_>>()
        };
        let core = Resource::Core;
        let secret = [secret];
        assert_eq!(limited(&[(core, UNLIMITED)], &secret), [(core, 1, 1)]);
        assert_eq!(limited(&[(core, 0)], &secret), [(core, 0, 0)]);
        assert_eq!(limited(&[], &secret), [(core, 0, 0)]);
        assert_eq!(limited(&[(core, UNLIMITED)], &[]), []);
    }
}
