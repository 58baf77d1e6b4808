-- Ended runs whose rows are removed.

-- Ids that runs had whose rows were removed, for as long as a client may repeat a Spawn with one: no later run may have them.
CREATE TABLE removed_ids (
    run_id                TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(run_id) = 26)
);
-- The runs of a node from the oldest on.
CREATE INDEX runs_of_node_by_age ON runs (node, age);
