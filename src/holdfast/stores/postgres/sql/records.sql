-- name: put_record
-- Part of a commit. What is told of versions' records; NULL leaves a column as it is.
INSERT INTO records AS r (tenant, run_id, version, agent_type, phase, status, summary, words,
                          revision, revised_seq, final_seq, linked)
SELECT :tenant, n.run_id, n.version, coalesce(n.agent_type, o.agent_type, ''),
       coalesce(n.phase, o.phase, ''), coalesce(n.status, o.status, ''),
       coalesce(n.summary, o.summary, ''), coalesce(n.words, o.words, ''),
       coalesce(n.revision, o.revision, 1), coalesce(n.revised_seq, o.revised_seq, 0),
       coalesce(n.final_seq, o.final_seq, 0), coalesce(n.linked, o.linked, '')
FROM json_to_recordset(:records)
     AS n (run_id text, version bigint, agent_type text, phase text, status text, summary text,
           words text, revision bigint, revised_seq bigint, final_seq bigint, linked text)
LEFT JOIN records o ON o.tenant = :tenant AND o.run_id = n.run_id AND o.version = n.version
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT (tenant, run_id, version) DO UPDATE SET
    agent_type = EXCLUDED.agent_type, phase = EXCLUDED.phase, status = EXCLUDED.status,
    summary = EXCLUDED.summary, words = EXCLUDED.words, revision = EXCLUDED.revision,
    revised_seq = EXCLUDED.revised_seq, final_seq = EXCLUDED.final_seq, linked = EXCLUDED.linked;

-- name: add_revision
-- Part of a commit. Where revisions of records lie.
INSERT INTO revisions (tenant, run_id, version, revision, seq)
SELECT :tenant, n.run_id, n.version, n.revision, n.seq
FROM json_to_recordset(:revisions)
     AS n (run_id text, version bigint, revision bigint, seq bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING;

-- name: drop_records
-- Part of a commit. Forget the records of versions, from and to, in the commit of their tombstone.
DELETE FROM records r
USING json_to_recordset(:dropped_versions) AS n (run_id text, first bigint, last bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND r.tenant = :tenant AND r.run_id = n.run_id AND r.version BETWEEN n.first AND n.last;

-- name: drop_revisions
-- Part of a commit. Forget where their revisions lie.
DELETE FROM revisions v
USING json_to_recordset(:dropped_versions) AS n (run_id text, first bigint, last bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND v.tenant = :tenant AND v.run_id = n.run_id AND v.version BETWEEN n.first AND n.last;

-- name: get_checkpoint_record
-- One checkpoint by its id, and its record's row if it has one.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND checkpoint_id = $2;

-- name: list_checkpoint_records
-- A page of a run's versions with their records' rows, newest first, below the version given.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND run_id = $2 AND version < $3
ORDER BY version DESC
LIMIT $4;

-- name: search_records
-- A page of checkpoints over all runs with their records' rows, newest first, below the id given;
-- NULL means any.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND checkpoint_id < $2
  AND ($4::text IS NULL OR run_id = $4)
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR coalesce(agent_type, '') = $6)
  AND ($7::text IS NULL OR coalesce(nullif(told_phase, ''), phase) = $7)
  AND ($8::text IS NULL OR coalesce(nullif(told_status, ''), status) = $8)
  AND ($9::text IS NULL OR label = $9)
  AND ($10::bigint IS NULL OR created_at >= $10)
  AND ($11::bigint IS NULL OR created_at < $11)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_records_of_run
-- The same for those of one run. They are found first, else all of the tenant might be gone through for
-- the order.
WITH own AS MATERIALIZED (
    SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
           status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
           final_seq, linked, parent_id, parent_seq
    FROM told_checkpoints
    WHERE tenant = $1 AND run_id = $4
)
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM own
WHERE checkpoint_id < $2
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR coalesce(agent_type, '') = $6)
  AND ($7::text IS NULL OR coalesce(nullif(told_phase, ''), phase) = $7)
  AND ($8::text IS NULL OR coalesce(nullif(told_status, ''), status) = $8)
  AND ($9::text IS NULL OR label = $9)
  AND ($10::bigint IS NULL OR created_at >= $10)
  AND ($11::bigint IS NULL OR created_at < $11)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_records_by_agent
-- The same for those of one agent.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND checkpoint_id < $2 AND agent = $5 AND agent <> ''
  AND ($4::text IS NULL OR run_id = $4)
  AND ($6::text IS NULL OR coalesce(agent_type, '') = $6)
  AND ($7::text IS NULL OR coalesce(nullif(told_phase, ''), phase) = $7)
  AND ($8::text IS NULL OR coalesce(nullif(told_status, ''), status) = $8)
  AND ($9::text IS NULL OR label = $9)
  AND ($10::bigint IS NULL OR created_at >= $10)
  AND ($11::bigint IS NULL OR created_at < $11)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_records_by_label
-- The same for those with one label.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND checkpoint_id < $2 AND label = $9 AND label <> ''
  AND ($4::text IS NULL OR run_id = $4)
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR coalesce(agent_type, '') = $6)
  AND ($7::text IS NULL OR coalesce(nullif(told_phase, ''), phase) = $7)
  AND ($8::text IS NULL OR coalesce(nullif(told_status, ''), status) = $8)
  AND ($10::bigint IS NULL OR created_at >= $10)
  AND ($11::bigint IS NULL OR created_at < $11)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_records_by_words
-- The same for those whose summary has all of these words.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label, agent_type, told_phase, told_status, summary, words, revision, revised_seq,
       final_seq, linked, parent_id, parent_seq
FROM told_checkpoints
WHERE tenant = $1 AND checkpoint_id < $2
  AND words <> '' AND to_tsvector('simple', words) @@ plainto_tsquery('simple', $12)
  AND ($4::text IS NULL OR run_id = $4)
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR coalesce(agent_type, '') = $6)
  AND ($7::text IS NULL OR coalesce(nullif(told_phase, ''), phase) = $7)
  AND ($8::text IS NULL OR coalesce(nullif(told_status, ''), status) = $8)
  AND ($9::text IS NULL OR label = $9)
  AND ($10::bigint IS NULL OR created_at >= $10)
  AND ($11::bigint IS NULL OR created_at < $11)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: list_records
-- The rows of a run's records, in order.
SELECT tenant, run_id, version, agent_type, phase, status, summary, words, revision, revised_seq,
       final_seq, linked
FROM records
WHERE tenant = $1 AND run_id = $2
ORDER BY version;

-- name: list_revisions
-- Where the revisions of a run's records lie, in order.
SELECT tenant, run_id, version, revision, seq
FROM revisions
WHERE tenant = $1 AND run_id = $2
ORDER BY version, revision;

-- name: get_revision
-- Where one revision of a record lies.
SELECT tenant, run_id, version, revision, seq
FROM revisions
WHERE tenant = $1 AND run_id = $2 AND version = $3 AND revision = $4;

-- name: delete_record_rows
-- Forget a run's rows of checkpoints and records, of final ones too, before they are rebuilt from the
-- journal: with the rights of the tables' owner.
SELECT holdfast_forget_rows($1, $2);
