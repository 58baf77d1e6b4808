//! The least role that may call each RPC, and the least access of a run, by the contract.

use crate::{
    json::{POOL, methods},
    pb::{ApiAccess, Role},
};
use std::{collections::HashMap, sync::LazyLock};

static ROLES: LazyLock<HashMap<String, Role>> = LazyLock::new(|| options("kennel.v1.role"));
static RUN_ACCESS: LazyLock<HashMap<String, ApiAccess>> =
    LazyLock::new(|| options("kennel.v1.run_access"));

/// The value of an option by the path of each RPC that has it.
fn options<T: TryFrom<i32> + Default + PartialEq>(name: &str) -> HashMap<String, T> {
    let option = POOL
        .get_extension_by_name(name)
        .expect("the contract has the option");
    let with_value = methods().filter_map(|(path, method)| {
        let number = method.options().get_extension(&option).as_enum_number()?;
        Some((path, T::try_from(number).ok()?))
    });
    with_value
        .filter(|(_, value)| *value != T::default())
        .collect()
}

/// Returns the least role that may call the RPC at this path, such as `/kennel.v1.ProcessService/Spawn`; absent: none
/// may.
pub fn role(path: &str) -> Option<Role> {
    ROLES.get(path).copied()
}

/// The least access of a run with whose token the RPC at this path may be called; absent: no run may.
pub fn of_run(path: &str) -> Option<ApiAccess> {
    RUN_ACCESS.get(path).copied()
}

/// Prefix of the names of roles in the contract.
const PREFIX: &str = "ROLE_";

/// Returns the name of a role in files and messages, such as `viewer`.
pub fn name(role: Role) -> String {
    let name = role.as_str_name();
    name.strip_prefix(PREFIX).unwrap_or(name).to_lowercase()
}

/// Returns the role of a name; absent: there is none.
pub fn named(text: &str) -> Option<Role> {
    let role = Role::from_str_name(&format!("{PREFIX}{}", text.to_uppercase()))?;
    (role != Role::Unspecified && name(role) == text).then_some(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_found_by_exact_name() {
        for role in [Role::Viewer, Role::Spawner, Role::Operator, Role::Admin] {
            assert_eq!(named(&name(role)), Some(role));
        }
        for text in ["", "unspecified", "Viewer", "boss"] {
            assert_eq!(named(text), None, "{text}");
        }
    }

    // promise: AC-1
    #[test]
    fn each_rpc_has_a_role() {
        for (path, _) in methods().filter(|(path, _)| path.starts_with("/kennel.v1.")) {
            assert!(role(&path).is_some(), "{path} has no role");
        }
        assert_eq!(role("/kennel.v1.ProcessService/Spawn"), Some(Role::Spawner));
        assert_eq!(role("/kennel.v1.AdminService/Drain"), Some(Role::Admin));
        assert_eq!(role("/kennel.v1.ProcessService/None"), None);
    }

    // promise: RW-84
    #[test]
    fn runs_may_call_only_rpcs_opened_to_them() {
        let of_process = |rpc: &str| of_run(&format!("/kennel.v1.ProcessService/{rpc}"));
        assert_eq!(of_process("GetRun"), Some(ApiAccess::OwnRun));
        assert_eq!(of_process("Spawn"), Some(ApiAccess::Children));
        for rpc in ["Restart", "Pause", "Resume", "RemoveRun", "ForEachRun"] {
            assert_eq!(of_process(rpc), Some(ApiAccess::Children), "{rpc}");
        }
        for rpc in ["AckEvents", "ListConsumers", "None"] {
            assert_eq!(of_process(rpc), None, "{rpc}");
        }
        let is_admin = |path: &&String| path.contains("AdminService");
        assert_eq!(RUN_ACCESS.keys().find(is_admin), None);
    }
}
