//! Filters of runs.

use crate::{
    convert::{labels, rules, run, spec::run_named, time},
    enums::{kind_of, named},
    pb,
};
use kennel_lifecycle::{
    NamePattern, Timestamp, Violation,
    labels::{LabelTest, Requirement},
};
use kennel_proto::json;
use kennel_supervisor::{Ages, ListFilter, Reports};

/// Most owners, names, and requirements on annotations, and most values of one of these.
const VALUES_MAX: usize = 64;
const RUNS_MAX: usize = 1000;

/// Parses a filter; ages count at `now`.
pub(crate) fn filter(
    asked: Option<&pb::RunFilter>,
    now: Timestamp,
    found: &mut Vec<Violation>,
) -> ListFilter {
    let Some(asked) = asked else {
        return ListFilter::default();
    };
    let mut age = |field, age: Option<&_>| time::parse_duration(field, age, found);
    let ages = Ages {
        at: now,
        min: age("filter.min_age", asked.min_age.as_ref()),
        max: age("filter.max_age", asked.max_age.as_ref()),
        min_ended: age("filter.ended_min_age", asked.ended_min_age.as_ref()),
    };
    let mut filter = ListFilter {
        ages,
        states: each("states", &asked.states, "RunState", run::state_of, found),
        kinds: each("kinds", &asked.kinds, "RunKind", kind_of, found),
        labels: labels::selector("filter.", &asked.labels, &asked.label_selector, found),
        owners: few("owners", &asked.owners, VALUES_MAX, found).to_vec(),
        reports: Reports {
            activities: each(
                "activities",
                &asked.activities,
                "Activity",
                |doing| Some(rules::activity_of(doing)),
                found,
            ),
            waits: each(
                "waits",
                &asked.waits,
                "Wait",
                |wait| Some(run::wait_of(wait)),
                found,
            ),
            is_ready: asked.is_ready,
            annotations: annotations(&asked.annotations, found),
        },
        ..ListFilter::default()
    };
    for (i, name) in few("names", &asked.names, VALUES_MAX, found)
        .iter()
        .enumerate()
    {
        match NamePattern::new(name) {
            Some(pattern) => filter.names.push(pattern),
            None => found.push(Violation::new(
                format!("filter.names[{i}]"),
                "is no pattern of a name",
            )),
        }
    }
    for (i, run) in few("run_ids", &asked.run_ids, RUNS_MAX, found)
        .iter()
        .enumerate()
    {
        filter
            .runs
            .extend(run_named(format!("filter.run_ids[{i}]"), run, found));
    }
    for (i, name) in few("end_reasons", &asked.end_reasons, VALUES_MAX, found)
        .iter()
        .enumerate()
    {
        if !json::has_field::<pb::EndReason>(name) {
            found.push(Violation::new(
                format!("filter.end_reasons[{i}]"),
                format!("{name:?} is no end reason"),
            ));
        }
        filter.end_reasons.push(name.clone());
    }
    if !asked.run_id_part.is_empty() {
        match asked.run_id_part.parse() {
            Ok(part) => filter.id_part = Some(part),
            Err(wrong) => found.push(Violation::new("filter.run_id_part", wrong.to_string())),
        }
    }
    let mut above = |field, run: &str| {
        (!run.is_empty())
            .then(|| run_named(field, run, found))
            .flatten()
    };
    filter.parent = above("filter.parent_run_id", &asked.parent_run_id);
    filter.below = above("filter.below_run_id", &asked.below_run_id);
    filter
}

/// Parses values of an enum, without repeats; one without a meaning is a violation.
fn each<P: TryFrom<i32>, T: PartialEq>(
    field: &str,
    numbers: &[i32],
    name: &str,
    parse: impl Fn(P) -> Option<T>,
    found: &mut Vec<Violation>,
) -> Vec<T> {
    let mut values = Vec::new();
    for (i, number) in numbers.iter().enumerate() {
        let value = named(
            &format!("filter.{field}[{i}]"),
            *number,
            name,
            &parse,
            found,
        );
        values.extend(value.filter(|value| !values.contains(value)));
    }
    values
}

/// Returns at most so many values; more are a violation.
fn few<'a, T>(field: &str, values: &'a [T], most: usize, found: &mut Vec<Violation>) -> &'a [T] {
    if values.len() > most {
        found.push(Violation::new(
            format!("filter.{field}"),
            format!("must have at most {most} values"),
        ));
    }
    &values[..values.len().min(most)]
}

fn annotations(
    asked: &[pb::AnnotationRequirement],
    found: &mut Vec<Violation>,
) -> Vec<Requirement> {
    use pb::RequirementTest as Test;
    let mut requirements = Vec::new();
    for (i, asked) in few("annotations", asked, VALUES_MAX, found)
        .iter()
        .enumerate()
    {
        let at = format!("annotations[{i}]");
        let values = || asked.values.iter().cloned().collect();
        let test_of = |test| {
            Some(match test {
                Test::Unspecified | Test::In => LabelTest::In(values()),
                Test::NotIn => LabelTest::NotIn(values()),
                Test::Exists => LabelTest::Exists,
                Test::Absent => LabelTest::Absent,
            })
        };
        let field = format!("filter.{at}.test");
        let Some(test) = named(&field, asked.test, "RequirementTest", test_of, found) else {
            continue;
        };
        let takes_values = matches!(test, LabelTest::In(_) | LabelTest::NotIn(_));
        if asked.values.is_empty() == takes_values {
            let why = if takes_values {
                "must not be empty"
            } else {
                "must be empty for this test"
            };
            found.push(Violation::new(format!("filter.{at}.values"), why));
        }
        few(&format!("{at}.values"), &asked.values, VALUES_MAX, found);
        requirements.push(Requirement {
            key: asked.key.clone(),
            test,
        });
    }
    requirements
}
