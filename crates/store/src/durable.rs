//! The trait over any database that has a writer and a reader.

use crate::{
    Age, Closure, ConsumerFilter, ConsumerKey, ConsumerRow, EpochRow, FoundRows, Inserted,
    LeftStop, ListFilter, ListPage, NewRun, NodeRemoval, NodeRow, Opening, PageStart, Rest, RunRow,
    Store, StoreError, StoredNode, UnreadRow, WithOutput,
    consumer::{self, ConsumerWrite},
    json, list,
    node::StopWrite,
    open,
    reader::{Columns, Reader, STATEMENT_TIMEOUT, Where},
    record::Record,
    record_bytes,
    schema::Admission,
    select,
    sql::Sql,
    updates,
    writer::{Answer, Failure, Write, Writer},
};
use async_trait::async_trait;
use kennel_lifecycle::{
    Facets, HostIdentity, KeeperEpoch, NodeId, OutputRemoval, RowState, RunId, StopOrder, Timestamp,
};
use std::sync::OnceLock;
use tokio::time::timeout;

/// One database behind the trait.
#[derive(Debug)]
pub(crate) struct Durable<R> {
    pub(crate) writer: Writer,
    /// Writer that renews leases on a connection of its own, so that no other write delays them. Absent: as any other
    /// write.
    pub(crate) leases: Option<Writer>,
    pub(crate) reader: R,
    pub(crate) admission: Admission,
    pub(crate) description: String,
    /// The node that was acquired through this.
    pub(crate) own: OnceLock<NodeId>,
}

impl<R: Reader> Durable<R> {
    /// Returns the rows of a query, in bounded time. Errors are `Unavailable` or `Corrupt`: a read has no unknown result.
    async fn rows(&self, sql: Sql, life: Where) -> Result<Vec<R::Row>, StoreError> {
        self.admission.check()?;
        self.any_rows(sql, life).await
    }

    /// As [`Self::rows`], whatever the level of the schema.
    async fn any_rows(&self, sql: Sql, life: Where) -> Result<Vec<R::Row>, StoreError> {
        match timeout(STATEMENT_TIMEOUT, self.reader.rows(sql, life)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(match R::failure(&error) {
                Failure::Refused(why) => StoreError::Corrupt(why),
                Failure::Unavailable(why) | Failure::Unknown(why) => StoreError::Unavailable(why),
            }),
            Err(_) => Err(StoreError::Unavailable(format!(
                "the database did not answer within {STATEMENT_TIMEOUT:?}"
            ))),
        }
    }

    /// Writes, where the schema is one of this program.
    async fn write(&self, write: Write) -> Result<Answer, StoreError> {
        self.admission.check()?;
        Ok(self.writer.write(write).await?)
    }

    /// Reads the rows of a query, in the life in which the node was acquired.
    async fn read<T>(
        &self,
        sql: Sql,
        read: impl Fn(&R::Row) -> Result<T, StoreError>,
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

    async fn one(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        Ok(self.runs(select::one(&R::DIALECT, run)).await?.pop())
    }

    async fn insert_record(&self, run: RunId, record: Record) -> Result<Inserted, StoreError> {
        match self.write(Write::Insert(Box::new(record))).await? {
            Answer::NotWritten => match self.one(run).await? {
                Some(row) => Ok(Inserted::Taken(Box::new(row))),
                // There is no such row, so it was the generation.
                None => Err(StoreError::Fenced(run)),
            },
            Answer::Written(age) => Ok(Inserted::New(age)),
            Answer::Left | Answer::Generation(_) => Ok(Inserted::New(Age::NONE)),
        }
    }

    async fn closed_already(&self, run: RunId) -> Result<(), StoreError> {
        match self.one(run).await? {
            Some(row) if row.outcome.is_some() => Ok(()),
            _ => Err(StoreError::Fenced(run)),
        }
    }

    async fn consumer(&self, write: ConsumerWrite, generation: i64) -> Result<Answer, StoreError> {
        let write = Box::new(write);
        let write = Write::Consumer { write, generation };
        self.write(write).await
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

    async fn update(&self, run: RunId, write: Write) -> Result<(), StoreError> {
        match self.write(write).await? {
            Answer::NotWritten => Err(StoreError::Fenced(run)),
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
        }
    }
}

#[async_trait]
impl<R: Reader> Store for Durable<R> {
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError> {
        let sql = Sql::new(open::ask_standing(&R::DIALECT)).bind(node.to_string());
        let rows = self.any_rows(sql, Where::Anywhere).await?;
        let Some(row) = rows.first() else {
            let why = "it does not say the level of its schema";
            return Err(StoreError::Unavailable(why.into()));
        };
        self.admission.read(row.column("min_level")?)?;
        open::stored_node(row)
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        match self.write(Write::Open(Box::new(opening.clone()))).await? {
            Answer::Generation(generation) => {
                self.own.get_or_init(|| opening.node);
                Ok(generation)
            }
            Answer::Written(_) | Answer::Left | Answer::NotWritten => Err(StoreError::Held),
        }
    }

    async fn renew(
        &self,
        node: NodeId,
        generation: i64,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        self.lease(node, generation, false, draining).await
    }

    async fn give_up(&self, node: NodeId, generation: i64) -> Result<(), StoreError> {
        self.lease(node, generation, true, None).await.map(drop)
    }

    async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        let write = Write::LeaveStop(Box::new(StopWrite::new(node, stop)));
        self.write(write).await.map(drop)
    }

    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        self.read(select::left_stops(node), open::left_stop).await
    }

    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        let sql = select::left_stops_of(runs);
        self.read(sql, open::left_stop).await
    }

    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        let write = Write::RemoveLeftStop(Box::new(StopWrite::new(node, stop)));
        self.write(write).await.map(drop)
    }

    async fn forget_node(
        &self,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    ) -> Result<i64, StoreError> {
        let write = Write::Forget { node, keeper_epoch };
        match self.write(write).await? {
            Answer::Generation(generation) => Ok(generation),
            Answer::Written(_) | Answer::Left | Answer::NotWritten => Err(StoreError::Held),
        }
    }

    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError> {
        let answer = self.write(Write::RemoveNodes(which)).await?;
        Ok(matches!(answer, Answer::Written(_)))
    }

    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        let sql = select::nodes(&R::DIALECT, these);
        self.read(sql, open::node_row).await
    }

    async fn newest_age(&self) -> Result<Age, StoreError> {
        let sql = Sql::new(updates::newest_age!());
        let newest = self.read(sql, |row| row.column("newest").map(Age)).await?;
        Ok(newest.into_iter().next().unwrap_or_default())
    }

    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        let sql = Sql::new(select::OPEN_EPOCHS).bind(node.to_string());
        let rows = self.rows(sql, Where::Anywhere).await?;
        rows.iter().map(open::epoch_row).collect()
    }

    async fn insert(&self, new: &NewRun) -> Result<Inserted, StoreError> {
        self.insert_record(new.run, Record::starting(new)).await
    }

    async fn record_stop(
        &self,
        run: RunId,
        generation: i64,
        order: &StopOrder,
        deadline: Timestamp,
    ) -> Result<(), StoreError> {
        let write = Write::Stop {
            run,
            generation,
            detail: json::write(order),
            deadline,
        };
        self.update(run, write).await
    }

    async fn fence(&self, new: &NewRun, closure: &Closure) -> Result<Inserted, StoreError> {
        self.insert_record(new.run, Record::closed(new, closure))
            .await
    }

    async fn record_state(
        &self,
        run: RunId,
        generation: i64,
        state: RowState,
        started: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let write = Write::State {
            run,
            generation,
            state,
            started,
        };
        self.update(run, write).await
    }

    async fn record_facets(
        &self,
        run: RunId,
        generation: i64,
        facets: &Facets,
    ) -> Result<(), StoreError> {
        let write = Write::Facets {
            run,
            generation,
            text: json::write(facets),
        };
        self.update(run, write).await
    }

    async fn rest(&self, new: &NewRun, rest: &Rest) -> Result<(), StoreError> {
        let record = Record::resting(new, rest);
        self.update(new.run, Write::Rest(Box::new(record))).await
    }

    async fn begin(&self, new: &NewRun, restarts: u32) -> Result<(), StoreError> {
        let record = Record::beginning(new, restarts);
        self.update(new.run, Write::Begin(Box::new(record))).await
    }

    async fn close(&self, new: &NewRun, closure: &Closure) -> Result<(), StoreError> {
        let record = Record::closed(new, closure);
        match self.write(Write::Close(Box::new(record))).await? {
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => self.closed_already(new.run).await,
        }
    }

    async fn withdraw(&self, run: RunId, node: NodeId, generation: i64) -> Result<(), StoreError> {
        let withdrawal = Write::Withdraw(run, node, generation);
        match self.write(withdrawal).await? {
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => match self.one(run).await? {
                None => Ok(()),
                Some(_) => Err(StoreError::Fenced(run)),
            },
        }
    }

    async fn mend(&self, row: &RunRow) -> Result<(), StoreError> {
        let record = Record::of_row(row);
        match self.write(Write::Mend(Box::new(record))).await? {
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => self.closed_already(row.new.run).await,
        }
    }

    async fn mark_output_removed(
        &self,
        run: RunId,
        node: NodeId,
        generation: i64,
        removal: &OutputRemoval,
    ) -> Result<(), StoreError> {
        let write = Write::Removal {
            run,
            node,
            generation,
            at: removal.at,
            detail: json::write(removal),
        };
        match self.write(write).await? {
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => match self.one(run).await? {
                Some(row) if row.new.node == node && row.output_removed.is_some() => Ok(()),
                _ => Err(StoreError::Fenced(run)),
            },
        }
    }

    async fn with_output(
        &self,
        node: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        let sql = select::with_output(node, start, limit);
        self.read(sql, open::with_output).await
    }

    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        self.one(run).await
    }

    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let end = if filter.is_sparse() {
            let sql = select::scan_end(filter.order, start);
            let end = self.read(sql, open::age).await?.pop();
            end.map(|age| filter.order.end_of(age))
        } else {
            None
        };
        let sql = select::page(&R::DIALECT, filter, (start, end), limit);
        let listed = self.listed(sql).await?;
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
        let sql = select::open_of(&R::DIALECT, node);
        let found = self.read(sql, |row| list::listed(row, Some(node))).await?;
        Ok(found.into_iter().collect())
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError> {
        let sql = select::these(&R::DIALECT, runs);
        let found = self.listed(sql).await?;
        Ok(found.into_iter().collect())
    }

    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        let sql = select::numbered(&R::DIALECT, node, host, pids, limit);
        self.runs(sql).await
    }

    async fn put_consumer(&self, row: &ConsumerRow, generation: i64) -> Result<(), StoreError> {
        match self
            .consumer(ConsumerWrite::Put(row.clone()), generation)
            .await?
        {
            Answer::NotWritten => Err(row.key.fenced()),
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
        }
    }

    async fn delete_consumer(
        &self,
        node: NodeId,
        key: &ConsumerKey,
        generation: i64,
    ) -> Result<(), StoreError> {
        let write = ConsumerWrite::Delete(node, key.clone());
        match self.consumer(write, generation).await? {
            Answer::Written(_) | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => {
                let filter = ConsumerFilter {
                    run: Some(key.run),
                    name: Some(key.name.clone()),
                    owner: Some(key.owner.clone()),
                    after: None,
                };
                match &self.consumers(node, &filter, 1).await?[..] {
                    [] => Ok(()),
                    _ => Err(key.fenced()),
                }
            }
        }
    }

    async fn expire_consumers(
        &self,
        node: NodeId,
        before: Timestamp,
        generation: i64,
    ) -> Result<(), StoreError> {
        let write = ConsumerWrite::Expire(node, before);
        self.consumer(write, generation).await.map(drop)
    }

    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError> {
        let sql = consumer::select(node, filter, limit);
        self.read(sql, consumer::row).await
    }

    async fn count_consumers(
        &self,
        node: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError> {
        let sql = Sql::new(consumer::COUNT).bind(node.to_string());
        let sql = sql.bind(key.run_text()).bind(key.owner.clone());
        let counts = self.read(sql, consumer::counts).await?.pop();
        Ok(counts.unwrap_or_default())
    }

    async fn record_bytes(&self, node: NodeId) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(record_bytes::select(node), record_bytes::row)
            .await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.writer.has_ended() {
            return Err(StoreError::Unavailable("nothing can be written".into()));
        }
        let rows = self.rows(Sql::new(R::DIALECT.ping), Where::Taken).await?;
        let takes_writes = |row: &R::Row| row.column("takes_writes").unwrap_or(false);
        if rows.iter().all(takes_writes) {
            return Ok(());
        }
        Err(StoreError::Unavailable("it is read-only".into()))
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    async fn finish(&self) {
        if let Some(leases) = &self.leases {
            leases.finish().await;
        }
        self.writer.finish().await;
        self.reader.close().await;
    }
}
