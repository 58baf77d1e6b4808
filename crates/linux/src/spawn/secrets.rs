//! Secrets of a command: variables of its environment, and files in memory whose descriptors it inherits.

use super::stage;
use crate::memfd;
use kennel_lifecycle::{RunUser, SecretDelivery, SecretValue};
use nix::{
    sys::stat::{Mode, fchmod},
    unistd::{Gid, Uid, fchown},
};
use std::{
    io,
    os::fd::{OwnedFd, RawFd},
};

/// Number of the first such file in the command: above those that scripts take by hand.
pub(super) const FIRST_FD: RawFd = 20;
/// Their numbers while they wait for the child: above all that they get there.
const STAGING_FD: RawFd = 64;

/// A secret with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSecret {
    /// Name of the variable.
    pub name: String,
    /// What the variable is.
    pub delivery: SecretDelivery,
    /// The value, which travels in a sealed file in memory.
    pub value: SecretValue,
}

/// Returns the variables of the secrets.
pub(super) fn variables(secrets: &[ChildSecret]) -> Vec<Vec<u8>> {
    let mut next = FIRST_FD;
    let variables = secrets.iter().map(|secret| {
        let start = format!("{}=", secret.name).into_bytes();
        match secret.delivery {
            SecretDelivery::Variable => [start.as_slice(), secret.value.expose()].concat(),
            SecretDelivery::File => {
                let path = format!("/proc/self/fd/{next}");
                next += 1;
                [start, path.into_bytes()].concat()
            }
        }
    });
    variables.collect()
}

/// Makes the files of the secrets, in the order of their numbers. Only the command's user reads them, and no process
/// changes them.
pub(super) fn files(secrets: &[ChildSecret], user: Option<&RunUser>) -> io::Result<Vec<OwnedFd>> {
    let files = secrets
        .iter()
        .filter(|secret| secret.delivery == SecretDelivery::File);
    let files = files.map(|secret| {
        let file = memfd::sealed("kennel-secret", secret.value.expose())?;
        fchmod(&file, Mode::S_IRUSR)?;
        if let Some(user) = user {
            let owner = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            fchown(&file, Some(owner.0), Some(owner.1))?;
        }
        stage(&file, STAGING_FD)
    });
    files.collect()
}
