-- name: add_mark
-- What a checkpoint is called, in the commit of its entry; nothing is stored for a name that was
-- used.
INSERT INTO marks (tenant, run_id, space, name, version, parent, created_at, tags)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING;

-- name: drop_writes
-- Forget where the writes of marks lie, in the commit that drops their versions, from and to.
DELETE FROM writes
WHERE tenant = ?1 AND run_id = ?2
  AND (space, name) IN (
      SELECT space, name FROM marks
      WHERE tenant = ?1 AND run_id = ?2 AND version BETWEEN ?3 AND ?4
  );

-- name: drop_marks
-- Forget the marks of versions, from and to, in the commit that drops them.
DELETE FROM marks WHERE tenant = ?1 AND run_id = ?2 AND version BETWEEN ?3 AND ?4;

-- name: get_mark
-- One mark of a run by its name.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND run_id = ?2 AND space = ?3 AND name = ?4;

-- name: get_latest_mark
-- The mark of the newest version in a space of a run.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND run_id = ?2 AND space = ?3
ORDER BY version DESC
LIMIT 1;

-- name: list_marks_of_run
-- All marks of a run, the oldest version first.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND run_id = ?2
ORDER BY version;

-- name: page_marks_of_space
-- A page of the marks in a space of a run, newest version first; NULL means any.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND run_id = ?7 AND space = ?8 AND version < ?2
  AND (?3 IS NULL OR name < ?3)
  AND (?5 IS NULL OR name = ?5)
  AND (?6 IS NULL OR holdfast_tags_match(tags, ?6))
ORDER BY version DESC
LIMIT ?4;

-- name: page_marks_of_run
-- The same over all spaces of a run.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND run_id = ?7 AND version < ?2
  AND (?3 IS NULL OR name < ?3)
  AND (?5 IS NULL OR name = ?5)
  AND (?6 IS NULL OR holdfast_tags_match(tags, ?6))
ORDER BY version DESC
LIMIT ?4;

-- name: page_marks
-- A page of marks over all runs, from the last name on; NULL means any.
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks
WHERE tenant = ?1 AND version < ?2
  AND (?3 IS NULL OR name < ?3)
  AND (?5 IS NULL OR name = ?5)
  AND (?6 IS NULL OR holdfast_tags_match(tags, ?6))
  AND (?7 IS NULL OR space = ?7)
ORDER BY name DESC, run_id, version
LIMIT ?4;

-- name: list_tagged_marks
-- Marks over all runs that match one of the tags wanted (a JSON array of objects).
SELECT tenant, run_id, space, name, version, parent, created_at, tags,
       seq, at, facts
FROM proven_marks m
WHERE tenant = ?1
  AND EXISTS (SELECT 1 FROM json_each(?2) AS w WHERE holdfast_tags_match(m.tags, w.value))
ORDER BY run_id, version;

-- name: list_idle_runs
-- Runs of an agent that have marks, all of them made before a moment, and that nobody works on or
-- waits in; the oldest run first.
SELECT r.run_id
FROM runs r
WHERE r.tenant = ?1 AND r.agent = ?2 AND r.created_at < ?3 AND r.status <> 'running'
  AND EXISTS (SELECT 1 FROM marks m WHERE m.tenant = ?1 AND m.run_id = r.run_id)
  AND NOT EXISTS (SELECT 1 FROM marks m
                  WHERE m.tenant = ?1 AND m.run_id = r.run_id AND m.created_at >= ?3)
  AND NOT EXISTS (SELECT 1 FROM waits w
                  WHERE w.tenant = ?1 AND w.run_id = r.run_id AND w.status = 'open')
ORDER BY r.created_at, r.run_id
LIMIT ?4;

-- name: delete_mark_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM marks WHERE tenant = ?1 AND run_id = ?2;
