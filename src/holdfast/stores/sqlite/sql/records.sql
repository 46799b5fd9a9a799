-- name: put_record
-- What is told of a version's record, in the commit of its entry; NULL leaves a column as it is.
INSERT INTO records (tenant, run_id, version, agent_type, phase, status, summary, words, revision,
                     revised_seq, final_seq, linked)
VALUES (?1, ?2, ?3, coalesce(?4, ''), coalesce(?5, ''), coalesce(?6, ''), coalesce(?7, ''),
        coalesce(?8, ''), coalesce(?9, 1), coalesce(?10, 0), coalesce(?11, 0), coalesce(?12, ''))
ON CONFLICT (tenant, run_id, version) DO UPDATE SET
    agent_type = coalesce(?4, agent_type),
    phase = coalesce(?5, phase),
    status = coalesce(?6, status),
    summary = coalesce(?7, summary),
    words = coalesce(?8, words),
    revision = coalesce(?9, revision),
    revised_seq = coalesce(?10, revised_seq),
    final_seq = coalesce(?11, final_seq),
    linked = coalesce(?12, linked);

-- name: add_revision
-- Where a revision of a record lies, in the commit of its entry.
INSERT INTO revisions (tenant, run_id, version, revision, seq)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO NOTHING;

-- name: drop_records
-- Forget the records of versions, from and to, in the commit of their tombstone.
DELETE FROM records WHERE tenant = ?1 AND run_id = ?2 AND version BETWEEN ?3 AND ?4;

-- name: drop_revisions
-- Forget where their revisions lie.
DELETE FROM revisions WHERE tenant = ?1 AND run_id = ?2 AND version BETWEEN ?3 AND ?4;

-- name: permit_removal
-- SQLite only, because PostgreSQL goes by the entry that says so. What is final may go with its
-- run, within this transaction: it is rebuilt, or erased on the record.
INSERT INTO removals (tenant, run_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: forbid_removal
-- SQLite only, because a setting of PostgreSQL ends with its transaction.
DELETE FROM removals WHERE tenant = ?1 AND run_id = ?2;

-- name: get_checkpoint_record
-- One checkpoint by its id, and its record's row if it has one.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND checkpoint_id = ?2;

-- name: list_checkpoint_records
-- A page of a run's versions with their records' rows, newest first, below the version given.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND run_id = ?2 AND version < ?3
ORDER BY version DESC
LIMIT ?4;

-- name: search_records
-- A page of checkpoints over all runs with their records' rows, newest first, below the id given;
-- NULL means any.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2
  AND (?4 IS NULL OR run_id = ?4)
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR coalesce(agent_type, '') = ?6)
  AND (?7 IS NULL OR coalesce(nullif(told_phase, ''), phase) = ?7)
  AND (?8 IS NULL OR coalesce(nullif(told_status, ''), status) = ?8)
  AND (?9 IS NULL OR label = ?9)
  AND (?10 IS NULL OR created_at >= ?10)
  AND (?11 IS NULL OR created_at < ?11)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_records_of_run
-- The same for those of one run.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND run_id = ?4
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR coalesce(agent_type, '') = ?6)
  AND (?7 IS NULL OR coalesce(nullif(told_phase, ''), phase) = ?7)
  AND (?8 IS NULL OR coalesce(nullif(told_status, ''), status) = ?8)
  AND (?9 IS NULL OR label = ?9)
  AND (?10 IS NULL OR created_at >= ?10)
  AND (?11 IS NULL OR created_at < ?11)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_records_by_agent
-- The same for those of one agent.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND agent = ?5 AND agent <> ''
  AND (?4 IS NULL OR run_id = ?4)
  AND (?6 IS NULL OR coalesce(agent_type, '') = ?6)
  AND (?7 IS NULL OR coalesce(nullif(told_phase, ''), phase) = ?7)
  AND (?8 IS NULL OR coalesce(nullif(told_status, ''), status) = ?8)
  AND (?9 IS NULL OR label = ?9)
  AND (?10 IS NULL OR created_at >= ?10)
  AND (?11 IS NULL OR created_at < ?11)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_records_by_label
-- The same for those with one label.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND label = ?9 AND label <> ''
  AND (?4 IS NULL OR run_id = ?4)
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR coalesce(agent_type, '') = ?6)
  AND (?7 IS NULL OR coalesce(nullif(told_phase, ''), phase) = ?7)
  AND (?8 IS NULL OR coalesce(nullif(told_status, ''), status) = ?8)
  AND (?10 IS NULL OR created_at >= ?10)
  AND (?11 IS NULL OR created_at < ?11)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_records_by_words
-- The same for those whose summary has all of these words.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM (SELECT r.run_id AS found_in, r.version AS found_at
      FROM record_words
      CROSS JOIN records r ON r.id = record_words.rowid
      WHERE record_words MATCH ?12 AND r.tenant = ?1)
CROSS JOIN told_checkpoints ON run_id = found_in AND version = found_at
WHERE tenant = ?1 AND checkpoint_id < ?2
  AND (?4 IS NULL OR run_id = ?4)
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR coalesce(agent_type, '') = ?6)
  AND (?7 IS NULL OR coalesce(nullif(told_phase, ''), phase) = ?7)
  AND (?8 IS NULL OR coalesce(nullif(told_status, ''), status) = ?8)
  AND (?9 IS NULL OR label = ?9)
  AND (?10 IS NULL OR created_at >= ?10)
  AND (?11 IS NULL OR created_at < ?11)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: list_records
-- The rows of a run's records, in order.
SELECT tenant, run_id, version, agent_type, phase, status, summary, words, revision, revised_seq,
       final_seq, linked
FROM records
WHERE tenant = ?1 AND run_id = ?2
ORDER BY version;

-- name: list_revisions
-- Where the revisions of a run's records lie, in order.
SELECT tenant, run_id, version, revision, seq
FROM revisions
WHERE tenant = ?1 AND run_id = ?2
ORDER BY version, revision;

-- name: get_revision
-- Where one revision of a record lies.
SELECT tenant, run_id, version, revision, seq
FROM revisions
WHERE tenant = ?1 AND run_id = ?2 AND version = ?3 AND revision = ?4;

-- name: delete_record_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM records WHERE tenant = ?1 AND run_id = ?2;

-- name: delete_revision_rows
-- SQLite only, because a function of PostgreSQL does it with those of records. Forget a run's
-- rows before they are rebuilt from the journal.
DELETE FROM revisions WHERE tenant = ?1 AND run_id = ?2;
