//! One id has one text, and that text is safe as a file name.

use kennel_lifecycle::{InvalidRunId, KeeperEpoch, NodeId, RunId};
use proptest::prelude::*;

const GOOD: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn id_round_trips_through_text() {
    for text in [
        GOOD,
        "00000000000000000000000000",
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    ] {
        assert_eq!(text.parse::<RunId>().unwrap().to_string(), text);
        assert_eq!(text.parse::<NodeId>().unwrap().to_string(), text);
        assert_eq!(text.parse::<KeeperEpoch>().unwrap().to_string(), text);
    }
    assert_eq!(
        RunId::from_u128(u128::MAX).to_string(),
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    );
    assert_eq!(
        GOOD.parse::<RunId>().unwrap().timestamp_ms(),
        1_469_922_850_259
    );
}

#[test]
fn malformed_id_is_refused() {
    let refused = [
        "",
        "../../x",
        "../../../../../../../etc/x",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",
        "01ARZ3NDEKTSV4RRFFQ69G5FAVV",
        "01arz3ndektsv4rrffq69g5fav",
        "01ARZ3NDEKTSV4RRFFQ69G5FAv",
        "01ARZ3NDEKTSV4RRFFQ69G5FAI",
        "01ARZ3NDEKTSV4RRFFQ69G5FAL",
        "01ARZ3NDEKTSV4RRFFQ69G5FAO",
        "01ARZ3NDEKTSV4RRFFQ69G5FAU",
        "81ARZ3NDEKTSV4RRFFQ69G5FAV",
        "A1ARZ3NDEKTSV4RRFFQ69G5FAV",
        "Z1ARZ3NDEKTSV4RRFFQ69G5FAV",
        " 1ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01ARZ3NDEKTSV4RRFFQ69G5FA\n",
        "01ARZ3NDEKTSV4RRFFQ69G5FA\0",
        "01ARZ3NDEKTSV4RRFFQ69G5/AV",
        "01ARZ3NDEKTSV4RRFFQ69G5-AV",
        "01ARZ3NDEKTSV4RRFFQ69G5F\u{c4}",
    ];
    for text in refused {
        assert_eq!(text.parse::<RunId>(), Err(InvalidRunId), "{text:?}");
        assert!(text.parse::<NodeId>().is_err(), "{text:?}");
        assert!(text.parse::<KeeperEpoch>().is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_id_value_round_trips(value: u128) {
        let id = RunId::from_u128(value);
        let back: RunId = id.to_string().parse().unwrap();
        prop_assert_eq!(back.as_u128(), value);
    }

    #[test]
    fn accepted_id_text_is_canonical(text in "[0-9A-Za-z./]{25,27}") {
        if let Ok(id) = text.parse::<RunId>() {
            prop_assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn ids_sort_like_their_text_form(a: u128, b: u128) {
        let (a, b) = (RunId::from_u128(a), RunId::from_u128(b));
        prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
    }
}
