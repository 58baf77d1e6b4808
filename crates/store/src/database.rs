//! An open database, and the calls of a store in it.

use crate::{
    Age, Change, Changed, Claim, ConsumerFilter, ConsumerKey, ConsumerRow, EndedRow, EpochRow,
    FoundRows, LeftStop, ListFilter, ListPage, NodeRemoval, NodeRow, Opening, PageStart,
    RemovedRow, RowRemoval, RunRow, Store, StoreError, StoredNode, UnreadRow, WithOutput,
    consumer::{self, ConsumerChange},
    database_store::DatabaseStore,
    history, list,
    node::StopWrite,
    open,
    put::OwnRows,
    reader::{Columns, Dialect, Row, RowReader, STATEMENT_TIMEOUT, Where},
    record::Record,
    record_bytes,
    schema::SchemaAdmission,
    select,
    sql::Sql,
    updates,
    writer::{Answer, Failure, Write, Writer},
};
use async_trait::async_trait;
use kennel_lifecycle::{HostIdentity, KeeperEpoch, NodeId, RunId, Timestamp};
use std::sync::OnceLock;
use tokio::time::timeout;

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) writer: Writer,
    /// Writer that renews leases on a connection of its own, so that no other write delays them. Absent: as any other
    /// write.
    pub(crate) leases: Option<Writer>,
    pub(crate) reader: Box<dyn RowReader>,
    pub(crate) dialect: &'static Dialect,
    pub(crate) admission: SchemaAdmission,
    pub(crate) description: String,
    /// The node that was acquired through this.
    pub(crate) own: OnceLock<NodeId>,
    pub(crate) own_rows: OwnRows,
}

impl Database {
    /// Returns the rows of a query, in bounded time. Errors are `Unavailable` or `Corrupt`: a read has no unknown result.
    pub(crate) async fn rows(&self, sql: Sql, life: Where) -> Result<Vec<Row>, StoreError> {
        self.admission.check()?;
        self.any_rows(sql, life).await
    }

    /// As [`Self::rows`], whatever the level of the schema.
    async fn any_rows(&self, sql: Sql, life: Where) -> Result<Vec<Row>, StoreError> {
        match timeout(STATEMENT_TIMEOUT, self.reader.rows(sql, life)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(match self.reader.failure(&error) {
                Failure::Refused(why) => StoreError::Corrupt(why),
                Failure::Unavailable(why) | Failure::Unknown(why) => StoreError::Unavailable(why),
            }),
            Err(_) => Err(StoreError::Unavailable(format!(
                "the database did not answer within {STATEMENT_TIMEOUT:?}"
            ))),
        }
    }

    /// Writes, where the schema is one of this program.
    pub(crate) async fn write(&self, write: Write) -> Result<Answer, StoreError> {
        self.admission.check()?;
        Ok(self.writer.write(write).await?)
    }

    /// Reads the rows of a query, in the life in which the node was acquired.
    async fn read<T>(
        &self,
        sql: Sql,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows(sql, Where::Taken).await?;
        rows.iter().map(read).collect()
    }

    async fn listed(&self, sql: Sql) -> Result<Vec<Result<RunRow, UnreadRow>>, StoreError> {
        let own = self.own.get().copied();
        self.read(sql, |row| list::listed(row, own)).await
    }

    /// Reads the runs of a query, in its order; fails if one cannot be read.
    async fn runs(&self, sql: Sql) -> Result<Vec<RunRow>, StoreError> {
        let listed = self.listed(sql).await?.into_iter();
        listed.map(|row| row.map_err(StoreError::from)).collect()
    }

    pub(crate) async fn one(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        Ok(self.runs(select::one(self.dialect, run)).await?.pop())
    }

    async fn claimed(&self, owner: &str, claim: &Claim) -> Result<Option<RunRow>, StoreError> {
        let sql = select::claimed(self.dialect, owner, claim);
        Ok(self.runs(sql).await?.pop())
    }

    /// Inserts a row, where its run, key and name are free.
    async fn insert(&self, row: RunRow, generation: i64) -> Result<Changed, StoreError> {
        let new = &row.new;
        let record = Record::by(generation, &row);
        match self.write(Write::Insert(record)).await? {
            Answer::NotWritten => {
                let mut there = self.one(new.run).await?;
                for claim in new.claims() {
                    if there.is_none() {
                        there = self.claimed(&new.owner, &claim).await?;
                    }
                }
                match there {
                    Some(row) => Ok(Changed::Taken(Box::new(row))),
                    // Without such a row, the generation was outdated.
                    None => Err(StoreError::Fenced(new.run)),
                }
            }
            Answer::Written(age) => {
                self.keep(1, row);
                Ok(Changed::Done(age))
            }
            _ => Ok(Changed::Done(Age::NONE)),
        }
    }

    /// Logs each name and key of an open row that another run has: the row was written without it.
    async fn log_lost_claims(&self, row: &RunRow) {
        let new = &row.new;
        for claim in new.claims().filter(|_| row.outcome.is_none()) {
            if let Ok(Some(there)) = self.claimed(&new.owner, &claim).await
                && there.new.run != new.run
            {
                tracing::warn!(run_id = %new.run, by = %there.new.run, "NAME_LOST: another run has the name or the key of this one by now");
            }
        }
    }

    /// Removes the row of a run whose gate was never opened.
    async fn withdraw(&self, run: RunId, node: NodeId, generation: i64) -> Result<(), StoreError> {
        self.own_rows.lock().remove(&run);
        let answer = self.write(Write::Withdraw(run, node, generation)).await?;
        if answer == Answer::NotWritten && self.one(run).await?.is_some() {
            return Err(StoreError::Fenced(run));
        }
        Ok(())
    }

    async fn lease(
        &self,
        node: NodeId,
        generation: i64,
        given_up: bool,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let write = Write::Lease {
            node,
            generation,
            given_up,
            draining,
        };
        self.admission.check()?;
        let writer = self.leases.as_ref().unwrap_or(&self.writer);
        match writer.write(write).await? {
            Answer::NotWritten if !given_up => Err(StoreError::Held),
            answer => Ok(answer == Answer::Left),
        }
    }
}

#[async_trait]
impl Store for DatabaseStore {
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError> {
        let db = self.open().await?;
        let sql = Sql::new(open::ask_standing(db.dialect)).bind(node.to_string());
        let rows = db.any_rows(sql, Where::Anywhere).await?;
        let Some(row) = rows.first() else {
            let why = "it does not say the level of its schema";
            return Err(StoreError::Unavailable(why.into()));
        };
        db.admission.read(row.column("min_level")?)?;
        open::stored_node(row)
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        let db = self.open().await?;
        match db.write(Write::Open(Box::new(opening.clone()))).await? {
            Answer::Generation(generation) => {
                db.own.get_or_init(|| opening.node);
                db.own_rows.lock().clear();
                Ok(generation)
            }
            _ => Err(StoreError::Held),
        }
    }

    async fn renew(
        &self,
        node: NodeId,
        generation: i64,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let db = self.open().await?;
        db.lease(node, generation, false, draining).await
    }

    async fn give_up(&self, node: NodeId, generation: i64) -> Result<(), StoreError> {
        let db = self.open().await?;
        db.lease(node, generation, true, None).await.map(drop)
    }

    async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        let db = self.open().await?;
        let write = Write::LeaveStop(Box::new(StopWrite::new(node, stop)));
        db.write(write).await.map(drop)
    }

    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        let db = self.open().await?;
        db.read(select::left_stops(node), open::left_stop).await
    }

    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        let db = self.open().await?;
        let sql = select::left_stops_of(runs);
        db.read(sql, open::left_stop).await
    }

    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        let db = self.open().await?;
        let write = Write::RemoveLeftStop(Box::new(StopWrite::new(node, stop)));
        db.write(write).await.map(drop)
    }

    async fn forget_node(
        &self,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    ) -> Result<i64, StoreError> {
        let db = self.open().await?;
        let write = Write::Forget { node, keeper_epoch };
        match db.write(write).await? {
            Answer::Generation(generation) => Ok(generation),
            _ => Err(StoreError::Held),
        }
    }

    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError> {
        let db = self.open().await?;
        let answer = db.write(Write::RemoveNodes(which)).await?;
        Ok(matches!(answer, Answer::Written(_)))
    }

    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        let db = self.open().await?;
        let sql = select::nodes(db.dialect, these);
        db.read(sql, open::node_row).await
    }

    async fn newest_age(&self) -> Result<Age, StoreError> {
        let db = self.open().await?;
        let sql = Sql::new(updates::newest_age!());
        let newest = db.read(sql, |row| row.column("newest").map(Age)).await?;
        Ok(newest.into_iter().next().unwrap_or_default())
    }

    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        let db = self.open().await?;
        let sql = Sql::new(select::OPEN_EPOCHS).bind(node.to_string());
        let rows = db.rows(sql, Where::Anywhere).await?;
        rows.iter().map(open::epoch_row).collect()
    }

    async fn change(
        &self,
        node: NodeId,
        generation: i64,
        run: RunId,
        change: &Change,
    ) -> Result<Changed, StoreError> {
        let db = self.open().await?;
        match change {
            Change::Inserted(new) => {
                let row = RunRow::open((**new).clone());
                return db.insert(row, generation).await;
            }
            Change::Fenced(..) => {
                let fence = change.upon(None).ok_or(StoreError::Fenced(run))?;
                return db.insert(fence, generation).await;
            }
            Change::Withdrawn => db.withdraw(run, node, generation).await?,
            Change::Intended(_) | Change::Forgotten => {
                let why = format!("{:?} is no change of a row", change.name());
                return Err(StoreError::Corrupt(why));
            }
            _ => db.put(node, generation, run, change).await?,
        }
        if let Change::Snapshot(row) = change {
            db.log_lost_claims(row).await;
        }
        Ok(Changed::Done(Age::NONE))
    }

    async fn with_output(
        &self,
        node: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        let db = self.open().await?;
        let sql = select::with_output(node, start, limit);
        db.read(sql, open::with_output).await
    }

    async fn ended_rows(
        &self,
        node: NodeId,
        boot: &str,
        start: Age,
        limit: u32,
    ) -> Result<Vec<EndedRow>, StoreError> {
        let db = self.open().await?;
        let sql = history::ended(node, boot, start, limit);
        db.read(sql, history::ended_row).await
    }

    async fn remove_rows(&self, removal: &RowRemoval) -> Result<Vec<RemovedRow>, StoreError> {
        let db = self.open().await?;
        match db.write(Write::RemoveRows(removal.clone())).await? {
            Answer::Removed(rows) => Ok(rows),
            _ => Ok(Vec::new()),
        }
    }

    async fn removed_ids(&self, runs: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let db = self.open().await?;
        db.read(select::removed_ids(runs), |row| open::id(row, "run_id"))
            .await
    }

    async fn newest_forgotten(&self) -> Result<Option<RunId>, StoreError> {
        let db = self.open().await?;
        let found = db.read(Sql::new(history::FORGOTTEN), |row| open::id(row, "newest"));
        Ok(found.await?.pop())
    }

    async fn stray_node(&self, after: Option<NodeId>) -> Result<Option<NodeId>, StoreError> {
        let db = self.open().await?;
        let Some(sql) = db.dialect.stray_node else {
            return Ok(None);
        };
        let after = after.map(|node| node.to_string()).unwrap_or_default();
        let sql = Sql::new(sql).bind(after);
        let found = db.read(sql, |row| open::id(row, "node")).await?;
        Ok(found.into_iter().next())
    }

    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        self.open().await?.one(run).await
    }

    async fn claimed(&self, owner: &str, claim: &Claim) -> Result<Option<RunRow>, StoreError> {
        self.open().await?.claimed(owner, claim).await
    }

    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let db = self.open().await?;
        let end = if filter.is_sparse() {
            let sql = select::scan_end(filter.order, start);
            let end = db.read(sql, open::age).await?.pop();
            end.map(|age| filter.order.end_of(age))
        } else {
            None
        };
        let sql = select::page(db.dialect, filter, (start, end), limit);
        let listed = db.listed(sql).await?;
        let is_full = listed.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let last = listed.last().filter(|_| is_full).map(|row| match row {
            Ok(row) => row.page_start(),
            Err(unread) => unread.page_start(),
        });
        let FoundRows { rows, unread } = listed.into_iter().collect();
        let next = last.or(end);
        Ok(ListPage { rows, unread, next })
    }

    async fn open_runs(&self, node: NodeId) -> Result<FoundRows, StoreError> {
        let db = self.open().await?;
        let sql = select::open_of(db.dialect, node);
        let found = db.read(sql, |row| list::listed(row, Some(node))).await?;
        Ok(found.into_iter().collect())
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError> {
        let db = self.open().await?;
        let sql = select::these(db.dialect, runs);
        let found = db.listed(sql).await?;
        Ok(found.into_iter().collect())
    }

    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        let db = self.open().await?;
        let sql = select::numbered(db.dialect, node, host, pids, limit);
        db.runs(sql).await
    }

    async fn change_consumers(
        &self,
        change: &ConsumerChange,
        generation: i64,
    ) -> Result<(), StoreError> {
        let write = Box::new(change.clone());
        let write = Write::Consumer { write, generation };
        let answer = self.open().await?.write(write).await?;
        match change {
            _ if answer != Answer::NotWritten => Ok(()),
            ConsumerChange::Expire(..) => Ok(()),
            ConsumerChange::Put(row) => Err(row.key.fenced()),
            ConsumerChange::Delete(node, key) => {
                let filter = ConsumerFilter {
                    run: Some(key.run),
                    name: Some(key.name.clone()),
                    owner: Some(key.owner.clone()),
                    after: None,
                };
                match &self.consumers(*node, &filter, 1).await?[..] {
                    [] => Ok(()),
                    _ => Err(key.fenced()),
                }
            }
        }
    }

    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError> {
        let db = self.open().await?;
        let sql = consumer::select(node, filter, limit);
        db.read(sql, consumer::row).await
    }

    async fn count_consumers(
        &self,
        node: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError> {
        let db = self.open().await?;
        let sql = Sql::new(consumer::COUNT).bind(node.to_string());
        let sql = sql.bind(key.run_text()).bind(key.owner.clone());
        let counts = db.read(sql, consumer::counts).await?.pop();
        Ok(counts.unwrap_or_default())
    }

    async fn record_bytes(&self, node: NodeId) -> Result<Vec<(String, u64)>, StoreError> {
        let db = self.open().await?;
        db.read(record_bytes::select(node), record_bytes::row).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let db = self.open().await?;
        if db.writer.has_ended() {
            return Err(StoreError::Unavailable("nothing can be written".into()));
        }
        let rows = db.rows(Sql::new(db.dialect.ping), Where::Taken).await?;
        let takes_writes = |row: &Row| row.column("takes_writes").unwrap_or(false);
        if rows.iter().all(takes_writes) {
            return Ok(());
        }
        Err(StoreError::Unavailable("it is read-only".into()))
    }

    fn describe(&self) -> String {
        match self.now() {
            Ok(db) => db.description.clone(),
            Err(address) => format!("{address}, not reached yet"),
        }
    }

    async fn finish(&self) {
        let Ok(db) = self.now() else {
            return;
        };
        if let Some(leases) = &db.leases {
            leases.finish().await;
        }
        db.writer.finish().await;
        db.reader.close().await;
    }
}
