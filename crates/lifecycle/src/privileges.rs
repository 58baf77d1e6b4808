//! Who a command is to the kernel, and what it may gain.

use crate::{Violation, limits};
use serde::{Deserialize, Serialize};

/// The user of a command, and whether executing a program may give it more than it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Privileges {
    /// Absent: the server's own user.
    pub user: Option<RunUser>,
    /// No program gives it more, set-user-id programs included; see `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
}

/// A user by number, with all its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, and no others.
    pub groups: Vec<u32>,
}

impl Privileges {
    /// What is wrong with them.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        let Some(user) = &self.user else { return };
        let mut wrong = |field: &str, why: &str| found.push(Violation::new(field, why));
        let most = limits::GROUPS_MAX;
        if user.groups.len() > most {
            let why = format!("must have at most {most} entries");
            wrong("spec.privileges.user.supplementary_group_ids", &why);
        }
        // To the kernel this number stands for none.
        let is_none = |id: &u32| *id == u32::MAX;
        if [user.uid, user.gid].iter().chain(&user.groups).any(is_none) {
            wrong("spec.privileges.user", "4294967295 is no user and no group");
        }
    }
}
