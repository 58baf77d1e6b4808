//! `kennel migrate`: brings the schema of a database up to date, under another role than the service's or before it is
//! started. Calls no server.

use crate::{
    args::{DatabaseArgs, MigrateArgs},
    config,
};
use kennel_cli::{Failure, Format, failure::failed};
use kennel_store::{Contract, MIGRATIONS, Migration, SchemaState, StoreUrl};
use serde_json::json;
use std::fmt::Write as _;

/// Applies what the database lacks, or prints it.
pub(crate) async fn migrate(args: MigrateArgs, format: Format) -> Result<u8, Failure> {
    let DatabaseArgs {
        store,
        store_file,
        data_dir,
    } = args.database;
    let url = match (store, store_file) {
        (Some(url), _) => config::parse_store(&url)?,
        (_, Some(file)) => config::store_in_file(&file)?,
        // The command line requires one of the three.
        _ => StoreUrl::sqlite(data_dir.unwrap_or_default().join("kennel.db")),
    };
    let contract = if args.contract {
        Contract::Now
    } else {
        Contract::Never
    };
    let state = kennel_store::migrate(&url, MIGRATIONS, contract, args.dry_run).await;
    let state = state.map_err(|cause| failed(&format!("cannot migrate {url}"), &cause))?;
    let text = if format.is_text() {
        text(&url, &state, args.dry_run)
    } else {
        document(&url, &state, args.dry_run, &format)
    };
    kennel_cli::print_exact(&text).map(|()| 0)
}

fn text(url: &StoreUrl, state: &SchemaState, dry_run: bool) -> String {
    let SchemaState {
        level, min_level, ..
    } = state;
    let mut text = format!("{url}: level {level}, for servers of level {min_level} and above\n");
    let verb = if dry_run { "would apply" } else { "applied" };
    for migration in &state.applied {
        let _ = writeln!(text, "{verb} migration {migration}");
    }
    for migration in &state.waiting {
        let _ = writeln!(
            text,
            "left out migration {migration}, which contracts: a day after all nodes have its level a start applies it, \
             and --contract now"
        );
    }
    if state.applied.is_empty() && state.waiting.is_empty() {
        text += "nothing to do\n";
    }
    text
}

fn document(url: &StoreUrl, state: &SchemaState, dry_run: bool, format: &Format) -> String {
    let all = |migrations: &[Migration]| {
        let one =
            |migration: &Migration| json!({"number": migration.number, "name": migration.name});
        migrations.iter().map(one).collect::<Vec<_>>()
    };
    let document = json!({
        "store": url.to_string(),
        "level": state.level,
        "min_level": state.min_level,
        "dry_run": dry_run,
        "applied": all(&state.applied),
        "waiting": all(&state.waiting),
    });
    format.document(&document.to_string())
}
