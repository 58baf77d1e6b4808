//! Two hundred SIGKILLs of server, keeper, or both while commands wait at their gates; `gate` has a few.

use crate::gate::{kill_at_the_gate, kill_on_sqlite};
use kennel_tests::{Options, Postgres};

/// SIGKILLs on SQLite, all together, and on each of two databases of Postgres.
const KILLS_ON_SQLITE: u32 = 150;
const KILLS_ON_POSTGRES: u32 = 25;
/// Services on SQLite.
const SERVICES: u32 = 5;

// promise: D-1
#[tokio::test(flavor = "multi_thread")]
async fn no_command_runs_unrecorded_over_many_kills() {
    kill_on_sqlite(SERVICES, KILLS_ON_SQLITE).await;
    let (one, other) = (Postgres::start().await, Postgres::start().await);
    tokio::join!(
        kill_at_the_gate(Options::on(&one.url()), KILLS_ON_POSTGRES),
        kill_at_the_gate(Options::on(&other.url()), KILLS_ON_POSTGRES),
    );
}
