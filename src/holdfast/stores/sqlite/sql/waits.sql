-- name: add_group
-- Waits that were opened together.
INSERT INTO wait_groups (tenant, run_id, group_id, need, total, resolved, failed, status, closed_seq)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO NOTHING;

-- name: add_wait
-- A wait's row, in the commit of the entry that opens it.
INSERT INTO waits (tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq,
                   opened_at, result_seq, settled_by, settled_at, duplicates, progress_at, address,
                   patience, claimed_by, claimed_until, progress)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
        ?17, ?18, ?19, ?20)
ON CONFLICT DO NOTHING;

-- name: settle_wait_once
-- What became of a wait; nothing is changed unless it is open.
UPDATE waits
SET status = ?3, result_seq = ?4, settled_by = ?5, settled_at = ?6
WHERE tenant = ?1 AND wait_id = ?2 AND status = 'open';

-- name: count_group
-- Add settled waits to a group's counts.
UPDATE wait_groups
SET resolved = resolved + ?4, failed = failed + ?5
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3;

-- name: close_group
-- SQLite only, because PostgreSQL counts and closes in one statement. Fix a group's outcome.
UPDATE wait_groups
SET status = ?4, closed_seq = ?5
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3 AND status = 'open';

-- name: cancel_waits_of_group
-- Cancel the waits that a closed group no longer needs.
UPDATE waits
SET status = 'cancelled', result_seq = ?4, settled_by = ?5, settled_at = ?6
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3 AND status = 'open';

-- name: cancel_groups_of_run
-- Close every open group of a run that has ended.
UPDATE wait_groups
SET status = 'cancelled', closed_seq = ?3
WHERE tenant = ?1 AND run_id = ?2 AND status = 'open';

-- name: cancel_waits_of_run
-- Cancel every open wait of a run that has ended.
UPDATE waits
SET status = 'cancelled', result_seq = ?3, settled_by = ?4, settled_at = ?5
WHERE tenant = ?1 AND run_id = ?2 AND status = 'open';

-- name: note_duplicate
-- Count a reply that came after a wait was settled.
UPDATE waits
SET duplicates = duplicates + 1
WHERE tenant = ?1 AND wait_id = ?2;

-- name: extend_open_wait
-- Move an open wait's deadline, because its peer gave a sign of life.
UPDATE waits
SET deadline = ?3, progress_at = ?4, progress = iif(?5 = '', progress, ?5)
WHERE tenant = ?1 AND wait_id = ?2 AND status = 'open';

-- name: claim_open_wait
-- Keep an open wait for whoever is about to answer it.
UPDATE waits
SET claimed_by = ?3, claimed_until = ?4
WHERE tenant = ?1 AND wait_id = ?2 AND status = 'open';

-- name: get_wait
-- One wait.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND wait_id = ?2;

-- name: get_group
-- One group, and what its row is compared with.
SELECT tenant, run_id, group_id, need, total, resolved, failed, status, closed_seq,
       opening, open_now, resolved_now, failed_now, closing_kind, closing
FROM counted_groups
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3;

-- name: list_groups
-- A run's groups.
SELECT tenant, run_id, group_id, need, total, resolved, failed, status, closed_seq
FROM wait_groups
WHERE tenant = ?1 AND run_id = ?2
ORDER BY group_id;

-- name: list_waits
-- A run's waits.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND run_id = ?2
ORDER BY group_id, wait_id;

-- name: list_waits_of_group
-- The waits of one group, as they were opened.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3
ORDER BY wait_id;

-- name: list_waits_for_call
-- The open waits that joined a call which was made before.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND address = ?2 AND status = 'open' AND address LIKE 'call:%'
ORDER BY wait_id;

-- name: list_open_questions
-- What people are asked over all runs, the oldest first.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND status = 'open' AND kind IN ('question', 'approval')
  AND (opened_at, wait_id) > (?2, ?3)
ORDER BY opened_at, wait_id
LIMIT ?4;

-- name: list_open_questions_of_owner
-- The same, over the runs of one owner.
SELECT w.tenant, w.wait_id, w.run_id, w.group_id, w.kind, w.name, w.deadline, w.status,
       w.opened_seq, w.opened_at, w.result_seq, w.settled_by, w.settled_at, w.duplicates,
       w.progress_at, w.address, w.patience, w.claimed_by, w.claimed_until, w.progress
FROM waits w
JOIN runs r ON r.tenant = w.tenant AND r.run_id = w.run_id
WHERE w.tenant = ?1 AND w.status = 'open' AND w.kind IN ('question', 'approval')
  AND (w.opened_at, w.wait_id) > (?2, ?3)
  AND r.owner = ?5
ORDER BY w.opened_at, w.wait_id
LIMIT ?4;

-- name: find_due_waits
-- Open waits whose deadline has passed, the earliest first; not those that somebody is about to
-- answer, nor of runs that are damaged or have newer entries than the schema given.
SELECT run_id, wait_id
FROM waits
WHERE tenant = ?1 AND status = 'open' AND deadline > 0 AND deadline <= ?2 AND claimed_until <= ?2
  AND NOT EXISTS (
      SELECT 1 FROM runs r
      WHERE r.tenant = ?1 AND r.run_id = waits.run_id
        AND (r.blocked_reason = 'corruption' OR r.schema > ?4)
  )
ORDER BY deadline, wait_id
LIMIT ?3;

-- name: find_due_waits_of_agents
-- The same, for peers of the runs of some agents only (a JSON array of names).
SELECT run_id, wait_id
FROM waits
WHERE tenant = ?1 AND status = 'open' AND deadline > 0 AND deadline <= ?2 AND claimed_until <= ?2
  AND kind = 'peer'
  AND EXISTS (
      SELECT 1 FROM runs r
      WHERE r.tenant = ?1 AND r.run_id = waits.run_id
        AND r.blocked_reason <> 'corruption' AND r.schema <= ?4
        AND r.agent IN (SELECT value FROM json_each(?5))
  )
ORDER BY deadline, wait_id
LIMIT ?3;

-- name: next_deadline
-- When the next open wait is due after a moment: those before it are expired, or held by a claim.
SELECT min(deadline)
FROM waits
WHERE tenant = ?1 AND status = 'open' AND deadline > 0 AND deadline > ?2;

-- name: delete_wait_rows
-- Forget a run's waits before they are rebuilt from the journal.
DELETE FROM waits WHERE tenant = ?1 AND run_id = ?2;

-- name: delete_group_rows
-- Forget a run's groups before they are rebuilt from the journal.
DELETE FROM wait_groups WHERE tenant = ?1 AND run_id = ?2;
