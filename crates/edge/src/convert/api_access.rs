//! What processes of a run may call, both ways.

use crate::{enums::parsed, pb};
use kennel_lifecycle::ApiAccess;

parsed! {
    pub(crate) fn parse(ApiAccess) -> ApiAccess, fn shown { Unspecified => None, OwnRun, Children }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_access_round_trips() {
        let mut found = Vec::new();
        for access in [
            pb::ApiAccess::Unspecified,
            pb::ApiAccess::OwnRun,
            pb::ApiAccess::Children,
        ] {
            assert_eq!(
                shown(parse("spec.api_access", access.into(), &mut found)),
                access
            );
        }
        assert_eq!(found, []);
        assert_eq!(parse("spec.api_access", 9, &mut found), ApiAccess::None);
        assert_eq!(found[0].field, "spec.api_access");
    }
}
