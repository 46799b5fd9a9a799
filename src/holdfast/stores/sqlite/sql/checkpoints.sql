-- name: add_checkpoint
-- A checkpoint's row, in the commit of its entry.
INSERT INTO checkpoints (tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at,
                         phase, agent, status, label)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT DO NOTHING;

-- name: get_checkpoint
-- One version of a run.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND run_id = ?2 AND version = ?3;

-- name: get_checkpoint_by_id
-- One checkpoint by its id.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND checkpoint_id = ?2;

-- name: list_checkpoints
-- A page of a run's versions, newest first, below the version given.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND run_id = ?2 AND version < ?3
ORDER BY version DESC
LIMIT ?4;

-- name: search_checkpoints
-- A page of checkpoints over all runs, newest first, below the id given; NULL means any.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2
  AND (?4 IS NULL OR run_id = ?4)
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR phase = ?6)
  AND (?7 IS NULL OR status = ?7)
  AND (?8 IS NULL OR label = ?8)
  AND (?9 IS NULL OR created_at >= ?9)
  AND (?10 IS NULL OR created_at < ?10)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_checkpoints_of_run
-- The same for those of one run.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND run_id = ?4
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR phase = ?6)
  AND (?7 IS NULL OR status = ?7)
  AND (?8 IS NULL OR label = ?8)
  AND (?9 IS NULL OR created_at >= ?9)
  AND (?10 IS NULL OR created_at < ?10)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_checkpoints_by_agent
-- The same for those of one agent.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND agent = ?5 AND agent <> ''
  AND (?4 IS NULL OR run_id = ?4)
  AND (?6 IS NULL OR phase = ?6)
  AND (?7 IS NULL OR status = ?7)
  AND (?8 IS NULL OR label = ?8)
  AND (?9 IS NULL OR created_at >= ?9)
  AND (?10 IS NULL OR created_at < ?10)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: search_checkpoints_by_label
-- The same for those with one label.
SELECT tenant, run_id, version, seq, checkpoint_id, parent, base_seq, created_at, phase, agent,
       status, label
FROM checkpoints
WHERE tenant = ?1 AND checkpoint_id < ?2 AND label = ?8 AND label <> ''
  AND (?4 IS NULL OR run_id = ?4)
  AND (?5 IS NULL OR agent = ?5)
  AND (?6 IS NULL OR phase = ?6)
  AND (?7 IS NULL OR status = ?7)
  AND (?9 IS NULL OR created_at >= ?9)
  AND (?10 IS NULL OR created_at < ?10)
ORDER BY checkpoint_id DESC
LIMIT ?3;

-- name: delete_checkpoint_rows
-- SQLite only, because a function of PostgreSQL does it with those of records. Forget a run's
-- rows before they are rebuilt from the journal.
DELETE FROM checkpoints WHERE tenant = ?1 AND run_id = ?2;

-- name: drop_checkpoints
-- Forget the rows of versions, from and to, in the commit of their tombstone.
DELETE FROM checkpoints WHERE tenant = ?1 AND run_id = ?2 AND version BETWEEN ?3 AND ?4;

-- name: move_base
-- Let the loading of a version begin at another base.
UPDATE checkpoints SET base_seq = ?4 WHERE tenant = ?1 AND run_id = ?2 AND version = ?3;
