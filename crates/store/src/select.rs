//! The queries of table `runs` and those of nodes, in SQL that both databases understand.

use crate::{
    Age, Claim, LEFT_STOPS_MAX, ListFilter, ListOrder, PageStart, SCANNED_MAX, reader::Dialect,
    record, sql::Sql,
};
use kennel_lifecycle::{
    HostIdentity, NamePattern, NodeId, RunId, RunState,
    labels::{LabelTest, Requirement},
};

/// Builds the statement for these nodes, or all, and the present time of the database.
pub(crate) fn nodes(dialect: &Dialect, these: Option<&[NodeId]>) -> Sql {
    let mut sql = Sql::new(
        "SELECT node, name, address, heard_us, lease_us, keeper_epoch, forgotten_us, draining_us, ",
    );
    sql.push(dialect.now).push(" AS now_us FROM nodes");
    if let Some(these) = these {
        sql.push(" WHERE ");
        push_these(&mut sql, "node", these);
    } else {
        sql.push(" WHERE lease_us > 0 OR forgotten_us IS NOT NULL");
    }
    sql.push(" ORDER BY node");
    sql
}

/// Builds the statement for stops that are left for this node, the oldest first.
pub(crate) fn left_stops(node: NodeId) -> Sql {
    let mut sql = Sql::new(LEFT_STOPS);
    sql.push("node = ")
        .push_bind(node.to_string())
        .push(" ORDER BY asked_us, run_id LIMIT ")
        .push_bind(i64::from(LEFT_STOPS_MAX));
    sql
}

/// Builds the statement for stops of these runs that are left.
pub(crate) fn left_stops_of(runs: &[RunId]) -> Sql {
    let mut sql = Sql::new(LEFT_STOPS);
    push_these(&mut sql, "run_id", runs);
    sql
}

const LEFT_STOPS: &str = "SELECT run_id, reason_detail, grace_us, asked_us FROM left_stops WHERE ";

/// Keepers of node `$1` that have open rows, or its lease.
pub(crate) const OPEN_EPOCHS: &str = "SELECT * FROM (SELECT e.*, CAST(CASE WHEN EXISTS (SELECT 1 FROM runs r \
    WHERE r.node = e.node AND r.keeper_epoch = e.keeper_epoch AND r.end_reason IS NULL) THEN 1 ELSE 0 END AS BIGINT) AS has_open \
    FROM keeper_epochs e WHERE e.node = $1) k WHERE has_open = 1 OR keeper_epoch = (SELECT keeper_epoch FROM nodes \
    WHERE node = $1) ORDER BY opened_us, keeper_epoch";

/// Begins a statement for whole rows; their condition follows. Column `entries` may be long: only a query for one row
/// needs it.
fn rows(dialect: &Dialect, with_entries: bool) -> Sql {
    let columns: Vec<&str> = record::COLUMNS
        .iter()
        .map(|c| match c.name {
            "labels" => dialect.labels_text,
            "entries" if !with_entries => "CAST(NULL AS TEXT) AS entries",
            name => name,
        })
        .collect();
    Sql::new(format!("SELECT {} FROM runs WHERE ", columns.join(", ")))
}

/// Builds the statement for one row by its key.
pub(crate) fn one(dialect: &Dialect, run: RunId) -> Sql {
    let mut sql = rows(dialect, true);
    sql.push("run_id = ").push_bind(run.to_string());
    sql
}

/// Builds the statement for the run of an owner with this key, or the newest with this name.
pub(crate) fn claimed(dialect: &Dialect, owner: &str, claim: &Claim) -> Sql {
    let (column, value) = match claim {
        Claim::Key(key) => ("request_key", key),
        Claim::Name(name) => ("name", name),
    };
    let mut sql = rows(dialect, true);
    sql.push("owner = ").push_bind(owner.to_owned());
    sql.push(" AND ").push(column).push(" = ");
    sql.push_bind(value.clone())
        .push(" ORDER BY age DESC LIMIT 1");
    sql
}

/// Builds the statement for the open rows of a node.
pub(crate) fn open_of(dialect: &Dialect, node: NodeId) -> Sql {
    let mut sql = rows(dialect, false);
    sql.push("end_reason IS NULL AND node = ")
        .push_bind(node.to_string())
        .push(" ORDER BY age, run_id");
    sql
}

/// Builds the statement for the existing ones of these rows.
pub(crate) fn these(dialect: &Dialect, runs: &[RunId]) -> Sql {
    let mut sql = rows(dialect, false);
    push_these(&mut sql, "run_id", runs);
    sql
}

/// Builds the statement for ended runs of a node that have their output, in the order of their index. Detached
/// processes of a run need its directory.
pub(crate) fn with_output(node: NodeId, start: Option<Age>, limit: u32) -> Sql {
    let mut sql = Sql::new(
        "SELECT run_id, owner, ended_us, output_age FROM runs WHERE output_age IS NOT NULL \
         AND output_removed_us IS NULL AND tree_verdict <> 'kept' AND node = ",
    );
    sql.push_bind(node.to_string());
    if let Some(start) = start {
        sql.push(" AND output_age < ").push_bind(start.0);
    }
    sql.push(" ORDER BY output_age DESC LIMIT ")
        .push_bind(i64::from(limit));
    sql
}

/// Builds the statement for those of these ids that are remembered of removed rows.
pub(crate) fn removed_ids(runs: &[RunId]) -> Sql {
    let mut sql = Sql::new("SELECT run_id FROM removed_ids WHERE ");
    push_these(&mut sql, "run_id", runs);
    sql
}

fn push_these(sql: &mut Sql, column: &str, keys: &[impl ToString]) {
    // An empty list is invalid SQL; no row has the empty key.
    sql.push(column).push(" IN (").push_bind(String::new());
    for key in keys {
        sql.push(", ").push_bind(key.to_string());
    }
    sql.push(")");
}

/// Builds the statement for ended rows of a node whose leader or shim had one of these numbers on this host, newest
/// first.
pub(crate) fn numbered(
    dialect: &Dialect,
    node: NodeId,
    host: &HostIdentity,
    numbers: &[i32],
    limit: u32,
) -> Sql {
    let mut sql = rows(dialect, false);
    // Pid 0, a placeholder, matches no process.
    let list: Vec<String> = std::iter::once(&0)
        .chain(numbers)
        .map(i32::to_string)
        .collect();
    let list = list.join(", ");
    sql.push("end_reason IS NOT NULL AND node = ")
        .push_bind(node.to_string())
        .push(" AND boot_id = ")
        .push_bind(host.boot_id.clone())
        .push(" AND pidns_inode = ")
        .push_bind(host.pidns_inode.cast_signed());
    if let Some(ticks) = host.init_start_ticks {
        sql.push(" AND coalesce(pidns_init_start_ticks, ")
            .push_bind(ticks.cast_signed())
            .push(") = ")
            .push_bind(ticks.cast_signed());
    }
    sql.push(format!(
        " AND (process_pid IN ({list}) OR shim_pid IN ({list}))"
    ))
    .push(" ORDER BY age DESC, run_id DESC LIMIT ")
    .push_bind(i64::from(limit));
    sql
}

/// Builds the statement for a page of a list: between the row before it and the last one that is examined; absent: the
/// ends of the table.
pub(crate) fn page(
    dialect: &Dialect,
    filter: &ListFilter,
    (start, end): (Option<PageStart>, Option<PageStart>),
    limit: u32,
) -> Sql {
    let mut sql = rows(dialect, false);
    let (beyond, before, order) = directions(filter.order);
    sql.push("TRUE");
    if !filter.nodes.is_empty() {
        sql.push(" AND ");
        push_these(&mut sql, "node", &filter.nodes);
    }
    if let Some(owner) = &filter.owner {
        sql.push(" AND owner = ").push_bind(owner.clone());
    }
    for (column, keys) in [
        ("owner", &filter.owners),
        ("end_reason", &filter.end_reasons),
    ] {
        if !keys.is_empty() {
            sql.push(" AND ");
            push_these(&mut sql, column, keys);
        }
    }
    if !filter.runs.is_empty() {
        sql.push(" AND ");
        push_these(&mut sql, "run_id", &filter.runs);
    }
    if let Some(above) = filter.below {
        sql.push(BELOW)
            .push_bind(above.to_string())
            .push(BELOW_EACH);
    }
    push_names(&mut sql, &filter.names);
    let sides = [
        " AND created_us <= ",
        " AND created_us >= ",
        " AND ended_us <= ",
    ];
    for (side, bound) in sides.into_iter().zip(filter.ages.bounds()) {
        if let Some(bound) = bound {
            sql.push(side).push_bind(bound.0);
        }
    }
    if let Some(parent) = filter.parent {
        sql.push(" AND parent_run_id = ")
            .push_bind(parent.to_string());
    }
    // The `+` prevents a scan of the whole table in list order: other indexes find the rows.
    let by_others = filter.is_of_open() || filter.id_part.is_some() || !filter.runs.is_empty();
    let sign = if by_others { "+" } else { "" };
    push_side(&mut sql, (sign, beyond), start);
    push_side(&mut sql, (sign, before), end);
    if !filter.states.is_empty() {
        let any: Vec<&str> = filter.states.iter().map(|s| condition(*s)).collect();
        sql.push(" AND (").push(any.join(" OR ")).push(")");
    }
    if !filter.kinds.is_empty() {
        let any: Vec<String> = filter
            .kinds
            .iter()
            .map(|k| format!("'{}'", k.name()))
            .collect();
        sql.push(" AND kind IN (").push(any.join(", ")).push(")");
    }
    for requirement in filter.labels.requirements() {
        push_requirement(&mut sql, dialect, requirement);
    }
    if let Some(part) = &filter.id_part {
        // One set: an OR of two makes Postgres scan the whole table.
        push_beginning(
            &mut sql,
            " AND run_id IN (",
            "run_id",
            part.as_str().to_owned(),
        );
        if let Some(reversed) = dialect.reversed_id {
            let end = part.as_str().chars().rev().collect();
            push_beginning(&mut sql, " UNION ALL ", reversed, end);
        } else {
            sql.push(" UNION ALL SELECT run_id FROM (SELECT run_id FROM (")
                .push(NEWEST)
                .push(") n WHERE n.run_id LIKE ")
                // None of these characters is special in a LIKE pattern.
                .push_bind(format!("%{}", part.as_str()))
                .push(PART_LIMIT);
        }
        sql.push(")");
    }
    if filter.is_of_open() {
        sql.push(" AND end_reason IS NULL");
    }
    sql.push(format!(
        " ORDER BY {sign}age {order}, run_id {order} LIMIT "
    ))
    .push_bind(i64::from(limit));
    sql
}

/// Adds that an indexed text of a run's id begins with this. `~` is above all characters of an id.
fn push_beginning(sql: &mut Sql, word: &str, indexed: &str, beginning: String) {
    sql.push(word)
        .push("SELECT run_id FROM (SELECT run_id FROM runs WHERE ")
        .push(indexed)
        .push(" >= ");
    sql.push_bind(beginning.clone())
        .push(" AND ")
        .push(indexed)
        .push(" < ");
    sql.push_bind(beginning + "~")
        .push(" ORDER BY ")
        .push(indexed)
        .push(" DESC")
        .push(PART_LIMIT);
}

/// A part of an id finds no more runs than this by their beginning, and no more by their end: a longer one finds fewer.
const PART_LIMIT: &str = " LIMIT 1000) found";
/// The ids among which SQLite, which cannot reverse a text, looks for an end.
const NEWEST: &str = "SELECT run_id FROM runs ORDER BY run_id DESC LIMIT 100000";
/// Runs below one, which follows [`BELOW`].
const BELOW: &str =
    " AND run_id IN (WITH RECURSIVE below (id) AS (SELECT run_id FROM runs WHERE parent_run_id = ";
const BELOW_EACH: &str = " UNION SELECT r.run_id FROM runs r JOIN below b ON r.parent_run_id = b.id) SELECT id FROM below)";

/// Adds that the name has one of these patterns. The case of letters may be passed over: SQLite does.
fn push_names(sql: &mut Sql, names: &[NamePattern]) {
    for (at, name) in names.iter().enumerate() {
        sql.push(if at > 0 { " OR " } else { " AND (" });
        match name.literal() {
            Some(name) => sql.push("name = ").push_bind(name.to_owned()),
            None => sql
                .push("name LIKE ")
                .push_bind(name.like())
                .push(" ESCAPE '!'"),
        };
    }
    if !names.is_empty() {
        sql.push(")");
    }
}

/// The comparisons with the row before a page and with the last of it, and the order.
fn directions(order: ListOrder) -> (&'static str, &'static str, &'static str) {
    match order {
        ListOrder::NewestFirst => ("<", ">=", "DESC"),
        ListOrder::OldestFirst => (">", "<=", "ASC"),
    }
}

/// Adds that a row is on this side of another one.
fn push_side(sql: &mut Sql, (sign, side): (&str, &str), at: Option<PageStart>) {
    if let Some(at) = at {
        sql.push(format!(" AND ({sign}age, run_id) {side} ("))
            .push_bind(at.age.0)
            .push(", ")
            .push_bind(at.run.to_string())
            .push(")");
    }
}

/// Builds the statement for the age of the last row that a page examines, by the index of ages alone.
pub(crate) fn scan_end(order: ListOrder, start: Option<PageStart>) -> Sql {
    let (beyond, _, order) = directions(order);
    let mut sql = Sql::new("SELECT age FROM runs WHERE TRUE");
    push_side(&mut sql, ("", beyond), start);
    sql.push(format!(
        " ORDER BY age {order}, run_id {order} LIMIT 1 OFFSET "
    ))
    .push_bind(i64::from(SCANNED_MAX - 1));
    sql
}

fn push_requirement(sql: &mut Sql, dialect: &Dialect, requirement: &Requirement) {
    let (negated, values) = match &requirement.test {
        LabelTest::In(values) => (false, Some(values)),
        LabelTest::NotIn(values) => (true, Some(values)),
        LabelTest::Exists => (false, None),
        LabelTest::Absent => (true, None),
    };
    sql.push(if negated {
        " AND NOT EXISTS ("
    } else {
        " AND EXISTS ("
    });
    sql.push(format!(
        "SELECT 1 FROM {} l WHERE l.key = ",
        dialect.labels_rows
    ))
    .push_bind(requirement.key.clone());
    if let Some(values) = values {
        sql.push(" AND l.value IN (");
        for (at, value) in values.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            sql.push(comma).push_bind(value.clone());
        }
        sql.push(")");
    }
    sql.push(")");
}

/// Expresses a public state in terms of the columns: exactly one holds for each row.
fn condition(state: RunState) -> &'static str {
    match state {
        RunState::Starting => "(state = 'starting' AND desired = 'run')",
        RunState::Running => "(state IN ('running', 'pausing') AND desired = 'run')",
        RunState::Paused => "(state = 'paused' AND desired = 'run')",
        RunState::Backoff => "(state = 'backoff' AND desired = 'run')",
        RunState::Stopping => "(end_reason IS NULL AND desired = 'stop')",
        RunState::Succeeded => "state = 'succeeded'",
        RunState::Failed => "state = 'failed'",
        RunState::Cancelled => "state = 'cancelled'",
        RunState::Lost => "state = 'lost'",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MIGRATIONS, sqlite};
    use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

    // promise: I-77a
    #[tokio::test]
    async fn live_runs_and_id_parts_use_their_indexes() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        for migration in MIGRATIONS {
            let made = sqlx::raw_sql(AssertSqlSafe(migration.sqlite.to_owned()));
            made.execute(&mut conn).await.unwrap();
        }
        let live = ListFilter {
            states: RunState::OPEN.to_vec(),
            ..ListFilter::default()
        };
        let of_part = ListFilter {
            id_part: "01J".parse().ok(),
            ..ListFilter::default()
        };
        let start = PageStart {
            age: Age(7),
            run: RunId::from_u128(7),
        };
        for (filter, start, index) in [
            (&live, None, "runs_open_of_node"),
            (&live, Some(start), "runs_open_of_node"),
            (&of_part, None, "sqlite_autoindex_runs_1 (run_id=?)"),
        ] {
            let page = page(&sqlite::DIALECT, filter, (start, None), 9);
            let sql = format!("EXPLAIN QUERY PLAN {}", page.text());
            let plan = sqlx::raw_sql(AssertSqlSafe(sql));
            let plan = plan.fetch_all(&mut conn).await.unwrap();
            let plan: Vec<String> = plan.iter().map(|row| row.get("detail")).collect();
            assert!(plan[0].contains(index), "{plan:?}");
        }
    }
}
