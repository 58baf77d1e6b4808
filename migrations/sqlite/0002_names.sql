-- Names of runs, and keys that clients give them.

-- The name that the run holds, as long as it is open, or held: it is in the spec too, which readers are shown. NULL: it
-- has none, or another run had taken it before this row was written again.
ALTER TABLE runs ADD COLUMN name TEXT;
-- The client's own key of the run, instead of its id. NULL: it gave none, or a later run has it.
ALTER TABLE runs ADD COLUMN request_key TEXT;

-- Of the open runs of an owner one has a name, on whatever node.
CREATE UNIQUE INDEX runs_name ON runs (owner, name) WHERE name IS NOT NULL AND end_reason IS NULL;
CREATE UNIQUE INDEX runs_key ON runs (owner, request_key) WHERE request_key IS NOT NULL;
-- The newest run of a name.
CREATE INDEX runs_named ON runs (owner, name, age) WHERE name IS NOT NULL;

-- The view for readers by SQL, with the name.
DROP VIEW IF EXISTS kennel_runs;
CREATE VIEW kennel_runs AS SELECT
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
    strftime('%Y-%m-%d %H:%M:%S', r.created_us / 1000000, 'unixepoch') || printf('.%06d', r.created_us % 1000000) AS created_at,
    strftime('%Y-%m-%d %H:%M:%S', r.started_us / 1000000, 'unixepoch') || printf('.%06d', r.started_us % 1000000) AS started_at,
    strftime('%Y-%m-%d %H:%M:%S', r.leader_exited_us / 1000000, 'unixepoch') || printf('.%06d', r.leader_exited_us % 1000000) AS exited_at,
    strftime('%Y-%m-%d %H:%M:%S', r.ended_us / 1000000, 'unixepoch') || printf('.%06d', r.ended_us % 1000000) AS ended_at,
    CASE
        WHEN r.exit_kind = 'code' THEN r.exit_value
        WHEN r.state = 'backoff' THEN json_extract(r.attempts_detail, '$[#-1].outcome.exit.code') END AS exit_code,
    CASE
        WHEN r.exit_kind = 'signal' OR r.exit_kind = 'core_dump' THEN r.exit_value
        WHEN r.state = 'backoff' THEN json_extract(r.attempts_detail, '$[#-1].outcome.exit.signal.signal') END AS exit_signal,
    r.end_reason,
    r.tree_verdict,
    r.attempt AS attempts,
    r.restarts,
    strftime('%Y-%m-%d %H:%M:%S', r.next_restart_us / 1000000, 'unixepoch') || printf('.%06d', r.next_restart_us % 1000000) AS next_attempt_at,
    r.parent_run_id,
    r.restarted_from,
    r.labels,
    COALESCE(json_extract(r.facets, '$.annotations.pairs'), '{}') AS annotations,
    json_extract(r.spec, '$.name') AS name
FROM runs r LEFT JOIN nodes n ON n.node = r.node;
