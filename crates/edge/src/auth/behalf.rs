//! Calls on behalf of others: metadata that an admin may send, as each node does with forwarded calls.

use crate::{access::Caller, pb::Role, status};
use http::{HeaderMap, HeaderName, HeaderValue, header::InvalidHeaderValue};
use kennel_proto::access;
use kennel_supervisor::Elsewhere;
use tonic::Status;

/// Target node of a call: its name or id.
pub(crate) const NODE: HeaderName = HeaderName::from_static("kennel-node");
const PRINCIPAL: HeaderName = HeaderName::from_static("kennel-principal");
const ROLE: HeaderName = HeaderName::from_static("kennel-role");
const OWNER: HeaderName = HeaderName::from_static("kennel-owner");

/// Returns the caller whose rights a call has: its own, or those of the principal that an admin names. Removes the
/// metadata.
pub(crate) fn on_behalf(caller: Caller, headers: &mut HeaderMap) -> Result<Caller, Status> {
    let named = [PRINCIPAL, ROLE, OWNER].map(|name| headers.remove(name));
    if named.iter().all(Option::is_none) {
        return Ok(caller);
    }
    if caller.role < Role::Admin {
        return Err(status::permission_denied(
            "only an admin may call on behalf of another principal",
        ));
    }
    let texts = named.map(|value| value.as_ref().and_then(text));
    let [Some(principal), Some(role), Some(owner)] = texts else {
        return Err(status::permission_denied(
            "kennel-principal, kennel-role and kennel-owner belong together",
        ));
    };
    let role = access::named(&role)
        .ok_or_else(|| status::permission_denied("kennel-role names no role"))?;
    Ok(Caller {
        principal,
        role,
        owner,
        via: Some(caller.principal),
        credential: caller.credential,
        ..Caller::default()
    })
}

fn text(value: &HeaderValue) -> Option<String> {
    let text = String::from_utf8(value.as_bytes().to_vec()).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Adds the caller to a call to another node.
pub(crate) fn name(
    headers: &mut HeaderMap,
    caller: &Caller,
    node: &Elsewhere,
) -> Result<(), InvalidHeaderValue> {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes());
    headers.insert(NODE, value(&node.node.to_string())?);
    headers.insert(PRINCIPAL, value(&caller.principal)?);
    headers.insert(ROLE, value(&access::name(caller.role))?);
    headers.insert(OWNER, value(&caller.owner)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::NodeId;
    use tonic::Code;

    fn caller(role: Role) -> Caller {
        Caller {
            principal: "spiffe://a/node".to_owned(),
            pid: Some(7),
            role,
            owner: "spiffe://a/node".to_owned(),
            ..Caller::default()
        }
    }

    fn alice() -> Caller {
        Caller {
            principal: "spiffe://a/alice".to_owned(),
            role: Role::Spawner,
            owner: "équipe".to_owned(),
            via: Some("spiffe://a/node".to_owned()),
            ..Caller::default()
        }
    }

    fn headers() -> HeaderMap {
        let node = Elsewhere::unknown(NodeId::from_u128(9));
        let mut headers = HeaderMap::new();
        name(&mut headers, &alice(), &node).expect("no control characters");
        headers
    }

    // promise: AC-9
    #[test]
    fn admin_on_behalf_gets_rights_of_named_principal() {
        let mut headers = headers();
        let called = on_behalf(caller(Role::Admin), &mut headers).expect("allowed");
        assert_eq!(called, alice());
        assert_eq!(headers.len(), 1, "the node is left");
    }

    // promise: AC-9
    #[test]
    fn non_admin_may_not_call_on_behalf() {
        for role in [Role::Viewer, Role::Spawner, Role::Operator] {
            let refused = on_behalf(caller(role), &mut headers()).expect_err("refused");
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        let plain = on_behalf(caller(Role::Viewer), &mut HeaderMap::new());
        assert_eq!(plain.expect("itself"), caller(Role::Viewer));
    }

    // promise: AC-9
    #[test]
    fn incomplete_principal_headers_are_refused() {
        for missing in [PRINCIPAL, ROLE, OWNER] {
            let mut headers = headers();
            headers.remove(missing);
            let refused = on_behalf(caller(Role::Admin), &mut headers).expect_err("refused");
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        let mut headers = headers();
        headers.insert(ROLE, HeaderValue::from_static("boss"));
        on_behalf(caller(Role::Admin), &mut headers).expect_err("no such role");
    }
}
