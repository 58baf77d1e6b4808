//! The reading side of a database: its questions, asked in bounded time.

use crate::{
    ConsumerFilter, ConsumerRow, EndedStart, EpochRow, LeftStop, ListOrder, NodeRow, PageStart,
    RunRow, StoreError, StoredNode, UnreadRow, WithOutput, select::Select, writer::Failure,
};
use async_trait::async_trait;
use kennel_lifecycle::{NodeId, RunId, Timestamp};
use std::{fmt, time::Duration};
use tokio::time::timeout;

/// The reading side of a database. Errors are `Unavailable` or `Corrupt`: a read has no unknown result.
#[async_trait]
pub(crate) trait Reader: Send + Sync + fmt::Debug {
    /// Returns rows, in the order of the query; for a row that cannot be read, its key and the reason.
    async fn listed(
        &self,
        select: Select<'_>,
    ) -> Result<Vec<Result<RunRow, UnreadRow>>, StoreError>;

    /// Returns rows, in the order of the query; fails if one cannot be read.
    async fn runs(&self, select: Select<'_>) -> Result<Vec<RunRow>, StoreError> {
        let listed = self.listed(select).await?.into_iter();
        listed.map(|row| row.map_err(StoreError::from)).collect()
    }

    /// Returns when the last of the rows was made that one page of a list examines; absent: no row follows the page.
    async fn scan_end(
        &self,
        order: ListOrder,
        start: Option<PageStart>,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// Returns ended runs of a node that have their output, the newest end first.
    async fn with_output(
        &self,
        node: NodeId,
        start: Option<EndedStart>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError>;

    /// Returns the present life of the database, and the node's generation in it.
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError>;

    /// Returns the existing ones of these nodes; `None`: all.
    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError>;

    /// Returns stops that are left for a node, the oldest first.
    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError>;
    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError>;

    /// Returns keepers of the node that have open rows.
    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError>;

    /// Returns named consumers of a node.
    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError>;

    /// Counts the consumers of a run, or of multi-run streams, and those of the node.
    async fn count_consumers(
        &self,
        node: NodeId,
        run: Option<RunId>,
    ) -> Result<(u64, u64), StoreError>;

    /// Whether the database answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Closes all connections.
    async fn close(&self);
}

/// Makes a type with `rows`, `rows_of_any_life` and `close_all` a reader of one of the two kinds of database: the same
/// queries, with that module's own `failure`, `LIFE`, `NOW` and `PING`.
macro_rules! reader {
    ($name:ty, $database:ty) => {
        #[async_trait::async_trait]
        impl $crate::reader::Reader for $name {
            async fn listed(
                &self,
                select: $crate::select::Select<'_>,
            ) -> Result<Vec<Result<$crate::RunRow, $crate::UnreadRow>>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> = $crate::select::build(select);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::open::listed).collect()
            }

            async fn scan_end(
                &self,
                order: $crate::ListOrder,
                start: Option<$crate::PageStart>,
            ) -> Result<Option<kennel_lifecycle::Timestamp>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> = $crate::select::scan_end(order, start);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.first().map($crate::open::created).transpose()
            }

            async fn with_output(
                &self,
                node: kennel_lifecycle::NodeId,
                start: Option<$crate::EndedStart>,
                limit: u32,
            ) -> Result<Vec<$crate::WithOutput>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> =
                    $crate::select::with_output(node, start, limit);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::open::with_output).collect()
            }

            async fn nodes(
                &self,
                these: Option<&[kennel_lifecycle::NodeId]>,
            ) -> Result<Vec<$crate::NodeRow>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> = $crate::select::nodes(NOW, these);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::open::node_row).collect()
            }

            async fn left_stops(
                &self,
                node: kennel_lifecycle::NodeId,
            ) -> Result<Vec<$crate::LeftStop>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> = $crate::select::left_stops(node);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::open::left_stop).collect()
            }

            async fn left_stops_of(
                &self,
                runs: &[kennel_lifecycle::RunId],
            ) -> Result<Vec<$crate::LeftStop>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> = $crate::select::left_stops_of(runs);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::open::left_stop).collect()
            }

            async fn open_epochs(
                &self,
                node: kennel_lifecycle::NodeId,
            ) -> Result<Vec<$crate::EpochRow>, $crate::StoreError> {
                let query = sqlx::query($crate::select::OPEN_EPOCHS).bind(node.to_string());
                let rows = $crate::reader::ask(failure, self.rows_of_any_life(query)).await?;
                rows.iter().map($crate::open::epoch_row).collect()
            }

            async fn stored_node(
                &self,
                node: kennel_lifecycle::NodeId,
            ) -> Result<$crate::StoredNode, $crate::StoreError> {
                let sql = $crate::open::ask_standing(LIFE, NOW);
                let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(node.to_string());
                let rows = $crate::reader::ask(failure, self.rows_of_any_life(query)).await?;
                let stored_node = rows.iter().map($crate::open::stored_node).next();
                stored_node.unwrap_or_else(|| {
                    let why = "it does not say how the node stands";
                    Err($crate::StoreError::Corrupt(why.into()))
                })
            }

            async fn consumers(
                &self,
                node: kennel_lifecycle::NodeId,
                filter: &$crate::ConsumerFilter,
                limit: u32,
            ) -> Result<Vec<$crate::ConsumerRow>, $crate::StoreError> {
                let mut sql: sqlx::QueryBuilder<$database> =
                    $crate::consumer::select(node, filter, limit);
                let rows = $crate::reader::ask(failure, self.rows(sql.build())).await?;
                rows.iter().map($crate::consumer::row).collect()
            }

            async fn count_consumers(
                &self,
                node: kennel_lifecycle::NodeId,
                run: Option<kennel_lifecycle::RunId>,
            ) -> Result<(u64, u64), $crate::StoreError> {
                let query = sqlx::query($crate::consumer::COUNT)
                    .bind(node.to_string())
                    .bind(run.map(|run| run.to_string()).unwrap_or_default());
                let rows = $crate::reader::ask(failure, self.rows(query)).await?;
                rows.first().map_or(Ok((0, 0)), $crate::consumer::counts)
            }

            async fn ping(&self) -> Result<(), $crate::StoreError> {
                let query = sqlx::query(PING);
                let rows = $crate::reader::ask(failure, self.rows(query)).await?;
                let takes = |row| sqlx::Row::try_get::<bool, _>(row, 0).unwrap_or(false);
                if rows.iter().all(takes) {
                    return Ok(());
                }
                let why = "it is read-only";
                Err($crate::StoreError::Unavailable(why.into()))
            }

            async fn close(&self) {
                self.close_all().await;
            }
        }
    };
}
pub(crate) use reader;

/// Longest time of one transaction or one query.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a query in bounded time. `failure` reads the errors of the database.
pub(crate) async fn ask<T>(
    failure: fn(&sqlx::Error) -> Failure,
    question: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match timeout(STATEMENT_TIMEOUT, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match failure(&error) {
            Failure::Refused(why) => StoreError::Corrupt(why),
            Failure::Unavailable(why) | Failure::Unknown(why) => StoreError::Unavailable(why),
        }),
        Err(_) => Err(StoreError::Unavailable(format!(
            "the database did not answer within {STATEMENT_TIMEOUT:?}"
        ))),
    }
}
