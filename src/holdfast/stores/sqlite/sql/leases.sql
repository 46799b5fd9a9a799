-- name: beat_worker
-- Keep a worker alive until the moment given; one row however many runs it holds. A beat that is late
-- never moves the moment back, unless the clock was set back.
INSERT INTO workers (tenant, worker, started_at, expires_at, lease, beats, host, boot_id, pid_namespace,
                     pid, process_start, agents, blocking_run, trying_run)
VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8, ?9, ?10, ?11, '', ?12)
ON CONFLICT (tenant, worker) DO UPDATE SET
    expires_at = CASE WHEN workers.expires_at > excluded.expires_at + excluded.lease
                      THEN excluded.expires_at
                      ELSE max(workers.expires_at, excluded.expires_at) END,
    lease = excluded.lease,
    beats = workers.beats + 1,
    agents = excluded.agents,
    blocking_run = '',
    trying_run = excluded.trying_run
RETURNING worker;

-- name: renew_taker
-- Keep a worker alive that takes a run, if less than half of its lease is left (?13 is the moment
-- that must not come before). With more left, nothing is written.
INSERT INTO workers (tenant, worker, started_at, expires_at, lease, beats, host, boot_id, pid_namespace,
                     pid, process_start, agents, blocking_run, trying_run)
SELECT ?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8, ?9, ?10, ?11, '', ?12
WHERE NOT EXISTS (SELECT 1 FROM workers w
                  WHERE w.tenant = ?1 AND w.worker = ?2 AND w.expires_at >= ?13)
ON CONFLICT (tenant, worker) DO UPDATE SET
    expires_at = CASE WHEN workers.expires_at > excluded.expires_at + excluded.lease
                      THEN excluded.expires_at
                      ELSE max(workers.expires_at, excluded.expires_at) END,
    lease = excluded.lease,
    beats = workers.beats + 1,
    agents = excluded.agents,
    blocking_run = '',
    trying_run = excluded.trying_run
RETURNING worker;

-- name: note_blocked_loop
-- Say on a worker's row which run's code holds its event loop; this is no sign of life.
UPDATE workers SET blocking_run = ?3 WHERE tenant = ?1 AND worker = ?2;

-- name: forget_worker
-- A worker that ended well.
DELETE FROM workers WHERE tenant = ?1 AND worker = ?2;

-- name: forget_unmoved_worker
-- A worker that was lost long ago, unless it has beaten since it was looked at.
DELETE FROM workers WHERE tenant = ?1 AND worker = ?2 AND beats = ?3;

-- name: get_holder
-- SQLite only, because PostgreSQL reads it with the other rows that decisions look at. Until when
-- a worker counts as alive, and how often it has beaten.
SELECT expires_at, beats
FROM workers
WHERE tenant = ?1 AND worker = ?2;

-- name: list_runs_with_results
-- The run, if the result of a step or of a call was recorded in it since it was leased. PostgreSQL
-- asks for many runs at once.
SELECT r.run_id
FROM runs r
WHERE r.tenant = ?1 AND r.run_id = ?2
  AND EXISTS (SELECT 1
              FROM journal j
              WHERE j.tenant = r.tenant AND j.run_id = r.run_id AND j.seq > r.lease_seq
                AND j.kind IN ('STEP_RECORDED', 'EFFECT_COMPLETED'));

-- name: list_workers
-- All workers, with the number of runs each holds.
SELECT w.tenant, w.worker, w.started_at, w.expires_at, w.lease, w.beats, w.host, w.boot_id,
       w.pid_namespace, w.pid, w.process_start, w.agents, w.blocking_run, w.trying_run,
       (SELECT count(*) FROM runs r
        WHERE r.tenant = w.tenant AND r.worker = w.worker AND r.status = 'running')
FROM workers w
WHERE w.tenant = ?1
ORDER BY w.started_at, w.worker;

-- name: list_runs_of_worker
-- The runs that a worker holds.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1 AND worker = ?2 AND status = 'running'
ORDER BY run_id;

-- name: list_holding_workers
-- The workers that hold runs, to watch whether they beat, with the number of runs each holds.
SELECT w.tenant, w.worker, w.started_at, w.expires_at, w.lease, w.beats, w.host, w.boot_id,
       w.pid_namespace, w.pid, w.process_start, w.agents, w.blocking_run, w.trying_run, held.runs
FROM workers w
JOIN (SELECT worker, count(*) AS runs FROM runs
      WHERE tenant = ?1 AND status = 'running' GROUP BY worker) held ON held.worker = w.worker
WHERE w.tenant = ?1
ORDER BY w.worker;

-- name: find_lost_runs
-- Runs of workers that are judged to be lost and have not beaten since (a JSON array of pairs), and of
-- workers without a row.
SELECT r.run_id
FROM runs r
LEFT JOIN workers w ON w.tenant = r.tenant AND w.worker = r.worker
WHERE r.tenant = ?1 AND r.status = 'running' AND r.schema <= ?3
  AND (w.worker IS NULL
       OR (w.worker, w.beats) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4)))
ORDER BY r.worker, r.run_id
LIMIT ?2;
