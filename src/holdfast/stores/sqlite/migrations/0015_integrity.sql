-- Whether a checkpoint is final is said by the journal: by an entry CHECKPOINT_FINALIZED that names
-- its id, and by no index row. What the journal tells of a checkpoint is found by that id, which is
-- the first fact of such entries (a link's second one): MessagePack, after an array's head and a
-- binary's.
CREATE INDEX journal_told ON journal (tenant, substr(facts, 4, 16), kind, seq)
    WHERE kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_DELETED');
CREATE INDEX journal_linked ON journal (tenant, substr(facts, 22, 16), seq)
    WHERE kind = 'CHECKPOINT_LINKED';
-- Of checkpoints themselves only those that tell of a record: the last fact of all others is nil.
CREATE INDEX journal_told_created ON journal (tenant, substr(facts, 4, 16))
    WHERE kind = 'CHECKPOINT_CREATED' AND substr(facts, -1) <> x'c0';
-- What takes rows and bodies away, on the record.
CREATE INDEX journal_tombstones ON journal (tenant, run_id, seq)
    WHERE kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED', 'BODIES_ERASED');

-- Checkpoints as before, and where the entry of each one's parent lies.
DROP VIEW told_checkpoints;
CREATE VIEW told_checkpoints AS
SELECT c.tenant, c.run_id, c.version, c.seq, c.checkpoint_id, c.parent, c.base_seq, c.created_at,
       c.phase, c.agent, c.status, c.label, r.agent_type, r.phase AS told_phase,
       r.status AS told_status, r.summary, r.words, r.revision, r.revised_seq, r.final_seq,
       r.linked,
       (SELECT p.checkpoint_id FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_id,
       (SELECT p.seq FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_seq
FROM checkpoints c
LEFT JOIN records r ON r.tenant = c.tenant AND r.run_id = c.run_id AND r.version = c.version;

DROP TRIGGER final_record_gone;
DROP TRIGGER final_checkpoint_changed;
DROP TRIGGER final_checkpoint_gone;
DROP TRIGGER final_revision_changed;
DROP TRIGGER final_revision_gone;
DROP TRIGGER final_entry_changed;
DROP TRIGGER final_entry_gone;
DROP TRIGGER final_body_changed;
DROP TRIGGER final_body_gone;
DROP VIEW final_entries;

CREATE VIEW final_checkpoints (tenant, checkpoint_id) AS
SELECT tenant, substr(facts, 4, 16)
FROM journal
WHERE kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_DELETED')
  AND kind = 'CHECKPOINT_FINALIZED';

CREATE VIEW final_versions (tenant, run_id, version) AS
SELECT c.tenant, c.run_id, c.version
FROM checkpoints c
WHERE EXISTS (SELECT 1 FROM final_checkpoints f
              WHERE f.tenant = c.tenant AND f.checkpoint_id = c.checkpoint_id);

CREATE TRIGGER final_record_gone BEFORE DELETE ON records
WHEN EXISTS (SELECT 1 FROM final_versions
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
-- Where its loading begins may change: what is loaded does not.
CREATE TRIGGER final_checkpoint_changed
BEFORE UPDATE OF tenant, run_id, version, seq, checkpoint_id, parent, created_at, phase, agent,
                 status, label ON checkpoints
WHEN EXISTS (SELECT 1 FROM final_versions
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_checkpoint_gone BEFORE DELETE ON checkpoints
WHEN EXISTS (SELECT 1 FROM final_versions
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_revision_changed BEFORE UPDATE ON revisions
WHEN EXISTS (SELECT 1 FROM final_versions
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_revision_gone BEFORE DELETE ON revisions
WHEN EXISTS (SELECT 1 FROM final_versions
             WHERE tenant = OLD.tenant AND run_id = OLD.run_id AND version = OLD.version)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_entry_changed BEFORE UPDATE ON journal
WHEN OLD.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED',
                  'CHECKPOINT_LINKED')
     AND EXISTS (SELECT 1 FROM final_checkpoints
                 WHERE tenant = OLD.tenant
                   AND checkpoint_id = CASE OLD.kind
                       WHEN 'CHECKPOINT_LINKED' THEN substr(OLD.facts, 22, 16)
                       ELSE substr(OLD.facts, 4, 16) END)
     AND NOT EXISTS (SELECT 1 FROM removals WHERE tenant = OLD.tenant AND run_id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_entry_gone BEFORE DELETE ON journal
WHEN OLD.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED',
                  'CHECKPOINT_LINKED')
     AND EXISTS (SELECT 1 FROM final_checkpoints
                 WHERE tenant = OLD.tenant
                   AND checkpoint_id = CASE OLD.kind
                       WHEN 'CHECKPOINT_LINKED' THEN substr(OLD.facts, 22, 16)
                       ELSE substr(OLD.facts, 4, 16) END)
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_body_changed BEFORE UPDATE ON bodies
WHEN EXISTS (SELECT 1 FROM journal j
             JOIN final_checkpoints f ON f.tenant = j.tenant
                  AND f.checkpoint_id = substr(j.facts, 4, 16)
             WHERE j.id = OLD.id
               AND j.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED'))
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;
CREATE TRIGGER final_body_gone BEFORE DELETE ON bodies
WHEN EXISTS (SELECT 1 FROM journal j
             JOIN final_checkpoints f ON f.tenant = j.tenant
                  AND f.checkpoint_id = substr(j.facts, 4, 16)
             WHERE j.id = OLD.id
               AND j.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED')
               AND NOT EXISTS (SELECT 1 FROM removals
                               WHERE tenant = j.tenant AND run_id = j.run_id))
BEGIN
    SELECT RAISE(ABORT, 'holdfast: this checkpoint is final');
END;

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('journal', 'journal_told', '100000 100000 2 2 1'),
    ('journal', 'journal_linked', '100000 100000 2 1'),
    ('journal', 'journal_told_created', '100000 100000 1'),
    ('journal', 'journal_tombstones', '1000 1000 2 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
