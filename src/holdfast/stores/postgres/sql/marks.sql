-- name: add_mark
-- Part of a commit. What checkpoints are called, in the commit of their entries. One whose name was
-- used is left out: the commit is refused for it.
INSERT INTO marks (tenant, run_id, space, name, version, parent, created_at, tags)
SELECT :tenant, m.run_id, m.space, decode(m.name, 'base64'), m.version,
       decode(m.parent, 'base64'), m.created_at, m.tags::json
FROM json_to_recordset(:marks)
     AS m (run_id text, space text, name text, version bigint, parent text,
           created_at bigint, tags text)
WHERE (m.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING
RETURNING run_id, version::text AS item;

-- name: drop_writes
-- Part of a commit. Forget where the writes of marks lie, in the commit that drops their versions,
-- from and to.
DELETE FROM writes w
USING json_to_recordset(:dropped_versions) AS n (run_id text, first bigint, last bigint)
JOIN marks m ON m.tenant = :tenant AND m.run_id = n.run_id AND m.version BETWEEN n.first AND n.last
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND w.tenant = :tenant AND w.run_id = m.run_id AND w.space = m.space AND w.name = m.name;

-- name: drop_marks
-- Part of a commit. Forget the marks of versions, from and to, in the commit that drops them.
DELETE FROM marks m
USING json_to_recordset(:dropped_versions) AS n (run_id text, first bigint, last bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND m.tenant = :tenant AND m.run_id = n.run_id AND m.version BETWEEN n.first AND n.last;

-- name: get_mark
-- One mark of a run by its name.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND run_id = $2 AND space = $3 AND name = $4;

-- name: get_latest_mark
-- The mark of the newest version in a space of a run.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND run_id = $2 AND space = $3
ORDER BY version DESC
LIMIT 1;

-- name: list_marks_of_run
-- All marks of a run, the oldest version first.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND run_id = $2
ORDER BY version;

-- name: page_marks_of_space
-- A page of the marks in a space of a run, newest version first; NULL means any.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND run_id = $7 AND space = $8 AND version < $2
  AND ($3::bytea IS NULL OR name < $3)
  AND ($5::bytea IS NULL OR name = $5)
  AND ($6::jsonb IS NULL OR NOT EXISTS (
      SELECT 1 FROM jsonb_each($6::jsonb) AS w
      WHERE coalesce(tags::jsonb -> w.key, 'null') <> w.value
  ))
ORDER BY version DESC
LIMIT $4;

-- name: page_marks_of_run
-- The same over all spaces of a run.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND run_id = $7 AND version < $2
  AND ($3::bytea IS NULL OR name < $3)
  AND ($5::bytea IS NULL OR name = $5)
  AND ($6::jsonb IS NULL OR NOT EXISTS (
      SELECT 1 FROM jsonb_each($6::jsonb) AS w
      WHERE coalesce(tags::jsonb -> w.key, 'null') <> w.value
  ))
ORDER BY version DESC
LIMIT $4;

-- name: page_marks
-- A page of marks over all runs, from the last name on; NULL means any.
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1 AND version < $2
  AND ($3::bytea IS NULL OR name < $3)
  AND ($5::bytea IS NULL OR name = $5)
  AND ($6::jsonb IS NULL OR NOT EXISTS (
      SELECT 1 FROM jsonb_each($6::jsonb) AS w
      WHERE coalesce(tags::jsonb -> w.key, 'null') <> w.value
  ))
  AND ($7::text IS NULL OR space = $7)
ORDER BY name DESC, run_id, version
LIMIT $4;

-- name: list_tagged_marks
-- Marks over all runs that match one of the tags wanted (a JSON array of objects).
SELECT tenant, run_id, space, name, version, parent, created_at, tags::text,
       seq, at, facts
FROM proven_marks
WHERE tenant = $1
  AND EXISTS (
      SELECT 1 FROM jsonb_array_elements($2::jsonb) AS o
      WHERE NOT EXISTS (
          SELECT 1 FROM jsonb_each(o.value) AS w
          WHERE coalesce(tags::jsonb -> w.key, 'null') <> w.value
      )
  )
ORDER BY run_id, version;

-- name: list_idle_runs
-- Runs of an agent that have marks, all of them made before a moment, and that nobody works on or
-- waits in; the oldest run first.
SELECT r.run_id
FROM runs r
WHERE r.tenant = $1 AND r.agent = $2 AND r.created_at < $3 AND r.status <> 'running'
  AND EXISTS (SELECT 1 FROM marks m WHERE m.tenant = $1 AND m.run_id = r.run_id)
  AND NOT EXISTS (SELECT 1 FROM marks m
                  WHERE m.tenant = $1 AND m.run_id = r.run_id AND m.created_at >= $3)
  AND NOT EXISTS (SELECT 1 FROM waits w
                  WHERE w.tenant = $1 AND w.run_id = r.run_id AND w.status = 'open')
ORDER BY r.created_at, r.run_id
LIMIT $4;

-- name: delete_mark_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM marks WHERE tenant = $1 AND run_id = $2;
