-- What checkpoints tell of the work itself, to search by; see checkpoint schema 1.0. `words` is the
-- summary as it is found: words in lower case.

CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    agent_type TEXT NOT NULL,
    phase TEXT NOT NULL,
    status TEXT NOT NULL,
    summary TEXT NOT NULL,
    words TEXT NOT NULL,
    revision INTEGER NOT NULL,
    revised_seq INTEGER NOT NULL,
    final_seq INTEGER NOT NULL,
    linked TEXT NOT NULL,
    UNIQUE (tenant, run_id, version)
) STRICT;

CREATE TABLE revisions (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, version, revision)
) WITHOUT ROWID, STRICT;

CREATE VIRTUAL TABLE record_words USING fts5(
    words, content = 'records', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 0'
);

CREATE TRIGGER record_words_added AFTER INSERT ON records WHEN NEW.words <> ''
BEGIN
    INSERT INTO record_words (rowid, words) VALUES (NEW.id, NEW.words);
END;
CREATE TRIGGER record_words_gone AFTER DELETE ON records WHEN OLD.words <> ''
BEGIN
    INSERT INTO record_words (record_words, rowid, words) VALUES ('delete', OLD.id, OLD.words);
END;
CREATE TRIGGER record_words_changed AFTER UPDATE OF words ON records WHEN OLD.words <> NEW.words
BEGIN
    INSERT INTO record_words (record_words, rowid, words)
    SELECT 'delete', OLD.id, OLD.words WHERE OLD.words <> '';
    INSERT INTO record_words (rowid, words) SELECT NEW.id, NEW.words WHERE NEW.words <> '';
END;

-- Checkpoints, what is told of their records if anything is, and the id of each one's parent.
CREATE VIEW told_checkpoints AS
SELECT c.tenant, c.run_id, c.version, c.seq, c.checkpoint_id, c.parent, c.base_seq, c.created_at,
       c.phase, c.agent, c.status, c.label, r.agent_type, r.phase AS told_phase,
       r.status AS told_status, r.summary, r.words, r.revision, r.revised_seq, r.final_seq,
       r.linked,
       (SELECT p.checkpoint_id FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_id
FROM checkpoints c
LEFT JOIN records r ON r.tenant = c.tenant AND r.run_id = c.run_id AND r.version = c.version;

-- A checkpoint that is final is not to be changed, by nobody: neither its rows nor its entries. The
-- runs whose rows are rebuilt or erased on the record are named here, within that transaction.
CREATE TABLE removals (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID, STRICT;

CREATE VIEW final_entries (tenant, run_id, version, seq) AS
SELECT r.tenant, r.run_id, r.version, r.final_seq
FROM records r
WHERE r.final_seq > 0
UNION ALL
SELECT r.tenant, r.run_id, r.version, c.seq
FROM records r
JOIN checkpoints c ON c.tenant = r.tenant AND c.run_id = r.run_id AND c.version = r.version
WHERE r.final_seq > 0
UNION ALL
SELECT r.tenant, r.run_id, r.version, v.seq
FROM records r
JOIN revisions v ON v.tenant = r.tenant AND v.run_id = r.run_id AND v.version = r.version
WHERE r.final_seq > 0;

CREATE TRIGGER final_record_changed BEFORE UPDATE ON records
WHEN OLD.final_seq > 0
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_record_gone BEFORE DELETE ON records
WHEN OLD.final_seq > 0
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
-- Where its loading begins may change: what is loaded does not.
CREATE TRIGGER final_checkpoint_changed
BEFORE UPDATE OF tenant, run_id, version, seq, checkpoint_id, parent, created_at, phase, agent,
                 status, label ON checkpoints
WHEN EXISTS (SELECT 1 FROM records
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version
               AND final_seq > 0)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_checkpoint_gone BEFORE DELETE ON checkpoints
WHEN EXISTS (SELECT 1 FROM records
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version
               AND final_seq > 0)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_revision_changed BEFORE UPDATE ON revisions
WHEN EXISTS (SELECT 1 FROM records
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version
               AND final_seq > 0)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_revision_gone BEFORE DELETE ON revisions
WHEN EXISTS (SELECT 1 FROM records
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version
               AND final_seq > 0)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_entry_changed BEFORE UPDATE ON journal
WHEN OLD.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED')
     AND EXISTS (SELECT 1 FROM final_entries
                 WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND seq = OLD.seq)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_entry_gone BEFORE DELETE ON journal
WHEN OLD.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED')
     AND EXISTS (SELECT 1 FROM final_entries
                 WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND seq = OLD.seq)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_body_changed BEFORE UPDATE ON bodies
WHEN EXISTS (SELECT 1 FROM journal j
             JOIN final_entries f ON f.tenant = j.tenant AND f.run_id = j.run_id AND f.seq = j.seq
             WHERE j.id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_body_gone BEFORE DELETE ON bodies
WHEN EXISTS (SELECT 1 FROM journal j
             JOIN final_entries f ON f.tenant = j.tenant AND f.run_id = j.run_id AND f.seq = j.seq
             WHERE j.id = OLD.id
               AND NOT EXISTS (SELECT 1 FROM removals
                               WHERE tenant = j.tenant AND run_id = j.run_id))
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('records', 'sqlite_autoindex_records_1', '100000 100000 20 1'),
    ('revisions', 'revisions', '100000 100000 20 2 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
