//! The least role that may call each RPC, by the contract.

use crate::{json::POOL, pb::Role};
use std::{collections::HashMap, sync::LazyLock};

static ROLES: LazyLock<HashMap<String, Role>> = LazyLock::new(|| {
    let option = POOL
        .get_extension_by_name("kennel.v1.role")
        .expect("the contract has the option");
    let methods = POOL.services().flat_map(|service| {
        let methods: Vec<_> = service.methods().collect();
        methods
    });
    let role = |method: &prost_reflect::MethodDescriptor| {
        let number = method.options().get_extension(&option).as_enum_number()?;
        Role::try_from(number).ok()
    };
    methods
        .filter_map(|method| {
            let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
            Some((path, role(&method)?))
        })
        .filter(|(_, role)| *role != Role::Unspecified)
        .collect()
});

/// Returns the least role that may call the RPC at this path, such as `/kennel.v1.ProcessService/Spawn`; absent: none
/// may.
#[must_use]
pub fn role(path: &str) -> Option<Role> {
    ROLES.get(path).copied()
}

/// Prefix of the names of roles in the contract.
const PREFIX: &str = "ROLE_";

/// Returns the name of a role in files and messages, such as `viewer`.
#[must_use]
pub fn name(role: Role) -> String {
    let name = role.as_str_name();
    name.strip_prefix(PREFIX).unwrap_or(name).to_lowercase()
}

/// Returns the role of a name; absent: there is none.
#[must_use]
pub fn named(text: &str) -> Option<Role> {
    let role = Role::from_str_name(&format!("{PREFIX}{}", text.to_uppercase()))?;
    (role != Role::Unspecified && name(role) == text).then_some(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_found_by_their_names_alone() {
        for role in [Role::Viewer, Role::Spawner, Role::Operator, Role::Admin] {
            assert_eq!(named(&name(role)), Some(role));
        }
        for text in ["", "unspecified", "Viewer", "boss"] {
            assert_eq!(named(text), None, "{text}");
        }
    }

    #[test]
    fn each_rpc_has_a_role() {
        for service in POOL.services() {
            if service.package_name() != "kennel.v1" {
                continue;
            }
            for method in service.methods() {
                let path = format!("/{}/{}", service.full_name(), method.name());
                assert!(role(&path).is_some(), "{path} has no role");
            }
        }
        assert_eq!(role("/kennel.v1.ProcessService/Spawn"), Some(Role::Spawner));
        assert_eq!(role("/kennel.v1.AdminService/Drain"), Some(Role::Admin));
        assert_eq!(role("/kennel.v1.ProcessService/None"), None);
    }
}
