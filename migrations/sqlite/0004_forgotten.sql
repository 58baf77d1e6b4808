-- What is known of removed rows whose ids are not remembered any more.

-- The newest of these ids: an older one that has no row may have run.
CREATE TABLE forgotten_ids (
    one                   INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    newest                TEXT NOT NULL CHECK (length(newest) = 26)
) STRICT;
