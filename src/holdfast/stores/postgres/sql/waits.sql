-- name: add_group
-- Part of a commit. Waits that were opened together; the commit is refused if the id is taken.
INSERT INTO wait_groups (tenant, run_id, group_id, need, total, resolved, failed, status,
                         closed_seq)
SELECT :tenant, g.run_id, g.group_id, g.need, g.total, g.resolved, g.failed, g.status, g.closed_seq
FROM json_to_recordset(:groups)
     AS g (run_id text, group_id text, need bigint, total bigint, resolved bigint, failed bigint,
           status text, closed_seq bigint)
WHERE (g.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING
RETURNING run_id, group_id AS item;

-- name: add_wait
-- Part of a commit. Waits' rows, in the commit of the entry that opens them; one whose id was used
-- is left out, and the commit is refused for it. Sorted, because ids are shared between runs.
INSERT INTO waits (tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq,
                   opened_at, result_seq, settled_by, settled_at, duplicates, progress_at, address,
                   patience, claimed_by, claimed_until, progress)
SELECT :tenant, w.wait_id, w.run_id, w.group_id, w.kind, w.name, w.deadline, w.status, w.opened_seq,
       w.opened_at, w.result_seq, w.settled_by, w.settled_at, w.duplicates, w.progress_at,
       w.address, w.patience, w.claimed_by, w.claimed_until, w.progress
FROM json_to_recordset(:waits)
     AS w (wait_id text, run_id text, group_id text, kind text, name text, deadline bigint,
           status text, opened_seq bigint, opened_at bigint, result_seq bigint, settled_by text,
           settled_at bigint, duplicates bigint, progress_at bigint, address text,
           patience bigint, claimed_by text, claimed_until bigint, progress text)
WHERE (w.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY w.wait_id COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING run_id, wait_id AS item;

-- name: settle_wait_once
-- Part of a commit. What became of waits; one that is not open is left out, and the commit is
-- refused for it.
UPDATE waits w
SET status = n.status, result_seq = n.seq, settled_by = n.by, settled_at = n.at
FROM json_to_recordset(:settled_waits)
     AS n (run_id text, wait_id text, status text, seq bigint, by text, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND w.tenant = :tenant AND w.wait_id = n.wait_id AND w.status = 'open'
RETURNING n.run_id, n.wait_id AS item;

-- name: count_group
-- Part of a commit. Add settled waits to groups' counts, and close those that are done: one
-- statement can change a row only once, so this is SQLite's close_group as well.
UPDATE wait_groups g
SET resolved = g.resolved + n.resolved,
    failed = g.failed + n.failed,
    status = CASE WHEN g.status = 'open' THEN coalesce(n.status, g.status) ELSE g.status END,
    closed_seq = CASE WHEN g.status = 'open' THEN coalesce(n.seq, g.closed_seq)
                      ELSE g.closed_seq END
FROM json_to_recordset(:counted_groups)
     AS n (run_id text, group_id text, resolved bigint, failed bigint, status text, seq bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND g.tenant = :tenant AND g.run_id = n.run_id AND g.group_id = n.group_id;

-- name: cancel_waits_of_group
-- Part of a commit. Cancel the waits that closed groups no longer need.
UPDATE waits w
SET status = 'cancelled', result_seq = n.seq, settled_by = n.by, settled_at = n.at
FROM json_to_recordset(:closed_groups)
     AS n (run_id text, group_id text, seq bigint, by text, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND w.tenant = :tenant AND w.run_id = n.run_id AND w.group_id = n.group_id AND w.status = 'open';

-- name: cancel_groups_of_run
-- Part of a commit. Close every open group of runs that have ended.
UPDATE wait_groups g
SET status = 'cancelled', closed_seq = n.seq
FROM json_to_recordset(:ended_runs) AS n (run_id text, seq bigint, by text, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND g.tenant = :tenant AND g.run_id = n.run_id AND g.status = 'open';

-- name: cancel_waits_of_run
-- Part of a commit. Cancel every open wait of runs that have ended.
UPDATE waits w
SET status = 'cancelled', result_seq = n.seq, settled_by = n.by, settled_at = n.at
FROM json_to_recordset(:ended_runs) AS n (run_id text, seq bigint, by text, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND w.tenant = :tenant AND w.run_id = n.run_id AND w.status = 'open';

-- name: note_duplicate
-- Count replies that came after waits were settled; an id may be there more than once.
UPDATE waits w
SET duplicates = w.duplicates + n.times
FROM (SELECT wait_id, count(*) AS times FROM unnest($2::text[]) AS u (wait_id) GROUP BY wait_id) n
WHERE w.tenant = $1 AND w.wait_id = n.wait_id;

-- name: extend_open_wait
-- Move an open wait's deadline, because its peer gave a sign of life.
UPDATE waits
SET deadline = $3, progress_at = $4, progress = CASE $5 WHEN '' THEN progress ELSE $5 END
WHERE tenant = $1 AND wait_id = $2 AND status = 'open';

-- name: claim_open_wait
-- Keep an open wait for whoever is about to answer it.
UPDATE waits
SET claimed_by = $3, claimed_until = $4
WHERE tenant = $1 AND wait_id = $2 AND status = 'open';

-- name: get_wait
-- One wait.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND wait_id = $2;

-- name: list_waits_by_id
-- PostgreSQL only. The waits that a batch of decisions looks at, in one round trip.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND wait_id = ANY ($2::text[]);

-- name: get_group
-- One group, and what its row is compared with.
SELECT tenant, run_id, group_id, need, total, resolved, failed, status, closed_seq,
       opening, open_now, resolved_now, failed_now, closing_kind, closing
FROM counted_groups
WHERE tenant = $1 AND run_id = $2 AND group_id = $3;

-- name: list_groups_of_waits
-- PostgreSQL only. The groups of the waits that a batch of decisions looks at, each with what its row is
-- compared with: both are of one moment.
SELECT g.tenant, g.run_id, g.group_id, g.need, g.total, g.resolved, g.failed, g.status, g.closed_seq,
       g.opening, g.open_now, g.resolved_now, g.failed_now, g.closing_kind, g.closing
FROM (SELECT DISTINCT run_id, group_id FROM waits
      WHERE tenant = $1 AND wait_id = ANY ($2::text[])) w
JOIN counted_groups g ON g.tenant = $1 AND g.run_id = w.run_id AND g.group_id = w.group_id;

-- name: list_groups
-- A run's groups.
SELECT tenant, run_id, group_id, need, total, resolved, failed, status, closed_seq
FROM wait_groups
WHERE tenant = $1 AND run_id = $2
ORDER BY group_id;

-- name: list_waits
-- A run's waits.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND run_id = $2
ORDER BY group_id, wait_id;

-- name: list_waits_of_group
-- The waits of one group, as they were opened.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND run_id = $2 AND group_id = $3
ORDER BY wait_id;

-- name: list_waits_for_call
-- The open waits that joined a call which was made before.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND address = $2 AND status = 'open' AND address LIKE 'call:%'
ORDER BY wait_id;

-- name: list_open_questions
-- What people are asked over all runs, the oldest first.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = $1 AND status = 'open' AND kind IN ('question', 'approval')
  AND (opened_at, wait_id) > ($2, $3)
ORDER BY opened_at, wait_id
LIMIT $4;

-- name: list_open_questions_of_owner
-- The same, over the runs of one owner.
SELECT w.tenant, w.wait_id, w.run_id, w.group_id, w.kind, w.name, w.deadline, w.status,
       w.opened_seq, w.opened_at, w.result_seq, w.settled_by, w.settled_at, w.duplicates,
       w.progress_at, w.address, w.patience, w.claimed_by, w.claimed_until, w.progress
FROM waits w
JOIN runs r ON r.tenant = w.tenant AND r.run_id = w.run_id
WHERE w.tenant = $1 AND w.status = 'open' AND w.kind IN ('question', 'approval')
  AND (w.opened_at, w.wait_id) > ($2, $3)
  AND r.owner = $5
ORDER BY w.opened_at, w.wait_id
LIMIT $4;

-- name: find_due_waits
-- Open waits whose deadline has passed, the earliest first; not those that somebody is about to
-- answer, nor of runs that are damaged or have newer entries than the schema given. Each run
-- is for one sweep only.
SELECT w.run_id, w.wait_id
FROM waits w
JOIN runs r ON r.tenant = w.tenant AND r.run_id = w.run_id
WHERE w.tenant = $1 AND w.status = 'open' AND w.deadline > 0 AND w.deadline <= $2
  AND w.claimed_until <= $2
  AND r.blocked_reason <> 'corruption' AND r.schema <= $4 AND w.run_id <> ALL ($5::text[])
ORDER BY w.deadline, w.wait_id
LIMIT $3
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: find_due_waits_of_agents
-- The same, for peers of the runs of some agents only.
SELECT w.run_id, w.wait_id
FROM waits w
JOIN runs r ON r.tenant = w.tenant AND r.run_id = w.run_id
WHERE w.tenant = $1 AND w.status = 'open' AND w.deadline > 0 AND w.deadline <= $2
  AND w.claimed_until <= $2 AND w.kind = 'peer'
  AND r.blocked_reason <> 'corruption' AND r.schema <= $4 AND w.run_id <> ALL ($5::text[])
  AND r.agent = ANY ($6::text[])
ORDER BY w.deadline, w.wait_id
LIMIT $3
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: next_deadline
-- When the next open wait is due after a moment: those before it are expired, or held by a claim.
SELECT min(deadline)
FROM waits
WHERE tenant = $1 AND status = 'open' AND deadline > 0 AND deadline > $2;

-- name: delete_wait_rows
-- Forget a run's waits before they are rebuilt from the journal.
DELETE FROM waits WHERE tenant = $1 AND run_id = $2;

-- name: delete_group_rows
-- Forget a run's groups before they are rebuilt from the journal.
DELETE FROM wait_groups WHERE tenant = $1 AND run_id = $2;
