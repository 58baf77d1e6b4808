-- Ended runs whose rows are removed.

-- Ids that runs had whose rows were removed, for as long as a client may repeat a Spawn with one: no later run may have them.
CREATE TABLE removed_ids (
    run_id                TEXT NOT NULL PRIMARY KEY CHECK (length(run_id) = 26)
) STRICT, WITHOUT ROWID;
