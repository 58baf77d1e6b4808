//! What a server costs as stored runs and live runs become more: a table and a plot, printed and left in
//! `target/growth.md` and `target/growth.svg`.
//!
//! Stored runs are copies of runs that ended, written into the database beside the server: a million real ones take an
//! hour. Their ids, times and labels differ, their output is marked as removed, as retention leaves it.

mod plot;

use crate::{
    restart, spawn,
    table::{Table, Times, median},
};
use kennel_proto::pb;
use kennel_tests::{Client, Kennel, Options, PATIENCE, Postgres, argv, must, procfs, sh};
use plot::Series;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Runs in the store.
const STORED: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Live runs. Each takes six open files of the server; most hosts have 20,000 for a process.
const LIVE: [usize; 4] = [0, 1_000, 3_000, 5_000];
/// Repetitions of a read.
const READS: usize = 50;
/// Runs that the stored ones are copies of.
const TEMPLATES: usize = 20;
/// So many stored runs have the rare label: the oldest.
const RARE: usize = 10;
/// Runs in a page on the way to the middle.
const PAGE: usize = 1_000;
/// Flags of a server that removes no rows, and of one that removes nearly all of them at once.
const KEEPS_ROWS: [&str; 4] = ["--retain-rows", "all", "--retain-rows-age", "all"];
const PRUNES: [&str; 2] = ["--retain-rows-age", "1h"];
/// Time in which removed rows are counted.
const PRUNED_FOR: Duration = Duration::from_secs(20);
/// Kills of the server in a row.
const KILLS: usize = 5;

/// Figures of one size, in the order of [`STORED_COLUMNS`] or [`LIVE_COLUMNS`].
type Row = (usize, Vec<f64>);

const STORED_COLUMNS: [&str; 17] = [
    "Spawn",
    "Spawn, p99",
    "Spawn beside pruning",
    "Spawn beside pruning, p99",
    "rows pruned a second",
    "GetRun",
    "GetRun by name",
    "ListRuns by the beginning of an id",
    "ListRuns by the end of an id",
    "ListRuns, 100 newest",
    "ListRuns, 100 from the middle",
    "ListRuns, live runs alone",
    "ListRuns, one page by a rare label",
    "ListRuns, all pages by a rare label",
    "StreamEvents, whole old run",
    "start to first answer",
    "database, MB",
];
const LIVE_COLUMNS: [&str; 4] = [
    "Spawn",
    "ListRuns, 100 newest",
    "SIGKILL of the server to first answer",
    "memory of the server, MB",
];

pub(crate) async fn measure(table: &mut Table, sizes: &[usize]) {
    let wanted = |size: &&usize| sizes.is_empty() || sizes.contains(size);
    let mut stored = Vec::new();
    for size in STORED.iter().filter(wanted) {
        stored.push((*size, with_stored(*size, None).await));
        report(table, "stored", &STORED_COLUMNS, stored.last());
    }
    let mut on_postgres = Vec::new();
    for size in [STORED[0], STORED[3]].iter().filter(wanted) {
        let postgres = Postgres::start().await;
        on_postgres.push((*size, with_stored(*size, Some(&postgres)).await));
        report(
            table,
            "stored in Postgres",
            &STORED_COLUMNS,
            on_postgres.last(),
        );
    }
    let mut live = Vec::new();
    for size in LIVE.iter().filter(wanted) {
        match with_live(*size).await {
            Ok(figures) => {
                live.push((*size, figures));
                report(table, "live", &LIVE_COLUMNS, live.last());
            }
            Err(why) => table.not_measured(&format!("{size} live runs"), &why),
        }
    }
    leave(&stored, &on_postgres, &live);
}

fn report(table: &mut Table, what: &str, columns: &[&str], row: Option<&Row>) {
    let Some((size, figures)) = row else { return };
    for (column, figure) in columns.iter().zip(figures) {
        table.fact(
            &format!("{size} {what} runs: {column}"),
            &shown(column, *figure),
        );
    }
}

/// A figure with its unit: times are in microseconds.
fn shown(column: &str, figure: f64) -> String {
    if column.ends_with("MB") {
        format!("{figure:.0} MB")
    } else if column.ends_with("a second") {
        format!("{figure:.0}")
    } else if figure < 1000.0 {
        format!("{figure:.0} us")
    } else {
        format!("{:.2} ms", figure / 1000.0)
    }
}

async fn with_stored(size: usize, postgres: Option<&Postgres>) -> Vec<f64> {
    let mut options = match postgres {
        Some(postgres) => Options::on(&postgres.url()),
        None => Options::default(),
    };
    options.words.extend(KEEPS_ROWS);
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let mut templates = Vec::new();
    for _ in 0..TEMPLATES {
        let run = must("spawn", client.spawn(sh("echo one; echo two")).await);
        must("end", client.ended(&run.run_id).await);
        templates.push(run.run_id);
    }
    let named = pb::RunSpec {
        name: "named".to_owned(),
        ..sh("true")
    };
    let named = must("spawn", client.spawn(named).await);
    must("end", client.ended(&named.run_id).await);
    drop(client);
    must(
        "terminate",
        kennel
            .terminate(PATIENCE)
            .await
            .success()
            .then_some(())
            .ok_or("failed"),
    );
    let rows = match postgres {
        Some(postgres) => Rows::Postgres(postgres),
        None => Rows::Sqlite(kennel.data_dir().join("kennel.db")),
    };
    rows.copy(&templates, size).await;
    let began = Instant::now();
    kennel.restart().await;
    let started = began.elapsed().as_secs_f64() * 1e6;
    let mut client = kennel.client().await;
    let quiet = spawned(&kennel).await;
    let middle = id(size / 2);
    let got = reads(&mut client, async |client| {
        must("get", client.get(&middle).await);
    })
    .await;
    let named = reads(&mut client, async |client| {
        must("get", client.get("named").await);
    });
    let named = named.await;
    let beginning = by_part(&mut client, &middle[..24]).await;
    let end = named_end(&mut client).await;
    let end = by_part(&mut client, &end).await;
    let newest = newest_page(&mut client).await;
    let token = middle_token(&mut client, size).await;
    let deep = reads(&mut client, async |client| {
        page(client, None, 100, &token).await;
    });
    let deep = deep.await;
    let live = pb::RunFilter {
        states: vec![pb::RunState::Running.into()],
        ..pb::RunFilter::default()
    };
    let live = reads(&mut client, async |client| {
        let found = must("list", client.list_all(live.clone(), 100).await);
        assert_eq!(found.len(), 0, "live runs");
    });
    let live = live.await;
    let by_label = pb::RunFilter {
        label_selector: "rare".into(),
        ..pb::RunFilter::default()
    };
    let rare = reads(&mut client, async |client| {
        page(client, Some(by_label.clone()), 100, "").await;
    });
    let rare = rare.await;
    let began = Instant::now();
    let found = must("list", client.list_all(by_label, 100).await);
    let all_rare = began.elapsed().as_secs_f64() * 1e6;
    assert_eq!(found.len(), RARE, "runs with the rare label");
    let heard = reads(&mut client, async |client| {
        drop(must("stream", client.hear_all(&middle, 0).await));
    });
    let heard = heard.await;
    let megabytes = rows.megabytes().await;
    drop(client);
    let (pruning, pruned) = pruned(&mut kennel, &rows).await;
    vec![
        quiet.0, quiet.1, pruning.0, pruning.1, pruned, got, named, beginning, end, newest, deep,
        live, rare, all_rare, heard, started, megabytes,
    ]
}

/// Spawns beside a server that removes rows, and how many it removes a second.
async fn pruned(kennel: &mut Kennel, rows: &Rows<'_>) -> ((f64, f64), f64) {
    assert!(
        kennel.terminate(PATIENCE).await.success(),
        "it ends in order"
    );
    kennel.set_words(&PRUNES);
    kennel.restart().await;
    let spawned = spawned(kennel).await;
    let before = rows.count().await;
    tokio::time::sleep(PRUNED_FOR).await;
    (
        spawned,
        (before - rows.count().await) / PRUNED_FOR.as_secs_f64(),
    )
}

/// The rows, beside the server.
enum Rows<'a> {
    Sqlite(PathBuf),
    Postgres(&'a Postgres),
}

#[expect(clippy::cast_precision_loss, reason = "a database is small")]
impl Rows<'_> {
    async fn copy(&self, templates: &[String], size: usize) {
        match self {
            Self::Sqlite(file) => must("copy rows", copy_rows(file, templates, size).await),
            Self::Postgres(postgres) => {
                let columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'runs' ORDER BY ordinal_position";
                let columns = postgres.psql(columns).await;
                let columns: Vec<String> = columns.split_whitespace().map(str::to_owned).collect();
                let series = format!("generate_series(0, {size} - 1) AS n(i)");
                postgres
                    .psql(&copies(&columns, templates, size, &series, true))
                    .await;
                postgres.psql("VACUUM ANALYZE").await;
            }
        }
    }

    async fn megabytes(&self) -> f64 {
        match self {
            Self::Sqlite(file) => must("the database", fs::metadata(file)).len() as f64 / 1e6,
            Self::Postgres(postgres) => {
                number(&postgres.psql("SELECT pg_total_relation_size('runs')").await) / 1e6
            }
        }
    }

    async fn count(&self) -> f64 {
        const COUNT: &str = "SELECT count(*) FROM runs";
        match self {
            Self::Sqlite(file) => {
                let options = SqliteConnectOptions::new().filename(file).read_only(true);
                let mut conn = must("open", SqliteConnection::connect_with(&options).await);
                let count: i64 = must(
                    "count",
                    sqlx::query_scalar(COUNT).fetch_one(&mut conn).await,
                );
                must("close", conn.close().await);
                count as f64
            }
            Self::Postgres(postgres) => number(&postgres.psql(COUNT).await),
        }
    }
}

fn number(text: &str) -> f64 {
    must("a number", text.trim().parse())
}

/// Finds a run by a part of its id.
async fn by_part(client: &mut Client, part: &str) -> f64 {
    let filter = pb::RunFilter {
        run_id_part: part.to_owned(),
        ..pb::RunFilter::default()
    };
    reads(client, async |client| {
        page(client, Some(filter.clone()), 6, "").await;
    })
    .await
}

/// The end of the id of a recent run.
async fn named_end(client: &mut Client) -> String {
    let run = must("get", client.get("named").await);
    run.run_id[20..].to_owned()
}

/// The median of repeated reads, in microseconds.
async fn reads(client: &mut Client, read: impl AsyncFn(&mut Client)) -> f64 {
    let mut times = Times::default();
    for _ in 0..READS {
        let began = Instant::now();
        read(client).await;
        times.push(began.elapsed());
    }
    times.p50_us()
}

/// The median and the slowest hundredth of Spawns, in microseconds.
async fn spawned(kennel: &Kennel) -> (f64, f64) {
    let rates = spawn::in_turn(&[kennel.socket()], spawn::Flow::Wait).await;
    let rates = rates
        .first()
        .map(|rates| (rates.p50_us(), rates.tail() * rates.p50_us()));
    rates.unwrap_or((f64::NAN, f64::NAN))
}

async fn newest_page(client: &mut Client) -> f64 {
    reads(client, async |client| {
        page(client, None, 100, "").await;
    })
    .await
}

/// One page; gives the token of the next.
async fn page(
    client: &mut Client,
    filter: Option<pb::RunFilter>,
    page_size: i32,
    token: &str,
) -> String {
    let request = pb::ListRunsRequest {
        filter,
        page_size,
        page_token: token.to_owned(),
    };
    let page = must("list", client.process.list_runs(request).await);
    page.into_inner().next_page_token
}

/// The token of the page in the middle of all runs.
async fn middle_token(client: &mut Client, size: usize) -> String {
    let mut token = String::new();
    for _ in 0..(size / 2).div_ceil(PAGE) {
        token = page(client, None, i32::try_from(PAGE).expect("small"), &token).await;
    }
    token
}

/// Id of a stored run: older than every other one.
fn id(number: usize) -> String {
    format!("01J0000000{number:016}")
}

/// Writes this many ended runs: copies of the templates with ids and times of their own.
async fn copy_rows(database: &Path, templates: &[String], size: usize) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(database);
    let mut conn = SqliteConnection::connect_with(&options).await?;
    let columns: Vec<String> =
        sqlx::query_scalar("SELECT name FROM pragma_table_info('runs') ORDER BY cid")
            .fetch_all(&mut conn)
            .await?;
    let series = format!(
        "(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {size}) SELECT i FROM n) AS n"
    );
    let sql = copies(&columns, templates, size, &series, false);
    sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await?;
    sqlx::query("ANALYZE").execute(&mut conn).await?;
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(&mut conn)
        .await?;
    conn.close().await
}

/// The statement that makes the copies.
fn copies(
    columns: &[String],
    templates: &[String],
    size: usize,
    series: &str,
    on_postgres: bool,
) -> String {
    let values: Vec<String> = columns
        .iter()
        .map(|name| value(name, size, on_postgres))
        .collect();
    let ids: Vec<String> = templates.iter().map(|id| format!("'{id}'")).collect();
    format!(
        "WITH t AS MATERIALIZED (SELECT *, row_number() OVER () - 1 AS k FROM runs WHERE run_id IN ({})) \
         INSERT INTO runs ({}) SELECT {} FROM {series} JOIN t ON t.k = n.i % {}",
        ids.join(", "),
        columns.join(", "),
        values.join(", "),
        templates.len(),
    )
}

/// A column of run `n.i`, which ended a second before the next.
fn value(column: &str, size: usize, on_postgres: bool) -> String {
    let (json, second) = if on_postgres {
        ("::jsonb", "1000000::bigint")
    } else {
        ("", "1000000")
    };
    match column {
        "run_id" if on_postgres => "'01J0000000' || lpad(i::text, 16, '0')".into(),
        "run_id" => "printf('01J0000000%016d', i)".into(),
        "labels" => {
            format!("(CASE WHEN i < {RARE} THEN '{{\"rare\":\"yes\"}}' ELSE '{{}}' END){json}")
        }
        // The server reads labels from `spec`.
        "spec" => {
            let set = if on_postgres {
                r#"jsonb_set(spec::jsonb, '{labels}', '{"rare":"yes"}')::text"#
            } else {
                r#"json_set(spec, '$.labels', json('{"rare":"yes"}'))"#
            };
            format!("CASE WHEN i < {RARE} THEN {set} ELSE spec END")
        }
        "process_pid" | "shim_pid" => format!("1 + ({column} + i) % 4000000"),
        "output_removed_us" => format!("ended_us - ({size} - i) * {second}"),
        "output_removed_detail" => {
            "'{\"at\":' || ended_us || ',\"reason\":\"age\",\"seq\":9,\"lens\":[8,0],\"counted\":true}'".into()
        }
        _ if column.ends_with("_us") || column == "age" => {
            format!("{column} - ({size} - i) * {second}")
        }
        _ => column.to_owned(),
    }
}

async fn with_live(size: usize) -> Result<Vec<f64>, String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    for number in 0..size {
        let spawned = client.spawn(argv(&["/bin/sleep", "6000"])).await;
        spawned.map_err(|status| format!("run {number} was refused: {}", status.message()))?;
    }
    let (spawned, _) = spawned(&kennel).await;
    let newest = newest_page(&mut client).await;
    let memory = kennel
        .server()
        .and_then(|server| procfs::memory_bytes(server.pid, "Pss"));
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        kills.push(restart::kill_to_answer(&kennel).await.as_secs_f64() * 1e6);
    }
    #[expect(clippy::cast_precision_loss, reason = "memory of a server is small")]
    let memory = memory.map_or(f64::NAN, |bytes| bytes as f64 / 1e6);
    Ok(vec![spawned, newest, median(kills), memory])
}

/// Writes the tables as Markdown and both plots as pictures.
fn leave(stored: &[Row], on_postgres: &[Row], live: &[Row]) {
    let mut text = String::new();
    for (what, columns, rows) in [
        ("stored runs", &STORED_COLUMNS[..], stored),
        ("stored runs in Postgres", &STORED_COLUMNS[..], on_postgres),
        ("live runs", &LIVE_COLUMNS[..], live),
    ] {
        let sizes: Vec<String> = rows.iter().map(|(size, _)| size.to_string()).collect();
        let _ = writeln!(text, "| {what} | {} |", sizes.join(" | "));
        let _ = writeln!(text, "|---{}|", "|---".repeat(rows.len()));
        for (number, column) in columns.iter().enumerate() {
            let cell = |(_, figures): &Row| shown(column, figures[number]);
            let cells: Vec<String> = rows.iter().map(cell).collect();
            let _ = writeln!(text, "| {column} | {} |", cells.join(" | "));
        }
        text.push('\n');
        let series = columns.iter().enumerate().map(|(number, column)| Series {
            name: column,
            points: rows
                .iter()
                .map(|(size, figures)| (*size, figures[number]))
                .collect(),
        });
        let picture = plot::draw(what, &series.collect::<Vec<_>>());
        leave_file(&format!("growth-{}.svg", what.replace(' ', "-")), &picture);
    }
    print!("\n{text}");
    leave_file("growth.md", &text);
}

fn leave_file(name: &str, text: &str) {
    let file = crate::target().join(name);
    match fs::write(&file, text) {
        Ok(()) => println!("{} is written.", file.display()),
        Err(error) => println!("{} could not be written: {error}", file.display()),
    }
}
