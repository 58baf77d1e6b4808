//! Column `containment_detail`: what holds a run, and what that leaves open.

use kennel_lifecycle::{Containment, Gap, Held};
use serde_json::{Value, json};

/// The column of what holds a run.
pub(crate) fn detail(held: &Held) -> String {
    let gaps: Vec<Value> = held.gaps.iter().map(gap).collect();
    json!({"by": word(held.by), "gaps": gaps}).to_string()
}

/// What holds a run, out of its column.
pub(crate) fn read(text: Option<&str>) -> Result<Option<Held>, String> {
    let Some(text) = text else {
        return Ok(None);
    };
    let wrong = || format!("containment_detail {text:?}");
    let value: Value = serde_json::from_str(text).map_err(|_| wrong())?;
    let all = [
        Containment::Subreaper,
        Containment::Cgroup,
        Containment::PrivatePidns,
    ];
    let by = all.into_iter().find(|by| value["by"] == word(*by));
    let gaps = value["gaps"]
        .as_array()
        .and_then(|gaps| gaps.iter().map(read_gap).collect::<Option<Vec<Gap>>>());
    let (Some(by), Some(gaps)) = (by, gaps) else {
        return Err(wrong());
    };
    Ok(Some(Held { by, gaps }))
}

fn word(by: Containment) -> &'static str {
    match by {
        Containment::Subreaper => "subreaper",
        Containment::Cgroup => "cgroup",
        Containment::PrivatePidns => "private_pidns",
    }
}

fn gap(gap: &Gap) -> Value {
    match gap {
        Gap::NoCgroup(why) => json!({"gap": "no_cgroup", "why": why}),
        Gap::RootMayLeaveCgroup => json!({"gap": "root_may_leave_cgroup"}),
        Gap::OwnerMayMove => json!({"gap": "owner_may_move"}),
        Gap::ForeignPidNamespace => json!({"gap": "foreign_pid_namespace"}),
        Gap::SetuidChildUnkillable => json!({"gap": "setuid_child_unkillable"}),
        Gap::WorkHandedToDaemons => json!({"gap": "work_handed_to_daemons"}),
    }
}

fn read_gap(value: &Value) -> Option<Gap> {
    Some(match value["gap"].as_str()? {
        "no_cgroup" => Gap::NoCgroup(value["why"].as_str()?.to_owned()),
        "root_may_leave_cgroup" => Gap::RootMayLeaveCgroup,
        "owner_may_move" => Gap::OwnerMayMove,
        "foreign_pid_namespace" => Gap::ForeignPidNamespace,
        "setuid_child_unkillable" => Gap::SetuidChildUnkillable,
        "work_handed_to_daemons" => Gap::WorkHandedToDaemons,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_a_run_comes_back_as_it_was_written() {
        let held = Held {
            by: Containment::Cgroup,
            gaps: vec![
                Gap::NoCgroup("cannot make \"x\"".into()),
                Gap::RootMayLeaveCgroup,
                Gap::OwnerMayMove,
                Gap::ForeignPidNamespace,
                Gap::SetuidChildUnkillable,
                Gap::WorkHandedToDaemons,
            ],
        };
        for by in [
            Containment::Subreaper,
            Containment::Cgroup,
            Containment::PrivatePidns,
        ] {
            let held = Held { by, ..held.clone() };
            assert_eq!(read(Some(&detail(&held))), Ok(Some(held)));
        }
        assert_eq!(read(None), Ok(None));
        for wrong in [
            "",
            "{}",
            r#"{"by":"hope","gaps":[]}"#,
            r#"{"by":"cgroup","gaps":[{"gap":"?"}]}"#,
        ] {
            assert!(read(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
