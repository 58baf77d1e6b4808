//! Changes of rows that are there: the row after the change is computed from the stored one, and written over that one
//! alone.

use crate::{
    Change, RunRow, StoreError,
    database::Database,
    reader::Where,
    record::Record,
    select,
    writer::{Answer, Write},
};
use kennel_lifecycle::{NodeId, RunId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Most rows whose changes need no read.
const OWN_ROWS_MAX: usize = 8192;

/// Open rows that this server has inserted, as it has written them last, with their seqs. A change of such a row needs no
/// read: nothing in the row is of a later version.
pub(crate) type OwnRows = Mutex<HashMap<RunId, (i64, RunRow)>>;

impl Database {
    /// Remembers a row of this server.
    pub(crate) fn keep(&self, seq: i64, row: RunRow) {
        let mut rows = self.own_rows.lock();
        if row.outcome.is_none() && rows.len() < OWN_ROWS_MAX {
            rows.insert(row.new.run, (seq, row));
        }
    }

    /// Makes a change of the row that is there, or of none; anew, where another write came between.
    pub(crate) async fn put(
        &self,
        node: NodeId,
        generation: i64,
        run: RunId,
        change: &Change,
    ) -> Result<(), StoreError> {
        let own = self.own_rows.lock().remove(&run);
        let mut is_own = own.is_some();
        let mut found = match own {
            Some((seq, row)) => Some((
                Record {
                    seq,
                    ..Record::of_row(&row)
                },
                row,
            )),
            None => self.stored(run).await?,
        };
        loop {
            let row = found.as_ref().map(|(_, row)| row);
            if !change.fits(row) || row.is_some_and(|row| row.new.node != node) {
                if !is_own {
                    return self.refuse(run, change).await;
                }
                // A remembered row may be older than the stored one: only the stored one refuses.
                (is_own, found) = (false, self.stored(run).await?);
                continue;
            }
            let after = change.upon(row.cloned()).ok_or(StoreError::Fenced(run))?;
            let seq = found.as_ref().map(|(record, _)| record.seq);
            let write = match (found, change) {
                (Some((record, row)), _) => {
                    let (record, part) = record.after(&row, &after);
                    Write::Put {
                        record: Box::new(Record {
                            generation,
                            ..record
                        }),
                        part,
                        is_urgent: matches!(change, Change::Begun(..) | Change::Stop { .. }),
                    }
                }
                (None, Change::Snapshot(_)) => Write::Mend(Record::by(generation, &after)),
                (None, _) => Write::Insert(Record::by(generation, &after)),
            };
            if self.write(write).await? != Answer::NotWritten {
                if let Some(seq) = seq.filter(|_| is_own) {
                    self.keep(seq + 1, after);
                }
                return Ok(());
            }
            found = self.stored(run).await?;
            // The row is as it was: the generation is not the node's present one.
            if found.as_ref().map(|(record, _)| record.seq) == seq {
                return Err(StoreError::Fenced(run));
            }
        }
    }

    /// Returns the result of a change that the row does not permit: it may have been made before.
    async fn refuse(&self, run: RunId, change: &Change) -> Result<(), StoreError> {
        let is_made = |row: RunRow| match change {
            Change::Closed(..) | Change::Snapshot(_) => row.outcome.is_some(),
            Change::OutputRemoved(_) => row.output_removed.is_some(),
            _ => false,
        };
        let row = self.one(run).await?;
        row.is_some_and(is_made)
            .then_some(())
            .ok_or(StoreError::Fenced(run))
    }

    /// Reads a row, as it is and as far as this version reads it.
    async fn stored(&self, run: RunId) -> Result<Option<(Record, RunRow)>, StoreError> {
        let sql = select::one(self.dialect, run);
        let rows = self.rows(sql, Where::Taken).await?;
        let record = rows.first().map(Record::read).transpose()?;
        record
            .map(|record| Ok((record.clone(), record.known()?)))
            .transpose()
    }
}
