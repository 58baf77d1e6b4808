//! The requirements on every store, defined once and run on each database.

pub(crate) mod levels;
pub(crate) mod nodes;
pub(crate) mod recorded;
pub(crate) mod rows;

mod ages;
mod attempts;
mod consumers;
mod ends;
mod guards;
mod history;
mod lists;
mod mends;
mod names;
mod removals;
mod values;
mod withdrawals;
mod writes;

use kennel_lifecycle::{Facets, NodeId, OutputRemoval, RowState, RunId, StopOrder, Timestamp};
use kennel_store::{
    Change, Changed, Closure, ConsumerChange, ConsumerKey, ConsumerRow, NewRun, Rest, RunRow,
    Store, StoreError, StoreUrl, open,
};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection, postgres::PgConnectOptions,
};
use std::{fmt::Write as _, pin::Pin, sync::Arc};

/// One case's own store: an empty database with the schema in it.
pub(crate) struct Bed {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) url: String,
}

type Case = (
    &'static str,
    fn(Bed) -> Pin<Box<dyn Future<Output = ()> + Send>>,
);

macro_rules! cases {
    ($($module:ident::$name:ident,)+) => {
        &[$((stringify!($name), |bed| Box::pin($module::$name(bed))),)+]
    };
}

const CASES: &[Case] = cases![
    writes::inserted_row_is_read_back_whole,
    writes::taken_key_returns_the_existing_row,
    writes::a_late_insert_meets_the_closed_row,
    writes::closing_twice_changes_nothing,
    writes::closing_keeps_times_that_it_does_not_know,
    writes::a_fence_takes_only_a_free_key,
    writes::a_stop_only_brings_the_deadline_forward,
    writes::requester_of_a_stop_is_not_forgotten,
    writes::state_is_written_on_open_rows_only,
    writes::facets_are_written_on_an_open_row_only,
    writes::one_bad_row_of_thousand_spoils_no_other,
    writes::a_write_outlives_its_caller,
    writes::concurrent_changes_of_a_run_are_all_kept,
    writes::stored_row_decides_and_no_older_copy_of_it,
    writes::changes_keep_values_of_later_versions,
    writes::a_finished_store_is_not_available,
    withdrawals::only_row_that_never_began_is_withdrawn,
    nodes::leases_are_renewed_by_database_clock,
    nodes::lease_that_is_given_up_has_ended,
    nodes::node_with_open_run_does_not_end,
    nodes::dead_nodes_are_removed_and_others_stay,
    nodes::left_stop_keeps_caller_and_shortest_grace,
    guards::an_older_generation_writes_nothing,
    guards::a_new_generation_writes_no_row,
    guards::run_of_a_later_keeper_is_its_own,
    guards::only_keepers_with_rows_or_lease_are_listed,
    guards::a_keeper_of_another_node_raises_no_generation,
    guards::every_check_refuses_what_no_run_can_be,
    guards::checks_admit_names_of_later_versions,
    levels::earlier_and_later_servers_share_a_schema,
    levels::contracting_waits_for_all_nodes,
    levels::forgotten_nodes_do_not_delay_contracting,
    levels::view_shows_runs_with_documented_columns,
    guards::a_changed_migration_is_refused,
    guards::a_row_that_cannot_be_read_is_corrupt,
    guards::row_that_cannot_be_read_hides_no_other,
    attempts::followed_attempt_is_read_back_whole,
    attempts::next_attempt_replaces_the_one_before,
    attempts::attempt_begins_only_if_it_is_next,
    attempts::unstarted_attempt_uses_its_number,
    attempts::run_may_end_with_an_unstarted_attempt,
    attempts::stopped_waiting_run_begins_no_attempt,
    attempts::of_many_attempts_the_newest_are_kept,
    ends::every_end_is_read_back_as_it_was,
    values::every_value_is_read_back_as_it_was,
    values::unreadable_value_is_corrupt,
    mends::earlier_row_is_rewritten_whole,
    mends::outdated_row_is_updated_and_closed_one_kept,
    mends::lost_row_of_a_living_run_is_mended,
    mends::only_the_nodes_own_generation_mends,
    mends::a_generation_is_above_all_that_are_known,
    history::ended_rows_come_oldest_first,
    history::removed_rows_leave_their_ids,
    history::old_ids_are_forgotten,
    history::insert_that_waits_for_a_removal_is_refused,
    history::rows_of_a_removed_node_are_found,
    removals::output_removal_is_marked_once_after_the_end,
    removals::ended_runs_with_output_come_by_end,
    consumers::consumer_moves_only_forward_and_reads_whole,
    consumers::consumers_are_found_counted_and_removed,
    consumers::consumers_are_removed_after_their_runs_output,
    consumers::names_of_consumers_belong_to_owners,
    ages::clocks_of_fleet_move_no_run,
    ages::each_change_raises_the_rows_seq,
    ages::lost_row_returns_to_its_place,
    ages::recorded_identity_is_stored_once,
    names::name_belongs_to_one_open_run_of_owner,
    names::key_belongs_to_one_run_of_owner,
    names::lost_row_returns_although_its_name_is_taken,
    lists::bytes_of_rows_are_summed_by_owner,
    lists::pages_stay_contiguous_while_rows_are_added,
    lists::runs_of_a_node_can_come_oldest_first,
    lists::entries_are_read_with_their_row_alone,
    lists::filters_by_state_kind_and_labels,
    lists::rare_rows_are_found_page_by_page,
    lists::open_runs_are_those_of_the_node,
    lists::audit_finds_rows_by_key_or_number,
];

/// Runs all cases, each on a store of its own, and reports at the end which of them failed.
pub(crate) async fn run<F: Future<Output = String>>(new_url: impl Fn() -> F) {
    let mut failed = String::new();
    for (name, case) in CASES {
        let url = new_url().await;
        let bed = Bed {
            store: store(&url).await,
            url,
        };
        let store = bed.store.clone();
        if let Err(error) = tokio::spawn(case(bed)).await {
            let _ = write!(failed, "\n  {name}: {error}");
        }
        store.finish().await;
    }
    assert!(failed.is_empty(), "failed on this database:{failed}");
}

pub(crate) async fn store(url: &str) -> Arc<dyn Store> {
    let url: StoreUrl = url.parse().expect("a URL of the fixture");
    open(&url).await.expect("an open store")
}

/// The changes of runs, by their names.
pub(crate) trait Calls: Store {
    async fn made(&self, new: &NewRun, change: Change) -> Result<(), StoreError> {
        let made = self.change(new.node, new.generation, new.run, &change);
        made.await.map(drop)
    }

    async fn insert(&self, new: &NewRun) -> Result<Changed, StoreError> {
        let change = Change::Inserted(Box::new(new.clone()));
        self.change(new.node, new.generation, new.run, &change)
            .await
    }

    async fn fence(&self, new: &NewRun, closure: &Closure) -> Result<Changed, StoreError> {
        let change = Change::Fenced(Box::new(new.clone()), Box::new(closure.clone()));
        self.change(new.node, new.generation, new.run, &change)
            .await
    }

    async fn record_stop(
        &self,
        run: RunId,
        generation: i64,
        order: &StopOrder,
        deadline: Timestamp,
    ) -> Result<(), StoreError> {
        let order = order.clone();
        let change = Change::Stop { order, deadline };
        let made = self
            .change(NodeId::from_u128(rows::NODE), generation, run, &change)
            .await;
        made.map(drop)
    }

    async fn record_state(
        &self,
        run: RunId,
        generation: i64,
        state: RowState,
        started: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let change = Change::State { state, started };
        let made = self
            .change(NodeId::from_u128(rows::NODE), generation, run, &change)
            .await;
        made.map(drop)
    }

    async fn record_facets(
        &self,
        run: RunId,
        generation: i64,
        facets: &Facets,
    ) -> Result<(), StoreError> {
        let change = Change::Facets(Box::new(facets.clone()));
        let made = self
            .change(NodeId::from_u128(rows::NODE), generation, run, &change)
            .await;
        made.map(drop)
    }

    async fn rest(&self, new: &NewRun, rest: &Rest) -> Result<(), StoreError> {
        let rested = Change::Rested(Box::new(new.clone()), Box::new(rest.clone()));
        self.made(new, rested).await
    }

    async fn begin(&self, new: &NewRun, restarts: u32) -> Result<(), StoreError> {
        let begun = Change::Begun(Box::new(new.clone()), restarts);
        self.made(new, begun).await
    }

    async fn close(&self, new: &NewRun, closure: &Closure) -> Result<(), StoreError> {
        let closed = Change::Closed(Box::new(new.clone()), Box::new(closure.clone()));
        self.made(new, closed).await
    }

    async fn withdraw(&self, run: RunId, node: NodeId, generation: i64) -> Result<(), StoreError> {
        let made = self.change(node, generation, run, &Change::Withdrawn).await;
        made.map(drop)
    }

    async fn mend(&self, row: &RunRow) -> Result<(), StoreError> {
        let whole = Change::Snapshot(Box::new(row.clone()));
        self.made(&row.new, whole).await
    }

    async fn mark_output_removed(
        &self,
        run: RunId,
        node: NodeId,
        generation: i64,
        removal: &OutputRemoval,
    ) -> Result<(), StoreError> {
        let removed = Change::OutputRemoved(*removal);
        let made = self.change(node, generation, run, &removed).await;
        made.map(drop)
    }

    async fn put_consumer(&self, row: &ConsumerRow, generation: i64) -> Result<(), StoreError> {
        let put = ConsumerChange::Put(row.clone());
        self.change_consumers(&put, generation).await
    }

    async fn delete_consumer(
        &self,
        node: NodeId,
        key: &ConsumerKey,
        generation: i64,
    ) -> Result<(), StoreError> {
        let deleted = ConsumerChange::Delete(node, key.clone());
        self.change_consumers(&deleted, generation).await
    }

    async fn expire_consumers(
        &self,
        node: NodeId,
        before: Timestamp,
        generation: i64,
    ) -> Result<(), StoreError> {
        let expired = ConsumerChange::Expire(node, before);
        self.change_consumers(&expired, generation).await
    }
}

impl<S: Store + ?Sized> Calls for S {}

/// A connection beside the store.
pub(crate) enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub(crate) async fn to(url: &str) -> Self {
        if url.starts_with("sqlite:") {
            Self::Sqlite(SqliteConnection::connect(url).await.expect("a connection"))
        } else {
            // A pooler refuses the parameter `extra_float_digits`.
            let options: PgConnectOptions = url.parse().expect("a URL of the fixture");
            let options = options.extra_float_digits(None);
            Self::Postgres(
                PgConnection::connect_with(&options)
                    .await
                    .expect("a connection"),
            )
        }
    }

    /// Returns the first column of each row, a text.
    pub(crate) async fn texts(&mut self, sql: &str) -> Vec<String> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(conn) => {
                let rows = sqlx::raw_sql(sql).fetch_all(conn).await;
                let rows = rows.expect("rows");
                rows.iter().map(|row| row.get(0)).collect()
            }
            Self::Postgres(conn) => {
                let rows = sqlx::raw_sql(sql).fetch_all(conn).await;
                let rows = rows.expect("rows");
                rows.iter().map(|row| row.get(0)).collect()
            }
        }
    }

    /// Returns the text of the database's error, if it refuses.
    pub(crate) async fn execute(&mut self, sql: &str) -> Result<(), String> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(conn) => sqlx::raw_sql(sql).execute(conn).await.map(|_| ()),
            Self::Postgres(conn) => sqlx::raw_sql(sql).execute(conn).await.map(|_| ()),
        }
        .map_err(|e| e.to_string())
    }
}
