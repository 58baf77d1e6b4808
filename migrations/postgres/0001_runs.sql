-- Runs, the nodes that run them, the keepers that hold them, and named readers of their events.
--
-- Times are microseconds since 1970-01-01 UTC. Inodes, pidfs handles and start ticks are unsigned 64-bit numbers
-- kept by their bits: a negative number here is that number plus 2^64. Columns that end in _detail hold JSON: the value
-- that the type of the lifecycle has there, under the names of crates/lifecycle/tests/names.lock.
-- The CHECKs hold the shape of a row: what an open run and one that has ended require (INV-10).

-- One row. A migration that adds raises the level; one that takes away raises the least level of a server that may use
-- the database.
CREATE TABLE schema_level (
    one                   BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    level                 BIGINT NOT NULL,
    min_level             BIGINT NOT NULL CHECK (min_level BETWEEN 1 AND level)
);

INSERT INTO schema_level VALUES (1, 1, 1);

CREATE TABLE nodes (
    node                  TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(node) = 26),
    name                  TEXT NOT NULL,
    -- Raised by one at each start of a server on this node; every write of a run names it.
    generation            BIGINT NOT NULL CHECK (generation >= 1),
    keeper_epoch          TEXT NOT NULL CHECK (length(keeper_epoch) = 26),
    opened_us             BIGINT NOT NULL,
    -- Where the node's server listens, such as unix:/run/kennel/kennel.sock; empty: not known.
    address               TEXT NOT NULL,
    -- When the node's keeper took or renewed its lease, by the clock of the database.
    heard_us              BIGINT NOT NULL,
    -- How long the lease lasts from then on; 0: it was given up without an open run, or the node is forgotten.
    lease_us              BIGINT NOT NULL CHECK (lease_us >= 0),
    -- When an operator has forgotten it, with its open runs; NULL: it was not, or is back.
    forgotten_us          BIGINT,
    -- Since when it is drained, as of its last renewal; NULL: it is not.
    draining_us           BIGINT,
    -- The level of the schema that the node's server has, and since when.
    level                 BIGINT NOT NULL,
    level_us              BIGINT NOT NULL
);

CREATE TABLE keeper_epochs (
    keeper_epoch          TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(keeper_epoch) = 26),
    node                  TEXT COLLATE "C" NOT NULL REFERENCES nodes (node),
    -- The node's generation when this keeper's latest server began.
    generation            BIGINT NOT NULL CHECK (generation >= 1),
    -- The keeper as a process.
    process_pid           BIGINT NOT NULL CHECK (process_pid > 0),
    process_group_id      BIGINT NOT NULL,
    session_id            BIGINT NOT NULL,
    start_ticks           BIGINT NOT NULL,
    pidfs_handle          BIGINT,
    boot_id               TEXT NOT NULL,
    pidns_inode           BIGINT NOT NULL,
    pidns_init_start_ticks BIGINT,
    opened_us             BIGINT NOT NULL
);

CREATE INDEX keeper_epochs_of_node ON keeper_epochs (node);

CREATE TABLE runs (
    -- Position among the runs, given when the row is inserted: max(created, newest + 1). The order of lists, pages and
    -- cursors, whatever the clocks are set to. Two nodes may give the same one at the same time, a node never does.
    age                   BIGINT NOT NULL,
    run_id                TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(run_id) = 26),
    -- Raised by one by each change of the row.
    seq                   BIGINT NOT NULL DEFAULT 1,
    owner                 TEXT NOT NULL,
    attempt               BIGINT NOT NULL,
    kind                  TEXT NOT NULL,
    node                  TEXT COLLATE "C" NOT NULL,
    generation            BIGINT NOT NULL,
    keeper_epoch          TEXT NOT NULL CHECK (length(keeper_epoch) = 26),
    state                 TEXT NOT NULL,
    desired               TEXT NOT NULL,
    -- The leader of the run's tree.
    process_pid           BIGINT,
    process_group_id      BIGINT,
    session_id            BIGINT,
    start_ticks           BIGINT,
    pidfs_handle          BIGINT,
    -- Where the numbers of this row mean what they say.
    boot_id               TEXT,
    pidns_inode           BIGINT,
    pidns_init_start_ticks BIGINT,
    cgroup_path           TEXT,
    cgroup_inode          BIGINT,
    containment_detail    TEXT,
    shim_pid              BIGINT,
    shim_process_group_id BIGINT,
    shim_session_id       BIGINT,
    shim_start_ticks      BIGINT,
    shim_pidfs_handle     BIGINT,
    grace_period_ms       BIGINT NOT NULL,
    stop_deadline         BIGINT,
    -- Who has asked for the stop first, and how.
    stop_detail           TEXT,
    end_reason            TEXT,
    end_detail            TEXT,
    exit_kind             TEXT,
    exit_value            BIGINT,
    tree_verdict          TEXT,
    tree_detail           TEXT,
    -- What was done to end the run, and who was left when its leader ended.
    certificate_detail    TEXT,
    streams_end           TEXT,
    traceparent           TEXT,
    -- The ended run that this one was made of.
    restarted_from        TEXT CHECK (length(restarted_from) = 26),
    -- The run that this one belongs to.
    parent_run_id         TEXT CHECK (length(parent_run_id) = 26),
    -- The client's spec as JSON text, what differs from the default alone, without environment values and input. The columns
    -- kind, grace_period_ms, labels and parent_run_id are taken from it, for SQL alone.
    spec                  TEXT NOT NULL,
    spec_digest           BYTEA NOT NULL,
    spec_digest_version   BIGINT NOT NULL,
    labels                JSONB NOT NULL CONSTRAINT runs_labels CHECK (jsonb_typeof(labels) = 'object'),
    created_us            BIGINT NOT NULL,
    started_us            BIGINT,
    leader_exited_us      BIGINT,
    streams_closed_us     BIGINT,
    tree_empty_us         BIGINT,
    ended_us              BIGINT,
    -- Position among the ended runs of the node that have output, given with the end: max(ended, newest + 1). NULL: the
    -- run has not ended, or made no file.
    output_age            BIGINT,
    -- Restarts in a row, with the one that is due.
    restarts              BIGINT NOT NULL,
    -- When the next attempt is due.
    next_restart_us       BIGINT,
    -- Attempts that have ended before the present one, or up to it while another is due; the newest ones, in order.
    attempts_detail       TEXT NOT NULL CONSTRAINT runs_attempts CHECK (jsonb_typeof(attempts_detail::jsonb) = 'array'),
    -- When it was decided that the output goes, before it went, and what it was. NULL: it is there.
    output_removed_us     BIGINT,
    output_removed_detail TEXT,
    -- What clients and output say of the run beside its state, as JSON: annotations and their version.
    facets                TEXT NOT NULL CONSTRAINT runs_facets CHECK (jsonb_typeof(facets::jsonb) = 'object'),
    -- What happened to the run, written with its end as a JSON object: its entries with their seqs, without output. The last
    -- column, which lists do not read. NULL: it has not ended, or it has no journal. An identity that is null there is
    -- that of the columns above.
    entries               TEXT,

    -- No CHECK has a list of names: states, kinds and reasons are those of the version that wrote the row, and no
    -- migration can widen a CHECK of SQLite without a copy of the table. A name that a reader does not know makes the
    -- row unreadable to it. What every run passes is written without IN: of more than two words SQLite makes a table.
    CONSTRAINT runs_names CHECK (state <> '' AND desired <> '' AND kind <> ''),
    CONSTRAINT runs_counters CHECK (attempt >= 1 AND generation >= 1 AND grace_period_ms >= 0 AND restarts >= 0),
    -- A run that has ended has a reason, a time, a verdict and a certificate, and no other run has any of them.
    CONSTRAINT runs_terminal_has_time CHECK ((end_reason IS NULL) = (ended_us IS NULL)),
    CONSTRAINT runs_terminal_has_verdict CHECK ((end_reason IS NULL) = (tree_verdict IS NULL)),
    CONSTRAINT runs_terminal_has_certificate CHECK ((end_reason IS NULL) = (certificate_detail IS NULL)),
    CONSTRAINT runs_open_has_no_end CHECK (end_reason IS NOT NULL OR (
        end_detail IS NULL AND exit_kind IS NULL AND tree_detail IS NULL AND streams_end IS NULL)),
    CONSTRAINT runs_exit CHECK (exit_value IS NULL OR exit_kind IS NOT NULL),
    -- An attempt that is due has a time, and only an open run has one.
    CONSTRAINT runs_backoff CHECK ((state <> 'backoff' OR next_restart_us IS NOT NULL)
        AND (next_restart_us IS NULL OR end_reason IS NULL)),
    -- A run that may have processes names them.
    CONSTRAINT runs_open_has_identity CHECK (end_reason IS NOT NULL OR process_pid IS NOT NULL OR state = 'queued'),

    -- A stop has a deadline and a requester.
    CONSTRAINT runs_stop CHECK ((stop_deadline IS NULL) = (stop_detail IS NULL)),

    -- An identity is there as a whole or not at all: half of one could name an unrelated process.
    CONSTRAINT runs_identity_whole CHECK (
        (process_pid IS NULL) = (process_group_id IS NULL)
        AND (process_pid IS NULL) = (session_id IS NULL)
        AND (process_pid IS NULL) = (start_ticks IS NULL)
        AND (process_pid IS NULL) = (boot_id IS NULL)
        AND (process_pid IS NULL) = (pidns_inode IS NULL)
        AND (process_pid IS NULL) = (shim_pid IS NULL)
        AND (process_pid IS NULL) = (shim_process_group_id IS NULL)
        AND (process_pid IS NULL) = (shim_session_id IS NULL)
        AND (process_pid IS NULL) = (shim_start_ticks IS NULL)),
    CONSTRAINT runs_identity_extras CHECK (process_pid IS NOT NULL OR (
        pidfs_handle IS NULL AND shim_pidfs_handle IS NULL AND pidns_init_start_ticks IS NULL AND cgroup_path IS NULL
        AND containment_detail IS NULL)),
    CONSTRAINT runs_pids CHECK ((process_pid IS NULL OR process_pid > 0) AND (shim_pid IS NULL OR shim_pid > 0)),
    CONSTRAINT runs_cgroup_whole CHECK ((cgroup_path IS NULL) = (cgroup_inode IS NULL)),
    -- Only what has ended loses its output.
    CONSTRAINT runs_output_removed CHECK ((output_removed_us IS NULL) = (output_removed_detail IS NULL)
        AND (output_removed_us IS NULL OR end_reason IS NOT NULL)),
    CONSTRAINT runs_entries CHECK (entries IS NULL
        OR (end_reason IS NOT NULL AND octet_length(entries) <= 65536 AND json_typeof(entries::json) = 'object'))
);

-- Lists, mostly backwards: newest first, then by key downwards. An index that grows at its end changes fewer pages.
CREATE INDEX runs_by_age ON runs (age, run_id);
-- Runs that belong to another one.
CREATE INDEX runs_of_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
-- What a start of the server has to look at.
CREATE INDEX runs_open_of_node ON runs (node, keeper_epoch) WHERE end_reason IS NULL;
-- Ended runs that have their output, read backwards: the newest first.
CREATE INDEX runs_output_of_node ON runs (node, output_age)
    WHERE output_age IS NOT NULL AND output_removed_us IS NULL;

-- Readers of events that have a name: up to where each has acknowledged what it was given.
CREATE TABLE consumers (
    node                  TEXT NOT NULL REFERENCES nodes (node),
    -- The run that it reads; empty: many, by a filter.
    run_id                TEXT NOT NULL,
    name                  TEXT NOT NULL,
    -- Who has registered it: each owner has names of its own.
    owner                 TEXT NOT NULL,
    -- Raised by one with each reader.
    session               BIGINT NOT NULL,
    -- Of a run: the seq up to which it has acknowledged. Of many: the number of the message.
    acked                 BIGINT NOT NULL,
    -- Where that is, as a client is given it.
    cursor_bytes          BYTEA NOT NULL,
    created_us            BIGINT NOT NULL,
    -- The last acknowledgement; NULL: there was none.
    acked_us              BIGINT,

    PRIMARY KEY (node, run_id, owner, name),
    CONSTRAINT consumers_run CHECK (length(run_id) IN (0, 26)),
    CONSTRAINT consumers_name CHECK (length(name) BETWEEN 1 AND 64),
    CONSTRAINT consumers_counters CHECK (session >= 1 AND acked >= 0),
    CONSTRAINT consumers_cursor CHECK (length(cursor_bytes) BETWEEN 1 AND 4194304)
);

-- Stops of runs whose node could not be reached when they were asked for. The node carries each out and removes it.
CREATE TABLE left_stops (
    run_id                TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(run_id) = 26),
    node                  TEXT COLLATE "C" NOT NULL REFERENCES nodes (node),
    -- Who asked first.
    reason_detail         TEXT NOT NULL,
    -- The shortest grace that was asked for.
    grace_us              BIGINT NOT NULL CHECK (grace_us >= 0),
    -- When the stop was first asked for.
    asked_us              BIGINT NOT NULL
);

CREATE INDEX left_stops_of_node ON left_stops (node, asked_us);

-- The runs for readers by SQL, with the columns of docs/guide/how-to/query.md: none is ever renamed, retyped or removed, and
-- a new one comes last. Each migration makes the view again.
CREATE OR REPLACE VIEW kennel_runs AS SELECT
    r.run_id,
    r.owner,
    r.kind,
    CASE
        WHEN r.end_reason IS NULL AND r.desired = 'stop' THEN 'stopping'
        WHEN r.state = 'pausing' THEN 'running'
        ELSE r.state END AS state,
    r.node,
    n.name AS node_name,
    r.process_pid AS pid,
    r.process_group_id AS pgid,
    r.session_id AS sid,
    r.shim_pid,
    r.boot_id,
    r.cgroup_path AS cgroup,
    TIMESTAMPTZ 'epoch' + r.created_us * INTERVAL '1 microsecond' AS created_at,
    TIMESTAMPTZ 'epoch' + r.started_us * INTERVAL '1 microsecond' AS started_at,
    TIMESTAMPTZ 'epoch' + r.leader_exited_us * INTERVAL '1 microsecond' AS exited_at,
    TIMESTAMPTZ 'epoch' + r.ended_us * INTERVAL '1 microsecond' AS ended_at,
    CASE
        WHEN r.exit_kind = 'code' THEN r.exit_value
        WHEN r.state = 'backoff' THEN (r.attempts_detail::jsonb #>> '{-1,outcome,exit,code}')::bigint END AS exit_code,
    CASE
        WHEN r.exit_kind = 'signal' OR r.exit_kind = 'core_dump' THEN r.exit_value
        WHEN r.state = 'backoff' THEN (r.attempts_detail::jsonb #>> '{-1,outcome,exit,signal,signal}')::bigint END AS exit_signal,
    r.end_reason,
    r.tree_verdict,
    r.attempt AS attempts,
    r.restarts,
    TIMESTAMPTZ 'epoch' + r.next_restart_us * INTERVAL '1 microsecond' AS next_attempt_at,
    r.parent_run_id,
    r.restarted_from,
    r.labels,
    COALESCE(r.facets::jsonb #> '{annotations,pairs}', '{}') AS annotations
FROM runs r LEFT JOIN nodes n ON n.node = r.node;
