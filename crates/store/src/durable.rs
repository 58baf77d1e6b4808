//! The trait over any database that has a writer and a reader.

use crate::{
    Closure, ConsumerFilter, ConsumerKey, ConsumerRow, EndedStart, EpochRow, Inserted, LeftStop,
    ListFilter, ListPage, NewRun, NodeRow, Opening, PageStart, Rest, RunRow, Store, StoreError,
    StoredNode, WithOutput,
    consumer::ConsumerWrite,
    json,
    node::StopWrite,
    reader::Reader,
    record::Record,
    select::Select,
    writer::{Answer, Write, Writer},
};
use async_trait::async_trait;
use kennel_lifecycle::{
    Facets, HostIdentity, KeeperEpoch, NodeId, OutputRemoval, RowState, RunId, StopOrder, Timestamp,
};

/// One database behind the trait.
#[derive(Debug)]
pub(crate) struct Durable<R> {
    pub(crate) writer: Writer,
    /// Writer that renews leases on a connection of its own, so that no other write delays them. Absent: as any other
    /// write.
    pub(crate) leases: Option<Writer>,
    pub(crate) reader: R,
    pub(crate) description: String,
}

impl<R: Reader> Durable<R> {
    async fn one(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        Ok(self.reader.runs(Select::One(run)).await?.pop())
    }

    async fn insert_record(&self, run: RunId, record: Record) -> Result<Inserted, StoreError> {
        match self.writer.write(Write::Insert(Box::new(record))).await? {
            Answer::NotWritten => match self.one(run).await? {
                Some(row) => Ok(Inserted::Taken(Box::new(row))),
                // There is no such row, so it was the generation.
                None => Err(StoreError::Fenced(run)),
            },
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(Inserted::New),
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
        Ok(self.writer.write(write).await?)
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
        let writer = self.leases.as_ref().unwrap_or(&self.writer);
        match writer.write(write).await? {
            Answer::NotWritten if !given_up => Err(StoreError::Held),
            answer => Ok(answer == Answer::Left),
        }
    }

    async fn update(&self, run: RunId, write: Write) -> Result<(), StoreError> {
        match self.writer.write(write).await? {
            Answer::NotWritten => Err(StoreError::Fenced(run)),
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
        }
    }
}

#[async_trait]
impl<R: Reader> Store for Durable<R> {
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError> {
        self.reader.stored_node(node).await
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        match self
            .writer
            .write(Write::Open(Box::new(opening.clone())))
            .await?
        {
            Answer::Generation(generation) => Ok(generation),
            Answer::Written | Answer::Left | Answer::NotWritten => Err(StoreError::Held),
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
        Ok(self.writer.write(write).await.map(drop)?)
    }

    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        self.reader.left_stops(node).await
    }

    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        self.reader.left_stops_of(runs).await
    }

    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        let write = Write::RemoveLeftStop(Box::new(StopWrite::new(node, stop)));
        Ok(self.writer.write(write).await.map(drop)?)
    }

    async fn forget_node(
        &self,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    ) -> Result<i64, StoreError> {
        let write = Write::Forget { node, keeper_epoch };
        match self.writer.write(write).await? {
            Answer::Generation(generation) => Ok(generation),
            Answer::Written | Answer::Left | Answer::NotWritten => Err(StoreError::Held),
        }
    }

    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        self.reader.nodes(these).await
    }

    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        self.reader.open_epochs(node).await
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
        match self.writer.write(Write::Close(Box::new(record))).await? {
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => self.closed_already(new.run).await,
        }
    }

    async fn withdraw(&self, run: RunId, node: NodeId, generation: i64) -> Result<(), StoreError> {
        let withdrawal = Write::Withdraw(run, node, generation);
        match self.writer.write(withdrawal).await? {
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => match self.one(run).await? {
                None => Ok(()),
                Some(_) => Err(StoreError::Fenced(run)),
            },
        }
    }

    async fn mend(&self, row: &RunRow) -> Result<(), StoreError> {
        let record = Record::of_row(row);
        match self.writer.write(Write::Mend(Box::new(record))).await? {
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
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
        match self.writer.write(write).await? {
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => match self.one(run).await? {
                Some(row) if row.new.node == node && row.output_removed.is_some() => Ok(()),
                _ => Err(StoreError::Fenced(run)),
            },
        }
    }

    async fn with_output(
        &self,
        node: NodeId,
        start: Option<EndedStart>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        self.reader.with_output(node, start, limit).await
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
            let end = self.reader.scan_end(filter.order, start).await?;
            end.map(|created| filter.order.end_of(created))
        } else {
            None
        };
        let page = Select::Page {
            filter,
            start,
            end,
            limit,
        };
        let listed = self.reader.listed(page).await?;
        let is_full = listed.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let last = listed.last().filter(|_| is_full).map(|row| match row {
            Ok(row) => row.page_start(),
            Err(unread) => unread.page_start(),
        });
        let mut page = ListPage {
            next: last.or(end),
            ..ListPage::default()
        };
        for row in listed {
            match row {
                Ok(row) => page.rows.push(row),
                Err(unread) => page.unread.push(unread),
            }
        }
        Ok(page)
    }

    async fn open_runs(&self, node: NodeId) -> Result<Vec<RunRow>, StoreError> {
        self.reader.runs(Select::OpenOf(node)).await
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<Vec<RunRow>, StoreError> {
        self.reader.runs(Select::These(runs)).await
    }

    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        let numbered = Select::Numbered {
            node,
            host,
            numbers: pids,
            limit,
        };
        self.reader.runs(numbered).await
    }

    async fn put_consumer(&self, row: &ConsumerRow, generation: i64) -> Result<(), StoreError> {
        match self
            .consumer(ConsumerWrite::Put(row.clone()), generation)
            .await?
        {
            Answer::NotWritten => Err(row.key.fenced()),
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
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
            Answer::Written | Answer::Left | Answer::Generation(_) => Ok(()),
            Answer::NotWritten => {
                let filter = ConsumerFilter {
                    run: Some(key.run),
                    name: Some(key.name.clone()),
                    owner: None,
                    after: None,
                };
                match &self.reader.consumers(node, &filter, 1).await?[..] {
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
        self.reader.consumers(node, filter, limit).await
    }

    async fn count_consumers(
        &self,
        node: NodeId,
        run: Option<RunId>,
    ) -> Result<(u64, u64), StoreError> {
        self.reader.count_consumers(node, run).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.writer.has_ended() {
            return Err(StoreError::Unavailable("nothing can be written".into()));
        }
        self.reader.ping().await
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
