-- name: add_checkpoint
-- Part of a commit. Checkpoints' rows, in the commit of their entries.
INSERT INTO checkpoints (tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at,
                         phase, agent, status, label)
SELECT :tenant, c.run_id, c.version, c.seq, c.checkpoint_id, c.parent, c.base_seq, c.created_at,
       c.phase, c.agent, c.status, c.label
FROM json_to_recordset(:checkpoints)
     AS c (run_id text, version bigint, seq bigint, checkpoint_id uuid, parent bigint,
           base_seq bigint, created_at bigint, phase text, agent text, status text, label text)
WHERE (c.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING;

-- name: get_checkpoint
-- One version of a run.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND run_id = $2 AND version = $3;

-- name: get_checkpoint_by_id
-- One checkpoint by its id.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND checkpoint_id = $2;

-- name: list_checkpoints
-- A page of a run's versions, newest first, below the version given.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND run_id = $2 AND version < $3
ORDER BY version DESC
LIMIT $4;

-- name: search_checkpoints
-- A page of checkpoints over all runs, newest first, below the id given; NULL means any.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND checkpoint_id < $2
  AND ($4::text IS NULL OR run_id = $4)
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR phase = $6)
  AND ($7::text IS NULL OR status = $7)
  AND ($8::text IS NULL OR label = $8)
  AND ($9::bigint IS NULL OR created_at >= $9)
  AND ($10::bigint IS NULL OR created_at < $10)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_checkpoints_of_run
-- The same for those of one run. They are found first, else all of the tenant might be gone through for
-- the order.
WITH own AS MATERIALIZED (
    SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
           status, label
    FROM checkpoints
    WHERE tenant = $1 AND run_id = $4
)
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM own
WHERE checkpoint_id < $2
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR phase = $6)
  AND ($7::text IS NULL OR status = $7)
  AND ($8::text IS NULL OR label = $8)
  AND ($9::bigint IS NULL OR created_at >= $9)
  AND ($10::bigint IS NULL OR created_at < $10)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_checkpoints_by_agent
-- The same for those of one agent.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND checkpoint_id < $2 AND agent = $5 AND agent <> ''
  AND ($4::text IS NULL OR run_id = $4)
  AND ($6::text IS NULL OR phase = $6)
  AND ($7::text IS NULL OR status = $7)
  AND ($8::text IS NULL OR label = $8)
  AND ($9::bigint IS NULL OR created_at >= $9)
  AND ($10::bigint IS NULL OR created_at < $10)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: search_checkpoints_by_label
-- The same for those with one label.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = $1 AND checkpoint_id < $2 AND label = $8 AND label <> ''
  AND ($4::text IS NULL OR run_id = $4)
  AND ($5::text IS NULL OR agent = $5)
  AND ($6::text IS NULL OR phase = $6)
  AND ($7::text IS NULL OR status = $7)
  AND ($9::bigint IS NULL OR created_at >= $9)
  AND ($10::bigint IS NULL OR created_at < $10)
ORDER BY checkpoint_id DESC
LIMIT $3;

-- name: drop_checkpoints
-- Part of a commit. Forget the rows of versions, from and to, in the commit of their tombstone.
DELETE FROM checkpoints c
USING json_to_recordset(:dropped_versions) AS n (run_id text, first bigint, last bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND c.tenant = :tenant AND c.run_id = n.run_id AND c.version BETWEEN n.first AND n.last;

-- name: move_base
-- Part of a commit. Let the loading of versions begin at other bases.
UPDATE checkpoints c
SET base_seq = n.base_seq
FROM json_to_recordset(:moved_bases) AS n (run_id text, version bigint, base_seq bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND c.tenant = :tenant AND c.run_id = n.run_id AND c.version = n.version;
