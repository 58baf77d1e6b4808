-- What is known of removed rows whose ids are not remembered any more, and ids by their end.

-- The newest of these ids: an older one that has no row may have run.
CREATE TABLE forgotten_ids (
    one                   BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    newest                TEXT COLLATE "C" NOT NULL CHECK (length(newest) = 26)
);
-- A run by the end of its id.
CREATE INDEX runs_by_end_of_id ON runs ((reverse(run_id) COLLATE "C"));
-- An INSERT that waits for the removal of a row with its id has looked into removed_ids before: it is made again, and looks again.
CREATE FUNCTION refuse_removed_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM removed_ids WHERE run_id = NEW.run_id) THEN
        RAISE EXCEPTION 'the row of run % was removed', NEW.run_id USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER refuse_removed_id AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.end_reason IS NULL AND NEW.state = 'starting' AND NEW.attempt = 1)
    EXECUTE FUNCTION refuse_removed_id();
