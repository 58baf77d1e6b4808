//! A run as the columns of table `runs`, the same in both databases.

use crate::{
    Age, Desired, EntriesText, NewRun, RunRow, StoreError, StoredState, Times, UnreadRow, json,
    reader::Columns,
};
use kennel_lifecycle::{
    CgroupIdentity, EndReason, Exit, HostIdentity, Outcome, ProcessIdentity, RunIdentity, RunState,
    Signal, StopCertificate, Timestamp, TreeVerdict, UnknownName,
};
use std::{str::FromStr, sync::Arc, time::Duration};

/// Declares [`Record`], the list of its columns and their reading; the order of the list is the order of the parameters
/// in every statement that writes whole rows.
macro_rules! record {
    ($($part:ident $column:ident: $type:ty,)+) => {
        /// One row, flat. Numbers that are unsigned in the kernel are stored by their bits.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Record { $(pub(crate) $column: $type,)+ }

        /// The columns with their types.
        pub(crate) const COLUMNS: &[Column] = &[
            $(Column {
                name: stringify!($column),
                sql_type: <$type as ColumnType>::SQL,
                part: ColumnPart::$part,
            },)+
        ];

        impl Record {
            /// Reads columns that were selected by their names.
            pub(crate) fn read(row: &impl Columns) -> Result<Self, StoreError> {
                Ok(Self { $($column: row.column(stringify!($column))?,)+ })
            }

            /// Returns the row after a change, computed from what this version reads in this one, and the part that is
            /// written. What the change leaves as it is stays, also what only a later version reads.
            pub(crate) fn after(self, before: &RunRow, after: &RunRow) -> (Self, ColumnPart) {
                let (was, is) = (Self::of_row(before), Self::of_row(after));
                let mut part = ColumnPart::Hot;
                $(if was.$column != is.$column {
                    part = part.max(ColumnPart::$part);
                })+
                let row = Self {
                    $($column: if was.$column == is.$column { self.$column } else { is.$column },)+
                };
                (row, part)
            }

            /// Binds every column of one row, in order.
            pub(crate) fn bind_sqlite<'q>(
                &self,
                query: sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
            ) -> sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
                query$(.bind(&self.$column))+
            }

            /// Binds every column of many rows as one array each, in order.
            pub(crate) fn bind_postgres<'q>(
                records: &[&Self],
                query: sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>,
            ) -> sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments> {
                query$(.bind(records.iter().map(|r| &r.$column).collect::<Vec<&$type>>()))+
            }
        }
    };
}

record! {
    Birth age: i64,
    Hot seq: i64,
    Birth run_id: String,
    Birth owner: String,
    Hot attempt: i64,
    Birth kind: String,
    Birth node: String,
    Hot generation: i64,
    Rare keeper_epoch: String,
    Hot state: String,
    Hot desired: String,
    Hot process_pid: Option<i64>,
    Hot process_group_id: Option<i64>,
    Hot session_id: Option<i64>,
    Hot start_ticks: Option<i64>,
    Hot pidfs_handle: Option<i64>,
    Hot boot_id: Option<String>,
    Hot pidns_inode: Option<i64>,
    Hot pidns_init_start_ticks: Option<i64>,
    Hot cgroup_path: Option<String>,
    Hot cgroup_inode: Option<i64>,
    Hot containment_detail: Option<String>,
    Hot shim_pid: Option<i64>,
    Hot shim_process_group_id: Option<i64>,
    Hot shim_session_id: Option<i64>,
    Hot shim_start_ticks: Option<i64>,
    Hot shim_pidfs_handle: Option<i64>,
    Birth grace_period_ms: i64,
    Hot stop_deadline: Option<i64>,
    Hot stop_detail: Option<String>,
    Rare end_reason: Option<String>,
    Rare end_detail: Option<String>,
    Rare exit_kind: Option<String>,
    Rare exit_value: Option<i64>,
    Rare tree_verdict: Option<String>,
    Rare tree_detail: Option<String>,
    Rare certificate_detail: Option<String>,
    Rare streams_end: Option<String>,
    Birth traceparent: Option<String>,
    Birth restarted_from: Option<String>,
    Birth parent_run_id: Option<String>,
    Birth spec: String,
    Birth spec_digest: Vec<u8>,
    Birth spec_digest_version: i64,
    Birth labels: String,
    Birth created_us: i64,
    Hot started_us: Option<i64>,
    Hot leader_exited_us: Option<i64>,
    Hot streams_closed_us: Option<i64>,
    Hot tree_empty_us: Option<i64>,
    Rare ended_us: Option<i64>,
    Rare output_age: Option<i64>,
    Hot restarts: i64,
    Hot next_restart_us: Option<i64>,
    Hot attempts_detail: String,
    Rare output_removed_us: Option<i64>,
    Rare output_removed_detail: Option<String>,
    Hot facets: String,
    Rare entries: Option<String>,
    Birth name: Option<String>,
    Birth request_key: Option<String>,
}

/// Statements that write whole rows.
pub(crate) struct Statements {
    pub(crate) insert: Arc<str>,
    pub(crate) mend: Arc<str>,
    /// For changes of hot columns alone, and for others.
    pub(crate) puts: [Arc<str>; 2],
}

impl Statements {
    pub(crate) fn put(&self, part: ColumnPart) -> &Arc<str> {
        &self.puts[usize::from(part == ColumnPart::Rare)]
    }
}

/// A column by name and Postgres type.
pub(crate) struct Column {
    /// Name in both databases.
    pub(crate) name: &'static str,
    /// Type as Postgres names it.
    pub(crate) sql_type: &'static str,
    /// When it is written.
    pub(crate) part: ColumnPart,
}

/// When a column is written. No UPDATE names a column without need: SQLite rewrites each index that has it, whatever the
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ColumnPart {
    /// With the row, and never again.
    Birth,
    /// With each change.
    Hot,
    /// With a change of one of these: the run's end and its keeper.
    Rare,
}

trait ColumnType {
    const SQL: &'static str;
}

impl ColumnType for String {
    const SQL: &'static str = "text";
}

impl ColumnType for i64 {
    const SQL: &'static str = "bigint";
}

impl ColumnType for Vec<u8> {
    const SQL: &'static str = "bytea";
}

impl<T: ColumnType> ColumnType for Option<T> {
    const SQL: &'static str = T::SQL;
}

/// Returns the names of all columns, each with this prefix.
pub(crate) fn column_list(prefix: &str) -> String {
    let names: Vec<String> = COLUMNS
        .iter()
        .map(|c| format!("{prefix}{}", c.name))
        .collect();
    names.join(", ")
}

impl Record {
    /// Converts a row that this generation writes.
    pub(crate) fn by(generation: i64, row: &RunRow) -> Box<Self> {
        Box::new(Self {
            generation,
            ..Self::of_row(row)
        })
    }

    /// Converts a row.
    pub(crate) fn of_row(row: &RunRow) -> Self {
        let new = &row.new;
        let mut record = Self {
            run_id: new.run.to_string(),
            owner: new.owner.clone(),
            attempt: i64::from(new.attempt),
            kind: new.spec.policy.kind.name().to_owned(),
            node: new.node.to_string(),
            generation: new.generation,
            keeper_epoch: new.keeper_epoch.to_string(),
            state: <&str>::from(row.state).to_owned(),
            desired: row.desired.name().to_owned(),
            containment_detail: new.held.as_ref().map(json::write),
            grace_period_ms: millis_up(new.spec.policy.grace()),
            stop_deadline: row.stop_deadline.map(|at| at.0),
            stop_detail: row.stop.as_ref().map(json::write),
            traceparent: new.traceparent.clone(),
            restarted_from: new.restarted_from.map(|run| run.to_string()),
            parent_run_id: new.spec.parent.map(|parent| parent.run.to_string()),
            spec: json::spec_text(&new.spec),
            spec_digest: new.spec_digest.clone(),
            spec_digest_version: i64::from(new.spec_digest_version),
            labels: json::write(&new.spec.labels),
            created_us: new.created.0,
            age: new.age.0,
            started_us: row.times.started.map(|t| t.0),
            leader_exited_us: row.times.leader_exited.map(|t| t.0),
            streams_closed_us: row.times.streams_closed.map(|t| t.0),
            tree_empty_us: row.times.tree_empty.map(|t| t.0),
            output_age: row.output_age.map(|age| age.0),
            restarts: i64::from(row.restarts),
            next_restart_us: row.next_restart.map(|at| at.0),
            attempts_detail: json::write(&json::newest(&row.past)),
            output_removed_us: row.output_removed.map(|removal| removal.at.0),
            output_removed_detail: row.output_removed.as_ref().map(json::write),
            facets: json::write(&row.facets),
            name: new.spec.name.clone(),
            request_key: new.request_key.clone(),
            ..Self::default()
        };
        if let Some(identity) = &new.identity {
            record.put_identity(identity);
        }
        if let Some(outcome) = &row.outcome {
            record.put_outcome(outcome, row);
        }
        record
    }

    fn put_identity(&mut self, identity: &RunIdentity) {
        let RunIdentity {
            command,
            shim,
            cgroup,
            host,
        } = identity;
        self.process_pid = Some(i64::from(command.pid));
        self.process_group_id = Some(i64::from(command.pgid));
        self.session_id = Some(i64::from(command.sid));
        self.start_ticks = Some(command.start_ticks.cast_signed());
        self.pidfs_handle = command.pidfs_handle.map(u64::cast_signed);
        self.boot_id = Some(host.boot_id.clone());
        self.pidns_inode = Some(host.pidns_inode.cast_signed());
        self.pidns_init_start_ticks = host.init_start_ticks.map(u64::cast_signed);
        self.cgroup_path = cgroup.as_ref().map(|c| c.path.clone());
        self.cgroup_inode = cgroup.as_ref().map(|c| c.inode.cast_signed());
        self.shim_pid = Some(i64::from(shim.pid));
        self.shim_process_group_id = Some(i64::from(shim.pgid));
        self.shim_session_id = Some(i64::from(shim.sid));
        self.shim_start_ticks = Some(shim.start_ticks.cast_signed());
        self.shim_pidfs_handle = shim.pidfs_handle.map(u64::cast_signed);
    }

    fn put_outcome(&mut self, outcome: &Outcome, row: &RunRow) {
        let (reason, detail) = json::split(&outcome.reason);
        self.end_reason = Some(reason);
        self.end_detail = detail;
        let (kind, value) = exit(outcome.exit);
        self.exit_kind = kind.map(str::to_owned);
        self.exit_value = value;
        let (verdict, detail) = json::split(&outcome.tree);
        self.tree_verdict = Some(verdict);
        self.tree_detail = detail;
        self.certificate_detail = Some(json::write(&outcome.certificate));
        self.streams_end = outcome.streams.map(|s| s.name().to_owned());
        self.ended_us = row.times.ended.map(|t| t.0);
        let entries = row.entries.as_ref().map(EntriesText::as_str);
        self.entries = entries.map(|entries| match &row.new.identity {
            Some(identity) => entries.replace(&named(identity), NO_IDENTITY),
            None => entries.to_owned(),
        });
    }

    /// What identifies the row, whatever else is in it.
    pub(crate) fn key(&self) -> Result<UnreadRow, String> {
        Ok(UnreadRow {
            run: read_id("run_id", &self.run_id)?,
            node: read_id("node", &self.node)?,
            owner: self.owner.clone(),
            attempt: narrow("attempt", self.attempt)?,
            created: Timestamp(self.created_us),
            age: Age(self.age),
            grace: Duration::from_millis(self.grace_period_ms.max(0).unsigned_abs()),
            has_ended: self.end_reason.is_some(),
            why: String::new(),
        })
    }

    /// Converts to the row of the trait; the text names the column that cannot be read.
    pub(crate) fn row(self) -> Result<RunRow, String> {
        let outcome = self.outcome()?;
        let state = StoredState::try_from(self.state.clone()).map_err(|e| format!("state: {e}"))?;
        let desired = read_name("desired", &self.desired)?;
        self.check_names(state, desired, outcome.as_ref())?;
        let times = Times {
            started: self.started_us.map(Timestamp),
            leader_exited: self.leader_exited_us.map(Timestamp),
            streams_closed: self.streams_closed_us.map(Timestamp),
            tree_empty: self.tree_empty_us.map(Timestamp),
            ended: self.ended_us.map(Timestamp),
        };
        let stop = json::maybe("stop_detail", self.stop_detail.as_deref())?;
        let identity = self.identity()?;
        let entries = match (self.entries, &identity) {
            (Some(entries), Some(identity)) => Some(entries.replace(NO_IDENTITY, &named(identity))),
            (entries, _) => entries,
        };
        let past = json::read("attempts_detail", &self.attempts_detail)?;
        let output_removed = json::maybe(
            "output_removed_detail",
            self.output_removed_detail.as_deref(),
        )?;
        let (restarts, next_restart) = (self.restarts, self.next_restart_us);
        let new = NewRun {
            run: read_id("run_id", &self.run_id)?,
            owner: self.owner,
            attempt: narrow("attempt", self.attempt)?,
            node: read_id("node", &self.node)?,
            generation: self.generation,
            keeper_epoch: read_id("keeper_epoch", &self.keeper_epoch)?,
            identity,
            held: json::maybe("containment_detail", self.containment_detail.as_deref())?,
            traceparent: self.traceparent,
            request_key: self.request_key,
            restarted_from: (self.restarted_from.as_deref())
                .map(|run| read_id("restarted_from", run))
                .transpose()?,
            // Other columns with the same values serve only SQL queries.
            spec: Arc::new(json::read("spec", &self.spec)?),
            spec_digest: self.spec_digest,
            spec_digest_version: narrow("spec_digest_version", self.spec_digest_version)?,
            created: Timestamp(self.created_us),
            age: Age(self.age),
        };
        Ok(RunRow {
            new,
            state,
            desired,
            stop_deadline: self.stop_deadline.map(Timestamp),
            stop,
            times,
            outcome,
            past,
            restarts: narrow("restarts", restarts)?,
            next_restart: next_restart.map(Timestamp),
            output_age: self.output_age.map(Age),
            output_removed,
            facets: json::read("facets", &self.facets)?,
            entries: entries.map(EntriesText::from),
        })
    }

    /// Returns the row as far as this version reads it, enough to change it: what else is in it stays as it is.
    pub(crate) fn known(self) -> Result<RunRow, StoreError> {
        if let Ok(row) = self.clone().row() {
            return Ok(row);
        }
        let unread = self.key().map_err(StoreError::Corrupt)?;
        let (run, node) = (unread.run, unread.node);
        let stop = json::maybe("stop_detail", self.stop_detail.as_deref());
        let end = Outcome {
            reason: EndReason::Exited,
            exit: None,
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        };
        let new = NewRun {
            run,
            node,
            ..NewRun::default()
        };
        Ok(RunRow {
            state: StoredState::try_from(self.state).unwrap_or_default(),
            stop_deadline: self.stop_deadline.map(Timestamp),
            stop: stop.ok().flatten(),
            next_restart: self.next_restart_us.map(Timestamp),
            outcome: unread.has_ended.then_some(end),
            ..unread.open(new)
        })
    }

    /// Refuses names that contradict each other or the columns beside them: the CHECKs hold shapes, and no names.
    fn check_names(
        &self,
        state: StoredState,
        desired: Desired,
        outcome: Option<&Outcome>,
    ) -> Result<(), String> {
        let final_state = outcome.map(Outcome::state);
        let (name, stops) = (&self.state, self.stop_deadline.is_some());
        if final_state.map(StoredState::Ended) != Some(state).filter(|state| state.is_ended()) {
            let expected = final_state.map_or("an open one", RunState::name);
            return Err(format!("state {name:?}: its end requires {expected}"));
        }
        if (state == StoredState::Backoff) != self.next_restart_us.is_some() {
            let due = self.next_restart_us;
            return Err(format!("state {name:?} with next_restart_us {due:?}"));
        }
        // A run that was never open was not asked to stop.
        if (desired == Desired::Stop) != stops && (stops || outcome.is_none()) {
            let (desired, deadline) = (&self.desired, self.stop_deadline);
            return Err(format!(
                "desired {desired:?} with stop_deadline {deadline:?}"
            ));
        }
        Ok(())
    }

    /// Returns the end of the run; none where the row is open.
    fn outcome(&self) -> Result<Option<Outcome>, String> {
        let Some(reason) = &self.end_reason else {
            return Ok(None);
        };
        let tree = (self.tree_verdict.as_deref()).ok_or("tree_verdict is missing")?;
        let certificate =
            (self.certificate_detail.as_deref()).ok_or("certificate_detail is missing")?;
        let (end_detail, tree_detail) = (self.end_detail.as_deref(), self.tree_detail.as_deref());
        Ok(Some(Outcome {
            reason: json::join(["end_reason", "end_detail"], reason, end_detail)?,
            exit: read_exit(self.exit_kind.as_deref(), self.exit_value)?,
            tree: json::join(["tree_verdict", "tree_detail"], tree, tree_detail)?,
            streams: (self.streams_end.as_deref())
                .map(|text| read_name("streams_end", text))
                .transpose()?,
            certificate: json::read("certificate_detail", certificate)?,
        }))
    }

    fn identity(&self) -> Result<Option<RunIdentity>, String> {
        let command = process(
            [self.process_pid, self.process_group_id, self.session_id],
            self.start_ticks,
            self.pidfs_handle,
        )?;
        let shim = process(
            [
                self.shim_pid,
                self.shim_process_group_id,
                self.shim_session_id,
            ],
            self.shim_start_ticks,
            self.shim_pidfs_handle,
        )?;
        let (Some(command), Some(shim)) = (command, shim) else {
            return Ok(None);
        };
        let (Some(boot_id), Some(pidns)) = (self.boot_id.clone(), self.pidns_inode) else {
            return Err("boot_id or pidns_inode of a row with an identity".into());
        };
        let cgroup = self
            .cgroup_path
            .clone()
            .zip(self.cgroup_inode)
            .map(|(path, inode)| CgroupIdentity {
                path,
                inode: inode.cast_unsigned(),
            });
        Ok(Some(RunIdentity {
            command,
            shim,
            cgroup,
            host: HostIdentity {
                boot_id,
                pidns_inode: pidns.cast_unsigned(),
                init_start_ticks: self.pidns_init_start_ticks.map(i64::cast_unsigned),
            },
        }))
    }
}

/// Stands in column `entries` for the identity that the row's own columns have. No text within the JSON can look like
/// it: there each quote has a backslash.
const NO_IDENTITY: &str = "\"identity\":null";

/// Returns what [`NO_IDENTITY`] stands for.
fn named(identity: &RunIdentity) -> String {
    format!("\"identity\":{}", json::write(identity))
}

/// Reads a process from its columns: numbers (pid, group, session), start ticks, pidfs handle.
pub(crate) fn process(
    numbers: [Option<i64>; 3],
    start_ticks: Option<i64>,
    handle: Option<i64>,
) -> Result<Option<ProcessIdentity>, String> {
    let ([Some(pid), Some(group), Some(session)], Some(ticks)) = (numbers, start_ticks) else {
        return Ok(None);
    };
    Ok(Some(ProcessIdentity {
        pid: narrow("pid", pid)?,
        pgid: narrow("process group id", group)?,
        sid: narrow("session id", session)?,
        start_ticks: ticks.cast_unsigned(),
        pidfs_handle: handle.map(i64::cast_unsigned),
    }))
}

/// Reads an id from its column.
pub(crate) fn read_id<T: FromStr>(column: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{column} {text:?}"))
}

/// Reads a value by its name from its column.
fn read_name<T: FromStr<Err = UnknownName>>(column: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("{column}: {e}"))
}

/// Returns `exit_kind` and `exit_value`; a command that never started has neither.
fn exit(exit: Option<Exit>) -> (Option<&'static str>, Option<i64>) {
    match exit {
        None => (None, None),
        Some(Exit::Code(code)) => (Some("code"), Some(i64::from(code))),
        Some(Exit::Signal {
            signal,
            core_dumped,
        }) => {
            let kind = if core_dumped { "core_dump" } else { "signal" };
            (Some(kind), Some(i64::from(signal.number())))
        }
        Some(Exit::Unknown) => (Some("unknown"), None),
    }
}

fn read_exit(kind: Option<&str>, value: Option<i64>) -> Result<Option<Exit>, String> {
    let number = value.and_then(|v| i32::try_from(v).ok());
    let exit = match (kind, number) {
        (None, _) => return Ok(None),
        (Some("code"), Some(code @ 0..=255)) => Some(Exit::Code(code)),
        (Some(word @ ("signal" | "core_dump")), Some(number)) => {
            Signal::from_number(number).map(|signal| Exit::Signal {
                signal,
                core_dumped: word == "core_dump",
            })
        }
        (Some("unknown"), None) => Some(Exit::Unknown),
        (Some(_), _) => None,
    };
    match exit {
        Some(exit) => Ok(Some(exit)),
        None => Err(format!("exit_kind {kind:?} with exit_value {value:?}")),
    }
}

fn narrow<T: TryFrom<i64>>(column: &str, value: i64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{column} {value}"))
}

/// Returns whole milliseconds, rounded up: a caller never gets less grace than requested.
fn millis_up(grace: Duration) -> i64 {
    let millis = grace.as_nanos().div_ceil(1_000_000);
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;
    use std::{fs, path::Path};

    /// Other versions read rows: a line of a version that was released never changes. `UPDATE=1` writes the file anew.
    #[test]
    fn row_columns_match_lock_file() {
        let changes = include_str!("change.lock").lines();
        let records = changes.filter_map(|line| {
            let change = Change::decode(line.as_bytes()).expect("a change");
            match &change {
                Change::Closed(..) | Change::Snapshot(_) => change.upon(None),
                Change::Rested(new, _) => change.upon(Some(RunRow::open((**new).clone()))),
                _ => None,
            }
        });
        let found: Vec<String> = records
            .map(|row| format!("{:#?}\n", Record::of_row(&row)))
            .collect();
        let found = found.concat();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rows.lock");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &found).expect("it is written");
        }
        let agreed = fs::read_to_string(&path).expect("it is there");
        for (agreed, found) in agreed.lines().zip(found.lines()) {
            assert_eq!(agreed, found);
        }
        assert_eq!(agreed.len(), found.len());
    }
}
