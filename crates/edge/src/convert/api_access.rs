//! What processes of a run may call, both ways.

use crate::{enums::known, pb};
use kennel_lifecycle::{ApiAccess, Violation};

pub(crate) fn parse(number: i32, found: &mut Vec<Violation>) -> ApiAccess {
    granted(known("spec.api_access", number, "ApiAccess", found))
}

/// The access that a value of the contract stands for.
pub(crate) fn granted(access: pb::ApiAccess) -> ApiAccess {
    match access {
        pb::ApiAccess::Unspecified => ApiAccess::None,
        pb::ApiAccess::OwnRun => ApiAccess::OwnRun,
        pb::ApiAccess::Children => ApiAccess::Children,
    }
}

pub(crate) fn shown(access: ApiAccess) -> pb::ApiAccess {
    match access {
        ApiAccess::None => pb::ApiAccess::Unspecified,
        ApiAccess::OwnRun => pb::ApiAccess::OwnRun,
        ApiAccess::Children => pb::ApiAccess::Children,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_goes_there_and_back() {
        let mut found = Vec::new();
        for access in [
            pb::ApiAccess::Unspecified,
            pb::ApiAccess::OwnRun,
            pb::ApiAccess::Children,
        ] {
            assert_eq!(shown(parse(access.into(), &mut found)), access);
        }
        assert_eq!(found, []);
        assert_eq!(parse(9, &mut found), ApiAccess::None);
        assert_eq!(found[0].field, "spec.api_access");
    }
}
