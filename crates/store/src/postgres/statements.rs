//! Statements that write runs. Each locks the rows of its nodes first, and requires their present generation.

use crate::{
    consumer,
    history::IS_NEW,
    record::{COLUMNS, Column, Statements, column_list},
    updates::{
        BEGINNING_SET, BEGINNING_WHERE, CLOSING_SET, FREE_KEY, FREE_NAME, MENDING_WHERE,
        RESTING_SET, RESTING_WHERE, age_before, mending_set, newest_age, newest_output,
    },
};

/// The nodes of these runs whose present generation is among these, as `present`. FOR KEY SHARE, as an INSERT: a new
/// generation waits for the transaction, or it for the new generation, and a lease never does.
macro_rules! present {
    ($runs:literal, $generations:literal) => {
        concat!(
            "WITH present AS (SELECT n.node, n.generation FROM nodes n WHERE n.generation = ANY(",
            $generations,
            ") AND n.node IN (SELECT node FROM runs WHERE run_id = ANY(",
            $runs,
            ")) FOR KEY SHARE OF n) "
        )
    };
}

/// Locks the row before [`WITHDRAW`] looks for a stop: one that is being left has its row FOR KEY SHARE, and is there for
/// that statement, or finds no row.
pub(super) const LOCK_WITHDRAWN: &str = "WITH present AS (SELECT n.node FROM nodes n WHERE n.node = $2 \
    AND n.generation = $3 FOR KEY SHARE OF n) SELECT 'locked ' || runs.run_id FROM runs, present \
    WHERE runs.run_id = $1 AND runs.node = present.node FOR UPDATE OF runs";

pub(super) const WITHDRAW: &str = "WITH present AS (SELECT n.node FROM nodes n WHERE n.node = $2 \
    AND n.generation = $3 FOR KEY SHARE OF n) DELETE FROM runs USING present WHERE runs.run_id = $1 \
    AND runs.node = present.node AND runs.state = 'starting' AND runs.desired = 'run' AND runs.attempt = 1 \
    AND NOT EXISTS (SELECT 1 FROM left_stops l WHERE l.run_id = runs.run_id) \
    RETURNING runs.run_id";

pub(super) const STOP: &str = concat!(
    present!("$1::text[]", "$2::bigint[]"),
    "UPDATE runs SET seq = runs.seq + 1, desired = 'stop', \
     stop_deadline = LEAST(COALESCE(runs.stop_deadline, w.deadline), w.deadline), \
     stop_detail = COALESCE(runs.stop_detail, w.detail) \
     FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) AS w (run_id, generation, deadline, detail) \
     JOIN present ON present.generation = w.generation \
     WHERE runs.run_id = w.run_id AND runs.node = present.node AND runs.end_reason IS NULL \
     RETURNING runs.run_id"
);

pub(super) const STATE: &str = concat!(
    present!("$1::text[]", "$2::bigint[]"),
    "UPDATE runs SET seq = runs.seq + 1, state = w.state, started_us = COALESCE(w.started_us, runs.started_us) \
     FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) AS w (run_id, generation, state, started_us) \
     JOIN present ON present.generation = w.generation \
     WHERE runs.run_id = w.run_id AND runs.node = present.node AND runs.end_reason IS NULL \
     AND runs.state <> 'backoff' RETURNING runs.run_id"
);

pub(super) const FACETS: &str = concat!(
    present!("ARRAY[$1::text]", "ARRAY[$2::bigint]"),
    "UPDATE runs SET seq = runs.seq + 1, facets = $3 FROM present \
     WHERE runs.run_id = $1 AND runs.node = present.node AND runs.end_reason IS NULL RETURNING runs.run_id"
);

// FOR KEY SHARE, as an INSERT: a new generation waits for it, or it for the new generation, and a lease never does.
pub(super) const REMOVAL: &str = "WITH present AS (SELECT n.node FROM unnest($2::text[], $3::bigint[]) AS g (node, generation) \
    JOIN nodes n ON n.node = g.node AND n.generation = g.generation FOR KEY SHARE OF n) \
    UPDATE runs SET seq = runs.seq + 1, output_removed_us = w.at, output_removed_detail = w.detail \
    FROM unnest($1::text[], $2::text[], $4::bigint[], $5::text[]) AS w (run_id, node, at, detail) \
    WHERE runs.run_id = w.run_id AND runs.node = w.node AND runs.node IN (SELECT node FROM present) \
    AND runs.end_reason IS NOT NULL AND runs.output_removed_us IS NULL RETURNING runs.run_id";

/// The age of a row that is inserted. `w` is the row, with its number in the batch and the age that it exceeds: each row
/// of a batch has an age of its own.
const AGE: &str = concat!("GREATEST(w.age_min, w.n + (", newest_age!(), "))");
/// As [`AGE`], among the ends of the node that have output.
const OUTPUT_AGE: &str = concat!(
    "CASE WHEN w.output_age IS NOT NULL THEN GREATEST(w.output_age_min, w.n + ",
    newest_output!("w.node"),
    ") END"
);

/// What a new run does where another one has its id, key or name.
const NEW: &str = "DO NOTHING RETURNING run_id, age";

/// Returns the statements with their lists of columns.
pub(super) fn build() -> Statements {
    let names = column_list("");
    let arrays: Vec<String> = COLUMNS
        .iter()
        .enumerate()
        .map(|(i, c)| format!("${}::{}[]", i + 1, c.sql_type))
        .collect();
    // INV-9: a row is only ever written under its node's present generation, so a new one fences every server
    // before it. FOR KEY SHARE makes a new generation, which takes the node FOR UPDATE, wait for this commit, and
    // this statement for the commit of a new generation. A lease is renewed meanwhile.
    let insert = |age: &str, action: &str, which: &str| {
        let value = |column: &Column| match column.name {
            "age" => age.to_owned(),
            "output_age" => OUTPUT_AGE.to_owned(),
            "labels" => "w.labels::jsonb".to_owned(),
            "name" if action != NEW => FREE_NAME.to_owned(),
            "request_key" if action != NEW => FREE_KEY.to_owned(),
            name => format!("w.{name}"),
        };
        let values: Vec<String> = COLUMNS.iter().map(value).collect();
        format!(
            "INSERT INTO runs ({names}) SELECT {} FROM (SELECT *, n + MAX(age - n) OVER (ORDER BY n) AS age_min, \
             n + MAX(output_age - n) OVER (ORDER BY n) AS output_age_min \
             FROM unnest({}) WITH ORDINALITY AS u ({names}, n)) AS w \
             JOIN nodes n ON n.node = w.node AND n.generation = w.generation WHERE {which} FOR KEY SHARE OF n \
             ON CONFLICT {action}",
            values.join(", "),
            arrays.join(", "),
        )
        .into()
    };
    let array = |name| {
        let at = COLUMNS.iter().position(|c| c.name == name).unwrap_or(0);
        &arrays[at]
    };
    let over = |set: &str, which: &str| {
        let rows = arrays.join(", ");
        format!(
            "WITH present AS (SELECT n.node, n.generation FROM nodes n WHERE (n.node, n.generation) IN \
             (SELECT * FROM unnest({}, {})) FOR KEY SHARE OF n) \
             UPDATE runs SET {set} FROM unnest({rows}) AS w ({names}) \
             JOIN present ON present.node = w.node AND present.generation = w.generation \
             WHERE {which} RETURNING runs.run_id",
            array("node"),
            array("generation"),
        )
        .into()
    };
    let update = |set: &str, which: &str| {
        format!(
            "(run_id) DO UPDATE SET {set} WHERE ({which}) AND runs.node = excluded.node RETURNING run_id"
        )
    };
    Statements {
        rest: over(RESTING_SET, RESTING_WHERE),
        begin: over(BEGINNING_SET, BEGINNING_WHERE),
        put_consumer: consumer::put_postgres().into(),
        insert: insert(AGE, NEW, IS_NEW),
        close: insert(AGE, &update(CLOSING_SET, "runs.end_reason IS NULL"), IS_NEW),
        mend: insert(
            age_before!("w.n"),
            &update(&mending_set(), MENDING_WHERE),
            "TRUE",
        ),
    }
}
