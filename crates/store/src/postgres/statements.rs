//! Statements that write runs. Each locks the rows of its nodes first, and requires their present generation.

use crate::{
    history::IS_NEW,
    record::{COLUMNS, Column, ColumnPart, Statements, column_list},
    updates::{
        FREE_KEY, FREE_NAME, NEW_KEY, UNCHANGED, age_before, newest_age, newest_output, set,
    },
};

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

/// The age of a row that is inserted. `w` is the row, with its number in the batch and the age that it exceeds: each row
/// of a batch has an age of its own.
const AGE: &str = concat!("GREATEST(w.age_min, w.n + (", newest_age!(), "))");
/// As [`AGE`], among the ends of the node that have output.
const OUTPUT_AGE: &str = concat!(
    "CASE WHEN w.output_age IS NOT NULL THEN GREATEST(w.output_age_min, w.n + ",
    newest_output!("w.node"),
    ") END"
);

/// Returns the statements with their lists of columns.
pub(super) fn build() -> Statements {
    let names = column_list("");
    let arrays: Vec<String> = COLUMNS
        .iter()
        .enumerate()
        .map(|(i, c)| format!("${}::{}[]", i + 1, c.sql_type))
        .collect();
    let rows = format!(
        "(SELECT *, n + MAX(GREATEST(age, created_us) - n) OVER (ORDER BY n) AS age_min, \
         n + MAX(output_age - n) OVER (ORDER BY n) AS output_age_min \
         FROM unnest({}) WITH ORDINALITY AS u ({names}, n)) AS w",
        arrays.join(", "),
    );
    // INV-9: a row is only written under its node's current generation, so a new generation fences all earlier servers.
    // FOR KEY SHARE makes a new generation, which takes the node FOR UPDATE, wait for this commit, and this statement
    // for the commit of a new generation. Lease renewals do not wait.
    let insert = |age: &str, name: &str, key: &str, which: &str| {
        let value = |column: &Column| match column.name {
            "age" => age.to_owned(),
            "seq" => "w.seq + 1".to_owned(),
            "output_age" => OUTPUT_AGE.to_owned(),
            "labels" => "w.labels::jsonb".to_owned(),
            "name" => name.to_owned(),
            "request_key" => key.to_owned(),
            name => format!("w.{name}"),
        };
        let values: Vec<String> = COLUMNS.iter().map(value).collect();
        format!(
            "INSERT INTO runs ({names}) SELECT {} FROM {rows} \
             JOIN nodes n ON n.node = w.node AND n.generation = w.generation WHERE {which} FOR KEY SHARE OF n \
             ON CONFLICT DO NOTHING RETURNING run_id, age",
            values.join(", "),
        )
        .into()
    };
    let array = |name| {
        let at = COLUMNS.iter().position(|c| c.name == name).unwrap_or(0);
        &arrays[at]
    };
    let put = |part| {
        format!(
            "WITH present AS (SELECT n.node, n.generation FROM nodes n WHERE (n.node, n.generation) IN \
             (SELECT * FROM unnest({}, {})) FOR KEY SHARE OF n) \
             UPDATE runs SET {} FROM {rows} \
             JOIN present ON present.node = w.node AND present.generation = w.generation \
             WHERE {UNCHANGED} RETURNING runs.run_id",
            array("node"),
            array("generation"),
            set(part, OUTPUT_AGE),
        )
        .into()
    };
    Statements {
        insert: insert(AGE, "w.name", NEW_KEY, IS_NEW),
        mend: insert(age_before!("w.n"), FREE_NAME, FREE_KEY, "TRUE"),
        puts: [put(ColumnPart::Hot), put(ColumnPart::Rare)],
    }
}
