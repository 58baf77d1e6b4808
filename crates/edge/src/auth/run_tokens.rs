//! Tokens of runs: with the token of its attempt a process of a run may call, as far as the spec of the run grants.
//!
//! A token names its attempt and has a keyed digest of it; nothing of it is stored but the key. It is good on a unix socket alone,
//! where the kernel says of which run the process is that has connected.

use crate::{
    access::{AsRun, Attempt, Bearer, Caller},
    keys::digest::DigestKey,
    pb::Role,
    status,
};
use kennel_lifecycle::{ApiAccess, RunId};
use kennel_supervisor::{Supervisor, TokenMaker};
use tonic::Status;

/// What separates tokens from other digests under the same key.
const DOMAIN: &[u8] = b"kennel.v1.RunToken\0";
/// What each token begins with, so that people and scanners for secrets know it.
const PREFIX: &str = "kennel-run";

impl TokenMaker for DigestKey {
    fn token(&self, run: RunId, attempt: u32) -> String {
        let mac = self.mac(&mac_parts(run, attempt).each_ref().map(|part| &part[..]));
        format!("{PREFIX}.{run}.{attempt}.{}", hex::encode(mac))
    }
}

fn mac_parts(run: RunId, attempt: u32) -> [Vec<u8>; 3] {
    let (run, attempt) = (run.as_u128().to_be_bytes(), attempt.to_be_bytes());
    [DOMAIN.to_vec(), run.to_vec(), attempt.to_vec()]
}

/// The attempt that a token is of; `None`: this installation has not made it.
fn attempt_of(key: &DigestKey, token: &str) -> Option<Attempt> {
    let mut parts = token.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.');
    let (run, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let own = key.token(run, number);
    // The comparison takes constant time.
    let differ = own.bytes().zip(token.bytes());
    let differ = differ.fold(0, |differ, (a, b)| differ | (a ^ b));
    (own.len() == token.len() && differ == 0).then_some(Attempt { run, number })
}

/// Knows the tokens of this installation's runs.
#[derive(Debug)]
pub(crate) struct RunTokens {
    key: DigestKey,
    supervisor: Supervisor,
}

impl RunTokens {
    pub(crate) fn new(key: DigestKey, supervisor: Supervisor) -> Self {
        Self { key, supervisor }
    }

    /// Who calls with this token from a process of run `of`. `None`: it is no token of a run.
    pub(crate) fn caller(
        &self,
        token: &str,
        of: Option<RunId>,
        pid: Option<i32>,
    ) -> Option<Result<(Caller, Bearer), Status>> {
        let attempt = attempt_of(&self.key, token)?;
        if of != Some(attempt.run) {
            let why = "a token of a run may be used by processes of that run alone";
            return Some(Err(status::permission_denied(why)));
        }
        let caller = self.caller_of(attempt, pid);
        let caller = caller.map(|caller| (caller, Bearer::Run(attempt)));
        Some(caller.ok_or_else(|| {
            status::unauthenticated("the attempt of the run that this token is for has ended")
        }))
    }

    /// Whether the attempt of a token is at work.
    pub(crate) fn is_good(&self, attempt: Attempt) -> bool {
        self.caller_of(attempt, None).is_some()
    }

    fn caller_of(&self, attempt: Attempt, pid: Option<i32>) -> Option<Caller> {
        let view = self.supervisor.at_work(attempt.run, attempt.number)?;
        let new = view.row.new;
        (new.spec.api_access != ApiAccess::None).then(|| Caller {
            principal: format!("run:{}", attempt.run),
            pid,
            role: Role::Spawner,
            owner: new.owner,
            run: Some(AsRun {
                id: attempt.run,
                spec: new.spec,
            }),
            ..Caller::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: RW-86
    #[test]
    fn run_token_is_bound_to_attempt_and_key() {
        let (key, run) = (DigestKey::new([7; 32]), RunId::from_u128(5));
        let token = key.token(run, 2);
        let attempt = Attempt { run, number: 2 };
        assert_eq!(attempt_of(&key, &token), Some(attempt));
        assert_eq!(attempt_of(&DigestKey::new([8; 32]), &token), None);
        let forged = [
            token.replace(".2.", ".3."),
            token.replace(&run.to_string(), &RunId::from_u128(6).to_string()),
            token.replace(".2.", ".02."),
            token[..token.len() - 1].to_owned(),
            format!("{token}0"),
            token.to_uppercase(),
            format!("{PREFIX}.{run}.2."),
            PREFIX.to_owned(),
            String::new(),
        ];
        for forged in forged {
            assert_eq!(attempt_of(&key, &forged), None, "{forged}");
        }
    }
}
